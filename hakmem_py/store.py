"""Samples on disk: the schema, atomic append, loading. Nothing else.

Files are only ever added to a folder of samples. Each is parquet, written under a hidden name, synced and
renamed, so that a kill at any moment costs at most what was being written. `compact` joins small files
(part-*, samples-*) into one (samples-*) that names them in its metadata: a file that a kill left behind is
recognised as joined and not read twice.
"""

import contextlib
import json
import os
import sys
import time
import uuid
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from . import ROOT

SAMPLES = ROOT / "data" / "samples"
REFERENCE = ROOT / "data" / "reference"

WORDS = (  # texts of which there are few
    "experiment", "case", "workload", "allocator", "use", "variant", "build_hash", "library_sha256",
    "library_version", "env", "backend", "unit", "host", "status", "error", "provenance",
)  # fmt: skip
COUNTS = ("block", "position", "threads", "cpu")
AMOUNTS = (
    "size_bytes", "slots", "seed", "ops", "elapsed_ns", "cpu_ns", "wall_ns", "minor_faults", "major_faults",
    "context_switches", "rss_start_bytes", "rss_end_bytes", "peak_rss_bytes", "live_peak_bytes", "thp_bytes",
)  # fmt: skip
REALS = ("scale", "ns_per_op", "cpu_ns_per_op", "min_ns_per_op", "min_cpu_ns_per_op", "load1")
SCHEMA = pa.schema([  # what each column means: data/README.md
    ("run_id", pa.string()),
    ("started_at", pa.timestamp("us", "UTC")),
    ("extra", pa.string()),
    *((name, pa.dictionary(pa.int32(), pa.string())) for name in WORDS),
    *((name, pa.int32()) for name in COUNTS),
    *((name, pa.int64()) for name in AMOUNTS),
    *((name, pa.float64()) for name in REALS),
])  # fmt: skip
LARGE_BYTES = 64 << 20  # files larger together than this are read ...
COLUMNS_AT_A_TIME = 10  # ... so many columns at a time
LONGEST_WRITE_S = 3600.0  # older hidden files were left by a writer that was killed
SUMMED = {"write_page_checksum": True}  # a flipped bit is then noticed when the file is read
KILLED, JUMPED = "SIGKILL", "the clock jumped"  # how the errors of mishaps begin
JOINED = b"hakmem.joined"  # metadata of a samples-* file: the names of the files that it holds

with contextlib.suppress(NotImplementedError):  # 10^7 samples load in two thirds of the time, if Arrow has it
    pa.set_memory_pool(pa.jemalloc_memory_pool())


class StoreError(OSError):
    """Samples cannot be written or read; one line that says what to mend."""


def append(folder, rows):
    """Adds rows (dicts by column; absent is null) as one new file.

    Raises StoreError, and ValueError for a column that the schema does not know.
    """
    unknown = sorted({key for row in rows for key in row} - set(SCHEMA.names))
    if unknown:
        raise ValueError(f"samples have no column {unknown[0]!r}; see data/README.md")
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    plain = {"compression": "none", "write_statistics": False}  # a row or a few: nothing to gain but time
    name = f"part-{uuid.uuid4().hex}.parquet"
    _write(Path(folder), name, lambda file: pq.write_table(table, file, **plain, **SUMMED))


def save_text(folder, name, text):
    """Writes one file, whole or not at all. Raises StoreError."""
    _write(Path(folder), name, lambda file: file.write(text.encode()))


def save_json(folder, name, value):
    """As `save_text`, for a value as JSON."""
    save_text(folder, name, json.dumps(value, indent=1, default=str))


def save_table(folder, name, table):
    """As `save_text`, for a DataFrame as parquet, its index and attrs included."""
    _write(Path(folder), name, lambda file: table.to_parquet(file, **SUMMED))


def append_lines(path, rows):
    """Adds rows to a file, a line of JSON each; one that was cut short before stays a line by itself."""
    try:
        with Path(path).open("a") as file:
            file.writelines(f"\n{json.dumps(row)}" for row in rows)
    except OSError as error:
        raise cannot_write(Path(path).parent, error) from None


def load(folder, columns=None):
    """The samples of a folder as a DataFrame; empty, with its columns, where there are none.

    columns: only these are read; 10^7 samples are judged from a few. A file that cannot be read is moved
    aside as NAME.damaged, which is said on stderr: its runs count as not measured, the others are unharmed.
    A file of the reference is not moved, as its runs are not measured again: StoreError tells how to restore
    it. Where a run timed out, or met a mishap, and was measured anew with its rivals, only their last samples
    are given (if all columns are read).
    """
    names = SCHEMA.names if columns is None else list(columns)
    samples = _of_all_files(Path(folder), lambda files: _frame(files, names))
    if columns is None and len(old := _superseded(samples)):
        samples = samples.drop(old).reset_index(drop=True)
    samples.attrs["folder"] = str(folder)
    return samples


