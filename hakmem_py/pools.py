"""Stack pools from Python, and the report on StackPool (P0) beside our samples."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import quantile_test

from . import claims, native, stats

# ---------------------------------------------------------------- the pool


class PoolError(RuntimeError):
    """A pool refused. code: the HAK_POOL_ constant of hakmem.h."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class PoolStats:
    """allocations = hits + misses; live, peak and capacity in objects; hit_rate is 0 before the first."""

    allocations: int
    hits: int
    misses: int
    live: int
    peak: int
    capacity: int
    bytes_held: int
    hit_rate: float


class StackPool:
    """A pool of objects of `size` bytes, `capacity` of them mapped and touched ahead.

    Only the thread that makes it may use it, unless `shared`. A block of `with` destroys it at its end.
    Objects are addresses (cffi's void *). Raises PoolError; foreign pointers and double deallocation are
    told by variant="checked" only.
    """

    def __init__(self, size, alignment=16, capacity=0, shared=False, variant="release"):
        self._library = native.load(variant)
        lib = self._library.lib
        self._pool = (lib.hak_pool_new_shared if shared else lib.hak_pool_new)(size, alignment)
        if self._pool == self._library.ffi.NULL:
            self._refuse(lib.hak_pool_error())
        if code := lib.hak_pool_preallocate(self._pool, capacity):
            lib.hak_pool_destroy(self._pool)
            self._refuse(code)

    def allocate(self):
        """The address of an object; what it holds is undefined."""
        found = self._library.lib.hak_pool_allocate(self._pool)
        if found == self._library.ffi.NULL:
            self._refuse(self._library.lib.hak_pool_error())
        return found

    def deallocate(self, address):
        """Gives an object back; the next allocate hands it out again. None is refused like NULL in C."""
        address = self._library.ffi.NULL if address is None else address
        self._judge(self._library.lib.hak_pool_deallocate(self._pool, address))

    def preallocate(self, objects):
        """Maps and touches so many more objects ahead."""
        self._judge(self._library.lib.hak_pool_preallocate(self._pool, objects))

    def stats(self):
        """PoolStats of this moment."""
        row = self._library.ffi.new("hak_pool_stats_t *")
        self._judge(self._library.lib.hak_pool_stats(self._pool, row))
        return PoolStats(**{name: getattr(row, name) for name in PoolStats.__dataclass_fields__})

    def shrink(self):
        """Returns the chunks that hold no live object to the system."""
        self._judge(self._library.lib.hak_pool_shrink(self._pool))

    def destroy(self):
        """Ends the pool and all its objects. The pool refuses whatever comes after."""
        self._judge(self._library.lib.hak_pool_destroy(self._pool))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.destroy()

    def _judge(self, code):
        if code:
            self._refuse(code)

    def _refuse(self, code):
        raise PoolError(code, self._library.text(self._library.lib.hak_pool_message(code)))


# ---------------------------------------------------------------- the published report


@dataclass(frozen=True)
class Bench:
    """One published bench and ours. times: our operations in one of theirs."""

    group: str
    name: str
    experiment: str
    workload: str
    slots: int | None = None
    allocator: str = "pool"
    times: int = 1


BENCHES = (
    Bench("pool_vs_standard", "pool_allocate", "06_pools", "pool_allocate"),
    Bench("pool_vs_standard", "pool_cycle", "06_pools", "pool_cycle"),
    Bench("pool_vs_standard", "standard_allocate", "06_pools", "pool_allocate", allocator="system"),
    Bench("pool_vs_standard", "standard_cycle", "06_pools", "pool_cycle", allocator="system"),
    *(
        Bench("pool_sizes", f"pool_{slots}", "06_pools", "pool_ten", slots, times=10)
        for slots in (10, 50, 100, 500, 1000)
    ),
    Bench("preallocation", "without", "06_stack", "pool_unready", times=10),
    Bench("preallocation", "with_50", "06_stack", "pool_ten", 50, times=10),
    Bench("numa_strategies", "local", "06_stack", "place_local"),
    Bench("numa_strategies", "interleave", "06_stack", "place_interleave"),
    Bench("numa_strategies", "bind", "06_stack", "place_bind"),
    Bench("throughput", "pool_100", "06_pools", "pool_batch", 100, times=100),
    Bench("throughput", "standard_100", "06_pools", "pool_batch", 100, "system", times=100),
    Bench("stats_overhead", "without", "06_stack", "pool_ten", 100, times=10),
    Bench("stats_overhead", "with", "06_stack", "pool_ten_read", 100, times=10),
)
NS = {"ns": 1.0, "ps": 1e-3}


def series(samples, workload, slots=None, allocator="pool"):
    """One value a block: the time of an operation in the runs that went well. Raises KeyError for none."""
    rows = samples.query("workload == @workload and allocator == @allocator and status == 'ok'")
    rows = rows if slots is None else rows[rows["slots"] == slots]
    if rows.empty:
        raise KeyError(f"no sample of {workload} with {slots or 'any'} slots by {allocator}")
    return rows.groupby("block")[samples.attrs.get("metric", "cpu_ns_per_op")].last()


def between(samples, one, other):
    """Time of one over time of other, paired by block. A side: a workload, or (workload, slots, allocator)."""
    sides = [series(samples, *([side] if isinstance(side, str) else side)) for side in (one, other)]
    return stats.ratio(*pd.concat(sides, axis=1, join="inner").to_numpy(float).T)


def median(values, times=1):
    """(median, low, high): the exact 95 % interval of the median, infinite below six values."""
    values = np.asarray(values, float) * times
    interval = quantile_test(values, p=0.5).confidence_interval(0.95)
    return float(np.median(values)), float(interval.low), float(interval.high)


def beside_published(samples):
    """One row a published bench: its value, ours with interval, and the verdict on the pair it belongs to.

    samples: {"06_pools": DataFrame, "06_stack": DataFrame}. claimed, ratio: the work of one side of the pair
    over that of the other, as data/published/claims.toml pairs them; a row that two pairs need has the first.
    """
    judged = claims.judge(samples).set_index("claim")
    published = claims.figures().query("report == 'P0'").set_index(["experiment", "subject"])
    return pd.DataFrame(_beside(samples, bench, published, judged) for bench in BENCHES)


def _beside(samples, bench, published, judged):
    figure = published.loc[bench.group, bench.name]
    ours = median(
        series(samples[bench.experiment], bench.workload, bench.slots, bench.allocator), bench.times
    )
    pair = judged.loc[_claim(bench)]
    return {
        "group": bench.group,
        "bench": bench.name,
        "published_ns": figure["value"] * NS[figure["unit"]],
        **dict(zip(("ours_ns", "ours_low_ns", "ours_high_ns"), ours, strict=True)),
        **pair[["claimed", "ratio", "low", "high", "n", "verdict"]],
    }


def _claim(bench):
    """The id of the first claim that this bench is a side of."""
    return next(
        claim.id
        for claim in claims.claims()
        if claim.group["report"] == "P0"
        and claim.group["experiment"] == bench.group
        and bench.name in (claim.id.split(" / ")[2], claim.group.get("against"))
    )
