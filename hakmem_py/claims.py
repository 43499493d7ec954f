"""What was published before, and what is left of it here.

published.csv holds every figure of five reports, one row each. claims.toml says which pair each figure
belongs to, and which experiment repeats that pair: another machine's figures cannot be repeated, its ratios
can.
"""

import functools
import re
import tomllib
from collections import Counter
from dataclasses import dataclass, replace
from math import nan

import numpy as np
import pandas as pd

from . import ROOT, stats

PUBLISHED = ROOT / "data" / "published"
WORKLOADS = {  # the published tests by the names of our workloads
    "test1_lifo": "lifo",
    "test2_fifo": "fifo",
    "test3_random_free": "random",
    "test4_interleaved": "interleaved",
    "test6_long_short_lived": "longlived",
}
FIGURE = ["report", "experiment", "subject", "metric", "value", "unit"]  # that each row must have
NO_SAMPLES = "no samples yet"


@dataclass(frozen=True)
class Claim:
    """A published pair. claimed: work of the subject over work of the other side in the same time."""

    id: str
    row: tuple  # report, experiment, metric, subject: a row of published.csv
    text: str
    value: float  # as it was published
    claimed: float
    group: dict  # its table of claims.toml
    case: str
    reference_case: str
    candidate: str


def figures():
    """All published figures: report, experiment, subject, metric, value, unit, stdev, note. Raises ValueError
    where a row is not whole."""
    path = PUBLISHED / "published.csv"
    try:
        rows = pd.read_csv(path, dtype={"value": float, "stdev": float})
        torn = rows[FIGURE].isna().any(axis=1)
        if not torn.any():
            return rows
        why = f"row {torn.idxmax() + 1} is not whole"
    except (ValueError, KeyError) as error:  # of an empty file, of bytes that are no text; a column
        why = error
    raise ValueError(f"{path} cannot be read ({why}): restore it by git checkout -- {path}")


def published(report, experiment, metric):
    """The published values of one experiment by subject, in the unit of the report. Raises KeyError."""
    rows = figures().query("report == @report and experiment == @experiment and metric == @metric")
    if rows.empty:
        raise KeyError(f"nothing was published as {report}, {experiment}, {metric}")
    return rows.set_index("subject")["value"]


def published_ranks():
    """Ranks by published median (P1): case, allocator, rank, median_ns, spread_percent (stdev / median)."""
    rows = figures().query("report == 'P1'")
    names = {"experiment": "case", "subject": "allocator", "rank": "rank", "value": "median_ns"}
    ranks = rows.assign(rank=rows.groupby("experiment")["value"].rank())[list(names)].rename(columns=names)
    return ranks.assign(spread_percent=100 * rows["stdev"] / rows["value"])


# ---------------------------------------------------------------- the pairs


@functools.cache
def claims():
    """Every Claim, in the order of published.csv, as a tuple."""
    path = PUBLISHED / "claims.toml"
    try:
        groups = tomllib.loads(path.read_text(encoding="utf-8"))["group"]
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    rows = figures()
    found = [claim for _, row in rows.iterrows() for group in groups if (claim := _claim(row, group, rows))]
    for group in groups:
        if not any(claim.group is group for claim in found):
            which = f"{group['report']}, {group.get('experiment', 'any experiment')}"
            raise ValueError(
                f"{PUBLISHED / 'published.csv'} has no figure of {which}, which {path.name} judges"
            )
    several = {name for name, n in Counter(claim.id for claim in found).items() if n > 1}
    return tuple(
        replace(claim, id=f"{claim.id} / {claim.group['against']}") if claim.id in several else claim
        for claim in found
    )


def _claim(row, group, rows):
    """The claim that this group makes about this row; None where it is about other rows."""
    wanted = {key: group.get(key, row[key]) for key in ("report", "experiment", "subject", "metric")}
    if any(row[key] != want and row[key] not in np.atleast_1d(want) for key, want in wanted.items()):
        return None
    words = {"experiment": row["experiment"], "workload": WORKLOADS.get(row["experiment"], "")}
    words |= {"size": _digits(row["metric"]), "number": _digits(row["subject"])}
    candidate = group.get("candidate", row["subject"])
    return Claim(
        id=_name(row, rows),
        row=tuple(row[["report", "experiment", "metric", "subject"]]),
        text=_text(row, group),
        value=row["value"],
        claimed=_ratio(row, group, rows),
        group=group,
        case=group.get("case", "").format(**words),
        reference_case=group.get("reference_case", group.get("case", "")).format(**words),
        candidate=candidate[row["subject"]] if isinstance(candidate, dict) else candidate,
    )


def _name(row, rows):
    """A short id, unique but for the pair's other side; it has the metric only where there are several."""
    kin = rows[(rows["report"] == row["report"]) & (rows["experiment"] == row["experiment"])]
    metric = row["metric"].removeprefix("throughput_") if kin["metric"].nunique() > 1 else ""
    return " ".join(filter(None, (row["report"], row["experiment"], row["subject"], metric)))


def _digits(text):
    return next(iter(re.findall(r"\d+", text.partition("_")[2])), "")


def _text(row, group):
    figure = f"{row['value']:g} {row['unit']}"
    return f"{row['subject']} {figure}" + (f" against {group['against']}" if "against" in group else "")


