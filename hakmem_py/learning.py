"""Figures of learners: who wins a contest, and which arm was played when."""

import numpy as np
import plotly.graph_objects as go

from .style import BESIDE, finish, looks, marker


def contest(table, value="total_regret", title="Pseudo-regret at the end", x_title="regret", form="{:.1f}"):
    """One row per policy: a point with its 95 % interval. table: `bandits.contest_table`, drawn in its order.

    value: the column to draw, beside its columns _low and _high. form: of the number in words.
    """
    fig, look = go.Figure(), looks(table["policy"])
    for row in table[::-1].to_dict("records"):
        name, middle, low, high = row["policy"], row[value], row[f"{value}_low"], row[f"{value}_high"]
        fig.add_scatter(
            x=[middle],
            y=[name],
            error_x={"type": "data", "array": [high - middle], "arrayminus": [middle - low], "width": 4},
            mode="markers",
            cliponaxis=False,
            marker=marker(look[name], 9),
            hovertemplate=f"{name}: {form} [{form}, {form}]<extra></extra>".format(middle, low, high),
        )
    said = ", ".join(
        f"{name} {form.format(x)}" for name, x in zip(table["policy"], table[value], strict=True)
    )
    return finish(
        fig,
        f"{title}, with 95 % intervals: {said}.",
        title,
        130 + 26 * len(table),
        showlegend=False,
        xaxis={"title_text": x_title, "rangemode": "tozero"},
        yaxis={"type": "category", "ticklabelstandoff": BESIDE},
    )


def arms_played(arms, labels, best=None, title="Arm played", x_title="play"):
    """One tick per play on the line of its arm. arms: [plays] numbers; best: [plays] the best arm, shaded."""
    arms, plays = np.asarray(arms), np.arange(1, len(arms) + 1)
    fig = go.Figure()
    for arm, label in enumerate(labels):
        if best is not None:
            at = plays[np.asarray(best) == arm]
            line = {"symbol": "line-ns", "size": 18, "line": {"width": 2, "color": "rgba(10,148,104,0.16)"}}
            fig.add_scatter(x=at, y=[str(label)] * len(at), mode="markers", marker=line, hoverinfo="skip")
        at = plays[arms == arm]
        line = {"symbol": "line-ns", "size": 9, "line": {"width": 1.2, "color": "#2a7fc1"}}
        fig.add_scatter(
            x=at,
            y=[str(label)] * len(at),
            mode="markers",
            marker=line,
            hovertemplate=f"{x_title} %{{x}}: {label}<extra></extra>",
        )
    share = ", ".join(f"{label} {np.mean(arms == arm):.0%}" for arm, label in enumerate(labels))
    shaded = "; the best arm is shaded" if best is not None else ""
    axis = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [str(label) for label in labels][::-1],
        "range": [-0.5, len(labels) - 0.5],  # with the arms that were never played
    }
    return finish(
        fig,
        f"Which arm was played when{shaded}. Shares: {share}.",
        title,
        110 + 26 * len(labels),
        showlegend=False,
        xaxis={"title_text": x_title},
        yaxis=axis,
    )
