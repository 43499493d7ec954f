"""Comparisons of ways of running: sides, what they must have learned, verdicts, settings that take turns."""

import contextlib
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import processes
import pytest

from hakmem_py import ab, blocks, ceiling, cli, peers, preloaded, slot, targets, turns, worker
from hakmem_py.commands import BuildError
from hakmem_py.progress import Progress

AB = ["ab", "--workload", "bursts", "--blocks", "6", "--sides", "off", "on", "fixed:64"]


# ---------------------------------------------------------------- hakmem ab


def test_ab_prints_intervals_verdicts_and_firings(capsys):
    assert cli.main([*AB, "--scale", "10", "--fast-interval-ms", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "6 blocks" in lines[0] and "firings" in lines[1] and "needs_n" in lines[1]
    assert {line.split()[0] for line in lines[2:4]} == {"on", "fixed:64"}


def test_ab_refuses_what_has_not_learned(capsys):
    assert cli.main(AB) == 1
    told = capsys.readouterr().err
    assert "below 100" in told and "--fast-interval-ms" in told
    assert cli.main([*AB, "--allow-few"]) == 0
    assert "FEW FIRINGS" in capsys.readouterr().out


def test_ab_takes_any_program(capsys):
    code = "for _ in range(60): [str(i) for i in range(20000)]"
    options = ["--blocks", "6", "--fast-interval-ms", "1", "--allow-few", "--sides", "off", "random"]
    assert cli.main(["ab", *options, "--", "env", "PYTHONMALLOC=malloc", sys.executable, "-c", code]) == 0
    assert capsys.readouterr().out.startswith("env: cpu time")


@pytest.fixture
def seen(monkeypatch, tmp_path):
    """seen(least): name of a file that comes when a program's memory, looked at often enough, was so much."""
    looks, look = [], preloaded._high_water

    def begin(least=1):
        looks.clear()
        file = tmp_path / f"seen-{time.monotonic_ns()}"

        def looked(process):
            looks.append(look(process))
            if sum(map(bool, looks)) >= preloaded.LOOKS and max(looks) >= least:
                file.touch()
            return looks[-1]

        monkeypatch.setattr(preloaded, "_high_water", looked)
        return str(file)

    return begin


def test_ab_compares_a_program_under_several_allocators(seen):
    """Who answers malloc is asked inside; the memory is the program's own, not that of who started it."""
    wait = "import os, time\nwhile not os.path.exists(SEEN): time.sleep(0.01)\n"
    code = f"{wait}import sys; sys.exit(NAME not in open('/proc/self/maps').read())"
    libraries = {name: f"lib{name}" for name in ("hakmem", *peers.KNOWN)} | {"system": "libc.so"}
    for name, library in libraries.items():
        if name in peers.KNOWN and peers.find(name).path is None:
            continue
        target = ab.program(
            sys.executable, "-c", code.replace("NAME", repr(library)).replace("SEEN", repr(seen()))
        )
        row, _ = ab.record(target, ab.side(name))
        assert row["status"] == "ok" and 0 < row["peak_rss_bytes"] < 30e6
    held = f"block = bytearray(90 << 20)\n{wait}".replace("SEEN", repr(seen(90_000_000)))
    large = ab.program(sys.executable, "-c", held)
    assert 90e6 < ab.record(large, ab.side("hakmem"))[0]["peak_rss_bytes"] < 130e6


def test_a_program_gets_the_settings_of_its_side_alone(monkeypatch):
    monkeypatch.setenv("HAKMEM_CANARIES", "1")
    code = "import os, sys; sys.exit('HAKMEM_CANARIES' in os.environ)"
    assert ab.record(ab.program(sys.executable, "-c", code), ab.side("hakmem"))[0]["status"] == "ok"
    code = "import os, sys; sys.exit(os.environ['HAKMEM_PURGE_DELAY_MS'] != '7')"
    target, env = ab.program(sys.executable, "-c", code), {"HAKMEM_PURGE_DELAY_MS": "0"}  # the program's own
    assert ab.record(target, ab.side("PURGE_DELAY_MS=7"), env)[0]["status"] == "ok"


def test_a_setting_that_the_library_refuses_is_no_result():
    for target in (ab.workload("lifo"), ab.program("true")):
        row, _ = ab.record(target, ab.side("hakmem"), {"HAKMEM_MAGAZINE_BLOCKS": "5"})
        assert row["status"] == "error" and "16 to 512" in row["error"]


@pytest.mark.parametrize("program", [True, False])
def test_a_history_that_cannot_be_written_is_no_result(program, monkeypatch):
    """Else a full disk would look like a learner that decides too seldom."""
    nowhere = SimpleNamespace(TemporaryDirectory=lambda **_: contextlib.nullcontext("/dev/full"))
    monkeypatch.setattr(targets, "tempfile", nowhere)
    code = "for _ in range(60): [str(i) for i in range(20000)]"
    target = ab.program("env", "PYTHONMALLOC=malloc", sys.executable, "-c", code)
    target = target if program else ab.workload("bursts", "--scale", "20")
    row, _ = ab.record(target, ab.side("on"), {"HAKMEM_ACE_FAST_INTERVAL_MS": "1"})
    said = "ACE's history cannot be written to /dev: make room there, or set TMPDIR to another folder"
    assert (row["status"], row["error"]) == ("error", said)


def test_without_the_tool_that_looks_into_programs_its_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"^readelf is missing, .*: sudo apt install gcc"):
        ab.program("/bin/true")


def test_a_static_program_is_refused(tmp_path):
    source, program = tmp_path / "main.c", tmp_path / "main"
    source.write_text("int main(void) { return 0; }")
    if subprocess.run(["gcc", "-static", source, "-o", program], capture_output=True).returncode:
        pytest.skip("no static C library")
    with pytest.raises(ab.AbError, match="statically"):
        ab.program(str(program))


def test_a_program_that_may_more_than_its_caller_is_refused(tmp_path, monkeypatch):
    """The loader would preload nothing, and every side be the same."""
    program = Path(shutil.copy(shutil.which("true"), tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "listxattr", lambda _: ["security.capability"])
        patch.setattr(os, "getuid", lambda: 0)
        ab.program(str(program))  # root has them anyway
        patch.setattr(os, "getuid", lambda: 1)
        with pytest.raises(ab.AbError, match="has capabilities"):
            ab.program(str(program))
    program.chmod(0o4755)
    ab.program(str(program))  # its owner's, it stays as it is
    monkeypatch.setattr(os, "getuid", lambda: program.stat().st_uid + 1)
    with pytest.raises(ab.AbError, match="set-uid"):
        ab.program(str(program))


@pytest.mark.parametrize(
    ("text", "said"), [("echo", "as in sh"), ("#!/bin/nosuch -x\n", "/bin/nosuch, which is not there")]
)
def test_a_script_without_an_interpreter_is_refused(text, said, tmp_path):
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(0o755)
    with pytest.raises(ValueError, match=said):
        ab.program(str(script))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workload", "nothing"], "random_mixed"),
        (["--workload", "bursts", "--sides", "off", "clever"], "ucb1-tuned"),
        (["--workload", "bursts", "--sides", "off", "fixed:65"], "fixed:64"),
        (["--workload", "bursts", "--sides", "hakmem", "hakmem"], "--sides off hakmem"),
        (["--workload", "bursts", "--sides", "off", "magazine_block=64"], "magazine_blocks"),
        (["--workload", "bursts", "--sides", "off", "PROFILE=lean,PROFILE=keep"], "'profile' occurs twice"),
        (["--workload", "bursts", "--sides", "off", "magazine_blocks=9999"], "16 to 512"),
        (["--workload", "bursts", "--sides", "off", "ace_enabled=1,ace_policy=clever"], "ucb1-tuned"),
        (["--workload", "bursts", "--sides", "off", "placement=3,placement_node=900"], "900 is not a node"),
        (["--workload", "bursts", "--fast-interval-ms", "0"], "1 to 60000"),
        (["--workload", "bursts", "--scale", "0"], "scale"),
        (["--workload", "frag", "--sides", "off", "ace_enabled=1"], "below 100"),
        (["--workload", "lifo", "--sides", "off", "on", "--fast-interval-ms", "1"], "little to learn"),
        ([], "--workload NAME"),
        (["--size", "64", "--", "true"], "--size is for workloads only"),
        (["--", "no-such-program"], "no-such-program"),
        (["--sides", "off", "on", "--", "false"], "ended with status 1\n"),
    ],
)
def test_ab_refuses_in_one_line(words, said, capsys):
    assert cli.main(["ab", *words]) == 1
    told = capsys.readouterr().err
    assert said in told and len(told.splitlines()) == 1


