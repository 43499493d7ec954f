"""The library inside this process: its tables are true to what was allocated."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from hakmem_py import ROOT, native, showcase


@pytest.fixture
def lib():
    return native.load().lib


@pytest.fixture
def knob():
    """knob(name, value): sets a knob, which has its preset again when the test has ended."""
    turned = []

    def turn(name, value):
        native.set_knob(name, value)
        turned.append(name)

    yield turn
    for name in turned:
        native.set_knob(name, int(native.knobs().at[name, "preset"]))


@pytest.fixture
def nobody_tidies(lib, knob):
    """No round of tidying begins, and one that had begun is over: it may find any thread at rest."""
    knob("purge_delay_ms", 60_000)
    lib.hak_purge()


def address(block):
    return int(native.load().ffi.cast("uintptr_t", block))


def holder(block):
    table, at = native.spans(), address(block)
    return table[(table["address"] <= at) & (at < table["address"] + table["size"])]


def test_knobs_are_read_and_set(knob):
    table = native.knobs()
    assert (table["minimum"] <= table["value"]).all() and (table["value"] <= table["maximum"]).all()
    knob("purge_delay_ms", 750)
    assert native.knobs().at["purge_delay_ms", "value"] == 750


def test_the_readme_has_the_table_of_knobs():
    text = (ROOT / "README.md").read_text()
    assert text == showcase.with_table(text, showcase.knob_table()), "run: python -m hakmem_py readme"


def test_a_bar_in_the_text_of_a_knob_does_not_end_its_cell(monkeypatch):
    table = native.knobs().head(1)
    monkeypatch.setattr(native, "knobs", lambda: table.assign(why="fast|small"))
    assert showcase.knob_table().splitlines()[-1].endswith(r"| yes | fast\|small |")


def test_a_wrong_knob_is_refused_with_what_is_allowed():
    with pytest.raises(native.NativeError, match="magazine_blocks"):
        native.set_knob("magazin_blocks", 64)
    with pytest.raises(native.NativeError, match="16 to 512"):
        native.set_knob("magazine_blocks", 1024)
    for value in ("abc", "64K", "a\0b", None, 2**70, -(2**70), 32.9):
        with pytest.raises(native.NativeError, match=r"a whole number from 0 to 1073741824 \(unit: bytes\)"):
            native.set_knob("depot_bytes", value)
    last = native.knobs().at["ace_policy", "maximum"]
    with pytest.raises(
        native.NativeError, match=rf"a whole number from 0 to {last} \(unit: policy\): row of the policy"
    ):
        native.set_knob("ace_policy", "ucb1")
    with pytest.raises(native.NativeError, match="one that this process may use"):
        native.set_knob("placement_node", 1023)
    with pytest.raises(native.NativeError, match="a power of two"):
        native.set_knob("superslab_bytes", 1_500_000)


@pytest.mark.parametrize("name", ["canaries", "quarantine", "force_libc_alloc", "ss_os_stats"])
def test_a_knob_that_is_read_at_start_is_not_set_later(name, lib):
    with pytest.raises(
        native.NativeError, match=f"when a process starts: start one with HAKMEM_{name.upper()}"
    ):
        native.set_knob(name, 1)
    table = native.knobs()
    assert table.at[name, "value"] == table.at[name, "preset"] and table.at[name, "at_start"]
    assert lib.hak_knob_set(name.encode(), 1) == -3 and table["at_start"].sum() == 4


def test_one_build_a_process(lib):
    with pytest.raises(native.NativeError, match="restart the kernel"):
        native.load("checked")


def test_counters_follow_what_is_allocated(lib):
    before = native.counters()["value"]
    blocks = [lib.hak_malloc(208) for _ in range(1000)]
    held = native.counters()["value"]
    assert held["live_blocks"] - before["live_blocks"] == 1000
    assert held["refills"] > before["refills"]
    for block in blocks:
        lib.hak_free(block)
    assert native.counters()["value"]["live_blocks"] == before["live_blocks"]


def test_growth_in_place_and_aligned_blocks_are_counted(lib):
    before = native.counters()["value"]
    block = lib.hak_realloc(lib.hak_malloc(1 << 20), 4 << 20)  # may move, once
    for mib in range(5, 15):
        block = lib.hak_realloc(block, mib << 20)
    lib.hak_free(block)
    lib.hak_free(lib.hak_aligned_alloc(1 << 20, 100))
    after = native.counters()["value"]
    assert after["growths"] - before["growths"] >= 10
    assert after["aligned"] - before["aligned"] == 1


def test_a_thread_joins_its_idle_runs_before_it_grows(lib, knob, nobody_tidies):
    """Freed runs of 8 units serve one of 14, for which none alone is long enough."""
    knob("run_cache_bytes", 64 << 20)  # it keeps them all
    lib.hak_purge()
    blocks = [lib.hak_malloc(400_000) for _ in range(40)]
    for block in blocks:
        lib.hak_free(block)
    before = native.counters()["value"]["committed_bytes"]
    longer = lib.hak_malloc(900_000)
    assert native.counters()["value"]["committed_bytes"] <= before
    lib.hak_free(longer)


def cached_bytes():
    return native.counters()["value"]["cached_bytes"]


def test_a_thread_that_needs_less_gives_back_the_runs_that_lie_idle(lib, knob, nobody_tidies):
    knob("run_cache_bytes", 3 << 20)  # and so up to eight times as many
    lib.hak_purge()
    before, blocks = cached_bytes(), [lib.hak_malloc(700_000) for _ in range(60)]
    for block in blocks[20:]:
        lib.hak_free(block)
    kept = cached_bytes() - before
    for _ in range(3000):
        lib.hak_free(lib.hak_malloc(700_000))
    assert kept > 20e6 and cached_bytes() - before < 4e6, (kept, cached_bytes() - before)
    for block in blocks[:20]:
        lib.hak_free(block)


def kept_of_fifty_runs(lib):
    """Bytes of runs that the thread keeps once it has freed half of a hundred."""
    lib.hak_purge()
    before, blocks = cached_bytes(), [lib.hak_malloc(700_000) for _ in range(100)]
    for block in blocks[50:]:
        lib.hak_free(block)
    kept = cached_bytes() - before
    for block in blocks[:50]:
        lib.hak_free(block)
    return kept


@pytest.mark.parametrize(("collected", "times"), [(0, 8), (1, 64)])
def test_a_thread_keeps_no_more_runs_than_so_many_times_the_knob(lib, knob, collected, times):
    """Eight times where nobody takes them from it when it rests."""
    knob("run_cache_bytes", 256 << 10)
    knob("background", collected)
    for _ in range(50):  # until the helper knows
        if kept_of_fifty_runs(lib) <= times * (256 << 10):
            break
        time.sleep(0.1)
    assert kept_of_fifty_runs(lib) <= times * (256 << 10)


@pytest.mark.parametrize(
    ("size", "kind"), [(64, "slab"), (1500, "slab"), (100_000, "run"), (3_000_000, "run")]
)
def test_a_block_lies_in_one_span_of_its_kind(lib, size, kind):
    block = lib.hak_malloc(size)
    span = holder(block)
    assert len(span) == 1 and span["kind"].item() == kind
    assert span["block_size"].item() >= size and span["used"].item() >= 1
    assert 0 <= address(block) - span["address"].item() < span["size"].item()
    lib.hak_free(block)


def test_spans_do_not_overlap(lib):
    table = native.spans().sort_values("address")
    assert (table["address"] + table["size"]).iloc[:-1].le(table["address"].iloc[1:].to_numpy()).all()
    slabs = table[table["kind"] == "slab"]
    assert (slabs["used"] <= slabs["carved"]).all() and (slabs["carved"] <= slabs["blocks"]).all()


def test_magazines_hold_what_was_freed(lib, nobody_tidies):
    blocks = [lib.hak_malloc(240) for _ in range(10)]
    before = native.magazines().query("block_size == 240")[["loaded", "spare"]].to_numpy().sum()
    for block in blocks:
        lib.hak_free(block)
    table = native.magazines().query("block_size == 240")
    assert table[["loaded", "spare"]].to_numpy().sum() == before + 10
    assert (table["loaded"] <= table["capacity"]).all()


def burst(lib, size, rest=lambda: None):
    """Addresses of 900 blocks that this thread takes and frees: some nine magazines."""
    blocks = [lib.hak_malloc(size) for _ in range(900)]
    for block in blocks:
        lib.hak_free(block)
    rest()
    return {address(block) for block in blocks}


def test_what_a_thread_leaves_when_it_rests_or_ends_others_take(lib, nobody_tidies):
    size = 672  # this test's alone
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        tasks = [thread.submit(threading.get_native_id).result() for thread in (one, other)]
        left = one.submit(burst, lib, size, lib.hak_thread_idle).result()
        assert len(other.submit(burst, lib, size).result() & left) > 0.8 * len(left)
    while any(Path(f"/proc/self/task/{task}").exists() for task in tasks):  # joined, but not through
        time.sleep(0.01)
    with ThreadPoolExecutor(1) as third, ThreadPoolExecutor(1) as fourth:
        assert len(third.submit(burst, lib, size).result() & left) > 0.8 * len(left)
        assert fourth.submit(burst, lib, size).result().isdisjoint(left)


def test_bursts_of_two_threads_do_not_mix_their_blocks(lib, nobody_tidies):
    """Neither takes what the other comes back for: pages would be of two cores for good."""
    size = 656  # this test's alone
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        mine, yours = (
            [thread.submit(burst, lib, size).result() for _ in range(20)] for thread in (one, other)
        )
        assert not set.union(*mine) & set.union(*yours)
        assert one.submit(burst, lib, size).result() <= set.union(*mine)


def test_a_thread_gets_its_own_magazines_back_and_others_before_new_memory(lib, nobody_tidies):
    size, count = 640, 2000  # 20 magazines; no other test has blocks of this size

    def take(count):
        return [lib.hak_malloc(size) for _ in range(count)]

    def give(blocks):
        for block in blocks:
            lib.hak_free(block)
        return {address(block) for block in blocks}

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as third:
        before = after = None
        for _ in range(3):  # the last to give is not the first to take
            held = [(thread, thread.submit(take, count).result()) for thread in (one, other)]
            before, after = after, [thread.submit(give, blocks).result() for thread, blocks in held]
        for mine, again in zip(before, after, strict=True):
            assert len(mine & again) > 0.8 * count
        assert third.submit(lambda: give(take(count // 2))).result() <= set.union(*after)


# At least so much more of each when 20 MB of blocks of a size of their own, and 12 long ones, have come; when
# they have gone; have come again; have gone and were purged. 0: does not matter.
COUNTED = {
    "refills": (20, 0, 20, 0),
    "refilled_blocks": (20_000, 0, 20_000, 0),
    "carved_blocks": (20_000, 0, 0, 0),
    "spills": (0, 20, 0, 20),
    "spilled_blocks": (0, 19_000, 0, 20_000),
    "depot_pushes": (0, 20, 0, 20),
    "depot_pops": (0, 0, 20, 20),
    "slabs_taken": (290, 0, 0, 0),
    "superslabs_taken": (9, 0, 0, 0),
    "spans_taken": (12, 0, 0, 0),
    "spans_returned": (0, 0, 0, 12),
    "returned_blocks": (0, 0, 0, 20_000),
    "slabs_returned": (0, 0, 0, 290),
    "superslabs_returned": (0, 0, 0, 9),
    "purges": (0, 0, 0, 1),
    "purged_bytes": (0, 0, 0, 50e6),
    "in_use_bytes": (55e6, 0, 35e6, 0),
    "live_bytes": (55e6, 0, 55e6, 0),
    "committed_bytes": (50e6, 0, 0, 0),
    "live_blocks": (20_000, 0, 20_000, 0),
    "cached_bytes": (0, 19e6, 0, 0),
}


def test_each_counter_counts_what_it_says(lib, knob):
    def take():
        return [lib.hak_malloc(size) for size in [976] * 20_000 + [3_000_000] * 12]

    def give(rest=lambda: None):
        for block in blocks:
            lib.hak_free(block)
        rest()

    knob("purge_delay_ms", 60_000)  # nobody else tidies meanwhile
    lib.hak_purge()
    spans = native.spans()  # where other tests left blocks there may be room for some of the slabs
    room = int(spans["size"][(spans["blocks"] == 0) & (spans["superslab"] != 0)].sum())
    superslabs = -(-room // int(native.knobs().at["superslab_bytes", "value"]))
    counts, blocks = [native.counters()["value"]], None
    for step in (take, give, take, lambda: give(lib.hak_purge)):
        blocks = step()
        counts.append(native.counters()["value"])
    for name, least in COUNTED.items():
        grown = [int(after[name]) - int(before[name]) for before, after in pairwise(counts)]
        served = superslabs if name.startswith("superslabs") else 0
        enough = all(n >= m - served for n, m in zip(grown, least, strict=True) if m)
        assert enough, (name, grown, least, served)
    live = [int(count["live_bytes"]) for count in counts]
    assert live[2] - live[0] < 1e6 and live[4] - live[0] < 1e6, live  # what waits in magazines is nobody's


def test_threads_are_counted(lib):
    def settle(heaps):  # a thread has been joined before its last hooks have run
        deadline = time.monotonic() + 5
        while native.counters()["value"]["heaps"] != heaps and time.monotonic() < deadline:
            time.sleep(0.01)
        return native.counters()["value"]["heaps"]

    def begin_one():
        before = native.counters()["value"]
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: lib.hak_free(lib.hak_malloc(1))).result()
            beside = native.counters()["value"]
        return before, [beside[name] - before[name] for name in ("threads_seen", "heaps")]

    for _ in range(20):  # a thread of the test before may be gone only meanwhile
        time.sleep(0.1)
        before, more = begin_one()
        if more[1] == 1:
            break
    assert more == [1, 1]
    assert settle(before["heaps"]) == before["heaps"]


def test_what_one_thread_frees_for_another_that_one_takes_again(lib, nobody_tidies):
    """Though the first takes some of that size itself, and might come back for its own."""
    size = 688  # this test's alone

    def take(blocks):
        return [lib.hak_malloc(size) for _ in range(blocks)]

    def give(blocks):
        for block in blocks:
            lib.hak_free(block)

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        other.submit(lambda: give(take(1))).result()
        first = one.submit(take, 900).result()
        other.submit(give, first).result()
        second = one.submit(take, 900).result()
        again = {address(block) for block in first} & {address(block) for block in second}
        other.submit(give, second).result()
    assert len(again) > 0.6 * len(first)
