"""The simulator and its command: problems, changes, curves, what it prints, what it refuses."""

import json
import math
import os
import signal
import threading
import time

import numpy as np
import pandas as pd
import pytest

from hakmem_py import bandits, cli, figures, outcomes, store
from hakmem_py.problems import BanditError, problem, read_changes
from hakmem_py.store import REFERENCE

SIX = ".1,.2,.3,.4,.5,.6"


def run(capsys, *words):
    """(exit status, stdout, stderr) of `hakmem simulate WORDS`."""
    try:
        status = cli.main(["simulate", *words])
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


def test_json_holds_what_the_command_promises(capsys):
    status, out, _ = run(
        capsys, "--policy", "ucb1", "--means", SIX, "--rewards", "exact", "--horizon", "100",
        "--replications", "3", "--seed", "1", "--json",
    )  # fmt: skip
    record = json.loads(out)
    assert status == 0
    assert record["pulls"] == [9, 10, 13, 16, 22, 30]
    assert record["first_arms"].startswith("012345543210543251405342531450")
    assert record["mean_regret"]["mean"] == pytest.approx(0.5 * 9 + 0.4 * 10 + 0.3 * 13 + 0.2 * 16 + 0.1 * 22)
    assert record["share_best"]["mean"] == pytest.approx(0.30)
    assert 0 < record["share_best_last_half"]["mean"] < 1


def test_the_text_is_for_readers(capsys):
    status, out, _ = run(
        capsys, "--means", SIX, "--horizon", "500", "--replications", "20", "--policy", "thompson"
    )
    assert status == 0
    assert "pseudo-regret" in out
    assert "last half" in out


def test_one_replication_has_no_interval(capsys):
    status, out, _ = run(capsys, "--means", SIX, "--replications", "1", "--policy", "ucb1")
    assert status == 0
    assert "pseudo-regret" in out and "nan" not in out


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["--policy", "ucb9", "--means", SIX], "ucb1, ucb1-tuned"),
        (["--means", "a,b"], "numbers separated by commas"),
        (["--means", ".5,2"], "0 to 1"),
        (["--means", SIX, "--rewards", "normal"], "exact, bernoulli, gaussian:SD"),
        (["--means", SIX, "--rewards", "gaussian:-1"], "SD >= 0"),
        (["--means", SIX, "--rewards", "gaussian"], "SD >= 0"),
        (["--means", SIX, "--param", "tau=5"], "restart 0 to"),
        (["--means", SIX, "--param", "tau"], "NAME=NUMBER"),
        (["--means", SIX, "--policy", "sw-ucb", "--param", "tau=0"], "tau 1 to"),
        (["--means", SIX, "--horizon", "0"], "1 to 100000000"),
        (["--means", SIX, "--replications", "-1"], "1 to 10000000"),
        (["--means", SIX, "--horizon", "1" + 30 * "0"], "1 to 100000000"),
        (["--means", SIX, "--param", "seed=5"], "cannot take seed=5"),
        (["--means", SIX, "--seed", "-1"], "0 to"),
        (["--means", SIX, "--changes", "nowhere.toml"], "[[change]]"),
        (["--means", ",".join(["1"] * 17)], "1 to 16"),
        ([], "--means"),
    ],
)
def test_bad_input_is_one_line_that_names_what_is_allowed(capsys, words, allowed):
    status, out, err = run(capsys, *words)
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert allowed in err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.csv", "step,low,high\n50,0.9,0.1\n"),
        ("c.csv", "50,0.9,0.1\n"),
        ("c.csv", "\ufeffStep,low,high\n50,0.9,0.1\n"),
        ("c.json", '[{"step": 50, "means": [0.9, 0.1]}]'),
        ("c.toml", "[[change]]\nstep = 50\nmeans = [0.9, 0.1]\n"),
    ],
)
def test_change_files_give_piecewise_means(capsys, tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    assert read_changes(file) == {50: [0.9, 0.1]}
    words = "--policy fixed --means 0,1 --rewards exact --horizon 100 --json --changes"
    record = json.loads(run(capsys, *words.split(), str(file))[1])
    assert record["mean_regret"]["mean"] == pytest.approx(50 * 1.0 + 50 * 0.0)
    assert record["share_best_last_half"]["mean"] == 1
    assert record["changes"] == [{"step": 50, "means": [0.9, 0.1]}]


def test_changes_that_cannot_be_are_refused():
    for changes, words in (
        ({0: [1, 0]}, "from 1"),
        ({5: [1]}, "allowed: 2"),
        ({100: [1, 0]}, "never reached"),
        ({"10": [1, 0], 5: [1, 0]}, "'10' is not possible"),
        ({math.nan: [1, 0]}, "nan is not possible"),
    ):
        with pytest.raises(BanditError, match=words):
            bandits.simulate("ucb1", [0, 1], horizon=100, changes=changes)
    with pytest.raises(BanditError, match="points 0"):
        bandits.simulate("ucb1", [0, 1], horizon=100, points=0)


@pytest.mark.parametrize("asked", [{"horizon": 100.5}, {"horizon": 1e3}, {"seed": 1.5}, {"points": 2.5}])
def test_what_counts_is_whole(asked):
    for play in (bandits.simulate, bandits.play):
        with pytest.raises(BanditError, match="whole numbers"):
            play("ucb1", [0, 1], **asked)


def test_what_is_not_finite_is_null(capsys):
    words = ["--means=1e300,-1e300", "--rewards", "gaussian:1e299", "--replications", "20", "--json"]
    with np.errstate(over="ignore"):
        status, out, _ = run(capsys, *words)
    assert status == 0 and json.loads(out)["mean_regret"]["high"] is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("twice.csv", "50,1,0\n50,0,1\n"),
        ("half.toml", "[[change]]\nstep = 50.5\nmeans = [1, 0]\n"),
        ("true.toml", "[[change]]\nstep = true\nmeans = [1, 0]\n"),
        ("empty.csv", ""),
        ("long.csv", "50," + "1" * 200_000 + ",0\n"),
    ],
)
def test_change_files_that_cannot_be_are_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(BanditError, match=name):
        read_changes(tmp_path / name)


