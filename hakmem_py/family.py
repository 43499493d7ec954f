"""What many comparisons claim together: the tests behind each kind of verdict, adjusted for their number."""

from math import log1p

import numpy as np
from scipy import stats as sps

from .estimates import BUILD_THRESHOLD, MARGIN, RUN_THRESHOLD, adjust, inside
from .ranks import signed_rank_p

KINDS = ("GO", "NEUTRAL", "NO-GO")


def tests(d, threshold=RUN_THRESHOLD, margin=MARGIN):
    """p-values of what each verdict claims, from the logs of a / b: {"GO": .., "NEUTRAL": .., "NO-GO": ..}.

    GO and NO-GO two-sided, as the interval is; NEUTRAL by TOST. To be adjusted, each within its family.
    """
    d = np.asarray(d, float)
    return {
        "GO": min(1.0, 2 * signed_rank_p(d - log1p(threshold), "greater")),
        "NEUTRAL": inside(d, log1p(margin)),
        "NO-GO": signed_rank_p(d),
    }


def tests_over_builds(logs):
    """As `tests`, from the log of a / b of each layout, by Student's law as `over_builds` has it."""

    def p(centre, alternative="two-sided"):
        return float(sps.ttest_1samp(logs, centre, alternative=alternative).pvalue)

    limit = log1p(MARGIN)
    return {
        "GO": min(1.0, 2 * p(log1p(BUILD_THRESHOLD), "greater")),
        "NEUTRAL": max(p(-limit, "greater"), p(limit, "less")),
        "NO-GO": p(0.0),
    }


def in_family(tested, correction="holm"):
    """[{kind: (p, adjusted p, comparisons)}] of a family: one {kind: p} for each comparison that was made."""
    adjusted = {kind: adjust([row[kind] for row in tested], correction) for kind in KINDS}
    return [
        {kind: (row[kind], float(adjusted[kind][i]), len(tested)) for kind in KINDS}
        for i, row in enumerate(tested)
    ]
