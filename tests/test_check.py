"""The contributor's gate: an added instruction is found, and verdicts follow from intervals."""

import contextlib
import subprocess

import pandas as pd
import pytest
from preload import needs_valgrind

from hakmem_py import build, check, cli
from hakmem_py.check import CheckError

ROW = {"case": "lifo", "more": 0.0, "ratio": 1.0, "verdict": "NEUTRAL", "status": "ok"}


def judged(**more):
    return check.verdict(pd.DataFrame([ROW | more]))


@pytest.fixture
def longer(tree):
    """native/ with one more instruction in every malloc."""
    preload = tree / "src" / "preload.c"
    head = "void *malloc(size_t size) { "
    assert head in preload.read_text()
    preload.write_text(preload.read_text().replace(head, head + '__asm__ volatile("nop"); '))
    return tree


@needs_valgrind
def test_one_added_instruction_is_found(longer):
    sides = {"base": build.build(), "tree": build.build("release", longer)}
    counted = check._counts(sides, ("lifo",)).loc[0]
    assert counted["instructions"] - counted["instructions_base"] == pytest.approx(
        0.5, abs=0.1
    )  # a call of two
    assert counted["more"] > check.NOISE


@needs_valgrind
def test_the_same_code_counts_the_same():
    done = build.build()
    counted = check._counts({"base": done, "tree": done}, ("lifo", "random_mixed"))
    assert counted["more"].abs().max() < check.NOISE


@needs_valgrind
def test_the_history_names_between_which_commits_a_count_changed(longer, monkeypatch, capsys, tmp_path):
    """Three commits, the second with an instruction more, and the tree as the third."""
    sources = {"one": build.NATIVE, "two": longer, "three": build.NATIVE}
    monkeypatch.setattr(check, "_git", lambda *arguments: b"two three")
    monkeypatch.setattr(check, "_sources", lambda commit, scratch: sources[commit])
    check._show_history(check.history("one", ("lifo",), tmp_path))
    said = capsys.readouterr().out
    assert "between one and two" in said and "lifo: regression of +" in said
    assert "between two and three" in said and "lifo: improvement of -" in said and "the tree" in said


def test_a_history_that_was_stopped_goes_on_from_there(monkeypatch, tmp_path):
    counted = []

    def count(_bench, name, *_):
        counted.append(name)
        if name == "frag":
            raise KeyboardInterrupt
        return 1.0

    monkeypatch.setattr(check, "_git", lambda *arguments: b"")
    monkeypatch.setattr(check, "_sources", lambda *_: build.NATIVE)
    monkeypatch.setattr(check.instructions, "per_op", count)
    for workloads in (("lifo", "frag"), ("lifo", "frag"), ("lifo", "json_var")):
        with contextlib.suppress(KeyboardInterrupt):
            table = check.history("one", workloads, tmp_path)
    assert counted == ["lifo", "frag", "frag", "json_var"]
    assert list(table["case"]) == ["lifo", "json_var"] * 2
    file = tmp_path / "history.json"
    file.write_text(file.read_text().replace("1.0", '"x"'))
    assert list(check.history("one", ("lifo",), tmp_path)["value"]) == [1.0, 1.0]


def test_both_sides_run_in_one_bench_and_every_layout(longer, tmp_path):
    sides = {"base": build.build(), "tree": build.build("release", longer)}
    table = check._times([sides, sides], 4, ("lifo",), tmp_path / "kept")
    assert list(table["status"]) == ["ok"]
    assert list(table["n"]) == [4]
    assert list(table["builds"]) == [2]


def test_what_passes():
    assert judged() == (True, "nothing certainly slower, and no more instructions")
    assert judged(verdict="GO")[0]
    assert judged(verdict="UNDECIDED")[0]
    assert check.verdict(pd.DataFrame()) == (True, "native/ is the same on both sides, nothing to measure")


def test_what_does_not_pass_is_named():
    assert judged(verdict="NO-GO") == (False, "slower in lifo")
    assert judged(more=0.01) == (False, "more instructions in lifo")
    assert judged(status="3 of 30 crashed") == (False, "failed in lifo")


def test_an_unknown_commit_is_one_line(tmp_path):
    with pytest.raises(CheckError, match="no-such-commit"):
        check._sources("no-such-commit", tmp_path)


def test_where_older_commits_are_lacking_the_way_to_get_them_is_told(tmp_path, monkeypatch):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", check.ROOT.as_uri(), clone], check=True)
    monkeypatch.setattr(check, "ROOT", clone)
    with pytest.raises(CheckError, match=r"HEAD~1; the clone is shallow.*git fetch --unshallow"):
        check._sources("HEAD~1", tmp_path)


def test_a_commit_that_does_not_build_is_named(tree, tmp_path, monkeypatch):
    (tree / "src" / "hakmem.c").write_text("int broken(\n")
    monkeypatch.setattr(check, "_sources", lambda *_: tree)
    with pytest.raises(CheckError, match="the commit old does not build, choose another --base"):
        check.check("old", folder=tmp_path)


def test_a_workload_named_twice_is_checked_once(monkeypatch, capsys):
    def history(since, workloads):
        rows = [("old", name, 100.0) for name in workloads] + [("new", name, 100.0) for name in workloads]
        return pd.DataFrame(rows, columns=["label", "case", "value"])

    monkeypatch.setattr(check, "history", history)
    assert cli.main(["check", "--since", "old", "--workloads", "lifo", "frag", "lifo"]) == 0
    assert capsys.readouterr().out.count("lifo") == 1
