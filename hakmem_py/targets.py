"""One run of a comparison: a workload of the bench, or any program, run as a side wants it.

How runs are arranged is decided elsewhere: by `ab` in blocks of processes, by `turns` within each process.
What takes part stands in `sides`, what is said of all runs in `standings`.
"""

import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import pandas as pd

from . import ace, build, native, peers, preloaded, trace, worker
from .commands import call
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
    seconds: float | None = None  # length of a run, where its scale was chosen to give it


def workload(name, *options):
    """The Target of a workload of the bench, or of a trace's path. No warm-up: learning is measured too."""
    source = "--replay" if name.endswith(TRACE_SUFFIX) else "--workload"
    command = [str(build.build().bench), source, name, "--warmup", "0", *map(str, options)]
    return Target(tuple(command), True, Path(name).name.removesuffix(TRACE_SUFFIX))


def phased(name, seconds, window_ms, *options):
    """The Target of phases or phases4 with 25 windows of the learner per phase. A run lasts `seconds` under
    every side, because phases have a fixed time."""
    phase_ms, phases = 25 * window_ms, {"phases": 2, "phases4": 4}[name]
    rounds = max(1, round(1000 * seconds / (phases * phase_ms)))
    return workload(name, "--phase-ms", phase_ms, "--iterations", rounds, "--chunks", 1, *options)


def program(*arguments):
    """The Target of any program that takes a preloaded library. Raises AbError, ValueError for no program."""
    found = trace.find_program(arguments[0])
    if _is_static(found):
        raise AbError(
            f"{found} is linked statically and takes no preloaded library: give a dynamically linked program"
        )
    if _is_secure(found):
        raise AbError(f"{found} is set-uid or has capabilities and takes no preloaded library: give a copy")
    return Target((found, *arguments[1:]), False, Path(found).name)


def _is_static(path):
    """Whether it is an ELF file that names no loader."""
    if not _is_elf(path):
        return False
    said = call(["readelf", "-lW", path])
    return "LOAD" in said and "INTERP" not in said


def _is_secure(path):
    """Whether it is an ELF file that may more than its caller: nothing is preloaded there (ld.so(8))."""
    file = Path(path).stat()
    user = file.st_mode & stat.S_ISUID and file.st_uid != os.getuid()
    group = file.st_mode & stat.S_ISGID and file.st_gid != os.getgid()
    return bool(user or group or _adds_capabilities(path)) and _is_elf(path)


def _adds_capabilities(path):
    """Whether setcap has given it some that its caller, unless it is root, lacks."""
    try:
        return os.getuid() != 0 and "security.capability" in os.listxattr(path)
    except OSError:  # a file system that keeps none
        return False


def _is_elf(path):
    with Path(path).open("rb") as file:
        return file.read(4) == b"\x7fELF"


def record(target, chosen, env=(), timeout_s=TIMEOUT_S):
    """One run: (row of numbers, history of its decisions). status is not "ok" where the run failed.

    wall_ns_per_op and cpu_ns_per_op: of the whole run; for a program the operation is the run. firings: steps
    of the fast loop that decided something. cached_bytes, settled: see these functions. Writing the history
    takes some of the program's CPU time, the same under every side that learns or looks on.
    """
    with tempfile.TemporaryDirectory(prefix="hakmem-ab-") as folder:
        asked = {**dict(env), **chosen.env, "HAKMEM_ACE_EVENTS": f"{folder}/%p.csv"}
        asked = {name: str(value) for name, value in asked.items()}
        row = (run_bench if target.bench else _program)(target.arguments, chosen.allocator, asked, timeout_s)
        if row["error"].startswith(worker.NO_HISTORY):
            cure = "make room there, or set TMPDIR to another folder"
            row["error"] = f"ACE's history cannot be written to {Path(folder).parent}: {cure}"
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
    """Bytes in magazines and depot, all fast learners together, mean over their windows; nan for none."""
    fast = table[table["block_size"] > 0]
    levels = fast.pivot_table(index="time_ns", columns="learner", values="cached_bytes").ffill()
    return float(levels.sum(axis=1).mean()) if len(levels) else float("nan")


