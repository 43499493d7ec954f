"""The one style of all figures: colours and symbols of names, axes of ratios, the finishing step of each.

The same name has the same colour and symbol everywhere, and never a colour alone (palette after Okabe & Ito
2008, darkened where it was too faint on white). The background is transparent and text has no colour of
its own, so that a page can be light or dark.
"""

import html
import re
from math import ceil
from zlib import crc32

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
from plotly.io.base_renderers import PlotlyRenderer

from . import thumbnail
from .notebook import PLOTLY

# (colour, symbol); contrast at least 3 to 1 on white and on the dark page.
KNOWN = {
    "hakmem": ("#d55e00", "circle"),
    "hakmem-baseline": ("#d55e00", "circle"),
    "hakmem-evolving": ("#b88a00", "star"),
    "system": ("#7d838c", "square"),
    "mimalloc": ("#2a7fc1", "diamond"),
    "jemalloc": ("#0a9468", "triangle-up"),
    "tcmalloc": ("#b65aa0", "triangle-down"),
    "inlined": ("#a85a1e", "circle-open"),
    "floor": ("#8c7a3c", "line-ns-open"),
    "pool": ("#7d6bd0", "hexagon"),
    "published": ("#2a9db0", "diamond-open"),
    "ucb1": ("#2a7fc1", "circle"),
    "ucb1-tuned": ("#7d6bd0", "x"),
    "ucb-scaled": ("#d55e00", "diamond"),
    "ucb-restart": ("#0a9468", "square"),
    "ucb-recall": ("#c0504d", "triangle-up"),
    "ucb-near": ("#6b7fa8", "bowtie"),
    "kl-ucb": ("#b65aa0", "cross"),
    "thompson": ("#0a9468", "hexagon"),
    "thompson-gaussian": ("#b65aa0", "star"),
    "halving": ("#5a8f29", "hexagon"),
    "doubling": ("#a0694a", "triangle-left"),
    "random": ("#7d838c", "x"),
    "epsilon-greedy": ("#b88a00", "pentagon"),
    "round-robin": ("#7d838c", "cross"),
    "replicated": ("#0a9468", "circle"),
    "replicated, smaller": ("#5a8f29", "triangle-down"),
    "replicated, larger": ("#5a8f29", "triangle-up"),
    "not replicated": ("#c0504d", "x"),
    "undecided": ("#b88a00", "square"),
    "void": ("#7d838c", "cross"),
    "blocks": ("#2a7fc1", "circle"),
    "bytes": ("#d55e00", "diamond"),
}
OTHERS = [
    ("#2a7fc1", "circle"),
    ("#d55e00", "diamond"),
    ("#0a9468", "square"),
    ("#b65aa0", "cross"),
    ("#2a9db0", "x"),
    ("#b88a00", "pentagon"),
    ("#7d6bd0", "hexagon"),
    ("#c0504d", "star"),
    ("#5a8f29", "triangle-up"),
    ("#a0694a", "triangle-left"),
    ("#6b7fa8", "bowtie"),
]
INK = "#767b85"  # readable on white and on black, for JupyterLab; pages put their own ink in its place
TICKS = {  # ratios to mark, by the largest over the smallest ratio, up to which they serve
    1.5: [0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1, 1.05, 1.1, 1.15, 1.2, 1.3],
    3: [0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5],
    10: [0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7],
    300: [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100],
    10000: [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000],
    1e9: [0.001, 0.01, 0.1, 1, 10, 100, 1000, 10000],
}

NEAR = 3  # largest over smallest, up to which plotly's own ticks of a logarithmic axis are readable
CLOSE = 10  # up to which 1, 2 and 5 would leave a single tick, as of 11 to 40
WIDE = 1000  # from which on only powers of 10 are marked
LINE = 80  # characters of a legend that fit on a line of a page; a symbol counts as 7
BESIDE = 9  # px between an axis and its labels, so that a marker on the one does not hide the other

CASES = {
    "autorange": "reversed",
    "type": "category",
    "dtick": 1,
    "ticklabelstandoff": BESIDE,
}  # an axis of cases, the first on top, all named

