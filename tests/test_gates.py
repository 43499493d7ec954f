"""What has been won in instructions and system calls stays won: upper bounds, counted, not timed.

callgrind counts the instructions of one thread; the difference of two runs that differ in their length alone
leaves out all that happens once.
"""

import json
import re
import shutil
import subprocess

import pytest
from preload import needs_valgrind, program

from hakmem_py import ROOT, build, instructions
from hakmem_py.oscalls import MEMORY_CALLS

FROZEN = {"HAKMEM_ACE_ENABLED": "1", "HAKMEM_ACE_FROZEN": "1", "HAKMEM_ACE_FAST_INTERVAL_MS": "20"}
LIFO_PAIR_MAX = 45.2  # instructions of malloc and free of a hit, and of the loop around them
OVER_FLOOR_MAX = 13.1  # of them, beyond what a bare list with neither checks nor classes takes
STEADY = {  # iterations after which nothing is asked of the kernel, and as many again and more
    "random_mixed": (400_000, 4_000_000),
    "large_ws": (800_000, 3_000_000),
    "json_var": (60_000, 600_000),
    "mixed": (1_000_000, 4_000_000),
}

needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed: apt install strace"
)


def preloaded(variant="release", **knobs):
    return {"LD_PRELOAD": str(build.build(variant).library), **knobs}


def bench(workload, iterations, warmup, *options):
    once = ("--chunks", "1", "--warmup", str(warmup), "--iterations", str(iterations))
    return [str(build.build("release").bench), "--workload", workload, *once, *options]


def lifo_pair(env, *options):
    """Instructions of a malloc and free of a cached block of 32 bytes, loop included, ACE left out."""
    runs = (bench("lifo", n, 100, "--size", "32", *options) for n in (100, 5_100))
    short, long = (instructions.total(run, env, first=True)[0] for run in runs)
    blocks = 5_000 * 100  # the workload holds 100 at a time
    return (long - short) / blocks


@needs_valgrind
def test_ace_costs_a_hit_nothing():
    absent = lifo_pair(preloaded("noace"))
    off = lifo_pair(preloaded())
    watching = lifo_pair(preloaded(**FROZEN))
    assert [off, watching] == pytest.approx([absent, absent], rel=5e-4)


@needs_valgrind
def test_the_readme_says_what_a_pair_costs():
    told = " ".join((ROOT / "README.md").read_text().split())
    ours, bare = lifo_pair(preloaded()), lifo_pair({}, "--backend", "floor")
    assert f"take {ours:.0f} instructions (32 bytes, last in, first out), {ours - bare:.0f} more than" in told
    assert (
        lifo_pair(preloaded(HAKMEM_PROFILE="hardened")) > 1000 and "under `hardened`, over a thousand" in told
    )


@needs_valgrind
@pytest.mark.parametrize("workload", ["lifo", "random_mixed"])
def test_a_hit_takes_few_instructions(workload):
    lengths = {"lifo": (20, 1_020), "random_mixed": (50_000, 250_000)}[workload]
    calls = {"lifo": 2, "random_mixed": 1}[workload]  # of those that are counted, a pair
    executable = build.build("release").bench
    ours, floor = (
        calls * instructions.per_op(executable, workload, env, *lengths, options=["--backend", backend])
        for backend, env in (("malloc", preloaded()), ("floor", {}))
    )
    assert ours - floor <= OVER_FLOOR_MAX
    assert workload != "lifo" or ours <= LIFO_PAIR_MAX


@needs_valgrind
@pytest.mark.parametrize("content", ["zeros", "text", "no_numbers"])
def test_what_a_block_holds_costs_its_resize_little(content):
    numbers, other = (
        instructions.total(
            [program("promises/vectors.c"), f"a_block_of_{what}_is_resized"], preloaded(), first=True
        )[0]
        for what in ("numbers", content)
    )
    assert other - numbers < 2000 * 100  # instructions, of 2000 resizes


@needs_valgrind
def test_an_aligned_hit_takes_few_instructions_more():
    plain, aligned = (
        instructions.total([program("contract.c"), promise], preloaded(), first=True)[0]
        for promise in ("a_block_comes_again", "an_aligned_block_comes_again")
    )
    assert aligned - plain < 2000 * 35  # instructions, of 2000 pairs


def told(stderr):
    """{call: times}, as the library counts its own."""
    return {call: int(times) for call, times in re.findall(r"(\w+)=(\d+)", stderr) if call in MEMORY_CALLS}


def strace(command, env, log, *options):
    """The tracer's lines, of all threads of the command, and the command as it ended."""
    add = [word for pair in env.items() for word in ("-E", "=".join(pair))]
    trace = ["strace", "-f", "-o", str(log), *options, *add]
    done = subprocess.run([*trace, *command], capture_output=True, text=True)
    if "ptrace" in done.stderr:
        pytest.skip("tracing is not allowed here: run it with the capability CAP_SYS_PTRACE")
    assert done.returncode == 0, done.stderr
    return log.read_text().splitlines(), done


def traced(command, env, log):
    """{call: times} as the kernel's tracer counts them and as the library says at the end."""
    lines, done = strace(command, env, log, "-c", "-e", f"trace={','.join(MEMORY_CALLS)}")
    rows = [line.split() for line in lines]
    seen = {row[-1]: int(row[3]) for row in rows if row and row[-1] in MEMORY_CALLS}
    return dict.fromkeys(MEMORY_CALLS, 0) | seen, told(done.stderr)


@needs_strace
def test_calls_of_the_kernel_are_counted(tmp_path):
    """What the loader and libc ask for is the same, however much is taken and given back."""
    env = {**preloaded(), "HAKMEM_SS_OS_STATS": "1", "HAKMEM_BACKGROUND": "0"}  # a thread's stack is libc's
    few, many = (
        traced([str(program("contract.c")), promise], env, tmp_path / "strace")
        for promise in ("free_of_null_does_nothing", "a_block_of_64_mib_is_like_any_other")
    )
    for call in MEMORY_CALLS:
        seen, counted = (many[i][call] - few[i][call] for i in (0, 1))
        assert seen == counted and (counted > 0 or call == "munmap")


@needs_strace
@pytest.mark.parametrize("workload", STEADY)
def test_a_steady_program_asks_nothing_of_the_kernel(workload, tmp_path):
    """The bench asks for its usage where its measured part begins and where it ends."""
    log, (warmup, more) = tmp_path / "strace", STEADY[workload]
    watched = "trace=" + ",".join(("getrusage", *MEMORY_CALLS))
    env = preloaded(HAKMEM_SS_OS_STATS="1")
    lines, done = strace(bench(workload, more, warmup), env, log, "-e", watched)
    assert json.loads(done.stdout)["malloc_from"].endswith("libhakmem.so")
    calls = [re.match(r"\d+ +(\w+)", line)[1] for line in lines if re.match(r"\d+ +\w+\(", line)]
    begin, end = (at for at, call in enumerate(calls) if call == "getrusage")
    assert calls[begin + 1 : end] == []
    before, counted = {call: calls[:begin].count(call) for call in MEMORY_CALLS}, told(done.stderr)
    assert counted.keys() == before.keys() and counted["mmap"] and counted["madvise"]
    assert all(counted[call] <= before[call] for call in before)  # the loader asks, too, and libc for a stack