def settled(table):
    """Share of windows with the best capacity or one as good, in the second half of each fast learner's run;
    nan without windows.

    As good: its mean reward, a share of CPU time, lies within EQUIVALENT of the best capacity's. It comes out
    too low where rewards are noisy: the best of several means is also the luckiest, more so of few windows.
    """
    good = []
    for _, windows in table[table["block_size"] > 0].groupby("learner"):
        means = windows.groupby("arm")["reward"].mean()
        late = windows["arm"].iloc[len(windows) // 2 :]
        good += (means[late] >= means.max() - EQUIVALENT).tolist()
    return sum(good) / len(good) if good else float("nan")


def recovery(row, table):
    """How soon after a change of phase the capacity is as good as that phase's best: one row per size class
    and change.

    row, table: of `record` on a workload with phases. Columns block_size (bytes), phase, windows: how many of
    the learner's windows began in the phase, until: how many of them came before the first whose capacity is
    as good (see `settled`; all of them where none is). The run's first phase is left out, and so is a phase
    in which nobody uses the class.
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
        raise AbError(peer.hint)
    return peer.preload, peer.path


def run_bench(arguments, allocator, env, timeout_s):
    """The row of one run of the bench; wall_ns_per_op and cpu_ns_per_op are of the whole run.

    Where the workload has phases, they are the geometric means of the phases' own: phases last a fixed time,
    so a side that is faster at expensive operations does more of them, and would look slower by the mean over
    all operations. late_cpu_ns_per_op: of the second half of the chunks, when a learner should have learned.
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
    """Options of every comparison: its blocks, metric, the learner's windows, and the workload's shape."""
    sub.add_argument("--blocks", type=int, default=10, help="blocks, each a run of every side; default 10")
    sub.add_argument("--seed", type=int, default=1, help="seed of the random order; default 1")
    sub.add_argument(
        "--metric",
        choices=METRICS,
        default="cpu",
        help="what is compared: CPU time (default), wall time or peak memory",
    )
    sub.add_argument("--fast-interval-ms", type=int, metavar="MS", help="window of the fast loop")
    sub.add_argument("--slow-interval-ms", type=int, metavar="MS", help="window of the slow loop")
    sub.add_argument("--allow-few", action="store_true", help="accept fewer than 100 decisions, marked")
    for name, kind in SHAPE.items():
        sub.add_argument(f"--{name}", type=kind, help=f"{name} of the workload")


def intervals(args):
    """The environment that the options ask for. Raises AbError outside a knob's range."""
    given = {
        "HAKMEM_ACE_FAST_INTERVAL_MS": args.fast_interval_ms,
        "HAKMEM_ACE_SLOW_INTERVAL_MS": args.slow_interval_ms,
    }
    for name, value in given.items():
        low, high = native.knobs().loc[name.removeprefix("HAKMEM_").lower(), ["minimum", "maximum"]]
        if value is not None and not low <= value <= high:
            option = name.removeprefix("HAKMEM_ACE_").lower().replace("_", "-")
            raise AbError(f"--{option} {value}: allowed: {low} to {high} ms")
    return {name: str(value) for name, value in given.items() if value is not None}


def chosen_workload(args, known):
    """The Target that the options name. known: names of workloads. Raises AbError; ValueError for a file that
    is no trace."""
    if args.workload.endswith(TRACE_SUFFIX):
        trace.chosen(Path(args.workload))
        if args.size or args.threads or args.slots:
            raise AbError(TRACE_SHAPE)
    elif args.workload not in known:
        there = f"{', '.join(known)}, or give the path of a {TRACE_SUFFIX}"
        raise AbError(f"workload {args.workload!r} is unknown; the bench has {there}")
    given = {f"--{name}": getattr(args, name) for name in SHAPE}
    return workload(args.workload, *(word for pair in given.items() if pair[1] is not None for word in pair))