def test_a_side_under_which_the_program_ends_is_left_out(capsys):
    """php, say, does not live under every allocator."""
    sides = ["--sides", "system", "MAGAZINE_BLOCKS=32", "MAGAZINE_BLOCKS=64"]
    code = '[ "$HAKMEM_MAGAZINE_BLOCKS" != 32 ] || kill -SEGV $$; sleep 0.05'
    assert cli.main(["ab", "--blocks", "6", *sides, "--", "sh", "-c", code]) == 0
    said = capsys.readouterr()
    assert "side MAGAZINE_BLOCKS=32 is left out: sh ended with SIGSEGV\n" in said.err
    assert said.out.splitlines()[-1].split()[0] == "MAGAZINE_BLOCKS=64" and ", 6 blocks" in said.out


# ---------------------------------------------------------------- what is said of runs


def test_sides_that_take_the_same_time_are_equivalent():
    blocks = range(30)
    times = {"off": 10.0, "on": 10.05, "slow": 10.5}
    rows = [
        {"allocator": name, "case": "w", "block": block, "status": "ok", "error": "", "load1": 0.0}
        | {"cpu_ns_per_op": time * (1 + 0.001 * (block % 7)), "peak_rss_bytes": 1e6, "cached_bytes": 0.0}
        | {"firings": 500, "slow_firings": 0, "settled": 0.9}
        for name, time in times.items()
        for block in blocks
    ]
    samples = pd.DataFrame(rows)
    samples.attrs = {"baseline": "off", "loops": {"off": None, "on": "fast", "slow": "fast"}}
    table = ab.judge(samples).set_index("allocator")
    assert table.at["on", "tost_p"] < 0.05 < table.at["slow", "tost_p"]
    assert table.at["on", "settled"] == 0.9


