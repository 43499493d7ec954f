"""Runs experiments: measures what is missing, in randomised blocks, one process per sample.

A run is identified by a hash of all that defines it: the bits that ran (build or library), those of its
rivals in the same case, and case, block, seed, knobs, scale, host. So a killed campaign goes on where it
stopped, and a changed build or peer is measured anew. Whatever is measured anew is so together with its
rivals of the block: the two runs of a pair always come from the same sitting.
"""

import functools
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from . import __version__, build, native, peers, provenance, stats, store, trace, worker
from .progress import Progress
from .slot import bench_slot
from .spec import SpecError, load_spec, narrow, refuse_strange, schedule

SHOWN = [
    "case", "allocator", "ratio", "low", "high", "n", "p_adjusted", "cv", "autocorrelation", "load",
    "median_ns", "verdict", "needs_n", "status",
]  # fmt: skip


@dataclass(frozen=True)
class Contender:
    """An allocator of the spec, found on this machine: what to execute and what to preload."""

    bench: build.Build  # whose executable it runs in
    arguments: tuple[str, ...]  # that choose the backend
    digest: str  # content of the bits that run
    facts: dict  # columns of every one of its samples
    preload: str = ""
    expect: Path | None = None  # the library that must answer malloc
    missing: str = ""  # why it cannot run here, and how to get it


# ---------------------------------------------------------------- the front door


def ensure(name, quick=True, *, reference=False, folder=None, wait_s=0.0, **choice):
    """The samples of an experiment as a DataFrame, after measuring those that are missing.

    name: of a spec in data/specs, or the path of one. quick: few blocks, short runs. choice: blocks=, sizes=,
    allocators=, workloads= narrow the experiment (see spec.narrow). reference: read data/reference/NAME
    instead of measuring; needs no compiler. folder: where samples are kept, default data/samples/NAME.
    wait_s: how long to wait for another campaign on this machine instead of refusing.

    Rows whose status is not "ok" are runs that failed; they stay. attrs of the result: baseline, metric,
    family, folder, title. Raises SpecError, BuildError, StoreError, SlotError, each with one line.
    """
    experiment = narrow(load_spec(name), quick=quick and not reference, **choice)
    if reference:
        return _reference(experiment, choice.get("blocks"))
    folder = Path(folder or store.SAMPLES / experiment.name)
    contenders = find_contenders(experiment)
    found = plan(experiment, quick, contenders, folder)
    if any(found.missing.values()):
        with bench_slot(experiment.name, wait_s):
            found = measure(experiment, quick, contenders, folder)
    return samples_of(experiment, folder, found.run_ids)


def samples_of(experiment, folder, run_ids):
    """These runs of a folder, in the order of the spec and with its attrs."""
    samples = store.load(folder)
    if lost := run_ids - set(samples["run_id"]):  # planning had read a few columns of them, which were sound
        cure = "the same command measures them anew"
        raise store.StoreError(f"samples of {len(lost)} runs in {folder} are damaged: {cure}")
    return _annotated(samples[samples["run_id"].isin(run_ids)], experiment, folder)


def _reference(experiment, blocks):
    """The frozen samples of an experiment, narrowed to what it asks for; blocks: only the first ones."""
    folder = store.REFERENCE / experiment.name
    samples = store.load(folder)
    if samples.empty:
        more = f"measure with reference = False, or keep some: python -m hakmem_py freeze {experiment.name}"
        raise SpecError(f"there are no reference samples in {folder}: {more}")
    chosen = samples["allocator"].isin([a.label for a in experiment.allocators])
    if blocks:
        chosen &= samples["block"] < blocks
    chosen &= samples["case"].isin([case.name for case in experiment.cases])
    return _annotated(samples[chosen], experiment, folder)


def _annotated(samples, experiment, folder):
    """Samples in the order of the spec, with what statistics and figures want to know of it."""
    order = {case.name: i for i, case in enumerate(experiment.cases)}
    sides = {side.label: i for i, side in enumerate(experiment.allocators)}
    place = samples["case"].astype(str).map(order) * len(sides) + samples["allocator"].astype(str).map(sides)
    samples = samples.assign(place=place).sort_values(["place", "host", "block"], kind="stable")
    samples = samples.drop(columns="place").reset_index(drop=True)
    for column in samples.select_dtypes("category"):
        samples[column] = samples[column].astype(str)
    samples.attrs = {
        "baseline": experiment.baseline,
        "metric": experiment.metric,
        "family": experiment.family,
        "title": experiment.title,
        "folder": str(folder),
    }
    return samples


