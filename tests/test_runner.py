"""The runner: only what is missing is measured, nothing twice, and what fails stays to be seen."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from hakmem_py import cli, peers, runner, slot, store, trace, worker
from hakmem_py.spec import SpecError, load_spec, narrow, schedule

CAMPAIGN = """
import sys
from pathlib import Path
from hakmem_py import runner, slot
slot.SLOT = Path(sys.argv[1], "bench.lock")
runner.ensure(sys.argv[2], folder=Path(sys.argv[1], "samples"), quick=False)
"""

ENDED = "import os, signal as s; s.signal(s.{0}, s.SIG_DFL); os.kill(os.getpid(), s.{0})"


def shared(path, code="", *flags):
    """A shared library of this C code."""
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", *flags, "-o", path]
    subprocess.run(command, input=code, text=True, check=True)
    return path


def test_samples_carry_what_defines_them(tiny, tmp_path):
    samples = runner.ensure(tiny(), folder=tmp_path / "s")
    assert len(samples) == 2 * 2 * 2  # blocks, cases, allocators
    assert set(samples["status"]) == {"ok"}
    assert list(samples["case"].unique()) == ["lifo-16", "lifo-64"]
    assert (samples["cpu_ns_per_op"] >= samples["min_cpu_ns_per_op"]).all()
    assert samples["run_id"].is_unique
    assert set(samples["cpu"]) <= os.sched_getaffinity(0)
    assert samples.groupby(["case", "block"])["seed"].nunique().eq(1).all()
    assert samples.attrs["baseline"] == "system"
    facts = runner.provenance.read(tmp_path / "s", samples["provenance"].unique())
    assert {"machine", "kernel", "compiler", "commit", "lock", "allocators"} <= set(facts[0])


def test_only_what_is_missing_is_measured(tiny, tmp_path):
    first = runner.ensure(tiny(), folder=tmp_path / "s", blocks=1)
    second = runner.ensure(tiny(), folder=tmp_path / "s")
    assert set(first["run_id"]) < set(second["run_id"])
    files = sorted((tmp_path / "s").iterdir())
    again = runner.ensure(tiny(), folder=tmp_path / "s")
    assert sorted((tmp_path / "s").iterdir()) == files
    assert list(again["started_at"]) == list(second["started_at"])


def test_runs_whose_file_proves_damaged_as_it_is_read_whole_are_not_left_out(tiny, tmp_path):
    """The plan reads a few columns, and these may be sound."""
    runner.ensure(tiny(), folder=tmp_path, blocks=1)
    [sound] = tmp_path.glob("samples-*")
    runner.ensure(tiny(), folder=tmp_path)
    [bad] = set(tmp_path.glob("samples-*")) - {sound}
    table = pq.read_table(bad)
    pq.write_table(table.drop_columns("seed").append_column("seed", [["none"] * len(table)]), bad)
    with pytest.raises(
        store.StoreError, match=r"samples of \d runs .* are damaged: the same command measures"
    ):
        runner.ensure(tiny(), folder=tmp_path)
    assert len(runner.ensure(tiny(), folder=tmp_path)) == 8


def test_a_killed_campaign_goes_on_where_it_stopped(tiny, tmp_path):
    spec = tiny("blocks = 3", "blocks = 40", "scale = 0.001", "scale = 0.02")
    command = [sys.executable, "-c", CAMPAIGN, tmp_path, spec]
    campaign = subprocess.Popen(command, stderr=subprocess.PIPE)
    while len(list(tmp_path.glob("samples/part-*"))) < 20:
        assert campaign.poll() is None, campaign.stderr.read().decode()
        time.sleep(0.01)
    os.kill(campaign.pid, signal.SIGKILL)
    campaign.communicate()
    kept = store.load(tmp_path / "samples")
    # the run that it had begun has the bench slot until it ends, soon and by itself
    whole = runner.ensure(spec, folder=tmp_path / "samples", quick=False, wait_s=60)
    everything = store.load(tmp_path / "samples")
    pairs = kept.groupby(["case", "block"])["allocator"]
    assert pairs.nunique().eq(2).all()  # none of which the other half would be of another sitting
    assert len(whole) == len(everything) == 40 * 4
    assert everything["run_id"].is_unique
    assert set(kept["started_at"]) <= set(whole["started_at"])


def test_a_stop_leaves_no_half_of_a_pair(tiny, tmp_path, monkeypatch):
    """Its other half would be made by a later sitting."""
    runs = iter([{"status": "ok", "error": "", "cpu_ns_per_op": 1.0}] * 3)

    def run(*_):
        if row := next(runs, None):
            return row
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "run", run)
    with pytest.raises(KeyboardInterrupt):
        runner.ensure(tiny(), folder=tmp_path / "s", blocks=1)
    kept = store.load(tmp_path / "s")
    assert sorted(kept["allocator"]) == ["floor", "system"] and kept["case"].nunique() == 1


def test_a_changed_rival_is_measured_together_with_the_others(tiny, tmp_path):
    before = runner.ensure(tiny(), folder=tmp_path / "s")
    changed = tiny('use = "floor"', 'use = "floor"\nslowdown = 50')
    after = runner.ensure(changed, folder=tmp_path / "s")
    assert not set(before["run_id"]) & set(after["run_id"])
    assert len(after) == len(before)


def test_another_setting_is_another_run_and_an_order_is_not(tiny):
    """The same side with other settings is measured anew; with a case left out, the others are not."""

    def identified(env, **choice):
        text = f'use = "hakmem"\nenv = {{ HAKMEM_MAGAZINE_BLOCKS = {env} }}'
        experiment = narrow(load_spec(tiny('use = "floor"', text)), **choice)
        found = runner.find_contenders(experiment)
        runs = [run for block in range(4) for run in schedule(experiment, block, True)]
        return set(runner.identify(runs, found, "here")), {run.position for run in runs}

    (whole, places), (part, fewer) = identified(64), identified(64, sizes=[64])
    assert part < whole and len(whole) == 16 and fewer < places
    assert not whole & identified(32)[0]


def test_the_family_of_a_spec_corrects_what_is_shown(capsys):
    times = {"old": 10.0, "new": 8.0, "newer": 6.0}
    rows = [
        {"case": "w", "allocator": name, "block": block, "status": "ok", "error": "", "load1": 0.0}
        | {"cpu_ns_per_op": time + 0.01 * (7 * block % 5)}
        for block in range(6)
        for name, time in times.items()
    ]
    samples = pd.DataFrame(rows)
    for family, words in (("holm", 0), ("bh", 2)):  # six blocks pass the one, not the other
        samples.attrs = {"title": "T", "metric": "cpu_ns_per_op", "baseline": "old", "family": family}
        assert runner.show(samples) == 0
        assert capsys.readouterr().out.count(" GO ") == words


def test_one_side_alone_is_told_as_such_and_fails_where_no_run_of_a_case_succeeded(capsys):
    run = {"allocator": "old", "load1": 0.0, "cpu_ns_per_op": 10.0, "error": ""}
    samples = pd.DataFrame([run | {"case": "w", "block": block, "status": "ok"} for block in range(6)])
    samples.attrs = {"title": "T", "metric": "cpu_ns_per_op", "baseline": "old", "family": "holm"}
    lost = "hakmem: no pair of runs of w succeeded\n"
    for failed, said in (
        (0, ""),
        (1, "1 runs of old failed: boom\n"),
        (6, "6 runs of old failed: boom\n" + lost),
    ):
        samples.loc[: failed - 1, ["status", "error"]] = "error", "boom"
        assert runner.show(samples) == (failed == 6)
        told = capsys.readouterr()
        assert told.out.endswith("\nno other side was measured, so nothing is compared\n")
        assert told.err == said


def test_a_rival_of_another_version_is_named_and_not_mixed_in(tiny, tmp_path, monkeypatch, capfd):
    """Two builds of one library stand for two versions of a peer."""
    code = "void *__libc_malloc(unsigned long);\nvoid *malloc(unsigned long n) { return __libc_malloc(n); }"
    libraries = [shared(tmp_path / f"libpeer{i}.so", code) for i in (1, 2)]
    spec = tiny('use = "floor"', 'use = "jemalloc"')
    measured = []
    for path, version in zip(libraries, ("5.2", "5.3"), strict=True):
        monkeypatch.setattr(peers, "find", lambda name, p=path, v=version: peers.Peer(name, p, v, f"sha {v}"))
        measured.append(runner.ensure(spec, folder=tmp_path / "s"))
        assert set(measured[-1]["status"]) == {"ok"}
    said = capfd.readouterr().err
    assert said.count("floor changed, 5.2 to 5.3") == 1
    assert not set(measured[0]["run_id"]) & set(measured[1]["run_id"])
    assert set(measured[1].query("allocator == 'floor'")["library_version"]) == {"5.3"}


def test_a_clock_that_is_set_is_named_and_costs_no_sample(tiny, tmp_path, monkeypatch, capfd):
    shift = iter([0.0, 3600.0, 3600.0])
    monkeypatch.setattr(runner.provenance.time, "time", lambda now=time.time: now() + next(shift, 3600.0))
    samples = runner.ensure(tiny(), folder=tmp_path / "s")
    assert capfd.readouterr().err.count("was set by +3600 s") == 1
    assert set(samples["status"]) == {"ok"}


@pytest.mark.parametrize("told", [{"elapsed_ns": 10**12}, {"chunk_ns": [5.0, -3.0]}, {"chunk_cpu_ns": [0.0]}])
def test_a_run_over_which_the_clock_jumped_is_an_error(told):
    result = {"elapsed_ns": 1000, "chunk_ns": [5.0], "chunk_cpu_ns": [5.0]} | told
    row = worker.run([sys.executable, "-c", f"print({json.dumps(result)!r})"])
    assert row["status"] == "error" and row["error"].startswith("the clock jumped")


def test_a_run_that_was_killed_from_outside_is_measured_anew(tiny, tmp_path, monkeypatch):
    killed = worker.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert killed["status"] == "crashed" and "measures it again" in killed["error"]
    well = {"status": "ok", "error": "", "cpu_ns_per_op": 1.0}
    said = iter([killed, well, well, well])
    monkeypatch.setattr(worker, "run", lambda *_: next(said))
    again = [runner.ensure(tiny(), folder=tmp_path / "s", blocks=1, sizes=[16]) for _ in range(2)]
    assert [sorted(samples["status"]) for samples in again] == [["crashed", "ok"], ["ok", "ok"]]
    assert next(said, None) is None  # its rival was, too, or the pair would span two sittings
    assert again[0]["started_at"].max() <= again[1]["started_at"].min()


def test_variants_that_are_for_tests_are_refused(tiny):
    spec = tiny('use = "floor"', 'use = "hakmem"\nvariant = "asan"')
    with pytest.raises(SpecError, match="asan is for tests"):
        runner.ensure(spec)


def test_an_exact_slowdown_is_injected(tiny, tmp_path):
    spec = tiny(
        'label = "floor"\nuse = "floor"',
        'label = "slower"\nuse = "system"\nslowdown = 400',
        "scale = 0.001\nquick_scale = 0.001",
        "scale = 1\nquick_scale = 0.05",
    )
    cost = runner.ensure(spec, folder=tmp_path / "s").groupby("allocator")["min_cpu_ns_per_op"].min()
    assert cost["slower"] > 2 * cost["system"]  # five times the work: no noise comes near


def test_a_run_that_takes_too_long_is_a_row(tiny, tmp_path):
    spec = tiny("timeout_s = 20", "timeout_s = 0.1", "quick_scale = 0.001", "quick_scale = 1000")
    samples = runner.ensure(spec, folder=tmp_path / "s", blocks=1, sizes=[16])
    assert list(samples["status"]) == ["timeout", "timeout"]
    assert set(samples["error"].str.partition(":")[0]) == {"no result within 0.1 s"}


def test_a_run_that_had_too_little_time_is_measured_anew_with_its_rivals(tiny, tmp_path, monkeypatch):
    def given(timeout_s, slow=()):
        """The samples by allocator, of which the slow ones end only when they are given 3 s."""

        def run(command, preload, expect, env, limit):
            if limit < 3 and "floor" in command and "floor" in slow:
                error = f"no result within {limit:g} s"
                return {"status": "timeout", "error": error, "wall_ns": round(limit * 1e9)}
            return {"status": "ok", "error": "", "cpu_ns_per_op": 1.0}

        monkeypatch.setattr(worker, "run", run)
        spec = tiny("timeout_s = 20", f"timeout_s = {timeout_s}")
        samples = runner.ensure(spec, folder=tmp_path / "s", blocks=1, sizes=[16])
        assert len(samples) == len(store.rows(tmp_path / "s", samples["run_id"])) == 2
        return samples.set_index("allocator")

    late = given(1.2345678, ["floor"])
    assert late["status"].to_dict() == {"system": "ok", "floor": "timeout"}
    assert "raise timeout_s of the specification" in late.loc["floor", "error"]
    for same_or_less in (1.2345678, 1):
        assert given(same_or_less)["started_at"].equals(late["started_at"])
    still = given(2, ["floor"])
    assert still.loc["floor", "error"].startswith("no result within 2 s")
    ended = given(3, ["floor"])
    assert ended["status"].to_dict() == {"system": "ok", "floor": "ok"}
    assert ended["started_at"].min() > still["started_at"].max()
    assert given(4)["started_at"].equals(ended["started_at"])


def test_a_misspelt_experiment_is_told_before_the_first_one_is_measured(tiny, monkeypatch, capsys):
    monkeypatch.setattr(runner, "ensure", None)
    assert cli.main(["run", tiny(), "04_pattern"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("hakmem run: no specification 04_pattern.toml") and told.count("\n") == 1
    assert "04_patterns" in told
    assert cli.main(["run", "of/mine.toml"]) == 1
    assert "no specification of/mine.toml; there are" in capsys.readouterr().err
    assert cli.main(["run", tiny(), "04_patterns", "--sizes", "64", "65"]) == 1
    assert "sizes = [64, 65] must be chosen from" in capsys.readouterr().err


def test_what_the_bench_refuses_is_a_row(tiny, tmp_path):
    spec = tiny('workload = "lifo"\nsize = [16, 64]\nthreads = 1', 'workload = "prodcons"\nthreads = 3')
    samples = runner.ensure(spec, folder=tmp_path / "s", blocks=1).set_index("allocator")
    assert samples.loc["system", "status"] == "error"
    assert "even number" in samples.loc["system", "error"]
    assert samples.loc["floor", "status"] == "missing"
    assert samples.loc["floor", "error"] == "floor cannot run prodcons"


def test_a_missing_peer_is_a_row_that_says_how_to_get_it(tiny, tmp_path, monkeypatch):
    gone = peers.Peer("jemalloc", None, hint="not installed, get it by: asking")
    monkeypatch.setattr(peers, "find", lambda name: gone)
    spec = tiny('use = "floor"', 'use = "jemalloc"')
    samples = runner.ensure(spec, folder=tmp_path / "s")
    missing = samples[samples["allocator"] == "floor"]
    assert set(missing["status"]) == {"missing"}
    assert set(missing["error"]) == {"not installed, get it by: asking"}
    assert set(samples.loc[samples["allocator"] == "system", "status"]) == {"ok"}


def test_a_library_that_does_not_answer_malloc_is_an_error(tiny, tmp_path, monkeypatch):
    pretender = shared(tmp_path / "libpretender.so")
    monkeypatch.setattr(peers, "find", lambda name: peers.Peer(name, pretender, "1", "abc"))
    spec = tiny('use = "floor"', 'use = "jemalloc"')
    samples = runner.ensure(spec, folder=tmp_path / "s", blocks=1).set_index("allocator")
    assert set(samples.loc["floor", "status"]) == {"error"}
    assert "not by libpretender.so" in samples.loc["floor", "error"].iloc[0]


def test_every_process_has_files_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "BUILDS", tmp_path)
    own, library = tmp_path / "bench", tmp_path / "lib" / "libempty.so"
    own.write_text('#!/bin/sh\necho "$0 $LD_PRELOAD" >&2\nexit 1\n')
    own.chmod(0o755)
    library.parent.mkdir()
    shared(library)
    ran = [Path(name) for _ in range(2) for name in worker.run([own], str(library))["error"].split()]
    assert [path.name for path in ran] == 2 * [own.name, library.name]
    assert len({path.parent for path in ran} | {own.parent, library.parent}) == 4
    assert sorted(tmp_path.iterdir()) == sorted([own, library.parent])


def test_a_full_disk_is_named_where_a_run_copies_its_files(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "a", None, "b")

    monkeypatch.setattr(worker, "BUILDS", tmp_path)
    monkeypatch.setattr(worker.shutil, "copy", full)
    with pytest.raises(store.StoreError, match=f"cannot write to {tmp_path}: No space left .*make room"):
        worker.run([tmp_path / "bench"])
    assert list(tmp_path.iterdir()) == []


def test_a_library_finds_what_lies_beside_it(tmp_path):
    inner = shared(tmp_path / "libinner.so", "", "-Wl,-soname,libinner.so")
    outer = shared(tmp_path / "libouter.so", "", "-Wl,--no-as-needed,-rpath,$ORIGIN", inner)
    look = "grep -q libinner /proc/$$/maps && echo found >&2; exit 1"
    row = worker.run(["/bin/sh", "-c", look], str(outer))
    assert row["error"] == "found"


def test_a_crash_is_a_row(tiny, tmp_path, monkeypatch):
    code = "#include <stdlib.h>\nvoid *malloc(size_t n) { (void)n; abort(); }"
    library = shared(tmp_path / "libcrash.so", code)
    monkeypatch.setattr(peers, "find", lambda name: peers.Peer(name, library, "1", "abc"))
    samples = runner.ensure(tiny('use = "floor"', 'use = "jemalloc"'), folder=tmp_path / "s", blocks=1)
    crashed = samples[samples["allocator"] == "floor"]
    assert set(crashed["status"]) == {"crashed"}
    assert crashed["error"].iloc[0].startswith("SIGABRT")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_bench_that_was_ended_from_outside_is_no_row(name):
    with pytest.raises(InterruptedError, match=rf"ended from outside \({name}\): run the same command again"):
        worker.run([sys.executable, "-c", ENDED.format(name)])
    assert worker.run([sys.executable, "-c", ENDED.format("SIGSEGV")])["status"] == "crashed"


def test_a_bench_that_cannot_list_its_workloads_is_one_line(tmp_path):
    (tmp_path / "bench").symlink_to("/bin/false")
    with pytest.raises(RuntimeError, match=r"^bench --list failed \(1\)$"):
        runner.workloads(runner.build.Build("release", "", tmp_path))


def test_hakmem_itself_answers_when_preloaded_and_when_linked(tiny, tmp_path):
    spec = tiny('label = "floor"\nuse = "floor"', 'label = "floor"\nuse = "hakmem"')
    samples = runner.ensure(spec, folder=tmp_path / "s", blocks=1)
    assert set(samples["status"]) == {"ok"}
    linked = tiny('label = "floor"\nuse = "floor"', 'label = "floor"\nuse = "direct"')
    assert set(runner.ensure(linked, folder=tmp_path / "s", blocks=1)["status"]) == {"ok"}


def test_an_unknown_workload_names_those_there_are(tiny):
    with pytest.raises(SpecError, match=r"'livo' of tiny is unknown.*lifo"):
        runner.ensure(tiny('workload = "lifo"', 'workload = "livo"'))


def test_a_recorded_trace_is_a_case(tiny, tmp_path, capsys):
    """Told by its content: a new recording is measured anew, in another folder it is the same."""

    def record(program, path):
        (recorded,) = trace.record([sys.executable, "-c", program], path.parent)[1]
        recorded.path.rename(path)

    def measure(workload):
        shape = 'workload = "lifo"\nsize = [16, 64]\nthreads = 1'
        path = tiny('use = "floor"', 'use = "hakmem"', shape, f'workload = "{workload}"')
        samples = runner.ensure(path, folder=tmp_path / "samples")
        assert set(samples["case"]) == {"work"} and set(samples["status"]) == {"ok"} and len(samples) == 4
        return len(store.load(tmp_path / "samples"))

    first, second = tmp_path / "one" / "work.haktrace", tmp_path / "two" / "work.haktrace"
    record("[str(i) for i in range(1000)]", first)
    assert measure("one/work.haktrace") == 4
    second.parent.mkdir()
    first.rename(second)
    assert measure(second) == 4
    record("[str(i) for i in range(5000)]", first)
    assert measure("one/work.haktrace") == 8
    with pytest.raises(ValueError, match=r"none.haktrace: No such file.*hakmem trace"):
        measure("one/none.haktrace")
    words = ["ab", "--sides", "off", "system", "--workload", str(first), "--blocks", "6"]
    assert cli.main(words) == 0 and capsys.readouterr().out.startswith("work: cpu time")
    assert cli.main([*words, "--size", "16"]) == 1 and "leave them out" in capsys.readouterr().err


def test_a_side_of_which_every_run_failed_is_told_and_the_others_are_shown(capsys):
    rows = [
        {"case": case, "allocator": side, "block": block, "status": "ok", "error": "", "load1": 0.0}
        | {"cpu_ns_per_op": time + 0.01 * (7 * block % 5)}
        for case in ("v", "w")
        for block in range(6)
        for side, time in (("old", 10.0), ("new", 8.0), ("newer", 6.0))
    ]
    samples = pd.DataFrame(rows)
    samples.attrs = {"title": "T", "metric": "cpu_ns_per_op", "baseline": "old", "family": "holm"}
    of_one = (samples["case"] == "w") & (samples["allocator"] == "newer")
    for failed, lost in (
        (of_one & (samples["block"] > 2), ""),
        (of_one, "newer in w"),
        (samples["case"] == "w", "w"),
    ):
        samples.loc[failed, ["status", "error"]] = "error", "boom"
        assert runner.show(samples) == bool(lost)
        told = capsys.readouterr()
        assert ("no pair of runs of" in told.err) == bool(lost)
        assert told.err.endswith(
            f"hakmem: no pair of runs of {lost} succeeded\n" if lost else "failed: boom\n"
        )
        assert told.out.startswith("T: cpu_ns_per_op, each against old\n")


def test_a_setting_that_is_none_is_refused_and_names_those_there_are(tiny, tmp_path):
    def with_setting(text):
        return tiny('use = "floor"', f'use = "hakmem"\nenv = {{ {text} }}')

    with pytest.raises(SpecError, match=r"tiny: env HAKMEM_MAGAZINE_BLOKS is no .*HAKMEM_MAGAZINE_BLOCKS"):
        runner.ensure(with_setting("HAKMEM_MAGAZINE_BLOKS = 64"), folder=tmp_path / "s")
    good = 'HAKMEM_PROFILE = "lean", HAKMEM_MAGAZINE_BLOCKS = 64, OTHER = 1'
    assert set(runner.ensure(with_setting(good), folder=tmp_path / "s")["status"]) == {"ok"}


def test_a_run_of_which_nothing_can_be_said_ends_with_1(tiny, monkeypatch, capsys):
    late = tiny("timeout_s = 20", "timeout_s = 0.1", "quick_scale = 0.001", "quick_scale = 1000")
    monkeypatch.setattr(store, "SAMPLES", Path(late).parent)
    assert cli.main(["run", late, "--sizes", "16", "--blocks", "6"]) == 1
    assert "hakmem: no pair of runs of lifo-16 succeeded\n" in capsys.readouterr().err
    monkeypatch.setattr(peers, "find", lambda name: peers.Peer(name, None, hint="not installed"))
    assert cli.main(["run", tiny('use = "floor"', 'use = "jemalloc"'), "--blocks", "6"]) == 0


def test_two_campaigns_on_one_machine_are_refused(tiny, tmp_path):
    with (
        slot.bench_slot("another experiment"),
        pytest.raises(slot.SlotError, match=r"another experiment \(process \d+"),
    ):
        runner.ensure(tiny(), folder=tmp_path / "s")
    assert len(runner.ensure(tiny(), folder=tmp_path / "s")) == 8


@pytest.mark.parametrize("why", [errno.EACCES, errno.EROFS])
def test_every_user_of_the_machine_may_take_the_slot(monkeypatch, why):
    before = os.umask(0o077)
    with slot.bench_slot("one"):
        assert slot.SLOT.stat().st_mode & 0o777 == 0o666
    os.umask(before)
    named, opened = slot.SLOT.read_text(), Path.open

    def read_only(path, mode="r", **how):
        """As of another user's file in a folder like /tmp, or on a disk that is only read."""
        if path == slot.SLOT and mode != "r" and (mode == "x+" or path.exists()):
            raise OSError(why, os.strerror(why), str(path))
        return opened(path, mode, **how)

    monkeypatch.setattr(Path, "open", read_only)
    with slot.bench_slot("two"), pytest.raises(slot.SlotError, match="one"), slot.bench_slot("three"):
        pass
    assert slot.SLOT.read_text() == named
    slot.SLOT.unlink()
    said = f"cannot make {slot.SLOT}, .*: {os.strerror(why)}; make {slot.SLOT.parent} writable"
    with pytest.raises(slot.SlotError, match=said), slot.bench_slot("four"):
        pass


