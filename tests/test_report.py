"""Reports as people use them: real papermill runs of small notebooks, good and bad."""

import dataclasses
import fcntl
import functools
import html
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import nbformat
import processes
import pytest

from hakmem_py import ROOT, calibration, notebook, pages, parameters, report, slot, store
from hakmem_py import batch as runs
from hakmem_py.batch import execute
from hakmem_py.spec import load_spec

PARAMETERS = """\
sizes: list[int] = [16, 32]  # 8..1024; bytes
policy: str = "ucb1"  # one of ucb1 | fixed; who chooses
rate: float = 0.5  # 0..1; x = y
quick: bool = True  # few
threads: list[int] = []  # one of 1 | 2 | 4; none: all
blocks: int = 0  # 0 or 6..1000; randomised blocks
sides: list[str] = ["system"]  # who takes part"""
GOOD = """\
import hakmem_py as hp
hp.parameters.settle(globals())
hp.report.headline(f"sum of sizes {sum(sizes)}", "GO")"""


def write(folder, name, *cells, measures=False):
    """A notebook of these code cells, the first of which declares the parameters."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.cells[0].metadata["tags"] = ["parameters"]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["hakmem"] = {"measures": measures, "part": "Start here"}
    path = folder / f"{name}.ipynb"
    nbformat.write(notebook, path)
    return path


def run(*words, cwd=None, warn="default"):
    """`python -m hakmem_py report ...` as a finished process."""
    command = [sys.executable, "-W", warn, "-m", "hakmem_py", "report", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd)


# ---------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"sizes": "[16, 64]"}, {"sizes": [16, 64]}),
        ({"sizes": "16,64"}, {"sizes": [16, 64]}),
        ({"sides": "[hakmem, system]"}, {"sides": ["hakmem", "system"]}),
        ({"sides": "hakmem"}, {"sides": ["hakmem"]}),
        ({"threads": "[]"}, {"threads": []}),
        ({"threads": "[2, 4]"}, {"threads": [2, 4]}),
        ({"quick": "false"}, {"quick": False}),
        ({"rate": 1}, {"rate": 1.0}),
        ({"blocks": "0"}, {"blocks": 0}),
        ({"blocks": "6"}, {"blocks": 6}),
        ({"policy": "fixed"}, {"policy": "fixed"}),
    ],
)
def test_values_get_the_declared_type(given, read):
    assert parameters.check(given, parameters.declared(PARAMETERS), "here") == read


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"sizs": [16]}, "allowed: sizes, policy, rate, quick, threads, blocks, sides"),
        ({"blocks": 5}, "int from 6 to 1000, or 0"),
        ({"sizes": 16}, "list[int] from 8 to 1024"),
        ({"sizes": [4]}, "list[int] from 8 to 1024"),
        ({"sizes": [16.5]}, "list[int] from 8 to 1024"),
        ({"sizes": "[16"}, "list[int] from 8 to 1024"),
        ({"sides": "[hakmem, [system]]"}, "list[str], written as [A, B]"),
        ({"sides": "['hakmem', system]"}, "list[str], written as [A, B]"),
        ({"sides": "hakmem]"}, "list[str], written as [A, B]"),
        ({"sizes": "[]"}, "list[int] from 8 to 1024, written as [A, B], not empty"),
        ({"sizes": "{[]: 1}"}, "list[int] from 8 to 1024"),
        ({"rate": 10_000 * "-" + "1"}, "float from 0 to 1"),
        ({"rate": "{{}}"}, "float from 0 to 1"),
        ({"threads": [3]}, "list[int], one of 1, 2, 4"),
        ({"policy": "best"}, "one of ucb1, fixed"),
        ({"rate": 2.0}, "float from 0 to 1"),
        ({"quick": 1}, "bool"),
        ({"rate": True}, "float"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(given, allowed):
    with pytest.raises(parameters.ParameterError, match="here: ") as refused:
        parameters.check(given, parameters.declared(PARAMETERS), "here")
    assert allowed in str(refused.value) and "\n" not in str(refused.value)


# ---------------------------------------------------------------- nothing starts on a wrong command line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["-p", "sizs=[16]"],
            "unknown parameter 'sizs'; allowed: sizes, policy, rate, quick, threads, blocks, sides",
        ),
        (["-p", "sizes=many"], "sizes = 'many' is not allowed"),
        (["-p", "rate=7"], "float from 0 to 1"),
        (["-p", "rate"], "write -p NAME=VALUE"),
    ],
)
def test_a_wrong_parameter_starts_nothing(tmp_path, words, said):
    done = run(write(tmp_path, "good", PARAMETERS, GOOD), *words, "--out", tmp_path / "out")
    assert done.returncode == 2 and said in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["04_patterns", "05_scorecard"])
def test_an_experiments_labels_and_sizes_are_known_before_it_starts(name):
    path = report.find(name)
    known, experiment = report._declared(notebook.read(path)["cells"], path), load_spec(name)
    assert known["allocators"].words == tuple(side.label for side in experiment.allocators)
    if "sizes" in known:
        assert known["sizes"].words == tuple(map(str, known["sizes"].default))
        assert set(known["sizes"].default) == {case.size for case in experiment.cases}
    with pytest.raises(report.ReportError, match="is not allowed; allowed: list"):
        report.plan([name], ["allocators=nope"])


@pytest.mark.parametrize("name", ["00", "03", "04", "05", "06", "07", "09"])
def test_blocks_too_few_for_an_interval_are_refused(name):
    with pytest.raises(report.ReportError, match="blocks = 5 is not allowed; allowed: int from 6"):
        report.plan([name], ["blocks=5"])


def test_a_notebook_is_found_by_its_number():
    assert report.find("8") == report.find("08") == report.find("08_ucb1")
    assert report.find("1").stem == "01_ruler" and report.find("10").stem == "10_policies"


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").touch()
    done = run(write(tmp_path, "good", PARAMETERS, GOOD), "--out", tmp_path / "file" / "out")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "cannot write to" in done.stderr and "--out" in done.stderr


def test_two_reports_in_one_folder_are_refused(tmp_path):
    book, out = write(tmp_path, "good", PARAMETERS, GOOD), tmp_path / "out"
    out.mkdir()
    place = os.open(out, os.O_RDONLY)
    fcntl.flock(place, fcntl.LOCK_EX)  # as the first one has it
    done = run(book, "--out", out)
    os.close(place)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not list(out.iterdir())
    assert done.stderr.startswith(f"another report is being made in {out}: wait")
    assert run(book, "--out", out).returncode == 0  # free again


def test_a_runs_file_is_multiplied_out_and_read_strictly(tmp_path):
    good = write(tmp_path, "good", PARAMETERS, GOOD)
    text = f'[[run]]\nnotebook = "{good}"\ngrid = {{ rate = [0.1, 0.2], sizes = [[16], [32]] }}\n'
    (tmp_path / "runs.toml").write_text(text)
    names = [r.name for r in report.plan([], [], tmp_path / "runs.toml")]
    assert names == [
        "good-rate_0.1-sizes_16",
        "good-rate_0.1-sizes_32",
        "good-rate_0.2-sizes_16",
        "good-rate_0.2-sizes_32",
    ]
    long = f'[[run]]\nnotebook = "{good}"\ngrid = {{ sizes = [{[64] * 99}, {[64] * 98}] }}\n'
    (tmp_path / "long.toml").write_text(long)
    assert len({r.name for r in report.plan([], [], tmp_path / "long.toml") if len(r.name) < 100}) == 2
    (tmp_path / "runs.toml").write_text(text + "repeat = 3\n")
    with pytest.raises(report.ReportError, match="unknown key repeat; allowed"):
        report.plan([], [], tmp_path / "runs.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[run]\nnotebook = "04"', r"needs \[\[run\]\]"),
        ("run = [4]", r"needs \[\[run\]\]"),
        ("[[run]]\nnotebook = 4", "notebook = 4: must be a text"),
        ('[[run]]\nnotebook = "04"\nparameters = ["quick"]', "must be a table"),
        ('[[run]]\nnotebook = "04"\ngrid = { blocks = 6 }', "grid: blocks = 6: must be a list"),
        ('[[run]]\nnotebook = "04"\ngrid = { sizes = [] }', r"grid: sizes = \[\]: must be a list, not empty"),
        ('[[run]]\nnotebook = "04"\nname = "a/b"', "name = 'a/b': must be a file's name"),
        ("run = " + "[" * 100_000, r"cannot read .*runs\.toml"),
        ("\xff", r"cannot read .*runs\.toml"),
    ],
)
def test_a_wrong_runs_file_is_one_line(tmp_path, text, said):
    (tmp_path / "runs.toml").write_text(text, encoding="latin-1")
    with pytest.raises(report.ReportError, match=said) as caught:
        report.plan([], [], tmp_path / "runs.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cells", ["null", "[1]", '[{"metadata": {}}]', '[{"source": "1"}]', "[" * 100_000])
def test_a_notebook_that_is_none_is_one_line(tmp_path, cells):
    path = tmp_path / "mine.ipynb"
    path.write_text(f'{{"nbformat": 4, "metadata": {{}}, "cells": {cells}}}')
    with pytest.raises(report.ReportError, match=r"cannot read .*mine\.ipynb") as caught:
        report.plan([str(path)], [])
    assert "\n" not in str(caught.value)


def test_the_full_mode_has_hours_for_a_cell():
    told = [report.plan(["06_pools"], [f"quick={word}"])[0] for word in ("true", "false")]
    limits = [run.cell_timeout_s() for run in (*told, *report.plan(["06_pools"], [], full=True))]
    assert limits[0] == report.CELL_TIMEOUT_S and min(limits[1:]) == report.FULL_CELL_TIMEOUT_S


def test_an_unknown_notebook_is_named():
    with pytest.raises(report.ReportError, match=r"no single notebook is called '\*\*'"):
        report.find("**")
    with pytest.raises(report.ReportError, match="no single notebook is called '99'"):
        report.plan(["99"], [])


# ---------------------------------------------------------------- one batch of good and bad notebooks


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    """(finished process, reports folder) of five notebooks, of which three fail, each in its way."""
    folder = tmp_path_factory.mktemp("batch")
    books = [
        write(folder, "01_good", PARAMETERS, GOOD),
        write(folder, "02_broken", PARAMETERS, "before = 1", "1 / 0"),
        write(folder, "03_dead", PARAMETERS, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"),
        write(folder, "04_endless", PARAMETERS, "import time\ntime.sleep(600)"),
        write(folder, "05_good", PARAMETERS, GOOD),
    ]
    return run(
        *books, "-p", "sizes=[16, 64]", "--timeout", 45, "--jobs", 5, "--out", folder / "out"
    ), folder / "out"


def test_failures_are_told_apart_and_the_rest_is_finished(batch):
    done, out = batch
    assert done.returncode == 1
    assert "02_broken: failed in In [4] `1 / 0`: ZeroDivisionError: division by zero" in done.stderr
    assert re.search(r"03_dead: kernel died in (In \[3\] )?`import os, signal`", done.stderr)
    assert "04_endless: timed out in In [3] `import time`" in done.stderr
    assert [p.name for p in sorted((out / "html").glob("*.html"))] == ["01_good.html", "05_good.html"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ValueError: no", "ValueError: no"),
        ("ValueError: no\nmore", "ValueError: no"),
        ("KeyError: ", "KeyError:"),
        (
            "BuildError: gcc failed (1):\nx.c: In function 'f':\nx.c:3:1: error: expected ';'\n}",
            "BuildError: gcc failed (1): x.c:3:1: error: expected ';'",
        ),
        ("BuildError: ld failed (1):\n\n  no space\n", "BuildError: ld failed (1): no space"),
    ],
)
def test_a_failure_is_one_line_that_tells_why(said, told):
    assert runs._reason(said) == told


def test_an_executed_notebook_has_its_name_only_if_it_succeeded(batch):
    executed = {path.name for path in (batch[1] / "executed").glob("*.ipynb")}
    assert {"01_good.ipynb", "05_good.ipynb", "02_broken.failed.ipynb"} <= executed
    assert not executed & {"02_broken.ipynb", "03_dead.ipynb", "04_endless.ipynb"}


def test_progress_says_what_is_done_and_how_long_it_will_take(batch):
    assert "[1/5]" in batch[0].stderr and "left" in batch[0].stderr


def test_parameters_reach_the_notebook_and_the_command_at_the_end_of_the_page(batch):
    page = (batch[1] / "html" / "01_good.html").read_text()
    assert "sum of sizes 80" in page
    assert "01_good.ipynb -p 'sizes=[16, 64]'" in html.unescape(page)


def test_the_front_page_has_results_and_failures(batch):
    index = (batch[1] / "index.html").read_text()
    assert "sum of sizes 80" in index and ">GO<" in index
    assert "kernel died" in index and "timed out" in index and "ZeroDivisionError" in index


def test_resuming_runs_only_what_changed(batch):
    book, out = batch[1].parent / "01_good.ipynb", batch[1]
    kept = run(book, "-p", "sizes=[16, 64]", "--resume", "--out", out)
    assert "01_good: nothing changed, kept" in kept.stderr
    other = run(book, "-p", "sizes=[16]", "--resume", "--out", out)
    assert "01_good: ok" in other.stderr and "sum of sizes 16" in (out / "index.html").read_text()


@pytest.mark.parametrize(
    "file",
    [
        "published/published.csv",
        "reference/08_mine/outcomes.parquet",
        "reference/08_mine_runs/a.parquet",
        "specs/08_mine.toml",
        "samples/08_mine/part-1.parquet",
    ],
)
def test_new_data_make_a_page_an_old_one(tmp_path, monkeypatch, file):
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    one = report.make_run(write(tmp_path, "08_mine", PARAMETERS, GOOD), {})
    one = dataclasses.replace(one, experiments=("08_mine",))
    for path in (tmp_path / "data" / file, tmp_path / "data" / "specs" / "08_mine.toml"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    before = runs.content_key(one)
    (tmp_path / "data" / file).write_text("20")  # of samples the size tells
    assert runs.content_key(one) != before


def copied(run, output, _, then=""):
    """Words for a papermill that executes nothing."""
    return [
        sys.executable,
        "-c",
        f"import shutil; shutil.copy({str(run.notebook)!r}, {str(output)!r}); {then}",
    ]


def test_an_edit_while_a_notebook_runs_is_not_taken_for_what_ran(tmp_path, monkeypatch):
    one = report.make_run(write(tmp_path, "mine", PARAMETERS, GOOD), {})
    monkeypatch.setattr(runs, "_papermill", copied)
    (tmp_path / "out").mkdir()
    execute(one, tmp_path / "out", None, [])
    assert runs._is_current(one, tmp_path / "out")
    edit = f"open({str(one.notebook)!r}, 'a').write(' ')"
    monkeypatch.setattr(runs, "_papermill", functools.partial(copied, then=edit))
    assert execute(one, tmp_path / "out", None, [])["status"] == "ok"
    assert not runs._is_current(one, tmp_path / "out")


def test_a_record_that_cannot_be_written_costs_its_own_page_only(tmp_path, monkeypatch):
    three = [report.make_run(write(tmp_path, name, PARAMETERS, GOOD), {}) for name in "abc"]
    save = store.save_json

    def full(folder, name, value):
        if name == "b.json":
            raise store.StoreError("No space left on device")
        save(folder, name, value)

    monkeypatch.setattr(store, "save_json", full)
    monkeypatch.setattr(runs, "_papermill", copied)
    records = {record["name"]: record for record in runs.run_all(three, tmp_path, 1, None)}
    assert [records[name]["status"] for name in "abc"] == ["ok", "failed", "ok"]
    assert "No space left" in pages.failure(records["b"])


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("mine.ipynb", lambda text: text[: len(text) // 2]),
        ("mine.ipynb", lambda text: ""),
        ("mine.ipynb", lambda text: "[]"),
        ("mine.ipynb", lambda text: text.replace('"record"', '"other"')),
        ("mine.ipynb", lambda text: text.replace('"parameters": {}', '"parameters": 7')),
        ("mine.ipynb", lambda text: text.replace('"nbformat_minor": 5', '"nbformat_minor": null')),
        ("mine.ipynb", lambda text: text.replace('"cell_type": "code"', '"cell_type": []')),
        ("mine.ipynb", lambda text: text.replace('"outputs"', '"other"')),
        ("mine.ipynb", lambda text: text.replace('"cell_type": "code"', '"cell_type": "other"')),
        ("mine.ipynb", lambda text: text.replace('"hakmem": {', '"hakmem": [], "other": {')),
        ("mine.json", lambda text: text.replace('"part"', '"other"')),
        ("mine.json", lambda text: text.replace('"Start here"', "[7]")),
        ("mine.json", lambda text: text.replace('"ok"', '"failed"')),  # without its error
        ("mine.json", lambda text: text.replace('"key"', '"other"')),
    ],
)
def test_a_damaged_file_is_named_on_the_front_page_and_made_again(tmp_path, monkeypatch, file, harm):
    one, folder = report.make_run(write(tmp_path, "mine", PARAMETERS, GOOD), {}), tmp_path / "executed"
    monkeypatch.setattr(runs, "_papermill", copied)
    folder.mkdir()
    execute(one, folder, None, [])
    (folder / file).write_text(harm((folder / file).read_text()))
    named = str(folder / file) in pages.write_index(tmp_path, "here").read_text()
    assert named or '"other"' in (folder / "mine.json").read_text()  # its key is no matter of the front page
    assert not runs._is_current(one, folder)


def test_what_measures_runs_alone(tmp_path):
    note = f"""\
