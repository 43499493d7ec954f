"""A build of the library inside this process: its knobs, counters and memory as DataFrames.

One build per process, which `load` chooses: the library's thread-local memory comes from a small reserve that
all libraries share.
"""

import errno
import functools
import importlib.util
import mmap
import operator
from dataclasses import dataclass

import pandas as pd

from .build import Build, build

KNOB = ("name", "unit", "value", "preset", "minimum", "maximum", "learnable", "at_start", "why")
COUNTER = ("name", "unit", "value", "meaning")
SPAN_KINDS = ("free", "slab", "run", "growth window", "purged")  # HAK_SPAN_...
SPAN = ("superslab", "address", "size", "kind", "block_size", "blocks", "used", "carved", "heap")
MAGAZINE = ("heap", "block_size", "loaded", "spare", "capacity", "depot")


class NativeError(RuntimeError):
    """The library cannot do that; one line that says why and what to do."""


@dataclass(frozen=True)
class Library:
    """The loaded build. lib: its functions, as hakmem.h declares them; ffi: cffi's, for their types."""

    build: Build
    lib: object
    ffi: object

    def text(self, pointer):
        return "" if pointer == self.ffi.NULL else self.ffi.string(pointer).decode()


_loaded: Library | None = None


def load(variant=None):
    """The Library of this process, compiled where needed: at first that of `variant`, by default release.

    Raises NativeError for a second, different one.
    """
    global _loaded
    if _loaded is None:
        _loaded = _import(build(variant or "release"))
    elif variant not in (None, _loaded.build.variant):
        raise NativeError(
            f"this process has loaded {_loaded.build.variant!r}, so {variant!r} needs another process: "
            "restart the kernel, or measure it by hp.ensure, which starts processes of its own"
        )
    return _loaded


def _import(done):
    if not done.module_file.exists():
        raise NativeError(f"variant {done.variant!r} can only be preloaded: its runtime must start first")
    spec = importlib.util.spec_from_file_location(done.module, done.module_file)
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise NativeError(
            f"{error}. If this says static TLS: start Python with "
            "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=65536"
        ) from None
    return Library(done, module.lib, module.ffi)


# ---------------------------------------------------------------- tables


def knobs():
    """One row per knob, by name: unit, value (in force), preset (after profile and environment), minimum,
    maximum, learnable (by ACE), at_start (read only when a process starts), why."""
    library = load()
    row = library.ffi.new("hak_knob_t *")
    rows = []
    for i in range(library.lib.hak_knob_count()):
        library.lib.hak_knob_read(i, row)
        rows.append(_fields(library, row, KNOB))
    return pd.DataFrame(rows, columns=KNOB).astype({"learnable": bool, "at_start": bool}).set_index("name")


def settings():
    """Environment variables that any build knows: HAKMEM_ and PROFILE, ACE_EVENTS or the name of a knob."""
    return [f"HAKMEM_{name.upper()}" for name in ("profile", "ace_events", *knobs().index)]


def set_knob(name, value):
    """Sets a knob for the whole process. Raises NativeError for an unknown name, a value that the knob does
    not take, or a knob that is read only when a process starts."""
    library, table = load(), knobs()
    if name not in list(table.index):
        raise NativeError(f"no knob is called {name!r}; there are {', '.join(table.index)}")
    row = table.loc[name]
    result = _set_knob(library, row, value)
    if result == -2:
        wanted = f"a whole number from {row.minimum} to {row.maximum} (unit: {row.unit})"
        if name == "placement_node":
            wanted = "the number of a memory node of this machine that this process may use"
        raise NativeError(f"{name} = {value!r} must be {wanted}: {row.why}")
    if result == -3:
        raise NativeError(
            f"{name} is read when a process starts: start one with HAKMEM_{name.upper()}={value}"
        )


def _set_knob(library, row, value):
    """The library's answer; -2 also for a value that is no whole number, too large, or no node it may use."""
    try:
        number = operator.index(value)
        if row.name == "placement_node" and not _may_use_node(library, number):
            return -2
        return library.lib.hak_knob_set(row.name.encode(), number)
    except (TypeError, OverflowError):
        return -2


def _may_use_node(library, node):
    """False where the kernel says that this process has no such node."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    with library.ffi.from_buffer(page) as pages:
        return library.lib.hak_place(pages, len(page), library.lib.HAK_PLACE_BIND, node) != -errno.EINVAL


def counters():
    """One row per counter, all heaps together: name, unit, value, meaning."""
    library = load()
    count = library.lib.hak_stat_count()
    rows = library.ffi.new("hak_stat_t[]", count)
    filled = library.lib.hak_stat_read(rows, count)
    table = [_fields(library, rows[i], COUNTER) for i in range(filled)]
    return pd.DataFrame(table, columns=COUNTER).set_index("name")


@functools.cache
def policy_names():
    """Names of the policies, in the order of the policy table."""
    library = load()
    row, names = library.ffi.new("hak_policy_t *"), []
    for number in range(library.lib.hak_policy_count()):
        library.lib.hak_policy_read(number, row)
        names.append(library.text(row.name))
    return tuple(names)


def spans():
    """The heap as it is now: one row per slab, run, growth window or free stretch (kind); sizes in bytes."""
    library = load()
    table = _walk(library, "hak_span_t", library.lib.hak_heap_walk, SPAN)
    return table.assign(kind=table["kind"].map(dict(enumerate(SPAN_KINDS))))


def magazines():
    """One row per heap and size class: block_size in bytes; loaded, spare: blocks in the magazine in use and
    in the one behind it; capacity: the most that a magazine may hold by now (fewer than what ACE gives it,
    where there are many threads); depot: full magazines there, shared by all heaps."""
    library = load()
    return _walk(library, "hak_magazine_t", library.lib.hak_magazine_walk, MAGAZINE)


def _walk(library, kind, walk, names):
    """Asks how many rows there are, then for the rows; more may have come meanwhile, hence the spare room."""
    room = walk(library.ffi.NULL, 0) + 64
    rows = library.ffi.new(f"{kind}[]", room)
    count = min(walk(rows, room), room)
    return pd.DataFrame([_fields(library, rows[i], names) for i in range(count)], columns=names)


def _fields(library, struct, names):
    values = {name: getattr(struct, name) for name in names}
    return {
        name: library.text(value) if isinstance(value, library.ffi.CData) else value
        for name, value in values.items()
    }
