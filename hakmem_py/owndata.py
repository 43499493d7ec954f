"""Your own numbers judged: a CSV file of costs, in pairs, through the same estimates and verdicts as ours.

The file has one of two forms. Wide: columns a and b, one pair per row. Long: columns block, variant, value,
one measurement per row, each block holding each variant once. Values are costs (time, bytes: smaller is
better); other columns are ignored.
"""

import argparse
import csv
import json
import sys
from dataclasses import replace
from math import expm1, isfinite, log1p, nan
from pathlib import Path

import numpy as np

from . import stats

DIFFER = 0.1  # of the pairs; with fewer the steps of the values decide nothing


class DataError(ValueError):
    """A file that cannot be judged: one line naming the line or block, and what would mend it."""


def add_compare(parser):
    """`compare FILE`; exit status 0 whatever the verdict, 2 where the file cannot be judged."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, __doc__
    add = parser.add_argument
    add("file", help="CSV with columns a, b or block, variant, value")
    add("--baseline", metavar="NAME", help="what the others would replace (default: a, or the first variant)")
    add("--threshold", type=_share, default=stats.RUN_THRESHOLD, help="gain worth a GO (default 1%%)")
    add("--margin", type=_share, default=stats.MARGIN, help="smaller differences are none (default 1%%)")
    add("--json", action="store_true", help="print one JSON object per comparison, a line each")
    parser.set_defaults(run=run)


def run(args):
    try:
        answers = judge(read(args.file), args.baseline, args.threshold, args.margin)
    except ValueError as error:  # of `read`, or of estimates that cannot be made of such costs
        print(f"hakmem compare: {args.file}: {error}", file=sys.stderr)
        return 2
    for answer in answers:
        print(json.dumps(answer) if args.json else describe(answer))
    return 0


def judge(costs, baseline=None, threshold=stats.RUN_THRESHOLD, margin=stats.MARGIN):
    """One answer (dict) for each variant but the baseline; costs: {name: array (n,)}, paired by position.

    The ratio is variant / baseline, as everywhere: 0.98 costs 2 % less. Several are a family (Holm).
    """
    baseline = baseline or next(iter(costs))
    if baseline not in costs:
        raise DataError(f"there is no {baseline!r} to be the baseline; the file has {', '.join(costs)}")
    estimates = {name: stats.ratio(x, costs[baseline]) for name, x in costs.items() if name != baseline}
    gains = [np.log(costs[baseline] / costs[name]) for name in estimates]
    family = stats.in_family([stats.tests(d, threshold, margin) for d in gains])
    answers = []
    for (name, e), of_family in zip(estimates.items(), family, strict=True):
        judged = stats.verdict(stats.inverse(e), threshold, margin, family=of_family)
        judged = _resolved(judged, np.abs(np.log(costs[name] / costs[baseline])), margin)
        answers.append({
            "ratio_of": f"{name} / {baseline}", "reference": baseline, "candidate": name, "ratio": e.value,
            "low": e.low, "high": e.high, "confidence": e.confidence, "n": e.n,
            "wilcoxon_p": e.p_value, "adjusted_p": of_family["NO-GO"][1],
            "tost_p": stats.tost(costs[name], costs[baseline], margin), "margin": margin,
            "cliffs_delta": e.cliffs_delta, "noise_sd": e.noise_sd, "autocorrelation": e.autocorrelation,
            "cv_reference": e.cv_b, "cv_candidate": e.cv_a,
            "robust_cv_reference": e.robust_cv_b, "robust_cv_candidate": e.robust_cv_a,
            "threshold": threshold, "verdict": judged.kind, "needs_n": judged.needs_n, "text": judged.text,
        })  # fmt: skip
    return answers


def _resolved(judged, differences, margin):
    """The verdict, but no NEUTRAL where values come in steps coarser than the margin: then many pairs tie,
    whatever their difference. differences: absolute log ratios, shape (n,)."""
    steps = differences[differences > 0]
    if judged.kind != "NEUTRAL" or len(steps) < DIFFER * len(differences) or len(steps) == len(differences):
        return judged
    if steps.min() <= log1p(margin):
        return judged
    ties = f"many pairs tie, and the others differ by {expm1(steps.min()):.2%} or more"
    why = f"{ties}, which is above the margin of {margin:.2%}: give more digits"
    return replace(judged, kind="UNDECIDED", needs_n=None, text=f"UNDECIDED: {why}")


def describe(x):
    """The answer as a small table for people."""
    faster = x["candidate"] if x["ratio"] < 1 else x["reference"]
    seen = f"{faster} is faster" if x["adjusted_p"] <= 1 - x["confidence"] else "no difference seen"
    interval = f"{stats.bracketed(x['ratio'], x['low'], x['high'], '.4f')} at {x['confidence']:.0%}"

    def spread(side):
        return f"{x[side]} {x['cv_' + side]:.1%} (robust {x['robust_cv_' + side]:.1%})"

    rows = [
        ("ratio", f"{interval}, Hodges-Lehmann; {seen}"),
        ("Wilcoxon", f"p = {x['wilcoxon_p']:.3g}, adjusted {x['adjusted_p']:.3g}"),
        ("TOST", f"p = {x['tost_p']:.3g} for a difference within {x['margin']:.2%}"),
        ("Cliff's delta", f"{x['cliffs_delta']:+.2f}"),
        ("CV", f"{spread('reference')}, {spread('candidate')}; paired ratio {x['noise_sd']:.1%}"),
        ("autocorrelation", f"{x['autocorrelation']:+.2f} (lag 1)"),
        ("verdict", f"on {x['candidate']}: {x['text']}"),
    ]
    return "\n".join([f"{x['ratio_of']}, {x['n']} pairs", *(f"  {name:16} {text}" for name, text in rows)])


# ---------------------------------------------------------------- reading


def read(path):
    """{name: costs, shape (n,)} of a CSV file in either form. Raises DataError."""
    rows = _rows(path)
    columns = rows[0][1]
    if {"a", "b"} <= columns.keys():
        costs = {name: np.array([_cost(row, name, line) for line, row in rows]) for name in ("a", "b")}
    elif {"block", "variant", "value"} <= columns.keys():
        costs = _pivot(rows)
    else:
        found = ", ".join(columns)
        raise DataError(f"needs the columns a, b or block, variant, value; it has {found}")
    n = len(next(iter(costs.values())))
    if n < stats.MIN_PAIRS:
        raise DataError(f"{n} pairs are too few: at least {stats.MIN_PAIRS} are needed for a 95 % interval")
    return costs


def _rows(path):
    """(line number, {column: text}) of every row that is not blank."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            lines = [
                (reader.line_num, [cell.strip() for cell in row])
                for row in reader
                if any(map(str.strip, row))
            ]
    except UnicodeDecodeError:
        raise DataError("is no UTF-8 text: save it as UTF-8, with commas between the fields") from None
    except (OSError, csv.Error) as error:
        raise DataError(f"cannot be read as CSV: {getattr(error, 'strerror', None) or error}") from None
    if len(lines) < 2:
        raise DataError("holds no data; needs a line of column names, then one of numbers each")
    header = lines[0][1]
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            raise DataError(f"separates by {name}: write commas instead, and points in numbers")
    twice = [name for name in header if name and header.count(name) > 1]
    if twice:
        raise DataError(f"the column {twice[0]} occurs twice; give each a name of its own")
    for line, row in lines[1:]:
        if len(row) != len(header):
            raise DataError(f"line {line} has {len(row)} fields, the header {len(header)}")
    return [(line, dict(zip(header, row, strict=True))) for line, row in lines[1:]]


