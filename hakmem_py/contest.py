"""What takes part in a comparison, how one run of it goes, and what is said of all of them.

A side is a way of running: ACE off, on, any policy, any fixed arm, placebos, peers. A side that learns must
have learned: its decisions are counted from its history (HAKMEM_ACE_EVENTS), and below 100 of them in a run
there is no result unless one is asked for. How runs are arranged is for others: `ab` in blocks of processes,
`turns` within each process.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from math import ceil, nan
from pathlib import Path
from statistics import geometric_mean

import pandas as pd

from . import ace, bandits, build, native, peers, preloaded, stats, trace, worker
from .problems import ACE_CAPACITIES
from .spec import TRACE_SHAPE, TRACE_SUFFIX

TIMEOUT_S = 3600.0  # of one run: more than the longest that a notebook asks for
FIRINGS = 100  # decisions of a loop inside the measured interval, below which nothing was learned
EQUIVALENT = 0.02  # of the time: capacities, and sides, that differ by less are as good as each other
ARMS = ACE_CAPACITIES
SIDES = ("off", "on", "random", "fixed:64", "shuffled")
SHAPE = {"scale": float, "size": int, "threads": int, "slots": int}  # options of a workload
SHOWN = ["allocator", "ratio", "low", "high", "n", "p_adjusted", "tost_p", "cv", "verdict", "needs_n"]


class AbError(RuntimeError):
    """The comparison cannot be made; one line that says what to change."""


@dataclass(frozen=True)
class Side:
    """One way of running: `env` on top of the program's own; `loop` that must fire: fast, slow or none."""

    label: str
    env: dict = field(default_factory=dict)
    loop: str | None = None
    allocator: str = "hakmem"  # or system, or a peer


def side(name, arm=None):
    """The Side of a name: PEER, off, on, shuffled, POLICY, slow:POLICY, fixed:BLOCKS, KNOB=VALUE[,...].

    PEER: system, mimalloc and so on in hakmem's place. off, hakmem: no learner. on: the default policy.
    shuffled: the same, told rewards of other windows. POLICY: a row of the policy table, in the fast loop or
    (slow:) the slow one, the fast one standing still. fixed: one capacity, with ACE looking on. arm: number
    of the capacity that policies start from.
    """
    if "=" in name:
        return _set(name)
    on = {"HAKMEM_ACE_ENABLED": "1"} | ({} if arm is None else _arm(arm))
    kind, _, rest = name.partition(":")
    if kind == "fixed" and rest:
        return Side(name, on | _fixed(rest))
    if kind == "slow" and rest:
        return Side(
            name, on | _policy("HAKMEM_ACE_SLOW_POLICY", rest) | _policy("HAKMEM_ACE_POLICY", "fixed"), "slow"
        )
    special = {peer: Side(peer, allocator=peer) for peer in peers.FOREIGN} | {
        "off": Side(name),
        "hakmem": Side(name),
        "on": Side(name, on, "fast"),
        "shuffled": Side(name, on | {"HAKMEM_ACE_SHUFFLED": "1"}, "fast"),
    }
    return special.get(name) or Side(name, on | _policy("HAKMEM_ACE_POLICY", name), "fast")


def learner(name, reference=False):
    """The Side of on or of a row of the policy table. Raises AbError for every other side.

    reference: the runs that are kept are of `on`; to know it takes no compiler.
    """
    if reference and name != "on":
        raise AbError(f"the reference holds no runs of {name!r}, only of 'on': run it by reference = False")
    known = ("on",) if reference else ("on", *bandits.policies().index)
    if name not in known:
        raise AbError(f"{name!r} is no policy; allowed: {', '.join(known)}")
    return side(name)


def _set(name):
    """The Side of KNOB=VALUE[,...]. Whether it takes a value the library itself says: else a run fails."""
    pairs = [pair.partition("=") for pair in name.split(",")]
    known = {"profile", *native.knobs().index}
    env = {}
    for knob, _, value in pairs:
        knob = knob.lower().removeprefix("hakmem_")
        if knob not in known:
            raise AbError(f"side {name}: there is no knob {knob!r}; allowed: {', '.join(sorted(known))}")
        if f"HAKMEM_{knob.upper()}" in env:
            raise AbError(f"side {name}: {knob!r} occurs twice")
        env[f"HAKMEM_{knob.upper()}"] = value
    on = env.get("HAKMEM_ACE_ENABLED") == "1" or env.get("HAKMEM_PROFILE") == "learning"
    still = env.get("HAKMEM_ACE_POLICY") == "fixed" or env.get("HAKMEM_ACE_FROZEN") == "1"
    return Side(name, env, "fast" if on and not still else None)


def _arm(number):
    if number not in range(len(ARMS)):
        raise AbError(
            f"arm {number} is not there; allowed: 0 to {len(ARMS) - 1}, for {ARMS[0]} to {ARMS[-1]} blocks"
        )
    return {"HAKMEM_ACE_ARM": str(number), "HAKMEM_MAGAZINE_BLOCKS": str(ARMS[number])}


def _fixed(blocks):
    if blocks not in map(str, ARMS):
        raise AbError(f"fixed:{blocks} is no arm; allowed: {', '.join(f'fixed:{arm}' for arm in ARMS)}")
    return {"HAKMEM_ACE_POLICY": "fixed"} | _arm(ARMS.index(int(blocks)))


def _policy(variable, name):
    if name not in bandits.policies().index:
        known = ", ".join(bandits.policies().index)
        raise AbError(
            f"{name!r} is no side; allowed: {', '.join(peers.FOREIGN)}, hakmem, off, on, shuffled, "
            f"fixed:BLOCKS, slow:POLICY, KNOB=VALUE, {known}"
        )
    return {variable: name}


