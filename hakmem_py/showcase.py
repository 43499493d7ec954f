"""For those who only browse the repository: reference samples, and the README's drawings and table.

`hakmem freeze NAME ...` makes samples, simulations or kept tables the reference; `hakmem readme` redraws the
drawings from them, writes the table of knobs from the build and names the machines of the reference.
"""

import html
import re
import sys
from math import log10
from pathlib import Path

from . import ROOT, kept, provenance, store
from .runner import ensure
from .spec import load_spec, narrow
from .stats import bracketed, compare
from .style import looks

README = ROOT / "README.md"
WIDTH, LEFT, TOP, ROW = 860, 170, 58, 22  # px
MACHINE_FACTS = ("machine", "kernel", "libc")


# ---------------------------------------------------------------- reference samples


def freeze(name, quick=False, blocks=None):
    """Makes the samples of an experiment its reference, in place of what was there. Returns how many.

    quick, blocks: as they were measured; None: as many blocks as the specification says. Raises ValueError
    where a run failed.
    """
    _machines()  # damage there is found before anything is measured or written
    samples = ensure(name, quick=quick, blocks=blocks)
    failed = samples[samples["status"] != "ok"].groupby(["allocator", "error"], observed=True).size()
    if len(failed):
        said = "; ".join(f"{count} runs of {side} ({error})" for (side, error), count in failed.items())
        raise ValueError(f"{name} is not whole: {said}; see to it, then measure and freeze again")
    folder, origin = store.REFERENCE / name, Path(samples.attrs["folder"])
    old = {path for kind in ("part", "samples", "provenance") for path in folder.glob(f"{kind}-*")}
    names = [f"provenance-{one}.json" for one in samples["provenance"].unique()]
    facts = {name: store.demand_json(origin / name) for name in names}
    _say_changed(name, facts.values())
    for saved, fact in facts.items():  # first: if one cannot be written, old and new samples do not mix
        store.save_json(folder, saved, fact)
    store.append(folder, store.rows(origin, samples["run_id"]))
    for path in old - {folder / saved for saved in facts}:  # not before the new ones are there
        path.unlink()
    _name_machines()
    return len(samples)


def freeze_simulations(name):
    """As `freeze`, for the simulations that a notebook keeps, played anew by the library as it is now."""
    from .bandits import Lab

    _machines()
    lab = Lab(name, reference=True)
    lab.kept = lab.replay()
    lab.freeze()
    _name_machines()
    return len(lab.kept)


def freeze_tables(name, quick=False):
    """As `freeze`, for the tables that a notebook has made (kept.Tables)."""
    _machines()
    folder, made = store.REFERENCE / name, _tables(name, quick)
    _say_changed(name, made.values())
    for path, facts in made.items():
        if (changed := facts.get("parameters", kept.AS_DECLARED)) != kept.AS_DECLARED:
            print(f"hakmem freeze: {path.stem} was made with {changed}", file=sys.stderr)
        provenance.save(folder, facts)  # first, as above
        store.save_table(folder, path.name, store.read_table(path))
    there = sorted(folder.glob("*.parquet"))
    if former := [path.stem for path in there if path.name not in {new.name for new in made}]:
        said = f"{', '.join(former)}: not made anew, the former stay the reference"
        print(f"hakmem freeze: {said}; delete what {folder} should not keep", file=sys.stderr)
    named = {kept.facts_file(path) for path in there}
    for path in {*folder.glob("provenance-*")} - named:
        path.unlink()
    _name_machines()
    return len(made)


def _tables(name, quick):
    """{path: facts} of the tables that a notebook kept. Raises OSError, ValueError for unfit ones."""
    origin = store.SAMPLES / name
    made = {path: store.demand_json(kept.facts_file(path)) for path in sorted(origin.glob("*.parquet"))}
    if not made:
        raise FileNotFoundError(f"there are no tables in {origin}: run the notebook with reference = False")
    rough = [path.stem for path, facts in made.items() if facts.get("quick")]
    if rough and not quick:
        raise ValueError(f"{', '.join(rough)}: made in the quick mode; run the notebook with quick = False")
    return made


def _say_changed(name, facts):
    """Names on stderr the commits from which the working tree differed: that code cannot be had."""
    changed = sorted({said for fact in facts if (said := fact.get("commit", "")).endswith(" + changes")})
    if changed:
        print(
            f"hakmem freeze: {name} was measured at {', '.join(changed)}, code that nobody can have: "
            "commit it, measure and freeze again",
            file=sys.stderr,
        )


def _machines():
    """Facts of a machine -> {name of what the reference holds from there: True}. Raises StoreError."""
    there = {}
    found = [store.REFERENCE.glob(f"*/{name}.json") for name in ("provenance-*", "facts")]
    for path in sorted(path for paths in found for path in paths):
        facts = store.demand_json(path)
        machine = tuple(str(facts.get(name, "unknown")) for name in MACHINE_FACTS)
        there.setdefault(machine, {})[path.parent.name] = True
    return there


def _name_machines():
    """data/reference/README.md: on which machines the reference was measured."""
    text = f"""# Reference samples

Beside the samples, one `provenance-*.json` per build or a `facts.json` names the commit.

| {" | ".join(MACHINE_FACTS)} | measured there |
{"|---" * (len(MACHINE_FACTS) + 1)}|
"""
    for facts, names in _machines().items():
        text += f"| {' | '.join(facts)} | {', '.join(names)} |\n"
    store.save_text(store.REFERENCE, "README.md", text)


# ---------------------------------------------------------------- drawings


