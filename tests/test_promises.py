"""Start, exhaustion, the background thread, memory given back, late loading, and the library as a file."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from preload import NATIVE, judge, keep, library, not_of_libc, program, promises, run

from hakmem_py import build

SOURCES = sorted(f"promises/{path.name}" for path in (NATIVE / "promises").glob("*.c"))
LATE, CRASH = "promises/late_load.c", "promises/crash.c"
KIB, MIB = 1 << 10, 1 << 20
PROFILES = {
    "default": {},
    "lean": {
        "magazine_blocks": 32,
        "magazine_bytes": 16 * KIB,
        "run_cache_bytes": 1 * MIB,
        "depot_bytes": 1 * MIB,
        "purge_delay_ms": 100,
        "purge_batch_bytes": 1 * MIB,
        "huge_pages": 0,
        "background_bytes": 4 * MIB,
    },
    "keep": {
        "purge_delay_ms": 60000,
        "purge_batch_bytes": 1024 * MIB,
        "background": 0,
        "run_cache_bytes": 256 * MIB,
    },
    "hardened": {"quarantine": 256, "canaries": 1},
    "learning": {"ace_enabled": 1},
}


@pytest.mark.parametrize(
    ("source", "promise"),
    [(source, name) for source in SOURCES if source not in (LATE, CRASH) for name in promises(source)],
)
def test_promise_is_kept(source, promise):
    keep(source, promise)


@not_of_libc
@pytest.mark.parametrize("profile", ["default", "hardened"])
@pytest.mark.parametrize("promise", promises(CRASH))
def test_a_crash_ends_as_the_program_wants(promise, profile):
    keep(CRASH, promise, HAKMEM_PROFILE=profile)


@pytest.mark.parametrize("promise", promises("promises/freed_twice.c"))
def test_hardened_blocks_have_one_owner_too(promise):
    keep("promises/freed_twice.c", promise, HAKMEM_PROFILE="hardened")


def test_hardened_blocks_that_grew_have_the_size_asked_for():
    keep("promises/vectors.c", "what_grew_by_a_byte_has_a_quarter_more_at_most", HAKMEM_PROFILE="hardened")


@not_of_libc
def test_slabs_of_16_kib_serve_long_blocks_beside_hundreds_of_threads():
    """On one core, and lean: what a thread may keep of a class is less than one of its blocks there."""
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, program("promises/kept.c")]
    slab16 = {"LD_PRELOAD": str(build.build("slab16").library), "HAKMEM_PROFILE": "lean"}
    judge(run([*command, "long_blocks_are_served_beside_hundreds_of_threads"], preload=False, **slab16))


@pytest.mark.parametrize("promise", promises("promises/helper.c"))
def test_helper_is_nobodys_concern_while_it_learns(promise):
    keep("promises/helper.c", promise, HAKMEM_ACE_ENABLED="1")


def test_a_helper_that_cannot_start_does_no_harm_while_it_would_learn():
    keep("promises/no_threads.c", "a_helper_that_cannot_start_does_no_harm", HAKMEM_ACE_ENABLED="1")


@not_of_libc
def test_links_lie_under_another_key_in_each_process():
    look = [program("promises/freed_twice.c"), "what_free_blocks_begin_with"]
    keys = {run(look).stdout for _ in range(4)}
    assert len(keys) == 4 and "" not in keys


@pytest.mark.parametrize("setting", [{"HAKMEM_PROFILE": "lean"}, {"HAKMEM_DEPOT_BYTES": "1M"}], ids=str)
def test_blocks_that_never_waited_in_a_depot_go_back_too(setting):
    keep("promises/give_back.c", "what_is_scattered_over_all_slabs_goes_back", **setting)


@pytest.mark.parametrize("beside", ["a_large_block_comes_and_goes", "many_blocks_come_and_go"])
def test_a_peak_goes_back_by_later_calls_where_there_is_no_helper(beside):
    keep("promises/give_back.c", f"a_peak_goes_back_while_{beside}", HAKMEM_BACKGROUND="0")


@pytest.mark.parametrize("promise", promises("promises/exhaustion.c"))
def test_quarantine_stands_in_nobodys_way_at_the_end_of_memory(promise):
    keep("promises/exhaustion.c", promise, timeout=180, HAKMEM_PROFILE="hardened")


@pytest.mark.parametrize(
    "setting", [{"HAKMEM_PROFILE": "hardened"}, {"HAKMEM_FORCE_LIBC_ALLOC": "1"}], ids=str
)
def test_only_touched_memory_is_resident_and_all_of_it_moves_however_it_is_served(setting):
    keep("promises/touched.c", "only_touched_memory_is_resident", **setting)
    keep("promises/touched.c", "a_giant_of_any_size_moves_whole", **setting)


@pytest.mark.parametrize("setting", [{"HAKMEM_PROFILE": "hardened"}, {"HAKMEM_PROFILE": "lean"}], ids=str)
def test_blocks_are_counted_however_they_are_served(setting):
    keep("promises/told.c", "blocks_with_callers_are_counted", **setting)


def test_libc_serves_where_it_is_asked_to():
    keep(
        "promises/told.c", "it_is_libcs_heap_that_grows_where_libc_was_asked_for", HAKMEM_FORCE_LIBC_ALLOC="1"
    )
    keep("promises/told.c", "a_trim_reaches_the_heap_that_serves", HAKMEM_FORCE_LIBC_ALLOC="1")


def in_force(**setting):
    """(profile, {knob: value}) as the library says itself."""
    profile, *lines = run(
        [program("promises/told.c"), "it_says_what_is_in_force"], **setting
    ).stdout.splitlines()
    return profile, {name: int(value) for name, value in map(str.split, lines)}


@not_of_libc
@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_presets_these_and_no_more(profile):
    default, (name, preset) = in_force()[1], in_force(HAKMEM_PROFILE=profile)
    assert name == profile
    assert {knob: value for knob, value in preset.items() if value != default[knob]} == PROFILES[profile]


@not_of_libc
def test_the_environment_stands_above_the_profile():
    asked = in_force(HAKMEM_MAGAZINE_BLOCKS="64", HAKMEM_PROFILE="lean", HAKMEM_DEPOT_BYTES="2M")[1]
    assert asked == in_force(HAKMEM_PROFILE="lean")[1] | {"magazine_blocks": 64, "depot_bytes": 2 << 20}


# The last two are 1 GiB and 1 byte to whoever counts modulo 2^64.
@not_of_libc
@pytest.mark.parametrize("value", ["", "abc", "1T", "1K1", "-1", "17179869185G", "18446744073709551617"])
def test_a_value_that_cannot_be_taken_is_reported_in_one_line(value):
    done = run([program("promises/told.c"), "it_says_what_is_in_force"], HAKMEM_DEPOT_BYTES=value)
    assert done.stderr == (
        f"hakmem: HAKMEM_DEPOT_BYTES={value} is not taken; "
        "allowed: 0 to 1073741824 bytes; in force: 268435456\n"
    )
    assert "depot_bytes 268435456" in done.stdout.splitlines()


@not_of_libc
@pytest.mark.parametrize(
    ("value", "is_worth"),
    [("5000", 5000), ("64K", 64 * KIB), ("64k", 64 * KIB), ("3M", 3 * MIB), ("1G", 1 << 30)],
)
def test_a_value_may_be_said_in_powers_of_1024(value, is_worth):
    assert in_force(HAKMEM_DEPOT_BYTES=value)[1]["depot_bytes"] == is_worth


@not_of_libc
def test_an_unknown_profile_is_reported_in_one_line():
    done = run([program("promises/told.c"), "it_says_what_is_in_force"], HAKMEM_PROFILE="leen")
    assert done.stdout.startswith("default\n")
    said, allowed = done.stderr.removesuffix("\n").split("; allowed: ")
    assert said == "hakmem: HAKMEM_PROFILE=leen is not known" and set(allowed.split(", ")) == set(PROFILES)


@not_of_libc
def test_a_name_that_may_belong_to_another_version_is_left_alone():
    done = run([program("promises/told.c"), "it_says_what_is_in_force"], HAKMEM_DEPOT="so much")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("default\n")


@not_of_libc
def test_system_calls_are_printed_when_the_program_ends():
    said = run([program("contract.c"), "free_of_null_does_nothing"], HAKMEM_SS_OS_STATS="1").stderr
    kinds = r"mmap=[1-9]\d* munmap=\d+ madvise=[1-9]\d* mprotect=\d+ mincore=\d+ mbind=0"
    assert re.fullmatch(rf"hakmem: system calls: {kinds}\n", said)


@not_of_libc
def test_system_calls_of_libcs_allocator_are_not_said_to_be_none():
    env = {"HAKMEM_SS_OS_STATS": "1", "HAKMEM_FORCE_LIBC_ALLOC": "1"}
    said = run([program("contract.c"), "free_of_null_does_nothing"], **env).stderr
    assert said == "hakmem: system calls of libc's allocator are not counted\n"


def test_system_calls_are_printed_into_no_file_of_the_programs():
    keep("promises/told.c", "no_file_of_the_programs_is_written_to", HAKMEM_SS_OS_STATS="1")


@not_of_libc
def test_a_program_whose_stderr_nobody_reads_ends_as_it_would():
    reader, writer = os.pipe()
    os.close(reader)
    env = {"LD_PRELOAD": str(library()), "HAKMEM_SS_OS_STATS": "1"}
    command = [program("contract.c"), "free_of_null_does_nothing"]
    assert subprocess.run(command, env=env, stderr=writer).returncode == 0
    os.close(writer)


def readelf(option):
    return subprocess.run(
        ["readelf", "-W", option, library()], check=True, capture_output=True, text=True
    ).stdout


# A tracer's: each takes a block where the allocator asks the kernel, or libc, for something.
TRACER = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <stddef.h>
static __thread volatile int inside;
static void note(void) {
    if (inside) return;
    inside = 1;
    for (size_t size = 50; size < 40000; size *= 5) { void *volatile block = malloc(size); free(block); }
    inside = 0;
}
#define TRACED(type, call, parameters, ...) \\
    type call parameters { note(); return (type)syscall(SYS_##call, __VA_ARGS__); }
TRACED(void *, mmap, (void *p, size_t n, int a, int b, int c, off_t d), p, n, a, b, c, d)
TRACED(int, munmap, (void *p, size_t n), p, n)
TRACED(int, mprotect, (void *p, size_t n, int a), p, n, a)
TRACED(int, madvise, (void *p, size_t n, int a), p, n, a)
TRACED(int, mincore, (void *p, size_t n, unsigned char *v), p, n, v)
TRACED(int, clock_gettime, (clockid_t c, struct timespec *t), c, t)
"""
BUSY = """
import threading
def work():
    for size in (40, 500, 9000, 30000, 300000, 3000000):
        kept = [bytes(size) for _ in range(60000000 // (size + 3000))]
        del kept[::2], kept
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@not_of_libc
def test_a_library_that_takes_the_kernels_calls_may_allocate_in_them(tmp_path):
    (tmp_path / "tracer.c").write_text(TRACER)
    built = ["gcc", "-O1", "-fno-builtin", "-shared", "-fPIC", "-o", "tracer.so", "tracer.c"]
    subprocess.run(built, check=True, cwd=tmp_path)
    both = f"{tmp_path / 'tracer.so'} {library()}"
    more = {"PYTHONMALLOC": "malloc", "HAKMEM_PURGE_DELAY_MS": "20"}
    done = run([sys.executable, "-c", BUSY], preload=False, LD_PRELOAD=both, **more)
    assert (done.returncode, done.stderr) == (0, "")


BOUND = """
#include <stdio.h>
#include <stdlib.h>
int main(void) { void *block = malloc(1); free(block); return puts("") < 0 || block == NULL; }
"""
BOUND_CXX = """
#include <cstdio>
#include <new>
struct Ends { ~Ends() {} };
int main() {
    int *one = new int(1), *some = new int[9];
    delete one;
    delete[] some;
    delete[] new Ends[9];
    ::operator delete(::operator new(10));
    return std::puts("") < 0;
}
"""
REPLACED_CXX = """
#include <cstdlib>
void operator delete[](void *block) noexcept { std::free(block); }
"""
FIRST = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
void *malloc(size_t size) { return ((void *(*)(size_t))dlsym(RTLD_NEXT, "malloc"))(size); }
"""


