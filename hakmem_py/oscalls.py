"""Calls of mmap, munmap and madvise in the steady state, as the allocator counts its own."""

import json
import subprocess

from . import build, worker

MEMORY_CALLS = ("mmap", "munmap", "madvise")


def steady(workload="random_mixed", scale=30.0):
    """(calls, operations) in the steady state: a run at 1 + scale minus a run at 1, so that start-up cancels.

    Raises RuntimeError where the bench fails.
    """
    built = build.build("release")
    short, long = (_counted(built, workload, size) for size in (1.0, 1.0 + scale))
    return max(0, long[0] - short[0]), long[1] - short[1]


def _counted(built, workload, scale):
    command = [built.bench, "--workload", workload, "--scale", f"{scale:g}"]
    env = worker.ENVIRONMENT | {"LD_PRELOAD": str(built.library), "HAKMEM_SS_OS_STATS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"bench {workload} failed: {done.stderr.strip()}")
    said = dict(word.split("=") for word in done.stderr.splitlines()[-1].split() if "=" in word)
    return sum(int(said[call]) for call in MEMORY_CALLS), json.loads(done.stdout)["ops"]
