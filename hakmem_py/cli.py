"""The command line: each subcommand is defined beside what it drives, as `add_NAME(parser)`."""

import argparse
import os
import signal
import sys
import threading
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path

from . import ROOT

COMMANDS = {  # subcommand -> (module that owns it, what it is for)
    "build": ("build", "compile the native library, its cffi module and the bench"),
    "peers": ("peers", "list the allocators found on this machine, and how to get the others"),
    "run": ("runner", "measure what is missing of an experiment, then print its table"),
    "campaign": ("campaign", "the same as run, by all machines of a dask cluster"),
    "check": ("check", "compare the working tree with a commit: instructions, time, verdict"),
    "ab": ("ab", "compare allocators, settings, or ACE off and on, on a workload or on any program"),
    "toggle": (
        "turns",
        "compare two values of a knob, or ACE off and on, in turns within a process: shows even 1 percent",
    ),
    "compare": ("owndata", "judge your own numbers, two or more variants in a CSV file"),
    "decide": ("ruler", "measure an experiment until its verdicts are in, at the looks that its spec fixes"),
    "calibrate": ("ruler", "measure how far this machine's verdicts can be trusted"),
    "simulate": ("bandits", "play bandit policies in a simulated environment"),
    "trace": ("trace", "record what a program allocates, to replay it"),
    "soak": ("soak", "watch a long run for drift of memory and throughput"),
    "report": ("report", "run the notebooks and write the HTML pages"),
    "freeze": ("showcase", "make samples the reference that is committed, measuring what is missing"),
    "readme": ("showcase", "redraw the README's figures from the reference, its table from the build"),
}

# These store what they measure, so that the same command goes on from there.
RESUMED = ("run", "campaign", "decide", "soak", "report", "freeze", "check")

# These work wherever the package is installed; all others need a clone of the repository.
EVERYWHERE = ("peers", "compare")


def parser(name):
    """The parser of one subcommand; importing only its owner keeps `report` free of the compiler."""
    owner, purpose = COMMANDS[name]
    made = argparse.ArgumentParser(prog=f"hakmem {name}", description=purpose)
    getattr(import_module(f".{owner}", __package__), f"add_{name}")(made)
    return made


class StdoutError(Exception):
    """What was printed cannot be written; one line."""


class Stdout:
    """stdout, except that an error names it: Python's own does not say which file could not be written."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text):
        return self._told(self.stream.write, text)

    def flush(self):
        self._told(self.stream.flush)

    def _told(self, function, *arguments):
        try:
            return function(*arguments)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StdoutError(f"cannot write to stdout: {error.strerror}") from None


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    if sys.stdout is None:  # closed by the caller
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  of the whole process
    if hasattr(sys.stdout, "reconfigure"):  # a character that a terminal lacks costs no table
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with redirect_stdout(Stdout(sys.stdout)), stopped_as_by_the_user():
            try:
                return _main(argv)
            finally:
                sys.stdout.flush()  # else it would fail after the last handler
    except (BrokenPipeError, StdoutError) as error:
        if isinstance(error, StdoutError):  # else the reader has seen enough, as head(1) has
            print(f"hakmem: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at exit
        return 1


@contextmanager
def stopped_as_by_the_user():
    """SIGTERM and a closed terminal stop as Ctrl-C does: no program is left running, no whole block lost."""

    def stop(which, _):
        raise KeyboardInterrupt(which)

    here = threading.current_thread() is threading.main_thread()  # no other thread may set handlers
    before = {which: signal.getsignal(which) for which in (signal.SIGTERM, signal.SIGHUP) if here}
    taken = [which for which, handler in before.items() if handler is signal.SIG_DFL]  # nohup ignores SIGHUP
    for which in taken:
        signal.signal(which, stop)
    try:
        yield
    finally:
        for which in taken:
            signal.signal(which, signal.SIG_DFL)


def _main(argv):
    if not argv or argv[0] not in COMMANDS:
        return usage(argv)
    try:
        args = parser(argv[0]).parse_args(argv[1:])  # importing takes seconds, in which a user may stop it
        if argv[0] not in EVERYWHERE and not (ROOT / "native").is_dir():
            import_module(".build", __package__).source_files()  # raises a BuildError that says so
        return args.run(args) or 0
    except KeyboardInterrupt as stop:
        kept = argv[0] in RESUMED
        said = "; what was measured is kept, the same command goes on from there" if kept else ""
        said = "; the table is of the blocks that were whole" if hasattr(stop, "samples") else said
        print(f"hakmem: stopped{said}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # a bug of ours keeps its traceback
        print(f"hakmem {argv[0]}: {error}", file=sys.stderr)
        return 1


def usage(argv):
    """Lists the subcommands without importing any of them."""
    asked = argv and argv[0] in ("-h", "--help")
    print("usage: hakmem SUBCOMMAND [--help]\n", file=sys.stdout if asked else sys.stderr)
    for name, (_, purpose) in COMMANDS.items():
        print(f"  {name:10} {purpose}", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2
