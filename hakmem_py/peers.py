"""The other allocators: where their libraries are, which version, how to get a missing one.

They are looked for in the conda environment, on the system, and in data/peers, where `fetch` unpacks the
distribution's packages without root.
"""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from . import ROOT

UNPACKED = ROOT / "data" / "peers"
SYSTEM = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")


@dataclass(frozen=True)
class Known:
    """What a peer is called in each place it may come from, and how to ask its version."""

    pattern: str  # of the shared library's file
    debian: tuple[str, ...]  # packages
    conda: str
    version: str  # Python expression for the version, asked of the library `c` itself


KNOWN = {
    "mimalloc": Known("libmimalloc.so*", ("libmimalloc2.0",), "mimalloc", "'%d.%d.%d' % _mimalloc(c)"),
    "jemalloc": Known("libjemalloc.so*", ("libjemalloc2",), "jemalloc", "_jemalloc(c)"),
    "tcmalloc": Known(
        "libtcmalloc_minimal.so*", ("libtcmalloc-minimal4", "libunwind8"), "gperftools", "_tcmalloc(c)"
    ),
}
FOREIGN = ("system", *KNOWN)  # all that can serve a program in hakmem's place
ASK = """
import ctypes
def _mimalloc(c):
    v = c.mi_version()
    return (v // 10000, v // 100 % 100, v % 100) if v >= 10000 else (v // 100, v // 10 % 10, v % 10)
def _jemalloc(c):
    text, size = ctypes.c_char_p(), ctypes.c_size_t(8)
    c.mallctl(b"version", ctypes.byref(text), ctypes.byref(size), None, 0)
    return text.value.decode().split("-")[0]
def _tcmalloc(c):
    major, minor, patch = ctypes.c_int(), ctypes.c_int(), ctypes.c_char_p()
    c.tc_version.restype = ctypes.c_char_p
    return c.tc_version(ctypes.byref(major), ctypes.byref(minor), ctypes.byref(patch)).decode().split()[-1]
c = ctypes.CDLL(None)
"""


@dataclass(frozen=True)
class Peer:
    """A library to preload. path None: there is none that works, and `hint` says how to get it."""

    name: str
    path: Path | None
    version: str = ""
    sha256: str = ""
    needs: tuple[Path, ...] = ()  # libraries that came with it and the system does not have
    hint: str = ""

    @property
    def preload(self):
        """The value of LD_PRELOAD that puts it in charge."""
        return ":".join(str(path) for path in (*self.needs, self.path))


@functools.cache
def find(name):
    """The Peer called name (mimalloc, jemalloc, tcmalloc)."""
    if name not in KNOWN:
        raise ValueError(f"{name!r} is no peer; allowed: {', '.join(KNOWN)}")
    known = KNOWN[name]
    found = (path for folder in _folders() for path in sorted(folder.glob(known.pattern)))
    refused = []
    for path in dict.fromkeys(path.resolve() for path in filter(_loadable, found)):
        peer = Peer(name, path, needs=tuple(_carried(path)))
        version, why = _version(known, peer.preload)
        if version:
            return replace(peer, version=version, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        refused.append(f"{path}: {why}")
    apt, conda = " ".join(known.debian), known.conda
    get = f"python -m hakmem_py peers --get, or apt install {apt}, or conda install -c conda-forge {conda}"
    state = f"not usable ({'; '.join(refused)})" if refused else "not installed"
    return Peer(name, None, hint=f"{state}, get it by: {get}")


def _loadable(path):
    """Whether a file is a library for this machine: no link to nothing, and of no other architecture."""
    with Path("/proc/self/exe").open("rb") as own:
        machine = _machine(own)
    try:
        with path.open("rb") as file:
            return _machine(file) == machine
    except OSError:
        return False


def _machine(file):
    """Magic, class and byte order of an ELF file, and its machine (elf(5))."""
    head = file.read(20)
    return head[:6], head[18:]


def _folders():
    """Library folders; the first that has a peer wins."""
    prefix = os.environ.get("CONDA_PREFIX")
    yield from [Path(prefix, "lib")] if prefix else []
    for pattern in SYSTEM:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))
    yield from sorted(UNPACKED.glob("*/usr/lib/*"))