def test_who_waits_for_the_slot_is_told_whose_it_is(monkeypatch, capsys):
    monkeypatch.setattr(slot, "SAY_AFTER_S", 0.1)
    with slot.bench_slot("one"), pytest.raises(slot.SlotError), slot.bench_slot("two", wait_s=0.7):
        pass
    said = capsys.readouterr().err
    assert said.startswith("hakmem: waiting for this machine's bench slot, which is taken by one (process ")
    assert said.count("\n") == 1


def test_a_slot_that_outlives_its_holder_says_so():
    said = "which has ended, while what it ran has not"
    with slot.bench_slot("one"):
        slot.SLOT.write_text("one (process 4194305, since 12:00:00)\n")  # above the greatest number there is
        with pytest.raises(slot.SlotError, match=said), slot.bench_slot("two"):
            pass


def test_reference_samples_need_no_build(tiny, tmp_path, monkeypatch):
    measured = runner.ensure(tiny(), folder=tmp_path / "reference" / "tiny")
    monkeypatch.setattr(store, "REFERENCE", tmp_path / "reference")
    monkeypatch.setattr(runner, "find_contenders", None)
    read = runner.ensure(tiny(), reference=True, sizes=[16])
    assert set(read["run_id"]) < set(measured["run_id"])
    assert set(read["case"]) == {"lifo-16"}
    assert set(runner.ensure(tiny(), reference=True, blocks=1)["block"]) == {0} < set(measured["block"])


