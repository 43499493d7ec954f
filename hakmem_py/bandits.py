"""Bandit policies in simulated environments: the C policies that ship, against means that are known.

A policy picks one of `arms` arms per play and is told its reward. Where the means are known, so is the
*pseudo-regret*: the sum over the plays of the best mean at that time minus the mean of the arm played (Auer,
Cesa-Bianchi, Fischer, Machine Learning 47, 2002). Arms count from 0; the point n of a
curve is what holds after n plays.

    simulate("ucb1", [.1, .2, .3, .4, .5, .6], rewards="bernoulli", horizon=10_000, replications=1000)
    contest(["ucb1", "ucb-scaled", "round-robin"], [.90, .94, .97, 1.0, .98, .95], rewards="gaussian:0.02")

Means that change: `changes` = {plays made: means}, or a file (see `problems.read_changes`).
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from numbers import Integral

import numpy as np
import pandas as pd

from . import provenance
from .estimates import bracketed
from .outcomes import FIRST_ARMS, Outcome, contest_table, curves, from_row, to_row  # noqa: F401
from .problems import REWARDS, BanditError, problem, read_changes
from .store import REFERENCE, demand_json, read_table, save_json, save_table

CHUNK = 16  # replications a thread takes at a time ...
CHUNK_PLAYS = 10**7  # ... but no more plays than these, if it can: nobody can stop it meanwhile
MOST_PLAYS = 10**8  # of a replication; of the first one every play is kept
MOST_REPLICATIONS = 10**7
SETTINGS = ("rewards", "horizon", "replications", "seed", "changes", "points")


# --- the C policies -----------------------------------------------------------------------------------------


@cache
def _core():
    """(ffi, lib) of the release build."""
    from . import native

    module = native.load()
    return module.ffi, module.lib


@cache
def policies():
    """DataFrame of what ships, by policy: what, parameters {name: (preset, minimum, maximum, what)}."""
    ffi, lib = _core()
    rows, row = [], ffi.new("hak_policy_t *")
    for number in range(lib.hak_policy_count()):
        lib.hak_policy_read(number, row)
        rows.append((_text(row.name), _text(row.what), _parameters(number, row.parameters)))
    return pd.DataFrame(rows, columns=["policy", "what", "parameters"]).set_index("policy")


def _parameters(policy, count):
    ffi, lib = _core()
    found, p = {}, ffi.new("hak_parameter_t *")
    for number in range(count):
        lib.hak_policy_parameter(policy, number, p)
        found[_text(p.name)] = (p.preset, p.minimum, p.maximum, _text(p.what))
    return found


def _text(pointer):
    return _core()[0].string(pointer).decode()


class Bandit:
    """One C bandit with the select and update of any policy object; `table` shows what it thinks."""

    def __init__(self, policy, arms, seed=0, **parameters):
        self.policy, self.arms = policy, arms
        self.c = _new_bandit(policy, arms, seed, parameters)

    def select(self):
        """The arm to play now, from 0."""
        return _core()[1].hak_bandit_select(self.c)

    def update(self, arm, reward, busy=0.0, price=None):
        """The arm was played and gave this reward, larger is better.

        busy: share (0 to 1) of visits to the depot that found it busy, for bonwick. price: the part of the
        reward that memory cost, for ucb-near. ACE's events tell both, so that a history can be replayed.
        """
        if price is not None:
            _core()[1].hak_bandit_price(self.c, arm, price)
        _core()[1].hak_bandit_update_busy(self.c, arm, reward, busy)

    def table(self):
        """DataFrame, one row per arm: pulls, mean, bonus, index."""
        lib = _core()[1]
        columns = {
            "pulls": lib.hak_bandit_pulls,
            "mean": lib.hak_bandit_mean,
            "bonus": lib.hak_bandit_bonus,
            "index": lib.hak_bandit_index,
        }
        return pd.DataFrame({n: [read(self.c, i) for i in range(self.arms)] for n, read in columns.items()})


def _new_bandit(policy, arms, seed, parameters):
    ffi, lib = _core()
    if policy not in policies().index:
        raise BanditError(f"policy {policy!r} is not known; allowed: {', '.join(policies().index)}")
    bandit = ffi.new("hak_bandit_t *")
    if lib.hak_bandit_init(bandit, lib.hak_policy_find(policy.encode()), arms, seed) != 0:
        raise BanditError(f"{arms} arms are not possible; allowed: 1 to {lib.HAK_BANDIT_ARMS}")
    for name, value in parameters.items():
        if lib.hak_bandit_set(bandit, name.encode(), float(value)) != 0:
            raise BanditError(f"{policy} cannot take {name}={value:g}; allowed: {_allowed(policy)}")
    return bandit


def _allowed(policy):
    takes = policies().parameters[policy].items()
    return ", ".join(f"{name} {low:g} to {high:g}" for name, (_, low, high, _) in takes) or "no parameter"


# --- playing ------------------------------------------------------------------------------------------------


def simulate(
    policy,
    means,
    rewards="bernoulli",
    horizon=1000,
    replications=100,
    seed=1,
    changes=None,
    points=200,
    **parameters,
):
    """Outcome of one policy, replications shared among all cores. Raises BanditError.

    `means`: mean reward of each arm. `horizon`: plays of a replication. `changes`: {plays made before: means
    from then on}, or the path of a file (see `read_changes`). `points`: about how many points a curve has.
    Further keywords are the policy's parameters. The same seed gives the same outcome on any number of cores,
    and the same reward randomness to every policy.
    """
    return contest([(policy, parameters)], means, rewards, horizon, replications, seed, changes, points)[0]


def contest(
    entries, means, rewards="bernoulli", horizon=1000, replications=100, seed=1, changes=None, points=200
):
    """As `simulate`, for several policies: [Outcome]. An entry is a name or (name, {parameter: value})."""
    entries = [(entry, {}) if isinstance(entry, str) else entry for entry in entries]
    task = _checked_problem(means, rewards, changes, horizon, replications)
    learners = [_new_bandit(name, task.arms, 0, parameters) for name, parameters in entries]
    places = reading_points(horizon, points)
    _whole("seed", seed, 0, 2**64 - 1)
    step = max(1, min(CHUNK, CHUNK_PLAYS // horizon))
    chunks = [(first, min(step, replications - first)) for first in range(0, replications, step)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # threads suffice: C runs without the interpreter's lock
        try:
            jobs = [
                [pool.submit(_run, b, task, horizon, *chunk, seed, places) for chunk in chunks]
                for b in learners
            ]
            parts = [_joined([job.result() for job in row]) for row in jobs]
        except BaseException:  # such as the user's stop: the pool alone would play all that is left
            pool.shutdown(cancel_futures=True)
            raise
    return [
        Outcome(name, parameters, task, horizon, replications, seed, places, *part)
        for (name, parameters), part in zip(entries, parts, strict=True)
    ]


def _checked_problem(means, rewards, changes, horizon, replications):
    task = problem(
        means, rewards, changes if changes is None or isinstance(changes, dict) else read_changes(changes)
    )
    _whole("horizon", horizon, 1, MOST_PLAYS)
    _whole("replications", replications, 1, MOST_REPLICATIONS)
    if task.starts[-1] >= horizon:
        raise BanditError(f"a change at step {task.starts[-1]} is never reached; allowed: 1 to {horizon - 1}")
    return task


def _whole(name, value, low, high):
    if not isinstance(value, Integral) or not low <= value <= high:
        raise BanditError(f"{name} {value!r} is not possible; allowed: whole numbers, {low} to {high}")


def reading_points(horizon, points):
    """Plays after which curves are read: about `points`, evenly spaced, and half of the horizon and all."""
    if not isinstance(points, Integral) or points < 1:
        raise BanditError(f"points {points!r}: allowed: whole numbers, 1 or more")
    places = np.linspace(0, horizon, min(points, horizon) + 1).round().astype(np.uint64)
    return np.setdiff1d(np.append(places, np.uint64(horizon // 2)), [0]).astype(np.uint64)


def _joined(parts):
    regret, best, pulls, restarts, arms, rewards = zip(*parts, strict=True)
    return *(np.concatenate(a) for a in (regret, best, pulls, restarts)), arms[0], rewards[0]


def _run(learner, task, horizon, first, count, seed, places):
    """`count` replications in C: regret, best, pulls, restarts of each, arms and rewards of the first."""
    ffi, lib = _core()
    shape = (count, len(places))
    regret, best = np.empty(shape), np.empty(shape, np.uint64)
    pulls, restarts = np.empty((count, task.arms), np.uint64), np.empty(count, np.uint64)
    traced = horizon if first == 0 else 0  # plays kept one by one
    arms, rewards = np.empty(traced, np.uint8), np.empty(traced)
    means, starts = np.array(task.means), np.array(task.starts, np.uint64)
    kind = getattr(lib, f"HAK_REWARDS_{task.rewards.upper()}")

    def memory(ctype, array):
        return ffi.cast(ctype, array.ctypes.data)

    given = ffi.new("hak_problem_t *", {
        "arms": task.arms, "segments": len(starts), "start": memory("uint64_t *", starts),
        "mean": memory("double *", means), "rewards": kind, "deviation": task.deviation,
    })  # fmt: skip
    out = ffi.new("hak_outcome_t *", {
        "points": len(places), "point": memory("uint64_t *", places), "regret": memory("double *", regret),
        "best": memory("uint64_t *", best), "pulls": memory("uint64_t *", pulls),
        "restarts": memory("uint64_t *", restarts),
        "arm": memory("unsigned char *", arms) if traced else ffi.NULL,
        "reward": memory("double *", rewards) if traced else ffi.NULL,
    })  # fmt: skip
    lib.hak_simulate(learner, given, horizon, first, count, seed, out)
    return regret, best, pulls, restarts, arms, rewards


def play(make, means, rewards="bernoulli", horizon=1000, replications=20, seed=1, changes=None, points=200):
    """Outcome of your own policy: `make(arms, seed)` gives an object with select() and update(arm, reward).

    Runs in Python, so a thousand times slower than `simulate`; rewards come from NumPy's generator.
    """
    task = _checked_problem(means, rewards, changes, horizon, replications)
    places = reading_points(horizon, points)
    _whole("seed", seed, 0, 2**64 - 1)
    parts = [_play_once(make, task, horizon, seed, r, places) for r in range(replications)]
    name = getattr(make, "__name__", type(make).__name__)
    return Outcome(name, {}, task, horizon, replications, seed, places, *_joined(parts))


def _policy_seed(seed, replication):
    """A 32-bit seed for a policy that draws: one for each seed and replication, and not that of rewards."""
    return int(np.random.SeedSequence([seed, replication, 1]).generate_state(1)[0])


def _play_once(make, task, horizon, seed, replication, places):
    random = np.random.default_rng([seed, replication])
    policy = make(task.arms, _policy_seed(seed, replication))
    means = task.at(np.arange(horizon))
    arms, rewards = np.empty(horizon, int), np.empty(horizon)
    for t in range(horizon):
        arm = policy.select()
        if isinstance(arm, bool) or not isinstance(arm, Integral) or arm not in range(task.arms):
            raise BanditError(f"select() gave {arm!r} at play {t}; allowed: 0 to {task.arms - 1}")
        arms[t] = arm
        rewards[t] = task.draw(means[t, arm], random)
        policy.update(arm, rewards[t])
    gaps = means.max(axis=1) - means[np.arange(horizon), arms]
    at = places.astype(int) - 1
    pulls = np.bincount(arms, minlength=task.arms)
    return np.cumsum(gaps)[None, at], np.cumsum(gaps == 0)[None, at], pulls[None], np.zeros(1), arms, rewards


class Lab:
    """The simulations of a notebook: computed, or read from data/reference/NOTEBOOK (needs no compiler)."""

    def __init__(self, notebook, reference=False):
        self.file = REFERENCE / notebook / "outcomes.parquet"
        self.kept = _read(self.file) if reference else {}
        facts = self.file.with_name("facts.json")
        self.facts = demand_json(facts) if reference else None
        self.reference = reference

    def simulate(self, policy, means, **settings):
        """As the function `simulate`: the keywords are its settings and the policy's parameters."""
        known = {name: settings.pop(name) for name in list(settings) if name in SETTINGS}
        return self.contest([(policy, settings)], means, **known)[0]

    def contest(self, entries, means, **settings):
        """As the function `contest`. Raises BanditError where the reference holds no such simulation."""
        entries = [(entry, {}) if isinstance(entry, str) else entry for entry in entries]
        keys = [json.dumps([*entry, list(means), settings], sort_keys=True) for entry in entries]
        if not self.reference:
            self.kept |= zip(keys, contest(entries, means, **settings), strict=True)
        missing = [entry for entry, key in zip(entries, keys, strict=True) if key not in self.kept]
        if missing:
            asked = f"{missing[0][0]} over {settings.get('horizon', 1000)} plays of this problem"
            raise BanditError(f"{self.file} has no simulation of {asked}; simulate it with reference = False")
        return [self.kept[key] for key in keys]

    def replay(self):
        """{key: Outcome} of the kept simulations, played anew by the library as it is now."""
        played = {}
        for key in self.kept:
            policy, parameters, means, settings = json.loads(key)
            if settings.get("changes"):
                settings["changes"] = {int(step): after for step, after in settings["changes"].items()}
            played[key] = contest([(policy, parameters)], means, **settings)[0]
        return played

    def freeze(self):
        """Makes what was simulated so far the reference, with the facts of this machine beside it."""
        save_json(self.file.parent, "facts.json", provenance.collect())
        rows = [{"key": key, **to_row(outcome)} for key, outcome in self.kept.items()]
        save_table(self.file.parent, self.file.name, pd.DataFrame(rows))


