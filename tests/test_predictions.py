"""What became of predictions: told by the samples, and nothing where nothing was measured."""

import pandas as pd

from hakmem_py import predictions


def samples(times):
    """One sample for every (allocator, size): ns by workload."""
    rows = [
        {"allocator": allocator, "size_bytes": size, "workload": workload, "case": f"{workload}-{size}"}
        | {"cpu_ns_per_op": ns, "status": "ok", "host": "here", "block": block, "load1": 0.0, "error": ""}
        for (allocator, size), by_workload in times.items()
        for workload, ns in by_workload.items()
        for block in range(8)
    ]
    return pd.DataFrame(rows)


def test_patterns_are_judged_by_order_by_size_and_without_the_call():
    kind, cruel = {"lifo": 2.0, "random": 2.5}, {"lifo": 2.0, "random": 4.5}
    times = {("hakmem", 16): kind, ("hakmem", 128): kind, ("inlined", 16): {"lifo": 1.0, "random": 1.2}}
    found = predictions.patterns(samples(times)).set_index("prediction")["held"]
    assert found["orders differ by tenths"] == "yes" and found["size matters little"] == "yes"
    assert found["inlined takes two thirds"] == "no"
    found = predictions.patterns(samples({("hakmem", 16): cruel})).set_index("prediction")["held"]
    assert found.to_dict() == {"orders differ by tenths": "no"}


def test_random_mixed_is_judged_by_the_ratios():
    table = pd.DataFrame({"allocator": ["hakmem", "system", "floor"], "ratio": [0.7, 2.0, 0.6]})
    held = predictions.random_mixed(table.assign(low=table["ratio"], high=table["ratio"]))["held"]
    assert held.tolist() == ["no", "yes", "yes"]
    wide = predictions.random_mixed(table.assign(low=table["ratio"] * 0.8, high=table["ratio"] * 1.3))["held"]
    assert wide.tolist() == ["open", "open", "yes"]
    assert predictions.random_mixed(table.assign(low=1, high=1, ratio=float("nan"))).empty


def profiled(*intervals):
    """What became of the prediction on profiles: (ratio, low, high) of a case each."""
    builds = pd.DataFrame(intervals, columns=["ratio", "low", "high"]).assign(p_adjusted=0.01)
    builds["case"] = [f"case-{number}" for number in range(len(builds))]
    return predictions.profile(builds, builds.assign(allocator="pgo")).iloc[0]


def test_a_profile_that_certainly_gains_nothing_refutes_a_few_percent():
    nothing = profiled((1.0004, 0.998, 1.002), (1.04, 1.03, 1.06))
    assert nothing["held"] == "no" and "case-0 +0.0" in nothing["found"]
    assert profiled((0.97, 0.96, 0.98), (1.0, 0.99, 1.01))["held"] == "yes"
    assert profiled((1.0, 0.97, 1.03))["held"] == "open"
    assert profiled((0.8, 0.79, 0.81))["held"] == "no"


def test_published_claims_are_counted_by_kind():
    verdicts = pd.DataFrame(
        {
            "claim": ["P1 vm system", "P1 json hakmem-baseline", "P3 random mixed", "P0 pool_10", "P0 void"],
            "claimed": [0.3, 0.9, 1.05, 1.01, 1.0],
            "ratio": [0.3, 2.0, 1.2, 1.0, float("nan")],
            "verdict": ["replicated", "not replicated", "replicated", "not replicated", "void"],
            "hypothesis": ["difference", "difference", "difference", "equivalence", "difference"],
        }
    )
    found = predictions.published(verdicts)
    assert found["found"].tolist() == ["1 of 1 replicated", "0 of 1 replicated", "1 of 1 replicated"]
    assert found["held"].tolist() == ["yes", "yes", "no"]