@pytest.mark.parametrize("failed", [0, 5])
def test_few_firings_are_marked_whichever_run_failed(failed):
    run = {"case": "w", "error": "", "load1": 0.0, "settled": 0.9, "cached_bytes": 0.0, "peak_rss_bytes": 1e6}
    samples = pd.DataFrame(
        run | {"block": block, "allocator": name, "firings": firings, "status": "ok", "cpu_ns_per_op": 9.0}
        for block in range(6)
        for name, firings in (("off", None), ("on", 5))
    )
    samples.loc[samples["block"] == failed, ["status", "firings", "cpu_ns_per_op"]] = "timeout", None, None
    samples.attrs = {"baseline": "off", "loops": {"off": None, "on": "fast"}}
    row = ab.judge(samples).iloc[0]
    assert (row["verdict"], row["firings"]) == ("FEW FIRINGS", 5)
    samples.attrs = {"baseline": "on", "loops": {"on": "fast", "off": None}}
    assert ab.judge(samples).iloc[0]["verdict"] == "FEW FIRINGS"  # of the baseline


@pytest.mark.parametrize(
    ("module", "words"), [(ab, AB), (turns, ["toggle", "magazine_blocks=16,32", "--workload", "bursts"])]
)
def test_runs_that_all_failed_say_why_in_one_line(module, words, monkeypatch, capsys):
    run = {"case": "bursts", "block": 0, "load1": 0.0, "status": "timeout", "error": "no result within 1 s"}
    samples = pd.DataFrame([run | {"allocator": name} for name in ("off", "on")])
    samples.attrs = {"baseline": "off", "loops": {"off": None, "on": None}}
    monkeypatch.setattr(module, "compare", lambda *_, **__: samples)
    assert cli.main(words) == 1
    said = f"hakmem {words[0]}: no run of bursts succeeded; 2 of 2: no result within 1 s\n"
    assert capsys.readouterr().err == said


def test_runs_that_failed_name_their_side(monkeypatch, capsys):
    run = {
        "case": "quick",
        "load1": 0.0,
        "peak_rss_bytes": 2e6,
        "cached_bytes": math.nan,
        "settled": math.nan,
    }
    rows = [
        run | {"allocator": name, "block": block, "status": "ok", "error": "", "cpu_ns_per_op": 5e6}
        for block in range(7)
        for name in ("hakmem", "mimalloc")
    ]
    rows[-1] |= {"status": "error", "error": "quick ended with SIGABRT", "cpu_ns_per_op": math.nan}
    samples = pd.DataFrame(rows)
    samples.attrs = {"baseline": "hakmem", "loops": {"hakmem": None, "mimalloc": None}}
    monkeypatch.setattr(ab, "compare", lambda *_, **__: samples)
    assert cli.main(["ab", "--sides", "hakmem", "mimalloc", "--", "true"]) == 0
    assert capsys.readouterr().err == "1 runs of mimalloc failed: quick ended with SIGABRT\n"


@pytest.mark.parametrize("short", [1, 12])
def test_runs_too_short_for_a_peak_are_named(short, monkeypatch, capsys):
    run = {"case": "quick", "load1": 0.0, "status": "ok", "error": "", "cpu_ns_per_op": 5e6}
    run |= {"firings": 0, "slow_firings": 0, "cached_bytes": math.nan, "settled": math.nan}
    sides = ("hakmem", "system")
    rows = [run | {"allocator": name, "block": block} for block in range(6) for name in sides]
    samples = pd.DataFrame(rows)
    samples["peak_rss_bytes"] = [math.nan] * short + [2e6] * (12 - short)
    samples.attrs = {"baseline": "hakmem", "loops": dict.fromkeys(sides)}
    monkeypatch.setattr(ab, "compare", lambda *_, **__: samples)
    words = ["ab", "--sides", *sides, "--metric", "memory", "--", "true"]
    assert cli.main(words) == (1 if short == 12 else 0)
    assert "ended too soon for a peak" in capsys.readouterr().err