def _read(file):
    """{key: Outcome} of a reference file."""
    if not file.exists():
        raise BanditError(f"there is no reference in {file}: simulate with reference = False")
    return {row["key"]: from_row(row) for row in read_table(file).to_dict("records")}


# --- command line -------------------------------------------------------------------------------------------


def add_simulate(parser):
    parser.description = "Play a bandit policy against arms of known means."
    add = parser.add_argument
    add("--policy", default="ucb1", help="a policy, default ucb1; an unknown name lists them all")
    add(
        "--means",
        required=True,
        help="mean reward of each arm, separated by commas; write --means=-1,... if the first is negative",
    )
    add("--rewards", default="bernoulli", help=f"one of {', '.join(REWARDS)}")
    add("--horizon", type=int, default=1000, help="plays of a replication, default 1000")
    add("--replications", type=int, default=1000, help="runs with other chances; default 1000")
    add("--seed", type=int, default=1, help="seed of all chance; default 1")
    add(
        "--changes",
        metavar="FILE",
        help="file of later means: CSV lines step,mean,... or TOML [[change]] tables with step and means",
    )
    add("--param", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the policy")
    add("--json", action="store_true", help="print one JSON object")
    parser.error = lambda message: parser.exit(2, f"hakmem simulate: {message}\n")
    parser.set_defaults(run=lambda args: _command(args, parser))


def _command(args, parser):
    try:
        entry = args.policy, dict(_assignment(text) for text in args.param)
        outcome = contest(
            [entry],
            _numbers(args.means),
            args.rewards,
            args.horizon,
            args.replications,
            args.seed,
            args.changes,
        )[0]
    except BanditError as error:
        parser.error(str(error))
    print(json.dumps(outcome.record(), indent=2) if args.json else _report(outcome))


def _numbers(text):
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise BanditError(f"means {text!r} cannot be read; allowed: numbers separated by commas") from None


def _assignment(text):
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise BanditError(f"parameter {text!r} cannot be read; allowed: NAME=NUMBER") from None


def _report(outcome):
    """The outcome as text for a reader."""

    def words(interval):
        return bracketed(interval.mean, interval.low, interval.high, ".4g")

    task, pulls = outcome.problem, outcome.pulls.mean(axis=0)
    lines = [
        f"{outcome.label}: {outcome.horizon} plays, {task.rewards_text} rewards, "
        f"{outcome.replications} replications, seed {outcome.seed}",
        f"{'arm':>4} {'mean':>8} {'pulls':>10} {'share':>7}",
    ]
    for arm in range(task.arms):
        share = pulls[arm] / outcome.horizon
        lines.append(f"{arm:>4} {task.means[0][arm]:>8.4g} {pulls[arm]:>10.1f} {share:>7.1%}")
    for start, means in zip(task.starts[1:], task.means[1:], strict=True):
        lines.append(f"means from play {start} on: {', '.join(f'{mean:g}' for mean in means)}")
    return "\n".join([
        *lines,
        f"first arms            {''.join(f'{arm:x}' for arm in outcome.arms_played[:FIRST_ARMS])}",
        f"pseudo-regret         {words(outcome.total_regret)}",
        f"share of the best arm {words(outcome.share_best)}, last half {words(outcome.share_best_last_half)}",
    ])  # fmt: skip
