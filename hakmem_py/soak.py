"""A long run beside a reference: does the allocator drift in memory, faults or speed while a program lives?

Two processes of the bench live through the whole soak, pinned to one core. They take turns: one is stopped
while the other works. So both meet the same machine, and neither its other load nor its clock can look like
drift. Times are CPU times, which do not run while a process is stopped.
"""

import contextlib
import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from . import peers, progress, provenance, runner, stats, store, timeline, worker
from .slot import bench_slot
from .spec import Allocator, Case, Experiment
from .stops import started

LEAST_MINUTES = 0.1  # in less, windows are too short for a chunk of each side
WINDOWS = 30  # of a short soak, at least; a window is a minute where that gives as many
TURN_S = 1.0  # the longest turn of a side
GROWTH = 0.1  # percent an hour that memory must exceed to be called growing ...
GROWTH_BYTES = 1 << 20  # ... and so many bytes within the soak: less is a heap's last pages
SURE = 0.99  # ... by an interval of this confidence, for memory wanders, which makes intervals too narrow
PR_SET_PDEATHSIG = 1  # of prctl(2)
MOST_CHUNKS = 4096  # that one process of the bench can time
WORDS = ("segment", "label")  # texts that a line must hold; numbers follow
NUMBERS = ("seconds", "cpu_ns", "ops", "rss_bytes", "minor_faults", "major_faults")
FOLDER = store.SAMPLES / "soak"


@dataclass(frozen=True)
class Plan:
    """What is soaked: its identity decides which earlier part counts when it is resumed."""

    minutes: float
    case: Case
    sides: dict  # label -> runner.Contender, the subject first
    core: int

    @property
    def window_s(self):
        return min(60.0, self.minutes * 60 / WINDOWS)

    @property
    def file(self):
        digests = "-".join(found.digest[:8] for found in self.sides.values())
        return FOLDER / f"{self.case.name}-{digests}-{provenance.host()}-{self.window_s:g}s.jsonl"


def soak(minutes=1.0, workload="large_ws", beside="system", *, folder=FOLDER, wait_s=0.0):
    """Windows of a soak as a DataFrame, after running what is missing of it; see `windows`.

    An interrupted soak goes on in new processes: a new segment, which has a level and a warm-up of its own.
    minutes: of both processes together. beside: the allocator of the other process.
    attrs: live_bytes (of the workload's blocks at their peak), subject, beside.
    """
    plan = _plan(minutes, workload, beside)
    file = Path(folder) / plan.file.name
    with bench_slot(f"soak of {workload}", wait_s):
        live, chunks = _probe(plan)
        rows, damaged = _read(file)
        if damaged:
            lines = "line was" if damaged == 1 else "lines were"
            print(f"hakmem: {file}: {damaged} damaged {lines} passed over", file=sys.stderr)
        done = _seconds(rows)
        if done < minutes * 60 - plan.window_s:
            _run(plan, file, chunks, done)
        else:
            print(f"hakmem: this soak was made earlier; to repeat it delete {file}", file=sys.stderr)
    facts = {"live_bytes": live, "subject": next(iter(plan.sides)), "beside": beside, "workload": workload}
    rows, _ = _read(file)
    table = windows(rows, plan.window_s) if len(rows) else rows
    if table.empty:
        raise RuntimeError(f"no window of {plan.window_s:g} s for both sides: ask for more minutes")
    table.attrs = facts
    return table


def _plan(minutes, workload, beside):
    if not LEAST_MINUTES <= minutes < math.inf:
        raise ValueError(f"--minutes {minutes:g} must be {LEAST_MINUTES} or more, and finite")
    if beside not in (known := peers.FOREIGN):
        raise ValueError(f"--beside {beside}: allowed: {', '.join(known)}")
    sides = tuple(Allocator(label, label) for label in ("hakmem", beside))
    case = Case(workload)
    found = runner.find_contenders(Experiment("soak", "Soak", "hakmem", sides, (case,)))
    for label, side in found.items():
        if side.missing:
            raise RuntimeError(f"{label} is not installed: {side.missing}")
    listed = runner.workloads(found["hakmem"].bench).items()
    able = [name for name, row in listed if row["threads"] == 1 and "malloc" in row["backends"]]
    if workload not in able:
        raise ValueError(f"--workload {workload}: a soak needs one of one thread: {', '.join(able)}")
    return Plan(minutes, case, found, max(os.sched_getaffinity(0)))


def _command(plan, side, chunk_iterations, chunks):
    fixed = ["--chunks", chunks, "--iterations", int(chunk_iterations) * chunks, "--cpu", plan.core]
    return list(map(str, [side.bench.bench, *side.arguments, *plan.case.arguments(1.0), *fixed]))


