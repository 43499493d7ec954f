"""What became of the predictions that notebooks make before measuring: one row each, judged by the samples.

Every function returns a DataFrame of prediction, found, held (yes, no, or open where the interval does not
decide); a prediction for which nothing was measured has no row.
"""

import numpy as np
import pandas as pd

from . import stats
from .style import listed

BY_FACTORS = 1.5  # slowest over fastest, from which on orders differ by factors and not by tenths
SIZE_MATTERS = 1.2  # times
LAYOUT_MOVES = 1.03  # times at most: a percent or two
DRAWS = 200  # of whole blocks
CALLED = ("hakmem", "mimalloc", "tcmalloc", "jemalloc")  # whose cache is said to hold a hundred blocks


def _table(rows):
    """rows: (prediction, found, held)."""
    table = pd.DataFrame(rows, columns=["prediction", "found", "held"])
    return table.assign(held=table["held"].map({True: "yes", False: "no"}).fillna("open"))


def _inside(low, high, least, most):
    """Does a value of this interval lie between the two? None: the interval does not tell."""
    if least < low and high < most:
        return True
    return False if high < least or most < low else None


def _all_inside(table, least, most):
    """The same of every row of low and high: False where one lies outside for certain."""
    told = [_inside(low, high, least, most) for low, high in table[["low", "high"]].to_numpy(float)]
    return False if False in told else None if None in told else True


def _redrawn(samples, told, seed=1):
    """told(median times by allocator, size_bytes, workload): a Series, with 95 % interval by whole blocks."""
    keys = ["allocator", "size_bytes", "workload"]
    blocks = samples.pivot_table("cpu_ns_per_op", ["host", "block"], keys, "last", sort=False)
    low, high = 0.0, np.inf
    if len(blocks) >= stats.MIN_PAIRS:
        drawn = stats.redrawn_medians(blocks, np.random.default_rng(seed), DRAWS)
        values = [told(pd.Series(medians, blocks.columns)) for medians in drawn]
        low, high = pd.concat(values, axis=1).quantile([0.025, 0.975], axis=1).to_numpy()
    return pd.DataFrame({"value": told(blocks.median()), "low": low, "high": high})


def _span(times):
    """Slowest over fastest order of each allocator, the median of the sizes."""
    span = times.groupby(["allocator", "size_bytes"], sort=False).agg(lambda t: t.max() / t.min())
    return span.groupby("allocator", sort=False).median()


def _growth(times):
    """Time at the largest size over that at the smallest of each allocator, the median of the orders."""
    wide = times.unstack("size_bytes")
    growth = wide[wide.columns.max()] / wide[wide.columns.min()]
    return growth.dropna().groupby("allocator", sort=False).median()


def patterns(samples):
    """Of 04_patterns: by order, by size, without the call."""
    good, rows = samples[samples["status"] == "ok"], []
    called = good[good["allocator"].isin(CALLED)]
    if not called.empty:
        span = _redrawn(called, _span)
        found = f"slowest over fastest order: {listed(span['value'], '{:.2f}')}"
        rows.append(("orders differ by tenths", found, _all_inside(span, 0, BY_FACTORS)))
    low, high = good["size_bytes"].min(), good["size_bytes"].max()
    if low < high:
        growth = _redrawn(good, _growth)
        found = f"time at {high:.0f} B over {low:.0f} B: {listed(growth['value'], '{:.2f}')}"
        rows.append(("size matters little", found, _all_inside(growth, 0, SIZE_MATTERS)))
    pair = samples[samples["allocator"].isin(["hakmem", "inlined"])]
    means = stats.geometric_mean(stats.compare(pair, baseline="hakmem"))
    if len(means) and np.isfinite(means["ratio"].iloc[0]):
        share = means.iloc[0]
        found = f"{stats.bracketed(share['ratio'], share['low'], share['high'])} of the library's time"
        rows.append(("inlined takes two thirds", found, _inside(share["low"], share["high"], 0.6, 0.73)))
    return _table(rows)