def asked_for(folder, first=(), compiler="gcc", text=BOUND):
    """What the loader looks up while a program runs that calls both: the names, and who has them."""
    source, program = folder / ("bound.c" if compiler == "gcc" else "bound.cc"), folder / "bound"
    source.write_text(text)
    subprocess.run([compiler, "-fno-builtin", "-Wl,-z,lazy", "-o", program, source], check=True)
    libraries = ":".join(map(str, [*first, library()]))
    done = run([program], preload=False, LD_DEBUG="bindings,files", LD_PRELOAD=libraries)
    assert done.returncode == 0
    said = done.stderr.partition("transferring control")[2]
    found = re.findall(r"binding file \S*/bound \[0\] to \S*?([^/ ]+) \[0\]: normal symbol `(\w+)'", said)
    return {name: file for file, name in found}


@not_of_libc
def test_calls_are_bound_before_the_program_begins(tmp_path):
    assert asked_for(tmp_path) == {"puts": "libc.so.6"}


@not_of_libc
def test_operators_of_cxx_are_bound_before_the_program_begins(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("no compiler: apt install g++")
    assert asked_for(tmp_path, compiler="g++", text=BOUND_CXX) == {"puts": "libc.so.6"}


@not_of_libc
def test_where_a_program_replaces_one_operator_all_stay_as_they_are(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("no compiler: apt install g++")
    names = asked_for(tmp_path, compiler="g++", text=BOUND_CXX + REPLACED_CXX)
    assert {names[name] for name in ("_Znwm", "_Znam", "_ZdlPv")} == {"libstdc++.so.6"}


@not_of_libc
def test_calls_of_whoever_comes_first_stay_theirs(tmp_path):
    (tmp_path / "first.c").write_text(FIRST)
    first = tmp_path / "first.so"
    subprocess.run(["gcc", "-fno-builtin", "-fPIC", "-shared", "-o", first, tmp_path / "first.c"], check=True)
    names = asked_for(tmp_path, [first])
    assert names["malloc"] == "first.so" and names["free"] == library().name


FIRST_ARENA = """
#include "hakmem.c"
int main(void) {
    POKE(arenas[0].bytes, ARENA_BYTES);
    hak_free(NULL);
}
"""


def test_null_is_freed_while_another_thread_makes_the_first_arena(tmp_path):
    """Of what that one writes, this one sees the length, and neither the base nor the tables."""
    (tmp_path / "early.c").write_text(FIRST_ARENA)
    source = f"-I{build.NATIVE / 'src'}"
    command = ["gcc", "-w", "-O2", "-std=gnu11", "-pthread", source, "early.c", "-o", "early"]
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "early"], check=True)


