"""Two values of a knob that take turns within each process of a workload: which is faster, and by how much?

Two processes differ by 5 to 25 %, whatever their settings: by their pages, their place in the caches, the
minute in which they ran. Neighbouring chunks of one process differ by 1 to 2 %. So each process runs chunks
of both values, in pairs of random order (bench/run.c, --toggle), and its sample is the median ratio of
neighbours. The process stays the unit of statistics: what differs between processes is in the interval.

What one value leaves behind, the other finds: how far the heap has grown, where its blocks lie. The effect of
a setting that works through these shows in processes of its own (`ab`), not in turns.
"""

import json
import re
from dataclasses import replace
from math import ceil

import pandas as pd

from . import build, native, provenance, runner, stats, targets
from .blocks import gathered, judged, running
from .progress import Progress
from .sides import AbError, Side, side
from .slot import bench_slot
from .standings import judge, refuse, show

BORN = ("ace_policy", "ace_slow_policy", "ace_arm", "ace_seed")  # knobs that are read when a learner begins
WHOLE = re.compile(r"([0-9]+)([kmg]?)", re.IGNORECASE)  # a value as the environment takes it: 64M
LEARNING = 0.35  # share of a run that a learner which takes turns spends in whole windows
TRIAL_S = 1.0  # seconds of the trial by which a run's length is sized; its first moments are the slowest


def compare(target, knob, values, blocks=10, seed=1, env=(), allow_few=False, chunks=40, wait_s=0.0):
    """Samples for `judge`: two rows a process, one a value, the first the baseline.

    knob: a row of the knob table that is read at run time; ace_enabled for the learner. values: two whole
    numbers. chunks: of a process, an even number; each should last 5 ms or more, because a thread's cache
    starts anew in each.

    settled and cached_bytes are of a trial run, which writes a history. The counted runs write none, because
    that would be charged to ACE; their firings are steps of the fast loop. Raises AbError as `ab` does.
    """
    if not target.bench:
        raise AbError("knobs take turns in workloads of the bench only: a program has no chunks")
    env = {name: str(value) for name, value in dict(env).items()}
    if not 1 <= seed <= 2**32 - blocks:
        raise AbError(f"seed {seed}: allowed: 1 to {2**32 - blocks}, for each block has the next one")
    _refuse(knob, values, env)
    learns = knob == "ace_enabled" and env.get("HAKMEM_ACE_FROZEN", "0") == "0"
    sides = [Side(f"{knob}={one}", loop="fast" if learns and one else None) for one in values]
    turns = ("--chunks", str(chunks), "--toggle", f"{knob}={values[0]},{values[1]}")
    command = (*target.arguments, *turns)
    rows = []
    with bench_slot(f"turns of {target.label}", wait_s):
        tried, _ = targets.record(targets.Target(command, True, target.label), side("off"), env)
        for one in sides:
            refuse(target, one, tried, allow_few, env, LEARNING)
        seen = {name: tried[name] for name in ("settled", "cached_bytes")}
        progress = Progress(f"turns of {target.label}", blocks)
        with running(rows, sides, progress):
            for block in range(blocks):
                asked = (*command, "--seed", str(seed + block))
                row = targets.run_bench(asked, "hakmem", env, targets.TIMEOUT_S)
                row |= seen | {"case": target.label, "block": block, "load1": provenance.load1()}
                rows += _sides(row, sides)
                progress.step(block)
    return gathered(rows, sides)


def _refuse(knob, values, env):
    if values[0] == values[1]:
        raise AbError(f"{knob}={values[0]},{values[1]}: the two values must differ")
    known = native.knobs()
    if knob not in known.index:
        raise AbError(f"there is no knob {knob!r}; allowed: {', '.join(known.index)}")
    low, high = known.loc[knob, ["minimum", "maximum"]]
    if not all(low <= value <= high for value in values):
        raise AbError(f"{knob}={values[0]},{values[1]}: allowed: {low} to {high}")
    if known.at[knob, "at_start"]:
        raise AbError(f"{knob} is read when a process starts: compare by `ab --sides {knob}=...`")
    if knob in BORN:
        raise AbError(f"{knob} is read when a learner begins: compare by `ab --sides {knob}=...`")
    if knob == "placement_node" and env.get("HAKMEM_PLACEMENT") != "3":
        raise AbError(
            f"{knob} does nothing unless placement is 3: compare by `ab --sides placement=3,{knob}=...`"
        )
    if knob.startswith("ace_") and knob != "ace_enabled" and env.get("HAKMEM_ACE_ENABLED") != "1":
        raise AbError(f"{knob} does nothing while ACE is off: compare by `ab --sides ace_enabled=1,...`")


def _sides(row, sides):
    """The two rows of a process."""
    rows = [row | {"allocator": one.label} for one in sides]
    if row["status"] == "ok":
        seen = json.loads(row["extra"])
        chunks = seen["chunk_cpu_ns"], seen["chunk_ns"]
        times = (stats.alternated(times, seen["chunk_side"]) for times in chunks)
        for one, side, cpu, wall in zip(rows, sides, *times, strict=True):
            one |= {"cpu_ns_per_op": cpu, "wall_ns_per_op": wall}
            one["firings"] = seen["ace_firings"] if side.loop else None
    return rows


