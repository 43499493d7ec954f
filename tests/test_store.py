"""The store: what was appended is there, whatever happens to the process or to a file."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from hakmem_py import cli, showcase, store

ROW = {
    "experiment": "tiny",
    "case": "lifo-16",
    "block": 0,
    "allocator": "system",
    "status": "ok",
    "ns_per_op": 2.5,
}
WRITER = """
import sys
from hakmem_py import store
for i in range(10**6):
    store.append(sys.argv[1], [{"run_id": str(i), "block": i}] * int(sys.argv[2]))
    print(i, flush=True)
    if len(sys.argv) > 3 and i % 5 == 4:
        store.compact(sys.argv[1])
"""


def row(i, **more):
    return ROW | {"run_id": f"{i:016x}", "block": i} | more


def fill(folder, count):
    """Appends so many rows, each in a file of its own."""
    for i in range(count):
        store.append(folder, [row(i)])


def blocks(folder):
    return sorted(store.load(folder)["block"])


def test_what_was_appended_is_loaded(tmp_path):
    store.append(tmp_path, [row(0), row(1, error="it broke", status="crashed")])
    store.append(tmp_path, [row(2)])
    samples = store.load(tmp_path)
    assert list(samples.columns) == store.SCHEMA.names
    assert sorted(samples["block"]) == [0, 1, 2]
    assert samples.set_index("block").loc[1, "error"] == "it broke"
    assert samples["rss_end_bytes"].isna().all()


def test_what_was_being_written_when_the_user_stopped_it_is_removed(tmp_path, monkeypatch):
    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stopped)
    with pytest.raises(KeyboardInterrupt):
        store.append(tmp_path, [row(0)])
    assert list(tmp_path.iterdir()) == []


def test_large_files_are_read_a_few_columns_at_a_time_and_say_the_same(tmp_path, monkeypatch):
    for i in range(3):
        store.append(tmp_path, [row(i, host="m"), row(i + 10, error="it broke")])
    whole = store.load(tmp_path)
    monkeypatch.setattr(store, "LARGE_BYTES", 0)
    pd.testing.assert_frame_equal(store.load(tmp_path), whole)


def test_damage_in_a_late_column_costs_its_file_alone(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(store, "LARGE_BYTES", 0)
    store.append(tmp_path, [row(0)])
    [good] = tmp_path.glob("part-*")
    store.append(tmp_path, [row(i, load1=float(i)) for i in range(100)])
    [bad] = set(tmp_path.glob("part-*")) - {good}
    data = bytearray(bad.read_bytes())
    place = pq.ParquetFile(bad).metadata.row_group(0).column(len(store.SCHEMA.names) - 1).data_page_offset
    data[place : place + 12] = b"\xff" * 12
    bad.write_bytes(data)
    assert store.load(tmp_path)["block"].tolist() == [0]
    assert bad.name in capfd.readouterr().err


def test_an_empty_folder_is_an_empty_table(tmp_path):
    assert store.load(tmp_path / "none").empty
    assert list(store.load(tmp_path, ["block", "host"]).columns) == ["block", "host"]


def test_an_unknown_column_is_refused(tmp_path):
    with pytest.raises(ValueError, match="colour"):
        store.append(tmp_path, [row(0, colour="red")])


@pytest.mark.parametrize("doubtful", [{"status": "crashed", "error": "SIGKILL"}, {"status": "timeout"}])
@pytest.mark.parametrize("hour", [1, 3])
def test_a_good_sample_stands_for_its_run_however_the_clock_was_set(tmp_path, doubtful, hour):
    for started, more in ((2, doubtful), (hour, {})):
        at = pd.Timestamp(f"2026-01-01 {started}:00", tz="UTC")
        store.append(tmp_path, [row(0, started_at=at, **more)])
    store.append(tmp_path, [row(1, **doubtful)])
    assert store.load(tmp_path).set_index("block")["status"].to_dict() == {0: "ok", 1: doubtful["status"]}
    store.append(tmp_path, [row(0, started_at=at)])  # twice, as of two campaigns
    found = store.rows(tmp_path, [f"{i:016x}" for i in (0, 1)])
    assert len(found) == 2
    assert {one["block"]: one["status"] for one in found} == {0: "ok", 1: doubtful["status"]}


def test_joining_files_changes_nothing(tmp_path):
    fill(tmp_path, 7)
    before = store.load(tmp_path).sort_values("block", ignore_index=True)
    store.compact(tmp_path)
    after = store.load(tmp_path).sort_values("block", ignore_index=True)
    assert len(list(tmp_path.glob("*.parquet"))) == 1
    pd.testing.assert_frame_equal(before, after, check_categorical=False)


def test_files_of_others_in_the_folder_stay(tmp_path):
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "mine.parquet")
    fill(tmp_path, 3)
    store.compact(tmp_path)
    assert pd.read_parquet(tmp_path / "mine.parquet")["x"].tolist() == [1]
    assert blocks(tmp_path) == [0, 1, 2]


def test_parts_left_by_a_kill_while_joining_count_once(tmp_path):
    fill(tmp_path, 3)
    saved = {path: path.read_bytes() for path in tmp_path.glob("part-*")}
    store.compact(tmp_path)
    for path, content in saved.items():
        path.write_bytes(content)
    store.append(tmp_path, [row(3)])
    assert blocks(tmp_path) == [0, 1, 2, 3]
    store.compact(tmp_path)
    assert blocks(tmp_path) == [0, 1, 2, 3]


def test_many_small_campaigns_leave_few_files(tmp_path):
    for i in range(200):
        store.append(tmp_path, [row(2 * i)])
        store.append(tmp_path, [row(2 * i + 1)])
        store.compact(tmp_path)
    assert sorted(store.load(tmp_path, ["block"])["block"]) == list(range(400))
    assert len(list(tmp_path.glob("*.parquet"))) <= 8


def test_joined_files_left_by_a_kill_while_joining_count_once(tmp_path):
    for i in range(4):
        store.append(tmp_path, [row(i)])
        if i == 1:
            store.compact(tmp_path)
            saved = {path: path.read_bytes() for path in tmp_path.glob("samples-*")}
    store.compact(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    for path, content in saved.items():
        path.write_bytes(content)
    assert blocks(tmp_path) == [0, 1, 2, 3]
    store.append(tmp_path, [row(4)])
    store.compact(tmp_path)
    assert blocks(tmp_path) == [0, 1, 2, 3, 4]


def test_what_is_joined_while_the_files_are_listed_is_read(tmp_path, monkeypatch):
    fill(tmp_path, 3)
    joined = []

    def glob(folder, pattern, listed=Path.glob):
        found = [*listed(folder, pattern)]
        if pattern.startswith(("part", "samples")) and not joined:
            joined.append(folder)
            store.compact(folder)
        return found

    monkeypatch.setattr(Path, "glob", glob)
    assert blocks(tmp_path) == [0, 1, 2] and joined


def test_a_link_to_nowhere_is_named_with_its_cure(tmp_path):
    store.append(tmp_path, [row(0)])
    (tmp_path / "part-x.parquet").symlink_to(tmp_path / "gone")
    with pytest.raises(
        store.StoreError, match=r"part-x\.parquet is a link to .* not there: mend or delete it"
    ):
        store.load(tmp_path)


def test_what_killed_writers_left_half_written_is_removed_in_time(tmp_path):
    store.append(tmp_path, [row(0)])
    left, young = tmp_path / ".part-1.parquet.17", tmp_path / ".provenance-2.json.18"
    for hidden in left, young:
        hidden.write_bytes(b"PAR1")
    os.utime(left, (time.time() - 2 * store.LONGEST_WRITE_S,) * 2)
    store.compact(tmp_path)
    assert not left.exists() and young.exists()  # the other one may still be written, by another machine


@pytest.mark.parametrize("join", [[], ["join"]], ids=["append", "append and join"])
def test_a_kill_costs_at_most_the_row_in_flight(tmp_path, join):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path, "50", *join], stdout=subprocess.PIPE, text=True
    )
    for _ in range(12):
        writer.stdout.readline()
    time.sleep(0.003)
    os.kill(writer.pid, signal.SIGKILL)
    said = 12 + len(writer.communicate()[0].split())
    counts = store.load(tmp_path)["block"].value_counts()
    assert set(range(said)) <= set(counts.index) <= set(range(said + 1))
    assert set(counts) == {50}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"x" * 500,
        lambda data: pd.DataFrame({"block": ["many"]}).to_parquet(),  # no number, as a block must be
        lambda data: data.replace(b"lifo", b"fifo", 1),  # another case, in a file that can be read
        lambda data: data.replace(b"run_id", b"run_ie"),  # the name of a column
    ],
)
def test_a_damaged_file_is_moved_aside_and_named(tmp_path, capfd, damage):
    fill(tmp_path, 3)
    broken = sorted(tmp_path.glob("*.parquet"))[1]
    broken.write_bytes(damage(broken.read_bytes()))
    assert len(store.load(tmp_path)) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert f"{broken.name}.damaged" in said
    assert broken.with_name(broken.name + ".damaged").exists()
    assert len(store.load(tmp_path)) == 2
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("names", [b"", b"\xff", b"null", b"5", b"[[1]]"])
def test_a_file_whose_names_of_others_are_damaged_is_moved_aside(tmp_path, capfd, names):
    fill(tmp_path, 2)
    store.compact(tmp_path)
    (joined,) = tmp_path.glob("samples-*")
    pq.write_table(pq.read_table(joined).replace_schema_metadata({store.JOINED: names}), joined)
    store.append(tmp_path, [row(2)])
    assert list(store.load(tmp_path)["block"]) == [2]
    assert f"{joined.name} is damaged" in capfd.readouterr().err
    store.compact(tmp_path)
    assert joined.with_name(joined.name + ".damaged").exists()


@pytest.mark.parametrize(
    ("why", "becomes", "said"),
    [
        (errno.EROFS, store.StoreError, "is damaged .short. and cannot be moved aside: Read-only"),
        (errno.ENOENT, FileNotFoundError, "No such file"),  # another process did it: `load` reads again
    ],
)
def test_a_damaged_file_that_cannot_be_moved_aside_is_named(tmp_path, monkeypatch, why, becomes, said):
    def fail(*_):
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(becomes, match=said):
        store._move_aside(tmp_path / "part-1.parquet", "short")


def test_a_damaged_reference_file_stays_and_is_named_with_its_cure(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "REFERENCE", tmp_path)
    store.append(tmp_path / "tiny", [row(0)])
    [broken] = (tmp_path / "tiny").iterdir()
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(store.StoreError, match=f"restore it by git checkout -- {broken}"):
        store.load(tmp_path / "tiny")
    assert broken.exists()


@pytest.fixture
def reference(tmp_path, monkeypatch):
    """The folder of an old reference beside a soak; there are newer samples to freeze."""
    monkeypatch.setattr(store, "REFERENCE", tmp_path / "reference")
    old, new = tmp_path / "reference" / "tiny", tmp_path / "samples"
    store.append(old, [row(9, provenance="old")])
    measured = {"provenance": "new", "started_at": pd.Timestamp.now("UTC")}
    store.append(new, [row(0, unit="call", **measured)])
    store.append(new, [row(1, **measured)])
    for folder, name in ((old, "old"), (new, "new")):
        store.save_json(folder, f"provenance-{name}.json", dict.fromkeys(showcase.MACHINE_FACTS, "m"))
    store.save_json(old, "soak.json", {"windows": []})
    monkeypatch.setattr(showcase, "ensure", lambda *_, **__: store.load(new))
    return old


def test_what_else_lies_beside_a_reference_stays(reference):
    assert showcase.freeze("tiny") == 2
    samples = store.load(reference).set_index("block")
    assert samples.loc[0, "unit"] == "call" and pd.isna(samples.loc[1, "unit"])
    others = {path.name for path in reference.iterdir()} - {path.name for path in reference.glob("part-*")}
    assert others == {"provenance-new.json", "soak.json"}


def test_failed_runs_do_not_take_the_place_of_a_reference(reference, tmp_path):
    lost = {"allocator": "mimalloc", "status": "missing", "error": "not installed", "provenance": "new"}
    store.append(tmp_path / "samples", [row(i, **lost) for i in (2, 3)])
    before = {path: path.read_bytes() for path in reference.iterdir()}
    with pytest.raises(ValueError, match=r"tiny is not whole: 2 runs of mimalloc \(not installed\); see"):
        showcase.freeze("tiny")
    assert {path: path.read_bytes() for path in reference.iterdir()} == before


@pytest.mark.parametrize(
    ("commit", "said"),
    [("1a + changes", "tiny was measured at 1a + changes, code that nobody can have"), ("2b", "")],
)
def test_code_that_nobody_can_have_is_named_where_samples_become_the_reference(
    reference, tmp_path, capsys, commit, said
):
    facts = dict.fromkeys(showcase.MACHINE_FACTS, "m") | {"commit": commit}
    store.save_json(tmp_path / "samples", "provenance-new.json", facts)
    showcase.freeze("tiny")
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == bool(said)


@pytest.mark.parametrize(
    ("file", "cure"),
    [
        (
            "samples/provenance-new.json",
            "bring it back from a copy, or move .*/samples away",
        ),
        ("reference/tiny/provenance-old.json", "restore it by git checkout -- .*/provenance-old.json"),
    ],
)
def test_damaged_facts_are_named_with_their_cure_before_anything_is_written(reference, tmp_path, file, cure):
    before = {path: path.read_bytes() for path in reference.iterdir()}
    (tmp_path / file).write_text('{"t')
    with pytest.raises(store.StoreError, match=rf"{tmp_path / file} is damaged \(.*\): {cure}"):
        showcase.freeze("tiny")
    (tmp_path / file).write_bytes(before.get(tmp_path / file, b""))
    assert {path: path.read_bytes() for path in reference.iterdir()} == before


def test_facts_that_are_not_there_are_named(reference, tmp_path):
    (tmp_path / "samples" / "provenance-new.json").unlink()
    with pytest.raises(store.StoreError, match=r"provenance-new.json is not there: bring it back"):
        showcase.freeze("tiny")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("data/specs/04_patterns.toml", "only a specification in data/specs is frozen; give its name alone"),
        ("04_patterns.toml", "give its name alone"),
        ("../specs", "give its name alone"),
        ("..", "no specification"),
        ("04_pattern", "no specification 04_pattern.toml; there are"),
        ("04_patterns_runs", "there are no tables in"),
    ],
)
def test_what_cannot_be_frozen_is_told_before_it_is_measured(tmp_path, monkeypatch, capsys, name, said):
    monkeypatch.setattr(store, "REFERENCE", tmp_path / "reference")
    monkeypatch.setattr(store, "SAMPLES", tmp_path / "samples")
    monkeypatch.setattr(showcase, "ensure", None)
    assert cli.main(["freeze", "04_patterns", name]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("hakmem freeze: ") and said in shown and shown.count("\n") == 1
    assert not (tmp_path / "reference").exists()


@pytest.mark.parametrize("write", ["append", "save_json"])
def test_a_reference_that_cannot_be_replaced_stays_whole(reference, monkeypatch, write):
    def full(*_):
        raise store.StoreError("cannot write")

    monkeypatch.setattr(store, write, full)
    with pytest.raises(store.StoreError):
        showcase.freeze("tiny")
    assert store.load(reference)["block"].tolist() == [9]
    assert {"provenance-old.json", "soak.json"} <= {path.name for path in reference.iterdir()}


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(store.StoreError, match=r"file/samples.*run the same command again"):
        store.append(tmp_path / "file" / "samples", [row(0)])


def test_a_full_disk_keeps_what_was_there(tmp_path, monkeypatch):
    store.append(tmp_path, [row(0)])

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(store.StoreError, match="No space left on device"):
        store.append(tmp_path, [row(1)])
    assert list(store.load(tmp_path)["block"]) == [0]
    assert len(list(tmp_path.iterdir())) == 1


def test_the_readme_describes_every_column():
    described = (store.ROOT / "data" / "README.md").read_text()
    assert [name for name in store.SCHEMA.names if f"`{name}`" not in described] == []


@pytest.mark.parametrize("text", ['{"t', "[]", "\ufeff", "", "[" * 100_000])
def test_a_damaged_json_file_is_named_and_passed_over(tmp_path, capsys, text):
    path = tmp_path / "provenance-0.json"
    path.write_text(text)
    assert store.read_json(path) == {} and str(path) in capsys.readouterr().err