def test_means_over_time_follow_the_changes():
    task = problem([0, 1], "exact", {10: [1, 0], 20: [2, 2]})
    assert task.at(np.array([0, 9, 10, 19, 20, 99])).tolist() == [[0, 1]] * 2 + [[1, 0]] * 2 + [[2, 2]] * 2


def test_a_seed_fixes_everything_and_replications_differ():
    a, b, other = (
        bandits.simulate("thompson", [0.4, 0.6], horizon=200, replications=40, seed=s) for s in (5, 5, 6)
    )
    assert (a.regret == b.regret).all()
    assert (a.pulls == b.pulls).all()
    assert (a.pulls != other.pulls).any()
    assert len(np.unique(a.regret[:, -1])) > 10


def test_a_part_of_the_replications_is_the_same_part():
    few, many = (bandits.simulate("ucb1", [0.4, 0.6], horizon=200, replications=n) for n in (7, 50))
    assert (few.pulls == many.pulls[:7]).all()


def test_a_long_simulation_ends_when_the_user_stops_it():
    start = time.monotonic()
    with cli.stopped_as_by_the_user(), pytest.raises(KeyboardInterrupt):
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()  # before, it would end the tests
        bandits.simulate("ucb1", [0.1, 0.9], horizon=10**7, replications=1000)
    assert time.monotonic() - start < 20


def test_curves_end_where_the_totals_are():
    outcome = bandits.simulate("ucb1", [0.2, 0.8], horizon=999, replications=30, points=50)
    curve = outcome.regret_curve()
    assert curve.play.iloc[-1] == 999
    assert curve["mean"].iloc[-1] == pytest.approx(outcome.total_regret.mean)
    assert (curve.low <= curve.high).all()
    assert curve["mean"].is_monotonic_increasing
    shares = outcome.share_curve()
    weights = np.diff(outcome.points, prepend=0)
    assert np.average(shares["mean"], weights=weights) == pytest.approx(outcome.share_best.mean)
    assert outcome.pulls.sum(axis=1).tolist() == [999] * 30


def test_contest_meets_every_policy_with_the_same_problem_and_orders_them():
    outcomes = bandits.contest(
        ["random", ("fixed", {"arm": 1}), "ucb1"], [0.2, 0.8], horizon=300, replications=20
    )
    table = bandits.contest_table(outcomes)
    assert table.policy.tolist() == ["fixed arm=1", "ucb1", "random"]
    assert table.total_regret[0] == 0


def test_an_interval_is_students_and_the_last_half_a_share_of_its_own():
    interval = outcomes.Interval.of([1.0, 2.0, 6.0])
    half = 4.302653 * np.sqrt(7 / 3)  # t of 2 degrees of freedom; the variance is 7
    assert (interval.mean, interval.low, interval.high) == pytest.approx((3, 3 - half, 3 + half), rel=1e-6)
    turned = bandits.simulate("fixed", [0, 1], "exact", 100, 2, changes={75: [1, 0]})
    assert turned.last_half.tolist() == [0.5, 0.5] and turned.share_best.mean == 0.25
    shares = turned.share_curve()
    assert set(shares["mean"]) == {0, 1} and (shares["mean"] == 1).sum() == 25  # between points, not so far
    few = bandits.simulate("random", [0.2, 0.8], horizon=50, replications=400)
    curve = few.regret_curve()
    ends = np.quantile(few.regret[:, -1], [0.05, 0.95])
    assert curve[["low", "high"]].iloc[-1].tolist() == pytest.approx(ends)


