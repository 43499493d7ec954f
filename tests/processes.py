"""Processes that tests start, stop and look for."""

import contextlib
import functools
import signal
import subprocess
import sys
import time
from pathlib import Path


def start(*words, hears, handler=signal.SIG_DFL, **how):
    """A Python process, its output piped as text. It hears the signal, which a background job may ignore."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=functools.partial(signal.signal, hears, handler), **how,
    )  # fmt: skip


def running(words):
    """Whether there is a process with these words in its command line."""
    found = False
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            found |= words.encode() in path.read_bytes()
    return found


def come_to(words, wanted):
    """Waits until there is a process with these words, or is not: a killed one takes its time. Whether so."""
    until = time.monotonic() + 60
    while running(words) != wanted:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
