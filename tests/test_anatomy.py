"""A live heap followed and drawn; what fixed arms leave to win, from samples that are known."""

import json

import numpy as np
import pandas as pd
import pytest

from hakmem_py import anatomy, ceiling, figures, native


@pytest.fixture
def program():
    played = anatomy.Program(seed=3)
    played.fill(500, 16, 1024)
    played.fill(3, 100_000, 300_000)
    played.elsewhere(played.fill, 200, 16, 512)
    yield played
    played.close()


def test_a_program_is_seen_and_gone(program):
    live = native.counters().at["live_blocks", "value"]
    program.thin(0.5)
    gone = live - native.counters().at["live_blocks", "value"]
    assert 349 <= gone <= 351  # half of 703, of which three are runs
    for figure in (figures.heap_map, figures.slab_occupancy):
        assert "slabs" in figure(native.spans()).layout.meta["alt"]
    magazines = figures.magazines(native.magazines())
    assert magazines.layout.meta["alt"]
    assert {trace.hovertemplate for trace in magazines.data} == {"%{x}: %{y} blocks"}


def test_the_way_of_a_block():
    table = anatomy.journey(176)
    assert table["same_address"].iloc[2]
    assert table["loaded"].iloc[1] == table["loaded"].iloc[0] + 1
    assert table["depot"].iloc[-2] > 0 and table["spare"].iloc[-2] > 0
    assert (table[["loaded", "spare", "depot", "slab_used"]].iloc[-1] == 0).all()
    assert figures.journey(table).layout.meta["alt"]


def costs(arms, block=0):
    """Of one block of a phased case, as `turns.sweep` gives them; arms: {arm: {phase: ns per operation}}."""
    table = pd.DataFrame(arms).rename_axis("phase")
    return pd.concat({("phases", block): table}, names=["case", "block"]).reorder_levels([0, 2, 1])


def test_the_oracle_takes_the_best_of_each_phase():
    row = ceiling.oracle(costs({"16": {"a": 4, "b": 10}, "512": {"a": 8, "b": 2}})).iloc[0]
    assert row["best_fixed"] == "512" and row["fixed_ns"] == 5
    assert row["oracle_ns"] == 3 and row["ratio"] == 5 / 3 and row["oracle"] == "a: 16, b: 512"


def test_a_stalled_block_and_one_that_is_not_whole_change_no_oracle():
    usual = {"16": {"a": 4.0, "b": 10.0}, "512": {"a": 8.0, "b": 2.0}}
    stalled = {"16": {"a": 4.0, "b": 10.0}, "512": {"a": 8.0, "b": 2000.0}}
    part = {"16": {"a": 4.0, "b": 10.0}, "512": {"a": np.nan, "b": 2.0}}
    blocks = [costs(arms, i) for i, arms in enumerate([usual, usual, stalled, *[part] * 4])]
    row = ceiling.oracle(pd.concat(blocks)).iloc[0]
    assert (row["best_fixed"], row["fixed_ns"], row["oracle_ns"]) == ("512", 5, 3)


def test_what_noise_seems_to_gain_is_not_there_on_other_blocks():
    chance = np.random.default_rng(1)

    def measured(arms):
        noisy = {arm: pd.Series(phases) for arm, phases in arms.items()}
        blocks = [
            costs({arm: x * chance.lognormal(0, 0.1, len(x)) for arm, x in noisy.items()}, block)
            for block in range(10)
        ]
        return ceiling.oracle(pd.concat(blocks)).iloc[0]

    alike = measured({str(arm): {"a": 10, "b": 20} for arm in range(6)})
    assert alike["ratio"] > 1 and alike["held_out"] < alike["ratio"] and alike["low"] < 1 < alike["high"]
    real = measured({"16": {"a": 4, "b": 10}, "512": {"a": 8, "b": 2}})
    assert 1.4 < real["low"] < real["held_out"] < real["high"] < 1.9


def test_regret_is_measured_against_the_best_arm():
    history = pd.DataFrame({"setting": [16, 512, 512, 512], "reward": [0.5, 1.0, 1.0, 1.0]})
    history["time_ns"], history["begin_ns"] = range(1, 5), range(4)
    found = ceiling.regret(history.assign(time_ns=history["time_ns"] * 10**9))
    assert list(found["regret"]) == [0.5, 0.5, 0.5, 0.5] and list(found["seconds"]) == [1, 2, 3, 4]
    lucky = pd.DataFrame({"setting": [16] + [512] * 20, "reward": [1.02] + [0.9, 1.1] * 10})
    lucky["time_ns"], lucky["begin_ns"] = range(1, 22), range(21)
    assert ceiling.regret(lucky)["regret"].iloc[-1] == pytest.approx(21 - 21.02)  # one window proves nothing


