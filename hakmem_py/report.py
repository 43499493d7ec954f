"""Reports: which notebooks, with which parameters, and the pages made of them.

Every fault in a command line is found before anything starts. A notebook's metadata (`hakmem`) say
whether it `measures` and whether it `calibrates`, which decides when it runs (batch.py), and to which `part`
of the front page it belongs.
"""

import glob
import hashlib
import itertools
import os
import platform
import re
import shlex
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from . import ROOT, batch, notebook, parameters
from .notebook import compared, headline, side_of, table  # noqa: F401  what notebooks call
from .slot import alone_in

NOTEBOOKS = ROOT / "notebooks"
CELL_TIMEOUT_S = 900  # no cell of the quick mode needs a tenth of it
FULL_CELL_TIMEOUT_S = 6 * 3600
LABEL = 60  # characters that a parameter adds to the name of a page, and a hash where it has more
RUN_KEYS = {"notebook": str, "name": str, "parameters": dict, "grid": dict}


class ReportError(Exception):
    """One line per fault: what is wrong and how to mend it."""


@dataclass(frozen=True)
class Run:
    """One notebook with one set of checked parameters; `name` is the page's."""

    notebook: Path
    name: str
    parameters: dict
    measures: bool
    part: str
    experiments: tuple[str, ...]  # whose specs and samples it reads
    calibrates: bool = False  # what it finds stands on top of every page measured after it

    def cell_timeout_s(self):
        """Seconds that one cell may take."""
        return FULL_CELL_TIMEOUT_S if self.parameters.get("quick") is False else CELL_TIMEOUT_S

    def command(self):
        """The command that makes this page again, from the repository's root."""
        words = ["python", "-m", "hakmem_py", "report", os.path.relpath(self.notebook, ROOT)]
        for name, value in self.parameters.items():
            words += ["-p", f"{name}={value}"]
        return shlex.join(words)


# ---------------------------------------------------------------- what to run


def find(word):
    """The notebook that a word names: a path, a stem ("04_patterns") or a number ("04" or "4")."""
    path = Path(word)
    if path.suffix == ".ipynb" and path.exists():
        return path.resolve()
    stem = path.stem.zfill(2) if path.stem.isdecimal() else path.stem
    found = sorted(NOTEBOOKS.glob(f"{glob.escape(stem)}*.ipynb"))
    if len(found) != 1:
        names = ", ".join(p.stem for p in sorted(NOTEBOOKS.glob("*.ipynb")))
        raise ReportError(f"no single notebook is called {word!r}; there are {names}")
    return found[0]


def _declared(cells, path):
    """The declarations of a notebook's parameters cell, {} where it has none."""
    tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    try:
        return parameters.declared(notebook.source(tagged[0])) if tagged else {}
    except (SyntaxError, ValueError) as error:
        raise ReportError(f"{path.name}: the parameters cell cannot be read: {error}") from None


def _experiments(cells, path):
    """The experiments that a notebook names anywhere in its text, its own among them."""
    text = "\n".join([path.stem, *map(notebook.source, cells)])
    specs = sorted(spec.stem for spec in (ROOT / "data" / "specs").glob("*.toml"))
    return tuple(spec for spec in specs if re.search(rf"\b{re.escape(spec)}\b", text))


def make_run(path, values, name=None, full=False):
    """A Run of the notebook at `path` with its parameters checked. Raises ReportError."""
    try:
        content = notebook.read(path)
        known = _declared(content["cells"], path)
        if full and "quick" in known:
            values = {"quick": False} | values
        values = parameters.check(values, known, path.stem)
    except ValueError as error:  # ParameterError is one
        raise ReportError(str(error)) from None
    facts = content["metadata"].get("hakmem", {})
    reference = values.get("reference", "reference" in known and known["reference"].default)
    measures = bool(facts.get("measures")) and not reference
    part, calibrates = facts.get("part", ""), measures and facts.get("calibrates", False)
    experiments = _experiments(content["cells"], path)
    return Run(path, name or path.stem, values, measures, part, experiments, calibrates)


