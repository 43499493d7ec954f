"""What became of predictions: told by the samples, and nothing where nothing was measured."""

import pandas as pd

from hakmem_py import predictions, stats


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


def test_an_interval_that_reaches_over_a_bound_leaves_it_open():
    """One of two rows is beyond doubt, the other is not: neither yes nor no."""
    table = pd.DataFrame({"case": "vm", "mb": [1.0, 2.0], "ratio": [40.0, 1.6], "low": [39.0, 1.4]})
    table["high"] = [41.0, 1.8]
    assert predictions.thresholds(table, {"vm": 2.0})["held"].tolist() == ["open"]
    noisy = samples({("hakmem", 16): {"lifo": 2.0, "random": 2.9}})
    random = noisy["workload"] == "random"
    noisy.loc[random, "cpu_ns_per_op"] *= [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.1, 1.1]
    assert predictions.patterns(noisy)["held"].tolist() == ["open"]
    few = samples({("hakmem", 16): {"lifo": 2.0, "random": 2.5}}).query("block < 5")
    assert predictions.patterns(few)["held"].tolist() == ["open"]


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


def test_layouts_and_wrong_training_are_told_beside_a_profile():
    """A gain that is one of many comparisons is no certain one."""
    builds = pd.DataFrame(
        {"case": ["a"], "ratio": [0.97], "low": [0.96], "high": [0.98], "p_adjusted": [0.2]}
    )
    sides = {"plain, layout 1": (0.9, 0.89, 0.91), "pgo, wrong training": (1.02, 0.99, 1.05)}
    rows = [{"allocator": name, "case": "a", "p_adjusted": 0.5} for name in sides]
    table = pd.DataFrame(rows).join(pd.DataFrame(sides.values(), columns=["ratio", "low", "high"]))
    assert predictions.profile(builds, table)["held"].tolist() == ["open", "no", "open"]


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
    unclear = verdicts.assign(verdict="undecided")
    assert predictions.published(unclear)["held"].tolist() == ["open", "open", "open"]


def rated(**rates):
    """A table of rules: (rate, low, high) of each."""
    names = {
        "ten": "10 of A, then 10 of B: Welch t",
        "thirty": "30 of A, then 30 of B: Welch t",
        "mean": "10 of A, then 10 of B: GO if the mean gains 1 %",
        "chunks": "chunks of one process as samples: Welch t",
        "ours": "8 randomised pairs: signed rank",
    }
    usual = {
        "ten": (0.2, 0.1, 0.3),
        "thirty": (0.4, 0.35, 0.5),
        "mean": (0.45, 0.4, 0.5),
        "chunks": (0.3, 0.2, 0.4),
    }
    rows = [(names[name], *rate) for name, rate in (usual | {"ours": (0.04, 0.02, 0.07)} | rates).items()]
    return pd.DataFrame(rows, columns=["rule", "rate", "low", "high"])


def test_rules_are_judged_by_the_intervals_of_their_rates():
    assert predictions.rules(rated())["held"].tolist() == ["yes"] * 5
    few = rated(ten=(0.1, 0.02, 0.4), thirty=(0.2, 0.1, 0.5), mean=(0.4, 0.1, 0.8), ours=(0.0, 0.0, 0.2))
    assert predictions.rules(few)["held"].tolist() == ["open", "open", "open", "yes", "open"]
    wrong = predictions.rules(rated(thirty=(0.05, 0.02, 0.08), mean=(0.1, 0.05, 0.2), ours=(0.1, 0.08, 0.2)))
    assert wrong["held"].tolist() == ["yes", "no", "no", "yes", "no"]


def test_a_heap_is_judged_as_it_was_seen():
    slabs = {"kind": "slab", "superslab": 1, "block_size": range(16, 16 * 33, 16), "used": 1}
    steps = pd.DataFrame({"slab_used": [7, 7, 7, 0], "same_address": [None, True, None, None]})
    assert predictions.heap(pd.DataFrame(slabs), steps)["held"].tolist() == ["yes"] * 4
    early = steps.assign(slab_used=[7, 6, 6, 0], same_address=[None, False, None, None])
    empty = pd.DataFrame(slabs).assign(used=0, block_size=16)
    held = predictions.heap(empty, early)["held"]
    assert held.tolist() == ["no"] * 4


