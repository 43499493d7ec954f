"""Experiments as frozen values, read strictly from TOML; the order of runs is a pure function of the seed."""

import hashlib
import itertools
import random
import tomllib
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path

from . import ROOT

SPECS = ROOT / "data" / "specs"
USES = ("hakmem", "system", "mimalloc", "jemalloc", "tcmalloc", "floor", "direct")
METRICS = ("cpu_ns_per_op", "ns_per_op", "min_cpu_ns_per_op", "min_ns_per_op")
FAMILIES = ("holm", "bh")
TRACE_SUFFIX = ".haktrace"
TRACE_SHAPE = "a trace has sizes, threads and slots of its own: leave them out"


class SpecError(ValueError):
    """A specification cannot be meant; one line that names file, key and what is allowed."""


@dataclass(frozen=True)
class Allocator:
    """One side of the comparison."""

    label: str
    use: str
    variant: str = "release"  # of the build; hakmem and direct only
    env: tuple[tuple[str, str], ...] = ()  # sorted
    slowdown: float = 0.0  # percent of work done and not counted: an exact injected difference
    quick: int = 1  # 0: in the full mode only, unless it is asked for by name


@dataclass(frozen=True)
class Case:
    """One workload, or one recorded trace, at one point. None leaves the workload's own default."""

    workload: str  # a row of the bench's table, or the name of a trace's file
    size: int | None = None  # bytes
    threads: int | None = None
    slots: int | None = None
    scale: float = 1.0  # factor on the workload's iterations, full mode
    quick_scale: float = 1.0  # the same, quick mode; 0: in the full mode only
    options: tuple[tuple[str, str], ...] = ()  # further arguments of the bench, sorted
    label: str | None = None
    trace: str | None = field(default=None, repr=False)  # absolute path; what counts is the file's content

    @property
    def name(self):
        """ "lifo-32", "larson-4t", "random_mixed": how tables and figures call the case."""
        parts = [self.label or self.workload.removesuffix(TRACE_SUFFIX), self.size]
        parts += [
            f"{value}{unit}" for value, unit in ((self.threads, "t"), (self.slots, "s")) if (value or 0) > 1
        ]
        return "-".join(str(part) for part in parts if part is not None)

    def arguments(self, scale):
        """The bench's arguments for this case; scale is a factor on the workload's own iterations."""
        named = {"replay": self.trace} if self.trace else {"workload": self.workload}
        named |= {"size": self.size, "threads": self.threads, "slots": self.slots}
        named |= {"scale": f"{scale:g}", **dict(self.options)}
        return [
            text for key, value in named.items() if value is not None for text in (f"--{key}", str(value))
        ]


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    baseline: str
    allocators: tuple[Allocator, ...]
    cases: tuple[Case, ...]
    metric: str = "cpu_ns_per_op"
    blocks: int = 30
    quick_blocks: int = 6
    seed: int = 42
    timeout_s: float = 60.0
    family: str = "holm"
    looks: tuple[int, ...] = ()  # blocks after which `hakmem decide` may look; fixed before the first run
    local: int = 0  # 1: runs of another machine, or under another kernel, do not count

    def block_count(self, quick):
        return self.quick_blocks if quick else self.blocks


@dataclass(frozen=True)
class Run:
    """One planned run: its place in the block, and the seed that its rivals share."""

    block: int
    position: int
    case: Case
    allocator: Allocator
    scale: float
    seed: int


# ---------------------------------------------------------------- reading


def whole(low, high):
    return int, lambda v: isinstance(v, int) and low <= v <= high, f"a whole number from {low} to {high}"


def number(low, high):
    allowed = f"a number from {low:g} to {high:g}"
    return (int, float), lambda v: isinstance(v, int | float) and low <= v <= high, allowed


def text(*words):
    fits = words.__contains__ if words else lambda v: bool(v.strip()) and v.isprintable()
    return str, fits, " | ".join(words) or "a text of one line, not empty"


LOOKS = (
    list,
    lambda v: all(isinstance(n, int) and n >= 6 for n in v) and v == sorted(set(v)),
    "increasing, from 6 on",
)


def table(refused, why):
    """Rule for a table of plain values. refused(key): whether the key is not allowed; why: says so."""

    def fits(given):
        plain = all(isinstance(x, str | int | float) and "\0" not in f"{key}{x}" for key, x in given.items())
        return plain and not any(map(refused, given))

    return dict, fits, f"a table of plain values, no NUL among them, {why}"


def no_variable(name):
    """Whether a run may not set this variable: it is no name, or it decides which library is loaded."""
    return not name or "=" in name or name.startswith("LD_")