# ---------------------------------------------------------------- contenders


def find_contenders(experiment, builds=None):
    """label -> Contender. Builds what is needed; a peer that is not there is a Contender that says why.

    builds: {label: Build} to use instead of those that the spec names.
    """
    sides = experiment.allocators
    for side in sides:
        if side.use == "hakmem" and build.parse_variant(side.variant)[0] in build.UNIMPORTABLE:
            raise SpecError(f"{side.label}: variant {side.variant} is for tests, its runtime must come first")
    made = build.build_all(["release", *(side.variant for side in sides)])
    builds = {side.label: made[side.variant] for side in sides} | (builds or {})
    bench = made["release"]
    if any(side.env for side in sides):  # only the library knows its settings
        refuse_strange(experiment, native.settings())
    for case in experiment.cases:
        if case.trace:
            trace.chosen(Path(case.trace))
    unknown = sorted({case.workload for case in experiment.cases if not case.trace} - set(workloads(bench)))
    if unknown:
        known = ", ".join(workloads(bench))
        raise SpecError(f"workload {unknown[0]!r} of {experiment.name} is unknown; the bench has {known}")
    place = (provenance.host(), provenance.machine(), provenance.kernel()) if experiment.local else ()
    return {side.label: _contender(side, bench, builds[side.label], place) for side in sides}


