"""Rank laws and the order statistics of pairwise averages: the arithmetic under `stats`.

Source: Hodges & Lehmann 1963; Hollander, Wolfe & Chicken, Nonparametric Statistical Methods, 3rd ed.,
sections 3.1-3.3 (Walsh averages, signed ranks).
"""

from functools import lru_cache
from math import inf, sqrt

import numpy as np
from scipy import stats as sps

EXACT_PAIRS = 50  # exact laws up to here, normal approximations above
DIGITS = 12  # of a log ratio; by their last ones alone 11 / 10 would rank above 10 / 11, each time
MOST_ZEROS = EXACT_PAIRS * (EXACT_PAIRS + 1) // 2  # more zeros leave rank sums in the same order


def sign_flip_law(ranks):
    """Probability of each sum 0, 1, 2 ... of the positive ranks if signs are random. ranks: whole numbers."""
    law = np.ones(1)
    for rank in ranks:
        law = (np.pad(law, (0, rank)) + np.pad(law, (rank, 0))) / 2
    return law


@lru_cache(maxsize=4096)
def signed_rank_cut(n, tail):
    """Largest k with P(W < k) <= tail for the signed-rank sum W of n pairs; 0 where there is none."""
    if n > EXACT_PAIRS:
        mean, sd = n * (n + 1) / 4, sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return int(max(0, np.floor(mean + 0.5 + sps.norm.ppf(tail) * sd)))
    law = sign_flip_law(range(1, n + 1))
    return int(np.searchsorted(np.cumsum(law), tail * (1 + 1e-12), "right"))


def walsh(d, tails):
    """Hodges-Lehmann centre of differences d and its intervals at the given tail probabilities.

    The centre is the median of all Walsh averages (d_i + d_j) / 2, i <= j; an interval is unbounded where
    there are too few differences for its tail.
    """
    total, cuts = len(d) * (len(d) + 1) // 2, [signed_rank_cut(len(d), tail) for tail in tails]
    ranks = [(total + 1) // 2, total // 2 + 1]
    for cut in cuts:
        ranks += [max(cut, 1), min(total + 1 - cut, total)]
    found = _order_statistics(np.sort(d), ranks)
    ends = zip(found[2::2], found[3::2], cuts, strict=True)
    return float(np.mean(found[:2])), [(low, high) if cut else (-inf, inf) for low, high, cut in ends]


def _order_statistics(d, ranks):
    """The Walsh averages of those ranks (from 1) of ascending differences d.

    By bisection, so that a million pairs need no table of their 5e11 averages.
    """
    ranks = np.asarray(ranks)
    low, high = np.full(len(ranks), d[0] - 1e-12), np.full(len(ranks), d[-1] + 1e-12)
    for _ in range(64):  # 64 halvings leave less than one unit in the last place of a log ratio
        middle = (low + high) / 2
        couples = np.searchsorted(d, (2 * middle[:, None] - d).ravel(), "right").reshape(len(ranks), len(d))
        diagonal = np.searchsorted(d, middle, "right")  # i <= j is half of all couples and half of these
        enough = (couples.sum(1) + diagonal) // 2 >= ranks
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def signed_rank_p(d, alternative="two-sided"):
    """Wilcoxon signed-rank p-value of paired differences d (alternative "greater": d tends to be above 0).

    For up to 50 pairs that differ, the exact law of random signs, given the ranks with their ties; above, the
    normal approximation. Zeros keep their rank and count for neither side (Pratt 1959).
    """
    d = np.round(np.asarray(d, float), DIGITS)
    differ = d[d != 0]
    if not len(differ):
        return 1.0
    if len(differ) > EXACT_PAIRS:
        test = sps.wilcoxon(d, None, "pratt", True, alternative, "asymptotic")
        return float(test.pvalue)
    zeros = min(len(d) - len(differ), MOST_ZEROS)
    doubled = 2 * zeros + np.rint(2 * sps.rankdata(np.abs(differ))).astype(int)  # midranks are halves
    law, positive = sign_flip_law(doubled), doubled[differ > 0].sum()
    greater, less = law[positive:].sum(), law[: positive + 1].sum()
    tails = {"two-sided": min(1.0, 2 * min(greater, less)), "greater": greater, "less": less}
    return float(tails[alternative])