_AXIS = {"gridcolor": "rgba(128,134,144,0.25)", "linecolor": INK, "zeroline": False, "automargin": True}
_LAYOUT = {
    "font": {"family": "system-ui, Segoe UI, Roboto, DejaVu Sans, sans-serif", "size": 13, "color": INK},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "colorway": [colour for colour, _ in OTHERS],
    "margin": {"l": 8, "r": 12, "t": 40, "b": 8},
    "title": {"x": 0, "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 6}, "font": {"size": 15}},
    "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "maxheight": 1},
    "xaxis": _AXIS | {"title": {"font": {"size": 13}}},
    "yaxis": _AXIS | {"title": {"font": {"size": 13}}},
    "hoverlabel": {"align": "left"},
    "shapedefaults": {"line": {"color": INK, "width": 1.5}},
    "annotationdefaults": {"showarrow": False, "font": {"size": 13}},
}
pio.templates["hakmem"] = go.layout.Template(layout=_LAYOUT)
pio.templates.default = "hakmem"


class _Renderer(PlotlyRenderer):
    """A figure as JSON, which JupyterLab and our pages draw; for all else a still picture and its text."""

    def to_mimebundle(self, figure):
        shown = super().to_mimebundle(figure)
        alt = (figure["layout"].get("meta") or {}).get("alt")
        if alt:
            text = f"<figcaption>{html.escape(alt)}</figcaption>"
            picture = thumbnail.svg(shown[PLOTLY])
            shown["text/html"] = f'<figure style="max-width:40em">{picture}{text}</figure>'
        return shown


pio.renderers["hakmem"] = _Renderer()
pio.renderers.default = "hakmem"


def finish(fig, alt, title="", height=None, top=0, **layout):
    """The last step of every figure: title, height, and the text for those who cannot see it.

    alt: one or two sentences on what is drawn, with its main number; a page shows it as caption. height: px,
    with a legend of one line. top: px of room that the figure needs between title and panels. Raises
    ValueError where the text is missing.
    """
    if not alt or not alt.strip():
        raise ValueError("a figure needs alt text: one sentence on what is drawn and its main number")
    fig.update_layout(title_text=title, meta={"alt": " ".join(alt.split())}, **layout)
    legend = _legend_rows(fig)
    height = height and height + 20 * max(0, legend - 1)
    return fig.update_layout(height=height, margin_t=40 + top + 20 * legend)


def _legend_rows(fig):
    """About how many lines the legend takes on a page, in columns if one line is too short; 0: no legend."""
    shown = {trace.name for trace in fig.data if trace.name and trace.showlegend is not False}
    if fig.layout.showlegend is False or len(shown) < 2:
        return 0
    lengths = [len(str(name)) + 7 for name in shown]
    return 1 if sum(lengths) <= LINE else ceil(len(shown) / max(1, LINE // max(lengths)))


def looks(names):
    """{name: (colour, symbol)}: the known ones as everywhere, the others distinct, if possible by colour."""
    found = {name: KNOWN[name] for name in names if name in KNOWN}
    for name in names:
        if name not in found:
            start = crc32(str(name).encode())
            ring = [OTHERS[(start + i) % len(OTHERS)] for i in range(len(OTHERS))]
            free = [look for look in ring if look not in found.values()]
            taken = {colour for colour, _ in found.values()}
            found[name] = ([look for look in free if look[0] not in taken] or free or ring)[0]
    return found


def marker(look, size=8):
    """Marker settings of a (colour, symbol)."""
    return {"color": look[0], "symbol": look[1], "size": size, "line": {"width": 1.5, "color": look[0]}}


def in_order(names):
    """Names in the order of every figure: the known ones first, then the others as they come."""
    found = list(dict.fromkeys(names))
    return [name for name in KNOWN if name in found] + [name for name in found if name not in KNOWN]


def absent(table):
    """What was not measured and why, as a sentence; "" where all was."""
    missing = table[table["status"] != "ok"].drop_duplicates("allocator")
    said = [f"{row.allocator} ({row.error or row.status})" for row in missing.itertuples()]
    return f" Measured in part or not at all: {'; '.join(said)}." if said else ""


def ratio_axis(values):
    """Settings of a logarithmic axis that holds the given ratios, with readable ticks."""
    known = np.asarray(values, float)
    known = known[np.isfinite(known) & (known > 0)]
    low, high = min([*known, 0.97]) / 1.03, max([*known, 1.03]) * 1.03
    ticks = next(ticks for span, ticks in TICKS.items() if high / low <= span)
    ticks = [tick for tick in ticks if low <= tick <= high]
    axis = {"type": "log", "range": [float(np.log10(low)), float(np.log10(high))]}
    return axis | {"tickvals": ticks, "ticktext": [f"{tick:g}×" for tick in ticks]}


def log_axis(*columns):
    """Settings of a logarithmic axis for the given columns of numbers: ticks at 1, 2, 5, at more where the
    numbers are near each other, at powers of 10 where they are far apart."""
    known = np.concatenate([np.asarray(column, float) for column in columns])
    known = known[np.isfinite(known) & (known > 0)]
    span = known.max() / known.min() if known.size else 1.0
    if span < NEAR:
        return {"type": "log"}
    powers = range(int(np.floor(np.log10(known.min()))), int(np.ceil(np.log10(known.max()))) + 1)
    steps = (1, 1.5, 2, 3, 5, 7) if span < CLOSE else (1, 2, 5) if span < WIDE else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return {"type": "log", "tickvals": ticks, "ticktext": [_short(tick) for tick in ticks]}


def _short(number):
    """10000 as 10k: a label that a phone has room for."""
    if number < 1e4:
        return f"{number:g}"
    return f"{number / 1e6:g}M" if number >= 1e6 else f"{number / 1e3:g}k"


def bars(rows, middle="ratio"):
    """Error bars of rows with columns `middle`, low, high; none where the interval is unbounded."""
    value, low, high = (rows[name].to_numpy(float) for name in (middle, "low", "high"))
    above, below = np.where(np.isfinite(high), high - value, 0), np.where(low > 0, value - low, 0)
    return {"type": "data", "array": above, "arrayminus": below, "thickness": 1.3, "width": 0}


def listed(series, form):
    """A series in words: "hakmem 1.5, system 2.0"; names with commas or numbers are set apart."""
    mark = "" if _plain(series.index) else ":"
    return joined([f"{name}{mark} {form.format(value)}" for name, value in series.items()], series.index)


def joined(texts, names=None):
    """Texts one after another, set apart where a name has a comma or begins or ends by a number."""
    return (", " if _plain(texts if names is None else names) else "; ").join(map(str, texts))


def _plain(names):
    return all(re.fullmatch(r"[^\W\d_](?!.*(,|\s\d)).*", str(name)) for name in names)