def test_peak_memory_is_compared_like_time(capsys):
    """A megabyte of blocks is in the peak of both; what one of them keeps besides is in the ratio."""
    words = "ab --workload large_ws --slots 4000 --sides off DEPOT_BYTES=0 --blocks 6 --metric memory"
    assert cli.main(words.split()) == 0
    said, _, row = capsys.readouterr().out.strip().splitlines()[:3]
    assert "large_ws: peak memory of each side / that of off" in said
    ratio, low, high = map(float, row.split()[1:4])
    assert 0.5 < low <= ratio <= high < 2
    assert cli.main(["toggle", "depot_bytes=0,1", "--workload", "lifo", "--metric", "memory"]) == 1
    assert "hakmem ab tells" in capsys.readouterr().err


@pytest.mark.parametrize("blocks", [3, 7])
@pytest.mark.parametrize("module", [ab, turns])
def test_what_the_user_stops_is_judged_by_its_whole_blocks(module, blocks, monkeypatch, capsys):
    calls = iter(range(1, 1000))
    counted = {"firings": 500, "slow_firings": 0, "settled": 0.9, "cached_bytes": 0.0, "peak_rss_bytes": 2e6}
    seen = {"chunk_cpu_ns": [5.0, 6.0], "chunk_ns": [5.0, 6.0], "chunk_side": [0, 1], "ace_firings": None}
    times = {"elapsed_ns": 10**9, "cpu_ns_per_op": 5e6, "wall_ns_per_op": 5e6, "extra": json.dumps(seen)}

    def play(*_):
        if next(calls) == (2 + 2 * blocks + 2 if module is ab else blocks + 1):
            raise KeyboardInterrupt
        return {"status": "ok", "error": ""} | counted | times

    monkeypatch.setattr(ab, "record", lambda _, one, __: ({"allocator": one.label} | play(), None))
    monkeypatch.setattr(targets, "record", lambda *_: (counted | times | {"status": "ok"}, None))
    monkeypatch.setattr(targets, "run_bench", play)
    words = ["ab", "--sides", "system", "hakmem", "--blocks", "60", "--", "true"]
    if module is turns:
        words = ["toggle", "magazine_blocks=16,32", "--workload", "bursts", "--blocks", "60"]
    assert cli.main(words) == 130
    said = capsys.readouterr()
    assert (f", {blocks} blocks, seed 1" in said.out) == (blocks == 7)
    assert ("the blocks that were whole" in said.err) == (blocks == 7) and "hakmem: stopped" in said.err


def test_the_order_within_a_block_is_drawn_by_the_seed(monkeypatch):
    """After a trial of each side; all runs have the settings that were asked for."""
    row = {"status": "ok", "error": "", "elapsed_ns": 10**9, "cpu_ns_per_op": 5.0, "firings": 0}
    ran, target, sides = [], ab.Target(("true",), False, "true"), [ab.Side(name) for name in "abc"]

    def record(_, one, env):
        ran.append((one.label, env))
        return {"allocator": one.label} | row, None

    def order(seed):
        ran.clear()
        ab.compare(target, sides, blocks=60, seed=seed, env={"A": "1"})
        assert {env["A"] for _, env in ran} == {"1"}
        labels = [label for label, _ in ran]
        assert labels[:3] == ["a", "b", "c"]
        return [tuple(labels[i : i + 3]) for i in range(3, len(labels), 3)]

    monkeypatch.setattr(ab, "record", record)
    first = order(1)
    assert set(first) == set(itertools.permutations("abc")) and len(first) == 60
    assert first == order(1) != order(2)


def test_every_process_of_turns_has_an_order_of_its_own(monkeypatch):
    seeds, seen = [], {"chunk_cpu_ns": [5.0, 6.0], "chunk_ns": [7.0, 8.0], "chunk_side": [0, 1]}
    row = {"status": "ok", "error": "", "settled": 0.9, "cached_bytes": 0.0, "firings": 500}

    def run_bench(asked, *_):
        seeds.append(asked[asked.index("--seed") + 1])
        return row | {"extra": json.dumps(seen | {"ace_firings": 123})}

    monkeypatch.setattr(targets, "record", lambda *_: (row, None))
    monkeypatch.setattr(targets, "run_bench", run_bench)
    samples = turns.compare(ab.workload("frag"), "ace_enabled", (0, 1), blocks=3, seed=7)
    assert seeds == ["7", "8", "9"]
    assert samples["firings"].dropna().tolist() == [123] * 3  # of the side that learns alone
    assert samples.groupby("allocator")["cpu_ns_per_op"].first().tolist() == pytest.approx([5, 6])
    assert samples.groupby("allocator")["wall_ns_per_op"].first().tolist() == pytest.approx([7, 8])


