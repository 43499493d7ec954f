"""Records what a program allocates, one trace per process, for `bench --replay`."""

import contextlib
import functools
import hashlib
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .build import BUILDS, NATIVE, build, compiler_version, expect_preloadable
from .commands import call, compiler, writing
from .slot import alone_in
from .spec import TRACE_SUFFIX
from .stops import await_end, held_back

# What the table of workloads would say of a trace; it has as many threads as the program had.
REPLAY = {"threads": None, "backends": ("malloc", "direct")}
RECORDS = 1 << 26  # 1 GiB: as many as one trace may have, unless the user says another number
NO_SPACE = "no space is left on its disk, make room or choose another folder with --out"
SAY_AFTER_S = 2.0  # of waiting for a program that was stopped
SHOWN = 10  # of the traces of one recording, the longest
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-builtin", "-pthread")
_SOURCES = ("trace.c", "trace.h", "bench.h")
_HEADER = struct.Struct("<8sIIQQQII16s")  # struct trace_header of native/bench/trace.h
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True)
class Trace:
    """One process. records: calls that were recorded (a realloc is two); lost: calls that were not; limit:
    records that there was room for, fewer than were allowed where the disk was full."""

    path: Path
    program: str
    records: int
    lost: int
    limit: int


def record(command, folder, records=RECORDS, env=(), patient=True, **streams):
    """Runs a program under the recorder: (its exit status, as a shell gives it; [Trace] of those that it and
    its children wrote, the longest first, among full ones that of the most calls).

    `records` limits each trace (16 bytes a record); what comes after is counted as lost. The allocator
    underneath is the C library's, whatever was preloaded. env: further variables of the program; streams:
    its stdin, stdout, stderr, as for `subprocess.Popen`. patient: where the user stops it, the program is
    waited for and what it did is told; else it and its children are ended, and KeyboardInterrupt goes on.
    """
    if records < 1:
        raise ValueError(f"records must be at least 1, not {records}")
    find_program(command[0])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"{folder} is a file: choose a folder for the traces with --out") from None
    except OSError:  # as where the clone, in which it is by default, is another user's
        pass
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ValueError(f"{folder} cannot be written: choose another folder with --out")
    taken = ValueError(f"another trace is recorded in {folder}: choose another folder with --out")
    with alone_in(folder, taken):  # of the new traces nobody could tell whose they are
        return _record(command, folder, records, env, patient, streams)


def _record(command, folder, records, env, patient, streams):
    before = set(folder.glob(f"*{TRACE_SUFFIX}"))
    asked = {"HAKMEM_TRACE_DIR": str(folder.resolve()), "HAKMEM_TRACE_RECORDS": str(records)}
    env = os.environ | dict(env) | {"LD_PRELOAD": str(recorder())} | asked
    child = None
    try:
        with held_back():
            child = subprocess.Popen(command, env=env, start_new_session=not patient, **streams)
        await_end(child.pid)
    except KeyboardInterrupt as stop:  # Ctrl-C reaches a program that runs, too: servers are ended by it
        if child and not patient:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if child is None or not patient:
            raise
        for which in stop.args:  # SIGTERM or SIGHUP, which may have been sent to us alone
            child.send_signal(which)
        try:
            _await_its_end(child, command[0])
        finally:
            child.kill()  # where the user stops it once more
    status = child.wait()
    new = set(folder.glob(f"*{TRACE_SUFFIX}")) - before
    traces = [read_header(path) for path in new if path.stat().st_size]
    if new and not traces and status >= 0:  # a process that is killed as it begins leaves an empty file, too
        raise ValueError(f"nothing was recorded in {folder}: {NO_SPACE}")
    status = status if status >= 0 else 128 - status  # killed by a signal
    return status, sorted(traces, key=lambda trace: (trace.records, trace.lost), reverse=True)


