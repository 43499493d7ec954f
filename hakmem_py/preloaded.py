"""One run of any program under a preloaded allocator: times as the kernel counts them, and peak memory."""

import contextlib
import ctypes
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from itertools import chain
from pathlib import Path

from .stops import await_end, held_back
from .worker import last_line, refusal, signal_name

LOOK_S = 0.005  # between two looks at a program's memory
LEAVE_S = 1.0  # in which what a program started may still end after it, as `tee` does
LOOKS = 3  # needed for a peak: the first look falls into the program's loading
PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)


def run(command, preload="", env=(), timeout_s=600.0):
    """Runs a program once: {status, error, elapsed_ns, cpu_ns, peak_rss_bytes}; if it fails, the first two.

    preload: value of LD_PRELOAD. env: further variables; the caller's HAKMEM_ variables are not handed on.
    What the program prints is not kept. Peak memory is that of the program itself, without its children; nan
    where it ended before LOOKS looks. status: ok, error or timeout. Its children are ended with it on a
    timeout, and where the user stops the measurement. A program that leaves processes behind is an error, and
    they are ended: their time would not be counted, and they would disturb the next run. A daemon that has
    ended is counted, children whose end their parent ignores (SIGCHLD) are not: the kernel forgets them.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("HAKMEM_")}
    since = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    with tempfile.TemporaryFile() as said, _adopting():
        child, late = None, threading.Event()
        alarm = threading.Timer(timeout_s, lambda: (late.set(), _end(child)))
        try:
            with held_back():
                start = time.monotonic_ns()
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
                    env=own | dict(env) | {"LD_PRELOAD": preload}, start_new_session=True,
                    close_fds=False,  # the bench slot is inherited: taken until this ends, if we are killed
                )  # fmt: skip
            alarm.start()
            with _peak_rss(child.pid) as peak:
                await_end(child.pid)
                wall_ns = time.monotonic_ns() - start
                _, status, usage = os.wait4(child.pid, 0)
        except BaseException:  # stopped by the user, of whom a session of its own hears nothing
            if child:
                _end(child)
                child.wait()  # else a notebook's kernel would keep it as a zombie
                _end_late(since)
            raise
        finally:
            alarm.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        left, late_s = _end_late(since)
        said.seek(0)
        told = said.read().decode(errors="replace")
        room = "" if shutil.disk_usage(tempfile.gettempdir()).free else f" ({tempfile.gettempdir()} is full)"
    if child.returncode and late.is_set():
        return {"status": "timeout", "error": f"{Path(command[0]).name} did not end within {timeout_s:g} s"}
    if child.returncode:
        name, code = Path(command[0]).name, child.returncode
        how = f"status {code}" if code > 0 else signal_name(-code)
        error = f"{name} ended with {how}: {last_line(told)}".rstrip(": ")
        return {"status": "error", "error": error + room}
    unloaded = re.search("^.*cannot be preloaded.*", told, re.MULTILINE)
    if refused := unloaded[0] if unloaded else refusal(told):
        return {"status": "error", "error": refused}
    if left:
        error = f"{Path(command[0]).name} left {left} running, whose time is uncounted: let it wait for them"
        return {"status": "error", "error": error}
    cpu_ns = round(1e9 * (usage.ru_utime + usage.ru_stime + late_s))
    looks = [found for found in peak if found]
    most = max(looks) if len(looks) >= LOOKS else float("nan")
    row = {"elapsed_ns": wall_ns, "cpu_ns": cpu_ns, "peak_rss_bytes": most}
    return row | {"status": "ok", "error": ""}


def _end(child):
    """Ends a program and the children that share its session."""
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
        os.killpg(child.pid, signal.SIGKILL)


@contextlib.contextmanager
def _adopting():
    """Inside, a process whose parent has ended becomes a child of this one: only a parent hears its time."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _end_late(since):
    """Ends what a program started that still lives LEAVE_S after the program: (the names, "" for none; CPU
    seconds of all that the program did not wait for). What outlives that as long, as another user's may, is
    left; on a busy machine the first may come late."""
    until, given_up, left, spent = time.monotonic() + LEAVE_S, math.inf, {}, 0.0
    while (found := _started(since)) and time.monotonic() < given_up:
        for pid, (parent, name) in found.items():
            done, _, usage = os.wait4(pid, os.WNOHANG) if parent == os.getpid() else (0, 0, None)
            if done:
                spent += usage.ru_utime + usage.ru_stime
            elif time.monotonic() > until:
                given_up = given_up if left else time.monotonic() + LEAVE_S
                left[pid] = name
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)
    return ", ".join(sorted(set(left.values()))), spent


def _started(since):
    """{pid: (parent, name)} of our descendants in other sessions: what a program started that has ended.

    since: clock ticks after boot, as in proc(5), before which none was started.
    """
    found, us = {}, os.getpid()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # its parent has just waited for it
            said, _, rest = path.read_text(encoding="utf-8", errors="replace").rpartition(") ")
            fields = rest.split()
            state, parent, session, started = fields[0], int(fields[1]), int(fields[3]), int(fields[19])
            if started >= since and session != os.getsid(0) and (state not in "ZX" or parent == us):
                found[int(path.parent.name)] = parent, said.partition(" (")[2]

    def descends(pid):
        return pid == us or (pid in found and descends(found[pid][0]))

    return {pid: row for pid, row in found.items() if descends(pid)}


def _high_water(process):
    """The most bytes that were resident; 0 where it has just ended. Its first thread may end before it."""
    with contextlib.suppress(OSError):  # it may end while its threads are listed, too
        for status in chain([process / "status"], process.glob("task/*/status")):
            with contextlib.suppress(OSError):
                found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8", errors="replace"))
                if found:
                    return 1024 * int(found[1])
    return 0


@contextlib.contextmanager
def _peak_rss(pid):
    """The peak of a live process's resident bytes at each look, every few milliseconds: a list that grows.

    The kernel's own account (ru_maxrss of getrusage(2)) is no use: it starts from the parent's at the fork.
    """
    seen, over = [], threading.Event()

    def watch():
        while not over.wait(LOOK_S if seen else 0):
            seen.append(_high_water(Path(f"/proc/{pid}")))

    look = threading.Thread(target=watch)
    try:
        look.start()  # inside: where the user stops it here, nobody else would end the thread
        yield seen
    finally:
        over.set()
        if look.ident:  # it has begun
            look.join()
