"""A plotly figure as a small SVG without axes or words, made without a browser.

Knows the traces that this project uses: points, lines, bars, heat maps and boxes (as their points).
"""

import base64
import html

import numpy as np

WIDTH, HEIGHT, MARGIN = 320, 160, 12
MOST_POINTS = 400  # a trace with more is thinned: nobody sees them at this size


def _values(data):
    """A column of a figure as an array; plotly packs numbers as base64."""
    if isinstance(data, dict):
        packed = np.frombuffer(base64.b64decode(data["bdata"]), dtype=data["dtype"])
        return packed.reshape([int(n) for n in str(data["shape"]).split(",")]) if "shape" in data else packed
    return np.asarray([] if data is None else data)


def _places(values, axis, order):
    """Values on an axis as numbers: logarithms on a log axis, ranks where they are words."""
    if values.dtype.kind in "OUS":
        for value in values.tolist():
            order.setdefault(str(value), len(order))
        return np.array([order[str(value)] for value in values.tolist()], float)
    values = values.astype(float)
    return np.log10(np.where(values > 0, values, np.nan)) if axis.get("type") == "log" else values


def _axis(layout, reference, letter):
    return layout.get(f"{letter}axis{(reference or letter)[1:]}", {})


def _trace(trace, layout, orders):
    """(panel, x, y, trace) with x and y as numbers."""
    columns = []
    for letter in "xy":
        reference = trace.get(f"{letter}axis", letter)
        values = _values(trace.get(letter))
        columns.append(_places(values, _axis(layout, reference, letter), orders.setdefault(reference, {})))
    x, y = columns
    if not len(x):
        x = np.arange(len(y), dtype=float)
    return (trace.get("xaxis", "x"), trace.get("yaxis", "y")), x, y, trace


def _domains(layout, panel):
    """(left, right, top, bottom) of a panel in pixels."""
    spans = [
        _axis(layout, reference, letter).get("domain", [0, 1])
        for reference, letter in zip(panel, "xy", strict=True)
    ]
    (left, right), (low, high) = spans
    width, height = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    return (
        MARGIN + left * width,
        MARGIN + right * width,
        MARGIN + (1 - high) * height,
        MARGIN + (1 - low) * height,
    )


def _scale(values, start, end, zero):
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if len(known) else (0, 1)
    low = min(low, 0) if zero else low
    pad = 0.06 * (high - low) or 0.5
    low, high = low - (0 if zero else pad), high + pad
    return lambda v: start + (v - low) / (high - low) * (end - start)


def _colour(trace):
    for part in ("marker", "line"):
        colour = (trace.get(part) or {}).get("color")
        if isinstance(colour, str):
            return html.escape(colour, quote=True)
    return "currentColor"


def _points(xs, ys, trace, colour):
    lines = "lines" in trace.get("mode", "lines") and trace["type"] == "scatter"
    if lines:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    return "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>' for x, y in zip(xs, ys, strict=True)
    )


def _bars(xs, ys, trace, colour, base, count):
    """One rectangle a bar; `base` is the pixel of zero, `count` how many bars share the axis."""
    flat = trace.get("orientation") == "h"
    thick = 0.7 * (HEIGHT if flat else WIDTH) / max(count, 1) / 1.2
    shapes = []
    for x, y in zip(xs, ys, strict=True):
        box = (
            (min(base, x), y - thick / 2, abs(x - base), thick)
            if flat
            else (x - thick / 2, min(base, y), thick, abs(base - y))
        )
        shapes.append(
            '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}"/>'.format(*box, colour)
        )
    return "".join(shapes)


def _heat(trace, box):
    """Cells in shades of the text colour: strong is high."""
    left, right, top, bottom = box
    z = _values(trace["z"]).astype(float)
    rows, columns = z.shape
    low, high = np.nanmin(z), np.nanmax(z)
    shade = np.nan_to_num((z - low) / (high - low or 1)) * 0.85 + 0.1
    w, h = (right - left) / columns, (bottom - top) / rows
    return "".join(
        f'<rect x="{left + j * w:.1f}" y="{bottom - (i + 1) * h:.1f}" '
        f'width="{w - 1:.1f}" height="{h - 1:.1f}" '
        f'fill="currentColor" fill-opacity="{shade[i, j]:.2f}"/>'
        for i in range(rows)
        for j in range(columns)
    )


def _panel(traces, box):
    """All traces of one panel on one pair of scales."""
    left, right, top, bottom = box
    flat = any(t.get("orientation") == "h" for _, _, t in traces)
    bars = [t for _, _, t in traces if t["type"] == "bar"]
    to_x = _scale(np.concatenate([x for x, _, _ in traces]), left, right, bool(bars) and flat)
    to_y = _scale(np.concatenate([y for _, y, _ in traces]), bottom, top, bool(bars) and not flat)
    shapes = []
    for x, y, trace in traces:
        step = max(1, len(x) // MOST_POINTS)
        known = np.isfinite(x) & np.isfinite(y)
        xs, ys = to_x(x[known][::step]), to_y(y[known][::step])
        if trace["type"] == "bar":
            count = sum(len(_values(t.get("x"))) for t in bars)
            shapes.append(_bars(xs, ys, trace, _colour(trace), to_x(0) if flat else to_y(0), count))
        else:
            shapes.append(_points(xs, ys, trace, _colour(trace)))
    return "".join(shapes)


def svg(spec):
    """SVG text of a figure given as plotly JSON (a dict with data and layout)."""
    layout, orders, panels, shapes = spec["layout"], {}, {}, []
    for trace in spec["data"]:
        if trace["type"] == "heatmap":
            panel = (trace.get("xaxis", "x"), trace.get("yaxis", "y"))
            shapes.append(_heat(trace, _domains(layout, panel)))
        elif trace["type"] in ("scatter", "scattergl", "bar", "box"):
            panel, x, y, trace = _trace(trace, layout, orders)
            panels.setdefault(panel, []).append((x, y, trace))
    shapes += [_panel(traces, _domains(layout, panel)) for panel, traces in panels.items()]
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg" role="presentation">'
    return f"{head}{''.join(shapes)}</svg>"
