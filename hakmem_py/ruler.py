"""Measuring until there is a verdict: an experiment in as few blocks as it takes, a machine's calibration."""

import json

from . import calibration, runner, stats
from .spec import SpecError, load_spec

EXPERIMENT = "01_ruler"


def calibrate(quick=True, **choice):
    """(samples, calibration) of this machine, recorded; measures what is missing. choice: as for ensure.

    With reference=True those of the machine that made the reference samples, and nothing is recorded.
    """
    blocks = choice.get("blocks")
    if blocks and blocks <= calibration.LEAST_BLOCKS:
        raise ValueError(f"blocks = {blocks}: a calibration needs more than {calibration.LEAST_BLOCKS}")
    samples = runner.ensure(EXPERIMENT, quick=quick, **choice)
    result = calibration.judge(samples)
    if not choice.get("reference"):
        calibration.record(result)
    return samples, result


def decide(name, **choice):
    """(samples, table) of an experiment, measured from look to look until all verdicts are in.

    The looks are those of its specification, and the last one ends it: what is undecided then stays so.
    Raises SpecError where it fixes no looks, or has one side only.
    """
    experiment = load_spec(name)
    if not experiment.looks:
        raise SpecError(f"{experiment.name}: fixes no looks; add looks = [25, 100, 400] to [experiment]")
    if len(experiment.allocators) < 2:
        raise SpecError(f"{experiment.name}: has one side, so nothing to decide; add an [[allocator]]")
    for blocks in experiment.looks:
        samples = runner.ensure(name, quick=False, blocks=blocks, **choice)
        table = stats.compare(samples, looks=experiment.looks)
        if "UNDECIDED" not in set(table["verdict"]):
            break
    return samples, table


def add_decide(sub):
    """`decide`; exit status 1 where something stays undecided, or a case without a pair."""
    sub.add_argument("experiment", help="name of a spec in data/specs, or path of one, that fixes its looks")
    sub.set_defaults(run=_decide)


def _decide(args):
    samples, table = decide(args.experiment)
    shown = ["case", "allocator", "ratio", "low", "high", "n", "verdict", "needs_n", "status"]
    print(f"{samples.attrs['title']}: should it replace {samples.attrs['baseline']}?")
    print(table[shown].to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    lost = runner.tell_failed(samples, table)
    return 1 if lost or "UNDECIDED" in set(table["verdict"]) else 0


def add_calibrate(sub):
    """`calibrate`; exit status 1 where the machine fails."""
    sub.add_argument("--quick", action="store_true", help="a check of a minute, too short to certify")
    sub.add_argument("--blocks", type=int, help="randomised blocks of three runs")
    sub.add_argument("--json", action="store_true", help="print the whole calibration")
    sub.set_defaults(run=_run)


def _run(args):
    samples, result = calibrate(quick=args.quick, blocks=args.blocks)
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        rules = calibration.rules(samples, samples.attrs["metric"])
        print(rules.to_string(index=False, float_format=lambda value: f"{value:.3f}"))
        print(calibration.calibration_note())
    return 1 if result["complaints"] else 0
