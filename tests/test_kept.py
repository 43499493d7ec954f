"""Tables that a notebook makes: kept when made, the reference once frozen, read without being made."""

import pandas as pd
import pytest

from hakmem_py import kept, parameters, provenance, showcase, store


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SAMPLES", tmp_path / "samples")
    monkeypatch.setattr(store, "REFERENCE", tmp_path / "reference")
    (tmp_path / "reference").mkdir()


def contest(ratio=1.5):
    table = pd.DataFrame({"ratio": [ratio], "extra": ["{}"]}, index=pd.Index(["lifo"], name="case"))
    table.attrs["baseline"] = "off"
    return table


def nothing():
    raise AssertionError("by reference nothing is made")


def test_a_table_is_given_as_it_was_made():
    assert kept.Tables("mine")("contest", contest).equals(contest())


def test_frozen_tables_are_read_with_index_and_attrs_and_know_where_they_were_made():
    kept.Tables("mine")(["contest", "again"], lambda: (contest(), contest(2.5)))
    assert showcase.freeze_tables("mine_runs") == 2
    tables = kept.Tables("mine", reference=True)
    first, second = tables(["contest", "again"], nothing)
    assert first.attrs["baseline"] == "off" and list(first) == ["ratio"] and list(first.index) == ["lifo"]
    assert second.loc["lifo", "ratio"] == 2.5
    (facts,) = tables.facts()
    assert facts["machine"] == provenance.machine() and facts["experiment"] == "mine"
    assert "commit of others" not in repr(provenance.footer(facts=facts, further=[facts]))
    assert "commit of others" in repr(provenance.footer(facts=facts, further=[facts | {"commit": "0"}]))
    assert "mine_runs" in (store.REFERENCE / "README.md").read_text()


def test_what_was_not_made_anew_stays_the_reference_and_is_named(capsys):
    kept.Tables("mine")(["contest", "again"], lambda: (contest(), contest()))
    showcase.freeze_tables("mine_runs")
    assert "not made anew" not in capsys.readouterr().err
    (store.SAMPLES / "mine_runs" / "again.parquet").unlink()
    kept.Tables("mine")("contest", lambda: contest(3.5))
    showcase.freeze_tables("mine_runs")
    assert "hakmem freeze: again: not made anew, the former stay the reference" in capsys.readouterr().err
    tables = kept.Tables("mine", reference=True)
    assert tables("contest", nothing).loc["lifo", "ratio"] == 3.5
    assert tables("again", nothing).loc["lifo", "ratio"] == 1.5


def test_tables_of_the_quick_mode_become_the_reference_only_when_asked_for():
    kept.Tables("mine", quick=True)("contest", contest)
    with pytest.raises(ValueError, match=r"contest: made in the quick mode; run .* with quick = False"):
        showcase.freeze_tables("mine_runs")
    assert showcase.freeze_tables("mine_runs", quick=True) == 1


def test_tables_of_changed_parameters_become_the_reference_and_say_so(capsys):
    declared = "quick: bool = True\nrounds: int = 6  # 1..100"
    names = {"quick": False, "rounds": 6}
    parameters.settle(names | {"In": [declared, "# Parameters\nquick = False\nrounds = 7"], "rounds": 7})
    kept.Tables("mine")("contest", contest)
    assert showcase.freeze_tables("mine_runs") == 1
    assert capsys.readouterr().err.endswith("hakmem freeze: contest was made with rounds = 7\n")
    path = next((store.REFERENCE / "mine_runs").glob("provenance-*.json"))
    assert store.demand_json(path)["parameters"] == "rounds = 7"
    parameters.settle(names | {"In": [declared, "# Parameters\nquick = False"]})
    kept.Tables("mine")("contest", contest)
    assert showcase.freeze_tables("mine_runs") == 1 and "made with" not in capsys.readouterr().err


def test_a_table_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError, match=r"contest\.parquet: make it with reference = False"):
        kept.Tables("mine", reference=True)("contest", nothing)
    with pytest.raises(FileNotFoundError, match="run the notebook with reference = False"):
        showcase.freeze_tables("mine_runs")


@pytest.mark.parametrize(
    "damage",
    [
        lambda x: x[:100],
        lambda x: x[:60] + b"\xff" * 8 + x[68:],
        lambda x: x.replace(b"\x05ratio", b"\x05razio"),  # a column's name, which no sum covers
    ],
)
def test_a_damaged_reference_is_named(damage):
    kept.Tables("mine")("contest", contest)
    showcase.freeze_tables("mine_runs")
    path = store.REFERENCE / "mine_runs" / "contest.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(store.StoreError, match=f"is damaged .*restore it by git checkout -- {path}"):
        kept.Tables("mine", reference=True)("contest", nothing)