@functools.cache
def workloads(bench):
    """The bench's own table: name -> stresses, unit, size, threads, slots, iterations, backends."""
    done = subprocess.run([bench.bench, "--list"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"bench --list failed ({done.returncode}) {done.stderr.strip()}".rstrip())
    return {row["name"]: row for row in json.loads(done.stdout)}


def _contender(side, bench, built, place):
    facts, more = _FINDERS.get(side.use, _peer)(side, built)
    facts = {"backend": "malloc", "variant": "", "build_hash": bench.hash, "library_sha256": ""} | facts
    bits = [side.use, side.env, side.slowdown, bench.hash, facts["build_hash"], facts["library_sha256"]]
    slow = ["--slowdown", f"{side.slowdown:g}"] if side.slowdown else []
    own = {"bench": bench, "arguments": ("--backend", facts["backend"], *slow)}
    facts = {"allocator": side.label, "use": side.use, "env": json.dumps(dict(side.env))} | facts
    return Contender(digest=_digest(side.label, bits, *place), facts=facts, **own | more)


def _hakmem(side, built):
    facts = _built(built) | {"library_sha256": built.facts()["library_sha256"]}
    return facts, {"preload": str(built.library), "expect": built.library.resolve()}


def _direct(side, built):
    return _built(built) | {"backend": "direct"}, {"bench": built}


def _built(built):
    return {"variant": built.variant, "build_hash": built.hash, "library_version": __version__}


def _system(side, built):
    return {"library_version": provenance.libc(), "library_sha256": provenance.libc_sha256()}, {}


def _floor(side, built):
    return {"backend": "floor", "library_version": __version__}, {}


def _peer(side, built):
    peer = peers.find(side.use)
    if peer.path is None:
        return {"library_sha256": "missing"}, {"missing": peer.hint}
    facts = {"library_version": peer.version, "library_sha256": peer.sha256}
    return facts, {"preload": peer.preload, "expect": peer.path}


_FINDERS = {"hakmem": _hakmem, "direct": _direct, "system": _system, "floor": _floor}


# ---------------------------------------------------------------- what is there, what is missing


@dataclass(frozen=True)
class Plan:
    """missing: block -> its Runs that this machine has still to make, of whole cases, each with its run_id;
    run_ids: all samples that count."""

    missing: dict
    run_ids: set


def plan(experiment, quick, contenders, folder, blocks=None):
    """The Plan of these blocks (default: all). A block counts when one host, whichever, has all its runs."""
    there = counting(folder, experiment.timeout_s)
    hosts = [provenance.host(), *sorted(set(there["host"].astype(str)) - {provenance.host()})]
    known = set(there["run_id"])
    missing, chosen = {}, set()
    for block in range(experiment.block_count(quick)) if blocks is None else blocks:
        runs = schedule(experiment, block, quick)
        wanted = {host: identify(runs, contenders, host) for host in hosts}
        done = next((host for host in hosts if known.issuperset(wanted[host])), hosts[0])
        chosen.update(wanted[done])
        keys = dict(zip(runs, wanted[done], strict=True))
        torn = {run.case for run, key in keys.items() if key not in known}  # no pair spans two sittings
        missing[block] = {run: key for run, key in keys.items() if run.case in torn}
    return Plan(missing, chosen)


def counting(folder, timeout_s):
    """run_id and host of the samples in a folder that need not be measured again: all but those of runs that
    timed out after less than timeout_s seconds, or met a mishap."""
    there = store.load(folder, ["run_id", "host", "status", "error", "wall_ns"])
    short = (there["status"] == "timeout") & (there["wall_ns"].fillna(0) < round(timeout_s * 1e9))
    return there.loc[~short & ~store.mishaps(there), ["run_id", "host"]]


def identify(runs, contenders, host):
    """The run_id of each run of one block on a host. A change of one rival changes all runs of the case."""
    rivals = {}
    for run in runs:
        rivals.setdefault(run.case.name, []).append(contenders[run.allocator.label].digest)
    return [_digest(_bits(run, contenders), sorted(rivals[run.case.name]), host) for run in runs]


def _bits(run, contenders):
    """What defines a run by itself; its place in the block does not."""
    bits = contenders[run.allocator.label].digest, replace(run, position=0)
    return (*bits, trace.digest(Path(run.case.trace))) if run.case.trace else bits


def _digest(*parts):
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


# ---------------------------------------------------------------- measuring


def measure(experiment, quick, contenders, folder, blocks=None):
    """Makes the runs that are missing; returns the Plan of what is there now.

    The runs of a case in a block are kept together, once all were made, or a stop would tear pairs apart.
    Only for the holder of the bench slot, because nobody else can then make the same runs.
    """
    found = plan(experiment, quick, contenders, folder, blocks)
    if any(found.missing.values()):
        _say_changed(contenders, folder)
    facts = provenance.save(folder, describe(experiment, quick, contenders))
    progress = Progress(experiment.name, sum(map(len, found.missing.values())))
    clock = provenance.watch_clock()
    try:
        for block, runs in found.missing.items():
            for _, rivals in itertools.groupby(runs.items(), lambda item: item[0].case):
                rows = []
                for run, key in rivals:
                    told = {"run_id": key, "experiment": experiment.name, "provenance": facts}
                    rows.append(told | _sample(run, contenders, experiment))
                    progress.step(block)
                store.append(folder, rows)
            clock = provenance.watch_clock(clock)
    finally:
        progress.end()
        store.compact(folder)
    return plan(experiment, quick, contenders, folder, blocks)


def _say_changed(contenders, folder):
    """Names on stderr each foreign allocator that is not the one measured here before."""
    there = store.load(folder, ["allocator", "library_version", "library_sha256"]).drop_duplicates()
    for label, found in contenders.items():
        before = there[(there["allocator"] == label) & ~there["library_sha256"].isin(["", "missing"])]
        version, sha = (found.facts.get(name, "") for name in ("library_version", "library_sha256"))
        foreign = found.facts["use"] in peers.FOREIGN and not found.missing
        if foreign and len(before) and sha not in set(before["library_sha256"]):
            print(
                f"hakmem: {label} changed, {before['library_version'].iloc[-1]} to {version} ({sha[:8]}): "
                "its cases are measured anew with all their rivals; older samples stay, but are not compared",
                file=sys.stderr,
            )


def describe(experiment, quick, contenders):
    """The facts under which an experiment is measured here."""
    sides = {
        label: found.missing or f"{found.facts['library_version']} {found.digest}"
        for label, found in contenders.items()
    }
    return provenance.collect(
        experiment=f"{experiment.name} ({'quick' if quick else 'full'}), seed {experiment.seed}",
        compiler=build.compiler_version(),
        build=build.build("release").facts(),
        allocators=sides,
        command=provenance.command(),
    )


def _sample(run, contenders, experiment):
    found, case = contenders[run.allocator.label], run.case
    listed = trace.REPLAY if case.trace else workloads(found.bench)[case.workload]
    cpu = _core(run.block, experiment.seed) if (case.threads or listed["threads"]) == 1 else -1
    row = found.facts | {
        "block": run.block,
        "position": run.position,
        "case": case.name,
        "workload": case.workload,
        "size_bytes": case.size,
        "threads": case.threads,
        "slots": case.slots,
        "scale": run.scale,
        "seed": run.seed,
        "cpu": cpu,
        "load1": provenance.load1(),
        "host": provenance.host(),
        "started_at": datetime.now(UTC),
    }
    if found.missing:
        return row | {"status": "missing", "error": found.missing}
    if found.facts["backend"] not in listed["backends"]:
        return row | {"status": "missing", "error": f"{found.facts['backend']} cannot run {case.workload}"}
    pin = ["--cpu", cpu] if cpu >= 0 else []
    more = [*found.arguments, *case.arguments(run.scale), "--seed", run.seed, *pin]
    command = [found.bench.bench, *more]
    row |= worker.run(command, found.preload, found.expect, run.allocator.env, experiment.timeout_s)
    if row["status"] == "timeout":
        row["error"] += ": raise timeout_s of the specification, and it is measured anew"
    return row


def _core(block, seed):
    """The core that all runs of this block are pinned to, drawn anew for every block."""
    return random.Random(f"{seed} {block}").choice(sorted(os.sched_getaffinity(0)))


# ---------------------------------------------------------------- command line


def add_run(sub):
    sub.add_argument("experiments", nargs="+", help="names of specs in data/specs, or paths of such files")
    add_choice(sub)
    sub.set_defaults(run=_run)


def add_choice(sub):
    """The options that narrow an experiment, the same wherever one is run."""
    sub.add_argument("--full", action="store_true", help="all blocks at full length; default: the quick mode")
    sub.add_argument("--blocks", type=int, help="randomised blocks")
    sub.add_argument("--sizes", type=int, nargs="+", metavar="BYTES", help="run only cases of these sizes")
    sub.add_argument("--allocators", nargs="+", metavar="LABEL", help="run only these sides")
    sub.add_argument("--workloads", nargs="+", metavar="NAME", help="run only cases of these workloads")


def choice(args):
    """What the options of add_choice ask for, as ensure's keywords. Raises ValueError for too few blocks."""
    if args.blocks is not None:
        refuse_few(args.blocks)
    return {key: getattr(args, key) for key in ("blocks", "sizes", "allocators", "workloads")}


def refuse_few(blocks):
    """Raises ValueError where no interval can come of so few blocks."""
    if blocks < stats.MIN_PAIRS:
        least = f"at least {stats.MIN_PAIRS} are needed for a 95 % interval"
        raise ValueError(f"--blocks {blocks}: {least}")


def _run(args):
    quick, chosen = not args.full, choice(args)
    for name in args.experiments:  # a fault of the last one is found before the first one is measured
        narrow(load_spec(name), quick=quick, **chosen)
    return max([show(ensure(name, quick=quick, **chosen)) for name in args.experiments])


def show(samples):
    """Prints the comparison with the baseline, and every failure; 1 where failures left a case no pair."""
    print(f"{samples.attrs['title']}: {samples.attrs['metric']}, each against {samples.attrs['baseline']}")
    table = stats.compare(samples, correction=samples.attrs["family"])
    if table.empty:
        print("no other side was measured, so nothing is compared")
        return tell_failed(samples, table)
    for shown in (table[SHOWN], stats.geometric_mean(table)):
        print(shown.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    if note := stats.family_note(table):
        print(note)
    return tell_failed(samples, table)


def tell_failed(samples, table):
    """Names every failure on stderr; 1 where failures left a compared case, or a side of it, no pair.

    Where there is one side only, runs count as pairs.
    """
    store.tell_errors(samples)
    failed = samples[~samples["status"].isin(["ok", "missing"])]
    kept = table[table["verdict"] != stats.NOT_MEASURED] if len(table) else samples[samples["status"] == "ok"]
    lost = sorted(set(failed["case"]) - set(kept["case"]))
    for case, label in sorted(_sides(failed) - _sides(kept)):
        if case not in lost and label != samples.attrs["baseline"]:
            lost.append(f"{label} in {case}")
    if lost:
        print(f"hakmem: no pair of runs of {', '.join(lost)} succeeded", file=sys.stderr)
    return 1 if lost else 0


def _sides(rows):
    return set(zip(rows["case"], rows["allocator"], strict=True))
