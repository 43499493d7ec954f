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


BELOW_A_CYCLE = "267 ps is less than one clock cycle: the choice was compiled away, nothing was measured"


@dataclass(frozen=True)
class Bench:
    """One published bench and ours. times: our operations in one of theirs. partner: what it is set against."""

    group: str
    name: str
    partner: str
    workload: str
    slots: int | None = None
    allocator: str = "pool"
    times: int = 1
    hypothesis: str = "difference"
    margin: float = 0.02
    void: str = ""


def _ten(name, slots):
    partner = "pool_1000" if name == "pool_10" else "pool_10"
    return Bench("pool_sizes", name, partner, "pool_ten", slots, times=10, hypothesis="equivalence")


BENCHES = (
    Bench("pool_vs_standard", "pool_allocate", "standard_allocate", "pool_allocate"),
    Bench("pool_vs_standard", "pool_cycle", "standard_cycle", "pool_cycle"),
    Bench("pool_vs_standard", "standard_allocate", "pool_allocate", "pool_allocate", allocator="standard"),
    Bench("pool_vs_standard", "standard_cycle", "pool_cycle", "pool_cycle", allocator="standard"),
    *(_ten(f"pool_{slots}", slots) for slots in (10, 50, 100, 500, 1000)),
    Bench("preallocation", "without", "with_50", "pool_unready", times=10, hypothesis="equivalence"),
    Bench("preallocation", "with_50", "without", "pool_ten", 50, times=10, hypothesis="equivalence"),
    Bench("numa_strategies", "local", "bind", "place_local", void=BELOW_A_CYCLE),
    Bench("numa_strategies", "interleave", "local", "place_interleave", void=BELOW_A_CYCLE),
    Bench("numa_strategies", "bind", "local", "place_bind", void=BELOW_A_CYCLE),
    Bench("throughput", "pool_100", "standard_100", "pool_batch", 100, times=100),
    Bench("throughput", "standard_100", "pool_100", "pool_batch", 100, "standard", times=100),
    Bench("stats_overhead", "without", "with", "pool_ten", 100, times=10, hypothesis="equivalence"),
    Bench("stats_overhead", "with", "without", "pool_ten_read", 100, times=10, hypothesis="equivalence"),
)


def series(samples, workload, slots=None, allocator="pool", metric="cpu_ns_per_op"):
    """One value a block: the time of an operation in the runs that went well. Raises KeyError for none."""
    rows = samples[(samples["workload"] == workload) & (samples["allocator"] == allocator)]
    rows = rows[rows["status"] == "ok"]
    rows = rows if slots is None else rows[rows["slots"] == slots]
    if rows.empty:
        raise KeyError(f"no sample of {workload} with {slots or 'any'} slots by {allocator}")
    return rows.groupby("block")[metric].last()


def between(samples, one, other, metric="cpu_ns_per_op"):
    """Estimate of time(one) / time(other), paired by block; each a (workload, slots, allocator), short as wished."""
    pair = pd.concat([series(samples, *side, metric=metric) for side in (one, other)], axis=1, join="inner")
    return stats.ratio(*pair.to_numpy(float).T)


def median(values, times=1):
    """(median, low, high) with the exact 95 % interval of the median."""
    values = np.asarray(values, float) * times
    interval = quantile_test(values, p=0.5).confidence_interval(0.95)
    return float(np.median(values)), float(interval.low), float(interval.high)


def beside_published(samples, standard="system"):
    """One row for each published bench: its value, ours with interval, both against the partner, verdict.

    samples: those of 06_pools and 06_stack together. A ratio is the partner's time over the bench's own.
    """
    place = {(bench.group, bench.name): bench for bench in BENCHES}
    return pd.DataFrame(
        _row(samples, bench, place[bench.group, bench.partner], standard) for bench in BENCHES
    )


def _row(samples, bench, partner, standard):
    published = claims.published("P0", bench.group)
    unit = 1e-3 if bench.group == "numa_strategies" else 1.0  # published in ps
    own, other = (_side(side, standard) for side in (bench, partner))
    ours, low, high = median(series(samples, *own), bench.times)
    claimed, e = published[bench.partner] / published[bench.name], between(samples, other, own)
    judged = stats.claim_verdict(claimed, e, bench.hypothesis, bench.margin, void=bench.void)
    return {
        "group": bench.group, "bench": bench.name, "published_ns": published[bench.name] * unit,
        "ours_ns": ours, "ours_low_ns": low, "ours_high_ns": high, "against": bench.partner,
        "claimed": claimed, "ratio": e.value, "low": e.low, "high": e.high, "n": e.n, "verdict": judged.kind,
    }  # fmt: skip


def _side(bench, standard):
    return bench.workload, bench.slots, standard if bench.allocator == "standard" else bench.allocator