def random_mixed(table):
    """Of 05_scorecard. table: `stats.compare` of random mixed, mimalloc the baseline."""
    found = table.set_index("allocator").dropna(subset="ratio")
    expected = {
        "hakmem": ("within 15 % of mimalloc, either way", 1 / 1.15, 1.15),
        "system": ("the system allocator at half", 1.75, 2.25),
    }
    rows = []
    for name, (prediction, least, most) in expected.items():
        if name in found.index:
            ratio, low, high = found.loc[name, ["ratio", "low", "high"]]
            said = f"{name} takes {stats.bracketed(ratio, low, high)} of mimalloc's time"
            rows.append((prediction, said, _inside(low, high, least, most)))
    if "floor" in found.index:
        best = min(1.0, found.drop("floor")["ratio"].min())
        share, low, high = found.loc["floor", ["ratio", "low", "high"]] / best
        said = f"the floor takes {stats.bracketed(share, low, high)} of the best time"
        rows.append(("the floor at less than twice the best speed", said, _inside(low, high, 0.5, np.inf)))
    return _table(rows)


def profile(builds, table):
    """Of 07_pgo. builds: `stats.compare_builds`; table: `stats.compare`, both with plain as baseline."""
    known = builds.set_index("case").dropna(subset="ratio")
    gains = 100 * (1 / known["ratio"] - 1)
    gained = _certain(known, known["high"] < 1)
    found = f"gain in percent: {listed(gains, '{:+z.1f}')}; a gain is certain in {gained} of {len(known)}"
    not_tens = _all_inside(known, 1 / 1.1, np.inf)  # times of plain
    nothing = (known["low"] > 1 / (1 + stats.MARGIN)).all()  # certainly no gain of one percent anywhere
    found += "; nowhere as much as one percent" if nothing else ""
    held = False if nothing or not_tens is False else not_tens if gained else None
    rows = [("a few percent, not tens", found, held)]
    layouts = table[table["allocator"].str.startswith("plain, layout")].dropna(subset="ratio")
    if len(layouts):
        moved = 100 * (layouts["ratio"].astype(float) - 1)
        said = f"another layout moves a case by {moved.min():+.1f} to {moved.max():+.1f} %"
        held = _all_inside(layouts, 1 / LAYOUT_MOVES, LAYOUT_MOVES)
        rows.append(("a layout alone moves a result by a percent or two", said, held))
    wrong = table[table["allocator"] == "pgo, wrong training"].dropna(subset="ratio").set_index("case")
    small = wrong[~wrong.index.str.startswith("json")]
    if len(small):
        said = f"time over plain: {listed(small['ratio'], '{:.2f}')}"
        slower = _certain(small, small["low"] > 1) > 0
        held = slower or (None if (small["high"] > 1 + stats.MARGIN).any() else False)
        rows.append(("wrong training may make small blocks slower", said, held))
    return _table(rows)


def _certain(table, one_side):
    """Rows on this side of 1 for certain, with all that were asked taken together."""
    return int((one_side & (table["p_adjusted"] <= 1 - stats.CONFIDENCE)).sum())


def published(verdicts):
    """Of 13_claims. verdicts: `claims.judge`."""
    tested = verdicts[verdicts["ratio"].notna()]
    back = tested["verdict"].str.startswith("replicated")
    large = tested["claim"].str.startswith("P1")
    ours = tested["claim"].str.contains("hakmem") & ~tested["claim"].str.contains("pgo_effect")
    small = np.abs(np.log(tested["claimed"].astype(float))) < np.log(1.1)
    small &= tested["hypothesis"] == "difference"  # that nothing differs is another kind of claim

    def count(rows):
        return f"{int((rows & back).sum())} of {int(rows.sum())} replicated"

    others = large & ~ours
    rows = [
        ("large effects of others on large blocks come back", count(others), bool(back[others].all())),
        ("hakmem against others does not come back", count(ours), bool(not back[ours].any())),
        (
            "effects below 10 % come back as often as a coin",
            count(small),
            bool(0.25 < back[small].mean() < 0.75),
        ),
    ]
    return _table([row for row, chosen in zip(rows, (others, ours, small), strict=True) if chosen.any()])