def by_phase(samples):
    """Samples as of `compare`, each phase a case, of a workload whose chunks are cycles of phases."""
    rows = []
    for _, pair in samples.groupby("block", sort=False):
        seen = json.loads(pair["extra"].iloc[0])
        cycle = len(seen["phases"]) // len(seen["chunk_side"])
        for at in range(cycle):
            marks = seen["phases"][at::cycle]
            times = stats.alternated([mark["cpu_ns"] / mark["ops"] for mark in marks], seen["chunk_side"])
            for row, value in zip(pair.to_dict("records"), times, strict=True):
                rows.append(row | {"case": marks[0]["name"], "cpu_ns_per_op": value})
    table = pd.DataFrame(rows)
    table.attrs = samples.attrs
    return table


def sweep(target, knob, values, blocks=10, **how):
    """What each value of a knob costs against the first: (table, costs). how: as for `compare`.

    table: of `judge`, one row per value (column setting) and phase, or workload where it has no phases; all
    of them are one family. costs: CPU ns per operation as `ceiling.oracle` takes them, one column per value;
    of the first value the median over all processes, of the others that times their ratio. Raises AbError,
    even if one run failed.
    """
    parts, ratios, base, loops = [], {}, [], {}
    for value in values[1:]:
        samples = compare(target, knob, (values[0], value), blocks, **how)
        failed = samples.loc[samples["status"] != "ok", "error"]
        if len(failed):
            raise AbError(f"{target.label}, {knob}={value}: {failed.iloc[0]}")
        if "phases" in json.loads(samples["extra"].iloc[0]):
            samples = by_phase(samples)
        parts.append(samples.assign(case=[(case, value) for case in samples["case"]]))
        loops |= samples.attrs["loops"]
        wide = samples.pivot(index=["case", "block"], columns="allocator", values="cpu_ns_per_op")
        base.append(wide[f"{knob}={values[0]}"])
        ratios[str(value)] = wide[f"{knob}={value}"] / wide[f"{knob}={values[0]}"]
        ratios.setdefault(str(values[0]), wide[f"{knob}={values[0]}"] * 0 + 1)
    whole = pd.concat(parts, ignore_index=True)
    whole.attrs = {"baseline": f"{knob}={values[0]}", "loops": loops}
    table = judge(whole)
    table["setting"], table["case"] = table["case"].str[1], table["case"].str[0]
    costs = pd.DataFrame(ratios).rename_axis(["phase", "block"])
    first = pd.concat(base).groupby("case").median().rename_axis("phase")
    costs = costs.mul(first, axis=0, level="phase")
    return table, pd.concat({target.label: costs}, names=["case"])


def steady(names, knob, values, seconds, blocks=10, env=(), wait_s=0.0):
    """`judge`'s rows for each workload of `names`: its values take turns in processes of about `seconds` s.

    A verdict is of its workload alone; p_adjusted is corrected for their number. A side that decided too
    little to be judged by is kept, and marked FEW FIRINGS.
    """
    tables = []
    for name in names:
        target = lasting(seconds, targets.workload(name), wait_s)
        samples = compare(target, knob, values, blocks, env=env, allow_few=True, wait_s=wait_s)
        tables.append(judge(samples))
    table = pd.concat(tables, ignore_index=True)
    return table.assign(p_adjusted=stats.adjust(table["p"].astype(float)))


def lasting(seconds, target, wait_s=0.0):
    """The Target, a workload of the bench, at the scale at which a run takes so many seconds, by trials.

    The last trial takes TRIAL_S at least (or `seconds`, if less). The scale is a whole number, because few
    iterations cannot be divided finely. Raises AbError.
    """

    def scaled(scale):
        return targets.Target((*target.arguments, "--scale", str(scale)), True, target.label)

    if not 0 < seconds < targets.TIMEOUT_S:
        raise AbError(f"{seconds} seconds a run: must be above 0 and below {targets.TIMEOUT_S:.0f}")
    scale, took, enough = 1, 0.0, min(seconds, TRIAL_S)
    with bench_slot(f"trial of {target.label}", wait_s):
        while took < enough:
            scale = ceil(scale * enough / took) if took else scale
            trial, _ = targets.record(scaled(scale), side("off"))
            if trial["status"] != "ok":
                raise AbError(f"workload {target.label}: {trial['error']}")
            took = trial["elapsed_ns"] / 1e9
    return replace(scaled(ceil(scale * seconds / took)), seconds=seconds)


# ---------------------------------------------------------------- command line


def add_toggle(sub):
    sub.add_argument(
        "turns", metavar="KNOB=A,B", help="A, B: whole numbers, such as 64 or 64M; for ACE ace_enabled=0,1"
    )
    targets.add_common(sub)
    sub.add_argument("--workload", required=True, help="workload of the bench, or path of a trace")
    sub.add_argument("--seconds", type=float, help="length of a run, found by trials; in place of --scale")
    sub.set_defaults(run=_run)


def _run(args):
    knob, _, values = args.turns.partition("=")
    values = [WHOLE.fullmatch(value) for value in values.split(",")]
    if len(values) != 2 or not all(values):
        raise AbError(f"{args.turns}: must be KNOB=A,B, a knob and two whole numbers")
    runner.refuse_few(args.blocks)
    if args.metric == "memory":
        raise AbError(
            "--metric memory: both values share one process and its peak; hakmem ab tells them apart"
        )
    if args.seconds is not None and args.scale is not None:
        raise AbError("--scale and --seconds both say how long a run is: give one")
    target = targets.chosen_workload(args, runner.workloads(build.build()))
    if args.seconds is not None:
        target = lasting(args.seconds, target)
    numbers = [int(value[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[value[2].lower()] for value in values]
    env = targets.intervals(args)
    how = (knob, numbers, args.blocks, args.seed, env, args.allow_few)
    memory = ["cached_kb"]  # both sides have one process, and its peak
    judged(lambda: compare(target, *how), lambda samples: show(target, samples, args, memory))
