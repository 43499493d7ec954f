"""A/B on a workload of the bench or on any program: ACE off, on, any policy, any fixed arm, placebos, peers.

Every block runs every side once, in random order, one process per run; a side is compared with the baseline
by paired log ratios. What a side is stands in `sides`, how it runs in `targets`, what is said in `standings`.
"""

import random
import sys

import pandas as pd

from . import build, instructions, peers, provenance, runner
from .blocks import gathered, judged, running
from .progress import Progress
from .sides import ARMS, SIDES, AbError, Side, different, learner, side  # noqa: F401
from .slot import bench_slot
from .standings import judge, refuse, show  # noqa: F401
from .targets import (  # noqa: F401  re-exported, as are sides and standings
    SHAPE,
    Target,
    add_common,
    chosen_workload,
    intervals,
    phased,
    program,
    record,
    recovery,
    settled,
    workload,
)

# ---------------------------------------------------------------- the comparison


def compare(target, sides, blocks=10, seed=1, env=(), allow_few=False, wait_s=0.0):
    """Samples, one row per run: the columns of `record`, and case, block, load1.

    sides: made by `side`, the baseline first. Each side first makes one trial run, which is not counted. One
    whose trial fails, or that this machine lacks, is left out, and named on stderr and in attrs["left_out"]
    ({side: why}). Raises AbError where it is the baseline or nothing would be left to compare with it, and,
    unless allow_few, where a learner decides fewer than 100 times.
    """
    rows, left_out, order = [], {}, random.Random(seed)
    with bench_slot(f"ab of {target.label}", wait_s):
        for one in sides:
            row = _trial(target, one, env)
            if row["status"] != "ok" and one != sides[0] and len(sides) - len(left_out) > 2:
                print(f"side {one.label} is left out: {row['error']}", file=sys.stderr)
                left_out[one.label] = row["error"]
            else:
                refuse(target, one, row, allow_few, env)
        sides = [one for one in sides if one.label not in left_out]
        progress = Progress(f"ab of {target.label}", blocks * len(sides))
        with running(rows, sides, progress):
            for block in range(blocks):
                for one in order.sample(sides, len(sides)):
                    row, _ = record(target, one, env)
                    rows.append(row | {"case": target.label, "block": block, "load1": provenance.load1()})
                    progress.step(block)
    samples = gathered(rows, sides)
    samples.attrs["left_out"] = left_out
    return samples


def _trial(target, one, env):
    try:
        return record(target, one, env)[0]
    except AbError as error:  # a peer that is not here
        return {"status": "missing", "error": str(error)}


def overhead():
    """Instructions of one call on cached blocks, with ACE off, looking on (frozen) and compiled out.

    Columns ace, instructions_per_call, ratio (to off).
    """
    quiet = {"HAKMEM_ACE_ENABLED": "1", "HAKMEM_ACE_FROZEN": "1", "HAKMEM_ACE_FAST_INTERVAL_MS": "60000"}
    ways = {"off": ("release", {}), "on, frozen": ("release", quiet), "compiled out": ("noace", {})}
    fixed = {"bench": build.build().bench, "workload": "lifo", "n1": 500, "n2": 3000, "first": True}
    counts = instructions.each(
        {
            label: fixed | {"env": env | {"LD_PRELOAD": str(build.build(variant).library)}}
            for label, (variant, env) in ways.items()
        }
    )
    table = pd.DataFrame(counts.items(), columns=["ace", "instructions_per_call"])
    return table.assign(ratio=table["instructions_per_call"] / table["instructions_per_call"].iloc[0])


# ---------------------------------------------------------------- command line


def add_ab(sub):
    sub.usage = "hakmem ab [options] --workload NAME | hakmem ab [options] -- PROGRAM [ARGUMENTS]"
    sub.add_argument(
        "--sides",
        nargs="+",
        default=list(SIDES),
        metavar="SIDE",
        help=f"what to compare, the baseline first; default {' '.join(SIDES)}; "
        "also POLICY, slow:POLICY, fixed:BLOCKS, KNOB=VALUE[,KNOB=VALUE], hakmem, "
        + ", ".join(peers.FOREIGN),
    )
    sub.add_argument("--arm", type=int, help="number of the capacity that policies start from")
    add_common(sub)
    sub.add_argument("--workload", help="workload of the bench, or path of a trace, instead of a program")
    sub.add_argument("program", nargs="*", help="the program and its arguments, after --")
    sub.set_defaults(run=_run)


def _run(args):
    if bool(args.workload) == bool(args.program):
        raise AbError("give either a workload of the bench (--workload NAME) or -- PROGRAM ARGUMENTS")
    shape = [f"--{name}" for name in SHAPE if getattr(args, name) is not None]
    if args.program and shape:
        raise AbError(f"{shape[0]} is for workloads only: a program takes its own arguments, after its name")
    sides = different(args.sides, args.arm)
    runner.refuse_few(args.blocks)
    target = (
        program(*args.program) if args.program else chosen_workload(args, runner.workloads(build.build()))
    )
    how = (args.blocks, args.seed, intervals(args), args.allow_few)
    judged(lambda: compare(target, sides, *how), lambda samples: show(target, samples, args))
