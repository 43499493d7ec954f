"""The blocks of a comparison as they come; one that ends early is judged by its complete blocks."""

from collections import Counter
from contextlib import contextmanager

import pandas as pd

from .stats import MIN_PAIRS


class Stopped(KeyboardInterrupt):
    """The user stopped a comparison. samples: of its complete blocks, which suffice for an interval."""

    def __init__(self, samples):
        whole = f"{samples['block'].nunique()} blocks were whole"
        super().__init__(f"{whole}, their samples are kept: import sys; sys.last_value.samples")
        self.samples = samples


def gathered(rows, sides):
    """Samples of those blocks in which every side ran; sides: the baseline first."""
    ran = Counter(row["block"] for row in rows)
    samples = pd.DataFrame([row for row in rows if ran[row["block"]] == len(sides)])
    samples.attrs = {"baseline": sides[0].label, "loops": {one.label: one.loop for one in sides}}
    return samples


@contextmanager
def running(rows, sides, progress):
    """Around the loop that fills rows. After enough blocks, raises Stopped if the user stops it; what else
    ends it carries their samples, too.
    """
    try:
        yield
    except (KeyboardInterrupt, Exception) as end:
        if len(rows) < MIN_PAIRS * len(sides):
            raise
        if isinstance(end, KeyboardInterrupt):
            raise Stopped(gathered(rows, sides)) from None
        end.samples = gathered(rows, sides)
        raise
    finally:
        progress.end()


def judged(measure, tell):
    """tell(the samples of measure()). If it ends early (running), tells what there is, then raises."""
    try:
        samples = measure()
    except (Stopped, Exception) as end:
        if hasattr(end, "samples"):
            tell(end.samples)
        raise
    tell(samples)
