"""The calibration on samples whose truth is known, its record, and what a report quotes of it."""

import json

import numpy as np
import pandas as pd
import pytest

from hakmem_py import calibration, cli, provenance, ruler, runner, spec, stats, store


def samples(blocks=3600, slow=0.01, noise=0.02, bias=0.0, drift=0.0):
    """As 01_ruler makes them: log-normal runs that share a block effect, three of them in each block."""
    rng = np.random.default_rng(1)
    level = rng.normal(0, 0.05, blocks) + drift * np.sin(np.arange(blocks) / 7)
    effects = {"same": 0.0, "again": bias, "slow": slow}
    clock = pd.Timestamp("2026-01-01", tz="UTC")
    rows = [
        {
            "block": i,
            "position": k,
            "allocator": name,
            "status": "ok",
            "host": provenance.host(),
            "load1": 1.0,
            "build_hash": "b",
        }
        | {"elapsed_ns": 3e7, "started_at": clock + pd.Timedelta(seconds=3 * i + k)}
        | {"cpu_ns_per_op": 10 * (1 + effects[name]) * np.exp(level[i] + rng.normal(0, noise))}
        for i in range(blocks)
        for k, name in enumerate(rng.permutation(list(effects)))
    ]
    frame = pd.DataFrame(rows)
    chunks = [{"chunks": 5, "cpu_mean_ns": x, "cpu_sd_ns": 0.01 * x} for x in frame["cpu_ns_per_op"]]
    return frame.assign(extra=[json.dumps(x) for x in chunks])


def kept(folder, frame, **facts):
    """The frame with what says where it was measured."""
    frame.attrs["folder"] = str(folder)
    return frame.assign(provenance=provenance.save(folder, provenance.collect(**facts)))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return calibration.judge(kept(tmp_path_factory.mktemp("samples"), samples()))


def test_a_sound_machine_is_found_sound(good):
    assert good["complaints"] == []
    assert good["false_positives"]["trials"] == 450 and good["false_positives"]["high"] <= 0.08
    assert 0.93 <= good["coverage"]["rate"] <= 0.98
    assert good["slow_ratio"] == pytest.approx(1.01, abs=0.002)
    assert all(power["rate"] >= 0.85 for power in good["power"].values())
    assert good["run_ms"] == 30


def test_a_biased_bench_is_found_out(tmp_path):
    result = calibration.judge(kept(tmp_path, samples(1200, bias=0.02)))
    assert any("false positives" in text for text in result["complaints"])
    assert any("coverage" in text for text in result["complaints"])


def test_naive_rules_fail_where_ours_hold():
    found = calibration.rules(samples(2400, drift=0.05)).set_index("rule")
    assert found.loc["10 of A, then 10 of B: Welch t", "low"] > 0.05
    assert found.loc["10 of A, then 10 of B: GO if the mean gains 1 %", "low"] > 0.2
    assert found.loc["chunks of one process as samples: Welch t", "low"] > 0.3
    assert found.loc["8 randomised pairs: signed rank", "low"] <= 0.05
    assert found.loc["8 randomised pairs: verdict GO", "rate"] <= 0.025


def test_a_clock_that_jumps_changes_no_rate():
    frame = samples(300, drift=0.05)
    jumped = frame.assign(
        started_at=frame["started_at"] - pd.to_timedelta(600 * (frame["block"] % 7), unit="s")
    )
    pd.testing.assert_frame_equal(calibration.rules(frame), calibration.rules(jumped))


def test_failed_runs_cost_their_block_only():
    frame = samples(300)
    frame.loc[3, "status"] = "crashed"
    assert len(calibration.costs(frame)) == 299


def test_too_few_blocks_are_refused():
    with pytest.raises(ValueError, match="more than 200"):
        calibration.judge(samples(150))


def test_a_side_that_always_failed_leaves_no_block():
    frame = samples(300)
    frame.loc[frame["allocator"] == "slow", "status"] = "crashed"
    with pytest.raises(ValueError, match="there are 0"):
        calibration.judge(frame)


def test_a_rate_has_wilsons_interval():
    assert calibration.rate([True] * 5 + [False] * 95)["high"] == pytest.approx(0.1118, abs=1e-4)


def test_power_and_price_are_those_of_the_noise(good):
    table = calibration.costs(samples(300))
    curve = calibration.power_curve(table, (10, 30, 100)).set_index(["truth", "n"])
    assert set(curve.index) == {(truth, n) for truth in ("1 % slower", "no difference") for n in (10, 30)}
    price = calibration.price(table, 30.0, (0.02, 0.05)).set_index("effect")
    assert price.loc["5.0%", "seconds"] == pytest.approx(0.06 * price.loc["5.0%", "pairs"])  # two runs a pair
    assert calibration.complaints(good | {"power": {"1%": good["power"]["1%"] | {"high": 0.8}}})
    wide = good["false_positives"] | {"high": 0.09}
    for trials, bad in ((calibration.ENOUGH, True), (calibration.ENOUGH - 1, False)):
        assert bool(calibration.complaints(good | {"false_positives": wide | {"trials": trials}})) == bad


