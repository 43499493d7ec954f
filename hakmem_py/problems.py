"""Bandit problems: the mean reward of each arm over time, and how rewards scatter around it."""

import csv
import json
import math
import tomllib
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

import numpy as np

REWARDS = ("exact", "bernoulli", "gaussian:SD")
MOST_ARMS = 16  # HAK_BANDIT_ARMS of hakmem.h

# Made up, in the manner of what ACE meets: six capacities whose rewards differ by 1 to 10 %, seen through
# windows with a noise of 2 %.
ACE_CAPACITIES = (16, 32, 64, 128, 256, 512)  # blocks a magazine holds (loop.c)
ACE_MEANS = (0.90, 0.95, 0.97, 0.98, 0.99, 1.00)
ACE_REWARDS = "gaussian:0.02"
ACE_WINDOWS = 1200  # ten minutes of 500 ms


class BanditError(ValueError):
    """One line: what was asked, and what is allowed."""


@dataclass(frozen=True)
class Problem:
    """`means`: [pieces][arms], reward units; `starts`: [pieces] plays made when each begins, first 0."""

    means: tuple[tuple[float, ...], ...]
    starts: tuple[int, ...] = (0,)
    rewards: str = "bernoulli"
    deviation: float = 0.0  # of Gaussian rewards, in reward units

    @property
    def arms(self):
        return len(self.means[0])

    def at(self, play):
        """The means at each of these plays, [len(play)][arms]; play counts from 0 here."""
        return np.asarray(self.means)[np.searchsorted(self.starts, play, side="right") - 1]

    @property
    def rewards_text(self):
        return f"gaussian:{self.deviation:g}" if self.rewards == "gaussian" else self.rewards

    def draw(self, mean, random):
        """One reward of an arm with this mean, from a NumPy generator."""
        if self.rewards == "bernoulli":
            return float(random.random() < mean)
        return random.normal(mean, self.deviation) if self.rewards == "gaussian" else mean


def problem(means, rewards="bernoulli", changes=None):
    """A checked Problem. `changes`: {plays made: means} or None. Raises BanditError."""
    kind, deviation = parse_rewards(rewards)
    for step in changes or {}:
        if not isinstance(step, Real) or step < 1 or step % 1:
            raise BanditError(f"a change at step {step!r} is not possible; allowed: whole numbers from 1")
    pieces = [(0, means), *sorted((changes or {}).items())]
    table = tuple(_checked_means(piece, kind) for _, piece in pieces)
    for step, piece in pieces[1:]:
        if len(piece) != len(means):
            raise BanditError(f"the change at step {step} has {len(piece)} means; allowed: {len(means)}")
    return Problem(table, tuple(int(step) for step, _ in pieces), kind, deviation)


def _checked_means(means, kind):
    means = tuple(float(m) for m in means)
    if not 1 <= len(means) <= MOST_ARMS:
        raise BanditError(f"{len(means)} means given; allowed: 1 to {MOST_ARMS}, one an arm")
    low, high = (0, 1) if kind == "bernoulli" else (-1e300, 1e300)
    if not all(low <= m <= high for m in means):
        given = ", ".join(f"{m:g}" for m in means)
        raise BanditError(f"means {given} are not possible; allowed for {kind} rewards: {low:g} to {high:g}")
    return means


def parse_rewards(text):
    """("gaussian", 0.02) from "gaussian:0.02". Raises BanditError naming the allowed forms."""
    kind, _, deviation = text.partition(":")
    try:
        value = float(deviation) if deviation else 0.0
    except ValueError:
        value = math.nan
    known = (kind in ("exact", "bernoulli") and not deviation) or (kind == "gaussian" and deviation)
    if not known or not 0 <= value < math.inf:
        raise BanditError(f"rewards {text!r} are not known; allowed: {', '.join(REWARDS)} with SD >= 0")
    return kind, value


def read_changes(path):
    """{step: means} from a file; `step` is the number of plays made when the means begin to hold.

    TOML: `[[change]]` tables with `step` and `means`; JSON: a list of such. CSV: a line `step,mean,mean,...`
    per change; a line of headings that begins with "step" and lines that begin with "#" are skipped.
    Raises BanditError.
    """
    path = Path(path)
    try:
        rows = _rows(path, path.read_text(encoding="utf-8-sig"))
        changes = {_whole(step): [float(mean) for mean in means] for step, means in rows}
        if len(changes) != len(rows) or not rows:
            raise ValueError("a step occurs twice" if rows else "it holds no change")
        return changes
    except (OSError, ValueError, KeyError, TypeError, RecursionError, csv.Error) as error:
        form = "CSV lines step,mean,mean,..., TOML [[change]] or a JSON list with step and means"
        raise BanditError(f"cannot read changes from {path} ({error}); allowed: {form}") from None


def _rows(path, text):
    """[(step, means)] as they stand in a file."""
    if path.suffix in (".toml", ".json"):
        found = tomllib.loads(text)["change"] if path.suffix == ".toml" else json.loads(text)
        return [(change["step"], change["means"]) for change in found]
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lower().startswith(("#", "step"))
    ]
    return [(step, means) for step, *means in csv.reader(lines)]


def _whole(step):
    if isinstance(step, bool) or not isinstance(step, int | str):
        raise ValueError(f"step {step} is no whole number")
    return int(step)
