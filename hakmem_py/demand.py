"""What a program asks of an allocator, read from a trace of it: sizes, lifetimes, live bytes, threads.

A block that is moved by realloc counts as two. Lifetimes are counted in bytes that the whole program took
meanwhile, as Barrett and Zorn do (PLDI 1993), because that does not depend on the recorder's own cost.
"""

import contextlib
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from . import trace
from .spec import TRACE_SUFFIX

CALLS = 2_000_000  # recorded at most, unless the user says another number
POINTS = 400  # of the curve of live bytes
SMALLEST = 16  # bytes of the first bin of sizes
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\$`])*"|\\.""")  # what a shell hands on as it is
_SHELL = re.compile(r"[|&;<>()$`*?]")
_TAKES, _GIVES = (1, 2, 3, 5), (4, 6)  # enum record_kind of native/bench/trace.h
_CHECK = np.uint64(49)  # CHECK_SHIFT of trace.h
_HEADER_BYTES = 64


def command(text):
    """(environment, words) of a command line as a shell would read it: NAME=VALUE before the program.

    Raises ValueError where it names no program, or asks for what only a shell can do.
    """
    try:
        words, env = shlex.split(text), {}
    except ValueError as error:
        raise ValueError(f"the command line {text!r} cannot be read: {error}") from None
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name, _, env[name] = words.pop(0).partition("=")
    if not words:
        raise ValueError(f"the command line {text!r} names no program")
    if asked := _SHELL.search(_QUOTED.sub("", text)):
        raise ValueError(f"{asked[0]} in {text!r} is for a shell: put it into '...', or write sh -c '...'")
    return env, words


@contextlib.contextmanager
def recorded(text, calls=CALLS):
    """Path of a trace of the program that a command line runs; of its processes, that with the most calls.

    calls: the most that are recorded. The file is gone afterwards. Raises ValueError where the program cannot
    be run, ends with an error or allocates nothing.
    """
    env, words = command(text)
    with tempfile.TemporaryDirectory(prefix="hakmem-demand-") as folder:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        status, traces = trace.record(words, Path(folder), calls, env, **quiet)
        if status:
            raise ValueError(f"{text} ended with status {status}: try it in a shell first")
        if not traces or not traces[0].records:
            raise ValueError(f"{words[0]} allocates nothing, or is static or set-uid and takes no library")
        named = Path(folder, f"calls of {traces[0].program}{TRACE_SUFFIX}")
        yield traces[0].path.rename(named)


def blocks(path):
    """One row a block: size (bytes), taken and given (number of the call; -1: never), lifetime (bytes taken
    meanwhile; infinite where it was never given), elsewhere (given by another thread than took it).

    attrs: program, calls (recorded), lost (made, but not recorded), threads. Raises ValueError for a file
    that is no trace or is damaged.
    """
    head = trace.read_header(path)
    words = np.fromfile(path, "<u8", 2 * head.records, offset=_HEADER_BYTES)
    first, second = words[0::2], words[1::2]
    kind, size = second >> np.uint64(46) & np.uint64(7), (second & np.uint64((1 << 40) - 1)).astype(float)
    if (
        len(words) != 2 * head.records
        or (kind == 0).any()
        or (_check(first, second) != second >> _CHECK).any()
    ):
        raise ValueError(
            f"{path} is damaged or was never finished: record it again with hakmem trace -- PROGRAM"
        )
    takes = np.isin(kind, _TAKES)
    address, thread = first & np.uint64((1 << 48) - 1), first >> np.uint64(48)
    order = np.argsort(address, kind="stable")
    here, after = order[:-1], order[1:]
    ends = (address[here] == address[after]) & takes[here] & ~takes[after]
    ended_by = np.full(len(kind), -1)
    ended_by[here[ends]] = after[ends]
    taken = np.flatnonzero(takes)
    given, clock = ended_by[taken], np.cumsum(np.where(takes, size, 0.0))
    found = pd.DataFrame({"size": size[taken], "taken": taken, "given": given})
    found["lifetime"] = np.where(given >= 0, clock[given] - clock[taken], np.inf)
    found["elsewhere"] = (given >= 0) & (thread[given] != thread[taken])
    told = {"program": head.program, "calls": head.records, "lost": head.lost}
    found.attrs = told | {"threads": len(np.unique(thread))}
    return found


def _check(first, second):
    """What the check field of each record must hold, as record_check of trace.h has it."""
    mixed = first * np.uint64(0x9E3779B97F4A7C15) ^ second & ((np.uint64(1) << _CHECK) - np.uint64(1))
    return mixed * np.uint64(0xD6E8FEB86659FD93) >> _CHECK