def test_the_folder_in_the_way_is_named(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(store.StoreError, match="cannot write"):
        runner.ensure(tiny(), folder=tmp_path / "file" / "s")


def test_a_footer_shows_where_numbers_came_from(tiny, tmp_path):
    samples = runner.ensure(tiny(), folder=tmp_path / "s")
    shown = repr(runner.provenance.footer(samples, sizes=[16, 64]))
    for word in ("8 ok", "sizes: 16, 64", "kernel", "compiler", "floor", "seed 42"):
        assert word in shown
    assert "<th scope='row'>kernel</th>" in runner.provenance.footer(samples)._repr_html_()


def test_the_commit_is_that_of_this_repository_or_what_git_says(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=b", *words], check=True)

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message=first")
    (tmp_path / "inside").mkdir()
    monkeypatch.setattr(runner.provenance, "ROOT", tmp_path / "inside")
    assert runner.provenance.collect()["commit"] == "no repository"
    monkeypatch.setattr(runner.provenance, "ROOT", tmp_path)
    assert re.fullmatch("[0-9a-f]{12}", runner.provenance.collect()["commit"])
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    assert "git config --global --add safe.directory" in runner.provenance.collect()["commit"]


@pytest.mark.parametrize(("hours", "said"), [(1, "09:00 to 10:00"), (25, "09:00 to 2026-01-02 10:00")])
def test_a_footer_names_the_day_on_which_a_later_sitting_ended(hours, said):
    clock = pd.Timestamp("2026-01-01 09:00", tz="UTC")
    times = [clock, clock + pd.Timedelta(hours=hours)]
    samples = pd.DataFrame({"status": ["ok", "crashed"], "started_at": times, "load1": [1.0, 2.0]})
    shown = repr(runner.provenance.footer(samples, facts={"kernel": "k"}))
    assert f"2026-01-01 {said} UTC" in shown and "1 ok, 1 crashed" in shown and "1.5 (median" in shown


def test_the_seed_decides_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    drawn = {seed: [runner._core(block, seed) for block in range(40)] for seed in (1, 2)}
    assert drawn[1] != drawn[2] and set(drawn[1]) == {0, 1, 2, 3}
    assert drawn[1] == [runner._core(block, 1) for block in range(40)]
