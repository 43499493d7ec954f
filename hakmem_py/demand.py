"""What a program asks of an allocator, read from a trace of it: sizes, lifetimes, live bytes, threads.

A block that is moved by realloc counts as two. Lifetimes are counted in bytes that the whole program took
meanwhile, as Barrett and Zorn do (PLDI 1993), because that does not depend on the recorder's own cost.
"""

import contextlib
import dataclasses
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from . import trace
from .spec import TRACE_SUFFIX
from .worker import last_line

REPLAYED_MB = 4000  # taken in one run of the replay, a second or two, which touches all pages
POINTS = 400  # of the curve of live bytes
SMALLEST = 16  # bytes of the first bin of sizes
_SHELL = re.compile(  # groups: what a shell does not hand on as it is, within "..." and unquoted
    r"""'[^']*'|\\.|"(?:\\.|[^"\\$`])*(?:"|([$`]))|((?<![^\s=])~|[|&;<>()$`*?[])""", re.DOTALL
)
_TAKES, _LEAVES = (1, 2, 3, 5), 4  # enum record_kind of native/bench/trace.h; a realloc is 4, then 5
_CHECK = np.uint64(49)  # CHECK_SHIFT of trace.h


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
    if "LD_PRELOAD" in env:
        raise ValueError(f"LD_PRELOAD in {text!r} is what a side sets: leave it out, and name the side")
    if asked := next((found[found.lastindex] for found in _SHELL.finditer(text) if found.lastindex), None):
        raise ValueError(f"{asked} in {text!r} is for a shell: put it into '...', or write sh -c '...'")
    return env, words


@contextlib.contextmanager
def recorded(text, calls=trace.RECORDS):
    """[Trace] of the processes that a command line runs, that with the most calls first.

    calls: the most that are recorded of each. The files are gone afterwards. Raises ValueError where the
    program cannot be run, ends with an error or allocates nothing.
    """
    env, words = command(text)
    with tempfile.TemporaryDirectory(prefix="hakmem-demand-") as folder, tempfile.TemporaryFile() as said:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": said}
        status, traces = trace.record(words, Path(folder), calls, env, patient=False, **quiet)
        if status:
            said.seek(0)
            last = last_line(said.read().decode(errors="replace"))
            raise ValueError(f"{text} ended with status {status} in {Path.cwd()}: {last}".rstrip(": "))
        if not traces or not traces[0].records:
            raise ValueError(f"{words[0]} allocates nothing, or is static or set-uid and takes no library")
        named = Path(folder, f"calls of {traces[0].program}{TRACE_SUFFIX}")
        yield [dataclasses.replace(traces[0], path=traces[0].path.rename(named)), *traces[1:]]


def blocks(path):
    """One row a block: size (bytes), taken and given (numbers of records; -1: never), lifetime (bytes taken
    meanwhile; infinite where it was never given), elsewhere (given by another thread than took it).

    attrs: program, threads; records, of which a realloc has two, and calls, of which it is one; lost (calls
    that were made, but not recorded). Raises ValueError for a file that is no trace or is damaged.
    """
    head = trace.read_header(path)
    if not head.records:
        raise ValueError(f"{path} holds no call: record a program that allocates")
    words = np.fromfile(path, "<u8", 2 * head.records, offset=trace.HEADER_BYTES)
    first, second = words[0::2], words[1::2]
    kind, size = second >> np.uint64(46) & np.uint64(7), (second & np.uint64((1 << 40) - 1)).astype(float)
    cut = len(words) != 2 * head.records or (kind == 0).any()
    if cut or (_check(first, second) != second >> _CHECK).any():
        again = "record it again with hakmem trace -- PROGRAM"
        raise ValueError(f"{path} is damaged or was never finished: {again}")
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
    calls = head.records - int((kind == _LEAVES).sum())
    told = {"program": head.program, "records": head.records, "calls": calls}
    told["lost"] = round(head.lost * calls / head.records)
    found.attrs = told | {"threads": len(np.unique(thread))}
    return found


def _check(first, second):
    """What the check field of each record must hold, as record_check of trace.h has it."""
    mixed = first * np.uint64(0x9E3779B97F4A7C15) ^ second & ((np.uint64(1) << _CHECK) - np.uint64(1))
    return mixed * np.uint64(0xD6E8FEB86659FD93) >> _CHECK


