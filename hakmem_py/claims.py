"""What was published before: the figures of five reports, one row each (data/published/published.csv)."""

import pandas as pd

from . import ROOT

PUBLISHED = ROOT / "data" / "published" / "published.csv"


def published(report, experiment, metric=None):
    """The published values of one experiment by subject, in the unit of the report. Raises KeyError."""
    rows = pd.read_csv(PUBLISHED).query("report == @report and experiment == @experiment")
    rows = rows[rows["metric"] == metric] if metric else rows
    if rows.empty:
        raise KeyError(f"nothing was published as {report}, {experiment}, {metric}")
    return rows.set_index("subject")["value"]