LOCKED_LIBRARY = """
#include <pthread.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
void library_lock(void) { pthread_mutex_lock(&mutex); }
void library_unlock(void) { pthread_mutex_unlock(&mutex); }
__attribute__((constructor)) static void begin(void) {
    pthread_atfork(library_lock, library_unlock, library_unlock);
}
"""
FORKS = """
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
void library_lock(void);
void library_unlock(void);
static volatile int stop;
static void *allocate_locked(void *unused) {
    enum { N = 2000 };
    static __thread void *blocks[N];
    while (!stop) {
        library_lock();
        for (int i = 0; i < N; i++) blocks[i] = malloc(16 + i * 37 % 60000);
        for (int i = 0; i < N; i++) free(blocks[i]);
        library_unlock();
        usleep(1000);
    }
    return unused;
}
int main(void) {
    pthread_t threads[2];
    alarm(60);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, allocate_locked, NULL);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        waitpid(child, NULL, 0);
        usleep(1000);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}
"""


def test_fork_waits_for_nobody_who_waits_for_memory(tmp_path):
    """Of a library that keeps its lock across a fork, and allocates under it in other threads."""
    (tmp_path / "locked.c").write_text(LOCKED_LIBRARY)
    (tmp_path / "forks.c").write_text(FORKS)
    locked, forks = tmp_path / "liblocked.so", tmp_path / "forks"
    subprocess.run(["gcc", "-fPIC", "-shared", "-pthread", "-o", locked, tmp_path / "locked.c"], check=True)
    subprocess.run(["gcc", "-fno-builtin", "-pthread", "-o", forks, tmp_path / "forks.c", locked], check=True)
    assert run([forks]).returncode == 0


