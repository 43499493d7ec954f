"""Rank laws and the order statistics of pairwise averages: the arithmetic under `stats`.

Source: Hodges & Lehmann 1963; Hollander, Wolfe & Chicken, Nonparametric Statistical Methods, 3rd ed.,
sections 3.1-3.3 (paired: Walsh averages, signed ranks) and 4.1-4.3 (unpaired: differences, Mann-Whitney).
"""

from functools import lru_cache
from math import comb, inf, sqrt

import numpy as np
from scipy import stats as sps

EXACT_PAIRS = 50  # exact laws up to here, normal approximations above
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


@lru_cache(maxsize=4096)
def rank_sum_cut(m, n, tail):
    """Largest k with P(U < k) <= tail for the Mann-Whitney count U of m against n values; 0 for none."""
    if m + n > EXACT_PAIRS:
        return int(max(0, np.floor(m * n / 2 + 0.5 + sps.norm.ppf(tail) * sqrt(m * n * (m + n + 1) / 12))))
    ways = np.zeros((m + 1, m * n + m * (m + 1) // 2 + 1))
    ways[0, 0] = 1  # ways[j, s]: choices of j ranks whose sum is s
    for rank in range(1, m + n + 1):
        for chosen in range(min(rank, m), 0, -1):
            ways[chosen, rank:] += ways[chosen - 1, :-rank]
    law = ways[m, m * (m + 1) // 2 :] / comb(m + n, m)
    return int(np.searchsorted(np.cumsum(law), tail * (1 + 1e-12), "right"))


def _order_statistics(ranks, count, low, high):
    """Order statistics of the given ranks (from 1) of a collection known only by count(t): how many are <= t.

    Bisection, so that a million pairs need no table of their 5e11 Walsh averages.
    """
    ranks = np.asarray(ranks)
    low, high = np.full(len(ranks), low - 1e-12), np.full(len(ranks), high + 1e-12)
    for _ in range(64):  # 64 halvings leave less than one unit in the last place of a log ratio
        middle = (low + high) / 2
        enough = count(middle) >= ranks
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _centre_and_intervals(total, count, cuts, low, high):
    """Median of `total` ordered values and one interval for each cut, unbounded where the cut is 0."""
    ranks = [(total + 1) // 2, total // 2 + 1]
    for cut in cuts:
        ranks += [max(cut, 1), min(total + 1 - cut, total)]
    found = _order_statistics(ranks, count, low, high)
    pairs = [tuple(found[2 + 2 * i : 4 + 2 * i]) if cut else (-inf, inf) for i, cut in enumerate(cuts)]
    return float(np.mean(found[:2])), pairs


def walsh(d, tails):
    """Hodges-Lehmann centre of differences d and its intervals at the given tail probabilities."""
    d, n = np.sort(d), len(d)

    def count(t):  # i <= j is half of all couples and half of the diagonal
        couples = np.searchsorted(d, (2 * t[:, None] - d).ravel(), "right").reshape(len(t), n).sum(1)
        return (couples + np.searchsorted(d, t, "right")) // 2

    return _centre_and_intervals(n * (n + 1) // 2, count, [signed_rank_cut(n, t) for t in tails], d[0], d[-1])


def shift(x, y, tails):
    """Hodges-Lehmann shift between two unpaired samples: the median of all x_i - y_j, with intervals."""
    x, y = np.sort(x), np.sort(y)

    def count(t):
        return np.searchsorted(x, (t[:, None] + y).ravel(), "right").reshape(len(t), len(y)).sum(1)

    cuts = [rank_sum_cut(len(x), len(y), tail) for tail in tails]
    return _centre_and_intervals(len(x) * len(y), count, cuts, x[0] - y[-1], x[-1] - y[0])


def signed_rank_p(d, alternative="two-sided"):
    """Wilcoxon signed-rank p-value of paired differences d (alternative "greater": d tends to be above 0).

    For up to 50 pairs that differ, the exact law of random signs, given the ranks with their ties; above, the
    normal approximation. Zeros keep their rank and count for neither side (Pratt 1959).
    """
    d = np.asarray(d, float)
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