OWNED = ("workload", "replay", "size", "threads", "slots", "scale", "backend", "seed", "cpu", "slowdown")
RULES = {  # table -> key -> (type, test, what is allowed); lists of a case are multiplied out before
    "experiment": {
        "name": text(),
        "title": text(),
        "baseline": text(),
        "metric": text(*METRICS),
        "blocks": whole(1, 100_000),
        "quick_blocks": whole(1, 100_000),
        "seed": whole(0, 2**32 - 1),
        "timeout_s": number(0.1, 86_400),
        "family": text(*FAMILIES),
        "looks": LOOKS,
        "local": whole(0, 1),
    },
    "allocator": {
        "label": text(),
        "use": text(*USES),
        "variant": text(),
        "env": table(no_variable, "names not empty, without = or LD_: the library is what `use` says"),
        "slowdown": number(0, 1000),
        "quick": whole(0, 1),
    },
    "case": {
        "workload": text(),
        "size": whole(1, 2**30),
        "threads": whole(1, 1024),
        "slots": whole(1, 2**26),
        "scale": number(1e-9, 1e6),
        "quick_scale": number(0, 1e6),
        "options": table(OWNED.__contains__, f"without {', '.join(OWNED)}, which have keys of their own"),
        "label": text(),
    },
}


def load_spec(name):
    """The Experiment of data/specs/NAME.toml, or of a path that ends in .toml. Raises SpecError."""
    path = Path(name) if str(name).endswith(".toml") else SPECS / f"{name}.toml"
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in SPECS.glob("*.toml")))
        missing = name if path.parent != SPECS else path.name
        raise SpecError(f"no specification {missing}; there are {known}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{path.name}: cannot be read: {error}") from None
    experiment = read_spec(tables, path.name, path.parent)
    if experiment.name != path.stem:
        raise SpecError(
            f"{path.name}: [experiment] name = {experiment.name!r} must be that of the file, {path.stem!r}"
        )
    return experiment


def read_spec(tables, where="spec", folder="."):
    """The Experiment of parsed tables. where: their name in errors. folder: paths of traces are relative to
    it. Raises SpecError."""
    unknown = sorted(set(tables) - set(RULES))
    if unknown:
        raise SpecError(
            f"{where}: table {unknown[0]!r} is unknown; allowed: experiment, [[allocator]], [[case]]"
        )
    for name, table in tables.items():
        rows = [table] if name == "experiment" else table if isinstance(table, list) else [None]
        if not all(isinstance(row, dict) for row in rows):
            form = "[experiment], once" if name == "experiment" else f"[[{name}]], in double brackets"
            raise SpecError(f"{where}: {name} must be a table {form}")
    head = _checked(tables.get("experiment", {}), "experiment", f"{where}: [experiment]", Experiment)
    sides = tables.get("allocator", [])
    allocators = tuple(_allocator(row, f"{where}: [[allocator]] {i}") for i, row in enumerate(sides, 1))
    rows = tables.get("case", [])
    cases = tuple(
        case for i, row in enumerate(rows, 1) for case in _cases(row, f"{where}: [[case]] {i}", Path(folder))
    )
    _one_each([a.label for a in allocators], f"{where}: [[allocator]] label")
    _one_each([c.name for c in cases], f"{where}: [[case]] (give one of them a label)")
    if head["baseline"] not in [a.label for a in allocators]:
        raise SpecError(f"{where}: [experiment] baseline = {head['baseline']!r} is no [[allocator]]'s label")
    head = head | {"looks": tuple(head.get("looks", ()))}
    return Experiment(**head, allocators=allocators, cases=cases)


def _checked(row, table, where, kind):
    """The row itself, if each key is known, has an allowed value and none is missing. Raises SpecError."""
    rules = RULES[table]
    for key, value in row.items():
        if key not in rules:
            raise SpecError(f"{where}: key {key!r} is unknown; allowed: {', '.join(rules)}")
        _fits(key, value, rules, where)
    needed = {field.name for field in fields(kind) if field.default is MISSING} & set(rules)
    absent = sorted(needed - set(row))
    if absent:
        raise SpecError(f"{where}: key {absent[0]!r} is missing; it is {rules[absent[0]][2]}")
    return row


def _fits(key, value, rules, where):
    types, test, allowed = rules[key]
    if isinstance(value, bool) or not isinstance(value, types) or not test(value):
        raise SpecError(f"{where}: {key} = {value!r} must be {allowed}")


def _allocator(row, where):
    checked = _checked(row, "allocator", where, Allocator)
    if "variant" in row and row.get("use") not in ("hakmem", "direct"):
        raise SpecError(f"{where}: variant = {row['variant']!r} is for use = hakmem or direct only")
    return Allocator(**checked | {"env": _pairs(row.get("env"))})


