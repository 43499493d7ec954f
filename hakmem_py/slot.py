"""The machine's one bench slot: whoever measures holds it, so that no two measurements disturb each other."""

import contextlib
import fcntl
import os
import re
import sys
import time
from datetime import datetime
from pathlib import Path

SLOT = Path("/tmp/hakmem-bench.lock")  # one bench at a time on a machine, whoever starts it
SAY_AFTER_S = 5.0  # of waiting; then the holder is named


class SlotError(RuntimeError):
    """Another campaign measures on this machine, or the slot cannot be had."""


def say(text):
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def bench_slot(what, wait_s=0.0, tell=say):
    """Holds the machine's one bench slot. Raises SlotError, naming the holder, if it is not free in wait_s.

    The kernel frees it when its holder ends, however that happens. The bench inherits it: should the holder
    be killed, the slot stays taken until the run in flight has ended too. tell: called with a line that says
    who holds the slot, where the wait is long.
    """
    with _opened() as lock:
        _wait(lock, wait_s, tell)
        os.set_inheritable(lock.fileno(), True)
        if lock.writable():  # else the name of an earlier holder stays there
            lock.truncate(0)
            lock.write(f"{what} (process {os.getpid()}, since {datetime.now():%H:%M:%S})\n")
            lock.flush()
        yield


@contextlib.contextmanager
def alone_in(folder, taken):
    """Keeps others who ask for the same folder out of it meanwhile. Raises `taken`; a kill frees the lock.

    Gives the lock's file descriptor.
    """
    place = os.open(folder, os.O_RDONLY)
    try:
        if not _lockable(place):
            raise taken
        yield place
    finally:
        os.close(place)


def _lockable(place):
    try:
        return _locked(place)
    except OSError:  # a folder on another machine's disk may have no locks
        return True


def _opened():
    """The lock's file, for all users of the machine: open for writing if that is allowed, else for reading.

    Where it exists it is opened without O_CREAT, which in a folder such as /tmp only its owner may use.
    """
    try:
        lock = SLOT.open("r+", encoding="utf-8")
    except FileNotFoundError:
        try:
            lock = SLOT.open("x+", encoding="utf-8")
        except FileExistsError:  # somebody was quicker
            return _opened()
        except OSError as error:
            why = f"cannot make {SLOT}, this machine's bench slot: {error.strerror}"
            raise SlotError(f"{why}; make {SLOT.parent} writable") from None
    except OSError:  # it is another user's, or lies on a disk that is only read
        return SLOT.open(encoding="utf-8")  # which is enough to lock it
    with contextlib.suppress(PermissionError):  # another user owns it, and has done so
        os.fchmod(lock.fileno(), 0o666)
    return lock


def _wait(lock, wait_s, tell):
    start, said = time.monotonic(), False
    while not _locked(lock):
        waited = time.monotonic() - start
        if waited >= wait_s:
            raise SlotError(
                f"this machine's bench slot is taken by {_holder()}: two measurements would "
                "disturb each other. Wait for it to end, or stop it"
            )
        if waited >= SAY_AFTER_S and not said:
            said = True
            tell(f"hakmem: waiting for this machine's bench slot, which is taken by {_holder()}")
        time.sleep(0.2)


def _holder():
    said = SLOT.read_text(encoding="utf-8", errors="replace").strip() or "another process"
    process = re.search(r"\(process (\d+),", said)
    gone = process and not Path("/proc", process[1]).exists()
    return f"{said}, which has ended, while what it ran has not" if gone else said


def _locked(lock):
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
