"""What came of playing a policy: regret, shares, curves with intervals; and the same as parquet rows."""

import json
import math
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats as distributions

from .problems import Problem, parse_rewards

FIRST_ARMS = 100  # plays of the first replication that are printed
KEPT_PLAYS = 10_000  # of the first replication, in a parquet row
MIDDLE = (0.05, 0.95)  # quantiles between which bands lie


@dataclass(frozen=True)
class Interval:
    """Mean over replications with its 95 % interval (Student's t); NaN for a single replication."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values):
        values = np.asarray(values, dtype=float)
        n = len(values)
        mean = math.fsum(values) / n
        half = distributions.t.ppf(0.975, n - 1) * values.std(ddof=1) / math.sqrt(n) if n > 1 else math.nan
        return cls(mean, float(mean - half), float(mean + half))


@dataclass(frozen=True)
class Outcome:
    """What came of a simulation; arrays have one row per replication."""

    policy: str
    parameters: dict
    problem: Problem
    horizon: int
    replications: int
    seed: int
    points: np.ndarray  # [points] plays at which the curves are read; horizon // 2 and horizon are among them
    regret: np.ndarray = field(repr=False)  # [replications][points] pseudo-regret so far
    best: np.ndarray = field(repr=False)  # [replications][points] plays of an arm with the best mean so far
    pulls: np.ndarray = field(repr=False)  # [replications][arms]
    restarts: np.ndarray = field(repr=False)  # [replications]
    arms_played: np.ndarray = field(repr=False)  # [horizon] of the first replication
    rewards_seen: np.ndarray = field(repr=False)  # [horizon] likewise

    @property
    def total_regret(self):
        return Interval.of(self.regret[:, -1])

    @property
    def share_best(self):
        """Share of the plays that went to an arm with the best mean."""
        return Interval.of(self.best[:, -1] / self.horizon)

    @property
    def last_half(self):
        """[replications] the share of the best arm in the last half of the plays."""
        half = self.horizon // 2
        return (self.best[:, -1] - self.best_after(half)) / (self.horizon - half)

    @property
    def share_best_last_half(self):
        return Interval.of(self.last_half)

    def best_after(self, plays):
        """[replications] plays of a best arm within the first `plays`, one of the points or 0."""
        return self.best[:, np.searchsorted(self.points, plays)] if plays else np.zeros(len(self.best))

    @property
    def label(self):
        """The policy and the parameters that were set: "d-ucb gamma=0.98"."""
        return " ".join([self.policy, *(f"{name}={value:g}" for name, value in self.parameters.items())])

    def regret_curve(self):
        """DataFrame policy, play, mean, low, high: the regret so far, and the middle 90 % of replications."""
        return self._curve(self.regret)

    def share_curve(self):
        """As `regret_curve`, for the best arm's share of the plays between two points."""
        return self._curve(np.diff(self.best, prepend=0, axis=1) / np.diff(self.points, prepend=0))

    def arm_shares(self):
        """DataFrame arm (its mean), play, share: each arm's share of the first replication's plays so far, at
        the points within the plays that were kept."""
        played = self.arms_played[:, None] == np.arange(self.problem.arms)
        points = self.points[self.points <= len(played)]
        share = np.cumsum(played, axis=0)[points.astype(int) - 1] / points[:, None]
        table = pd.DataFrame(share, columns=[f"{mean:g}" for mean in self.problem.means[0]])
        return table.assign(play=points).melt("play", var_name="arm", value_name="share")

    def _curve(self, values):
        low, high = np.quantile(values, MIDDLE, axis=0)
        columns = {"play": self.points, "mean": values.mean(axis=0), "low": low, "high": high}
        return pd.DataFrame({"policy": self.label, **columns})

    def record(self):
        """What `--json` prints."""
        return {
            "policy": self.policy,
            "parameters": self.parameters,
            "means": list(self.problem.means[0]),
            "changes": [
                {"step": s, "means": list(m)}
                for s, m in zip(self.problem.starts[1:], self.problem.means[1:], strict=True)
            ],
            "rewards": self.problem.rewards_text,
            "horizon": self.horizon,
            "replications": self.replications,
            "seed": self.seed,
            "pulls": [_short(x) for x in self.pulls.mean(axis=0)],
            "first_arms": "".join(f"{arm:x}" for arm in self.arms_played[:FIRST_ARMS]),
            "mean_regret": _interval(self.total_regret),
            "share_best": _interval(self.share_best),
            "share_best_last_half": _interval(self.share_best_last_half),
            "restarts": _short(self.restarts.mean()),
        }


def _interval(interval):
    return {name: _short(getattr(interval, name)) for name in ("mean", "low", "high")}


def _short(value):
    """A float for JSON: whole numbers as such, what is not finite as null."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(value)


def contest_table(outcomes):
    """DataFrame, one row per outcome, smallest regret first: regret and shares with their 95 % intervals.

    share_best_least and share_best_most hold the middle 90 % of the replications.
    """
    rows = []
    for o in outcomes:
        row = {"policy": o.label}
        for name in ("total_regret", "share_best", "share_best_last_half"):
            value = getattr(o, name)
            row |= {name: value.mean, f"{name}_low": value.low, f"{name}_high": value.high}
        least, most = np.quantile(o.best[:, -1] / o.horizon, MIDDLE)
        rows.append(row | {"share_best_least": least, "share_best_most": most, "restarts": o.restarts.mean()})
    return pd.DataFrame(rows).sort_values("total_regret", ignore_index=True)


def curves(outcomes, kind="regret"):
    """DataFrame policy, play, mean, low, high of all of them. kind: "regret" or "share" of the best arm."""
    return pd.concat([getattr(outcome, f"{kind}_curve")() for outcome in outcomes], ignore_index=True)


# --- as rows of a parquet file ------------------------------------------------------------------------------


def to_row(outcome):
    """A dict that parquet can hold. Reference data is to stay small: single precision, few single plays."""
    arrays = {name: getattr(outcome, name) for name in ("regret", "best", "pulls", "restarts")}
    return {
        "policy": outcome.policy,
        "parameters": json.dumps(outcome.parameters),
        "means": json.dumps(outcome.problem.means),
        "starts": list(outcome.problem.starts),
        "rewards": outcome.problem.rewards_text,
        "horizon": outcome.horizon,
        "replications": outcome.replications,
        "seed": outcome.seed,
        "points": outcome.points.astype(np.int32),
        "arms_played": outcome.arms_played[:KEPT_PLAYS].astype(np.uint8),
        **{name: array.ravel().astype(np.float32) for name, array in arrays.items()},
    }


def from_row(row):
    """The Outcome of such a row; arms_played has only the plays that were kept, rewards_seen is empty."""
    starts, means = tuple(int(s) for s in row["starts"]), json.loads(row["means"])
    task = Problem(tuple(tuple(piece) for piece in means), starts, *parse_rewards(row["rewards"]))
    shaped = {name: row[name].reshape(row["replications"], -1) for name in ("regret", "best", "pulls")}
    return Outcome(
        row["policy"], json.loads(row["parameters"]), task, row["horizon"], row["replications"], row["seed"],
        row["points"], **shaped, restarts=row["restarts"], arms_played=row["arms_played"],
        rewards_seen=np.empty(0),
    )  # fmt: skip