def read_runs(file, values, full):
    """Runs of a TOML file: [[run]] with notebook, name, parameters, grid (lists, multiplied out)."""
    try:
        table = tomllib.loads(Path(file).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(f"cannot read {file}: {error}") from None
    entries = table.pop("run", [])
    tables = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    if not entries or not tables or any("notebook" not in entry for entry in entries):
        raise ReportError(f"{file}: needs [[run]] tables, each with the name of a notebook")
    unknown = [*table, *(key for entry in entries for key in entry if key not in RUN_KEYS)]
    if unknown:
        raise ReportError(
            f"{file}: unknown key {unknown[0]}; allowed: [[run]] with {', '.join(sorted(RUN_KEYS))}"
        )
    for entry in entries:
        _check_kinds(file, entry)
    return [run for entry in entries for run in _multiplied(entry, values, full)]


def _check_kinds(file, entry):
    words = {str: "a text", dict: "a table"}
    for key, value in entry.items():
        if not isinstance(value, RUN_KEYS[key]):
            raise ReportError(f"{file}: {key} = {value!r}: must be {words[RUN_KEYS[key]]}")
    if not re.fullmatch(r"[^/\0]+", entry.get("name", "page")):
        raise ReportError(f"{file}: name = {entry['name']!r}: must be a file's name, without /")
    for name, value in entry.get("grid", {}).items():
        if not isinstance(value, list) or not value:
            raise ReportError(
                f"{file}: grid: {name} = {value!r}: must be a list, not empty; each value makes a run"
            )


def _multiplied(entry, values, full):
    path, grid = find(entry["notebook"]), entry.get("grid", {})
    stem = entry.get("name", path.stem)
    for point in itertools.product(*grid.values()):
        chosen = dict(zip(grid, point, strict=True))
        labels = [_label(key, value) for key, value in chosen.items()]
        yield make_run(path, entry.get("parameters", {}) | chosen | values, "-".join([stem, *labels]), full)


def _label(key, value):
    """A part of a page's name; what is cut off a long value is told apart by a hash."""
    label = f"{key}_{re.sub(r'[^.a-zA-Z0-9]+', '_', str(value)).strip('_')}"
    if len(label) <= LABEL:
        return label
    return f"{label[:LABEL]}_{hashlib.sha256(str(value).encode()).hexdigest()[:8]}"


def _pairs(words):
    """{name: text} of the -p options."""
    for word in words:
        if "=" not in word:
            raise ReportError(f"-p {word}: write -p NAME=VALUE")
    return {name.strip(): value for name, _, value in (word.partition("=") for word in words)}


def plan(words, pairs, runs_file=None, full=False):
    """All runs of one command line. Raises ReportError with one line for each fault."""
    values, runs, faults = _pairs(pairs), [], []
    if runs_file:
        runs = read_runs(runs_file, values, full)
    else:
        for path in [find(word) for word in words] or sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
            try:
                runs.append(make_run(path, values, full=full))
            except ReportError as error:
                faults.append(str(error))
    names = [run.name for run in runs]
    faults += [
        f"two runs would make the page {n}: give each a name" for n in set(names) if names.count(n) > 1
    ]
    if faults or not runs:
        raise ReportError("\n".join(faults) or f"no notebooks in {NOTEBOOKS}")
    return runs


# ---------------------------------------------------------------- the subcommand


def _writable(folder):
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # another report may have removed it
    except OSError as error:
        cure = "make it writable or choose another with --out"
        raise ReportError(f"cannot write to {folder}: {error.strerror}; {cure}") from None


def _machine():
    return f"{platform.node()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}"


def report(args):
    """Exit status 0: all pages made; 1: something failed, the rest is made; 2: nothing was started."""
    try:
        if args.jobs < 1:
            raise ReportError(f"--jobs {args.jobs}: must be at least 1")
        if args.timeout is not None and args.timeout < 1:
            raise ReportError(f"--timeout {args.timeout}: must be at least 1 second")
        runs = plan(args.notebooks, args.parameter, args.runs, args.full)
        _writable(args.out)
        cure = "wait for it to end, or choose another folder with --out"
        taken = ReportError(f"another report is being made in {args.out}: {cure}")
        with alone_in(args.out, taken) as lock:
            os.set_inheritable(lock, True)  # should this be killed, the folder is papermill's until it ends
            return _make(args, runs)
    except ReportError as error:
        print(error, file=sys.stderr)
        return 2


def _make(args, runs):
    executed, shown = args.out / "executed", args.out / "html"
    _writable(executed)
    _writable(shown)
    from . import pages  # nbconvert takes seconds to load, which a refused command line should not

    try:
        records = batch.run_all(runs, executed, args.jobs, args.timeout, args.resume)
    except KeyboardInterrupt:
        after_make = "after make report: python -m hakmem_py report --resume"
        print(f"stopped; what was finished is kept: go on with --resume ({after_make})", file=sys.stderr)
        return 130
    for path in [executed / f"{run.name}.ipynb" for run in runs]:
        if path.exists() and not notebook.damage(path):  # of an earlier run: the front page names it
            pages.write_page(path, shown, args.self_contained)
    print(f"{pages.write_index(args.out, _machine())}")
    failed = [record for record in records if record["status"] != "ok"]
    for record in failed:
        print(f"FAILED {record['name']}: {pages.failure(record)}", file=sys.stderr)
    if failed:
        print(
            f"{len(failed)} of {len(runs)} failed; how far they came: {executed}/*.failed.ipynb",
            file=sys.stderr,
        )
    return 1 if failed else 0


def add_report(parser):
    parser.description = __doc__
    add = parser.add_argument
    add("notebooks", nargs="*", metavar="NOTEBOOK", help="path, name or number; default: all")
    add("-p", dest="parameter", action="append", default=[], metavar="NAME=VALUE", help="set in each of them")
    add("--runs", metavar="FILE.toml", help="file of [[run]] tables with notebook, name, parameters, grid")
    add("--full", action="store_true", help="as many blocks as the specs ask for: hours, not minutes")
    add("--self-contained", action="store_true", help="plotly.js (5 MB) inside each page, to be mailed")
    add(
        "--jobs",
        type=int,
        default=max(1, (os.cpu_count() or 2) - 1),
        help="notebooks run at a time, where nothing is measured",
    )
    add("--resume", action="store_true", help="keep pages of the same text, parameters, code and samples")
    add("--timeout", type=int, metavar="SECONDS", help=f"for one cell; default {CELL_TIMEOUT_S}, --full 6 h")
    add("--out", type=Path, default=ROOT / "reports", help="default: reports")
    parser.set_defaults(run=report)
