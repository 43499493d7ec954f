"""Real programs give the same results under the library as without it; their work lies in tests/programs.

What is not installed is skipped. HAKMEM_TEST_MINUTES adds the slow modules of CPython's own tests.
"""

import importlib.util
import shutil
import sys

import pytest
from preload import MINUTES, NATIVE, run

PROGRAMS = NATIVE.parent / "programs"
WORK = {  # name: (command, programs it needs besides its own)
    "python": ([sys.executable, PROGRAMS / "threads_and_children.py"], ()),
    "numpy_and_pandas": ([sys.executable, PROGRAMS / "numpy_and_pandas.py"], ()),
    "sqlite": ([sys.executable, PROGRAMS / "sqlite.py"], ()),
    "jupyter_kernel": ([sys.executable, "-W", "ignore", PROGRAMS / "kernel.py"], ()),
    "git": (["sh", PROGRAMS / "git.sh"], ["git"]),
    "gcc": (["gcc", "-O2", "-w", "-S", "-o", "-", NATIVE / "threads.c"], ()),
    "g++": (["g++", "-O2", "-w", "-S", "-o", "-", NATIVE / "contract.cc"], ()),
    "make": (["sh", PROGRAMS / "make.sh"], ["make", "gcc"]),
    "perl": (["perl", PROGRAMS / "hashes.pl"], ()),
    "node": (["node", PROGRAMS / "workers.js"], ()),
    "xz": (["sh", PROGRAMS / "xz.sh"], ["xz"]),
    "java": (["java", PROGRAMS / "Work.java"], ["javac"]),
    "redis": (["sh", PROGRAMS / "redis.sh"], ["redis-server", "redis-cli"]),
    "postgres": (["sh", PROGRAMS / "postgres.sh"], ["initdb", "pg_ctl", "psql", "unshare"]),
}
MODULES = (
    "list dict set bytes array json pickle zlib mmap thread fork1 re unicode memoryview gc weakref sqlite3 "
    "ctypes deque heapq lzma bz2 hashlib decimal exceptions struct capi tempfile"
)
LONG_MODULES = "subprocess io threading queue asyncio"


def outcome(command, folder, preload):
    """(status, stdout, stderr); PYTHONMALLOC: Python's objects come from malloc too."""
    done = run(command, preload=preload, cwd=folder, PYTHONMALLOC="malloc", PERL_HASH_SEED="0")
    return done.returncode, done.stdout, done.stderr.replace(str(folder), "")


@pytest.mark.parametrize("name", WORK)
def test_program_gives_the_same_result(name, tmp_path_factory):
    command, needed = WORK[name]
    for program in (command[0], *needed):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    without, with_it = (outcome(command, tmp_path_factory.mktemp(name), preload) for preload in (False, True))
    if without[0] == 77:
        pytest.skip(without[2].strip())
    assert with_it == without
    assert without[0] == 0, without
    assert without[1] != ""


def test_cpython_keeps_its_own_tests(tmp_path):
    names = (MODULES + " " + LONG_MODULES) if MINUTES else MODULES
    pytest.importorskip("test.support", reason="this Python came without its tests")
    wanted = [f"test_{name}" for name in names.split()]
    modules = [name for name in wanted if importlib.util.find_spec(f"test.{name}")]  # Debian leaves some out
    if not modules:
        version = ".".join(map(str, sys.version_info[:2]))
        pytest.skip(f"this Python came without its tests: apt install libpython{version}-testsuite")
    command = [sys.executable, "-m", "test", "-q", "-j2", "--timeout", "600", *modules]
    done = run(command, timeout=1800, cwd=tmp_path, PYTHONMALLOC="malloc")
    assert done.returncode == 0, done.stdout[-3000:]