def test_a_policy_of_ones_own_plays_in_ten_lines():
    class Alternate:
        def __init__(self, arms, seed):
            self.arms, self.plays = arms, 0

        def select(self):
            return self.plays % self.arms

        def update(self, arm, reward):
            self.plays += 1

    own = bandits.play(Alternate, [0.2, 0.8], horizon=100, replications=3, changes={50: [0.8, 0.2]})
    assert own.pulls.tolist() == [[50, 50]] * 3
    assert own.total_regret.mean == pytest.approx(0.6 * 50)
    assert own.policy == "Alternate"


@pytest.mark.parametrize("arm", [0.0, True])
def test_an_arm_is_a_whole_number(arm):
    class Strange:
        def select(self):
            return arm

    with pytest.raises(BanditError, match=rf"select\(\) gave {arm} at play 0"):
        bandits.play(lambda arms, seed: Strange(), [0.2, 0.8], horizon=10)


def test_shares_end_where_the_single_plays_that_were_kept_do():
    long = bandits.simulate("ucb1", [0.2, 0.8], horizon=20_000, replications=2, points=10)
    kept = bandits.from_row(bandits.to_row(long)).arm_shares()
    whole = long.arm_shares()
    pd.testing.assert_frame_equal(kept, whole[whole.play <= 10_000].reset_index(drop=True), check_dtype=False)


def test_a_bandit_shows_what_it_thinks():
    bandit = bandits.Bandit("ucb1", 2)
    assert bandit.table()["index"].tolist() == [np.inf, np.inf]
    for _ in range(10):
        arm = bandit.select()
        bandit.update(arm, [0.3, 0.7][arm])
    table = bandit.table()
    assert table.pulls.sum() == 10
    np.testing.assert_allclose(table["index"], table["mean"] + table.bonus)
    np.testing.assert_allclose(table.bonus, np.sqrt(2 * np.log(10) / table.pulls))


def test_a_labs_reference_gives_the_same_tables_and_refuses_what_it_does_not_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(bandits, "REFERENCE", tmp_path)
    asked = {"rewards": "gaussian:0.1", "horizon": 300, "replications": 10, "changes": {100: [0.7, 0.2]}}
    lab = bandits.Lab("any")
    made = [*lab.contest(["ucb1", ("fixed", {"arm": 1})], [0.2, 0.8], **asked)]
    made.append(lab.simulate("d-ucb", [0.2, 0.8], gamma=0.9, **asked))
    lab.freeze()
    kept = bandits.Lab("any", reference=True)
    read = [*kept.contest(["ucb1", ("fixed", {"arm": 1})], [0.2, 0.8], **asked)]
    read.append(kept.simulate("d-ucb", [0.2, 0.8], gamma=0.9, **asked))
    frames = [bandits.contest_table(outcomes) for outcomes in (made, read)]
    pd.testing.assert_frame_equal(*frames, rtol=1e-6, check_dtype=False)
    for kind in ("regret", "share"):
        pd.testing.assert_frame_equal(
            *(bandits.curves(outcomes, kind) for outcomes in (made, read)), rtol=1e-6, check_dtype=False
        )
    assert kept.facts["python"]
    with pytest.raises(BanditError, match=r"of ucb1 over 500 plays.*reference = False") as refused:
        kept.simulate("ucb1", [0.2, 0.9], horizon=500, changes={step: [0.9, 0.2] for step in range(1, 400)})
    assert len(str(refused.value)) < 300
    with pytest.raises(BanditError, match="no reference"):
        bandits.Lab("other", reference=True)
    kept.file.write_bytes(kept.file.read_bytes()[:-9])
    with pytest.raises(store.StoreError, match="is damaged"):
        bandits.Lab("any", reference=True)


def test_figures_of_learners_say_what_they_show():
    outcomes = bandits.contest(["ucb1", "random"], [0.2, 0.8], horizon=200, replications=5)
    drawn = figures.contest(bandits.contest_table(outcomes))
    assert "ucb1" in drawn.layout.meta["alt"]
    played = figures.arms_played([0, 1, 1, 1], ["small", "large"], best=[1, 1, 1, 1])
    assert "large 75%" in played.layout.meta["alt"]
    shares = outcomes[0].arm_shares()
    assert shares[shares.play == 200].share.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    "notebook", sorted(path.parent.name for path in REFERENCE.glob("*/outcomes.parquet"))
)
def test_kept_simulations_are_those_of_todays_policies(notebook):
    """What a page shows by reference is what the library does."""
    lab = bandits.Lab(notebook, reference=True)
    played = lab.replay()
    other = [
        json.loads(key)[:2]
        for key, kept in lab.kept.items()
        if not np.allclose(played[key].regret[:, -1], kept.regret[:, -1], rtol=1e-5)
    ]
    assert not other, f"play them anew: python -m hakmem_py freeze {notebook}"
