"""One sample: one fresh process of the bench, timed by itself, its result read back as a dict.

The bench is spawned directly, never through Python, in an environment of its own: what the user's shell sets
(MALLOC_ARENA_MAX, LD_PRELOAD, HAKMEM_...) does not reach it. LD_PRELOAD is set for this child alone.

Bench and libraries are copied anew for every process. Where the kernel puts a file in memory may decide a
case's speed; processes of one file would then share a single draw out of many, and their interval would be
too narrow. What a killed run leaves behind is removed by build.py.
"""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import fmean, median, stdev

from . import store
from .build import BUILDS
from .stops import STOPS, started

MOST_SAID = 300  # characters of what a program said that one line of an error quotes
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
MEASURED = (
    "ops", "elapsed_ns", "cpu_ns", "minor_faults", "major_faults", "context_switches", "rss_start_bytes",
    "rss_end_bytes", "peak_rss_bytes", "live_peak_bytes", "thp_bytes",
)  # fmt: skip
SETTINGS = {
    "workload", "size", "threads", "slots", "backend", "malloc_from", "unit", "seed", "cpu",
    "slowdown_percent", "chunk_ns", "chunk_cpu_ns",
}  # fmt: skip
ANEW = "the same command measures it again"
NO_HISTORY = "ace: the history cannot be written"  # how the library says it


def run(command, preload="", expect=None, env=(), timeout_s=60.0):
    """Runs the bench once and returns the columns of its sample, status first.

    preload: value of LD_PRELOAD. expect: the library that must answer malloc. env: further variables.
    A run that fails is a row like any other: status timeout, crashed (by a signal) or error, and the reason.
    A run that was ended from outside is no row: InterruptedError (Ctrl-C raises nothing in a thread).
    """
    with _copies(command, preload) as (command, preloads, folder):
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        how["close_fds"] = False  # spawned by vfork, so the gap is short; and the bench slot is inherited
        start = time.perf_counter_ns()
        try:
            with started(command, env=ENVIRONMENT | dict(env) | preloads, **how) as child:
                said = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            wall_ns = time.perf_counter_ns() - start
            return {"status": "timeout", "error": f"no result within {timeout_s:g} s", "wall_ns": wall_ns}
        wall_ns = time.perf_counter_ns() - start
        done = subprocess.CompletedProcess(command, child.returncode, *said)
        return _outcome(done, expect and Path(folder, expect.name), wall_ns) | {"wall_ns": wall_ns}


@contextlib.contextmanager
def _copies(command, preload):
    """(command, variables that preload, folder), with copies in the folder of our bench and all libraries."""
    command, libraries = list(map(str, command)), preload.split(":") if preload else []
    with contextlib.ExitStack() as stack:
        try:
            BUILDS.mkdir(parents=True, exist_ok=True)
            scratch = tempfile.TemporaryDirectory(dir=BUILDS, prefix="run-", ignore_cleanup_errors=True)
            folder = stack.enter_context(scratch)
            if BUILDS in Path(command[0]).parents:
                command[0] = shutil.copy(command[0], folder)
            copies = [shutil.copy(library, folder) for library in libraries]
        except FileNotFoundError:  # a file to copy is missing, which the error names
            raise
        except OSError as error:
            raise store.cannot_write(BUILDS, error) from None
        beside = ":".join(dict.fromkeys(str(Path(library).parent) for library in libraries))
        preloads = {"LD_PRELOAD": ":".join(copies), "LD_LIBRARY_PATH": beside} if preload else {}
        yield command, preloads, folder


def refusal(said):
    """The first line in which the library says that it does not take a setting, or that it cannot write the
    history that was asked for; "" for none."""
    reasons = rf"HAKMEM_.* allowed:|placement_node .* is not a node|{NO_HISTORY}"
    found = re.search(rf"^hakmem: ((?:{reasons}).*)", said, re.MULTILINE)
    return found[1] if found else ""


def signal_name(number):
    """SIGSEGV; signal 40 for one without a name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def last_line(said):
    """What a program said last, for one line of an error: what can be shown of it, and not without end."""
    line = said.strip().rpartition("\n")[2][: MOST_SAID + 1]
    line = "".join(letter if letter.isprintable() else " " for letter in line).strip()
    return line if len(line) <= MOST_SAID else f"{line[:MOST_SAID]} ..."


def _outcome(done, expect, wall_ns):
    last = last_line(done.stderr)
    if -done.returncode in STOPS:  # by which no allocator ends its program
        name = signal_name(-done.returncode)
        raise InterruptedError(f"the bench was ended from outside ({name}): run the same command again")
    if done.returncode == -signal.SIGKILL:
        return {
            "status": "crashed",
            "error": f"{store.KILLED} from outside, as where memory is short; {ANEW}",
        }
    if done.returncode < 0:
        return {"status": "crashed", "error": f"{signal_name(-done.returncode)}: {last}".rstrip(": ")}
    if done.returncode:
        return {"status": "error", "error": last or f"exit status {done.returncode}"}
    if refused := refusal(done.stderr):
        return {"status": "error", "error": refused}
    try:
        result = json.loads(done.stdout)
    except ValueError:
        return {"status": "error", "error": "the bench printed no JSON object"}
    if expect and Path(result["malloc_from"]) != expect:
        came = Path(result["malloc_from"]).name
        return {"status": "error", "error": f"malloc was answered by {came}, not by {expect.name}"}
    if not _possible(result, wall_ns):
        told = f"{result['elapsed_ns'] / 1e9:.3g} s timed in a process that lived {wall_ns / 1e9:.3g} s"
        return {"status": "error", "error": f"{store.JUMPED}: {told}; {ANEW}"}
    return {"status": "ok", "error": ""} | _columns(result)


def _possible(result, wall_ns):
    """Whether time went forward in every chunk, and in all no further than measured from outside."""
    return min(*result["chunk_ns"], *result["chunk_cpu_ns"]) > 0 and 0 < result["elapsed_ns"] <= wall_ns


def _columns(result):
    """A bench's result in the columns of a sample; what has no column goes into `extra` as JSON."""
    wall, cpu = result["chunk_ns"], result["chunk_cpu_ns"]
    extra = {key: value for key, value in result.items() if key not in SETTINGS and key not in MEASURED}
    spread = stdev(cpu) if len(cpu) > 1 else 0.0
    extra |= {"chunks": len(cpu), "cpu_mean_ns": fmean(cpu), "cpu_sd_ns": spread}
    extra["cpu_late_ns"] = fmean(cpu[len(cpu) // 2 :])
    if "chunk_side" in result:
        extra |= {"chunk_ns": wall, "chunk_cpu_ns": cpu}
    return {name: int(result[name]) for name in MEASURED} | {
        "size_bytes": result["size"],
        "threads": result["threads"],
        "slots": result["slots"],
        "unit": result["unit"],
        "ns_per_op": median(wall),
        "cpu_ns_per_op": median(cpu),
        "min_ns_per_op": min(wall),
        "min_cpu_ns_per_op": min(cpu),
        "extra": json.dumps(extra),
    }