def facts(table):
    """What `looked` shows at a glance: columns fact, value (in words); attrs as there."""
    curve, told = live(table), table.attrs
    missing = f" of {told['calls'] + told['lost']:,}, its beginning" if told["lost"] else ""
    its = (told["calls"] + told["lost"]) / told["all_calls"]
    others = f"; of {told['processes']} processes it made {its:.1%} of the calls"
    rows = [
        ("program", told["program"] + (others if told["processes"] > 1 else "")),
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
    """What is live over the records: records (so far), live_mb, live_blocks; of each stretch, the most."""
    records, ended = table.attrs["records"], table["given"] >= 0
    curves = []
    for weight in (table["size"].to_numpy(), np.ones(len(table))):
        steps = np.zeros(records)
        steps[table["taken"]] += weight
        steps[table.loc[ended, "given"]] -= weight[ended]
        curves.append(np.cumsum(steps))
    begins = np.unique(np.linspace(0, records, POINTS, endpoint=False).astype(int))
    most = [np.maximum.reduceat(curve, begins) for curve in curves]
    return pd.DataFrame({"records": begins, "live_mb": most[0] / 1e6, "live_blocks": most[1].astype(int)})


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


def looked(traces):
    """The tables facts, sizes, live and lifetimes of the first of these traces, in this order.

    attrs of facts: those of `blocks`; processes, and all_calls, which they made together, recorded or not.
    """
    table = blocks(traces[0].path)
    told, records = table.attrs, sum(one.records + one.lost for one in traces)
    told |= {"processes": len(traces), "all_calls": round(records * told["calls"] / told["records"])}
    return [form(table) for form in (facts, sizes, live, lifetimes)]


def passes(sizes, facts):
    """Options of a replay: for huge blocks fewer passes than `choose` of native/bench/main.c would make.

    sizes, facts: of `looked`.
    """
    together = facts.attrs["threads"] > 1
    usual = max(5, (1e5 if together else 1e6) / facts.attrs["calls"])
    most = REPLAYED_MB / sizes["megabytes"].sum()
    return () if most >= usual else ("--chunks", 1, "--iterations", max(1, int(most)))


def spent(replayed, runs, seen):
    """What its calls cost a program, by side: allocator, ns_per_call, share (of its CPU time), program_ms.

    replayed: runs of `ab.compare` on its trace; runs: on itself; seen: `facts`, which counted the calls. A
    call of another process is taken to cost as much.
    """
    good = [table[table["status"] == "ok"].groupby("allocator", sort=False) for table in (replayed, runs)]
    call, whole = (table["cpu_ns_per_op"].median() for table in good)
    share = call * seen.attrs["all_calls"] / whole
    found = pd.DataFrame({"ns_per_call": call, "share": share, "program_ms": whole / 1e6})
    return found.dropna().sort_values("ns_per_call").rename_axis("allocator").reset_index()


def fastest(time, baseline):
    """The side that takes least CPU time, which may be the baseline. time: `ab.judge`."""
    ahead = time[time["ratio"] < 1].nsmallest(1, "ratio")
    return next(iter(ahead["allocator"]), baseline)


def answers(time, memory, baseline, processes=1):
    """Who takes least CPU time, and who has the lowest peak, as headlines.

    time, memory: `ab.judge` of the same runs, by time and by peaks; one without an interval gives none.
    processes: of the program; a peak is the first one's.
    """
    from .estimates import bracketed  # scipy takes a second to load, which not all who read a trace need

    found = []
    peak = "peak memory" if processes == 1 else f"peak memory (first of {processes} processes only)"
    for table, what in (time, "CPU time"), (memory, peak):
        for _, row in table[table["high"].astype(float) < np.inf].nsmallest(1, "ratio").iterrows():
            lead = f"least {what}" if row["ratio"] < 1 else f"{baseline} takes the least {what}; next"
            interval = bracketed(row["ratio"], row["low"], row["high"])
            text = f"{lead}: {row['allocator']}, {interval} times that of {baseline}"
            found.append({"text": text, "verdict": row["verdict"]})
    return found
