"""Figures, one function each: tables go in, plotly figures come out, with a text that says what they show."""

from math import ceil

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from .learning import arms_played, contest  # noqa: F401
from .livefigures import heap_map, journey, magazines, slab_occupancy, sweep  # noqa: F401
from .programfigures import block_sizes, trade  # noqa: F401
from .rawfigures import raw_samples, timeline, variation  # noqa: F401
from .style import (
    CASES,
    INK,
    absent,
    bars,
    finish,
    in_order,
    joined,
    listed,
    log_axis,
    looks,
    marker,
    ratio_axis,
)

ROW = 9  # px of height for one marker of a case
MOST_COLUMNS = 2  # panels side by side: three are unreadable on a phone


def measured(table):
    """Rows of a comparison that have a ratio."""
    return table[np.isfinite(table["ratio"].astype(float))]


def succeeded(samples):
    """Rows of runs that succeeded. Raises ValueError where there are none: nothing can be drawn of them."""
    good = samples[samples["status"] == "ok"]
    if good.empty:
        raise ValueError(f"nothing to draw: none of {len(samples)} runs succeeded")
    return good


# ---------------------------------------------------------------- comparisons


def ratio_forest(table, baseline="hakmem", title=None):
    """Time over the baseline's time with its interval, one row per case, one marker per allocator.

    table: `stats.compare`. Right of the line at 1 the baseline is faster. Raises ValueError where the table
    has no row, because only the baseline was chosen.
    """
    if table.empty:
        raise ValueError(f"nothing to compare with {baseline}: choose another allocator beside it")
    known = measured(table)
    fig, names, look = go.Figure(), in_order(known["allocator"]), looks(known["allocator"].unique())
    for name in names:
        rows = known[known["allocator"] == name]
        fig.add_scatter(
            x=rows["ratio"],
            y=rows["case"],
            name=name,
            mode="markers",
            marker=marker(look[name]),
            error_x=bars(rows),
            orientation="h",
            offsetgroup=name,
            customdata=rows[["low", "high", "n", "median_ns", "verdict"]],
            hovertemplate="%{y}: %{x:.3f}× [%{customdata[0]:.3f}, %{customdata[1]:.3f}], n = %{customdata[2]}"
            "<br>%{customdata[3]:.3r} ns per operation, %{customdata[4]}",
        )
    fig.add_vline(x=1)
    cases = known["case"].nunique()
    said = f"Time of {joined(names)} divided by that of {baseline}. {_sides(known, baseline)}."
    axis = ratio_axis([*known["ratio"], *known["low"], *known["high"]])
    return finish(
        fig,
        (said if names else "") + absent(table),
        title or f"Time ÷ time of {baseline}",
        110 + max(100, cases * (10 + ROW * len(names))),
        scattermode="group",
        scattergap=0.3,
        xaxis=axis | {"title_text": f"right of 1: {baseline} is faster"},
        yaxis=CASES,
    )


def _sides(table, baseline):
    """How often the interval lies wholly on one side of 1, in words."""
    faster, slower = (table["low"] > 1).sum(), (table["high"] < 1).sum()
    rest = len(table) - faster - slower
    where = f"Intervals wholly right of 1 ({baseline} is faster): {faster}"
    return f"{where}, wholly left: {slower}, across: {rest}"


