"""A live heap as tables: a small program to look into, and the path of one block through the allocator."""

import random
import threading
import time
from pathlib import Path

import pandas as pd

from . import native


class Program:
    """A small program inside this process: `fill` takes blocks, `thin` gives some back, `close` all."""

    def __init__(self, seed=1):
        self.lib, self.random, self.blocks = native.load().lib, random.Random(seed), []

    def fill(self, blocks, smallest, largest):
        """Takes that many blocks; their sizes in bytes are drawn uniformly from smallest to largest."""
        sizes = [self.random.randint(smallest, largest) for _ in range(blocks)]
        self.blocks += [self.lib.hak_malloc(size) for size in sizes]

    def thin(self, share):
        """Gives a random share of the blocks back."""
        self.random.shuffle(self.blocks)
        kept = round(len(self.blocks) * (1 - share))
        for block in self.blocks[kept:]:
            self.lib.hak_free(block)
        del self.blocks[kept:]

    def elsewhere(self, work, *arguments):
        """Calls `work` in a thread of its own, which then ends: its heap is orphaned, its blocks live on."""
        thread = threading.Thread(target=work, args=arguments)
        thread.start()
        thread.join()
        task = Path(f"/proc/self/task/{thread.native_id}")
        while task.exists():  # after join it may still be giving back what it cached
            time.sleep(1e-3)

    def close(self):
        self.thin(1)


def journey(size=208, blocks=1500):
    """The path of one block of `size` bytes through the allocator: one row per step.

    Columns: step; loaded, spare: blocks in this thread's two magazines; capacity: blocks that one of them
    holds; depot: full magazines; slab_used: blocks out of the block's slab, those in magazines included (0:
    it lies in no slab); same_address: whether malloc returned the same block, in that step only.
    """
    lib = native.load().lib
    take, give = lib.hak_malloc, lib.hak_free
    others = [take(size) for _ in range(blocks)]
    block = take(size)
    rows = [_seen("malloc: taken from the magazine", block, size)]
    give(block)
    rows.append(_seen("free: on top of the magazine", block, size))
    again = take(size)
    rows.append(_seen("malloc: the same block comes back", block, size) | {"same_address": again == block})
    give(again)
    capacity = rows[0]["capacity"]
    for step, count in (
        ("the magazine is full: it becomes the spare", capacity),
        ("full again: one goes to the depot", capacity),
    ):
        for _ in range(count):
            give(others.pop())
        rows.append(_seen(step, block, size))
    for other in others:
        give(other)
    rows.append(_seen("all others are freed", block, size))
    lib.hak_purge()
    rows.append(_seen("purge: the blocks in caches go home", block, size))
    return pd.DataFrame(rows)


def shares():
    """Who holds the bytes that may cost memory now: columns bytes (who, in words), MB, share (of all)."""
    held = native.counters()["value"]
    committed, live, free = (int(held[name]) for name in ("committed_bytes", "live_bytes", "dirty_bytes"))
    cached = min(int(held["cached_bytes"]), committed - live - free)
    rows = {
        "with the program": live,
        "in magazines, depot and kept runs": cached,
        "free, and may hold pages": free,
        "not handed out yet, or lost to rounding": committed - live - free - cached,
        "in all": committed,
    }
    mb = pd.Series(rows, name="MB") / 1e6
    return pd.DataFrame({"bytes": mb.index, "MB": mb.to_numpy(), "share": (mb / mb["in all"]).to_numpy()})


def holder(address, table):
    """The span of `table` (native.spans) that holds an address: a row, or None."""
    found = table[(table["address"] <= address) & (address < table["address"] + table["size"])]
    return None if found.empty else found.iloc[0]


def _seen(step, block, size):
    span = holder(int(native.load().ffi.cast("uintptr_t", block)), native.spans())
    mine = native.magazines().query("block_size >= @size").nsmallest(1, "block_size").iloc[0]
    levels = {name: int(mine[name]) for name in ("loaded", "spare", "capacity", "depot")}
    in_slab = span is not None and span["kind"] == "slab"
    return {"step": step} | levels | {"slab_used": int(span["used"]) if in_slab else 0}
