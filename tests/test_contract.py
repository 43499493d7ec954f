"""The malloc family's contract, C++'s operators, and threads, forks and signals: one process a promise."""

import re

import pytest
from preload import (
    FUZZ_SETTINGS,
    MINUTES,
    inlined,
    judge,
    keep,
    library,
    not_of_libc,
    program,
    promises,
    run,
)

CONTRACT = ("contract.c", "contract.cc", "replaced.cc")
FUZZ_SECONDS = round(60 * MINUTES) or 2


def each_promise(*sources):
    """Parametrizes a test by source and promise."""
    return pytest.mark.parametrize(
        ("source", "promise"), [(source, promise) for source in sources for promise in promises(source)]
    )


@each_promise(*CONTRACT, "threads.c")
def test_promise_is_kept(source, promise):
    keep(source, promise)


@pytest.mark.parametrize("profile", ["hardened", "lean"])
@each_promise(*CONTRACT)
def test_profiles_keep_the_contract(source, promise, profile):
    keep(source, promise, HAKMEM_PROFILE=profile)


@not_of_libc
@each_promise(*CONTRACT)
def test_libcs_allocator_keeps_the_contract_behind_the_same_entry_points(source, promise):
    keep(source, promise, HAKMEM_FORCE_LIBC_ALLOC="1")


@pytest.mark.parametrize(
    "promise", [name for name in promises("threads.c") if re.search("fork|child|process|stack|cancel", name)]
)
def test_hardened_processes_fork_and_end_as_others_do(promise):
    keep("threads.c", promise, HAKMEM_PROFILE="hardened")


def test_new_throws_in_a_plugin_of_a_program_without_the_cxx_library():
    judge(run([program("host.c"), program("plugin.cc", "-shared", "-fPIC")]))


def test_a_program_opens_libraries_from_its_own_folders():
    host = program("host.c", "-Wl,-rpath,$ORIGIN,--enable-new-dtags")
    judge(run([host, program("plugin.cc", "-shared", "-fPIC").name]))


@not_of_libc
@pytest.mark.parametrize("sized", [False, True])
def test_code_inlined_into_programs_keeps_the_contract(sized):
    keep("threads.c", "blocks_are_freed_by_other_threads", *inlined(sized))


@not_of_libc
@pytest.mark.parametrize("promise", promises("sized.c"))
def test_code_inlined_into_programs_believes_the_block_and_not_the_size(promise):
    keep("sized.c", promise, library())


@not_of_libc
@pytest.mark.parametrize("promise", promises("bounds.c"))
def test_code_inlined_into_programs_tells_blocks_from_all_else(promise):
    keep("bounds.c", promise, *inlined())


@pytest.mark.parametrize("promise", promises("threads.c"))
def test_threads_live_with_an_early_helper(promise):
    """The lean profile starts the background thread after a few MiB: within all of these."""
    keep("threads.c", promise, HAKMEM_PROFILE="lean")


@pytest.mark.parametrize("setting", FUZZ_SETTINGS)
@pytest.mark.parametrize("threads", [1, 4])
def test_fuzz_finds_no_violation(threads, setting):
    done = run(
        [program("fuzz.c"), FUZZ_SECONDS, threads, 42], timeout=FUZZ_SECONDS + 60, **FUZZ_SETTINGS[setting]
    )
    assert done.returncode == 0, done.stderr
    assert "no violation" in done.stdout


@pytest.mark.parametrize("profile", ["default", "learning"])
def test_where_the_kernel_refuses_now_and_then_nothing_is_lost(profile):
    """Half of all its calls; magazines of every size may be long, so that bookkeeping needs memory too."""
    wide = {"HAKMEM_MAGAZINE_BYTES": "16M", "HAKMEM_PROFILE": profile}
    done = run([program("fuzz.c"), FUZZ_SECONDS, 4, 42, 50], timeout=FUZZ_SECONDS + 60, **wide)
    assert done.returncode == 0, done.stderr
    assert "no violation" in done.stdout
    assert library() is None or " 0 of the kernel's refused" not in done.stdout


@not_of_libc
def test_the_library_is_the_one_that_answers():
    """A preload the loader cannot open is only a warning: the other tests would judge libc's allocator."""
    assert str(library()) in run(["cat", "/proc/self/maps"]).stdout
