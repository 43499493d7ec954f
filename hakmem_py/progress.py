"""How far a long job has come, on stderr."""

import sys
import time

EVERY_S = 0.5  # between two lines


class Progress:
    """One line on stderr, rewritten: how far, and how long it will still take."""

    def __init__(self, name, total, unit="runs"):
        self.name, self.total, self.unit, self.done = name, total, unit, 0
        self.start, self.shown = time.monotonic(), 0.0

    def step(self, block):
        """One more is done; block: the randomised block in work, counted from 0."""
        self.done += 1
        now = time.monotonic()
        if now - self.shown >= EVERY_S or self.done == self.total:
            self.shown = now
            left = (now - self.start) / self.done * (self.total - self.done)
            done = f"{self.done} of {self.total} {self.unit}"
            text = f"{self.name}: {done}, block {block + 1}, {clock(left)} left"
            print(f"\r{text:70}", end="", file=sys.stderr, flush=True)

    def end(self):
        if self.done:
            print(file=sys.stderr)


def clock(seconds):
    """As minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