def _of_all_files(folder, read):
    """read(files), repeated if a part vanishes meanwhile: joined by another process, or moved aside."""
    for path in [*folder.glob("part-*.parquet"), *folder.glob("samples-*.parquet")]:
        if path.is_symlink() and not path.exists():
            raise StoreError(f"{path} is a link to a file that is not there: mend or delete it")
    while True:
        try:
            return read(_files(folder))
        except FileNotFoundError:
            continue


def _frame(files, names):
    """The DataFrame of some files; of large ones a few columns at a time, so that Arrow's table and the
    DataFrame are never both in memory as a whole."""
    texts = {pa.string(): pd.StringDtype("pyarrow")}  # stay in Arrow's buffers: 10^7 objects would take 10 s
    step = len(names) if sum(map(_bytes, files)) < LARGE_BYTES else COLUMNS_AT_A_TIME
    frames = [
        _table(files, names[i : i + step]).to_pandas(
            self_destruct=True, split_blocks=True, types_mapper=texts.get
        )
        for i in range(0, len(names), step)
    ]
    return pd.concat(frames, axis=1)


def _table(files, names):
    wanted = pa.schema([SCHEMA.field(name) for name in names])
    return pa.concat_tables([wanted.empty_table(), *(_read(path, wanted) for path in files)])


def rows(folder, run_ids):
    """These runs as dicts by column, as `append` takes them: how samples travel between machines."""
    table = _of_all_files(Path(folder), lambda files: _table(files, SCHEMA.names))
    found = table.filter(pc.is_in(table["run_id"], pa.array(sorted(run_ids))))
    told = found.select(["run_id", "case", "block", "status", "error", "started_at"])
    old = set(_superseded(told.to_pandas()))
    kept = [row for i, row in enumerate(found.to_pylist()) if i not in old]
    kept.sort(key=lambda row: (row["started_at"] is not None, row["started_at"]))
    return list({row["run_id"]: row for row in kept}.values())


def tell_errors(samples):
    """Names on stderr the sides whose runs failed, and why."""
    failed = samples[samples["status"] != "ok"].value_counts(["allocator", "error"])
    for (label, error), count in failed.items():
        print(f"{count} runs of {label} failed: {error}", file=sys.stderr)


def mishaps(samples):
    """Whether each run was killed from outside, or its clock jumped: it is measured anew."""
    texts = samples["error"].dropna().unique()
    return samples["error"].isin([text for text in texts if text.startswith((KILLED, JUMPED))])


def _superseded(samples):
    """Index of the samples that were measured anew: of runs that timed out or met a mishap, and their rivals.

    The last sample of a run stays, but none in place of a better one: the clock may have been set back.
    """
    told = samples[["run_id", "case", "block", "started_at"]]
    told = told.assign(lasting=~mishaps(samples), ended=samples["status"] != "timeout")
    bad = told[~(told["lasting"] & told["ended"])]
    again = told[told["case"].isin(bad["case"]) & told["block"].isin(bad["block"])]
    again = again.sort_values(["lasting", "ended", "started_at"])
    return again.index[again.duplicated("run_id", keep="last")]


def compact(folder):
    """Joins the parts of a folder and, from the smallest on, each joined file that is at most twice as large
    as all that is joined so far.

    So each file is larger than all smaller ones together, and there are few, however many samples. Only for
    the process that holds the bench slot.
    """
    folder = Path(folder)
    ours = {path for kind in ("part", "samples") for path in folder.glob(f"{kind}-*.parquet")}
    for left in ours - set(_files(folder)):
        left.unlink(missing_ok=True)
    for hidden in folder.glob(".*.[0-9]*"):
        with contextlib.suppress(FileNotFoundError):  # its writer, on another machine, has just renamed it
            if time.time() - hidden.stat().st_mtime > LONGEST_WRITE_S:
                hidden.unlink()
    parts, joined = (sorted(folder.glob(f"{kind}-*.parquet"), key=_bytes) for kind in ("part", "samples"))
    for path in joined if parts else []:
        parts += [path] if _bytes(path) <= 2 * sum(map(_bytes, parts)) else []
    tables = {}
    for path in parts:
        with contextlib.suppress(FileNotFoundError):  # damaged
            tables[path] = _read(path, SCHEMA)
    if len(tables) < 2:
        return
    joined = pa.concat_tables(tables.values()).unify_dictionaries()
    joined = joined.replace_schema_metadata({JOINED: json.dumps([path.name for path in tables])})
    _write(folder, f"samples-{uuid.uuid4().hex}.parquet", lambda file: pq.write_table(joined, file, **SUMMED))
    for path in tables:
        path.unlink(missing_ok=True)


# ---------------------------------------------------------------- files


def _files(folder):
    """The files to read: those that no joined file holds.

    Parts are listed first: those joined in between are then seen twice, never missed, and left out as held.
    """
    parts = sorted(folder.glob("part-*.parquet"))
    joined = sorted(folder.glob("samples-*.parquet"))
    held = {name for path in joined for name in _joined_names(path)}
    return [path for path in [*joined, *parts] if path.name not in held]


def _bytes(path):
    return path.stat().st_size


