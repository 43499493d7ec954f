"""Figures of raw samples: where they lie, how they spread, how they drift."""

import plotly.graph_objects as go

from .style import CASES, finish, in_order, listed, log_axis, looks, marker, ratio_axis


def raw_samples(samples, metric="cpu_ns_per_op", title="Every sample"):
    """Strips: each point one process, one row per allocator; nothing is left out but what failed."""
    good = samples[samples["status"] == "ok"]
    fig, names, look = go.Figure(), in_order(good["allocator"]), looks(good["allocator"].unique())
    for place, name in enumerate(names):
        rows = good[good["allocator"] == name]
        lift = rows["block"] * 0.618 % 1 - 0.5  # spread by block, the same at every drawing
        fig.add_scatter(
            x=rows[metric],
            y=place + 0.6 * lift,
            name=name,
            mode="markers",
            marker=marker(look[name], 6) | {"opacity": 0.85},
            customdata=rows[["case", "block", "load1"]],
            hovertemplate="%{x:.3f} ns, %{customdata[0]}, block %{customdata[1]}, load %{customdata[2]:.1f}",
        )
    said = listed(good.groupby("allocator")[metric].median().reindex(names), "{:.3g}")
    return finish(
        fig,
        f"{len(good)} samples, one point per process. Medians in ns: {said}.",
        title,
        90 + 60 * len(names),
        xaxis=log_axis(good[metric]) | {"title_text": "ns per operation"},
        yaxis={"tickvals": list(range(len(names))), "ticktext": names, "autorange": "reversed"},
        showlegend=False,
    )


def variation(samples, metric="cpu_ns_per_op", title="Spread from run to run"):
    """Coefficient of variation (standard deviation over mean) of the runs, case by case."""
    groups = samples[samples["status"] == "ok"].groupby(["case", "allocator"], sort=False)[metric]
    table = (100 * groups.std() / groups.mean()).rename("cv").reset_index()
    fig, look = go.Figure(), looks(table["allocator"].unique())
    for name in in_order(table["allocator"]):
        rows = table[table["allocator"] == name]
        fig.add_scatter(
            x=rows["cv"],
            y=rows["case"],
            name=name,
            mode="markers",
            marker=marker(look[name]),
            hovertemplate="%{y}: CV %{x:.1f} %",
        )
    middle, most = table["cv"].median(), table["cv"].max()
    alt = f"Coefficient of variation of {len(table)} series: median {middle:.1f} %, largest {most:.1f} %."
    height = 120 + 24 * table["case"].nunique()
    return finish(fig, alt, title, height, xaxis={"title_text": "CV, %", "rangemode": "tozero"}, yaxis=CASES)


def timeline(samples, metric="cpu_ns_per_op", title="Each run over the median of its series, block by block"):
    """Each run over the median of its own series, block by block: drift and disturbances of the machine."""
    good = samples[samples["status"] == "ok"]
    relative = good[metric] / good.groupby(["case", "allocator"])[metric].transform("median")
    blocks = relative.groupby([good["allocator"], good["block"]]).median()
    fig, look = go.Figure(), looks(good["allocator"].unique())
    for name in in_order(good["allocator"]):
        fig.add_scatter(
            x=blocks[name].index,
            y=blocks[name].to_numpy(),
            name=name,
            mode="lines+markers",
            marker=marker(look[name], 6),
            line={"color": look[name][0], "width": 1.2},
            hovertemplate="block %{x}: %{y:.3f}×",
        )
    fig.add_hline(y=1)
    alt = f"Median run of each block over the median of its series: {blocks.min():.2f} to {blocks.max():.2f}."
    return finish(fig, alt, title, 320, xaxis={"title_text": "block"}, yaxis=ratio_axis(blocks))
