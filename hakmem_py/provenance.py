"""Where numbers come from: a registry of facts about machine, system, compiler, repository.

A fact is a function without arguments that returns one value; adding one is adding a function. What only the
runner knows (builds, peers, the spec) is passed in by it.
"""

import functools
import hashlib
import html
import json
import os
import platform
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from . import ROOT, store

FACTS = {}  # name -> function
STEP_S = 2.0  # of the clock: larger than the corrections that keep it right


def fact(function):
    """Registers a function as a fact of the same name."""
    FACTS[function.__name__] = function
    return function


def host():
    """The machine's name: a block in the statistics of campaigns."""
    return socket.gethostname()


@fact
def machine():
    return f"{_cpu_model()}, {os.cpu_count()} cores, {_memory_gb():.0f} GB, {platform.machine()}"


@fact
def kernel():
    return f"{platform.system()} {platform.release()}"


@fact
def distribution():
    return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")


@fact
def libc():
    return " ".join(platform.libc_ver())


@functools.cache
def libc_sha256():
    """Hash of this machine's C library, which is "system" in comparisons."""
    mapped = (line.split()[-1] for line in _read("/proc/self/maps").splitlines())
    path = next((path for path in mapped if Path(path).name.startswith("libc.so")), None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else "unknown"


@fact
def governor():
    return _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "not told by this machine"


@fact
def huge_pages():
    return _chosen(_read("/sys/kernel/mm/transparent_hugepage/enabled"))


@fact
def address_randomisation():
    return _read("/proc/sys/kernel/randomize_va_space")


@fact
def python():
    return f"{platform.python_implementation()} {platform.python_version()}"


@fact
def packages():
    names = ("numpy", "scipy", "pandas", "plotly", "pyarrow", "statsmodels", "cffi", "papermill")
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)


@fact
def commit():
    """The commit's hash, with "+ changes" where the working tree differs from it."""
    top, head = _git("rev-parse", "--show-toplevel", "--short=12", "HEAD").splitlines()
    if Path(top) != ROOT:
        return "no repository"
    return head + (" + changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


@fact
def lock():
    """Hash of uv.lock: which packages an environment made by it holds."""
    path = ROOT / "uv.lock"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.exists() else "none"


def load1():
    """Load average of the last minute: how busy the machine is beside us."""
    return os.getloadavg()[0]


def watch_clock(before=None):
    """Time of day minus the monotonic clock, in s; a step of it since `before` is named on stderr."""
    now = time.time() - time.monotonic()
    if before is not None and abs(now - before) > STEP_S:
        print(
            f"hakmem: the clock of this machine was set by {now - before:+.0f} s. Durations are right, "
            "but started_at of samples before and after it cannot be compared",
            file=sys.stderr,
        )
    return now


def collect(**more):
    """Every fact as a dict by name; `more` is added. A fact that cannot be had says so instead of failing."""
    return {"host": host()} | {name: _value(function) for name, function in FACTS.items()} | more


def save(folder, facts):
    """Writes facts to folder/provenance-ID.json and returns the ID, a hash of their content."""
    text = json.dumps(facts, sort_keys=True, default=str)
    identity = hashlib.sha256(text.encode()).hexdigest()[:12]
    name = f"provenance-{identity}.json"
    path = Path(folder) / name
    if not path.exists() or not store.read_json(path):
        store.save_json(folder, name, facts)
    return identity


def read(folder, identities):
    """The saved facts of these IDs, those that are there."""
    paths = [Path(folder) / f"provenance-{identity}.json" for identity in identities]
    found = [store.read_json(path) for path in paths if path.exists()]
    return [facts for facts in found if facts]


def footer(samples=None, *others, facts=None, further=(), **parameters):
    """The last cell of a notebook: what its numbers came from, as a table.

    samples: what `ensure` returned; others: samples of further experiments or of `ab.compare`, a line each.
    Facts are those of the samples; without any, `facts` that were kept with other results, or else those of
    this machine now. Of further sets of facts (the samples', or those in `further`) only what differs from
    the first set is shown. parameters: the notebook's own.
    """
    folder = samples.attrs.get("folder") if samples is not None else None
    known = read(folder, samples["provenance"].dropna().unique()) if folder else []
    rows = [("parameters", _shown(parameters))] if parameters else []
    if samples is not None:
        rows += list(_summary(samples))
    rows += [
        (f"beside: {_name(other)}", ", ".join(" ".join(fact) for fact in _summary(other))) for other in others
    ]
    first, *different = [*(known or [facts or collect()]), *further]
    rows += [(name, _shown(value)) for name, value in first.items()]
    for other in different:
        rows += [
            (f"{name} of others", _shown(value)) for name, value in other.items() if value != first.get(name)
        ]
    return Footer([*rows, ("written", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")])


class Footer:
    """Rows of name and value that a notebook shows as a table, a terminal as lines."""

    def __init__(self, rows):
        self.rows = rows

    def __repr__(self):
        return "\n".join(f"{name:22} {value}" for name, value in self.rows)

    def _repr_html_(self):
        pairs = [(html.escape(name.replace("_", " ")), html.escape(value)) for name, value in self.rows]
        rows = "".join(f"<tr><th scope='row'>{name}</th><td>{value}</td></tr>" for name, value in pairs)
        return f"<table class='provenance'>{rows}</table>"


def _name(samples):
    return samples["experiment" if "experiment" in samples else "case"].iloc[0]


def _summary(samples):
    """What the samples themselves say: how many, when, under which load, with which failures."""
    status = samples["status"].astype(str).value_counts()
    yield "samples", ", ".join(f"{count} {name}" for name, count in status.items())
    if "started_at" in samples:
        first, last = samples["started_at"].min(), samples["started_at"].max()
        day = "" if first.date() == last.date() else f"{last:%Y-%m-%d} "
        yield "measured", f"{first:%Y-%m-%d %H:%M} to {day}{last:%H:%M} UTC"
    yield "load", f"{samples['load1'].median():.1f} (median of the one-minute load when a run began)"


def _shown(value):
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_shown(inner)}" for name, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _value(function):
    try:
        return function()
    except (OSError, ValueError, metadata.PackageNotFoundError) as error:
        return f"unknown ({error})"


def _read(path):
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _chosen(text):
    """The word in brackets of "always [madvise] never"."""
    return text.partition("[")[2].partition("]")[0] or "unknown"


def _cpu_model():
    lines = _read("/proc/cpuinfo").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def _memory_gb():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def _git(*arguments):
    """What git prints. Raises OSError, with git's last line where it refuses."""
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError((done.stderr.strip() or f"git ended with {done.returncode}").splitlines()[-1])
    return done.stdout.strip()


def command():
    """The command line that led to this process, without the machine's paths; in a notebook, `report`'s."""
    if Path(sys.argv[0]).name == "ipykernel_launcher.py":
        return os.environ.get("HAKMEM_COMMAND", "a notebook, not by `hakmem report`")
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
