"""The C policies: exact to their papers, and equal to implementations that share no line with them."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hakmem_py import bandits
from hakmem_py.build import COMMON
from hakmem_py.problems import ACE_MEANS, ACE_REWARDS, ACE_WINDOWS, BanditError

ROOT = Path(__file__).parents[1]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SIX = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    """tests/native/policy.c, built with the sanitizers."""
    program = tmp_path_factory.mktemp("policy") / "policy"
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *SANITIZERS]
    includes = [f"-I{ROOT / 'native/src'}", f"-I{ROOT / 'native/include'}"]
    source = ROOT / "tests/native/policy.c"
    subprocess.run(["gcc", *flags, *includes, source, "-o", program, "-lm"], check=True)
    return program


def test_every_promise_of_the_policies_holds(inside):
    promises = subprocess.run([inside], capture_output=True, text=True, check=True).stdout.split()
    assert len(promises) > 10
    for promise in promises:
        run = subprocess.run([inside, promise], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("above", "built"), [("\n};\n/* clang-format on */", True), ("    [POLICY_DEFAULT]", False)]
)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_row_of_ones_own_is_not_lost_unseen(tmp_path, compiler, above, built):
    """At the end of the table it is a policy more; above the default's row, that one would take its place."""
    native = shutil.copytree(ROOT / "native", tmp_path / "native", ignore=shutil.ignore_patterns("build"))
    table, last = native / "src/ace/policy.c", native / "src/types.h"
    row = '\n    {"mine", "", robin_pick, mean_index, NULL, 0.0, false, 0, {{0}}},\n'
    table.write_text(table.read_text().replace(above, row + above.lstrip("\n"), 1))
    rows = 22 if built else 21  # the other table is as long as it was, so its length says nothing
    last.write_text(last.read_text().replace("POLICY_LAST 20 ", f"POLICY_LAST {rows - 1} "))
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    words = [compiler, *COMMON, f"-I{native / 'include'}", "-fsyntax-only", native / "src/hakmem.c"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode == 0) == built, done.stderr


# --- the papers' formulas, in NumPy ------------------------------------------------------------------------


def ucb1(t, n, mean, square):
    return mean + np.sqrt(2 * np.log(t) / n)


def ucb1_tuned(t, n, mean, square):
    variance = square - mean**2 + np.sqrt(2 * np.log(t) / n)
    return mean + np.sqrt(np.log(t) / n * np.minimum(0.25, variance))


def scaled(t, n, mean, square):
    return mean + 0.02 * np.sqrt(2 * np.log(t) / n)


def replay(index, arms, rewards, count):
    """Asserts that each arm in the record is the one that `index` names, given the rewards in the record."""
    n, total, square = np.zeros(count), np.zeros(count), np.zeros(count)
    for t, (arm, reward) in enumerate(zip(arms, rewards, strict=True)):
        expected = t if t < count else int(np.argmax(index(t, n, total / n, square / n)))
        assert arm == expected, f"play {t}"
        n[arm], total[arm], square[arm] = n[arm] + 1, total[arm] + reward, square[arm] + reward**2


@pytest.mark.parametrize(
    ("policy", "index", "parameters"),
    [("ucb1", ucb1, {}), ("ucb1-tuned", ucb1_tuned, {}), ("ucb-scaled", scaled, {"scale": 0.02})],
)
@pytest.mark.parametrize("rewards", ["exact", "bernoulli", "gaussian:0.1"])
def test_index_policies_equal_their_formula_play_by_play(policy, index, parameters, rewards):
    run = bandits.simulate(policy, SIX, rewards, 3000, replications=1, seed=3, **parameters)
    replay(index, run.arms_played, run.rewards_seen, 6)


def test_sliding_window_equals_its_definition_play_by_play():
    tau, xi = 200, 0.6
    run = bandits.simulate("sw-ucb", SIX, "bernoulli", 2000, replications=1, seed=4, tau=tau, xi=xi)
    arms, rewards = run.arms_played, run.rewards_seen
    for t in range(6, 2000):
        window = slice(max(0, t - tau), t)
        n = np.bincount(arms[window], minlength=6)
        sums = np.bincount(arms[window], rewards[window], minlength=6)
        with np.errstate(divide="ignore", invalid="ignore"):
            index = np.where(n > 0, sums / n + np.sqrt(xi * np.log(min(t, tau)) / n), np.inf)
        assert arms[t] == np.argmax(index)