def _joined_names(path):
    try:
        return _told(pq.read_schema(path))
    except (pa.ArrowException, OSError, ValueError):
        return []  # damaged; reading it will say so


def _told(schema):
    """The names in a joined file's metadata. Raises ValueError if they are damaged: no sum covers them."""
    names = json.loads((schema.metadata or {}).get(JOINED, b"[]"))
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError("the names of the files that it holds are no list of names")
    return names


def _read(path, wanted):
    """The file's table in this schema. A damaged file is moved aside: FileNotFoundError, now and later."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _told(file.schema_arrow)
            there = set(file.schema_arrow.names)
            _refuse_renamed(there)
            large = file.metadata.num_rows > 10_000  # threads cost a small file more than they save
            table = file.read([name for name in wanted.names if name in there], use_threads=large)
        if table.schema.equals(wanted):
            return table
        return pa.Table.from_arrays([_column(table, field) for field in wanted], schema=wanted)
    except (FileNotFoundError, PermissionError, MemoryError):  # for which the file is not to blame
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        _move_aside(path, str(error).splitlines()[0])
        raise FileNotFoundError(path) from None


def _refuse_renamed(there):
    """Raises ValueError where the name of a column is damaged: no sum covers names either.

    Else its values would be taken for nulls, as those of a column that an older version did not have.
    """
    unknown = there - set(SCHEMA.names)
    if unknown and set(SCHEMA.names) - there:
        raise ValueError(f"no sample has a column {min(unknown)!r}")


def _column(table, field):
    """A column in the schema's type; nulls where an older version of the lab did not have it."""
    if field.name not in table.column_names:
        return pa.nulls(len(table), field.type)
    return table[field.name].cast(field.type)


def read_json(path):
    """The dict that a JSON file holds. A damaged file is named on stderr and passed over: {}."""
    found, reason = _parsed(path)
    if reason:
        print(f"hakmem: {path} is damaged ({reason}) and was passed over: {_restore(path)}", file=sys.stderr)
    return found


def demand_json(path):
    """As `read_json`, where the file is needed: StoreError if it is damaged or not there."""
    try:
        found, reason = _parsed(path)
    except FileNotFoundError:
        raise StoreError(f"{path} is not there: {_mend(path)}") from None
    if reason:
        raise StoreError(f"{path} is damaged ({reason}): {_mend(path)}")
    return found


def _parsed(path):
    """(the dict of a JSON file, why there is none)."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return (found, "") if isinstance(found, dict) else ({}, "it holds no object")
    except (ValueError, RecursionError) as error:  # JSON's and Unicode's; brackets without end
        return {}, str(error)


def _mend(path):
    """What to do where the facts of samples cannot be read."""
    measured = f"bring it back from a copy, or move {path.parent} away and measure anew"
    return _restore(path) if REFERENCE in path.parents else measured


def read_table(path, columns=None):
    """What `save_table` wrote. Raises FileNotFoundError, and StoreError where it is damaged."""
    try:
        _refuse_other_names(pq.read_schema(path))
        return pd.read_parquet(path, columns=columns, page_checksum_verification=True)
    except (FileNotFoundError, PermissionError):  # for which the file is not to blame
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:  # pandas reads its JSON
        reason = str(error).splitlines()[0]
        raise StoreError(f"{path} is damaged ({reason}): {_restore(path)}") from None


def _refuse_other_names(schema):
    """Raises ValueError where a column's name is damaged: pandas has noted the names a second time."""
    noted = {column["field_name"] for column in (schema.pandas_metadata or {}).get("columns", [])}
    if noted and (other := noted ^ set(schema.names)):
        raise ValueError(f"the name of a column is not what was written: {', '.join(sorted(other))}")


def _restore(path):
    return f"restore it by git checkout -- {path}" if REFERENCE in path.parents else "delete it"


def _move_aside(path, reason):
    if REFERENCE in path.parents:
        raise StoreError(f"{path} is damaged ({reason}): {_restore(path)}")
    aside = path.with_name(path.name + ".damaged")
    try:
        path.rename(aside)
    except FileNotFoundError:  # another process was faster, see _of_all_files
        raise
    except OSError as error:
        stuck = f"{path} is damaged ({reason}) and cannot be moved aside: {error.strerror}"
        raise StoreError(f"{stuck}. Make the folder writable, or delete the file") from None
    print(
        f"hakmem: {path.name} is damaged ({reason}). It was moved aside to {aside}; its runs are measured "
        "again when the experiment runs next, all others are unharmed",
        file=sys.stderr,
    )


def _write(folder, name, fill):
    """fill(file) under a hidden name, synced, then renamed."""
    hidden = folder / f".{name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hidden.open("wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(folder / name)
    except BaseException as error:  # also where the user stops it
        with contextlib.suppress(OSError):  # the folder itself may be the trouble, which is named below
            hidden.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(folder, error) from None
        raise


def cannot_write(folder, error):
    """The StoreError of an OSError that came of writing there."""
    return StoreError(
        f"cannot write to {folder}: {error.strerror or error}. Nothing measured before is lost: "
        "make room or make the folder writable, then run the same command again"
    )
