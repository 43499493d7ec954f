"""Figures of a live allocator: its heap drawn, its magazines, the way of one block, one knob turned."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from .style import INK, OTHERS, finish, listed, log_axis, looks, marker

UNIT = 1 << 16  # bytes a cell of the map stands for
ROW = 1 << 21  # bytes a row of the map: what a huge page backs
COLUMNS = ROW // UNIT
MOST_ROWS = 40
PLAIN = {"run": "#2a7fc1", "growth window": "#b65aa0"}  # kinds of `native.spans` of one colour
OCCUPANCY = [[0, "#f6e3d3"], [1, "#a84300"]]


def heap_map(spans, title="The heap: 2 MiB a row, 64 KiB a cell"):
    """The address space: slabs by the share of their blocks that are out, runs in one colour, the rest empty.

    spans: `native.spans`. Only rows that hold something are drawn, the first 40.
    """
    cells = _cells(spans)
    rows = {row: i for i, row in enumerate(sorted(cells["row"].unique())[:MOST_ROWS])}
    cells = cells[cells["row"].isin(list(rows))].assign(y=lambda t: t["row"].map(rows))
    fig, slabs = go.Figure(), cells[cells["kind"] == "slab"]
    hover = (
        "slab of %{customdata[0]} B: %{customdata[1]} of %{customdata[2]} blocks out, heap %{customdata[3]}"
    )
    _layer(fig, slabs, slabs["used"] / slabs["blocks"], len(rows), OCCUPANCY, hover)
    for kind, paint in PLAIN.items():
        some = cells[cells["kind"] == kind]
        _layer(fig, some, 1.0, len(rows), [[0, paint], [1, paint]], kind + ", %{customdata[0]} B")
    fig.update_traces(showscale=False).update_traces(selector=0, showscale=True)
    offsets = {"tickvals": list(range(0, COLUMNS, 8)), "ticktext": [64 * i for i in range(0, COLUMNS, 8)]}
    return finish(
        fig,
        _map_alt(spans),
        title,
        110 + 22 * len(rows),
        xaxis={"title_text": "offset in the row, KiB", **offsets},
        yaxis={"title_text": "row", "autorange": "reversed", "dtick": max(1, len(rows) // 10)},
    )


def _map_alt(spans):
    slabs, counts = spans[spans["kind"] == "slab"], spans["kind"].value_counts()
    share = slabs["used"].sum() / max(slabs["blocks"].sum(), 1)
    return (
        f"Map of the heap: {len(slabs)} slabs, {share:.0%} of their blocks out (darker: more), "
        f"{counts.get('run', 0)} runs (blue), {counts.get('growth window', 0)} growth windows; "
        "empty cells are free."
    )


def _cells(spans):
    """One row a 64 KiB cell of every span that is in use."""
    taken = spans[spans["kind"].isin(["slab", *PLAIN])].reset_index(drop=True)
    cells = taken.loc[taken.index.repeat(taken["size"] // UNIT)]
    number = cells["address"] // UNIT + cells.groupby(level=0).cumcount()
    return cells.assign(row=number // COLUMNS, x=number % COLUMNS, blocks=cells["blocks"].clip(lower=1))


def _layer(fig, cells, value, rows, scale, hover):
    z, data = np.full((rows, COLUMNS), np.nan), np.zeros((rows, COLUMNS, 4), int)
    z[cells["y"], cells["x"]] = value
    data[cells["y"], cells["x"]] = cells[["block_size", "used", "blocks", "heap"]]
    bar = {"title": {"text": "out"}, "tickformat": ".0%", "thickness": 12}
    look = {"colorscale": scale, "zmin": 0, "zmax": 1, "xgap": 1, "ygap": 1, "colorbar": bar}
    hover += "<extra></extra>"
    fig.add_heatmap(z=z, customdata=data, hoverongaps=False, hovertemplate=hover, **look)


def slab_occupancy(spans, title="Blocks out, as a share of those a slab holds"):
    """One point per slab: block size across, share of blocks out up; marked if a thread takes from it."""
    slabs = spans[spans["kind"] == "slab"].assign(share=lambda t: t["used"] / t["blocks"])
    fig = go.Figure()
    kinds = ((True, "a thread takes from it", OTHERS[0]), (False, "no thread takes from it", OTHERS[1]))
    for owned, name, look in kinds:
        some = slabs[(slabs["heap"] > 0) == owned]
        hover = "%{x} B: %{y:.0%} out"
        at = {"x": some["block_size"], "y": some["share"]}
        fig.add_scatter(**at, name=name, mode="markers", marker=marker(look, 7), hovertemplate=hover)
    alt = f"{len(slabs)} slabs by block size; half of them have {slabs['share'].median():.0%} or more out."
    across = {"type": "log", "title_text": "block size, bytes", "tickvals": [2**k for k in range(4, 16)]}
    return finish(fig, alt, title, 340, xaxis=across, yaxis={"tickformat": ".0%", "rangemode": "tozero"})


def magazines(table, title="Blocks at hand in the magazines"):
    """Stacked bars: blocks loaded and spare of every class of the fullest heap, with the capacities."""
    heap = table.groupby("heap")[["loaded", "spare"]].sum().sum(axis=1).idxmax()
    rows = table[(table["heap"] == heap) & (table["loaded"] + table["spare"] > 0)].sort_values("block_size")
    sizes, fig = [f"{size} B" for size in rows["block_size"]], go.Figure()
    for name, (paint, _) in zip(("loaded", "spare"), OTHERS, strict=False):
        fig.add_bar(x=sizes, y=rows[name], name=name, marker_color=paint)
    line = {"width": 2, "color": INK, "shape": "hvh"}
    fig.add_scatter(x=sizes, y=rows["capacity"], name="capacity", mode="lines", line=line)
    fig.update_traces(hovertemplate="%{x}: %{y} blocks")
    held = int((table["loaded"] + table["spare"]).sum())
    alt = f"Blocks loaded and spare by class in heap {heap}, with capacity; all heaps hold {held} blocks."
    axes = {"xaxis": {"type": "category", "nticks": 12}, "yaxis": {"title_text": "blocks"}}
    return finish(fig, alt, title, 360, barmode="stack", **axes)


def journey(table, title="Where the free blocks of a class are, step by step"):
    """Stacked bars of `anatomy.journey`: blocks loaded, spare and in the depot after each step.

    Of the depot only the number of magazines is known: they are drawn as full, but may hold fewer blocks.
    """
    steps = [f"{i}. {step}" for i, step in enumerate(table["step"], 1)]
    places = pd.DataFrame({"magazine": table["loaded"], "spare": table["spare"]})
    places["depot, at most"] = table["depot"] * table["capacity"]
    fig = go.Figure()
    for name, (paint, _) in zip(places, OTHERS, strict=False):
        look = {"orientation": "h", "marker_color": paint, "hovertemplate": "%{x} blocks"}
        fig.add_bar(y=steps, x=places[name], name=name, **look)
    alt = (
        f"Blocks in magazine, spare and depot over {len(table)} steps; at most {table['depot'].max()} "
        f"magazines in the depot, at the end {table['slab_used'].iloc[-1]} blocks of the slab are out."
    )
    axes = {"xaxis": {"title_text": "blocks"}, "yaxis": {"autorange": "reversed", "type": "category"}}
    fig.update_layout(legend_traceorder="normal")  # else last on top
    return finish(fig, alt, title, 120 + 34 * len(table), barmode="stack", **axes)


def sweep(table, knob, title, x_title, baseline):
    """Ratio to the baseline over a knob's settings, one line per case, with intervals; both axes logarithmic.

    table: `stats.compare` with a column `knob` of numbers. baseline: the baseline's number, drawn at 1.
    """
    fig, look = go.Figure(), looks(table["case"].unique())
    one = table.drop_duplicates("case").assign(**{knob: baseline, "ratio": 1.0, "low": 1.0, "high": 1.0})
    table = pd.concat([table, one])
    for case, rows in table.sort_values(knob).groupby("case", sort=False):
        above, below = rows["high"] - rows["ratio"], rows["ratio"] - rows["low"]
        fig.add_scatter(
            x=rows[knob],
            y=rows["ratio"],
            name=case,
            mode="lines+markers",
            marker=marker(look[case]),
            line={"color": look[case][0], "width": 1.5},
            error_y={"type": "data", "array": above, "arrayminus": below, "thickness": 1, "width": 3},
            customdata=rows[["low", "high"]],
            hovertemplate=f"{case}, "
            + "%{x}: %{y:.3r}× [%{customdata[0]:.3r}, %{customdata[1]:.3r}]<extra></extra>",
        )
    fig.add_hline(y=1)
    worst = table.groupby("case", sort=False)["ratio"].max()
    across = {"type": "log", "title_text": x_title, "tickvals": sorted(table[knob].unique())}
    alt = f"{title}, over {x_title}. Largest ratio: {listed(worst, '{:.3g}')}."
    up = log_axis(table["low"], table["high"]) | {"title_text": "ratio"}
    return finish(fig, alt, title, 380, xaxis=across, yaxis=up)