def _probe(plan):
    """(live bytes of the workload, iterations of a chunk: a quarter of a turn, longer in a long soak)."""
    subject = next(iter(plan.sides.values()))
    once = max(1, int(runner.workloads(subject.bench)[plan.case.workload]["iterations"] / 20))
    command = _command(plan, subject, once, 5)
    row = worker.run(command, subject.preload, subject.expect)
    if row["status"] != "ok":
        raise RuntimeError(f"the soak's workload does not run: {row['error']}")
    chunk_s = max(_turn_s(plan) / 4, plan.minutes * 60 / MOST_CHUNKS)
    iteration_ns = row["cpu_ns_per_op"] * row["ops"] / (5 * once)
    return row["live_peak_bytes"], max(1, chunk_s * 1e9 / iteration_ns)


def _turn_s(plan):
    return min(TURN_S, plan.window_s / 4)


# ---------------------------------------------------------------- running


def _run(plan, file, chunk_iterations, done):
    """Lets the sides take turns and appends what each chunk reports, until the soak is as long as planned."""
    file.parent.mkdir(parents=True, exist_ok=True)
    segment, start, said = f"{time.time():.0f}", time.monotonic(), 0.0
    with contextlib.ExitStack() as stack:
        stack.callback(print, file=sys.stderr)  # ends the line of progress, whatever ends the soak
        living = {
            label: stack.enter_context(_living(plan, side, chunk_iterations))
            for label, side in plan.sides.items()
        }
        while (passed := time.monotonic() - start) + done < plan.minutes * 60:
            for label, process in living.items():
                rows = _turn(process, _turn_s(plan), label)
                stamp = {"segment": segment, "label": label, "seconds": time.monotonic() - start}
                store.append_lines(file, [row | stamp for row in rows])
            if passed - said > progress.EVERY_S:
                said = passed
                text = f"soak: {progress.clock(done + passed)} of {progress.clock(60 * plan.minutes)}"
                print(f"\r{text:60}", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _living(plan, side, chunk_iterations):
    """The bench as a stopped process that reports its chunks as they end; killed at the end."""
    env = worker.ENVIRONMENT | ({"LD_PRELOAD": side.preload} if side.preload else {})
    command = [*_command(plan, side, chunk_iterations, MOST_CHUNKS), "--stream"]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with started(command, env=env, preexec_fn=_end_with_parent, **pipes) as process:
        process.send_signal(signal.SIGSTOP)
        os.set_blocking(process.stderr.fileno(), False)
        yield process
        process.kill()
        process.communicate()


def _end_with_parent():
    """In the child: it dies with its parent. Else a killed soak would leave a stopped process for ever."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _turn(process, seconds, label):
    """Lets a stopped process work for so long; returns what it reported. Raises RuntimeError if it ended."""
    process.send_signal(signal.SIGCONT)
    time.sleep(seconds)
    process.send_signal(signal.SIGSTOP)
    lines = (process.stderr.read() or b"").splitlines()  # whole ones: a short write to a pipe is atomic
    if process.poll() is not None:
        last = lines[-1].decode(errors="replace") if lines else f"exit status {process.returncode}"
        raise RuntimeError(f"the soak of {label} ended by itself: {last}")
    return [json.loads(line) for line in lines]


# ---------------------------------------------------------------- reading


def _read(file):
    """(rows of a soak's file, one per chunk; how many lines are no row: cut short by a kill, or damaged)."""
    lines = [line for line in file.read_bytes().split(b"\n") if line] if file.exists() else []
    rows = [row for row in map(_row, lines) if row]
    return pd.DataFrame(rows), len(lines) - len(rows)


def _row(line):
    """What a line says of a chunk; None where something is missing."""
    try:
        row = json.loads(line)
        whole = all(0 <= row[name] < math.inf for name in NUMBERS) and row["ops"] > 0
        return row if whole and all(row[name] and isinstance(row[name], str) for name in WORDS) else None
    except (ValueError, TypeError, LookupError, RecursionError):  # no JSON or UTF-8; no object; not all of it
        return None


def _seconds(rows):
    return float(rows.groupby("segment")["seconds"].max().sum()) if len(rows) else 0.0


def windows(rows, window_s):
    """One row per window and side, where both sides worked: segment, label, minutes (middle), ns_per_op,
    rss_bytes (medians of its chunks), ops, minor_faults, major_faults (within it)."""
    rows = rows.assign(
        window=(rows["seconds"] // window_s).astype(int), ns_per_op=rows["cpu_ns"] / rows["ops"]
    )
    life = rows.groupby(["segment", "label"])[["minor_faults", "major_faults"]]
    rows[["minor_faults", "major_faults"]] = life.diff().fillna(0)
    table = rows.groupby(["segment", "label", "window"], as_index=False).agg(
        ns_per_op=("ns_per_op", "median"), rss_bytes=("rss_bytes", "median"), ops=("ops", "sum"),
        minor_faults=("minor_faults", "sum"), major_faults=("major_faults", "sum"),
    )  # fmt: skip
    lengths = table.groupby("segment")["window"].max() + 1  # in windows; segments follow each other
    middle = table["segment"].map(lengths.cumsum() - lengths) + table["window"] + 0.5
    table = table.assign(minutes=middle * window_s / 60)
    both = table.groupby(["segment", "window"])["label"].transform("size") == 2
    return table[both].reset_index(drop=True)


def summary(table):
    """Drifts of subject, companion and ratio with intervals: percent within the soak, and an hour."""
    sides = (table.attrs["subject"], table.attrs["beside"])
    hours = _hours(table)
    rows = []
    for quantity in ("ns_per_op", "rss_bytes"):
        wide = table.pivot(index=["segment", "minutes"], columns="label", values=quantity).reset_index()
        series = {side: (wide[side], None) for side in sides} | {"ratio": (wide[sides[0]], wide[sides[1]])}
        for name, (subject, other) in series.items():
            x = timeline.drift(wide["minutes"], subject, other, wide["segment"])
            rows.append(
                (quantity, name, x.slope * hours, x.low * hours, x.high * hours, x.slope, x.n, x.steady)
            )
    columns = ["quantity", "of", "percent", "low", "high", "percent_an_hour", "n", "steady"]
    return pd.DataFrame(rows, columns=columns)


def grows(table):
    """Whether the subject's memory grows by more than GROWTH and, within the soak, GROWTH_BYTES, by an
    interval of SURE.

    In simulated hours without growth whose neighbouring minutes correlate by 0.9, 1 % are said to grow (0.97:
    6 %); a leak of 3 % an hour is seen beside such noise of 0.3 % in 19 of 20, one of 5 % beside 1 % in half.
    """
    side = table[table["label"] == table.attrs["subject"]]
    least = timeline.drift(side["minutes"], side["rss_bytes"], None, side["segment"], SURE).low
    return least > GROWTH and least / 100 * _hours(table) * side["rss_bytes"].median() > GROWTH_BYTES


def _hours(table):
    return table.groupby("segment")["minutes"].agg(np.ptp).sum() / 60


def rates(table):
    """Faults after the first window, and what is resident of the live bytes: one row per side.

    minor_faults, major_faults: events; a_million_ops, at_most: minor faults in a million operations with the
    upper end of their 95 % interval; utilisation: live bytes over resident bytes in the last window. Faults
    come in bursts: where counts of windows spread more than Poisson's law has it, by Pearson's chi-square
    over its degrees of freedom, so many faults count as one (quasi-Poisson, McCullagh & Nelder 1989).
    """
    rows = []
    for label, part in table.groupby("label", sort=False):
        later = part[part.groupby("segment").cumcount() > 0]
        ops, minor = int(later["ops"].sum()), int(later["minor_faults"].sum())
        busy = later[later["ops"] > 0]
        expected = minor * busy["ops"] / ops
        excess = ((busy["minor_faults"] - expected) ** 2 / expected).sum() / max(1, len(busy) - 1)
        burst = max(1.0, excess)
        rate, _, high = stats.rate_interval(minor / burst, ops / burst)
        use = table.attrs["live_bytes"] / part["rss_bytes"].iloc[-1]
        rows.append((label, ops, minor, int(later["major_faults"].sum()), 1e6 * rate, 1e6 * high, use))
    columns = ["label", "ops", "minor_faults", "major_faults", "a_million_ops", "at_most", "utilisation"]
    return pd.DataFrame(rows, columns=columns)


# ---------------------------------------------------------------- command line


def add_soak(sub):
    """`soak`; exit status 1 where the subject's memory `grows`."""
    sub.add_argument("--minutes", type=float, default=60.0, help="length of the soak (default 60)")
    sub.add_argument("--workload", default="large_ws", help="of the bench, of one thread (default large_ws)")
    sub.add_argument("--beside", default="system", help="allocator of the other process (default system)")
    sub.set_defaults(run=_soak)


def _soak(args):
    table = soak(args.minutes, args.workload, args.beside)
    for shown in (summary(table), rates(table)):
        print(shown.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    print("steady: the interval holds 0, as in a short soak it nearly always does")
    if not grows(table):
        return 0
    chance = "rss_bytes above; one soak in fifty may say so by chance"
    print(f"hakmem: the memory of {table.attrs['subject']} grows ({chance})", file=sys.stderr)
    return 1
