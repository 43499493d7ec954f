"""Tables of samples judged: comparisons, geometric means, rates, verdicts on published claims.

Knows nothing of how the samples were made. The arithmetic of one comparison is in `estimates`, and available
here too, so that a notebook needs only the name `stats`.
"""

from dataclasses import replace
from math import isfinite, log, nan, sqrt

import numpy as np
import pandas as pd
from scipy import stats as sps

from .calibration import calibration_note  # noqa: F401  quoted by every report
from .estimates import (  # noqa: F401  all re-exported
    BUILD_THRESHOLD,
    CONFIDENCE,
    MARGIN,
    MIN_PAIRS,
    POWER,
    RUN_THRESHOLD,
    Estimate,
    Verdict,
    adjust,
    alternated,
    autocorrelation,
    bracketed,
    cliffs_delta,
    cv,
    cv_interval,
    equivalent,
    inverse,
    look_confidences,
    needed_pairs,
    over_builds,
    plan,
    ratio,
    robust_cv,
    said,
    sequential,
    tost,
    verdict,
)
from .family import in_family, tests, tests_over_builds

FASTEST_NS = 0.2  # a call, half a pair, is a cycle or more: a smaller figure means that the work was removed
NOT_MEASURED = "not measured"
COMPARED = (
    "ratio", "low", "high", "n", "p", "p_adjusted", "cv", "cv_baseline", "cliffs_delta", "autocorrelation",
    "load", "median_ns", "baseline_ns", "ratio_low_quantile", "status", "error", "verdict", "needs_n",
    "design_effect",
)  # fmt: skip
OVER_BUILDS = (
    "ratio", "low", "high", "builds", "n", "smallest", "largest", "median_ns", "p_adjusted", "verdict",
    "needs_builds", "status",
)  # fmt: skip


def compare(samples, baseline=None, metric=None, correction="holm", looks=()):
    """One row per case and allocator: allocator / baseline, paired by block (and host), and what judges it.

    samples: rows as the store keeps them. ratio > 1 means that the baseline is faster; `verdict` answers
    whether the row's allocator should replace the baseline (GO: yes; NO-GO: it is slower). Each verdict also
    needs an adjusted p of 5 % at most, for exactly what it claims. A failed run is counted in `status` and
    forbids a verdict; an allocator that never ran keeps its row, with the reason in `error`. Raises
    ValueError where the baseline has no samples at all. looks: numbers of blocks at which verdicts may be
    taken while samples still come in (see `sequential`; the family shares its error equally); the other
    columns are of all samples so far. design_effect: see `geometric_mean`, which is widened by it.
    """
    baseline = baseline or samples.attrs.get("baseline")
    metric = metric or samples.attrs.get("metric", "cpu_ns_per_op")
    used = {"case", "allocator", "host", "block", "status", "error", "load1", metric}
    samples = samples[[name for name in samples if name in used]]  # pandas copies all of it at each step
    samples.attrs = {}  # this too
    samples = timed(samples, metric)
    allocators = list(samples["allocator"].unique())
    if baseline not in allocators:
        raise ValueError(
            f"baseline {baseline!r} has no samples; allocators: {', '.join(map(str, allocators))}"
        )
    rows = []
    for case, group in samples.groupby("case", sort=False):
        sides = dict(iter(group.groupby("allocator", sort=False)))
        for name in allocators:
            if name != baseline and name in sides:
                row = _compare_one(sides[name], sides.get(baseline), metric, bool(looks))
                rows.append({"case": case, "allocator": name, **row})
    table = pd.DataFrame(rows, columns=["case", "allocator", *COMPARED])
    table["p_adjusted"] = adjust(table["p"].astype(float), correction)
    effects = {name: _design_effect([row for row in rows if row["allocator"] == name]) for name in allocators}
    table["design_effect"] = table["allocator"].map(effects)
    made = {i: row["pairs"] for i, row in enumerate(rows) if "pairs" in row}
    family = in_family([tests(np.log(b / a)) for a, b in made.values()], correction)
    for (i, (a, b)), of_family in zip(made.items(), family, strict=True):
        if looks:
            judged = sequential(b, a, looks, confidence=1 - (1 - CONFIDENCE) / len(made))
        else:
            judged = verdict(inverse(rows[i]["estimate"]), family=of_family)
        forbidden = rows[i]["verdict"]  # by runs that failed, which more blocks do not mend
        table.loc[i, ["verdict", "needs_n"]] = forbidden or judged.kind, None if forbidden else judged.needs_n
    return table