def share_bars(table, reference="mimalloc", milestones=(), published=None, title=None):
    """Throughput of each allocator in percent of the reference's, with interval, the fastest on top.

    table: `stats.compare(samples, baseline=reference)` of one case. milestones: percentages to reach.
    published: {allocator: percentage} of earlier reports, drawn as diamonds.
    """
    rows = measured(table).sort_values("ratio", ascending=False)
    share, low, high = (100 / rows[name] for name in ("ratio", "high", "low"))
    look = looks(rows["allocator"])
    fig = go.Figure()
    fig.add_bar(
        x=share,
        y=rows["allocator"],
        orientation="h",
        marker={"color": [look[name][0] for name in rows["allocator"]], "opacity": 0.35},  # bars show through
        error_x={"array": high - share, "arrayminus": share - low, "color": INK, "width": 5, "thickness": 3},
        customdata=np.column_stack([low, high, rows["median_ns"]]),
        hovertemplate="%{y}: %{x:.1f} % [%{customdata[0]:.1f}, %{customdata[1]:.1f}], %{customdata[2]:.3r} ns"
        "<extra></extra>",
    )
    if published:
        fig.add_scatter(
            x=list(published.values()),
            y=list(published),
            mode="markers",
            marker={
                "symbol": "diamond",
                "size": 11,
                "color": "white",
                "line": {"color": "black", "width": 1.5},
            },
            hovertemplate="%{y}: %{x:.1f} % published<extra></extra>",
        )
    fig.add_vline(x=100)
    for value in milestones:
        fig.add_vline(x=value, line={"dash": "dot", "width": 1.2})
    said = listed(pd.Series(share.to_numpy(), rows["allocator"]), "{:.0f} %")
    said = f"Throughput in percent of {reference}: {said}." if len(rows) else ""
    marks = f" (dotted: {', '.join(f'{value:g}' for value in milestones)})" if milestones else ""
    earlier = f" Published: {listed(pd.Series(published), '{:.0f} %')}." if published else ""
    return finish(
        fig,
        said + earlier + absent(table),
        title or f"Throughput, {reference} = 100 %" + (", ◇ published" if published else ""),
        130 + 34 * len(rows),
        bargap=0.35,
        showlegend=False,
        xaxis={"title_text": f"% of {reference}{marks}", "rangemode": "tozero"},
        yaxis={"type": "category"},
    )


def ranks(table, title="Rank by median time"):
    """Rank of each allocator with its interval, one row per case. table: `stats.ranking`."""
    fig, names, look = go.Figure(), in_order(table["allocator"]), looks(table["allocator"].unique())
    for name in names:
        rows = table[table["allocator"] == name]
        fig.add_scatter(
            x=rows["rank"],
            y=rows["case"],
            name=name,
            mode="markers",
            marker=marker(look[name], 10),
            error_x=bars(rows, "rank"),
            orientation="h",
            offsetgroup=name,
            customdata=rows[["low", "high", "median_ns"]],
            hovertemplate="%{y}: %{x:d} [%{customdata[0]:d}, %{customdata[1]:d}], %{customdata[2]:.4r} ns",
        )
    first = table[table["rank"] == 1].set_index("case")["allocator"]
    settled = int((table["low"] == table["high"]).sum())
    alt = f"Ranks with 95 % intervals; first in {listed(first, '{}')}. {settled} of {len(table)} are certain."
    height = 110 + table["case"].nunique() * (16 + 2 * ROW * len(names))
    layout = {"scattermode": "group", "scattergap": 0.25, "yaxis": CASES}
    places = {"title_text": "1 is the fastest", "dtick": 1, "range": [0.7, len(names) + 0.3]}
    return finish(fig, alt, title, height, xaxis=places, **layout)


def records(samples, metric="cpu_ns_per_op", title="Time ÷ best time of the case"):
    """Heat map, cases by allocators: each median over the best one of its case.

    What is compiled in (floor, inlined) does not compete. metric: a time in ns, or "peak_rss_bytes".
    """
    good = succeeded(samples)
    scale, unit, what = (1e-6, "MB", "Memory") if metric.endswith("bytes") else (1, "ns", "Time")
    times = scale * good.groupby(["case", "allocator"], sort=False)[metric].median().unstack()
    times = times.drop(columns=["floor", "inlined"], errors="ignore").reindex(samples["case"].unique())
    times = times[in_order(times.columns)]
    factor = times.div(times.min(axis=1), axis=0)
    breaks = factor.columns.str.count(" ").max()  # in the longest label, one word per line
    fig = go.Figure(
        go.Heatmap(
            z=np.log2(factor),
            x=[name.replace(" ", "<br>") for name in factor.columns],
            y=list(factor.index),
            text=factor,
            customdata=[[*zip(times.columns, row, strict=True)] for row in times.to_numpy()],
            texttemplate="%{text:.2f}",
            textfont={"color": "#10151c"},  # contrast 5 to 1 on the darkest cell
            hovertemplate="%{y}, %{customdata[0]}: %{text:.2f}× the best, "
            f"%{{customdata[1]:.3r}} {unit}<extra></extra>",
            hoverongaps=False,
            colorscale=[[0, "#f7fbff"], [1, "#4292c6"]],
            zmin=0,
            zmax=2,
            showscale=False,
            xgap=2,
            ygap=2,
        )
    )
    wins = listed(times.dropna(how="all").idxmin(axis=1).value_counts(), "{}")  # an empty row is no record
    alt = f"{what} over the least in each of {len(factor)} cases. Records held: {wins}. "
    alt += f"Worst case: {listed(factor.max(), '{:.2f}×')}."
    return finish(
        fig,
        alt,
        title,
        110 + 24 * len(factor) + 14 * breaks,
        20 + 14 * breaks,
        xaxis={"side": "top", "tickangle": 0, "tickfont": {"size": 11}},
        yaxis=CASES,
    )


