"""One run of a comparison: a workload of the bench, or any program, run as a side wants it.

How runs are arranged is decided elsewhere: by `ab` in blocks of processes, by `turns` within each process.
What takes part stands in `sides`, what is said of all runs in `standings`.
"""

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import pandas as pd

from . import ace, build, native, peers, preloaded, trace, worker
from .sides import EQUIVALENT, METRICS, AbError
from .spec import TRACE_SHAPE, TRACE_SUFFIX

TIMEOUT_S = 3600.0  # of one run: more than the longest that a notebook asks for
SHAPE = {"scale": float, "size": int, "threads": int, "slots": int}  # options of a workload


@dataclass(frozen=True)
class Target:
    """A program, or the bench (which then times itself). arguments: its command line, the program first."""

    arguments: tuple[str, ...]
    bench: bool
    label: str
    seconds: float | None = None  # of a run, where its scale was chosen for that


def workload(name, *options):
    """The Target of a bench workload, or of a trace's path. The learning is measured: there is no warm-up."""
    source = "--replay" if name.endswith(TRACE_SUFFIX) else "--workload"
    command = [str(build.build().bench), source, name, "--warmup", "0", *map(str, options)]
    return Target(tuple(command), True, Path(name).name.removesuffix(TRACE_SUFFIX))


def phased(name, seconds, window_ms, *options):
    """The Target of phases or phases4, 25 windows a phase: a run lasts so many seconds, whatever the side."""
    phase_ms, phases = 25 * window_ms, {"phases": 2, "phases4": 4}[name]
    rounds = max(1, round(1000 * seconds / (phases * phase_ms)))
    return workload(name, "--phase-ms", phase_ms, "--iterations", rounds, "--chunks", 1, *options)


def program(*arguments):
    """The Target of any program that takes a preloaded library."""
    found = trace.find_program(arguments[0])
    if _is_static(found):
        raise AbError(
            f"{found} is linked statically: it takes no preloaded library, so there is nothing to compare"
        )
    return Target((found, *arguments[1:]), False, Path(found).name)


def _is_static(path):
    """An ELF file that names no loader."""
    with Path(path).open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return False
    said = subprocess.run(["readelf", "-lW", path], capture_output=True, text=True).stdout
    return "LOAD" in said and "INTERP" not in said


def record(target, chosen, env=(), timeout_s=TIMEOUT_S):
    """One run: (row of numbers, history of its decisions). status is not "ok" where the run failed.

    wall_ns_per_op and cpu_ns_per_op: of the whole run; for a program the operation is the run. firings: steps
    of the fast loop that decided something. cached_bytes, settled: see below. Writing the history takes some
    of the program's CPU time, alike for every side that learns or looks on.
    """
    with tempfile.TemporaryDirectory(prefix="hakmem-ab-") as folder:
        asked = {**chosen.env, **dict(env), "HAKMEM_ACE_EVENTS": f"{folder}/%p.csv"}
        asked = {name: str(value) for name, value in asked.items()}
        row = (run_bench if target.bench else _program)(target.arguments, chosen.allocator, asked, timeout_s)
        files = sorted(Path(folder).glob("*.csv"))
        table = ace.history(files) if files else ace.events(since=2**62)
    fired = {
        "firings": ace.firings(table),
        "slow_firings": ace.firings(table, slow=True),
        "lost": table.attrs["lost"],
    }
    seen = {"cached_bytes": cached_bytes(table), "settled": settled(table)}
    return {"allocator": chosen.label} | row | fired | seen, table


def cached_bytes(table):
    """Bytes in magazines and depot, all learners together, mean over the fast windows; nan for none."""
    fast = table[table["block_size"] > 0]
    levels = fast.pivot_table(index="time_ns", columns="learner", values="cached_bytes").ffill()
    return float(levels.sum(axis=1).mean()) if len(levels) else float("nan")


