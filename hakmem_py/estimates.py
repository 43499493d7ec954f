"""Estimates, tests, verdicts and plans for two lists of costs.

One convention of direction holds everywhere. Times are costs, so smaller is better. `ratio(a, b)` is a / b.
The *gain* of b over a is a / b - 1 = reference time / candidate time - 1: +0.02 says that b does 2 % more
work in the same time. A *verdict* is about the denominator, the candidate: should it replace the reference?

The unit of observation is the process; blocks are the pairs; inference is on paired log ratios d = log(a /
b). Estimate: Hodges-Lehmann, the median of the Walsh averages (d_i + d_j) / 2, i <= j. Interval: the same
averages cut at the quantiles of the Wilcoxon signed-rank law, so test and interval agree (up to tied values).
Source: Hollander, Wolfe & Chicken, Nonparametric Statistical Methods, 3rd ed., chapter 3.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import floor, inf, isfinite, isnan, log, log1p, log10, nan, sqrt

import numpy as np
from scipy import stats as sps
from statsmodels.stats.multitest import multipletests
from statsmodels.tsa.stattools import acf

from .ranks import signed_rank_p, walsh

CONFIDENCE = 0.95
RUN_THRESHOLD = 0.01  # gain that a run-time change must show to be worth having
BUILD_THRESHOLD = 0.005  # gain that a change of flags or layout alone must show
MARGIN = 0.01  # differences smaller than this are no difference
WIDEST = 1e100  # largest ratio of two costs; beyond it numbers overflow
POWER = 0.9
ASSURANCE = 0.9  # share of pilots whose plan is long enough; of those of 5 or 10 pairs it is 0.85
REDRAWS = 200  # of a pilot
MIN_PAIRS = 6  # 2 * 0.5**6 < 5 %: below that no data can give a 95 % interval
# Lag-1 autocorrelation that a verdict tolerates: a true 0.1 turns a nominal 5 % of errors into 8 %. A series
# is refused only where its estimate exceeds this by twice its own error, 2 / sqrt(n), or half of all sound
# series would be. So with 30 pairs a true 0.4 passes in five of six series, and one in five of such intervals
# excludes the truth. What helps is a random order.
CORRELATION_LIMIT = 0.1


@dataclass(frozen=True)
class Estimate:
    """A ratio a / b of costs with its interval and all that is needed to judge it (ratios: no unit)."""

    value: float  # Hodges-Lehmann ratio a / b
    low: float  # interval at `confidence`; 0 and inf where n is too small for one
    high: float
    confidence: float
    n: int  # pairs
    p_value: float  # two-sided, hypothesis a = b
    cv_a: float  # standard deviation over mean
    cv_b: float
    cliffs_delta: float  # P(a > b) - P(a < b) over all couples; +1: every a is above every b
    autocorrelation: float  # lag 1, of the paired log ratios in the order given
    robust_cv_a: float  # 1.4826 MAD over median
    robust_cv_b: float
    noise_sd: float  # robust standard deviation of the paired log ratios: what `plan` wants
    tost_low: float  # interval at 1 - 2 (1 - confidence): TOST accepts a margin when this lies inside it
    tost_high: float
    ratio_low_quantile: float  # second opinion: ratio of the 10 % quantiles (the quiet runs of both sides)


@dataclass(frozen=True)
class Verdict:
    """kind: GO, NEUTRAL, NO-GO or UNDECIDED; needs_n: pairs that would decide (None: done, or no n would)."""

    kind: str
    needs_n: int | None
    text: str


# ---------------------------------------------------------------- small descriptive numbers


def _scaled(x):
    """Values of at most 1: the squares and sums of huge ones overflow, those of tiny ones vanish."""
    return np.asarray(x, float) / max(map(abs, x), default=1)


def cv(x):
    """Standard deviation over mean (n - 1 in the variance); nan for fewer than two values."""
    x = _scaled(x)
    return float(np.std(x, ddof=1) / np.mean(x)) if len(x) > 1 else nan


def cv_interval(x):
    """(cv, low, high) at 95 %: the wider of the chi-square law's interval and that of a bootstrap (BCa).

    The former is exact for a normal law but far too narrow where runs stall; the latter is too narrow for few
    values. Of 60 values, 5 % of them twice as slow, they hold the truth in 62 and 91 % instead of 95 %. Both
    are too narrow where the law is skewed or heavy in its tails: in simulations of 5 to 40 values, the wider
    one holds the truth of lognormal values in 80 to 98 %, of Student's law (3 degrees) in 69 to 86 %, and
    where it misses, it mostly lies below.
    """
    x = np.asarray(x, float)
    free, seen = len(x) - 1, cv(x)
    law = [seen * sqrt(free / sps.chi2.ppf(q, free)) for q in (0.5 + CONFIDENCE / 2, 0.5 - CONFIDENCE / 2)]
    if np.ptp(x) == 0:
        return seen, *law
    drawn = sps.bootstrap((x,), lambda x, axis: np.std(x, axis, ddof=1) / np.mean(x, axis), rng=1)
    low, high = drawn.confidence_interval
    return seen, float(np.fmin(low, law[0])), float(np.fmax(high, law[1]))


def robust_sd(x):
    """Median absolute deviation scaled to the standard deviation of a normal law."""
    return float(sps.median_abs_deviation(x, scale="normal"))


def robust_cv(x):
    """Robust standard deviation over median."""
    x = _scaled(x)
    return robust_sd(x) / float(np.median(x))


def autocorrelation(x):
    """Lag-1 autocorrelation in the order given; 0 where nothing varies, nan for fewer than three values."""
    x = np.asarray(x, float)
    if len(x) < 3:
        return nan
    return 0.0 if np.ptp(x) == 0 else float(acf(x, nlags=1, fft=True)[1])


def cliffs_delta(a, b):
    """P(a > b) - P(a < b) over all couples, in [-1, 1] (Cliff 1993)."""
    a, b = np.asarray(a, float), np.sort(np.asarray(b, float))
    above = np.searchsorted(b, a, "left").sum()
    below = len(a) * len(b) - np.searchsorted(b, a, "right").sum()
    return float(above - below) / (len(a) * len(b))


# ---------------------------------------------------------------- tests


def tost(a, b, margin=MARGIN):
    """p-value of two one-sided tests: below 5 % says that a / b lies between 1 / (1 + margin) and 1 + margin.

    Rank tests, not t tests (Schuirmann 1987 with Wilcoxon for Student): run times have tails so heavy that
    the paired t test loses half its power; and estimate, interval and this answer then rest on one law.
    """
    a, b = _checked(a, b)
    return inside(np.log(a / b), log1p(margin))


def inside(d, limit):
    """p-value of TOST from the logs d of a / b: below 5 % they lie between -limit and limit."""
    return max(signed_rank_p(d + limit, "greater"), signed_rank_p(d - limit, "less"))


def alternated(times, sides):
    """Times of the two sides of one process whose chunks alternate: (side 0, side 1).

    times: of each chunk, shape (2n,); sides: 0 or 1 for each, both once in every two. Side 0 gets its median,
    side 1 that median times the median ratio within pairs of chunks, in which what slows both cancels.
    """
    logs, second = np.log(np.asarray(times, float)).reshape(-1, 2), np.asarray(sides).reshape(-1, 2)
    if not (second.sum(axis=1) == 1).all():
        raise ValueError("each side must have one chunk of every two")
    ordered = np.take_along_axis(logs, np.argsort(second, axis=1), axis=1)
    base = float(np.exp(np.median(ordered[:, 0])))
    return base, base * float(np.exp(np.median(ordered[:, 1] - ordered[:, 0])))


def adjust(p_values, correction="holm"):
    """Adjusted p-values: "holm" (a pre-registered family) or "bh" (false discoveries, for exploration).

    nan stays nan and is not counted in the family: a comparison that could not be made has tested nothing.
    """
    methods = {"holm": "holm", "bh": "fdr_bh"}
    if correction not in methods:
        raise ValueError(f"correction {correction!r} is unknown; allowed: {', '.join(methods)}")
    p = np.asarray(p_values, float)
    adjusted, made = np.full(len(p), nan), np.isfinite(p)
    if made.any():
        adjusted[made] = multipletests(p[made], method=methods[correction])[1]
    return adjusted


# ---------------------------------------------------------------- the estimate


def _checked(a, b):
    a, b = np.asarray(a, float), np.asarray(b, float)
    if a.ndim != 1 or b.ndim != 1 or not len(a) or not len(b):
        raise ValueError("ratio needs two non-empty lists of costs")
    if len(a) != len(b):
        raise ValueError(f"{len(a)} values of a, {len(b)} of b: pairs need as many of each")
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (a > 0).all() and (b > 0).all()):
        raise ValueError("ratio needs finite, positive costs: drop or mend zero, negative and missing values")
    if float(max(a.max(), b.max())) > WIDEST * float(min(a.min(), b.min())):
        raise ValueError(f"ratio needs costs of one kind: these differ by more than {WIDEST:g} times")
    return a, b


def ratio(a, b, confidence=CONFIDENCE):
    """Estimate of a / b from costs a and b, shape (n,) each; pair i is block i.

    Fewer than 6 pairs give a value and the interval (0, inf). Raises ValueError on unequal lengths or costs
    <= 0.
    """
    a, b = _checked(a, b)
    d, alpha = np.log(a / b), 1 - confidence
    tails = (alpha / 2, alpha)  # the interval, and the one whose ends are the two one-sided tests
    centre, intervals = walsh(d, tails)
    (low, high), (tost_low, tost_high) = np.exp(intervals).tolist()
    return Estimate(
        float(np.exp(centre)), low, high, confidence, len(d), signed_rank_p(d), cv(a), cv(b),
        cliffs_delta(a, b), autocorrelation(d), robust_cv(a), robust_cv(b), robust_sd(d), tost_low, tost_high,
        float(np.quantile(a, 0.1) / np.quantile(b, 0.1)),
    )  # fmt: skip


def inverse(e):
    """The Estimate of b / a, from that of a / b."""
    turned = {"value": 1 / e.value, "ratio_low_quantile": 1 / e.ratio_low_quantile}
    for low, high in (("low", "high"), ("tost_low", "tost_high")):
        lower, upper = getattr(e, low), getattr(e, high)
        turned |= {low: 1 / upper, high: 1 / lower if lower else inf}
    turned |= {"cv_a": e.cv_b, "cv_b": e.cv_a, "robust_cv_a": e.robust_cv_b, "robust_cv_b": e.robust_cv_a}
    return replace(e, cliffs_delta=-e.cliffs_delta, **turned)


def over_builds(ratios, pairs):
    """The Estimate whose unit is the build. ratios: a / b of each layout; pairs: their number, all together.

    Layouts of the same code can differ by more than their runs do, and the highest level that varies decides
    (Kalibera & Jones, ISMM 2013): hence Student's law on the logs of the ratios, which carry the noise of the
    runs as well. Raises ValueError for fewer than two layouts.
    """
    logs = np.log(np.asarray(ratios, float))
    if len(logs) < 2:
        raise ValueError("the build as the unit needs two layouts or more")
    test = sps.ttest_1samp(logs, 0.0)
    intervals = [test.confidence_interval(1 - tail) for tail in (1 - CONFIDENCE, 2 * (1 - CONFIDENCE))]
    (low, high), (tost_low, tost_high) = np.exp(intervals).tolist()
    return Estimate(
        float(np.exp(logs.mean())), low, high, CONFIDENCE, pairs, float(test.pvalue), nan, nan, nan, nan,
        nan, nan, float(logs.std(ddof=1)), tost_low, tost_high, nan,
    )  # fmt: skip


def bracketed(value, low, high, form=".2f"):
    """ "1.23 [1.20, 1.26]", as every text has an estimate; without an interval (nan) the number alone."""
    return f"{value:{form}}" + ("" if isnan(low) else f" [{low:{form}}, {high:{form}}]")


def said(estimate):
    """An Estimate as text, with as many digits as its interval justifies."""
    width = estimate.high - estimate.low
    places = min(max(1 - floor(log10(width)), 0), 6) if isfinite(width) and width > 0 else 3
    return bracketed(estimate.value, estimate.low, estimate.high, f".{places}f")


# ---------------------------------------------------------------- verdicts and plans


def verdict(estimate, threshold=RUN_THRESHOLD, margin=MARGIN, family=None):
    """Should b (the denominator, the candidate) replace a (the reference)? By intervals, never by the point.

    GO: the whole interval of the gain a / b - 1 lies above `threshold`. NEUTRAL: TOST holds it inside the
    margin, whatever its sign. NO-GO: the whole interval lies below 0. Asked in this order; else UNDECIDED
    with the pairs that would decide. Where neighbouring pairs correlate there is no decision: the interval is
    too narrow. family: this comparison's row of `in_family`; its adjusted p must then be 5 % or less, too, so
    that all verdicts of a kind together err no more often than one alone would.
    """
    low, high = _percent(estimate.low), _percent(estimate.high)
    gain = f"gain {_percent(estimate.value)} [{low}, {high}], n = {estimate.n}"
    needed = needed_pairs(estimate, threshold, margin)
    if estimate.autocorrelation - 2 / sqrt(estimate.n) > CORRELATION_LIMIT:
        why = f"neighbour pairs correlate (lag 1: {estimate.autocorrelation:.2f}): the interval is too narrow"
        return Verdict("UNDECIDED", needed, f"UNDECIDED: {gain}; {why}: randomise the order within blocks")
    alone = {
        "GO": estimate.low > 1 + threshold and f"wholly above {100 * threshold:g} %",
        "NEUTRAL": equivalent(estimate, margin) and f"equivalent within {100 * margin:g} %",
        "NO-GO": estimate.high < 1 and "wholly below 0",
    }
    claimed = [(kind, text) for kind, text in alone.items() if text]
    for kind, text in claimed:
        if family is None or family[kind][1] <= 1 - estimate.confidence:
            return Verdict(kind, None, f"{kind}: {gain}, {text}")
    if claimed:
        kind, text = claimed[0]
        needed = _needed_in_family(estimate, kind, family[kind][0], family[kind][2])
        gain += f", {text}, but p = {family[kind][1]:.2g} within its family"
    more = f"needs n = {needed} if the gain is as estimated" if needed else "no n decides such a gain"
    return Verdict("UNDECIDED", needed, f"UNDECIDED: {gain}; {more}")


def equivalent(estimate, margin=MARGIN):
    """Whether TOST holds a / b between 1 / (1 + margin) and 1 + margin; never with fewer than 6 pairs."""
    inside = 1 / (1 + margin) < estimate.tost_low and estimate.tost_high < 1 + margin
    return inside and estimate.n >= MIN_PAIRS


def _percent(value):
    return f"{100 * (value - 1):+.2f} %" if isfinite(value) else "inf"


def needed_pairs(estimate, threshold, margin, below=0.0):
    """Pairs for the nearest decision that the point estimate allows, if widths shrink as 1 / sqrt(n).

    A decision is a gain above `threshold`, a loss of more than `below`, or equality within the margin.
    """
    if not isfinite(estimate.high):
        return MIN_PAIRS
    x, tail = log(estimate.value), (1 - estimate.confidence) / 2
    standard_error = log(estimate.high / estimate.low) / 2 / -sps.norm.ppf(tail)
    one_side = sps.norm.ppf(POWER) - sps.norm.ppf(tail)
    both_sides = sps.norm.ppf((1 + POWER) / 2) - sps.norm.ppf(2 * tail)  # of TOST
    routes = [  # distance to the border on the log scale, normal quantiles that must fit into it
        (x - log1p(threshold), one_side),
        (-x - log1p(below), one_side),
        (log1p(margin) - abs(x), both_sides),
    ]
    r = max(0.0, estimate.autocorrelation if isfinite(estimate.autocorrelation) else 0.0)
    inflation = (1 + r) / (1 - r) if r > CORRELATION_LIMIT else 1.0
    pairs = estimate.n * inflation
    sizes = [pairs * (z * standard_error / distance) ** 2 for distance, z in routes if distance > 1e-9]
    return max(estimate.n + 1, int(np.ceil(min(sizes)))) if sizes else None


def _needed_in_family(estimate, kind, p, family):
    """Pairs at which p would be small enough for its family, if the test statistic grows as sqrt(n).

    Holm asks for a p smaller by a factor of at most the number of comparisons. That number is taken, because
    an adjusted p of 1 hides the factor. The p of a difference has two sides; that of NEUTRAL has one, of two
    tests that must both succeed.
    """
    sides, power = (1, (1 + POWER) / 2) if kind == "NEUTRAL" else (2, POWER)
    z_now = sps.norm.isf(p / sides)
    z_wanted = sps.norm.isf((1 - estimate.confidence) / sides / family) + sps.norm.ppf(power)
    return int(np.ceil(estimate.n * (z_wanted / z_now) ** 2))


def plan(effect, noise, power=POWER, confidence=CONFIDENCE, threshold=0.0):
    """Pairs after which a true gain of `effect` is found above `threshold` with the given power.

    noise: standard deviation of the paired log ratios (about 1.4 times the CV of a single run), or the log
    ratios of a pilot. The pilot's own shape then decides, for heavy tails cost rank tests less than their
    standard deviation suggests; it is taken at the upper 90 % limit of its noise (after Browne 1995), because
    half of all pilots are quieter than what follows. inf: the pilot is too short or too noisy to tell.
    Noether 1987 (JASA 82): n = (z_alpha/2 + z_power)^2 / (3 (p' - 1/2)^2), with p' = P(d_i + d_j > 0) under
    the effect.
    """
    if not (isfinite(effect) and effect > -1 and not 0 <= effect <= threshold and 0 < power < 1):
        raise ValueError(
            "plan needs an effect above the threshold, or below 0 and above -1, and a power between 0 and 1"
        )
    if not (np.all(np.isfinite(noise)) and (np.ndim(noise) or noise >= 0)):
        raise ValueError("plan needs finite noise: a standard deviation not below 0, or a pilot's log ratios")
    shift = abs(log1p(effect) - (log1p(threshold) if effect > 0 else 0.0))
    if np.ndim(noise):
        wins = _pilot_wins(np.asarray(noise, float), shift)
    else:
        wins = sps.norm.cdf(sqrt(2) * shift / noise) if noise > 0 else 1.0
    z = sps.norm.ppf((1 + confidence) / 2) + sps.norm.ppf(power)
    if wins <= 0.5:  # the pilot does not tell this effect from none
        return inf
    return max(MIN_PAIRS, int(np.ceil(z**2 / (3 * (wins - 0.5) ** 2))))


def _pilot_wins(pilot, shift):
    """P(d_i + d_j > 0) when the centred pilot is moved by `shift`: its lower 90 % bootstrap limit.

    A resample lies closer to its own median than the pilot's law does: hence n / (n - 1), for small pilots.
    """
    rng, n = np.random.default_rng(len(pilot)), len(pilot)
    if n < 2:
        raise ValueError(f"a pilot of {n} pairs tells no noise: give two or more, or a standard deviation")

    def wins(d):
        d = np.sort(d)
        d = (d - np.median(d)) * n / (n - 1)
        below = np.searchsorted(d, -2 * shift - d, "right").sum() - np.searchsorted(d, -shift, "right")
        return 1 - below / (n * (n - 1))

    return np.quantile([wins(rng.choice(pilot, n)) for _ in range(REDRAWS)], 1 - ASSURANCE)


@lru_cache
def look_confidences(fractions, confidence=CONFIDENCE):
    """Confidence to use at each look so that all looks together err no more often than one look would.

    fractions: a tuple of increasing shares of the planned pairs, ending at 1. Alpha spending of the
    O'Brien-Fleming kind (Lan & DeMets 1983, Biometrika 70): spent(t) = 4 - 4 Phi(z_alpha/4 / sqrt(t)),
    integrated on the Brownian path's density.
    """
    w = np.linspace(-6, 6, 2401)  # values of the path; its density starts as a point mass at 0
    step, z, spent, before, levels = w[1] - w[0], sps.norm.isf((1 - confidence) / 4), 0.0, 0.0, []
    density = (w == w[1200]) / step
    for t in fractions:
        density = sps.norm.pdf(w[:, None] - w, scale=sqrt(t - before)) @ density * step
        tail = (2 * np.cumsum(density[::-1])[::-1] - density) * step  # P(inside so far, now |path| > w)
        due = 4 * sps.norm.sf(z / sqrt(t)) - spent
        border = np.interp(due, tail[:1199:-1], w[:1199:-1])
        levels.append(float(2 * sps.norm.cdf(border / sqrt(t)) - 1))
        density, spent, before = np.where(np.abs(w) < border, density, 0.0), spent + due, t
    return tuple(levels)


def sequential(a, b, looks, threshold=RUN_THRESHOLD, margin=MARGIN, confidence=CONFIDENCE):
    """Verdict on a growing series that may be judged only after the pairs in `looks`, fixed beforehand.

    The first look that decides ends the run; pairs beyond it are not read. TOST uses each look's own
    interval.
    """
    if list(looks) != sorted(set(looks)):
        raise ValueError(f"looks = {looks} must increase")
    verdict_now = Verdict("UNDECIDED", looks[0], f"UNDECIDED: first look at n = {looks[0]}")
    for n, level in zip(
        looks, look_confidences(tuple(n / looks[-1] for n in looks), confidence), strict=True
    ):
        if len(a) < n:
            return replace(verdict_now, needs_n=n)
        estimate = ratio(a[:n], b[:n], confidence=level)
        verdict_now = verdict(
            replace(estimate, tost_low=estimate.low, tost_high=estimate.high), threshold, margin
        )
        if verdict_now.kind != "UNDECIDED":
            return verdict_now
    return verdict_now