def dots(table, title, baseline):
    """SVG of a comparison: a line per case, a dot per allocator at its time over the baseline's, log axis."""
    rows = table[table["status"] == "ok"].copy()
    rows["ratio"] = rows["ratio"].astype(float)
    cases, names = list(rows["case"].unique()), list(rows["allocator"].unique())
    low, high = min(0.5, rows["ratio"].min()), max(2.0, rows["ratio"].max())
    span = log10(high) - log10(low)

    def place(ratio):
        at = (log10(ratio) - log10(low)) / span
        return LEFT + (WIDTH - LEFT - 30) * min(max(at, -0.01), 1.02)  # long intervals end at the frame

    height = TOP + ROW * len(cases) + 40
    paint = looks(names)
    parts = [_text(12, 20, title, 15, weight="600")]
    parts += [_legend(i, name, paint[name][0]) for i, name in enumerate(names)]
    for tick in [t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 1000) if low <= t <= high]:
        x, bottom, width = place(tick), TOP + ROW * len(cases), 1.6 if tick == 1 else 0.4
        parts.append(f'<path d="M{x:.1f} {TOP - 8}V{bottom}" stroke="#888" stroke-width="{width}"/>')
        parts.append(_text(x, bottom + 16, f"{tick:g}×", 11, anchor="middle"))
    for i, case in enumerate(cases):
        y = TOP + ROW * i + ROW / 2
        parts.append(_text(LEFT - 10, y + 4, case, 12, anchor="end"))
        parts += [
            _dot(place, row, y, paint[row.allocator][0]) for row in rows[rows["case"] == case].itertuples()
        ]
    key = f"time over {baseline}'s time; right of 1: {baseline} is faster; bars: 95 % intervals"
    body = "".join([*parts, _text(LEFT, height - 6, key, 11)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{html.escape(title)}" font-family="sans-serif">'
        f'<rect width="100%" height="100%" fill="#fff"/>{body}</svg>\n'
    )


def _text(x, y, words, size, anchor="start", weight="400"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="#222" text-anchor="{anchor}" '
        f'font-weight="{weight}">'
        f"{html.escape(words)}</text>"
    )


def _legend(number, name, paint):
    x = 12 + 110 * number
    return f'<circle cx="{x + 4}" cy="36" r="4.5" fill="{paint}"/>{_text(x + 13, 40, name, 12)}'


def _dot(place, row, y, paint):
    left, right = place(float(row.low)), place(float(row.high))
    return (
        f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="{paint}" stroke-width="2" opacity=".5"/>'
        f'<circle cx="{place(row.ratio):.1f}" cy="{y:.1f}" r="4.5" fill="{paint}">'
        f"<title>{html.escape(row.allocator)} {bracketed(row.ratio, row.low, row.high)}, "
        f"n = {row.n}</title></circle>"
    )


def draw(name, title):
    """Writes data/reference/<stem>.svg of an experiment's reference samples."""
    samples = ensure(name, reference=True)
    path = store.REFERENCE / f"{name.split('_', 1)[1]}.svg"
    store.save_text(path.parent, path.name, dots(compare(samples), title, samples.attrs["baseline"]))
    return path


# ---------------------------------------------------------------- the table of knobs


def knob_table():
    """The knobs of the build as Markdown, one row each."""
    from .native import knobs

    table, escaped = knobs(), r"\|"
    head = "| knob | unit | default | range | ACE | what it trades |\n|---|---|---:|---:|---|---|\n"
    return head + "".join(
        f"| `{name}` | {row.unit} | {row.preset} | {row.minimum} to {row.maximum} "
        f"| {'yes' if row.learnable else ''} | {row.why.replace('|', escaped)} |\n"
        for name, row in table.iterrows()
    )


def with_table(text, table):
    """README text with the table between its two marks."""
    return re.sub(
        r"(<!-- knobs begin -->\n).*?(<!-- knobs end -->)", lambda m: m[1] + table + m[2], text, flags=re.S
    )


# ---------------------------------------------------------------- command line


def add_freeze(sub):
    names = "experiments of data/specs, notebooks that simulate, or NOTEBOOK_runs: a notebook's tables"
    sub.add_argument("names", nargs="+", metavar="NAME", help=names)
    sub.add_argument("--quick", action="store_true", help="the samples of the quick mode")
    sub.add_argument("--blocks", type=int, help="how many blocks; default: as the specification says")
    sub.set_defaults(run=_freeze)


def _freeze(args):
    for name in args.names:  # a fault of the last one is found before the first one is measured
        _refuse_unfit(name, args)
    for name in args.names:
        if name.endswith(kept.SUFFIX):
            print(f"{name}: {freeze_tables(name, args.quick)} tables are the reference now")
        elif _simulated(name):
            print(f"{name}: {freeze_simulations(name)} simulations, played anew, are the reference now")
        else:
            print(f"{name}: {freeze(name, args.quick, args.blocks)} samples are the reference now")


def _refuse_unfit(name, args):
    """Raises ValueError or OSError for what cannot become the reference."""
    if Path(name).name != name or name.endswith(".toml"):
        raise ValueError(f"{name}: only a specification in data/specs is frozen; give its name alone")
    if name.endswith(kept.SUFFIX):
        _tables(name, args.quick)
    elif not _simulated(name):
        narrow(load_spec(name), blocks=args.blocks, quick=args.quick)


def _simulated(name):
    return (store.REFERENCE / name / "outcomes.parquet").exists()


def add_readme(sub):
    sub.set_defaults(run=_readme)


def _readme(_args):
    _machines()  # before anything is written, as above
    for name, title in (
        ("05_scorecard", "Every workload, one thread"),
        ("04_patterns", "Five patterns, four sizes"),
    ):
        print(draw(name, title), file=sys.stderr)
    store.save_text(README.parent, README.name, with_table(README.read_text(encoding="utf-8"), knob_table()))
    _name_machines()
