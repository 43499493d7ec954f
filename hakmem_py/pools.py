"""Stack pools from Python, and the report on StackPool (P0) beside our samples."""

from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import quantile_test

from . import build, claims, instructions, native, peers, stats

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
NODES = Path("/sys/devices/system/node")

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

    Only the thread that makes it may use it, unless `shared`. A `with` block destroys it at its end. Objects
    are addresses (cffi's void *). Raises PoolError, and ValueError for an argument that is no count; foreign
    pointers and double deallocation are detected by the variant `checked` only.
    """

    def __init__(self, size, alignment=16, capacity=0, shared=False):
        for name, value in {"size": size, "alignment": alignment, "capacity": capacity}.items():
            _check_count(name, value)
        self._library = native.load()
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
        """Maps and touches room for so many more objects ahead."""
        _check_count("objects", objects)
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


def _check_count(name, value):
    if not isinstance(value, Integral) or not 0 <= value < 2**64:
        raise ValueError(f"{name} = {value!r} must be a whole number from 0 to 2^64 - 1")


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
    """Time of an operation in ns, one value per block whose run succeeded. Raises KeyError for none."""
    runs = samples.query("workload == @workload and allocator == @allocator")
    runs = runs if slots is None else runs[runs["slots"] == slots]
    rows = runs[runs["status"] == "ok"]
    if rows.empty:
        why = "; ".join(runs["status"].unique()) or "none was run"
        raise KeyError(f"no sample of {workload} with {slots or 'any'} slots by {allocator}: {why}")
    return rows.groupby("block")[samples.attrs.get("metric", "cpu_ns_per_op")].last()


def between(samples, one, other):
    """Time of one over time of other, paired by block. A side: workload or (workload, slots, allocator)."""
    sides = [series(samples, *([side] if isinstance(side, str) else side)) for side in (one, other)]
    return stats.ratio(*pd.concat(sides, axis=1, join="inner").to_numpy(float).T)


def predicted(samples):
    """Keywords for `predictions.pools`, from the samples of 06_pools (its experiments by name)."""
    many, stack = samples["06_pools"], samples["06_stack"]
    largest = many.loc[many["workload"] == "pool_sweep", "slots"].max()
    places = stack[stack["workload"].str.startswith("place_") & (stack["status"] == "ok")]
    return {
        "size": between(many, ("pool_ten", 1000), ("pool_ten", 10)),
        "walk": between(many, ("pool_sweep", largest), ("pool_sweep", 10)),
        "warm": between(stack, "pool_unready", ("pool_ten", 50)),
        "cold": between(stack, "pool_first", "pool_first_ready"),
        "call_ns": places.groupby("case")["min_cpu_ns_per_op"].median().min(),
    }


def median(values, times=1):
    """(median, low, high) of values * times: the median's exact 95 % interval, infinite below 6 values."""
    values = np.asarray(values, float) * times
    interval = quantile_test(values, p=0.5).confidence_interval(0.95)
    return float(np.median(values)), float(interval.low), float(interval.high)


def beside_published(samples):
    """One row per published bench: its value, ours with interval, and the verdict on the pair it belongs to.

    samples: {"06_pools": DataFrame, "06_stack": DataFrame}. claimed, ratio: the work of one side of the pair
    over that of the other, as data/published/claims.toml pairs them; a row of two pairs has the first.
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
        and bench.name in (claim.row[-1], claim.group.get("against"))
    )


# ---------------------------------------------------------------- what noise cannot touch


def sweep(samples):
    """Median time by number of objects, with its interval: slots, allocator, median_ns, low_ns, high_ns."""
    rows = samples.query("workload == 'pool_sweep' and status == 'ok'")
    metric = samples.attrs.get("metric", "cpu_ns_per_op")
    groups = rows.groupby(["allocator", "slots"], sort=False)[metric]
    table = [(*key, *median(values)) for key, values in groups]
    return pd.DataFrame(table, columns=["allocator", "slots", "median_ns", "low_ns", "high_ns"])


def memory(samples):
    """What an object takes beyond its own size, at the peak of the sweep's largest pool.

    Columns allocator, objects (in that pool), overhead_bytes (resident, per object), huge_share (of the peak,
    in huge pages).
    """
    rows = samples.query("workload == 'pool_sweep' and status == 'ok'")
    rows = rows[rows["slots"] == rows["slots"].max()]
    grown = (rows["peak_rss_bytes"] - rows["rss_start_bytes"]) / rows["slots"] - rows["size_bytes"]
    table = rows.assign(overhead_bytes=grown, huge_share=rows["thp_bytes"] / rows["peak_rss_bytes"])
    table = table.rename(columns={"slots": "objects"})
    columns = ["objects", "overhead_bytes", "huge_share"]
    return table.groupby("allocator", sort=False)[columns].median().reset_index()


def reach(size=64):
    """How many objects of `size` bytes fill each data cache: level, bytes, objects; none if not told."""
    rows = []
    for index in sorted(CACHES.glob("index*")):
        files = (index / name for name in ("type", "level", "size"))
        kind, level, text = (file.read_text(encoding="utf-8").strip() for file in files)
        if kind != "Instruction":
            rows.append((f"L{level} cache", int(text[:-1]) * {"K": 2**10, "M": 2**20}[text[-1]]))
    table = pd.DataFrame(rows, columns=["level", "bytes"])
    return table.assign(objects=table["bytes"] // size)


def nodes():
    """Memory nodes of this machine; 1 where Linux does not tell."""
    return len(list(NODES.glob("node[0-9]*"))) or 1


def instructions_of_a_cycle():
    """Instructions of allocate, touch, deallocate, loop included: allocator, instructions, over_floor."""
    own = build.build()
    preloads = {"system": "", "hakmem": str(own.library)}
    preloads |= {name: peer.preload for name in peers.KNOWN if (peer := peers.find(name)).path}
    cycle = {"bench": own.bench, "workload": "pool_cycle"}
    ways = {
        "pool": cycle | {"options": ["--backend", "direct"]},
        "pool, counting nothing": cycle | {"workload": "pool_uncounted", "options": ["--backend", "direct"]},
        "floor": cycle | {"options": ["--backend", "floor"]},
    }
    ways |= {name: cycle | {"env": {"LD_PRELOAD": preload}} for name, preload in preloads.items()}
    counts = instructions.each(ways)
    table = pd.DataFrame(counts.items(), columns=["allocator", "instructions"])
    return table.assign(over_floor=table["instructions"] / counts["floor"])