def family_note(table):
    """Why rows of a `compare` table have no verdict though their interval excludes 1; "" where all have."""
    beside = (table["low"] > 1) | (table["high"] < 1)
    stuck = table[beside & table["needs_n"].notna() & (table["p_adjusted"] > 1 - CONFIDENCE)]
    if stuck.empty:
        return ""
    family, n = table["p"].notna().sum(), stuck["n"].max()
    return (
        f"UNDECIDED though the interval excludes 1: among {family} comparisons a p must be smaller than 5 %, "
        f"and {n} blocks reach {0.5 ** (n - 1):.2g} at best; needs_n says how many would do"
    )


def by_layout(samples):
    """[samples of one layout], the layout's number taken off the labels: "pgo, layout 2" becomes "pgo".

    A label without a number is of the first layout; a side that is not in every layout is left out.
    """
    parts = samples["allocator"].str.extract(r"^(?P<side>.*?)(?:, layout (?P<layout>\d+))?$").fillna("0")
    layouts = parts.groupby("side")["layout"].nunique()
    whole = parts["side"].map(layouts) == layouts.max()
    renamed = samples.assign(allocator=parts["side"])[whole]
    return [part for _, part in renamed.groupby(parts["layout"])]


def compare_builds(layouts, baseline):
    """As `compare`, but with the build as the unit. layouts: samples of each layout of the code.

    Columns case, allocator, ratio, low, high, builds, n (pairs of all builds), smallest and largest (ratio of
    a build), median_ns, p_adjusted (Holm), verdict, needs_builds (at which Student's law, whose intervals are
    wider with few builds, decides such a ratio with POWER), status. A single build is not judged.
    """
    tables = pd.concat([compare(samples, baseline) for samples in layouts])
    rows, made = [], {}
    for (case, name), group in tables.groupby(["case", "allocator"], sort=False):
        ratios = group["ratio"].dropna()
        status = next((text for text in group["status"] if text != "ok"), "ok")
        row = {"case": case, "allocator": name, "builds": len(ratios), "verdict": NOT_MEASURED}
        e = over_builds(ratios, int(group["n"].sum())) if len(ratios) > 1 else None
        if e:
            row |= {"ratio": e.value, "low": e.low, "high": e.high, "n": e.n, "p_adjusted": e.p_value}
            row |= {
                "smallest": ratios.min(),
                "largest": ratios.max(),
                "median_ns": group["median_ns"].median(),
            }
            made[len(rows)] = e, tests_over_builds(-np.log(ratios.to_numpy(float)))
        rows.append(row | {"status": status})
    table = pd.DataFrame(rows, columns=["case", "allocator", *OVER_BUILDS])
    table["p_adjusted"] = adjust(table["p_adjusted"].astype(float))
    family = in_family([tested for _, tested in made.values()])
    for (i, (e, _)), of_family in zip(made.items(), family, strict=True):
        judged = verdict(inverse(e), BUILD_THRESHOLD, family=of_family)
        builds = table.at[i, "builds"]
        wide = sps.t.isf((1 - CONFIDENCE) / 2, builds - 1) / sps.norm.isf((1 - CONFIDENCE) / 2)
        alone = min(p for p, _, _ in of_family.values()) > 1 - CONFIDENCE  # it is not the family that forbids
        needed = judged.needs_n
        if needed:
            normal = needed / e.n * builds / wide**2
            needed = _needed_builds(normal, builds + 1, 1 if alone else len(made))
        decided = (judged.kind, needed) if table.at[i, "status"] == "ok" else ("UNDECIDED", None)
        table.loc[i, ["verdict", "needs_builds"]] = decided
    return table


def _needed_builds(normal, least, comparisons):
    """Builds, `least` or more, at which Student's test has POWER; normal: their number by the normal law."""
    tail = (1 - CONFIDENCE) / 2 / comparisons
    effect = (sps.norm.isf(tail) + sps.norm.ppf(POWER)) / sqrt(normal)  # over the deviation of one build
    needed = max(least, int(np.ceil(normal)))
    while sps.nct.sf(sps.t.isf(tail, needed - 1), needed - 1, effect * sqrt(needed)) < POWER:
        needed += 1
    return needed