@not_of_libc
@pytest.mark.parametrize("promise", promises(LATE))
def test_library_loads_late(promise):
    keep(LATE, promise, preload=False, LIBRARY=str(library()))


@not_of_libc
def test_a_second_copy_knows_its_own_blocks(tmp_path):
    copy = shutil.copy(library(), tmp_path)
    keep(LATE, "a_second_copy_knows_its_own_blocks", LIBRARY=str(copy))


@not_of_libc
def test_library_loads_into_a_running_python():
    code = (
        "import ctypes, sys; heap = ctypes.CDLL(sys.argv[1]); heap.malloc.restype = ctypes.c_void_p;"
        "block = heap.malloc(100); assert block; heap.free(ctypes.c_void_p(block)); print('served')"
    )
    done = run(["python3", "-c", code, library()], preload=False)
    assert done.stdout == "served\n", done.stderr


@not_of_libc
def test_relocations_are_read_only_and_bound_at_start():
    assert "GNU_RELRO" in readelf("-l")
    assert re.search(r"BIND_NOW|FLAGS.*NOW", readelf("-d"))


@not_of_libc
def test_no_segment_is_writable_and_executable():
    segments = re.findall(r"^  (\w+) +0x.* ([R ][W ][E ]) 0x", readelf("-l"), re.MULTILINE)
    assert segments
    assert [name for name, flags in segments if "W" in flags and "E" in flags] == []
    assert dict(segments)["GNU_STACK"] == "RW "


@not_of_libc
def test_library_needs_libc_alone():
    needed = re.findall(r"\(NEEDED\).*\[(.+?)\]", readelf("-d"))
    assert [name for name in needed if not re.match(r"(libc\.so|ld-linux)", name)] == []


@not_of_libc
def test_names_that_not_every_allocator_has_are_exported_too():
    """Libc's of the same name would free blocks that are none of its, or give nothing back."""
    defined = re.findall(r" GLOBAL +DEFAULT +\d+ (\w+)$", readelf("--dyn-syms"), re.MULTILINE)
    assert {"cfree", "free_sized", "free_aligned_sized", "malloc_trim"} <= set(defined)


@not_of_libc
def test_static_tls_leaves_room_for_others():
    """The loader keeps about 1.7 KB of static TLS for everything that is loaded late."""
    sizes = re.findall(r"^  TLS +0x\w+ 0x\w+ 0x\w+ 0x\w+ (0x\w+)", readelf("-l"), re.MULTILINE)
    assert sum(int(size, 16) for size in sizes) <= 1664
