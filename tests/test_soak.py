"""A short soak for real: two living processes in turns, resumed after an interruption, summed up."""

import contextlib
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hakmem_py import cli, soak, store
from hakmem_py.spec import Case

WORKLOAD = "random_mixed"
MINUTES = 0.2  # turns of 0.1 s: shorter ones a busy machine stretches beyond a window


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("soak")


@pytest.fixture(scope="module")
def table(folder):
    return soak.soak(MINUTES, WORKLOAD, folder=folder, wait_s=300)


def test_both_sides_live_through_every_window(table):
    assert set(table["label"]) == {"hakmem", "system"} and table["segment"].nunique() == 1
    assert table.groupby("label").size().nunique() == 1 and len(table) >= 30
    assert (table["ns_per_op"] > 1).all() and (table["rss_bytes"] > 1e5).all()
    assert table.attrs["live_bytes"] > 1e5


def test_summary_has_an_interval_for_every_quantity(table):
    found = soak.summary(table)
    assert len(found) == 6 and (found["low"] <= found["percent"]).all()
    assert (soak.rates(table)["utilisation"] > 0).all()


def test_an_interrupted_soak_goes_on(table, folder, capfd):
    file = next(folder.iterdir())
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[: len(lines) // 2]) + lines[-1][:20])  # killed in the middle of a line
    resumed = soak.soak(MINUTES, WORKLOAD, folder=folder, wait_s=300)
    assert f"hakmem: {file}: 1 damaged line was passed over\n" in capfd.readouterr().err
    assert resumed["segment"].nunique() == 2
    size = file.stat().st_size
    assert len(soak.soak(MINUTES, WORKLOAD, folder=folder, wait_s=300)) == len(resumed)
    assert file.stat().st_size == size  # complete: nothing was run
    assert f"this soak was made earlier; to repeat it delete {file}" in capfd.readouterr().err


def test_an_unknown_workload_is_named_once(capsys):
    assert cli.main(["soak", "--workload", "nothing"]) == 1
    assert capsys.readouterr().err.startswith("hakmem soak: workload 'nothing' of soak is unknown; the bench")


def test_a_soak_takes_a_workload_of_one_thread(capsys):
    for workload in ("prodcons", "place_bind"):
        assert cli.main(["soak", "--workload", workload]) == 1
        told = f"hakmem soak: --workload {workload}: a soak needs one of one thread: "
        assert capsys.readouterr().err.startswith(told)


def test_a_soak_without_end_or_too_short_for_a_trend_is_refused_before_it_runs(capsys):
    for minutes in ("inf", "nan", "0", "0.01"):
        refusal = f"--minutes {minutes} must be 0.1 or more, and finite"
        assert cli.main(["soak", "--minutes", minutes]) == 1
        assert capsys.readouterr().err == f"hakmem soak: {refusal}\n"
        with pytest.raises(ValueError, match=refusal):
            soak.soak(float(minutes), WORKLOAD)


def test_windows_in_which_one_side_stood_still_are_left_out():
    counts = dict.fromkeys(("cpu_ns", "ops", "rss_bytes", "minor_faults", "major_faults"), 1)
    rows = [
        counts | {"segment": "1", "label": label, "seconds": at}
        for label, at in (("hakmem", 0.1), ("system", 0.3))
    ]
    assert soak.windows(pd.DataFrame(rows), 0.2).empty
    assert len(soak.windows(pd.DataFrame(rows), 0.4)) == 2


def test_a_killed_soak_leaves_no_process_behind(tmp_path):
    code = (
        "import sys; from pathlib import Path; from hakmem_py import slot, soak;"
        "slot.SLOT = Path(sys.argv[1], 'slot'); soak.soak(1, sys.argv[2], folder=Path(sys.argv[1], 'soak'))"
    )
    killed = subprocess.Popen([sys.executable, "-c", code, tmp_path, WORKLOAD], stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("soak/*.jsonl")):
        assert killed.poll() is None
        time.sleep(0.05)
    children = Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split()
    killed.kill()
    killed.wait()
    assert len(children) == 2
    deadline = time.monotonic() + 20  # they live for a minute
    while (left := [pid for pid in children if _alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def _alive(pid):
    try:
        return Path("/proc", pid, "stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_full_disk_is_named_and_costs_the_soak_its_last_turn(tmp_path):
    with pytest.raises(store.StoreError, match=r"No space left on device.*run the same command again"):
        store.append_lines("/dev/full", [{"ops": 1}])
    file = tmp_path / "soak.jsonl"
    for text in ("", '\n{"ops": 2, "cpu'):  # cut short by the full disk
        file.write_text(file.read_text() + text if file.exists() else text)
        store.append_lines(file, [chunk()])
    rows, damaged = soak._read(file)
    assert len(rows) == 2 and damaged == 1


def test_what_ends_a_soak_is_told_on_a_line_of_its_own(tmp_path, monkeypatch, capsys):
    turns = iter([[], []])
    monkeypatch.setattr(soak, "_living", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(soak, "_turn", lambda *_: next(turns))
    monkeypatch.setattr(soak.progress, "EVERY_S", 0)
    plan = soak.Plan(1, Case(WORKLOAD), {"hakmem": None, "system": None}, 0)
    with pytest.raises(StopIteration):
        soak._run(plan, tmp_path / "soak.jsonl", 1, 0)
    assert re.fullmatch(r"\rsoak: 0:00 of 1:00 +\n", capsys.readouterr().err)


def chunk(**more):
    return dict.fromkeys(soak.NUMBERS, 1) | {"segment": "1", "label": "hakmem"} | more


def test_damaged_lines_are_passed_over(tmp_path):
    file = tmp_path / "soak.jsonl"
    store.append_lines(file, [chunk(), [1, 2], 7, None, {"label": "hakmem"}, chunk(seconds="1")])
    with file.open("ab") as more:
        more.write(b'\n{"label": "\xff"}\n\xff\xfe\0')
    store.append_lines(file, [chunk(seconds=math.nan), chunk(seconds=2)])
    store.append_lines(file, [chunk(seconds=-1), chunk(ops=0), chunk(segment=[1])])
    with file.open("a") as more:
        more.write("\n" + "[" * 100_000)
    rows, damaged = soak._read(file)
    assert rows["seconds"].tolist() == [1, 2] and damaged == 12


def lives(step):
    """An hour of two processes; the subject's memory grows by this part of it a minute."""
    minutes = [i + 0.5 for i in range(60)]
    side = {
        "segment": "1",
        "minutes": minutes,
        "ns_per_op": 10.0,
        "ops": 10**6,
        "minor_faults": 3,
        "major_faults": 0,
    }
    table = pd.concat([
        pd.DataFrame(side | {"label": "hakmem", "rss_bytes": [1e8 * (1 + step * i) for i in range(60)]}),
        pd.DataFrame(side | {"label": "system", "rss_bytes": 1e8}),
    ])  # fmt: skip
    table.attrs = {"subject": "hakmem", "beside": "system", "live_bytes": 5e7}
    return table


def test_a_leak_is_seen_beside_the_reference():
    table = lives(0.001)
    found = soak.summary(table).set_index(["quantity", "of"])
    assert found.loc[("rss_bytes", "hakmem"), "low"] > 4 and found.loc[("rss_bytes", "ratio"), "low"] > 4
    assert found.loc[("rss_bytes", "system"), "steady"]
    assert soak.rates(table)["a_million_ops"].tolist() == pytest.approx([3, 3])
    assert soak.grows(table) and not soak.grows(lives(1e-5))  # 6 % an hour, and 0.06 %
    few = table.assign(minutes=table["minutes"] / 60)  # 6 MB within a minute, then a sixtieth of that
    few.attrs = table.attrs
    assert soak.grows(few) and not soak.grows(few.assign(rss_bytes=few["rss_bytes"] / 60))


def test_memory_that_wanders_is_not_said_to_grow():
    """Each minute keeps nine tenths of the last one's deviation; one of 95 % takes that for growth."""
    table, noise = lives(0.0), np.random.default_rng(28).normal(0, 0.02, 90)
    for i in range(1, 90):
        noise[i] += 0.9 * noise[i - 1]
    table.loc[table["label"] == "hakmem", "rss_bytes"] = 1e8 * np.exp(noise[30:])
    found = soak.summary(table).set_index(["quantity", "of"]).loc[("rss_bytes", "hakmem")]
    assert found["low"] > soak.GROWTH and not soak.grows(table)


def test_faults_in_bursts_leave_their_rate_less_certain():
    """Sixteen faults at a time, two bursts a window: the upper end is that of bursts, not of faults."""
    held = []
    for seed in range(60):
        table = lives(0.0)
        table["minor_faults"] = 16 * np.random.default_rng(seed).poisson(2.0, len(table))
        found = soak.rates(table).iloc[0]
        held.append(found["at_most"] >= 32)
        assert found["a_million_ops"] == pytest.approx(found["minor_faults"] / 59)
    table.loc[table.index[5], "ops"] = 0  # a window in which the process did not run
    assert np.isfinite(soak.rates(table)["at_most"]).all()
    assert np.mean(held) >= 0.9  # 0.975 less three standard errors; by Poisson's law it is 0.6


def test_a_leak_is_said_and_ends_with_a_status_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr(soak, "soak", lambda *_: lives(0.001))
    assert cli.main(["soak", "--minutes", "1"]) == 1
    told = "the memory of hakmem grows (rss_bytes above; one soak in fifty may say so by chance)"
    assert capsys.readouterr().err == f"hakmem: {told}\n"


@pytest.mark.filterwarnings("error")
def test_a_drift_is_told_over_all_segments():
    """A soak that was interrupted after half of its hour: each segment counts its minutes anew."""
    whole = lives(0.001)
    halves = whole.assign(segment=(whole["minutes"] // 30).astype(str), minutes=whole["minutes"] % 30)
    halves.attrs = whole.attrs
    one, two = (soak.summary(t).set_index(["quantity", "of"])["percent"] for t in (whole, halves))
    assert two["rss_bytes", "hakmem"] == pytest.approx(one["rss_bytes", "hakmem"], rel=0.05)


def test_a_leak_in_a_short_soak_that_was_interrupted_is_seen():
    """Rows in the order of `windows`: segment by segment, so those of the subject do not lie together."""
    whole = lives(0.01)
    cut = whole[whole["minutes"] < 12].assign(segment=lambda t: (t["minutes"] // 6).astype(str))
    cut = cut.sort_values(["segment", "label", "minutes"], ignore_index=True)
    cut.attrs = whole.attrs
    assert soak.grows(cut)


def test_what_steady_means_stands_below_the_table(monkeypatch, capsys):
    monkeypatch.setattr(soak, "soak", lambda *_: lives(0.0))
    assert cli.main(["soak", "--minutes", "1"]) == 0
    assert "steady: the interval holds 0" in capsys.readouterr().out.splitlines()[-1]
