"""The gate for contributors: this working tree against a commit, by instructions and by interleaved time.

Instructions are counted by callgrind and repeat to 0.01 %, so the smallest addition to the hot path shows.
Time is measured in randomised blocks, both sides in the same bench, in several layouts of the same code,
because moving a function can matter more than the change itself. So the build is the unit of the verdict.
"""

import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

import pandas as pd

from . import ROOT, build, instructions, provenance, runner, spec, stats, store, timeline
from .progress import Progress
from .slot import bench_slot

GATE = {  # workload -> iterations of the two counted runs; their difference is steady state
    "lifo": (200, 1_000),
    "interleaved": (200, 1_000),
    "random_mixed": (20_000, 100_000),
    "frag": (2, 6),
    "json_var": (2_000, 10_000),
}
LAYOUTS = 5
NOISE = 0.0005  # relative, of an instruction count; a larger difference is a change of the code
TIMED = ["case", "ratio", "low", "high", "builds", "n", "verdict", "needs_builds", "status"]
COUNTED = ["case", "instructions_base", "instructions", "more"]
TIMED_SCALE = 0.2  # of a workload: some 50 ms


class CheckError(RuntimeError):
    """There is nothing to compare with; one line that says why."""


def check(base="HEAD", blocks=60, workloads=tuple(GATE), folder=None):
    """The tree against the commit `base`, one row per workload. Columns: case, instructions_base,
    instructions (per operation), more (relative), ratio (tree time / base time) with low and high, builds, n,
    verdict (GO: the tree is faster), needs_builds, status.

    blocks: randomised blocks, divided among the layouts; to be chosen beforehand, because a check that is
    made longer until it decides errs more often. Samples are kept in `folder`, so that a second call measures
    only what is missing. No rows where native/ is the same. Raises CheckError, BuildError.
    """
    folder = Path(folder or store.SAMPLES / "check")
    with bench_slot("check"), tempfile.TemporaryDirectory(prefix="hakmem-base-") as scratch:
        native = _sources(base, Path(scratch))
        if build.source_hash(native) == build.source_hash():
            return pd.DataFrame(columns=[*COUNTED, *TIMED[1:]])
        names = ["release", *(f"release@{k}" for k in range(1, LAYOUTS))]
        try:
            base = build.build_all(names, native)
        except build.BuildError as error:
            raise CheckError(f"the commit {base} does not build, choose another --base: {error}") from None
        tree = build.build_all(names, build.NATIVE)
        sides = [{"base": base[name], "tree": tree[name]} for name in names]
        counts = _counts(sides[0], workloads)
        times = _times(sides, blocks, workloads, folder)
    return counts.merge(times, on="case")


def _sources(commit, scratch):
    """native/ as it was in a commit, unpacked into a folder."""
    with tarfile.open(fileobj=BytesIO(_git("archive", "--end-of-options", commit, "native"))) as archive:
        archive.extractall(scratch, filter="data")
    return scratch / "native"


def _git(*arguments):
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True)
    if done.returncode:
        said = done.stderr.decode().strip().splitlines() or ["git failed"]
        asked = ["git", "-C", ROOT, "rev-parse", "--is-shallow-repository"]
        shallow = subprocess.run(asked, capture_output=True).stdout.strip() == b"true"
        more = "; the clone is shallow, get older commits by: git fetch --unshallow" if shallow else ""
        raise CheckError(f"git {arguments[0]}: {said[0]}{more}")
    return done.stdout


def _counts(sides, workloads):
    """Instructions per operation of both sides, each preloaded into the tree's bench."""
    bench = sides["tree"].bench
    rows = []
    for name in workloads:
        base, tree = (
            instructions.per_op(bench, name, {"LD_PRELOAD": str(sides[side].library)}, *GATE[name])
            for side in ("base", "tree")
        )
        more = tree / base - 1
        rows.append({"case": name, "instructions_base": base, "instructions": tree, "more": more})
    return pd.DataFrame(rows, columns=COUNTED)


