"""What became of the predictions that notebooks make before they measure: a row each, told by the samples.

Every function returns a DataFrame of prediction, found, held (yes, no, or open where the interval does not
tell); a prediction of which nothing was measured has no row.
"""

import numpy as np
import pandas as pd

from . import stats
from .style import listed

TENTHS = 1.5  # times; from here on a difference is one by factors
SIZE_MATTERS = 1.2  # times
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


def patterns(samples):
    """Of 04_patterns: by order, by size, without the call."""
    good = samples[samples["status"] == "ok"]
    times = good.groupby(["allocator", "size_bytes", "workload"], sort=False)["cpu_ns_per_op"].median()
    called = times[times.index.get_level_values("allocator").isin(CALLED)]
    rows = []
    if not called.empty:
        span = called.groupby(["allocator", "size_bytes"], sort=False).agg(lambda t: t.max() / t.min())
        span = span.groupby("allocator", sort=False).median()
        found = f"slowest over fastest order: {listed(span, '{:.2f}')}"
        rows.append(("orders differ by tenths", found, bool((span < TENTHS).all())))
    wide = times.unstack("size_bytes")
    if wide.shape[1] > 1:
        low, high = wide.columns.min(), wide.columns.max()
        growth = (wide[high] / wide[low]).dropna().groupby("allocator", sort=False).median()
        found = f"time at {high} B over {low} B: {listed(growth, '{:.2f}')}"
        rows.append(("size matters little", found, bool((growth < SIZE_MATTERS).all())))
    pair = samples[samples["allocator"].isin(["hakmem", "inlined"])]
    means = stats.geometric_mean(stats.compare(pair, baseline="hakmem"))
    if len(means) and np.isfinite(means["ratio"].iloc[0]):
        share = means.iloc[0]
        found = f"{stats.bracketed(share['ratio'], share['low'], share['high'])} of the library's time"
        rows.append(("inlined takes two thirds", found, bool(0.6 < share["ratio"] < 0.73)))
    return _table(rows)


def random_mixed(table):
    """Of 05_scorecard. table: `stats.compare` of random mixed, mimalloc the baseline."""
    found = table.set_index("allocator").dropna(subset="ratio")
    rows, expected = (
        [],
        {
            "hakmem": ("within 15 % of mimalloc, either way", 1 / 1.15, 1.15),
            "system": ("the system allocator at half", 1.75, 2.25),
        },
    )
    for name, (prediction, least, most) in expected.items():
        if name in found.index:
            ratio, low, high = found.loc[name, ["ratio", "low", "high"]]
            said = f"{name} takes {stats.bracketed(ratio, low, high)} of mimalloc's time"
            rows.append((prediction, said, _inside(low, high, least, most)))
    if "floor" in found.index:
        best = min(1.0, found.drop("floor")["ratio"].min())
        share = found.at["floor", "ratio"] / best
        said = f"the floor takes {share:.2f} of the best time"
        rows.append(("the floor at less than twice the best speed", said, bool(share > 0.5)))
    return _table(rows)


def profile(builds, table):
    """Of 07_pgo. builds: `stats.compare_builds`; table: `stats.compare`, both with plain as baseline."""
    known = builds.set_index("case").dropna(subset="ratio")
    gains = 100 * (1 / known["ratio"] - 1)
    gained = int((known["high"] < 1).sum())
    found = f"gain in percent: {listed(gains, '{:+.1f}')}; certain in {gained} of {len(known)}"
    rows = [("a few percent, not tens", found, gained > 0 and bool((gains < 10).all()))]
    layouts = table[table["allocator"].str.startswith("plain, layout")].dropna(subset="ratio")
    if len(layouts):
        moved = 100 * (layouts["ratio"].astype(float) - 1)
        said = f"another layout moves a case by {moved.min():+.1f} to {moved.max():+.1f} %"
        held = bool((moved.abs() < 3).all())
        rows.append(("a layout alone moves a result by a percent or two", said, held))
    wrong = table[table["allocator"] == "pgo, wrong training"].dropna(subset="ratio").set_index("case")
    small = wrong[~wrong.index.str.startswith("json")]
    if len(small):
        said = f"time over plain: {listed(small['ratio'], '{:.2f}')}"
        rows.append(("wrong training may make small blocks slower", said, bool((small["low"] > 1).any())))
    return _table(rows)


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