# ---------------------------------------------------------------- what is run


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


# ---------------------------------------------------------------- what is said of it


def refuse(target, one, row, allow_few, env=(), share=1.0):
    """Raises AbError where a trial run failed, or its side decided too seldom; says what would help.

    share: of the run, in which the side's learner is at work.
    """
    if row["status"] != "ok":
        raise AbError(f"side {one.label}: {row['error']}")
    fired = _fired(row, one.loop)
    if fired is None or fired >= FIRINGS or allow_few:
        return
    seconds, option = row["elapsed_ns"] / 1e9, f"--{one.loop}-interval-ms"
    knob = f"ace_{one.loop}_interval_ms"
    asked = {**dict(env), **one.env}.get(f"HAKMEM_{knob.upper()}")
    interval = int(asked or native.knobs().at[knob, "preset"])
    ways, shorter = [], max(1, int(800 * seconds * share / FIRINGS))
    if shorter < interval:
        ways.append(f"{option} {shorter}")
    if target.bench and fired:
        more = 1.2 * FIRINGS / fired
        larger = f"--scale {more:.2g} times as large"
        ways.append(f"--seconds {ceil(target.seconds * more)}" if target.seconds else larger)
    rare = "" if ways else "; its blocks hardly leave the magazines, so there is little to learn"
    raise AbError(
        f"side {one.label}: {fired} firings in {seconds:.2g} s, below {FIRINGS} nothing is learned{rare}: "
        f"{', '.join([*ways, ''])}{'or ' if ways else ''}--allow-few for a marked result"
    )


def _fired(row, loop):
    """Decisions of the loop that must fire; None where none must."""
    return None if loop is None else row["slow_firings" if loop == "slow" else "firings"]


def judge(samples, metric="cpu_ns_per_op"):
    """`stats.compare` with the baseline, and of every side: least decisions of its runs, medians of the rest.

    A side with fewer than 100 decisions in any run keeps its numbers; its verdict says FEW FIRINGS. tost_p:
    below 5 % the side takes the same time as the baseline, within EQUIVALENT.
    """
    baseline, loops = samples.attrs["baseline"], samples.attrs["loops"]
    table = stats.compare(samples, baseline, metric)
    timed = stats.timed(samples, metric)
    good = timed[timed["status"] == "ok"]
    paired = good.pivot(index="block", columns="allocator", values=metric).reindex(columns=[*loops])
    ran = samples[samples["status"] == "ok"]
    least = {
        label: min(
            (_fired(row, loop) for row in ran[ran["allocator"] == label].to_dict("records")), default=nan
        )
        for label, loop in loops.items()
        if loop
    }
    for i, label in table["allocator"].items():
        rows = samples[samples["allocator"] == label]
        pairs = paired[[label, baseline]].dropna()
        table.loc[i, "tost_p"] = stats.tost(pairs[label], pairs[baseline], EQUIVALENT) if len(pairs) else None
        table.loc[i, "settled"] = rows["settled"].median()
        table.loc[i, "firings"] = least.get(label)
        table.loc[i, "peak_rss_mb"] = rows["peak_rss_bytes"].median() / 1e6
        table.loc[i, "cached_kb"] = rows["cached_bytes"].median() / 1e3
        if any(least.get(side, FIRINGS) < FIRINGS for side in (label, baseline)):
            table.loc[i, "verdict"] = "FEW FIRINGS"
    return table


# ---------------------------------------------------------------- command lines


def add_common(sub):
    """Options of every comparison: how often, how judged, how fast the learner, how much of a workload."""
    sub.add_argument("--blocks", type=int, default=10, help="of runs, each side once in each; default 10")
    sub.add_argument("--seed", type=int, default=1, help="of the order; default 1")
    sub.add_argument(
        "--metric", choices=("cpu", "wall"), default="cpu", help="time that is compared; default cpu"
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


def show(target, samples, args, memory=("peak_rss_mb", "cached_kb")):
    """Prints what `judge` says of samples, and the errors of runs that failed. memory: columns to show."""
    metric, baseline = f"{args.metric}_ns_per_op", samples.attrs["baseline"]
    if metric not in samples:
        errors = samples["error"].value_counts()
        raise RuntimeError(
            f"no run of {target.label} ended well; {errors.iloc[0]} of {len(samples)}: {errors.index[0]}"
        )
    table = judge(samples, metric)
    said = f"{args.metric} time of each side / that of {baseline}"
    base = samples[samples["allocator"] == baseline].median(numeric_only=True)
    peak = base["peak_rss_bytes"] / 1e6
    peak = f"peak {peak:.4g} MB" if peak == peak else "ended too soon for a peak"
    peak += "" if target.bench else ", of it alone without its children"
    time_said = f"{base[metric]:.4g} ns an operation" if target.bench else f"{base[metric] / 1e6:.4g} ms"
    print(f"{target.label}: {said} ({time_said}, {peak}), ", end="")
    print(f"{samples['block'].nunique()} blocks, seed {args.seed}")
    learned = ["settled", "firings"] if any(samples.attrs["loops"].values()) else []
    shown = table[[*SHOWN, *learned, *memory]].dropna(axis="columns", how="all")
    shown = shown.rename(columns={"tost_p": f"tost_p({EQUIVALENT:.0%})"})  # a verdict's margin is another
    print(shown.to_string(index=False, float_format="{:.4g}".format, na_rep="-"))
    if note := stats.family_note(table):
        print(note)
    for error, times in samples.loc[samples["status"] != "ok", "error"].value_counts().items():
        print(f"{times} runs failed: {error}", file=sys.stderr)
