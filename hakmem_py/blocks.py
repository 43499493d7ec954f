"""The blocks of a comparison as they come; one that the user stops is judged by its complete blocks."""

from collections import Counter
from contextlib import contextmanager

import pandas as pd

from .stats import MIN_PAIRS


class Stopped(KeyboardInterrupt):
    """By the user, in the middle of a comparison; samples: its whole blocks, enough for an interval."""

    def __init__(self, samples):
        super().__init__()
        self.samples = samples


def gathered(rows, sides):
    """Samples of those blocks in which every side ran; sides: the baseline first."""
    ran = Counter(row["block"] for row in rows)
    samples = pd.DataFrame([row for row in rows if ran[row["block"]] == len(sides)])
    samples.attrs = {"baseline": sides[0].label, "loops": {one.label: one.loop for one in sides}}
    return samples


@contextmanager
def running(rows, sides, progress):
    """Around the loop that fills rows; raises Stopped where the user ends it late enough."""
    try:
        yield
    except KeyboardInterrupt:
        if len(rows) < MIN_PAIRS * len(sides):
            raise
        raise Stopped(gathered(rows, sides)) from None
    finally:
        progress.end()


def judged(measure, tell):
    """Tells what `measure` gives; of one that the user stops, what there is, and then stops."""
    try:
        samples = measure()
    except Stopped as stop:
        tell(stop.samples)
        raise
    tell(samples)
