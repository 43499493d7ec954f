"""What was published before: the figures of five reports, one row each (data/published/published.csv)."""

import pandas as pd

from . import ROOT

PUBLISHED = ROOT / "data" / "published"


def figures():
    """All published figures: report, experiment, subject, metric, value, unit, stdev, note."""
    return pd.read_csv(PUBLISHED / "published.csv")


def published(report, experiment, metric):
    """The published values of one experiment by subject, in the unit of the report. Raises KeyError."""
    rows = figures().query("report == @report and experiment == @experiment and metric == @metric")
    if rows.empty:
        raise KeyError(f"nothing was published as {report}, {experiment}, {metric}")
    return rows.set_index("subject")["value"]


def published_ranks(report="P1"):
    """Ranks by published median: case, allocator, rank, median_ns, spread_percent (stdev over median)."""
    rows = figures().query("report == @report")
    rank = rows.groupby("experiment")["value"].rank()
    columns = {
        "case": rows["experiment"],
        "allocator": rows["subject"],
        "rank": rank,
        "median_ns": rows["value"],
    }
    return pd.DataFrame(columns | {"spread_percent": 100 * rows["stdev"] / rows["value"]})
