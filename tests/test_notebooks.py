"""Every notebook by plain papermill, from the reference samples. In CI `make report` runs the quick mode."""

import functools
import html
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import nbformat
import pandas as pd
import pytest
from nbconvert import HTMLExporter

import hakmem_py as hp
from hakmem_py import ROOT, exercise
from hakmem_py.notebook import PLOTLY, read, source

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
SCORECARD = ROOT / "notebooks" / "05_scorecard.ipynb"


def run(path, folder, *more):
    """The executed notebook. There is no compiler, and so no build: each is told by its compiler, too."""
    output = folder / path.name
    words = [str(path.relative_to(ROOT)), str(output), "-p", "reference", "true", "--no-progress-bar", *more]
    command, env = [sys.executable, "-m", "papermill", *words], os.environ | {"CC": "no-compiler"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return nbformat.read(output, as_version=4)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """executed(path): as `run`, but once for all tests."""
    return functools.cache(lambda path: run(path, tmp_path_factory.mktemp("executed")))


def tables(book):
    """HTML of every output but the last cell's, which says when and how the page was made."""
    cells = [cell for cell in book.cells if cell.cell_type == "code"][:-1]
    found = (output.get("data", {}).get("text/html") for cell in cells for output in cell.outputs)
    return [html for html in found if html and "<table" in html]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_plain_papermill_and_nbconvert_take_every_notebook(path, executed):
    book = executed(path)
    assert all(cell.execution_count for cell in book.cells if cell.cell_type == "code")
    outputs = [output.get("data", {}) for cell in book.cells for output in cell.get("outputs", [])]
    alts = [data[PLOTLY]["layout"]["meta"]["alt"] for data in outputs if PLOTLY in data]
    page, _ = HTMLExporter().from_notebook_node(book)
    pictures = re.findall(
        "<figure.*?<svg.*?<(?:path|poly|circle|rect).*?<figcaption>(.*?)</figcaption>", page
    )
    assert alts and pictures == [html.escape(alt) for alt in alts], "a plain page lost a figure"


def test_no_editor_has_to_mend_a_notebook():
    for path in NOTEBOOKS:
        ids = [cell["id"] for cell in read(path)["cells"]]
        assert len(ids) == len(set(ids)), path


def test_the_scorecard_stands_without_mimalloc(tmp_path):
    book = run(SCORECARD, tmp_path, "-p", "allocators", '["system", "floor"]')
    said = [output.get("text", "") for cell in book.cells for output in cell.get("outputs", [])]
    assert any("mimalloc is not among the chosen" in text for text in said)


def test_the_false_alarms_of_rules_that_restart_are_told(executed):
    """In one calm run of seven ucb-restart takes noise for a change; its threshold is not so high."""
    book = executed(next(path for path in NOTEBOOKS if path.stem == "10_policies"))
    said = "".join(output.get("text", "") for cell in book.cells for output in cell.get("outputs", []))
    assert "ucb-restart in 15% [9%, 23%], ucb-recall in 3% [1%, 8%] of the runs" in said
    key = next(cell.source for cell in book.cells if "Calm: the rules that measure" in cell.source)
    assert "hardly" not in key.partition("Restless")[0]
    contest = next(table for table in tables(book) if "sw-ucb" in table)
    ranks = [contest.index(f">{name}") for name in ("ucb-recall", "sw-ucb", "doubling")]
    assert ranks == sorted(ranks) and "*sw-ucb* is second" in key


@pytest.mark.parametrize("name", ["04_patterns", "05_scorecard"])
@pytest.mark.parametrize("allocators", [["hakmem"], ["floor"]])
def test_nothing_to_compare_with_is_told_before_it_is_measured(name, allocators):
    cells = map(source, read(ROOT / "notebooks" / f"{name}.ipynb")["cells"])
    first = next(text for text in cells if "settle(" in text).partition("globals())")[2]
    with pytest.raises(hp.parameters.ParameterError, match="allocators: name one to compare"):
        exec(first, {"hp": hp, "allocators": allocators})


@pytest.mark.parametrize(
    ("prediction", "said"), [("sw-ucb", "Right"), ("ucb-recall", "Right"), ("ucb1", "Not ucb1. Phases this")]
)
def test_the_winner_of_short_phases_is_right_by_its_name_alone_and_beside_its_equal(prediction, said):
    cells = map(source, read(ROOT / "notebooks" / "10_policies.ipynb")["cells"])
    check = next(text for text in cells if "my_winner_when_restless" in text and "check(" in text)
    names = ["sw-ucb tau=25 scale=0", "ucb-recall", "ucb1"]
    learners = pd.DataFrame({"policy": names, "gain": [0.23, 0.225, 0.1]})
    known = {"learners": learners, "best_of": learners.iloc[0], "phase": 10}
    told = []
    known["check"] = lambda *given, **how: told.append(exercise.check(*given, **how))
    exec(check, known | {"my_winner_when_restless": prediction})
    assert str(told[0]).startswith(said)


def test_a_pool_beside_a_peer_that_is_not_there_is_told_without_it(capsys):
    sources = map(source, read(ROOT / "notebooks" / "06_pools.ipynb")["cells"])
    cells = [text for text in sources if text.startswith(("for _, row in", "least ="))]
    samples = hp.ensure("06_pools", reference=True, workloads=["pool_cycle", "pool_sweep"])
    gone = samples["allocator"] == "mimalloc"
    samples["status"] = samples["status"].mask(gone, "missing")
    names = {"hp": hp, "reference": True, "forest": None, "walk": hp.pools.sweep(samples)}
    exec("\n".join(cells), names | {"table": hp.compare(samples)})
    said = capsys.readouterr().out
    assert "nan" not in said and ".0 objects" not in said and " objects, " in said


def test_a_mean_over_patterns_is_told_of_peers_that_are_there(capsys):
    sources = map(source, read(ROOT / "notebooks" / "04_patterns.ipynb")["cells"])
    [cell] = [text for text in sources if text.startswith("means =")]
    samples = hp.ensure("04_patterns", reference=True, sizes=[16])
    gone = samples["allocator"] == "mimalloc"
    samples["status"] = samples["status"].mask(gone, "missing")
    exec(cell, {"hp": hp, "peers": hp.compare(samples, baseline="hakmem"), "forest": None})
    said = capsys.readouterr().out
    assert "nan" not in said and "mimalloc" not in said and "jemalloc" in said


def function_of_09(name, **names):
    """A function that a cell of 09 defines first, with these names in place of the notebook's."""
    sources = map(source, read(ROOT / "notebooks" / "09_ace.ipynb")["cells"])
    [cell] = [text for text in sources if text.startswith(f"def {name}():")]
    names |= {"policy": "on", "env": {}, "quick": True}
    exec(cell.partition("\n\n\n")[0], names)
    return names[name]


@pytest.mark.parametrize(("window_ms", "scale"), [(2, 12), (2000, 12000)])
def test_a_learner_is_watched_for_as_many_windows_however_long_they_are(window_ms, scale):
    ab = SimpleNamespace(workload=lambda *words: words, side=lambda policy, arm: None)
    ab.record = lambda words, *_: (None, words)
    bursts = function_of_09("bursts", hp=SimpleNamespace(ab=ab), window_ms=window_ms)
    assert bursts() == ("bursts", "--scale", scale)


@pytest.mark.parametrize(("block_bytes", "served"), [(16, 16), (17, 32), (1024, 1024)])
def test_what_is_told_of_phases_is_of_the_class_that_serves_their_blocks(block_bytes, served):
    found = pd.DataFrame({"block_size": [1024, 32, 16]})
    ab = SimpleNamespace(phased=lambda *_: None, record=lambda *_: (None, None))
    ab.recovery = lambda *_: found
    names = {"contests": ["phases"], "lasts": 1, "window_ms": 2, "watched": None, "block_bytes": block_bytes}
    [told] = function_of_09("recoveries", hp=SimpleNamespace(ab=ab), **names)()
    assert told["block_size"].tolist() == [served]


def test_the_same_samples_give_the_same_tables_byte_for_byte(executed, tmp_path):
    first, second = tables(executed(SCORECARD)), tables(run(SCORECARD, tmp_path))
    assert len(first) > 1 and first == second