def patterns(samples, metric="cpu_ns_per_op", title="Million operations/s by block size"):
    """Small multiples: one panel per workload, block size across, millions of operations per second up."""
    good = succeeded(samples)
    speed = 1000 / good.groupby(["workload", "allocator", "size_bytes"])[metric].median()
    workloads, names = list(good["workload"].unique()), in_order(good["allocator"])
    columns, look = min(MOST_COLUMNS, len(workloads)), looks(names)
    rows = ceil(len(workloads) / columns)
    fig = make_subplots(
        rows, columns, subplot_titles=workloads, shared_yaxes="all", vertical_spacing=0.3 / rows
    )
    for place, workload in enumerate(workloads):
        for name in names:
            line = speed.loc[workload].get(name, pd.Series(dtype=float))
            fig.add_scatter(
                x=[f"{size} B" for size in line.index],
                y=line.to_numpy(),
                name=name,
                legendgroup=name,
                showlegend=place == 0,
                mode="lines+markers",
                marker=marker(look[name]),
                line={"color": look[name][0], "width": 1.5},
                hovertemplate=f"{name}, {workload}, " + "%{x}: %{y:.0f} M/s<extra></extra>",
                row=place // columns + 1,
                col=place % columns + 1,
            )
    said = listed(speed.groupby("allocator").median().reindex(names), "{:.0f}")
    alt = f"Millions of operations per second by block size for {', '.join(workloads)}. Medians: {said}."
    fig.update_yaxes(rangemode="tozero")
    return finish(fig, alt, title, 120 + 210 * rows, 20, legend_y=1 + 0.12 / rows)


# ---------------------------------------------------------------- curves and memory


def curves(table, x, y, by, low=None, high=None, title="", x_title="", y_title="", x_log=False, y_log=False):
    """One line for each value of column `by`; `low` and `high` name the columns of a band around it."""
    fig, look = go.Figure(), looks(table[by].unique())
    for name, rows in table.groupby(by, sort=False):
        line = {"color": look[name][0], "width": 2}
        if low:
            _band(fig, rows, x, low, high, str(name), line["color"])
        fig.add_scatter(
            x=rows[x],
            y=rows[y],
            name=str(name),
            legendgroup=str(name),
            mode="lines",
            line=line,
            customdata=rows[[low, high]] if low else None,
            hovertemplate="%{y:.4r}" + (" [%{customdata[0]:.4r}, %{customdata[1]:.4r}]" if low else ""),
        )
    said, shown = listed(table.groupby(by, sort=False)[y].last(), "{:.3g}"), y_title or y
    return finish(
        fig,
        f"{shown[:1].upper()}{shown[1:]}, over {x_title or x}. At the end: {said}.",
        title,
        380,
        xaxis={"title_text": x_title or x} | (log_axis(table[x]) if x_log else {}),
        yaxis={"title_text": y_title or y}
        | (log_axis(*(table[name] for name in (y, low, high) if name)) if y_log else {}),
        hovermode="x unified",
    )


def _band(fig, rows, x, low, high, name, paint):
    fig.add_scatter(
        x=pd.concat([rows[x], rows[x][::-1]]),
        y=pd.concat([rows[high], rows[low][::-1]]),
        legendgroup=name,
        mode="none",
        fill="toself",
        fillcolor=paint,
        opacity=0.18,
        showlegend=False,
        hoverinfo="skip",
    )


def memory(table, title="Resident memory over time"):
    """Resident memory in MB over seconds, one line per label. table: columns label, seconds, rss_bytes."""
    table = table.assign(megabytes=table["rss_bytes"] / 1e6)
    return curves(
        table, "seconds", "megabytes", "label", title=title, x_title="seconds", y_title="resident, MB"
    )


