"""Drifts and change points against series whose truth is known."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats as sps

from hakmem_py import provenance, timeline

RNG = np.random.default_rng


def correlated(rng, n, phi=0.4):
    noise = rng.normal(0, 1, n + 30)
    for i in range(1, len(noise)):
        noise[i] += phi * noise[i - 1]
    return noise[30:]


def test_slope_is_the_median_of_pairwise_slopes_and_deaf_to_wild_points():
    x = np.arange(12.0)
    y = 3 * x + 1
    y[[4, 9]] = 1000
    assert timeline.trend(x, y).slope == pytest.approx(3)


def test_what_never_moves_has_no_slope():
    found = timeline.trend(np.arange(20), np.full(20, 7.0))
    assert (found.slope, found.low, found.high) == (0, 0, 0) and found.steady


def test_interval_holds_the_truth_of_correlated_noise():
    held = []
    for seed in range(60):
        rng = RNG(seed)
        found = timeline.trend(np.arange(40), 0.05 * np.arange(40) + correlated(rng, 40), seed=seed)
        held.append(found.low <= 0.05 <= found.high)
    assert np.mean(held) >= 0.85  # 0.95 less three standard errors


def test_the_interval_is_two_sided():
    x, y = np.arange(27), RNG(1).normal(0, 1, 27)
    widths = [found.high - found.low for found in (timeline.trend(x, y, level) for level in (0.95, 0.9))]
    two = sps.t.ppf([0.975, 0.95], 2)  # degrees of freedom: three blocks of nine points
    assert widths[0] / widths[1] == pytest.approx(two[0] / two[1])


def test_drift_beside_a_reference_ignores_the_machine():
    rng, minutes = RNG(1), np.arange(60)
    machine = np.exp(0.02 * correlated(rng, 60) - 0.004 * minutes)  # the machine gets 24 % an hour faster
    noise = np.exp(rng.normal(0, 0.003, (2, 60)))
    subject, reference = machine * noise[0] * 1.05 ** (minutes / 60), machine * noise[1]
    assert timeline.drift(minutes, subject).high < 0
    beside = timeline.drift(minutes, subject, reference)
    assert beside.low < 100 * np.log(1.05) < beside.high and not beside.steady


def test_warm_up_is_not_judged():
    values = np.full(60, 100.0)
    values[:6] = 50
    assert timeline.drift(np.arange(60), values).slope == 0


def test_too_short_a_series_is_refused():
    with pytest.raises(ValueError, match="8 points"):
        timeline.trend(range(7), range(7))
    with pytest.raises(ValueError, match="there are 0"):  # a point alone has no slope
        timeline.drift(np.arange(30) / 60, np.exp(np.arange(30)), segment=np.arange(30))


def history(levels, noise=1e-4, each=5):
    rng = RNG(3)
    values = [level * (1 + noise * rng.normal()) for level in levels for _ in range(each)]
    return pd.DataFrame({"label": [f"c{i}" for i in range(len(values))], "value": values})


def test_a_regression_between_two_commits_is_named():
    found = timeline.change_points(history([48.0, 49.0, 49.0, 46.0]))
    assert found["at"].tolist() == ["c5", "c15"] and found["previous"].tolist() == ["c4", "c14"]
    assert found["kind"].tolist() == ["regression", "improvement"]
    assert (
        found["change"].iloc[0] == pytest.approx(1 / 48, rel=0.02) and "between c4 and c5" in found["text"][0]
    )


def test_the_newest_commit_is_judged_too():
    levels = history([48.0] * 4)
    levels.loc[19, "value"] = 48.5
    assert timeline.change_points(levels)["at"].tolist() == ["c19"]


def test_three_counted_commits_are_history_enough():
    counted = pd.DataFrame({"label": ["a", "b", "c"], "value": [48.0, 48.0, 49.0]})
    assert timeline.change_points(counted, noise=0)["text"].tolist() == [
        "regression of +2.08% between b and c"
    ]


def runs(build, day, cost, rival=10.0, blocks=20):
    rng = RNG(day)
    clock = pd.Timestamp("2026-01-01", tz="UTC") + pd.Timedelta(days=day)
    return pd.DataFrame([
        {"build_hash": build, "case": "lifo-32", "allocator": name, "status": "ok", "host": "m", "block": i}
        | {"seed": i, "scale": 1.0, "started_at": clock, "cpu_ns_per_op": level * np.exp(rng.normal(0, 0.01))}
        for i in range(blocks)
        for name, level in (("hakmem", cost), ("system", rival))
    ])  # fmt: skip


def test_history_of_the_store_names_the_slower_build_and_not_the_slower_day():
    days = [("one", 0, 5.0, 10.0), ("two", 1, 6.5, 13.0), ("three", 2, 5.5, 10.0)]
    table = timeline.history(pd.concat([runs(*day) for day in reversed(days)]))
    assert table["label"].tolist() == ["one", "two", "three"]
    found = timeline.changes(table)
    assert found["previous"].tolist() == ["two"] and found["at"].tolist() == ["three"]
    assert found["change"].iloc[0] == pytest.approx(0.1, abs=0.02)


def test_a_build_in_the_history_is_called_by_its_commit(tmp_path):
    samples = runs("one", 0, 5.0).assign(provenance=provenance.save(tmp_path, {"commit": "abc123"}))
    samples.attrs["folder"] = str(tmp_path)
    assert timeline.history(samples)["label"].tolist() == ["abc123 (one)"]


def test_one_added_instruction_in_fifty_is_found_and_noise_is_not():
    assert len(timeline.change_points(history([50.0, 51.0]))) == 1
    assert timeline.change_points(history([50.0] * 8)).empty
    assert timeline.change_points(history([50.0] * 8, noise=0.0)).empty


def test_ratios_with_noise_of_their_own():
    flat = [
        pd.DataFrame({"label": range(40), "value": np.exp(RNG(s).normal(0, 0.02, 40))}) for s in range(100)
    ]
    assert sum(not timeline.change_points(series).empty for series in flat) <= 10
    stepped = flat[1].assign(value=flat[1]["value"] * np.where(flat[1]["label"] >= 20, 1.08, 1))
    found = timeline.change_points(stepped)
    assert found["at"].tolist() == ["20"]


def two_builds(apart, cases=1):
    """A `history` of two builds whose values differ by so many standard deviations of their difference."""
    logs, half = np.array([0.0, 0.02 * apart * np.sqrt(2)]), 0.02 * sps.norm.ppf(0.975)
    ends = {"value": np.exp(logs), "low": np.exp(logs - half), "high": np.exp(logs + half)}
    one = pd.DataFrame({"label": ["a", "b"], "n": 30} | ends)
    return pd.concat(one.assign(case=str(case)) for case in range(cases))


def test_among_many_cases_a_change_must_be_larger():
    """By the normal law: 1.96 standard deviations in one case, 3.02 in twenty (5 % over 20)."""
    for cases, apart, found in ((1, 1.9, 0), (1, 2.0, 1), (20, 2.9, 0), (20, 3.1, 20)):
        assert len(timeline.changes(two_builds(apart, cases))) == found


def test_three_values_tell_no_noise_of_their_own():
    values = pd.DataFrame({"label": list("abc"), "value": [1.0, 1.0, 1.3]})
    assert timeline.change_points(values).empty and len(timeline.change_points(values, noise=0.02)) == 1


@pytest.mark.parametrize("values, least, most", [(4, 0.28, 0.52), (10, 0.07, 0.28)])
def test_few_values_are_split_by_pure_noise_as_often_as_it_says(values, least, most):
    rng = np.random.default_rng(3)
    pure = [
        pd.DataFrame({"label": range(values), "value": rng.lognormal(0, 0.05, values)}) for _ in range(150)
    ]
    assert least < np.mean([len(timeline.change_points(part)) > 0 for part in pure]) < most
    assert "two in five" in timeline.change_points.__doc__