def _number(text):
    if "_" in text:  # Python alone takes 1_0 for 10
        raise ValueError(text)
    return float(text)


def _cost(row, column, line):
    try:
        value = _number(row[column])
    except ValueError:
        raise DataError(f"line {line}: {column} is {row[column]!r}, not a number") from None
    if not (isfinite(value) and value > 0):
        raise DataError(f"line {line}: {column} is {row[column]}; costs must be finite and above 0")
    return value


def _pivot(rows):
    """{variant: costs in the order of the blocks} of a long file; every block holds every variant once."""
    cells = {}
    for line, row in rows:
        key = row["block"], row["variant"]
        if "" in key:
            raise DataError(f"line {line}: {'block' if key[1] else 'variant'} is empty; name it in every row")
        if key in cells:
            raise DataError(f"line {line}: block {key[0]} has a second value of {key[1]}; it needs one")
        cells[key] = _cost(row, "value", line)
    blocks, variants = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    if len(variants) < 2:
        raise DataError(f"holds the one variant {variants[0]!r}; two are needed to compare")
    for block in blocks:
        for variant in variants:
            if (block, variant) not in cells:
                raise DataError(f"block {block} has no value of {variant}; drop or complete the block")
    return {variant: np.array([cells[block, variant] for block in blocks]) for variant in variants}


def _share(text):
    """ "1%" or "0.01" as 0.01; refuses what would be 100 % or more."""
    try:
        value = _number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share; write 1% or 0.01")
    return value