def _compare_one(side, base, metric, by_block):
    """The row without its verdict; "pairs" and "estimate" are what is judged once the family is known, "logs"
    the log ratios by block.

    by_block: pairs in the order of blocks, so that those of further hosts come after those already looked at.
    """
    if base is None:
        why = "the baseline has no sample of this case"
        return {"n": 0, "status": "no baseline", "error": why, "verdict": NOT_MEASURED}
    failures = [text for text in (_failures(side), _failures(base, "baseline ")) if text]
    error = _error(side) or _error(base, f"the baseline {base['allocator'].iloc[0]}: ")
    row = {"status": "; ".join(failures) or "ok", "error": error, "n": 0}
    pairs = _pairs(side, base, metric, ("block", "host") if by_block else ("host", "block"))
    if pairs.empty:
        return row | {"status": row["status"] if failures else "no common block", "verdict": NOT_MEASURED}
    a, b = pairs["a"].to_numpy(float), pairs["b"].to_numpy(float)
    if metric.endswith("ns_per_op") and min(np.median(a), np.median(b)) < FASTEST_NS:
        failures = row["status"] = f"below {FASTEST_NS:g} ns per operation: the work was compiled away"
    e = ratio(a, b)
    return row | {
        "ratio": e.value, "low": e.low, "high": e.high, "n": e.n, "p": e.p_value, "cv": e.cv_a,
        "cv_baseline": e.cv_b, "cliffs_delta": e.cliffs_delta, "autocorrelation": e.autocorrelation,
        "load": pairs["load"].mean(), "median_ns": np.median(a), "baseline_ns": np.median(b),
        "ratio_low_quantile": e.ratio_low_quantile,
        "pairs": (a, b), "logs": np.log(pairs["a"] / pairs["b"]), "estimate": e,
        "verdict": "UNDECIDED" if failures else None,
    }  # fmt: skip


def _design_effect(rows):
    """Variance of the mean over the cases of one allocator, over what it would be if they were independent.

    Cases of one block share a core and a moment, so that their errors correlate (Kish 1965). Each block's
    part in the error of a case is its centred rank, as in the estimate, scaled to the case's interval.
    """
    kept = {row["case"]: row for row in rows if row["n"] and isfinite(row["high"])}
    logs = pd.DataFrame({case: row["logs"] for case, row in kept.items()})
    ranks = logs.rank() - (logs.count() + 1) / 2
    widths = pd.Series({case: log(row["high"] / row["low"]) for case, row in kept.items()}, dtype=float)
    parts = (ranks / np.sqrt((ranks**2).sum()) * widths).fillna(0.0).to_numpy()
    apart = (parts**2).sum()
    return (parts.sum(axis=1) ** 2).sum() / apart if apart else 1.0


def timed(samples, metric):
    """The samples, with status "no time" where a clock that jumped left a cost not finite or not above 0."""
    broken = (samples["status"] == "ok") & ~samples[metric].between(0, np.inf, inclusive="neither")
    if not broken.any():
        return samples
    return samples.assign(status=samples["status"].astype(str).mask(broken, "no time"))


def _pairs(side, base, metric, order):
    """Costs a and b of the blocks in which both ran well (a later run supersedes), in this order."""
    key = [name for name in order if name in side]

    def good(frame, name):
        kept = frame[frame["status"] == "ok"].drop_duplicates(key, keep="last").set_index(key)
        return pd.DataFrame({name: kept[metric], f"load_{name}": kept.get("load1", nan)}, index=kept.index)

    pairs = good(side, "a").join(good(base, "b"), how="inner").sort_index()
    return pairs.assign(load=(pairs["load_a"] + pairs["load_b"]) / 2)


def _failures(side, who=""):
    """How many failed and how: 3 of 30 timeout; the bare status where all did; empty where none did."""
    bad = side.loc[side["status"] != "ok", "status"]
    if bad.empty:
        return ""
    kind = bad.mode().iloc[0]
    return f"{who}{kind}" if len(bad) == len(side) else f"{who}{len(bad)} of {len(side)} {kind}"