def _carried(path):
    """Libraries that this one needs, that the system lacks and data/peers has."""
    lines = subprocess.run(["ldd", path], capture_output=True, text=True).stdout.splitlines()
    for name in (line.split()[0] for line in lines if "not found" in line):
        yield from sorted(UNPACKED.glob(f"*/usr/lib/*/{name}"))[:1]


def _version(known, preload):
    """(version as the library itself tells it, why it does not), asked in a process of its own."""
    command = [sys.executable, "-S", "-c", f"{ASK}\nprint({known.version})"]
    done = subprocess.run(command, env={"LD_PRELOAD": preload}, capture_output=True, text=True)
    said = done.stderr.splitlines() or [f"a program with it ended with status {done.returncode}"]
    return done.stdout.strip(), next((line for line in said if "ld.so" in line), said[-1])


def fetch(name):
    """Unpacks a peer's Debian packages into data/peers.

    Needs apt-get and dpkg, no root. Raises RuntimeError with one line where that is not possible.
    """
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise RuntimeError(
                f"{tool} is not on this machine: conda install -c conda-forge {KNOWN[name].conda}"
            )
    try:
        UNPACKED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=UNPACKED, prefix="unpacking-") as folder:
            whole, target = Path(folder, name), UNPACKED / name
            _download(KNOWN[name].debian, Path(folder))
            for package in sorted(Path(folder).glob("*.deb")):
                done = subprocess.run(["dpkg", "-x", package, whole], capture_output=True, text=True)
                if done.returncode:
                    raise RuntimeError(
                        f"dpkg -x {package.name}: {(done.stderr.splitlines() or ['failed'])[0]}"
                    )
            if not whole.exists():
                raise RuntimeError(f"apt-get download {' '.join(KNOWN[name].debian)}: it left no package")
            shutil.rmtree(target, ignore_errors=True)  # of an earlier version, stopped half-way
            whole.rename(target)  # only now can it be found: a library cut short would be taken for the peer
    except OSError as error:
        raise RuntimeError(f"cannot write to {UNPACKED}: {error.strerror}") from None
    find.cache_clear()


def _download(packages, folder):
    """apt-get download into folder, with the system's package lists or, where they fail, with fresh ones."""
    (folder / "lists" / "partial").mkdir(parents=True)
    own = [f"-oDir::State::Lists={folder / 'lists'}", f"-oDir::Cache={folder}", "-oAPT::Sandbox::User="]
    if _apt(["download", *packages], folder).returncode:
        updated = _apt([*own, "update"], folder)
        done = _apt([*own, "download", *packages], folder)
        if done.returncode:
            said = done.stderr.splitlines()[-1:] + updated.stderr.splitlines()[:1]  # the latter: no network
            raise RuntimeError(
                f"apt-get download {' '.join(packages)}: {'; '.join(said) or 'no reason given'}"
            )


def _apt(arguments, folder):
    return subprocess.run(["apt-get", "-q", *arguments], cwd=folder, capture_output=True, text=True)


def add_peers(sub):
    sub.add_argument(
        "--get", action="store_true", help="unpack missing ones from Debian packages, without root"
    )
    sub.set_defaults(run=_run)


def _run(args):
    """Always succeeds: a peer that is missing is a named row in every result."""
    for name in [name for name in KNOWN if args.get and find(name).path is None]:
        try:
            fetch(name)
        except RuntimeError as error:
            print(f"hakmem peers: {name}: {error}", file=sys.stderr)
    for peer in map(find, KNOWN):
        print(f"{peer.name:10} {peer.version:8} {peer.path or peer.hint}")
