"""Calibrates this machine: experiment 01_ruler measured, judged, recorded."""

import json

from . import calibration, runner

EXPERIMENT = "01_ruler"


def calibrate(quick=True, **choice):
    """(samples, calibration) of this machine, recorded; measures what is missing. choice: as for ensure.

    With reference=True those of the machine that made the reference samples, and nothing is recorded.
    """
    samples = runner.ensure(EXPERIMENT, quick=quick, **choice)
    result = calibration.judge(samples)
    if not choice.get("reference"):
        calibration.record(result)
    return samples, result


def add_calibrate(subparsers):
    """Adds `calibrate`; exit status 1 where the machine fails."""
    sub = subparsers.add_parser("calibrate")
    sub.add_argument("--quick", action="store_true", help="a check of a minute, too short to certify")
    sub.add_argument("--blocks", type=int, help="randomised blocks of three runs")
    sub.add_argument("--json", action="store_true", help="print the whole calibration")
    sub.set_defaults(run=_run)
    return sub


def _run(args):
    samples, result = calibrate(quick=args.quick, blocks=args.blocks)
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        rules = calibration.rules(samples, samples.attrs["metric"])
        print(rules.to_string(index=False, float_format=lambda value: f"{value:.3f}"))
        print(calibration.calibration_note())
    return 1 if result["complaints"] else 0