def test_memory_after_a_peak():
    extra = {"rss_at_peak_bytes": 100, "idle_ms": [0, 500], "idle_rss_bytes": [80, 5]}
    rows = [{"allocator": "x", "status": "ok", "extra": json.dumps(extra)}]
    samples = pd.DataFrame([*rows, {"allocator": "x", "status": "crashed", "extra": None}])
    assert list(ceiling.after_peak(samples)["share"]) == [0.8, 0.05]
    assert list(ceiling.after_peak(samples)["seconds"]) == [0, 0.5]


def test_few_blocks_have_a_share_and_no_interval():
    samples = pd.DataFrame({"block": [0] * 3, "allocator": ["old", "on", "free"], "status": "ok"})
    samples = samples.assign(cpu_ns_per_op=[10.0, 6.0, 5.0])
    samples.attrs = {"baseline": "old"}
    won = ceiling.share_won(samples, "on", "free")
    assert won["share"] == pytest.approx(0.8) and np.isnan([won["low"], won["high"]]).all()
    blocks = pd.concat([samples.assign(block=block) for block in range(6)])  # concat keeps the attrs
    assert np.isnan(ceiling.share_won(blocks[blocks["block"] < 5], "on", "free")["low"])
    assert ceiling.share_won(blocks, "on", "free")["low"] == pytest.approx(0.8)
    table = pd.DataFrame(
        {"x": [1, 10], "y": [3.0, 300.0], "of": "a", "low": float("nan"), "high": float("nan")}
    )
    assert figures.curves(table, "x", "y", "of", "low", "high", y_log=True).layout.yaxis.type == "log"


def test_a_case_or_an_experiment_of_which_no_run_succeeded():
    samples = pd.DataFrame({"case": ["good", "bad"], "allocator": "a", "status": ["ok", "timeout"]})
    samples = samples.assign(workload=samples["case"], size_bytes=16, cpu_ns_per_op=[10.0, np.nan])
    assert "Records held: a 1." in figures.records(samples).layout.meta["alt"]
    for draw in (figures.records, figures.patterns):
        with pytest.raises(ValueError, match="none of 2 runs succeeded"):
            draw(samples.assign(status="timeout"))


def test_a_cell_names_its_side_on_one_line_though_the_column_head_has_several():
    samples = pd.DataFrame({"case": "case", "allocator": ["profile lean", "a"], "status": "ok"})
    (cells,) = figures.records(samples.assign(cpu_ns_per_op=[20.0, 10.0])).data
    sides = list(cells.x)
    assert sorted(sides) == ["a", "profile<br>lean"]
    said = cells.customdata[0][sides.index("profile<br>lean")]
    assert list(said) == ["profile lean", 20.0] and "%{x}" not in cells.hovertemplate


def test_no_share_follows_from_a_saving_that_may_be_none():
    chance = np.random.default_rng(1)
    times = {"old": 10.0, "on": 10.0, "quick": 7.0, "free": 5.0}
    rows = [
        {"block": block, "allocator": name, "status": "ok", "cpu_ns_per_op": time * chance.lognormal(0, 0.1)}
        for block in range(12)
        for name, time in times.items()
    ]
    samples = pd.DataFrame(rows)
    samples.attrs = {"baseline": "old"}
    won = ceiling.share_won(samples, "on", "free")
    assert np.isnan(won["low"]) and "open" in ceiling.share_said(won)
    assert not np.isnan(ceiling.share_won(samples, "quick", "free")["low"])


def test_placebos_that_do_as_well_deny_that_anything_was_learned():
    rivals = pd.DataFrame({"allocator": ["random", "shuffled", "bonwick"], "ratio": [1.3, 1.0, 1.0]})
    rivals = rivals.assign(low=rivals["ratio"] - 0.1, high=rivals["ratio"] + 0.1, status="ok")
    assert ceiling.placebos(rivals, ["random"])[1] == "LEARNED"
    assert ceiling.placebos(rivals, ["random", "shuffled"])[1] == "NOT SHOWN"
    for sides in (["fixed"], ["random", "fixed"]):  # of which one did not run
        assert ceiling.placebos(rivals, sides)[1] == "NOT SHOWN"
    said, verdict = ceiling.placebos(rivals.assign(status="baseline 3 of 10 timeout"), ["random"])
    assert verdict == "NOT SHOWN" and "runs failed (random: baseline 3 of 10 timeout)" in said


def test_when_a_peak_has_gone_back():
    resting = pd.DataFrame({"label": "x", "seconds": [0, 1, 3], "share": [1.0, 0.05, 0.01]})
    row = ceiling.returned(resting).iloc[0]
    assert (row["share"], row["seconds"]) == (0.05, 1)
    assert np.isnan(ceiling.returned(resting.assign(share=1.0)).iloc[0]["seconds"])
