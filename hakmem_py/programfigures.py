"""Figures of one's own program: what it asks for, what each allocator would cost it in time and memory."""

import numpy as np
import plotly.graph_objects as go

from .style import absent, bars, finish, in_order, listed, looks, marker, ratio_axis

KIB, MIB = 1 << 10, 1 << 20
_SHARES = {"block_share": "blocks", "byte_share": "bytes"}


def block_sizes(table):
    """Two bars for each doubling of the size: share of the blocks, of the bytes. table: `demand.sizes`."""
    labels, fig = [_bytes(size) for size in table["at_most"]], go.Figure()
    look, above = looks(_SHARES.values()), table["at_most"].shift(fill_value=0)
    spans = [
        f"{low + 1 if low else 0:,} to {high:,} bytes"
        for low, high in zip(above, table["at_most"], strict=True)
    ]
    for column, name in _SHARES.items():
        fig.add_bar(
            x=labels,
            y=table[column],
            name=name,
            marker_color=look[name][0],
            customdata=table[["blocks", "megabytes"]].assign(span=spans),
            hovertemplate="%{customdata[2]}: %{y:.1%} of the "
            + name
            + "<br>%{customdata[0]:,} blocks, %{customdata[1]:,.2f} MB<extra></extra>",
        )
    most = [labels[table[column].argmax()] for column in _SHARES]
    alt = f"Each bar is a doubling of the size. The highest of the blocks ends at {most[0]}, "
    alt += f"the highest of the bytes at {most[1]}."
    across = {"type": "category", "title_text": "size, at most"}
    up = {"tickformat": ".0%", "rangemode": "tozero"}
    return finish(fig, alt, "Blocks by size", 340, barmode="group", xaxis=across, yaxis=up)


def _bytes(size):
    if size >= MIB:
        return f"{size // MIB} MiB"
    return f"{size // KIB} KiB" if size >= KIB else f"{size} B"


def trade(time, memory, baseline, left_out=()):
    """CPU time across, peak memory up, both over the baseline's, with their intervals: one mark a side.

    time, memory: `ab.judge` of the same runs; left_out: theirs, {side: why}. A side whose peak is not known
    lies on the line of the baseline's, hollow. Raises ValueError where no side has a time.
    """
    known = time.dropna(subset="ratio").set_index("allocator")
    if known.empty:
        raise ValueError(f"nothing to compare with {baseline}: no run of another side succeeded")
    peaks = memory.set_index("allocator").reindex(known.index)[["ratio", "low", "high"]].astype(float)
    unseen = peaks.index[peaks["ratio"].isna()]
    peaks = peaks.fillna(1.0)
    fig, look = go.Figure(), looks([baseline, *known.index])
    fig.add_scatter(
        x=[1], y=[1], name=baseline, mode="markers", marker=marker(look[baseline], 11), hovertemplate=baseline
    )
    for name in in_order(known.index):
        one, peak, (paint, symbol) = known.loc[[name]], peaks.loc[[name]], look[name]
        said = "unknown" if name in unseen else "%{y:.3f}× [%{customdata[2]:.3f}, %{customdata[3]:.3f}]"
        fig.add_scatter(
            x=one["ratio"],
            y=peak["ratio"],
            name=name,
            mode="markers",
            marker=marker((paint, f"{symbol}-open" if name in unseen else symbol), 11),
            error_x=bars(one),
            error_y=bars(peak),
            customdata=np.column_stack([one[["low", "high"]], peak[["low", "high"]]]).astype(float),
            hovertemplate=f"{name}: time "
            + "%{x:.3f}× [%{customdata[0]:.3f}, %{customdata[1]:.3f}]<br>memory "
            + f"{said}<extra></extra>",
        )
    fig.add_vline(x=1)
    fig.add_hline(y=1)
    alt = f"CPU time over that of {baseline}: {listed(known['ratio'], '{:.2f}')}. "
    alt += f"Peak memory over its: {listed(peaks['ratio'].drop(unseen), '{:.2f}') or 'unknown'}."
    alt += f" Too short for a peak: {', '.join(unseen)}." if len(unseen) else ""
    missing = "; ".join(f"{name} ({why})" for name, why in dict(left_out).items())
    alt += (f" Left out: {missing}." if missing else "") + absent(time)
    across = ratio_axis(known[["ratio", "low", "high"]].to_numpy(float).ravel())
    up = ratio_axis(peaks.to_numpy().ravel())
    return finish(
        fig,
        alt,
        f"Left and below: less than {baseline}",
        420,
        xaxis=across | {"title_text": f"CPU time ÷ that of {baseline}"},
        yaxis=up | {"title_text": f"peak memory ÷ that of {baseline}"},
    )
