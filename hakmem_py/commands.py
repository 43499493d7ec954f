"""The commands of a build: run side by side, and ended at once where the build is given up."""

import os
import shlex
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

LOOK_S = 0.1  # between two looks whether the build was given up
_GIVEN_UP = threading.Event()


class BuildError(RuntimeError):
    """The build failed; the message carries the compiler's own text."""


@contextmanager
def writing(folder):
    """An OSError inside is a BuildError that names the folder, which is written to."""
    try:
        yield
    except OSError as error:
        cure = "make room or make the folder writable"
        raise BuildError(f"cannot write to {folder}: {error.strerror or error}; {cure}") from None


@contextmanager
def workers():
    """Threads for a build. Where it fails or is stopped, they end at once; a pool alone would finish it."""
    try:
        with ThreadPoolExecutor() as pool:
            try:
                yield pool
            except BaseException:
                _GIVEN_UP.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        _GIVEN_UP.clear()  # once the threads have ended


def side_by_side(pool, function, items):
    """function(item) of each, all of them finished.

    Looks again and again: a signal that comes just before the main thread waits would not end a longer wait.
    """
    futures = [pool.submit(function, item) for item in items]
    while wait(futures, LOOK_S).not_done:
        pass
    return [future.result() for future in futures]


def compiler():
    """The compiler's command; CC chooses another (conda's environments set it)."""
    chosen = os.environ.get("CC", "")
    try:
        return shlex.split(chosen) or ["gcc"]
    except ValueError as error:  # a quotation without end
        raise BuildError(f"CC={chosen}: {error}") from None


def call(command, folder=None, env=None):
    """What a command prints. Raises BuildError where it fails, is missing, or the build was given up."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "process_group": 0}
    try:
        child = subprocess.Popen(list(map(str, command)), cwd=folder, env=env, **how)
    except (FileNotFoundError, PermissionError):
        chosen = command[0] != "gcc" and command[0] in compiler()
        cure = "CC asks for it, name another there" if chosen else "sudo apt install gcc libc6-dev"
        raise BuildError(f"{command[0]} is missing, or not to be executed: {cure}") from None
    with child:
        said = None
        while said is None:
            try:
                said = child.communicate(timeout=LOOK_S)
            except subprocess.TimeoutExpired:
                if _GIVEN_UP.is_set():
                    os.killpg(child.pid, signal.SIGTERM)  # alone, gcc would leave its cc1 running
    if child.returncode:
        raise BuildError(f"{Path(command[0]).name} failed ({child.returncode}):\n{said[1].strip()}")
    return said[0]
