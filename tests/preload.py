"""What the tests of the shared library have in common: native programs, and the library they run under.

HAKMEM_TEST_LIBRARY judges another allocator by the same tests: a path, or "system" for libc's own.
HAKMEM_TEST_MINUTES=3 lets each fuzz run so long, and adds what is slow.
"""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from hakmem_py import build

NAMED = os.environ.get("HAKMEM_TEST_LIBRARY")
MINUTES = float(os.environ.get("HAKMEM_TEST_MINUTES", "0"))
NATIVE = Path(__file__).parent / "native"
COMPILERS = {".c": ("gcc", "-std=gnu11"), ".cc": ("g++", "-std=c++17")}
PROGRAMS = tempfile.TemporaryDirectory(prefix="hakmem-tests-")
# -fno-builtin: every call is made as written. -rdynamic: a program may stand before a function of libc.
FLAGS = ("-O1", "-g", "-fno-builtin", "-pthread", "-rdynamic", "-w")
# Of a promise that libc's own allocator never made.
not_of_libc = pytest.mark.skipif(NAMED == "system", reason="libc's allocator is under test")
needs_valgrind = pytest.mark.skipif(
    shutil.which("valgrind") is None, reason="valgrind is not installed: apt install valgrind"
)
# Under each of these a fuzz finds no violation. Restless: memory goes back all the time, the helper is early;
# learning: a decision every few milliseconds.
FUZZ_SETTINGS = {
    "default": {},
    "lean": {"HAKMEM_PROFILE": "lean"},
    "hardened": {"HAKMEM_PROFILE": "hardened"},
    "restless": {
        "HAKMEM_PURGE_DELAY_MS": "1",
        "HAKMEM_DEPOT_BYTES": "1M",
        "HAKMEM_BACKGROUND_BYTES": "1M",
    },
    "learning": {
        "HAKMEM_ACE_ENABLED": "1",
        "HAKMEM_ACE_FAST_INTERVAL_MS": "5",
        "HAKMEM_ACE_SLOW_INTERVAL_MS": "50",
    },
}


@functools.cache
def library():
    """Path of the library under test, None for libc's own allocator."""
    if NAMED == "system":
        return None
    path = Path(NAMED) if NAMED else build.build("release").library
    assert path.is_file(), f"HAKMEM_TEST_LIBRARY names no file: {path}"
    return path.resolve()


@functools.cache
def program(source, *flags):
    """The executable compiled from tests/native/<source>; skips the test where there is no compiler."""
    compiler, standard = COMPILERS[Path(source).suffix]
    if shutil.which(compiler) is None:
        pytest.skip(f"no compiler for {source}: apt install {compiler}")
    executable = Path(PROGRAMS.name, re.sub(r"\W", "_", f"{source} {' '.join(map(str, flags))}"))
    subprocess.run(
        [compiler, standard, *FLAGS, NATIVE / source, "-o", executable, *flags, "-ldl"], check=True
    )
    return executable


def inlined(sized=False):
    """Flags with which a program inlines malloc and free, as hakmem.h has them. sized: free is told a size.

    The header includes libc's before the program can ask for what is GNU's."""
    if sized:
        return ("-D_GNU_SOURCE=", "-include", NATIVE / "sized.h", library())
    header = build.NATIVE / "include" / "hakmem.h"
    return (
        "-D_GNU_SOURCE=",
        "-include",
        header,
        library(),
        "-Dmalloc=hak_malloc_inline",
        "-Dfree=hak_free_inline",
    )


def run(command, timeout=120, preload=True, stdin=None, cwd=None, **environment):
    """The finished process of a command under the library; output as text. Fails the test when time is up."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HAKMEM_")}
    env.update(environment)
    if preload and library():
        env["LD_PRELOAD"] = str(library())
    return subprocess.run(
        [str(word) for word in command], env=env, timeout=timeout, cwd=cwd, input=stdin, text=True,
        capture_output=True, errors="replace", stdin=subprocess.DEVNULL if stdin is None else None,
    )  # fmt: skip


def promises(source):
    """Names of the promises of a native test, in the order of the file."""
    return re.findall(r"^PROMISE\((\w+)\)", (NATIVE / source).read_text(), re.MULTILINE)


def keep(source, promise, *flags, **options):
    """Runs one promise of a native test; options are those of `run`."""
    judge(run([program(source, *flags), promise], **options))


def judge(done):
    """A promise was kept without a word. Skips the test where, by status 77, it cannot be tried here."""
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
