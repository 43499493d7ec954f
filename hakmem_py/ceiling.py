"""What there is to win: the cost of every phase under every fixed arm, the oracle, memory after a peak."""

import json

import numpy as np
import pandas as pd


def phase_costs(samples):
    """Median CPU ns per operation, one row a case and phase, one column an arm (allocator label).

    samples: runs of workloads that report phases, as `ensure` returns them.
    """
    rows = [
        {"case": run["case"], "allocator": run["allocator"], "block": run["block"], "phase": mark["name"]}
        | {"cpu_ns": mark["cpu_ns"], "ops": mark["ops"]}
        for run in samples[samples["status"] == "ok"].to_dict("records")
        for mark in json.loads(run["extra"]).get("phases", [])
    ]
    runs = pd.DataFrame(rows).groupby(["case", "phase", "allocator", "block"])[["cpu_ns", "ops"]].sum()
    costs = (runs["cpu_ns"] / runs["ops"]).groupby(["case", "phase", "allocator"]).median()
    return costs.unstack()[samples.loc[samples["case"].isin(costs.index.levels[0]), "allocator"].unique()]


def oracle(costs):
    """One row a case: best fixed arm and its cost, cost of the best arm of every phase, and their ratio.

    costs: `phase_costs`. Phases count alike: the bench gives each the same number of operations. gain: cost
    of the best fixed arm / cost of the oracle, 1 where one arm is the best of every phase. It is biased
    upwards, for the oracle also picks the luckiest measurement of each phase.
    """
    rows = []
    for case, table in costs.groupby(level="case"):
        fixed, free = table.mean(), table.min(axis=1).mean()
        best = fixed.idxmin()
        own = table.idxmin(axis=1).droplevel("case")
        chosen = ", ".join(f"{phase}: {arm}" for phase, arm in own.items())
        rows.append({"case": case, "best_fixed": best, "fixed_ns": fixed[best], "oracle_ns": free})
        rows[-1] |= {"gain": fixed[best] / free, "oracle": chosen}
    return pd.DataFrame(rows)


def regret(history):
    """Regret of one learner's windows in units of reward: columns seconds, regret, setting, reward.

    Against the best arm of this run in hindsight, by mean reward over the arms with 3 windows or more.
    """
    means = history.groupby("setting")["reward"].agg(["mean", "size"])
    best = means.loc[means["size"] >= min(3, means["size"].max()), "mean"].max()
    seconds = (history["time_ns"] - history["begin_ns"].iloc[0]) / 1e9
    lost = np.cumsum(best - history["reward"].to_numpy())
    return pd.DataFrame(
        {"seconds": seconds, "regret": lost, "setting": history["setting"], "reward": history["reward"]}
    )


def after_peak(samples):
    """Resident bytes after everything was freed: columns label, seconds, rss_bytes, share of the peak.

    samples: runs of idle_peak; medians over blocks.
    """
    rows = []
    for run in samples[samples["status"] == "ok"].to_dict("records"):
        extra = json.loads(run["extra"])
        peak = extra["rss_at_peak_bytes"]
        for place, (ms, rss) in enumerate(zip(extra["idle_ms"], extra["idle_rss_bytes"], strict=True)):
            rows.append((run["allocator"], place, ms / 1000, rss, rss / peak))
    table = pd.DataFrame(rows, columns=["label", "place", "seconds", "rss_bytes", "share"])
    return table.groupby(["label", "place"], sort=False).median().reset_index().drop(columns="place")
