"""Other compilers, another architecture, larger pages, other variants: the contract and the fuzz under each.

HAKMEM_TEST_MINUTES=3 lets each fuzz run so long, and adds the promises about threads.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from preload import MINUTES, NATIVE, judge, promises

from hakmem_py.build import COMMON, HARDEN, VARIANTS, build
from hakmem_py.build import NATIVE as SOURCES

FUZZ_SECONDS = round(60 * MINUTES) or 2
THREADS = promises("threads.c") if MINUTES else []
AARCH64 = "aarch64-linux-gnu"
WARNINGS = ("-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class Platform:
    """How the library is made, and what runs its programs. sources: compiled into it besides its own."""

    compiler: str
    flags: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()
    emulator: tuple[str, ...] = ()


PAGES = (NATIVE / "pages.c",)
PLATFORMS = {
    "aarch64": Platform(f"{AARCH64}-gcc", emulator=("qemu-aarch64", "-L", f"/usr/{AARCH64}")),
    "clang": Platform("clang"),
    "pages64": Platform("gcc", ("-DPAGE=65536",), PAGES),
    "slab16": Platform("gcc", VARIANTS["slab16"]),
    "slab16-pages64": Platform("gcc", ("-DPAGE=65536", *VARIANTS["slab16"]), PAGES),
    "published8": Platform("gcc", VARIANTS["published8"]),
}


def compile_or_skip(command):
    """Runs a compiler; skips where it, or its headers for another machine, are not installed."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed: apt install gcc-{AARCH64} libc6-dev-arm64-cross clang")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if AARCH64 in command[0] and "fatal error: bits/" in done.stderr:
        pytest.skip("no headers for aarch64: apt install libc6-dev-arm64-cross")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module", params=PLATFORMS)
def run(request, tmp_path_factory):
    """run(program, *arguments, **environment): a native test in the platform's library, preloaded."""
    platform = PLATFORMS[request.param]
    if platform.emulator and shutil.which(platform.emulator[0]) is None:
        pytest.skip(f"{platform.emulator[0]} is not installed: apt install qemu-user")
    folder = tmp_path_factory.mktemp(request.param)
    library = folder / "libhakmem.so"
    sources = (SOURCES / "src" / "preload.c", *platform.sources)
    compile_or_skip(
        [platform.compiler, *COMMON, *WARNINGS, *platform.flags, *sources, "-shared", *HARDEN, "-o", library]
    )

    def run_one(program, *arguments, preload=library, **environment):
        executable = folder / program
        if not executable.exists():
            flags = ("-std=gnu11", "-O1", "-g", "-w", "-fno-builtin", "-pthread", "-rdynamic")
            compile_or_skip([platform.compiler, *flags, NATIVE / f"{program}.c", "-o", executable])
        environment |= {"LD_PRELOAD": str(preload)} if preload else {}
        inside = [f"{name}={value}" for name, value in environment.items()]
        if platform.emulator:
            command = [*platform.emulator, *(word for pair in inside for word in ("-E", pair))]
        else:
            command = ["env", *inside]
        return subprocess.run(
            [*command, str(executable), *map(str, arguments)], capture_output=True, text=True, timeout=600
        )

    run_one.emulated = bool(platform.emulator)
    return run_one


def keep(run, program, promise):
    done = run(program, promise)
    if done.returncode not in (0, 77) and run.emulated and run(program, promise, preload=None).returncode:
        pytest.skip("libc's own allocator fails here too: it is the emulator")
    judge(done)


@pytest.mark.parametrize("promise", promises("contract.c"))
def test_the_contract_is_kept(run, promise):
    keep(run, "contract", promise)


@pytest.mark.parametrize("promise", THREADS)
def test_threads_are_served(run, promise):
    if run.emulated and re.search("thread|circulates|tls_", promise):
        pytest.skip("resident memory is the emulator's: a record for each page of reserved address space")
    keep(run, "threads", promise)


@pytest.mark.parametrize("profile", ["default", "hardened"])
def test_fuzz_finds_no_violation(run, profile):
    done = run("fuzz", FUZZ_SECONDS, 4, 42, HAKMEM_PROFILE=profile)
    assert done.returncode == 0, done.stderr
    assert "no violation" in done.stdout


@pytest.mark.parametrize("compiler", ["gcc", "clang", f"{AARCH64}-gcc"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_compiles_without_a_warning(compiler, variant):
    flags = (*COMMON, *WARNINGS, *VARIANTS[variant])
    compile_or_skip([compiler, *flags, "-fsyntax-only", SOURCES / "src" / "preload.c"])


INLINED = r"""
#include "hakmem.h"
int main(void)
{
    hak_pool_t *pool = hak_pool_new(48, 16);
    void *object[100], *block[100];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++)
            if (!(object[i] = hak_pool_allocate(pool)) || !(block[i] = hak_malloc_inline(40))) return 1;
        for (int i = 0; i < 100; i++) {
            hak_free_inline(block[i]);
            if (hak_pool_deallocate(pool, object[i]) != HAK_POOL_OK) return 2;
        }
        if (hak_pool_allocate(pool) != object[99] || hak_pool_deallocate(pool, object[99])) return 3;
    }
    hak_pool_stats_t stats;
    if (hak_pool_stats(pool, &stats) || stats.allocations != 303 || stats.live) return 4;
    return hak_pool_destroy(pool);
}
"""


@pytest.mark.parametrize("level", ["-O0", "-O2"])
@pytest.mark.parametrize(
    "compiler",
    [
        "gcc -xc",
        "gcc -xc -std=c11",
        "g++ -xc++",
        "g++ -xc++ -std=c++17",
        "clang -xc",
        "clang -xc -std=c11",
        "clang++ -xc++",
        "clang++ -xc++ -std=c++17",
    ],
)
def test_what_the_header_inlines_works_in_every_compiler(tmp_path, compiler, level):
    source, program = tmp_path / "source", tmp_path / "program"
    source.write_text(INLINED)
    made = build()
    linked = [f"-I{SOURCES / 'include'}", source, "-xnone", made.library, f"-Wl,-rpath,{made.folder}"]
    compile_or_skip([*compiler.split(), level, *WARNINGS, *linked, "-o", program])
    assert subprocess.run([program], timeout=20).returncode == 0


NEIGHBOURS = r"""
#include "hakmem.h"
void take(void **blocks)
{
    void *first = hak_malloc_inline(16), *second = hak_malloc_inline(16);
    blocks[0] = first;
    blocks[1] = second;
}
"""


# What compilers do in a build that is guided by a profile. The second slot would be found from the first top.
def test_no_inlined_call_reads_a_slot_before_the_last_one_has_stored_the_top(tmp_path):
    source, made = tmp_path / "source.c", tmp_path / "made.s"
    source.write_text(NEIGHBOURS)
    include, eager = f"-I{SOURCES / 'include'}", ("-O2", "-ftracer", "-fsched2-use-superblocks")
    compile_or_skip(["gcc", include, *eager, *WARNINGS, "-S", source, "-o", made])
    assert not re.search(r"[\t ]-16\(%r|, #?-16\]", made.read_text())