def settled(table):
    """Share of the last half of all fast learners' windows on the best capacity or one as good; nan for none.

    As good: its mean reward, a share of CPU time, lies within EQUIVALENT of the best capacity's. Too
    low where rewards are noisy: the best mean of several is also the luckiest, more so of few windows.
    """
    good = []
    for _, windows in table[table["block_size"] > 0].groupby("learner"):
        means = windows.groupby("arm")["reward"].mean()
        late = windows["arm"].iloc[len(windows) // 2 :]
        good += (means[late] >= means.max() - EQUIVALENT).tolist()
    return sum(good) / len(good) if good else float("nan")


def recovery(row, table):
    """How soon after a change of phase the capacity is as good as that phase's best: one row a change.

    row, table: of `record` on a workload with phases. Columns block_size, phase, windows: whole ones of the
    learner in the phase, until: those before the first whose capacity is as good (see `settled`; all of
    them where none is). A phase in which nobody uses the class is left out, and so is the run's first.
    """
    marks = pd.DataFrame(json.loads(row["extra"])["phases"]).sort_values("start_ns", ignore_index=True)
    fast = table[table["block_size"] > 0]
    place = marks["start_ns"].searchsorted(fast["begin_ns"], side="right") - 1
    fast = fast.assign(place=place)[place >= 0]
    fast["phase_name"] = marks["name"].to_numpy()[fast["place"]]
    means = fast.groupby(["block_size", "phase_name", "arm"])["reward"].transform("mean")
    best = means.groupby([fast["block_size"], fast["phase_name"]]).transform("max")
    fast["good"] = means >= best - EQUIVALENT
    rows = [
        (size, group["phase_name"].iloc[0], len(group), int((~group["good"]).cummin().sum()))
        for (size, change), group in fast.groupby(["block_size", "place"])
        if change > 0
    ]
    return pd.DataFrame(rows, columns=["block_size", "phase", "windows", "until"])


def _library(allocator):
    """(value of LD_PRELOAD, the library that must answer malloc then; None: whatever the program has)."""
    if allocator == "system":
        return "", None
    if allocator == "hakmem":
        built = build.build()
        return str(built.library), built.library.resolve()
    peer = peers.find(allocator)
    if peer.path is None:
        raise AbError(f"{allocator} is {peer.hint}")
    return peer.preload, peer.path


def run_bench(arguments, allocator, env, timeout_s):
    """The row of one run of the bench; wall_ns_per_op and cpu_ns_per_op are of the whole of it.

    Where the workload has phases, they are the geometric means of theirs: phases last a fixed time, so who is
    faster at dear operations does more of them, and would look slower by the mean over all operations.
    late_cpu_ns_per_op: of the last half of its chunks, when a learner should have learned.
    """
    row = worker.run(arguments, *_library(allocator), env, timeout_s)
    if row["status"] == "ok":
        seen = json.loads(row["extra"])
        whole = pd.DataFrame(seen.get("phases") or [{"name": "all"} | row]).groupby("name")
        sums = whole[["elapsed_ns", "cpu_ns", "ops"]].sum().query("ops > 0")
        row["wall_ns_per_op"] = geometric_mean(sums["elapsed_ns"] / sums["ops"])
        row["cpu_ns_per_op"] = geometric_mean(sums["cpu_ns"] / sums["ops"])
        row["late_cpu_ns_per_op"] = seen["cpu_late_ns"]
    return row


def _program(arguments, allocator, env, timeout_s):
    row = preloaded.run(arguments, _library(allocator)[0], env, timeout_s)
    if row["status"] == "ok":
        row |= {"wall_ns_per_op": row["elapsed_ns"], "cpu_ns_per_op": row["cpu_ns"]}
    return row


# ---------------------------------------------------------------- command lines


def add_common(sub):
    """Options of every comparison: how often, how judged, how fast the learner, how much of a workload."""
    sub.add_argument("--blocks", type=int, default=10, help="of runs, every side in turn; default 10")
    sub.add_argument("--seed", type=int, default=1, help="of the order; default 1")
    sub.add_argument(
        "--metric",
        choices=METRICS,
        default="cpu",
        help="what is compared: CPU time (default), wall time or peak memory",
    )
    sub.add_argument("--fast-interval-ms", type=int, metavar="MS", help="window of the fast loop")
    sub.add_argument("--slow-interval-ms", type=int, metavar="MS", help="window of the slow loop")
    sub.add_argument("--allow-few", action="store_true", help="show a result, marked, below 100 decisions")
    for name, kind in SHAPE.items():
        sub.add_argument(f"--{name}", type=kind, help="of the workload")


def intervals(args):
    """The environment that the options ask for."""
    given = {
        "HAKMEM_ACE_FAST_INTERVAL_MS": args.fast_interval_ms,
        "HAKMEM_ACE_SLOW_INTERVAL_MS": args.slow_interval_ms,
    }
    for name, value in given.items():
        low, high = native.knobs().loc[name.removeprefix("HAKMEM_").lower(), ["minimum", "maximum"]]
        if value is not None and not low <= value <= high:
            option = name.removeprefix("HAKMEM_ACE_").lower().replace("_", "-")
            raise AbError(f"--{option} {value}: allowed: {low} to {high}")
    return {name: str(value) for name, value in given.items() if value is not None}


def chosen_workload(args, known):
    """The Target that the options name. known: names of workloads. Raises AbError, ValueError of a trace."""
    if args.workload.endswith(TRACE_SUFFIX):
        trace.chosen(Path(args.workload))
        if args.size or args.threads or args.slots:
            raise AbError(TRACE_SHAPE)
    elif args.workload not in known:
        there = f"{', '.join(known)}, and replays the path of a {TRACE_SUFFIX}"
        raise AbError(f"workload {args.workload!r} is unknown; the bench has {there}")
    given = {f"--{name}": getattr(args, name) for name in SHAPE}
    return workload(args.workload, *(word for pair in given.items() if pair[1] is not None for word in pair))
