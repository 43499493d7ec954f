"""A short soak for real: two living processes in turns, resumed after an interruption, summed up."""

import pandas as pd
import pytest

from hakmem_py import soak

WORKLOAD = "random_mixed"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("soak")


@pytest.fixture(scope="module")
def table(folder):
    return soak.soak(0.1, WORKLOAD, folder=folder, wait_s=300)


def test_both_sides_live_through_every_window(table):
    assert set(table["label"]) == {"hakmem", "system"} and table["segment"].nunique() == 1
    assert table.groupby("label").size().nunique() == 1 and len(table) >= 30
    assert (table["ns_per_op"] > 1).all() and (table["rss_bytes"] > 1e5).all()
    assert table.attrs["live_bytes"] > 1e5


def test_summary_has_an_interval_for_every_quantity(table):
    found = soak.summary(table)
    assert len(found) == 6 and (found["low"] <= found["percent"]).all()
    assert (soak.rates(table)["utilisation"] > 0).all()


def test_an_interrupted_soak_goes_on(table, folder):
    file = next(folder.iterdir())
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[: len(lines) // 2]) + lines[-1][:20])  # killed in the middle of a line
    resumed = soak.soak(0.1, WORKLOAD, folder=folder, wait_s=300)
    assert resumed["segment"].nunique() == 2
    size = file.stat().st_size
    assert len(soak.soak(0.1, WORKLOAD, folder=folder, wait_s=300)) == len(resumed)
    assert file.stat().st_size == size  # complete: nothing was run


def test_a_leak_is_seen_beside_the_reference():
    minutes = [i + 0.5 for i in range(60)]
    side = {
        "segment": "1",
        "minutes": minutes,
        "ns_per_op": 10.0,
        "ops": 10**6,
        "minor_faults": 3,
        "major_faults": 0,
    }
    table = pd.concat([
        pd.DataFrame(side | {"label": "hakmem", "rss_bytes": [1e8 * (1 + 0.001 * i) for i in range(60)]}),
        pd.DataFrame(side | {"label": "system", "rss_bytes": 1e8}),
    ])  # fmt: skip
    table.attrs = {"subject": "hakmem", "beside": "system", "live_bytes": 5e7}
    found = soak.summary(table).set_index(["quantity", "of"])
    assert found.loc[("rss_bytes", "hakmem"), "low"] > 4 and found.loc[("rss_bytes", "ratio"), "low"] > 4
    assert found.loc[("rss_bytes", "system"), "steady"]
    assert soak.rates(table)["a_million_ops"].tolist() == pytest.approx([3, 3])
