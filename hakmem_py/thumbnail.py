"""A plotly figure as a small SVG without axes or words, made without a browser.

Knows the traces that this project uses: points, lines, bars and heat maps; and vertical lines.
"""

import base64
import html

import numpy as np

WIDTH, HEIGHT, MARGIN = 320, 160, 12
MOST_POINTS = 400  # a trace with more is thinned: nobody sees them at this size


def svg(spec):
    """SVG text of a figure given as plotly JSON (a dict with data and layout)."""
    layout, panels, words, shapes = spec["layout"], {}, {}, []
    for trace in spec["data"]:
        panel = (trace.get("xaxis", "x"), trace.get("yaxis", "y"))
        if trace["type"] == "heatmap":
            shapes.append(_heat(trace, _box(layout, panel)))
        elif trace["type"] in ("scatter", "scattergl", "bar") and trace.get("mode") != "none":
            x, y = (_places(trace, layout, axis, words.setdefault(axis, {})) for axis in panel)
            panels.setdefault(panel, []).append((x if len(x) else np.arange(len(y), dtype=float), y, trace))
    shapes += [_panel(layout, panel, traces) for panel, traces in panels.items()]
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg" role="presentation">'
    return f"{head}{''.join(shapes)}</svg>"


def _settings(layout, axis):
    return layout.get(f"{axis[0]}axis{axis[1:]}", {})


def _values(data):
    """A column of a figure as an array; plotly packs numbers as base64."""
    if isinstance(data, dict):
        packed = np.frombuffer(base64.b64decode(data["bdata"]), dtype=data["dtype"])
        return packed.reshape([int(n) for n in str(data["shape"]).split(",")]) if "shape" in data else packed
    return np.asarray([] if data is None else data)


def _places(trace, layout, axis, words):
    """A trace's values on one axis as numbers: logarithms on a log axis, ranks where they are words."""
    values, settings = _values(trace.get(axis[0])), _settings(layout, axis)
    if settings.get("type") == "category" or values.dtype.kind in "OUS":
        return np.array([words.setdefault(str(value), len(words)) for value in values.tolist()], float)
    values = values.astype(float)
    return np.log10(np.where(values > 0, values, np.nan)) if settings.get("type") == "log" else values


def _box(layout, panel):
    """(left, right, bottom, top) of a panel in pixels."""
    (left, right), (low, high) = (_settings(layout, axis).get("domain", [0, 1]) for axis in panel)
    width, height = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    return (
        MARGIN + left * width,
        MARGIN + right * width,
        HEIGHT - MARGIN - low * height,
        MARGIN + (1 - high) * height,
    )


def _scale(values, start, end, zero, pad):
    """Function from values to pixels; `zero`: the scale starts at 0; `pad`: room on both sides, in values."""
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if len(known) else (0, 1)
    low, high = (min(low, 0) if zero else low - pad), high + pad
    return lambda v: start + (v - low) / (high - low or 1) * (end - start)


def _panel(layout, panel, traces):
    """All traces of one panel on one pair of scales, and the vertical lines among the figure's shapes."""
    left, right, bottom, top = _box(layout, panel)
    bars = [trace for _, _, trace in traces if trace["type"] == "bar"]
    flat = bool(bars) and bars[0].get("orientation") == "h"
    if _settings(layout, panel[1]).get("autorange") == "reversed":
        bottom, top = top, bottom
    xs, ys = (np.concatenate([trace[i] for trace in traces]) for i in (0, 1))
    to_x = _scale(
        xs, left, right, bars and flat, 0.5 if bars and not flat else 0.03 * np.ptp(xs[np.isfinite(xs)])
    )
    to_y = _scale(ys, bottom, top, bars and not flat, 0.5 if flat else 0)
    shapes = _lines(layout, panel, to_x)
    for x, y, trace in traces:
        if trace["type"] == "bar":
            shapes.append(_bar(x, y, trace, to_x, to_y, bars.index(trace), len(bars)))
        else:
            known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
            known = known[:: max(1, len(known) // MOST_POINTS)]
            shapes.append(_points(to_x(x[known]), to_y(y[known]), trace))
    return "".join(shapes)


def _lines(layout, panel, to_x):
    """The vertical lines among the figure's shapes."""
    upright = [
        s for s in layout.get("shapes", []) if s.get("x0") == s.get("x1") and s.get("xref", "x") == panel[0]
    ]
    log = _settings(layout, panel[0]).get("type") == "log"
    places = [to_x(np.log10(shape["x0"]) if log else shape["x0"]) for shape in upright]
    return [
        f'<path d="M{x:.1f} {MARGIN}V{HEIGHT - MARGIN}" stroke="currentColor" stroke-opacity=".6"/>'
        for x in places
    ]


def _colours(trace, count):
    """One colour for each of `count` marks."""
    found = next(
        (part["color"] for part in (trace.get("marker"), trace.get("line")) if part and "color" in part), None
    )
    each = found if isinstance(found, (list, tuple)) else [found] * count
    return [html.escape(colour) if isinstance(colour, str) else "currentColor" for colour in each]


def _points(xs, ys, trace):
    colours = _colours(trace, len(xs))
    if "lines" in trace.get("mode", "lines") and len(xs) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        return f'<polyline points="{path}" fill="none" stroke="{colours[0]}" stroke-width="1.6"/>'
    places = zip(xs, ys, colours, strict=False)
    return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{paint}"/>' for x, y, paint in places)


def _bar(x, y, trace, to_x, to_y, place, count):
    """The rectangles of one bar trace, the `place`-th of `count` that stand side by side."""
    flat = trace.get("orientation") == "h"
    rank, length, to_rank, to_length = (y, x, to_y, to_x) if flat else (x, y, to_x, to_y)
    start, step = -0.36 + 0.72 * place / count, 0.72 / count
    shapes = []
    for r, size, paint in zip(rank, length, _colours(trace, len(x)), strict=True):
        a, b = sorted((to_rank(r + start), to_rank(r + start + step)))
        c, d = sorted((to_length(0), to_length(size)))
        box = (c, a, d - c, b - a) if flat else (a, c, b - a, d - c)
        shapes.append(
            '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}"/>'.format(*box, paint)
        )
    return "".join(shapes)


def _heat(trace, box):
    """Cells in shades of the text colour, the first row on top: strong is high."""
    left, right, bottom, top = box
    z = _values(trace["z"]).astype(float)
    low, high = (np.nanmin(z), np.nanmax(z)) if np.isfinite(z).any() else (0, 1)
    shade = np.nan_to_num((z - low) / (high - low or 1)) * 0.85 + 0.1
    w, h = (right - left) / z.shape[1], (bottom - top) / z.shape[0]
    return "".join(
        f'<rect x="{left + j * w:.1f}" y="{top + i * h:.1f}" width="{w - 1:.1f}" height="{h - 1:.1f}" '
        f'fill="currentColor" fill-opacity="{shade[i, j]:.2f}"/>'
        for i, j in np.ndindex(z.shape)
    )