def _error(side, who=""):
    """Why the first run that failed did; empty where none failed."""
    bad = side[side["status"] != "ok"]
    return "" if bad.empty else who + (bad["error"].fillna("").iloc[0] or bad["status"].iloc[0])


def scaling(samples):
    """`compare` of several threads with one: each allocator is a case, each number of threads a side.

    samples differ in allocator and threads. The ratio of CPU times is 1 where threads do not slow each other.
    """
    threads = samples["threads"].astype(int)
    sides = threads.astype(str).where(threads > 1, "one") + np.where(threads > 1, " threads", " thread")
    return compare(samples.assign(case=samples["allocator"], allocator=sides), baseline="one thread")


def geometric_mean(table):
    """Geometric mean of `ratio` over the cases of each allocator of a `compare` table, with 95 % interval.

    The interval is about the errors of measurement in *these* cases: from the widths of their intervals,
    wider by the design effect where the cases of a block err together, never narrower. It does not say how
    another set of cases would come out: `smallest` and `largest` show how far cases differ. Cases without an
    interval are left out and counted in `left_out`. In simulations it covers 93 to 100 %, with 6 to 30
    blocks, 1 to 20 cases, and correlations between these of 0 to 0.4.
    """
    z = sps.norm.ppf((1 + CONFIDENCE) / 2)

    def one(allocator, group):
        kept = group[(group["low"] > 0) & np.isfinite(group["high"])]
        row = {"allocator": allocator, "ratio": nan, "low": nan, "high": nan, "cases": len(kept)}
        row |= {"left_out": len(group) - len(kept)}
        row |= {"smallest": kept["ratio"].min(), "largest": kept["ratio"].max()}
        if kept.empty:
            return row
        centre = np.log(kept["ratio"].astype(float)).mean()
        errors = np.log(kept["high"].astype(float) / kept["low"].astype(float)) / (2 * z)
        effect = kept.get("design_effect", pd.Series([1.0])).max()  # tables that were kept may lack it
        half = z * sqrt((errors**2).sum() * max(1.0, effect)) / len(kept)
        return row | {"ratio": np.exp(centre), "low": np.exp(centre - half), "high": np.exp(centre + half)}

    return pd.DataFrame([one(*item) for item in table.groupby("allocator", sort=False)])


def ranking(samples, metric=None, resamples=2000, seed=1):
    """Rank of each allocator by median time in each case (1 is the fastest), with 95 % interval.

    Columns case, allocator, rank, low, high, median_ns, n: blocks in which all of them succeeded; others are
    not used. The interval holds the ranks that come out when whole blocks are drawn again with replacement,
    so that what the allocators of a block share stays shared; with fewer than 6 blocks it holds every rank.
    Raises ValueError where no run succeeded.
    """
    metric = metric or samples.attrs.get("metric", "cpu_ns_per_op")
    rows, random = [], np.random.default_rng(seed)
    for case, group in samples[samples["status"] == "ok"].groupby("case", sort=False):
        wide = group.pivot_table(metric, ["host", "block"], "allocator", "last", sort=False).dropna()
        low, high = 1.0, float(wide.shape[1])
        if len(wide) >= MIN_PAIRS:
            drawn = sps.rankdata(redrawn_medians(wide, random, resamples), axis=1)
            low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
        median = wide.median()
        columns = {"rank": median.rank(), "low": low, "high": high, "median_ns": median, "n": len(wide)}
        rows.append(pd.DataFrame(columns).assign(case=case).rename_axis("allocator").reset_index())
    if not rows:
        raise ValueError(f"nothing to rank: none of {len(samples)} runs succeeded")
    return pd.concat(rows, ignore_index=True)


def redrawn_medians(blocks, random, resamples):
    """Medians of the columns, one row per resample: whole blocks are drawn again with replacement, so that
    what the columns of a block share stays shared. blocks: DataFrame, one row per block; nan is left out."""
    draws = random.integers(len(blocks), size=(resamples, len(blocks)))
    return np.nanmedian(blocks.to_numpy()[draws], axis=1)


# ---------------------------------------------------------------- rates and claims