import time
from pathlib import Path
begin = time.time()
time.sleep(1)
print(begin, time.time(), file=Path({str(tmp_path)!r}, "times").open("a"))"""
    books = [write(tmp_path, f"0{i}_m", PARAMETERS, note, measures=i < 2) for i in range(3)]
    assert run(*books, "--jobs", 3, "--out", tmp_path / "out").returncode == 0
    times = sorted(tuple(map(float, line.split())) for line in (tmp_path / "times").read_text().splitlines())
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(times))


def test_a_notebook_that_no_editor_has_saved_takes_a_value(tmp_path):
    """It names neither its kernel nor its language."""
    book = write(tmp_path, "new", PARAMETERS, GOOD)
    content = nbformat.read(book, 4)
    del content.metadata["kernelspec"]
    nbformat.write(content, book)
    done = run(book, "-p", "rate=0.1", "--out", tmp_path / "out", warn="always")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


def test_a_copied_clone_runs_its_own_code(tmp_path):
    """Its environment is the one of the clone that it was copied from."""
    shutil.copytree(ROOT / "hakmem_py", tmp_path / "hakmem_py")
    for name in ("native", "data"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "notebooks").mkdir()
    here = f"import hakmem_py as hp\nassert str(hp.ROOT) == {str(tmp_path)!r}"
    book = write(tmp_path / "notebooks", "where", PARAMETERS, here)
    done = run(book, "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_kernel_whose_port_was_taken_is_started_again(tmp_path, monkeypatch):
    path, tries = write(tmp_path, "late", PARAMETERS, GOOD), tmp_path / "tries"
    taken = f"""