def test_values_that_take_turns_may_have_units(monkeypatch):
    asked = []
    monkeypatch.setattr(turns, "compare", lambda _, *how: asked.append(how[1]))
    monkeypatch.setattr(turns, "show", lambda *_: None)
    for values in ("4k,64M", "0,1g"):
        assert cli.main(["toggle", f"depot_bytes={values}", "--workload", "lifo"]) == 0
    assert asked == [[4 << 10, 64 << 20], [0, 1 << 30]]


def test_settled_is_where_the_last_half_of_the_windows_went():
    def learner(number, rewards, arms):
        rows = {"learner": number, "block_size": 64, "arm": arms, "reward": [rewards[arm] for arm in arms]}
        return pd.DataFrame(rows)

    found = learner(3, [0.5, 0.9, 0.99, 1.0], [0, 1, 2, 3, 3, 2, 3, 1])  # 0.99 is as good as 1, 0.9 not
    assert ab.settled(found) == 0.75
    two = pd.concat([found, learner(4, [0.5, 1.0], [1, 0, 0, 0]), found.assign(block_size=0)])
    assert ab.settled(two) == 0.5  # 3 of 4 and 0 of 2; slow learners do not count
    assert math.isnan(ab.settled(found.iloc[:0]))


def test_recovery_counts_the_windows_from_a_change_to_a_capacity_as_good_as_the_best():
    marks = [{"name": name, "start_ns": at} for name, at in (("a", 0), ("b", 100), ("a", 200), ("b", 300))]
    arms = {0: [1, 1, 1], 100: [1, 1, 2], 200: [2, 1, 1], 300: [2, 2, 2]}
    reward = {("a", 1): 1.0, ("a", 2): 0.99, ("b", 1): 0.5, ("b", 2): 0.9}
    rows = [
        (64, begin + 10 + 20 * k, arm, reward["ab"[begin // 100 % 2], arm])
        for begin, played in arms.items()
        for k, arm in enumerate(played)
    ]
    table = pd.DataFrame(rows, columns=["block_size", "begin_ns", "arm", "reward"])
    found = targets.recovery({"extra": json.dumps({"phases": marks})}, table)
    assert found["phase"].to_list() == ["b", "a", "b"]
    assert found["windows"].to_list() == [3, 3, 3] and found["until"].to_list() == [2, 0, 0]


def test_a_run_of_phases_takes_the_geometric_mean_of_their_times():
    target = ab.phased("phases4", 0.1, 2)
    row = targets.run_bench(target.arguments, "hakmem", {}, 60.0)
    seen = pd.DataFrame(json.loads(row["extra"])["phases"]).groupby("name")[["cpu_ns", "ops"]].sum()
    times = seen["cpu_ns"] / seen["ops"]
    assert len(times) == 4 and row["cpu_ns_per_op"] == pytest.approx(times.prod() ** 0.25)
    steady = targets.run_bench(ab.workload("lifo").arguments, "hakmem", {}, 60.0)
    assert steady["cpu_ns_per_op"] == pytest.approx(steady["cpu_ns"] / steady["ops"])


# ---------------------------------------------------------------- two settings in one process


def test_a_knob_that_takes_turns_is_in_force_at_its_turn():
    """Magazines of 16 blocks make bursts of 400 half as slow again; bursts do not feel the other knob."""
    target = ab.workload("bursts", "--scale", "2")
    small = ab.judge(turns.compare(target, "magazine_blocks", (512, 16), blocks=3)).iloc[0]
    none = ab.judge(turns.compare(target, "large_threshold", (32 << 20, 16 << 20), blocks=6)).iloc[0]
    assert small["allocator"] == "magazine_blocks=16" and small["ratio"] > 1.15
    assert none["n"] == 6 and 0.75 < none["ratio"] < 1.3


def test_phases_that_take_turns_are_compared_phase_by_phase():
    target = ab.workload("phases", "--phase-ms", "10", "--iterations", "12")
    table, costs = turns.sweep(target, "magazine_blocks", (512, 16, 32), blocks=4, chunks=12)
    table = table.set_index(["case", "setting"])
    assert set(table.index) == {(phase, arm) for phase in ("bursts", "prodcons") for arm in (16, 32)}
    assert table.loc[("bursts", 16), "ratio"] > 1.1
    best = ceiling.oracle(costs).iloc[0]
    assert best["best_fixed"] != "16" and best["ratio"] >= 1
    assert best["low"] <= best["held_out"] <= best["high"]


def turned(target, knob, values, blocks=10, **_):
    """Samples as of `turns.compare`: the second value takes longer in every block."""
    run = {"case": target.label, "status": "ok", "error": "", "load1": 0.0, "extra": "{}"}
    run |= dict.fromkeys(("settled", "cached_bytes", "peak_rss_bytes"), 1.0)
    names = [f"{knob}={value}" for value in values]
    table = pd.DataFrame(
        run | {"block": block, "allocator": name, "cpu_ns_per_op": time}
        for block in range(blocks)
        for name, time in zip(names, (9.0, 10.0 + block / 100), strict=True)
    )
    table.attrs = {"baseline": names[0], "loops": dict.fromkeys(names)}
    return table


def test_values_that_take_turns_are_one_family(monkeypatch):
    """One comparison is decided, three values of the same costs are not: p is adjusted for their number.
    Programs that have nothing to do with each other are decided one by one."""
    monkeypatch.setattr(turns, "compare", turned)
    monkeypatch.setattr(turns, "lasting", lambda seconds, target, wait_s: target)
    one, _ = turns.sweep(ab.workload("lifo"), "magazine_blocks", (512, 16), blocks=6)
    arms, _ = turns.sweep(ab.workload("lifo"), "magazine_blocks", (512, 16, 32, 64), blocks=6)
    calm = turns.steady(["lifo", "fifo", "vm"], "magazine_blocks", (512, 16), 1, blocks=6)
    assert one["verdict"].tolist() == ["NO-GO"] and one["p"].tolist() == pytest.approx([2 / 2**6])
    assert arms["setting"].tolist() == [16, 32, 64] and set(arms["case"]) == {"lifo"}
    assert calm["case"].tolist() == ["lifo", "fifo", "vm"]
    for table in (arms, calm):
        assert table["p_adjusted"].tolist() == pytest.approx([3 * p for p in table["p"]])
    assert set(arms["verdict"]) == {"UNDECIDED"} and set(calm["verdict"]) == {"NO-GO"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("ace_enabled=1", "KNOB=A,B"),
        ("magazine_block=16,32", "magazine_blocks"),
        ("magazine_blocks=16,1024", "16 to 512"),
        ("magazine_blocks=16,1k", "=16,1024: allowed: 16 to 512"),
        ("depot_bytes=16,64T", "KNOB=A,B"),
        ("magazine_blocks=64,64", "must differ"),
        ("ace_policy=0,1", "when a learner begins"),
        ("canaries=0,1", "when a process starts"),
        ("ace_frozen=0,1", "while ACE is off"),
        ("placement_node=0,900", "unless placement is 3"),
        ("ace_enabled=1,0", "below 100"),
    ],
)
def test_turns_are_refused_in_one_line(asked, said, capsys):
    assert cli.main(["toggle", asked, "--workload", "bursts"]) == 1
    told = capsys.readouterr().err
    assert said in told and len(told.splitlines()) == 1


@pytest.mark.parametrize("seed", ["0", "-5", str(2**32 - 9)])
def test_turns_say_at_once_which_seeds_there_are(seed, capsys):
    assert cli.main(["toggle", "magazine_blocks=64,128", "--workload", "lifo", "--seed", seed]) == 1
    assert f"seed {seed}: allowed: 1 to {2**32 - 10}" in capsys.readouterr().err


def test_a_program_has_no_chunks_that_could_take_turns():
    with pytest.raises(ab.AbError, match="no chunks"):
        turns.compare(ab.program("true"), "magazine_blocks", (16, 32))


def test_ace_takes_turns_with_itself(capsys):
    words = ["toggle", "ace_enabled=0,1", "--workload", "frag", "--scale", "10", "--blocks", "6"]
    assert cli.main([*words, "--fast-interval-ms", "1"]) == 0
    head, line = capsys.readouterr().out.splitlines()[1:3]
    assert line.split()[0] == "ace_enabled=1" and int(line.split()[-2]) >= 100
    assert head.split()[-2:] == ["firings", "cached_kb"]


def test_what_learns_is_a_policy():
    assert ab.learner("on") == ab.side("on") and ab.learner("ucb1") == ab.side("ucb1")
    for name in ("off", "system", "fixed:64", "ucb7", "MAGAZINE_BLOCKS=64"):
        with pytest.raises(ab.AbError, match=f"{name!r} is no policy; allowed: on, ucb1"):
            ab.learner(name)

    with pytest.raises(ab.AbError, match="no runs of 'ucb1', only of 'on'"):
        ab.learner("ucb1", reference=True)


def test_what_would_help_a_learner_that_takes_turns_does():
    """On for half of the run; its length is said as it was asked for."""
    one, row = ab.Side("on", loop="fast"), {"status": "ok", "firings": 80, "elapsed_ns": 10**9}
    advice = {None: r"--scale 1\.5 times", 2.0: r"--seconds 3,"}
    for seconds, said in advice.items():
        target = ab.Target(("bench",), True, "frag", seconds)
        with pytest.raises(ab.AbError, match=rf"-interval-ms 4, {said}"):
            ab.refuse(target, one, row, allow_few=False, share=0.5)
        with pytest.raises(ab.AbError, match=rf"-interval-ms 8, {said}"):
            ab.refuse(target, one, row, allow_few=False)


def test_a_run_is_as_long_as_was_asked(capsys):
    row, _ = ab.record(turns.lasting(2, ab.workload("frag")), ab.side("off"))
    assert 0.5e9 < row["elapsed_ns"] < 8e9
    words = ["toggle", "idle_return=0,1", "--workload", "frag", "--blocks", "6", "--seconds"]
    assert cli.main([*words, "0.1"]) == 0
    head = capsys.readouterr().out.splitlines()[1].split()
    assert not {"settled", "firings", "cached_kb", "peak_rss_mb"} & set(head) and "n" in head
    for length, said in ((["0"], "above 0"), (["nan"], "above 0"), (["2", "--scale", "9"], "give one")):
        assert cli.main([*words, *length]) == 1
        assert said in capsys.readouterr().err


def test_a_program_that_ends_at_once_has_no_peak(monkeypatch, seen):
    row = preloaded.run(["sh", "-c", f"until [ -e {seen()} ]; do sleep 0.1; done"])
    assert row["peak_rss_bytes"] > 100_000
    monkeypatch.setattr(preloaded, "LOOK_S", 60)  # else a busy machine may have it ended late
    assert math.isnan(preloaded.run(["true"])["peak_rss_bytes"])


def test_the_peak_of_a_program_whose_first_thread_ends_first_is_that_of_the_others(seen):
    code = (
        "import ctypes, os, threading, time\n"
        "def status(): return open('/proc/self/status').read()\n"
        "def work():\n"
        "    while 'State:\\tZ' not in status(): time.sleep(0.01)\n"
        "    held = b'x' * 200_000_000\n"
        f"    while not os.path.exists({seen(200_000_000)!r}): time.sleep(0.01)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=work).start(); ctypes.CDLL(None).pthread_exit(None)"
    )
    assert preloaded.run([sys.executable, "-c", code])["peak_rss_bytes"] > 200_000_000


def asleep(seconds, wanted):
    """Waits until a process `sleep SECONDS` is there, or is not; whether that came."""
    return processes.come_to(f"sleep\0{seconds}\0", wanted)


def test_a_program_that_takes_too_long_ends_with_its_children():
    seconds = f"61.1{os.getpid()}"
    row = preloaded.run(["sh", "-c", f"sleep {seconds}; true"], timeout_s=1)
    assert row == {"status": "timeout", "error": "sh did not end within 1 s"}
    assert asleep(seconds, False)


@pytest.mark.parametrize("daemon", ["", "setsid ", "env -i setsid "])
def test_what_a_program_leaves_running_is_named_and_ended(daemon):
    """Its time is nobody's, and the next run would have it beside it; what only ends late is no fault."""
    seconds = f"61.3{os.getpid()}"
    begun = 'until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done'  # else it has the name of what begins it
    row = preloaded.run(["sh", "-c", f"{daemon}sleep {seconds} & {begun}"])
    assert row["status"] == "error" and "left sleep running" in row["error"]
    assert asleep(seconds, False)
    assert preloaded.run(["sh", "-c", "sleep 0.2 & true"])["status"] == "ok"


def test_what_a_program_leaves_is_ended_though_the_first_look_comes_late(monkeypatch):
    """On a busy machine this process may not run for seconds."""
    seconds, look = f"61.5{os.getpid()}", preloaded._started

    def late(since):
        time.sleep(3 * preloaded.LEAVE_S)
        return look(since)

    monkeypatch.setattr(preloaded, "LEAVE_S", 0.2)
    monkeypatch.setattr(preloaded, "_started", late)
    begun = 'until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done'
    row = preloaded.run(["sh", "-c", f"sleep {seconds} & {begun}"])
    assert row["status"] == "error" and "left sleep running" in row["error"]
    assert asleep(seconds, False)


def test_a_daemon_that_ends_before_its_script_is_counted():
    """As a server that a script starts, loads and stops: its parent has ended long before."""
    busy = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.5: pass\nprint()'"
    row = preloaded.run(["sh", "-c", '(setsid sh -c "$1; true" &) | read -r _', "sh", busy])
    assert row["status"] == "ok" and row["cpu_ns"] > 0.5e9


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGHUP])
def test_ending_ab_from_outside_stops_its_program_and_keeps_whole_blocks(which, tmp_path):
    seconds, slot = f"61.{which:d}{os.getpid()}", tmp_path / "slot"
    count = f"echo >> {tmp_path}/runs; [ $(wc -l < {tmp_path}/runs) -lt 17 ] || sleep {seconds}"
    words = ["ab", "--sides", "hakmem", "system", "--blocks", "60", "--", "sh", "-c", count]
    code = (
        "import sys; from pathlib import Path; from hakmem_py import cli, slot;"
        f"slot.SLOT = Path({str(slot)!r}); sys.exit(cli.main({words!r}))"
    )
    child = processes.start("-c", code, hears=which)
    while not asleep(seconds, True):
        assert child.poll() is None
    time.sleep(1)  # while the program is being started nobody could end it yet
    child.send_signal(which)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130 and "7 blocks" in out and "blocks that were whole" in err
    assert asleep(seconds, False)


