"""The blocks of a comparison as they come; one that the user stops is judged by its complete blocks."""

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
    """Around the loop that fills rows: if the user stops it after enough blocks, raises Stopped."""
    try:
        yield
    except KeyboardInterrupt:
        if len(rows) < MIN_PAIRS * len(sides):
            raise
        raise Stopped(gathered(rows, sides)) from None
    finally:
        progress.end()


def judged(measure, tell):
    """tell(the samples of measure()). If the user stops it, tells what there is, then raises Stopped."""
    try:
        samples = measure()
    except Stopped as stop:
        tell(stop.samples)
        raise
    tell(samples)
