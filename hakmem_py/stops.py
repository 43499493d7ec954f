"""The user's stop (Ctrl-C, SIGTERM, a closed terminal) while a program of ours is started and runs."""

import os
import signal
import subprocess
import threading
from contextlib import ExitStack, contextmanager, suppress

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_S = 0.1  # between two looks whether a stop came


@contextmanager
def held_back():
    """A stop that comes inside is heard at the end: what is being started cannot be ended yet.

    The second stop is heard at once.
    """
    heard = []
    here = threading.current_thread() is threading.main_thread()  # no other thread may set handlers
    handlers = {which: signal.getsignal(which) for which in STOPS if here}
    before = {which: handler for which, handler in handlers.items() if callable(handler)}  # not if ignored

    def hear(number, frame):
        heard.append(number)
        if len(heard) > 1:
            before[number](number, frame)

    with ExitStack() as end:  # a stop that comes meanwhile does not spare the rest of it
        end.callback(lambda: [signal.raise_signal(which) for which in heard[:1]])
        for which, handler in before.items():
            end.callback(signal.signal, which, handler)
            signal.signal(which, hear)
        yield


@contextmanager
def started(command, **how):
    """The subprocess.Popen of a command, killed where the block is left by a stop or another exception."""
    child = None
    try:
        with held_back():
            child = subprocess.Popen(command, **how)
        yield child
    except BaseException:
        if child:
            with child:  # waits for it and closes its pipes
                child.kill()
        raise


def await_end(pid):
    """Returns when a child has ended; it is still to be waited for.

    A thread waits, and this one looks again and again: a signal that comes just before a wait, or to another
    thread, would not end it.
    """

    def wait():
        with suppress(ChildProcessError):  # whoever was stopped has waited for it
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    while waiting.is_alive():
        waiting.join(LOOK_S)