import shutil, sys, time
with open({str(tries)!r}, "a") as file: file.write("x")
if len(open({str(tries)!r}).read()) < 2:
    print("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:44457')", flush=True)
    time.sleep(60)
print("Executing Cell 1")
shutil.copy(sys.argv[1], sys.argv[2])
"""

    def papermill(run, output, _):
        return [sys.executable, "-c", taken, run.notebook, output]

    monkeypatch.setattr("hakmem_py.batch._papermill", papermill)
    record = execute(report.make_run(path, {}), tmp_path, None, [])
    assert record["status"] == "ok" and record["seconds"] < 30
    assert tries.read_text() == "xx" and (tmp_path / "late.ipynb").exists()


# ---------------------------------------------------------------- plain papermill


def papermill(book, *words):
    output = book.with_name("out.ipynb")
    command = [sys.executable, "-m", "papermill", str(book), str(output), "--no-progress-bar", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False), output


def test_plain_papermill_reads_a_list_given_as_text(tmp_path):
    done, output = papermill(write(tmp_path, "good", PARAMETERS, GOOD), "-p", "sizes", "[16, 32]")
    assert done.returncode == 0, done.stderr
    assert "sum of sizes 48" in json.dumps(json.loads(output.read_text()))


@pytest.mark.parametrize(
    ("name", "value", "said"), [("sizs", "[16]", "unknown parameter 'sizs'"), ("rate", "7", "0 to 1")]
)
def test_plain_papermill_stops_at_a_wrong_parameter(tmp_path, name, value, said):
    done, _ = papermill(write(tmp_path, "good", PARAMETERS, GOOD), "-p", name, value)
    assert done.returncode != 0 and said in done.stderr


def endless(folder, ctrl_c):
    """A report, in the middle of a cell that does not end."""
    (folder / "tmp").mkdir()
    book = write(folder, "04_endless", PARAMETERS, "import time\ntime.sleep(600)")
    words = ["-m", "hakmem_py", "report", book, "--out", folder / "out"]
    env = os.environ | {"TMPDIR": str(folder / "tmp")}
    child = processes.start(*words, hears=signal.SIGINT, handler=ctrl_c, env=env)
    log = folder / "out" / "executed" / "04_endless.log"
    while not log.exists() or b"Executing Cell 2" not in log.read_bytes():
        time.sleep(0.2)
    return child


@pytest.mark.parametrize(  # in the foreground of a shell, or in its background, where Ctrl-C is ignored
    ("which", "ctrl_c"), [(signal.SIGINT, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_IGN)]
)
def test_stopping_a_batch_stops_its_children(tmp_path, which, ctrl_c):
    child = endless(tmp_path, ctrl_c)
    child.send_signal(which)
    assert "go on with --resume" in child.communicate(timeout=60)[1] and child.returncode == 130
    assert not processes.running(str(tmp_path))
    assert not any((tmp_path / "tmp").glob("*.json"))  # by which papermill reaches its kernel


def test_a_killed_report_keeps_its_folder_until_its_children_have_ended(tmp_path):
    child = endless(tmp_path, signal.SIG_IGN)
    child.kill()
    child.communicate()
    with pytest.raises(BlockingIOError), slot.alone_in(tmp_path / "out", BlockingIOError()):
        pass
    while processes.running(str(tmp_path)):
        time.sleep(0.2)
    with slot.alone_in(tmp_path / "out", BlockingIOError()):
        assert not any((tmp_path / "tmp").glob("*.json"))


def test_several_intervals_say_together_where_they_lie():
    assert report.side_of([1.1, 1.3], [1.2, 1.4], "SLOWER", "FASTER") == "SLOWER"
    assert report.side_of([0.7, 0.8], [0.8, 0.9], "SLOWER", "FASTER") == "FASTER"
    for lows, highs in (([1.1, 0.9], [1.2, 1.2]), ([0.7, 0.9], [0.8, 1.2]), ([1.1, 0.7], [1.2, 0.8])):
        assert report.side_of(lows, highs, "SLOWER", "FASTER") == "UNDECIDED"
    assert report.side_of([0.9], [1.1], "SLOWER", "FASTER") == "UNDECIDED"


def test_a_headline_is_seen_from_the_baseline():
    """Who takes longer than hakmem makes hakmem the faster one."""
    row = {"allocator": "system", "ratio": 2.0, "low": 1.9, "high": 2.1}
    told = report.compared(row)
    assert told["verdict"] == "FASTER" and "hakmem does 2.00 [1.90, 2.10] times the work" in told["text"]
    assert report.compared(row | {"low": 0.4, "high": 0.6, "ratio": 0.5})["verdict"] == "SLOWER"
    torn = report.compared(row | {"status": "3 of 30 timeout"})  # those that ended may be the fast ones
    assert torn["verdict"] == "UNDECIDED" and torn["text"].endswith(", not judged: 3 of 30 timeout")


def test_too_few_blocks_for_a_calibration_are_found_before_anything_starts():
    with pytest.raises(report.ReportError, match="blocks = 200 is not allowed"):
        report.plan(["01_ruler"], [f"blocks={calibration.LEAST_BLOCKS}"])
    assert report.plan(["01_ruler"], [f"blocks={calibration.LEAST_BLOCKS + 1}"])