def _ratio(row, group, rows):
    """Work of the subject over work of the other side; nan where there is none."""
    other = rows[
        (rows[["report", "experiment", "metric"]] == row[["report", "experiment", "metric"]]).all(axis=1)
    ]
    other = other[other["subject"] == group.get("against")]["value"]
    if other.empty:
        return nan
    ratio = float(other.iloc[0]) / row["value"]
    return ratio if row["unit"] in ("ns", "ps") else 1 / ratio


# ---------------------------------------------------------------- the verdicts


def judge(samples, counted=None):
    """One row per claim: claim, text, claimed, hypothesis, ratio, low, high, n, cv, p_value, verdict, why,
    samples, p_adjusted.

    samples (column): the experiment. p_value: of claims of a difference, that there is none; p_adjusted: by
    Holm, among all of these that were measured; a verdict is of its claim alone. samples: {experiment:
    DataFrame}; claims of absent experiments stay undecided. counted: (system calls, operations) after the
    warm-up, for the claims about rates.
    """
    table = pd.DataFrame([_judge(claim, samples, counted) for claim in claims()])
    return table.assign(p_adjusted=stats.adjust(table["p_value"]))


def _judge(claim, samples, counted):
    group, folder = claim.group, claim.group.get("repeat", "")
    row = {"claim": claim.id, "text": claim.text, "claimed": claim.claimed, "samples": folder}
    row |= {"hypothesis": group.get("hypothesis", "difference")}
    row |= {"ratio": nan, "low": nan, "high": nan, "n": 0, "cv": nan, "p_value": nan}
    if "void" in group or "untestable" in group:
        kind = "void" if "void" in group else "not testable here"
        return row | {"verdict": kind, "why": group.get("void") or group["untestable"]}
    kinds = {"rate": _judge_rate, "spread": _judge_spread}
    return row | kinds.get(group.get("hypothesis"), _judge_ratio)(claim, samples.get(folder), counted)


def _costs(table, case, allocator):
    """Costs by host and block of one side, empty where nothing was measured."""
    if table is None:
        return pd.Series(dtype=float)
    rows = table[(table["case"] == case) & (table["allocator"] == allocator) & (table["status"] == "ok")]
    return rows.set_index(["host", "block"])[table.attrs.get("metric", "cpu_ns_per_op")]


def _estimate(claim, table):
    """Reference time / candidate time; None where there are no samples."""
    reference = _costs(table, claim.reference_case, claim.group["reference"])
    candidate = _costs(table, claim.case, claim.candidate)
    pairs = pd.concat([reference, candidate], axis=1, join="inner").to_numpy()
    return stats.ratio(pairs[:, 0], pairs[:, 1]) if len(pairs) else None


def _lost(table, *sides):
    """How many runs of these (case, allocator), in any layout, failed: a text for each, to stand beside a
    verdict, which is of the others."""
    said = []
    for case, allocator in dict.fromkeys(sides) if table is not None else ():
        label = table["allocator"].str.partition(", layout ")[0]
        runs = table[(table["case"] == case) & (label == allocator)]
        failed = (~runs["status"].isin(["ok", "missing"])).sum()
        said += [f"{failed} of {len(runs)} runs of {allocator} in {case} failed"] if failed else []
    return said


def _judge_ratio(claim, table, _counted):
    group, e = claim.group, _estimate(claim, table)
    lost = _lost(table, (claim.reference_case, group["reference"]), (claim.case, claim.candidate))
    if e is None:
        return {"verdict": "undecided", "why": "; ".join(lost) or NO_SAMPLES}
    if group.get("unit") == "build":
        layouts = [found for part in stats.by_layout(table) if (found := _estimate(claim, part))]
        if len(layouts) < 2:
            return {"verdict": "undecided", "why": "the build as the unit needs two layouts or more"}
        e = stats.over_builds([one.value for one in layouts], sum(one.n for one in layouts))
    options = {key: group[key] for key in ("hypothesis", "margin") if key in group}
    found = stats.claim_verdict(claim.claimed, e, claimed_n=group.get("runs"), **options)
    needs = [f"needs n = {found.needs_n}"] if found.needs_n else []
    measured = {"ratio": e.value, "low": e.low, "high": e.high, "n": e.n, "cv": e.cv_b}
    measured |= {"p_value": e.p_value} if options.get("hypothesis", "difference") == "difference" else {}
    why = [found.text.partition(": ")[2], *needs, *lost]
    return measured | {"verdict": found.kind, "why": "; ".join(why)}


def _judge_spread(claim, table, _counted):
    """A coefficient of variation against the limit `margin` percent."""
    costs = _costs(table, claim.case, claim.candidate)
    lost = _lost(table, (claim.case, claim.candidate))
    if len(costs) < stats.MIN_PAIRS:
        return {"verdict": "undecided", "why": "; ".join(lost) or NO_SAMPLES}
    limit = claim.group["margin"]
    cv, low, high = (100 * value for value in stats.cv_interval(costs))
    kind = "replicated" if high <= limit else "not replicated" if low > limit else "undecided"
    why = [f"CV {stats.bracketed(cv, low, high, '.1f')} %, limit {limit:g} %", *lost]
    return {"verdict": kind, "n": len(costs), "why": "; ".join(why)}


def _judge_rate(claim, _table, counted):
    if counted is None:
        return {"verdict": "not testable here", "why": "counted only where the allocator can be run"}
    found = stats.rate_verdict(*counted, claim.value / claim.group["per"])
    return {"verdict": found.kind, "n": counted[1], "why": found.text}