def test_a_comparison_stopped_in_a_notebook_tells_where_its_samples_are():
    sides, rows = [ab.side("off"), ab.side("on")], [{"block": i // 2} for i in range(13)]
    told = pytest.raises(blocks.Stopped, match=r"6 blocks were whole.* sys\.last_value\.samples")
    with told as stop, blocks.running(rows, sides, Progress("of two", 60)):
        raise KeyboardInterrupt
    assert len(stop.value.samples) == 12


def test_a_comparison_that_fails_is_told_by_its_whole_blocks():
    sides, rows, told = [ab.side("off"), ab.side("on")], [{"block": i // 2} for i in range(13)], []

    def measure():
        with blocks.running(rows, sides, Progress("of two", 60)):
            raise InterruptedError("the bench was ended from outside")

    with pytest.raises(InterruptedError):
        blocks.judged(measure, told.append)
    assert len(told[0]) == 12
    rows.clear()
    with pytest.raises(InterruptedError):
        blocks.judged(measure, told.append)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("kill -40 $$", "sh ended with signal 40"),
        ("kill -SEGV $$", "sh ended with SIGSEGV"),
        (r"printf '\033[31mno \tpaper' >&2; exit 3", "sh ended with status 3: [31mno  paper"),
        ("head -c 9999 /dev/zero | tr '\\0' x >&2; exit 1", f"sh ended with status 1: {300 * 'x'} ..."),
    ],
)
def test_how_a_program_ended_is_one_short_line(program, said):
    assert preloaded.run(["sh", "-c", program])["error"] == said


def test_a_program_that_complains_much_does_not_fill_the_memory_of_who_measures_it():
    """Its lines, each an object of its own, would be twenty times the text."""
    code = (
        "import resource\nfrom hakmem_py import preloaded\n"
        "def most(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = most()\n"
        "assert preloaded.run(['sh', '-c', 'yes no | head -c 30000000 >&2'])['status'] == 'ok'\n"
        "print(most() - before)"
    )
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(grown) < 200_000  # KB


def test_a_program_holds_the_bench_slot_should_who_measures_it_be_killed():
    with slot.bench_slot("a test"):
        row = preloaded.run(["sh", "-c", f"readlink /proc/self/fd/* | grep -q {slot.SLOT}"])
    assert row["status"] == "ok"


def test_a_program_that_ends_while_its_threads_are_listed_has_no_high_water(monkeypatch, tmp_path):
    def gone(*_):
        raise FileNotFoundError(2, "No such file or directory")
        yield

    monkeypatch.setattr(Path, "glob", gone)
    assert preloaded._high_water(tmp_path) == 0


def test_stopping_as_the_watch_of_memory_begins_ends_the_watch(monkeypatch):
    start = threading.Thread.start

    def stopped(thread):
        start(thread)
        raise KeyboardInterrupt

    before = threading.active_count()
    monkeypatch.setattr(threading.Thread, "start", stopped)
    with pytest.raises(KeyboardInterrupt), preloaded._peak_rss(os.getpid()):
        pass
    until = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("run", [preloaded.run, worker.run], ids=["program", "bench"])
def test_stopping_the_measurement_as_the_program_starts_ends_the_program(run, stopped_start):
    assert stopped_start(lambda: run(["sleep", "60"])) == -signal.SIGKILL


def test_a_stop_that_another_thread_hears_ends_the_measurement():
    """As one does that comes just before the wait: it interrupts no system call of the main thread."""

    def stop():
        time.sleep(1)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    start = time.monotonic()
    with cli.stopped_as_by_the_user(), pytest.raises(KeyboardInterrupt):
        threading.Thread(target=stop).start()  # inside: before, it would end the tests
        preloaded.run(["sleep", "30"])
    assert time.monotonic() - start < 20


def test_stopping_the_measurement_stops_the_program_and_its_children():
    seconds = f"61.2{os.getpid()}"
    code = f"from hakmem_py import preloaded; preloaded.run(['sh', '-c', 'sleep {seconds}; true'])"
    child = processes.start("-c", code, hears=signal.SIGINT)
    assert asleep(seconds, True)
    time.sleep(1)  # while the program is being started nobody could end it yet
    child.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in child.communicate(timeout=30)[1]
    assert asleep(seconds, False)