def _await_its_end(child, name):
    """Waits for a program that was stopped; says so where it takes its time, or has not heard."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(SAY_AFTER_S)
        return
    with contextlib.suppress(OSError):  # the terminal was closed
        print(f"hakmem trace: waiting for {name} to end; stop once more to kill it", file=sys.stderr)
    await_end(child.pid)


def find_program(name):
    """The path that a shell would run. Raises ValueError where there is none."""
    found = shutil.which(name)
    if found is None and Path(name).is_file():
        raise ValueError(f"{name} cannot be executed: chmod +x {name}, or name its interpreter first")
    if found is None:
        where = f" in {Path.cwd()}" if "/" in name and not Path(name).is_absolute() else ""
        raise ValueError(f"there is no program {name!r}{where}: give a path, or a name that the shell finds")
    _expect_interpreter(name, found)
    return found


def _expect_interpreter(name, path):
    """A shell itself runs a script that names no interpreter, and tells which interpreter is not there; we do
    neither."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(256)
    except OSError:  # it may be executed, not read
        return
    named = head.removeprefix(b"#!").split(maxsplit=1) if head.startswith(b"#!") else []
    if named and not Path(os.fsdecode(named[0])).exists():
        raise ValueError(f"{name} asks for {os.fsdecode(named[0])}, which is not there: mend its first line")
    if not named and b"\0" not in head:
        raise ValueError(f"{name} names no interpreter in its first line: name it first, as in sh {name}")


def recorder():
    """libhaktrace.so, compiled where its sources or the compiler have changed."""
    expect_preloadable()
    sources = [NATIVE / "bench" / name for name in _SOURCES]
    content = repr((_FLAGS, compiler_version())).encode() + b"".join(path.read_bytes() for path in sources)
    library = BUILDS / f"trace-{hashlib.sha256(content).hexdigest()[:12]}" / "libhaktrace.so"
    if not library.exists():
        with writing(BUILDS):
            library.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
                out = Path(scratch, library.name)
                call([*compiler(), *_FLAGS, "-DHAK_TRACE_RECORDER", sources[0], "-o", out])
                out.rename(library)
    return library


def chosen(path):
    """As `read_header`, before the trace is replayed: says on stderr if calls are missing."""
    trace = read_header(path)
    if trace.lost:
        print(
            f"hakmem: {path} lacks {trace.lost} of {trace.records + trace.lost} calls, which were not "
            f"recorded: what is replayed is the beginning of {trace.program}",
            file=sys.stderr,
        )
    return trace


def read_header(path):
    """The Trace of a file. Raises ValueError if the file is no trace or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; record a trace with hakmem trace -- PROGRAM") from None
    if len(head) < _HEADER.size or not head.startswith(b"HAKTRACE"):
        raise ValueError(f"{path} is not a trace: record one with hakmem trace -- PROGRAM")
    _, _, _, drawn, limit, lost, _, _, program = _HEADER.unpack(head)
    return Trace(path, program.rstrip(b"\0").decode(errors="replace"), min(drawn, limit), lost, limit)


def digest(path):
    """Hash of the whole file."""
    return _digest(path, path.stat().st_mtime_ns)


@functools.cache
def _digest(path, _written_ns):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add_trace(sub):
    sub.usage = "hakmem trace [--out FOLDER] [--records N] -- PROGRAM ..."
    sub.add_argument(
        "--out", type=Path, default=Path("traces"), help="folder of the traces, default ./traces"
    )
    sub.add_argument(
        "--records", type=int, default=RECORDS, help=f"the most in one trace, default {RECORDS} (1 GiB)"
    )
    sub.add_argument("program", nargs="+", help="the program and its arguments, after --")
    sub.set_defaults(run=_run)


def _cure(trace, args):
    return NO_SPACE if trace.limit < args.records else "raise --records"


def _run(args):
    status, traces = record(args.program, args.out, args.records)
    for trace in traces[:SHOWN]:
        lost = f", {trace.lost} lost: {_cure(trace, args)}" if trace.lost else ""
        print(f"{trace.path}: {trace.program}, {trace.records} records{lost}")
    if traces[SHOWN:]:
        print(f"and {len(traces) - SHOWN} shorter ones in {args.out}")
    recorded = bool(traces) and traces[0].records > 0
    if recorded:
        print("replay:", shlex.join([str(build().bench), "--replay", str(traces[0].path.resolve())]))
    if status:
        unseen = "" if traces else "; nothing was recorded"
        print(f"hakmem trace: {args.program[0]} ended with status {status}{unseen}", file=sys.stderr)
    elif traces and not recorded:
        raise RuntimeError(f"nothing was recorded: {_cure(traces[0], args)}")
    elif not traces:
        raise RuntimeError(
            "nothing was recorded: the program allocates nothing, is static or setuid and takes no library,"
            " or had no room for so many --records"
        )
    return status