def history(since, workloads=tuple(GATE), folder=None):
    """Instructions per operation at commit `since`, at each later one that touched native/, and in the tree.

    Columns label (the commit), case, value, in order of time, as timeline.change_points takes them. All are
    preloaded into the tree's bench. A commit that does not build is named on stderr and left out. Counts are
    kept in `folder`, so that a call that was stopped goes on from there.
    """
    file = Path(folder or store.SAMPLES / "check", "history.json")
    kept = store.read_json(file) if file.exists() else {}
    kept = {key: count for key, count in kept.items() if isinstance(count, float)}  # others are counted anew
    later = _git("log", "--reverse", "--format=%h", f"{since}..HEAD", "--", "native").decode().split()
    place = provenance.libc_sha256(), provenance.machine()  # what else decides counts
    tree, rows, progress = build.build(), [], Progress("history", len(later) + 2, "commits")
    for i, commit in enumerate([since, *later, None]):
        try:
            with tempfile.TemporaryDirectory(prefix="hakmem-base-") as scratch:
                done = build.build("release", _sources(commit, Path(scratch)) if commit else build.NATIVE)
        except build.BuildError as error:
            print(f"hakmem: {commit} does not build: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        for name in workloads:
            key = " ".join(map(str, (name, *GATE[name], tree.hash, done.hash, *place)))
            if key not in kept:
                env = {"LD_PRELOAD": str(done.library)}
                kept[key] = instructions.per_op(tree.bench, name, env, *GATE[name])
                store.save_json(file.parent, file.name, kept)
            rows.append((commit or "the tree", name, kept[key]))
        progress.step(i)
    progress.end()
    return pd.DataFrame(rows, columns=["label", "case", "value"])


def _times(layouts, blocks, workloads, folder):
    """Tree time over base time of each workload, and the verdict on the tree."""
    experiment = spec.read_spec(
        {
            "experiment": {
                "name": "check",
                "title": "Tree against commit",
                "baseline": "base",
                "blocks": blocks,
            },
            "allocator": [{"label": label, "use": "hakmem"} for label in ("base", "tree")],
            "case": [{"workload": name, "threads": 1, "scale": TIMED_SCALE} for name in workloads],
        }
    )
    run_ids = set()
    for k, sides in enumerate(layouts):
        found = runner.find_contenders(experiment, sides)
        mine = range(k, blocks, len(layouts))
        run_ids |= runner.measure(experiment, False, found, folder, mine).run_ids
    samples = runner.samples_of(experiment, folder, run_ids)
    parts = [part for _, part in samples.groupby(samples["block"] % len(layouts))]
    return stats.compare_builds(parts, experiment.baseline)[TIMED]


def verdict(table):
    """(passed, one line) of a check's table. Failed, certainly slower or more instructions: does not pass."""
    if table.empty:
        return True, "native/ is the same on both sides, nothing to measure"
    slower = table.loc[table["verdict"] == "NO-GO", "case"].tolist()
    untimed = table.loc[table["n"].fillna(0) < 2, "case"].tolist() if "n" in table else []
    longer = table.loc[table["more"] > NOISE, "case"].tolist()
    broken = table.loc[table["status"] != "ok", "case"].tolist()
    faults = [("failed", broken), ("slower", slower), ("more instructions", longer)]
    said = [f"{what} in {', '.join(cases)}" for what, cases in faults if cases]
    timed = (
        f"time not measured in {', '.join(untimed)}: more --blocks" if untimed else "nothing certainly slower"
    )
    return not said, "; ".join(said) or f"{timed}, and no more instructions"


def add_check(sub):
    sub.add_argument("--base", default="HEAD", help="commit to compare with; default HEAD")
    sub.add_argument("--blocks", type=int, default=60, help="randomised blocks; default 60")
    sub.add_argument("--workloads", nargs="+", default=list(GATE), choices=GATE, metavar="NAME")
    sub.add_argument(
        "--since", metavar="COMMIT", help="show instead where instruction counts changed since this commit"
    )
    sub.set_defaults(run=_run)


def _show_history(table):
    """Prints the counts of each commit, and names what changed between which two."""
    wide = table.pivot(index="label", columns="case", values="value").loc[list(table["label"].unique())]
    print(wide.to_string(float_format=lambda value: f"{value:.5g}"))
    for case, part in table.groupby("case", sort=False):
        for text in timeline.change_points(part, noise=0)["text"]:
            print(f"{case}: {text}")


def _run(args):
    names = list(dict.fromkeys(args.workloads))  # one that is named twice is one
    if args.since:
        return _show_history(history(args.since, names))
    table = check(args.base, args.blocks, names)
    if len(table):
        print(table.to_string(index=False, float_format=lambda value: f"{value:.5g}"))
    passed, line = verdict(table)
    print(f"{'PASS' if passed else 'FAIL'} against {args.base}: {line}")
    return 0 if passed else 1