def peaks(samples, title="Peak resident memory"):
    """Peak resident memory of a process, one bar per allocator and case; live bytes at the peak on hover."""
    good = samples[samples["status"] == "ok"]
    table = (
        good.groupby(["case", "allocator"], sort=False)[["peak_rss_bytes", "live_peak_bytes"]].median() / 1e6
    )
    fig, names, cases = go.Figure(), in_order(good["allocator"]), good["case"].nunique()
    look = looks(names)
    for name in names:
        rows = table.xs(name, level="allocator")
        fig.add_bar(
            x=rows["peak_rss_bytes"],
            y=rows.index,
            name=name,
            orientation="h",
            marker_color=look[name][0],
            customdata=rows["live_peak_bytes"],
            hovertemplate="%{y}: %{x:.1f} MB for %{customdata:.1f} MB live",
        )
    least = table["peak_rss_bytes"].groupby("case").idxmin().map(lambda key: key[1]).value_counts()
    first = table["peak_rss_bytes"].groupby("allocator").median().reindex(names)
    alt = f"Median peak in MB: {listed(first, '{:.1f}')}. Cases with the least memory: {listed(least, '{}')}."
    height = 110 + cases * (14 + ROW * len(names))
    return finish(fig, alt, title, height, xaxis={"title_text": "MB"}, barmode="group", yaxis=CASES)


# ---------------------------------------------------------------- claims and errors


def rates(table, label, limit, title=""):
    """Shares (columns rate, low, high), one row each, beside a limit; a cross is certainly above it.

    label: the column of names; limit: a share.
    """
    share = 100 * table[["rate", "low", "high"]].astype(float)
    above, below = share["high"] - share["rate"], share["rate"] - share["low"]
    around = {"array": above, "arrayminus": below, "width": 0, "color": INK}
    kind = np.where(table["low"] > limit, "not replicated", "replicated")
    look = list(zip(*(looks(["replicated", "not replicated"])[name] for name in kind), strict=True))
    point = {"x": share["rate"], "y": table[label], "mode": "markers", "marker": marker(look, 9)}
    fig = go.Figure().add_scatter(**point, error_x=around, hovertemplate="%{y}: %{x:.1f} %<extra></extra>")
    fig.add_vline(x=100 * limit)
    alt = f"Limit {limit:.0%}. {listed(share['rate'].set_axis(table[label]), '{:.1f} %')}."
    return finish(fig, alt, title, 120 + 24 * len(table), xaxis={"title_text": "percent"}, yaxis=CASES)


# ---------------------------------------------------------------- published and measured


def claims(table, title="Published and measured"):
    """Published ratio (open diamond) and measured ratio with its interval, one row per claim.

    table: columns claim, claimed, ratio, low, high, verdict; a claim that was not measured keeps its diamond.
    """
    known = measured(table)
    fig, look = go.Figure(), looks(["published", *known["verdict"].unique()])
    fig.add_scatter(
        x=table["claimed"],
        y=table["claim"],
        name="published",
        mode="markers",
        marker=marker(look["published"], 11),
        hovertemplate="%{y}: %{x:.3r}×",
    )
    for verdict, rows in known.groupby("verdict", sort=False):
        fig.add_scatter(
            x=rows["ratio"],
            y=rows["claim"],
            name=verdict,
            mode="markers",
            cliponaxis=False,
            marker=marker(look[verdict]),
            error_x=bars(rows),
            customdata=rows[["low", "high"]],
            hovertemplate="%{y}: %{x:.3f}× [%{customdata[0]:.3f}, %{customdata[1]:.3f}]",
        )
    fig.add_vline(x=1)
    counts = listed(table["verdict"].value_counts(), "{}")
    axis = ratio_axis([*table["claimed"], *table["ratio"], *table["low"], *table["high"]])
    alt = f"{len(table)} published ratios and what was measured here: {counts}."
    axis |= {"title_text": "right of 1: the claim's side does more work"}
    places = CASES | {"minallowed": -0.7, "maxallowed": table["claim"].nunique() - 0.3}  # no room to spare
    return finish(fig, alt, title, 120 + 24 * len(table), xaxis=axis, yaxis=places)