def test_scenarios_are_judged_by_who_faults():
    """By one allocator that faults at every block, and one that learns."""
    times = {"hakmem-baseline": 1.0, "hakmem-evolving": 1.02, "gives": 9.0, "keeps": 9.0}
    runs = pd.concat([samples({(who, 64): {"json": ns}}) for who, ns in times.items()])
    runs = runs.assign(ops=100, minor_faults=(runs["allocator"] == "gives") * 1600)
    found = predictions.scenarios(runs)
    assert found["held"].tolist() == ["yes", "yes"] and "gives on json-64 9.0" in found["found"].iloc[0]
    dear = runs["allocator"].map({"gives": 1.1, "hakmem-evolving": 2.0}).fillna(1.0)
    assert predictions.scenarios(runs.assign(cpu_ns_per_op=dear))["held"].tolist() == ["no", "no"]
    kept = predictions.scenarios(runs.assign(minor_faults=0))
    assert kept["prediction"].tolist() == ["learning costs a few percent at most"]
    unlearned = runs[runs["allocator"] != "hakmem-evolving"]
    assert predictions.scenarios(unlearned)["prediction"].tolist() == [found["prediction"].iloc[0]]


def test_a_pool_is_judged_beside_its_floor_and_the_allocators():
    same, twice = stats.ratio([1.0, 1.001] * 8, [1.0] * 16), stats.ratio([2.0, 2.001] * 8, [1.0] * 16)
    table = pd.DataFrame({"case": "pool_cycle", "allocator": ["floor", "system"], "ratio": [0.8, 4.0]})
    table = table.assign(low=table["ratio"] * 0.99, high=table["ratio"] * 1.01)
    held = predictions.pools(table, same, twice, same, twice, 500.0)["held"]
    assert held.tolist() == ["yes"] * 7
    held = predictions.pools(table.assign(low=0.4, high=0.5), twice, same, twice, same, 0.1)["held"]
    assert held.tolist() == ["no", "no", "no", "no", "no", "open", "no"]


def test_the_learner_is_judged_by_the_oracle_the_contest_and_its_windows():
    won = pd.DataFrame({"held_out": [1.0], "low": [0.99], "high": [1.005]})
    raced = pd.DataFrame({"case": ["phases"], "ratio": [0.8], "low": [0.7], "high": [0.9], "verdict": ["GO"]})
    history = pd.DataFrame({"setting": ["16"] * 5 + ["512"] * 45, "reward": [0.1] * 5 + [0.9] * 45})
    overhead = pd.DataFrame({"ratio": [1.0, 1.00001]})
    rested = pd.DataFrame({"label": ["hakmem"], "share": [0.01]})
    found = predictions.learner(won, raced, history, overhead, rested)
    assert found["held"].tolist() == ["yes"] * 5 and "512 blocks: 100%" in found["found"].iloc[2]
    more = won.assign(held_out=1.1, low=1.05, high=1.2), raced.assign(low=1.1, ratio=1.2, high=1.3)
    restless = history.assign(setting=["16", "512"] * 25)
    found = predictions.learner(*more, restless, None, rested.assign(share=0.5))
    assert found["held"].tolist() == ["no"] * 4
    few = predictions.learner(won, raced.assign(verdict="FEW FIRINGS"), history, overhead, rested)
    assert few["held"].tolist() == ["yes", "open", "yes", "yes", "yes"]


def test_thresholds_are_judged_on_both_sides_of_the_block():
    table = pd.DataFrame({"case": "vm", "mb": [1.0, 2.0, 4.0], "ratio": [40.0, 40.0, 1.0]})
    table = table.assign(low=table["ratio"] * 0.99, high=table["ratio"] * 1.01)
    assert predictions.thresholds(table, {"vm": 2.0})["held"].tolist() == ["yes", "yes"]
    assert predictions.thresholds(table, {"vm": 1.0})["held"].tolist() == ["yes", "no"]
    assert predictions.thresholds(table, {"vm": 0.25})["held"].tolist() == ["no"]


def test_a_programs_demand_and_sides_are_judged():
    sizes = pd.DataFrame({"at_most": [64, 4096], "block_share": [0.95, 0.05]})
    old = pd.DataFrame({"of": "blocks", "age": [16.0, 1e9], "share": [0.2, 1.0]})
    time = pd.DataFrame(
        {"allocator": ["hakmem", "mimalloc"], "ratio": [0.9, 0.95], "low": 0.88, "high": 0.97}
    )
    found = predictions.program(sizes, old, time, time.assign(low=1.1, high=1.2))
    assert found["held"].to_list() == ["yes", "no", "yes", "yes"]
    wide = predictions.program(sizes, old, time.assign(low=0.7), time)
    assert wide["held"].to_list() == ["yes", "no", "open", "no"]
    none = time.assign(ratio=float("nan"))
    assert predictions.program(sizes, old, none, none)["held"].to_list() == ["yes", "no"]
    assert len(predictions.program(sizes, old, time, none)) == 3  # it ended too soon for a peak
    slow = time.assign(ratio=[1.2, 1.1], low=1.05, high=1.24)  # the fastest is the first side, without a row
    assert predictions.program(sizes, old, slow, time.assign(low=1.1, high=1.2))["held"].iloc[-1] == "open"