def test_discounted_ucb_equals_its_definition_play_by_play():
    gamma, xi, bound = 0.98, 0.6, 0.5
    run = bandits.simulate(
        "d-ucb", SIX, "bernoulli", 1500, replications=1, seed=5, gamma=gamma, xi=xi, scale=bound
    )
    arms, rewards = run.arms_played, run.rewards_seen
    for t in range(6, 1500):
        powers = gamma ** np.arange(t - 1, -1, -1)
        n = np.bincount(arms[:t], powers, minlength=6)
        sums = np.bincount(arms[:t], powers * rewards[:t], minlength=6)
        index = sums / n + 2 * bound * np.sqrt(xi * np.log(n.sum()) / n)
        gap = np.sort(index)[-1] - np.sort(index)[-2]
        assert arms[t] == np.argmax(index) or gap < 1e-9


def test_mabwiser_agrees_on_ucb1():
    """An independent library as oracle: its alpha = 1 is the UCB1 of Auer et al."""
    mabwiser = pytest.importorskip("mabwiser.mab")
    oracle = mabwiser.MAB(list(range(6)), mabwiser.LearningPolicy.UCB1(alpha=1))
    oracle.fit(list(range(6)), SIX)
    ours = bandits.Bandit("ucb1", 6)
    for arm in range(6):
        ours.update(arm, SIX[arm])
    for _ in range(150):
        assert ours.select() == oracle.predict()
        arm = ours.select()
        ours.update(arm, SIX[arm])
        oracle.partial_fit([arm], [SIX[arm]])


# --- check values ----------------------------------------------------------------------------------------


def test_ucb1_meets_the_stochastic_check_value():
    regret = bandits.simulate("ucb1", SIX, "bernoulli", 10_000, 1000).total_regret
    assert abs(regret.mean - 261.7) < 3 * 1.8
    assert regret.high - regret.low < 4.5


def test_exact_ucb1_cannot_learn_aces_problem_and_the_scaled_one_can():
    def share(policy, plays):
        return bandits.simulate(policy, ACE_MEANS, ACE_REWARDS, plays, 100).share_best.mean

    assert share("ucb1", ACE_WINDOWS) == pytest.approx(0.21, abs=0.01)
    assert share("ucb1", 6 * ACE_WINDOWS) == pytest.approx(0.266, abs=0.01)
    assert share("ucb-scaled", ACE_WINDOWS) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    "policy", ["ucb1-tuned", "ucb-scaled", "kl-ucb", "thompson", "thompson-gaussian", "halving"]
)
def test_learners_settle_on_the_best_arm(policy):
    run = bandits.simulate(policy, SIX, "bernoulli", 5000, 50)
    assert run.share_best_last_half.mean > 0.9
    assert run.total_regret.mean < bandits.simulate("ucb1", SIX, "bernoulli", 5000, 50).total_regret.mean


def test_only_policies_that_forget_recover_from_a_change():
    turned = {600: ACE_MEANS[::-1]}
    runs = bandits.contest(
        ["ucb-scaled", "ucb-restart", "ucb-recall", ("d-ucb", {"gamma": 0.98, "scale": 0}),
         ("thompson-gaussian", {"gamma": 0.98})],
        ACE_MEANS, ACE_REWARDS, ACE_WINDOWS, 100, changes=turned,
    )  # fmt: skip
    stuck, *recovered = [run.share_best_last_half.mean for run in runs]
    assert stuck < 0.5 < min(recovered)
    assert runs[1].restarts.mean() >= 0.99


def test_halving_finds_the_best_of_twelve_strategies_where_elo_often_fails():
    means = [1.0, 0.99, *np.linspace(0.97, 0.80, 10)]
    runs = bandits.contest(["elo", "halving"], means, "gaussian:0.03", 700, 400, points=700)
    elo, halving = [np.mean(run.best[:, -1] > run.best_after(699)) for run in runs]
    assert halving > 0.9 > elo


def test_unknown_policies_arms_and_parameters_are_refused_by_name():
    with pytest.raises(BanditError, match="allowed: ucb1, "):
        bandits.Bandit("ucb9", 3)
    with pytest.raises(BanditError, match="allowed: 1 to 16"):
        bandits.Bandit("ucb1", 17)
    with pytest.raises(BanditError, match="gamma 0 to 1"):
        bandits.Bandit("d-ucb", 3, gamma=2)


def test_every_policy_says_what_it_is_and_what_it_takes():
    for _, what, parameters in bandits.policies().itertuples():
        assert len(what) > 10
        assert all(low <= preset <= high for preset, low, high, _ in parameters.values())
