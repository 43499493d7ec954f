"""The laboratory around HAKMEM: build it, run it against its peers, judge the samples, draw them.

Names load on first use, so that a reader without a compiler can open the samples and redraw every figure.
"""

from importlib import import_module
from pathlib import Path

__version__ = "0.1.0"

ROOT = Path(__file__).resolve().parent.parent  # the repository, with native/, data/, ...

_HOME = {  # public name -> the module that defines it; the names in _MODULES give the modules themselves
    "ensure": "runner",
    "load_spec": "spec",
    "SpecError": "spec",
    "compare": "stats",
    "verdict": "stats",
}
_MODULES = (
    "referee",
    "oscalls",
    "ab",
    "ace",
    "anatomy",
    "bandits",
    "campaign",
    "ceiling",
    "calibration",
    "claims",
    "demand",
    "figures",
    "instructions",
    "kept",
    "native",
    "parameters",
    "pools",
    "predictions",
    "provenance",
    "report",
    "ruler",
    "soak",
    "stats",
    "store",
    "timeline",
    "turns",
)
__all__ = ["ROOT", *_HOME, *_MODULES]


def __getattr__(name):
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"hakmem_py has no {name!r}; it has {', '.join(sorted(__all__))}")


def __dir__():
    return sorted([*globals(), *__all__])
