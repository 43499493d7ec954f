"""Instructions per operation, counted by callgrind: the noise-free companion of every time.

The count of one run includes start-up and tear-down; the difference of two runs that differ only in their
iterations does not. It repeats to about 0.01 % under any load (callgrind: Weidendorfer et al., ICCS 2004).
"""

import json
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd

from .build import build
from .worker import last_line


class InstructionsError(RuntimeError):
    """Counting was not possible; the message is one line and says what to do."""


def total(command, env=None, first=False):
    """(instructions that `command` executes in user space, what it printed).

    `env` is added to the environment, so `{"LD_PRELOAD": ...}` chooses an allocator. Counts all threads, or
    the `first` alone: others, such as ACE's, work by the clock, not by the program's progress. Raises
    InstructionsError.
    """
    if shutil.which("valgrind") is None:
        raise InstructionsError("valgrind is not installed: apt install valgrind (or conda install valgrind)")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "callgrind.out")
        valgrind = ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}"]
        if first:
            valgrind.append("--separate-threads=yes")
            out = Path(f"{out}-01")
        run = subprocess.run(
            [*valgrind, *map(str, command)], env={**os.environ, **(env or {})}, capture_output=True, text=True
        )
        if run.returncode or not out.exists():
            reason = last_line(run.stderr) or f"exit status {run.returncode}"
            raise InstructionsError(f"{command[0]} under valgrind: {reason}")
        lines = out.read_text(encoding="utf-8").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("totals:")), run.stdout


def per_op(bench, workload, env=None, n1=1_000, n2=5_000, *, options=(), first=False):
    """Instructions per operation (call, pair or grow) of a workload of the bench, its loop included.

    Two runs of one chunk, of `n1` and of `n2` iterations after `n1` iterations of warm-up; the difference of
    their counts over the difference of their operations. `options` are further arguments of the bench;
    `first`: as for `total`.
    """
    if n2 <= n1:
        raise InstructionsError(f"n2 = {n2} must be above n1 = {n1}: the difference of two runs is counted")
    counted = []
    for n in (n1, n2):
        fixed = ["--workload", workload, "--chunks", 1, "--warmup", n1]
        instructions, printed = total([bench, *fixed, "--iterations", n, *options], env, first)
        counted.append((instructions, json.loads(printed)["ops"]))
    (i1, ops1), (i2, ops2) = counted
    if ops2 <= ops1:
        raise InstructionsError(f"{workload} did {ops1} operations both times: it works in rounds, raise n2")
    return (i2 - i1) / (ops2 - ops1)


def each(ways):
    """{key: per_op(**arguments)} of {key: arguments}, side by side: nothing is timed."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(ways, pool.map(lambda way: per_op(**way), ways.values()), strict=True))


def of_builds(variants, cases):
    """One row per build: bytes of code, and instructions per operation of each workload under preload."""
    builds = {variant: build(variant) for variant in variants}
    ways = {
        (variant, case): {"bench": done.bench, "workload": case, "env": {"LD_PRELOAD": str(done.library)}}
        for variant, done in builds.items()
        for case in cases
    }
    table = pd.Series(each(ways)).unstack().loc[list(variants), list(cases)].rename_axis("build")
    table.insert(0, "code_bytes", [builds[variant].facts()["text_bytes"] for variant in table.index])
    return table