def _cases(row, where, folder):
    """The cases of one table: every key that holds a list is multiplied out, the last key fastest."""
    lists = {key: value if isinstance(value, list) else [value] for key, value in row.items()}
    empty = [key for key, values in lists.items() if not values]
    if empty:
        raise SpecError(f"{where}: {empty[0]} = [] names nothing; a list needs one value at least")
    for values in itertools.product(*lists.values()):
        point = _checked(dict(zip(lists, values, strict=True)), "case", where, Case)
        yield _found(Case(**point | {"options": _pairs(point.get("options"))}), where, folder)


def _found(case, where, folder):
    """The case itself; where it is a trace, with its path."""
    if not case.workload.endswith(TRACE_SUFFIX):
        return case
    if case.size or case.threads or case.slots:
        raise SpecError(f"{where}: {TRACE_SHAPE}")
    path = (folder / case.workload).resolve()
    return replace(case, workload=path.name, trace=str(path))


def _pairs(table):
    return tuple(sorted((key, str(value)) for key, value in (table or {}).items()))


def _one_each(names, where):
    if not names:
        raise SpecError(f"{where}: at least one is needed")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(f"{where}: {twice[0]!r} occurs twice")


# ---------------------------------------------------------------- choosing and ordering


def narrow(experiment, blocks=None, sizes=None, allocators=None, workloads=None, quick=False):
    """The experiment with fewer (or more) blocks and only these sizes, allocators (labels), workloads.

    quick: without the allocators that only the full mode has, unless `allocators` names them. The baseline
    always stays. Raises SpecError where nothing is left or a name is unknown.
    """
    sides, cases = experiment.allocators, experiment.cases
    if allocators is not None:
        _known(allocators, [a.label for a in sides], "allocators")
        sides = tuple(a for a in sides if a.label in {*allocators, experiment.baseline})
        if len(sides) < 2 <= len(experiment.allocators):
            raise SpecError(f"allocators = {list(allocators)!r}: name one to compare with {sides[0].label}")
    elif quick:
        sides = tuple(a for a in sides if a.quick or a.label == experiment.baseline)
    if workloads is not None:
        _known(workloads, [c.workload for c in cases], "workloads")
        cases = tuple(c for c in cases if c.workload in workloads)
    if sizes is not None:
        _known(sizes, [c.size for c in cases], "sizes")
        cases = tuple(c for c in cases if c.size in sizes)
    if blocks is not None:
        _fits("blocks", blocks, RULES["experiment"], "override")
        experiment = replace(experiment, blocks=blocks, quick_blocks=blocks)
    if not any(case.quick_scale or not quick for case in cases):
        why = ": what was chosen runs in the full mode only" if cases else ""
        raise SpecError(f"no case of {experiment.name} is left{why}")
    return replace(experiment, allocators=sides, cases=cases)


def _known(chosen, there, what):
    strange = [value for value in chosen if value not in there]
    if strange or not chosen:
        allowed = ", ".join(str(value) for value in dict.fromkeys(there) if value is not None)
        allowed = (
            f"must be chosen from: {allowed}" if allowed else "cannot be chosen: this experiment names none"
        )
        raise SpecError(f"{what} = {list(chosen)!r} {allowed}")


def refuse_strange(experiment, known):
    """Raises SpecError for a HAKMEM_ variable in an env that is not among these: it would have no effect."""
    for name, _ in (pair for side in experiment.allocators for pair in side.env):
        if name.startswith("HAKMEM_") and name not in known:
            raise SpecError(f"{experiment.name}: env {name} is no setting; allowed: {', '.join(known)}")


def schedule(experiment, block, quick):
    """The Runs of one block in their order: the cases shuffled, and within a case the allocators.

    The runs of one case stand together, so that a pair is as close in time as it can be. Decided by
    (experiment.seed, block) alone: leaving cases out does not change the order of allocators in the others.
    """
    cases = [case for case in experiment.cases if not quick or case.quick_scale]
    _draw(experiment.seed, block, "cases").shuffle(cases)
    runs = []
    for case in cases:
        draw = _draw(experiment.seed, block, case.name)
        sides, seed = list(experiment.allocators), draw.randrange(1, 2**31)
        draw.shuffle(sides)
        scale = case.quick_scale if quick else case.scale
        runs += [Run(block, len(runs) + i, case, side, scale, seed) for i, side in enumerate(sides)]
    return runs


def _draw(*parts):
    """A random generator for each set of parts, the same on every machine."""
    return random.Random(hashlib.sha256(repr(parts).encode()).digest())