def rate_interval(events, operations):
    """Events per operation with an exact 95 % Poisson interval (Garwood 1936): (rate, low, high).

    The upper end is one-sided where there were no events: 3.0 / operations, the rule of three.
    So where about three events are expected, the interval covers 94 %.
    """
    if operations <= 0 or events < 0:
        raise ValueError("a rate needs operations > 0 and events >= 0")
    tail = 1 - CONFIDENCE if events == 0 else (1 - CONFIDENCE) / 2
    low = sps.chi2.ppf(tail, 2 * events) / 2 if events else 0.0
    return (
        events / operations,
        float(low / operations),
        float(sps.chi2.isf(tail, 2 * events + 2) / 2 / operations),
    )


def rate_verdict(events, operations, claimed):
    """Verdict on the claim "at most `claimed` events per operation".

    needs_n: operations after which the claim holds, if no further event comes.
    """
    _, low, high = rate_interval(events, operations)
    counted = f"{events} events in {operations:.3g} operations"
    text = f"{counted}, rate [{low:.2g}, {high:.2g}] against {claimed:.2g} claimed"
    if high <= claimed:
        return Verdict("replicated", None, text)
    if low > claimed:
        return Verdict("not replicated", None, text)
    needed = int(np.ceil(high * operations / claimed)) if claimed else None
    return Verdict("undecided", needed, text)


def claim_verdict(claimed, estimate, hypothesis="difference", margin=MARGIN, claimed_n=None):
    """Verdict on a published ratio (reference time / candidate time, so 1.107 for "+10.7 %").

    hypothesis: "difference" (right sign, and the claimed value inside the prediction interval of a study of
    `claimed_n` pairs with our noise; as many pairs as ours where unknown), "equivalence" (TOST inside the
    margin), "at least" and "at most" (a bound). Kinds: replicated / replicated, smaller / replicated, larger
    (the sign comes back, another effect) / not replicated / undecided.
    """
    judge = {"difference": _judge_difference, "equivalence": _judge_equivalence, "at least": _judge_bound}
    if hypothesis == "at most":
        kind = _judge_bound(1 / claimed, inverse(estimate), margin, claimed_n)
    elif hypothesis in judge:
        kind = judge[hypothesis](claimed, estimate, margin, claimed_n)
    else:
        raise ValueError(f"hypothesis {hypothesis!r} is unknown; allowed: {', '.join(judge)}, at most")
    needed = _needed(claimed, estimate, hypothesis, margin) if kind == "undecided" else None
    ours = f"measured {said(estimate)}, n = {estimate.n}"
    return Verdict(kind, needed, f"{kind}: claimed {claimed:.4g}, {ours}")


def prediction_interval(estimate, n):
    """Where the estimate of another study of n pairs with the same noise and truth falls (95 %)."""
    if not isfinite(estimate.high) or estimate.low <= 0:
        return 0.0, float("inf")
    half = log(estimate.high / estimate.low) / 2 * sqrt(1 + estimate.n / n)
    return estimate.value * np.exp(-half), estimate.value * np.exp(half)


def _judge_difference(claimed, e, margin, claimed_n):
    low, high = prediction_interval(e, claimed_n or e.n)
    same_sign, other_sign = (e.low > 1, e.high < 1) if claimed > 1 else (e.high < 1, e.low > 1)
    if same_sign and not low <= claimed <= high:
        return f"replicated, {'smaller' if abs(log(e.value)) < abs(log(claimed)) else 'larger'}"
    if same_sign:
        return "replicated"
    return "not replicated" if other_sign or equivalent(e, margin) else "undecided"


def _needed(claimed, e, hypothesis, margin):
    """Pairs that would decide an undecided claim; of a bound, from the measured ratio over the bound."""
    if hypothesis in ("at least", "at most"):
        over = replace(e, value=e.value / claimed, low=e.low / claimed, high=e.high / claimed)
        return needed_pairs(over, 0.0, 0.0)
    apart = margin if hypothesis == "equivalence" else 0.0
    return needed_pairs(e, apart, margin, below=apart)


def _judge_equivalence(claimed, e, margin, claimed_n):
    if equivalent(e, margin):
        return "replicated"
    return "not replicated" if e.low > 1 + margin or e.high < 1 / (1 + margin) else "undecided"


def _judge_bound(claimed, e, margin, claimed_n):
    if e.low >= claimed:
        return "replicated"
    if e.high < claimed:
        return "replicated, smaller" if e.low > 1 and claimed > 1 else "not replicated"
    return "undecided"
