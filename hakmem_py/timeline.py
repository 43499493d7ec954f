"""Change over time: slow drifts beside a reference, and sudden changes over the history of runs."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import ruptures
from scipy import stats as sps

from . import provenance
from .estimates import CONFIDENCE, MIN_PAIRS, ratio, robust_sd

REDRAWS = 400  # of the bootstrap
WARM_UP = 0.1  # share of the time that is not judged
RESOLUTION = 5e-4  # relative change below which nothing is named: instruction counts repeat to less
CHANGE = ("at", "previous", "before", "after", "change", "kind", "text")


@dataclass(frozen=True)
class Trend:
    """Slope of a series with its interval, in units of y for one unit of x."""

    slope: float
    low: float
    high: float
    n: int

    @property
    def steady(self):
        """Whether the interval holds 0."""
        return self.low <= 0 <= self.high


def trend(x, y, confidence=CONFIDENCE, seed=42):
    """Theil-Sen slope of y (n,) over x (n,), with a block-bootstrap interval.

    Theil-Sen: the median of all pairwise slopes (Sen 1968), deaf to a few wild points, unlike last minus
    first. The residuals are drawn in circular blocks of about 3 n^(1/3) neighbours (Politis & Romano 1992),
    so that what is correlated stays together; for the small number of blocks, Student's t has n / length - 2
    degrees of freedom. Where neighbours correlate strongly it is still too short: in simulations with 10
    points its 95 % become 90 % at a correlation of 0.5 and 80 % at 0.8; with 27 points, 89 % at 0.8. Needs 8
    points. Raises ValueError.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    if len(x) != len(y) or len(x) < 8:
        raise ValueError(f"a trend needs 8 points or more, each with its time; there are {len(x)}")
    n, length = len(x), round(3 * len(x) ** (1 / 3))
    slope = _slope(y, x)
    residuals = y - slope * x
    residuals = (residuals - np.median(residuals)) * np.sqrt(n / (n - 2))
    starts = np.random.default_rng(seed).integers(0, n, (REDRAWS, -(-n // length)))
    places = ((starts[..., None] + np.arange(length)) % n).reshape(REDRAWS, -1)[:, :n]
    spread = np.std([_slope(residuals[place], x) for place in places])
    half = sps.t.ppf((1 + confidence) / 2, max(n / length - 2, 2)) * spread
    return Trend(float(slope), float(slope - half), float(slope + half), n)


def _slope(y, x):
    with np.errstate(invalid="ignore"):  # in scipy's own interval: values that were drawn twice are ties
        return sps.theilslopes(y, x).slope


def drift(minutes, subject, reference=None, segment=None, confidence=CONFIDENCE):
    """Trend of log(subject) in percent per hour after warm-up; with a reference, of log(subject / reference).

    minutes: time of each point; subject, reference: a positive value each (medians of a minute). What
    machine and neighbours do to both cancels in the ratio. segment: of each point, where a run was
    interrupted: each segment has a warm-up and a level of its own, the slope is common.
    """
    y = np.log(np.asarray(subject, float))
    if reference is not None:
        y = y - np.log(np.asarray(reference, float))
    points = pd.DataFrame({"x": np.asarray(minutes, float) / 60, "y": 100 * y})
    segment = np.zeros(len(y)) if segment is None else np.asarray(segment)  # a Series would go by its index
    parts = [_levelled(part) for _, part in points.groupby(segment)]
    told = [part for part in parts if len(part) > 1]  # a point alone has no slope
    return trend(*pd.concat(told or [points.iloc[:0]])[["x", "y"]].to_numpy().T, confidence)


def _levelled(part):
    """A segment after its warm-up, moved so that its centre is at 0."""
    warm = part[part["x"] >= part["x"].min() + WARM_UP * np.ptp(part["x"])]
    return warm - warm.median()


def change_points(history, noise=None, cases=1):
    """Where the level of a history of costs changes: one row per change, columns CHANGE.

    history: columns label (commit, build) and value (instructions an operation, a ratio; never raw times),
    in order of time. PELT on log values (Killick, Fearnhead & Eckley 2012). The penalty is 4 log n times the
    noise variance, or what chi-square asks of the best of n - 1 splits if that is more, so that histories of
    pure noise are split in 5 % at most; cases: that many of them together. A change stands at the first label
    of the new level. noise: relative standard deviation of one value, 0 for what is counted; by default from
    columns low and high (95 %) where there are such, else from the differences of neighbours. Fewer than four
    values are then never split; four say so little that two in five histories of pure noise are, ten that one
    in six is; where noise is skewed or has heavy tails, one in four to one in two is, whatever the length,
    for a wild value is a level of its own. Noise is never taken below RESOLUTION / 2, so that a counted
    history does not split at its last digit.
    """
    values = np.log(history["value"].to_numpy(float))
    n, unknown = len(values), noise is None and "low" not in history
    if n < (4 if unknown else 2):
        return pd.DataFrame(columns=CHANGE)
    sigma = max(_noise(history, values) if noise is None else noise, RESOLUTION / 2)
    search = ruptures.Pelt(model="l2", min_size=1, jump=1).fit(values.reshape(-1, 1))
    best_of_noise = sps.chi2.isf((1 - CONFIDENCE) / ((n - 1) * cases), 1)
    ends = search.predict(pen=max(4 * np.log(n), best_of_noise) * sigma**2)
    labels, starts = history["label"].astype(str).to_numpy(), [0, *ends[:-1]]
    levels = [float(np.exp(np.median(values[a:b]))) for a, b in zip(starts, ends, strict=True)]
    rows = []
    for at, before, after in zip(starts[1:], levels[:-1], levels[1:], strict=True):
        change = after / before - 1
        if abs(change) > RESOLUTION:
            kind = "regression" if change > 0 else "improvement"
            text = f"{kind} of {change:+.2%} between {labels[at - 1]} and {labels[at]}"
            rows.append((labels[at], labels[at - 1], before, after, change, kind, text))
    return pd.DataFrame(rows, columns=CHANGE)


def _noise(history, values):
    if "low" in history:
        return float(np.log(history["high"] / history["low"]).median()) / (
            2 * sps.norm.ppf((1 + CONFIDENCE) / 2)
        )
    return robust_sd(np.diff(values)) / np.sqrt(2)


def history(samples, subject="hakmem", beside="system", metric="cpu_ns_per_op"):
    """Ratio subject / beside of each build that was ever measured, build by build in order of time.

    samples: of one experiment, all that the store holds. Columns label (the commit where it is known, and the
    build's hash), since (its first run), case, value (the ratio), low, high, n (pairs). Both runs of a pair
    are of the same block, so a slower day is not a slower build.
    """
    good = samples[(samples["status"] == "ok") & samples["allocator"].isin([subject, beside])]
    keys, pair = ["build_hash", "case"], ["build_hash", "case", "host", "scale", "block", "seed"]
    wide = good.pivot_table(
        index=pair, columns="allocator", values=metric, aggfunc="last", observed=True
    ).dropna()
    since = good.groupby("build_hash", observed=True)["started_at"].min()
    labels = {build: _label(build, part) for build, part in good.groupby("build_hash", observed=True)}
    rows = []
    for (build, case), part in wide.groupby(level=keys, observed=True):
        e = ratio(part[subject], part[beside])
        rows.append({"label": labels[build], "since": since[build], "case": case, "value": e.value})
        rows[-1] |= {"low": e.low, "high": e.high, "n": e.n}
    table = pd.DataFrame(rows, columns=["label", "since", "case", "value", "low", "high", "n"])
    return table.sort_values(["case", "since"], ignore_index=True)


def _label(build, samples):
    """A build as a point of a history: the commit it was first measured at, and its hash."""
    folder = samples.attrs.get("folder")
    known = provenance.read(folder, samples["provenance"].head(1)) if folder else []
    return f"{known[0]['commit']} ({build})" if known else str(build)


def changes(table):
    """The change points of each case of a `history`, and case; all cases together err in 5 % of histories."""
    told = table[table["n"] >= MIN_PAIRS]
    found = [
        change_points(part, cases=told["case"].nunique()).assign(case=case)
        for case, part in told.groupby("case", sort=False)
    ]
    return pd.concat(found or [pd.DataFrame(columns=[*CHANGE, "case"])])
