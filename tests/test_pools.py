"""Stack pools and placement: the C promises on three builds, the Python face, the benches of the report."""

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from preload import NATIVE, judge, needs_valgrind, promises

from hakmem_py import build, claims, instructions, native, pools, spec

SPECS = ("06_pools", "06_stack", "06_memory", "06_placement", "06_threads")


@pytest.fixture(scope="module", params=["release", "checked", "tsan"])
def executable(request, tmp_path_factory):
    """The promises and the library in one program, built as the variant is."""
    path = tmp_path_factory.mktemp(request.param) / "pools"
    flags = [*build.COMMON, *build.VARIANTS[request.param], f'-DHAK_VARIANT="{request.param}"', "-w"]
    sources = [f"-I{build.NATIVE / 'include'}", NATIVE / "pools.c", build.NATIVE / "src" / "hakmem.c"]
    done = subprocess.run(["gcc", *flags, *map(str, sources), "-o", path], capture_output=True, text=True)
    if "cannot find" in done.stderr:
        pytest.skip("the sanitizers' libraries are not installed: apt install gcc")
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("promise", promises("pools.c"))
def test_promise_is_kept(executable, promise):
    judge(subprocess.run([executable, promise], capture_output=True, text=True, timeout=120))


# ---------------------------------------------------------------- from Python


@pytest.mark.parametrize("shared", [False, True])
def test_statistics_add_up(shared):
    with pools.StackPool(np.int64(64), capacity=10, shared=shared) as pool:
        objects = [pool.allocate() for _ in range(1000)]
        for address in objects[:400]:
            pool.deallocate(address)
        stats = pool.stats()
        assert (stats.allocations, stats.live) == (1000, 600)
        assert stats.hits + stats.misses == 1000 and stats.hits >= 10
        assert stats.peak >= 1000 and stats.capacity >= 1000 and stats.bytes_held >= 64_000
        assert stats.hit_rate == stats.hits / 1000


def test_the_peak_of_an_owners_pool_is_exact():
    with pools.StackPool(64) as pool:
        for address in [pool.allocate() for _ in range(100)]:
            pool.deallocate(address)
        assert pool.stats().peak == 100


def test_shrink_gives_memory_back():
    with pools.StackPool(64) as pool:
        for address in [pool.allocate() for _ in range(10_000)]:
            pool.deallocate(address)
        pool.shrink()
        assert (pool.stats().bytes_held, pool.stats().peak) == (0, 10_000)


@pytest.mark.parametrize(
    ("arguments", "constant"),
    [
        ({"size": 0}, "HAK_POOL_SIZE"),
        ({"size": 64, "alignment": 24}, "HAK_POOL_ALIGNMENT"),
        ({"size": 64, "alignment": 0}, "HAK_POOL_ALIGNMENT"),
        ({"size": 2**62}, "HAK_POOL_MEMORY"),
        ({"size": 64, "capacity": 2**60}, "HAK_POOL_MEMORY"),
    ],
)
def test_impossible_pools_are_refused(arguments, constant):
    with pytest.raises(pools.PoolError) as refusal:
        pools.StackPool(**arguments)
    assert refusal.value.code == getattr(native.load().lib, constant)


def test_null_and_use_after_destroy_are_refused():
    pool = pools.StackPool(64)
    with pytest.raises(pools.PoolError, match="NULL"):
        pool.deallocate(None)
    pool.destroy()
    for use in (pool.allocate, pool.stats, pool.shrink, pool.destroy, lambda: pool.preallocate(1)):
        with pytest.raises(pools.PoolError, match="destroyed"):
            use()


def test_another_thread_may_use_only_a_shared_pool():
    told = []

    def use(pool):
        try:
            pool.deallocate(pool.allocate())
            told.append("served")
        except pools.PoolError as refusal:
            told.append(str(refusal))

    for shared in (False, True):
        with pools.StackPool(64, shared=shared) as pool:
            thread = threading.Thread(target=use, args=(pool,))
            thread.start()
            thread.join()
    assert "another thread" in told[0] and told[1] == "served"


CHECKED = """
from hakmem_py import native, pools
native.load("checked")
with pools.StackPool(64) as pool, pools.StackPool(64) as other:
    mine, theirs = pool.allocate(), other.allocate()
    pool.deallocate(mine)
    for address in (mine, theirs):
        try:
            pool.deallocate(address)
        except pools.PoolError as refusal:
            print(refusal)
"""


def test_the_checked_build_tells_double_and_foreign():
    done = subprocess.run([sys.executable, "-c", CHECKED], capture_output=True, text=True, cwd=build.ROOT)
    assert done.returncode == 0, done.stderr
    double, foreign = done.stdout.splitlines()
    assert "twice" in double and "no object of this pool" in foreign


# ---------------------------------------------------------------- the benches


@pytest.fixture(scope="module")
def bench():
    return build.build("release").bench


def listed(bench):
    return {row["name"]: row for row in json.loads(subprocess.check_output([bench, "--list"], text=True))}


@pytest.mark.parametrize("name", SPECS)
def test_every_case_can_be_run_by_every_side(bench, name):
    table, experiment = listed(bench), spec.load_spec(name)
    for case in experiment.cases:
        for side in experiment.allocators:
            backend = side.use if side.use in ("floor", "direct") else "malloc"
            assert backend in table[case.workload]["backends"], (case.name, side.label)


POOL_WORKLOADS = ["pool_allocate", "pool_cycle", "pool_ten", "pool_sweep", "pool_batch", "pool_first_half"]


@pytest.mark.parametrize("backend", ["direct", "malloc", "floor"])
@pytest.mark.parametrize("workload", [*POOL_WORKLOADS, "pool_shared", "pool_exchange"])
def test_a_bench_counts_what_it_did(bench, workload, backend):
    command = [bench, "--workload", workload, "--backend", backend, "--slots", "50", "--chunks", "2"]
    done = subprocess.run([*command, "--iterations", "400"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ops"] > 0 and result["ops"] % 400 == 0


def test_all_published_benches_have_ours():
    rows = claims.figures().query("report == 'P0'")
    ours = [(bench.group, bench.name) for bench in pools.BENCHES]
    assert ours == list(zip(rows["experiment"], rows["subject"], strict=True))
    cases = {name: {(c.workload, c.slots) for c in spec.load_spec(name).cases} for name in SPECS}
    assert all((bench.workload, bench.slots) in cases[bench.experiment] for bench in pools.BENCHES)
    assert {pools._claim(bench) for bench in pools.BENCHES} <= {claim.id for claim in claims.claims()}


@needs_valgrind
def test_statistics_cost_at_most_an_instruction_an_operation(bench):
    on, off = (
        instructions.per_op(bench, workload, options=["--backend", "direct"])
        for workload in ("pool_cycle", "pool_uncounted")
    )
    assert 0 <= on - off <= 2 + 0.01  # a cycle is two operations


def test_a_node_that_is_not_there_is_named_once(bench):
    """It is no failure: memory comes all the same."""
    env = {**os.environ, "HAKMEM_PLACEMENT": "3", "HAKMEM_PLACEMENT_NODE": "1023"}
    command = [bench, "--workload", "pool_first", "--backend", "direct", "--iterations", "5"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.count("\n") == 1 and "placement_node 1023" in done.stderr


@pytest.mark.parametrize("size", [-1, 2**64, 1.5])
def test_what_is_no_count_is_refused(size):
    with pytest.raises(ValueError, match="whole number"):
        pools.StackPool(size)