def test_a_difference_the_wrong_way_is_not_found():
    slower, faster = (
        calibration.planned_power(calibration.costs(samples(600, slow, noise=0.005)))["1%"]
        for slow in (0.01, -0.01)
    )
    assert slower["rate"] > 0.8 and faster["rate"] == 0 and faster["trials"] > 10


def test_the_note_says_how_far_to_trust(good, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "FILE", tmp_path / "calibration.json")
    assert "not calibrated" in stats.calibration_note()
    few = good | {"false_positives": good["false_positives"] | {"trials": 50}}
    calibration.record(few)
    assert "short check only" in stats.calibration_note()
    calibration.record(good)
    assert stats.calibration_note().startswith("Calibrated:") and "450 A/A" in stats.calibration_note()
    calibration.record(few | {"complaints": ["false positives 12.0%, promised 5 %"]})
    assert "is bad" in stats.calibration_note() and "12.0%" in stats.calibration_note()
    calibration.record(few)
    for other in (good, few):
        calibration.record(other | {"kernel": "Linux 1.0"})
        assert "another kernel" in stats.calibration_note()
        calibration.FILE.unlink()


def test_a_calibration_is_of_the_machine_that_made_the_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "FILE", tmp_path / "calibration.json")
    result = calibration.judge(kept(tmp_path, samples(300), machine="another", kernel="Linux 1.0"))
    assert result["kernel"] == "Linux 1.0"
    calibration.record(result)
    assert "not calibrated" in stats.calibration_note()


@pytest.mark.parametrize("fact", ["host", "machine", "kernel"])
def test_samples_of_another_machine_or_kernel_are_measured_anew(monkeypatch, fact):
    experiment = spec.load_spec(ruler.EXPERIMENT)

    def identified():
        found = runner.find_contenders(experiment)
        return set(runner.identify(spec.schedule(experiment, 0, True), found, "any"))

    here = identified()
    assert here == identified()
    monkeypatch.setattr(provenance, fact, lambda: "another")
    assert not here & identified()


@pytest.mark.parametrize("damage", [{"full": {"kernel": 1}}, {"check": 7}, {"full": []}, 7, "x"])
def test_a_calibration_that_another_version_wrote_is_named_and_replaced(good, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(calibration, "FILE", tmp_path / "calibration.json")
    calibration.record(good)
    machines = json.loads(calibration.FILE.read_text())
    store.save_json(tmp_path, "calibration.json", dict.fromkeys(machines, damage))
    said = stats.calibration_note()
    assert "calibrat" in said and "run `hakmem calibrate`" in said
    calibration.record(good | {"false_positives": good["false_positives"] | {"trials": 50}})
    calibration.record(good)
    assert stats.calibration_note().startswith("Calibrated:")


def test_deciding_stops_at_the_first_look_that_decides(tmp_path, monkeypatch, capsys):
    asked, frame = [], samples(80, slow=0.1).assign(case="x", error="")

    def ensure(name, quick, blocks):
        asked.append(blocks)
        part = frame[frame["block"] < blocks]
        part.attrs = {"baseline": "same", "title": "Mine"}
        return part

    monkeypatch.setattr(ruler.runner, "ensure", ensure)
    file = tmp_path / "02_mine.toml"
    text = (spec.SPECS / "01_ruler.toml").read_text().replace("01_ruler", "02_mine")
    file.write_text(text.replace("seed = 42", "seed = 42\nlooks = [10, 40, 80]"))
    _, table = ruler.decide(str(file))
    assert asked[:2] == [10, 40] and table.set_index("allocator").loc["slow", "verdict"] == "NO-GO"
    frame.loc[frame["allocator"] != "same", ["status", "error"]] = "error", "bench: no room"
    assert cli.main(["decide", str(file)]) == 1
    said = capsys.readouterr().err
    assert "10 runs of slow failed: bench: no room\n" in said and "no pair of runs of x succeeded" in said
    file.write_text(text)
    with pytest.raises(spec.SpecError, match="fixes no looks"):
        ruler.decide(str(file))
    alone = (spec.SPECS / "06_stack.toml").read_text()
    file.write_text(alone.replace("06_stack", "02_mine").replace("seed = 42", "seed = 42\nlooks = [10, 40]"))
    with pytest.raises(spec.SpecError, match="has one side"):
        ruler.decide(str(file))