def facts(table):
    """What `blocks` shows at a glance: columns fact, value (in words); attrs as there."""
    curve, told = live(table), table.attrs
    missing = f" of {told['calls'] + told['lost']:,}, its beginning" if told["lost"] else ""
    rows = [
        ("program", told["program"]),
        ("calls recorded", f"{told['calls']:,}{missing}"),
        ("blocks taken", f"{len(table):,}, {table['size'].sum() / 1e6:,.1f} MB in all"),
        ("half of the blocks have at most", f"{table['size'].median():,.0f} bytes"),
        ("live at most", f"{curve['live_mb'].max():,.1f} MB, {curve['live_blocks'].max():,} blocks"),
        (
            "threads",
            f"{told['threads']}; {table['elsewhere'].mean():.1%} of the blocks were given by another",
        ),
        ("never given", f"{(table['given'] < 0).mean():.1%} of the blocks"),
    ]
    found = pd.DataFrame(rows, columns=["fact", "value"])
    found.attrs = told
    return found


def sizes(table):
    """Blocks by size, in doublings: at_most (bytes), blocks, megabytes, block_share, byte_share."""
    doubling = np.ceil(np.log2(table["size"].clip(lower=SMALLEST))).astype(int)
    bins = table.groupby(doubling)["size"].agg(["count", "sum"])
    bins = bins.reindex(range(bins.index.min(), bins.index.max() + 1), fill_value=0)
    found = pd.DataFrame({"at_most": 2**bins.index, "blocks": bins["count"], "megabytes": bins["sum"] / 1e6})
    found["block_share"] = bins["count"] / len(table)
    found["byte_share"] = bins["sum"] / bins["sum"].sum()
    return found.reset_index(drop=True)


def live(table):
    """What is live over the calls: calls (so far), live_mb, live_blocks; of each stretch, the most."""
    calls, ended = table.attrs["calls"], table["given"] >= 0
    curves = []
    for weight in (table["size"].to_numpy(), np.ones(len(table))):
        steps = np.zeros(calls)
        steps[table["taken"]] += weight
        steps[table.loc[ended, "given"]] -= weight[ended]
        curves.append(np.cumsum(steps))
    begins = np.unique(np.linspace(0, calls, POINTS, endpoint=False).astype(int))
    most = [np.maximum.reduceat(curve, begins) for curve in curves]
    return pd.DataFrame({"calls": begins, "live_mb": most[0] / 1e6, "live_blocks": most[1].astype(int)})


def lifetimes(table):
    """The share that has been given back by an age: columns of (blocks, bytes), age (bytes), share."""
    ages = 2.0 ** np.arange(4, max(5, np.log2(table["size"].sum()) + 1))
    order = np.argsort(table["lifetime"].to_numpy())
    reached = np.searchsorted(table["lifetime"].to_numpy()[order], ages, side="right")
    parts = []
    for what, weight in (("blocks", np.ones(len(table))), ("bytes", table["size"].to_numpy()[order])):
        share = np.concatenate([[0.0], np.cumsum(weight)])[reached] / weight.sum()
        parts.append(pd.DataFrame({"of": what, "age": ages, "share": share}))
    return pd.concat(parts, ignore_index=True)


def looked(path):
    """The tables facts, sizes, live and lifetimes of a trace, in this order."""
    table = blocks(path)
    return [form(table) for form in (facts, sizes, live, lifetimes)]


def spent(replayed, runs, seen):
    """What its calls cost a program, by side: allocator, ns_per_call, share (of its CPU time), program_ms.

    replayed: runs of `ab.compare` on its trace; runs: on itself; seen: `facts`, which counted the calls. The
    replay also touches each block's pages for the first time.
    """
    good = [table[table["status"] == "ok"].groupby("allocator", sort=False) for table in (replayed, runs)]
    call, whole = (table["cpu_ns_per_op"].median() for table in good)
    share = call * (seen.attrs["calls"] + seen.attrs["lost"]) / whole
    found = pd.DataFrame({"ns_per_call": call, "share": share, "program_ms": whole / 1e6})
    return found.dropna().rename_axis("allocator").reset_index()


def answers(time, memory, baseline):
    """Who takes least CPU time, and who has the lowest peak, as headlines.

    time, memory: `ab.judge` of the same runs, by time and by peaks; one without a ratio gives no headline.
    """
    from .estimates import bracketed  # scipy takes a second to load, which not all who read a trace need

    found = []
    for table, what in (time, "CPU time"), (memory, "peak memory"):
        for _, row in table.dropna(subset="ratio").nsmallest(1, "ratio").iterrows():
            lead = f"least {what}" if row["ratio"] < 1 else f"{baseline} takes the least {what}; next"
            interval = bracketed(row["ratio"], row["low"], row["high"])
            text = f"{lead}: {row['allocator']}, {interval} times that of {baseline}"
            found.append({"text": text, "verdict": row["verdict"]})
    return found
