"""What can be won: the cost of every phase under every fixed arm, the oracle, memory after a peak."""

import json

import numpy as np
import pandas as pd
import scipy.stats as sps

from . import stats

SPLITS = 500  # random ones, of the blocks into halves
SOON_S = 2.0  # after the last free a peak should have gone back, ...
LITTLE = 0.1  # ... but for such a share


def oracle(costs):
    """One row per case: the best fixed arm and its cost, the cost of each phase's own best arm, their ratio.

    costs: CPU ns per operation, one row per case, phase and block, one column per arm (`turns.sweep`); each
    arm and phase counts by its median over the blocks, and all phases count alike, however many operations
    each did. ratio: cost of the best fixed arm / cost of the oracle, 1 where one arm is best in every phase;
    biased upwards, because the oracle also picks the luckiest measurement of each phase. held_out is not
    biased so: arms are chosen on one random half of the blocks and their costs taken from the other half. It
    is the median over the splits, low and high their 2.5 and 97.5 % quantiles; nan below 4 blocks.
    """
    rows = []
    for case, table in costs.groupby(level="case"):
        cube = table.droplevel("case").unstack("block")  # phase x (arm, block)
        cube = np.stack([cube[arm].to_numpy(float) for arm in costs.columns], axis=1)  # phase, arm, block
        cube = cube[:, :, ~np.isnan(cube).any(axis=(0, 1))]
        middle = np.median(cube, axis=2)
        best, own = middle.mean(axis=0).argmin(), middle.argmin(axis=1)
        phases = table.index.unique("phase")
        chosen = ", ".join(f"{phase}: {costs.columns[arm]}" for phase, arm in zip(phases, own, strict=True))
        fixed, free = middle[:, best].mean(), middle.min(axis=1).mean()
        held = _held_out(cube, np.random.default_rng(1))
        rows.append({"case": case, "best_fixed": costs.columns[best], "fixed_ns": fixed, "oracle_ns": free})
        rows[-1] |= {"ratio": fixed / free, **held, "oracle": chosen}
    return pd.DataFrame(rows)


def _held_out(cube, chance):
    """Quantiles of that ratio on half of the blocks, of arms chosen on the other. cube: phase, arm, block."""
    phases, _, blocks = cube.shape
    if blocks < 4:
        return dict.fromkeys(("held_out", "low", "high"), np.nan)
    ratios = []
    for _ in range(SPLITS):
        order = chance.permutation(blocks)
        seen, paid = (np.median(cube[:, :, half], axis=2) for half in np.array_split(order, 2))
        best, own = seen.mean(axis=0).argmin(), seen.argmin(axis=1)
        ratios.append(paid[:, best].mean() / paid[np.arange(phases), own].mean())
    return dict(zip(("held_out", "low", "high"), np.quantile(ratios, (0.5, 0.025, 0.975)), strict=True))


def share_won(samples, side, free):
    """Time that `side` saves against the baseline, as a share of what `free` saves: {share, low, high}.

    samples: of `ab.compare`; side, free: labels, free of a side that need not learn. Medians over the blocks;
    low and high: 95 %, bootstrap; in simulations they hold the truth in 90 to 98 %, for normal, lognormal and
    heavy-tailed noise and 6 to 40 blocks. They are nan for fewer than 6 blocks, and where the time of one of
    the two cannot be told from the baseline's: a saving that may be none gives no share.
    """
    good = samples[samples["status"] == "ok"]
    wide = good.pivot(index="block", columns="allocator", values="cpu_ns_per_op")
    pair = wide[[side, free]].div(wide[samples.attrs["baseline"]], axis=0).dropna()

    def share(learner, ceiling):
        return (1 - np.median(learner)) / (1 - np.median(ceiling))

    columns = (pair[side].to_numpy(), pair[free].to_numpy())
    low = high = float("nan")
    ones = np.ones(len(pair))
    if len(pair) >= stats.MIN_PAIRS and all(
        not e.low < 1 < e.high for e in (stats.ratio(side, ones) for side in columns)
    ):
        how = {"paired": True, "vectorized": False, "method": "percentile", "rng": 1}
        low, high = sps.bootstrap(columns, share, **how).confidence_interval
    return {"share": share(*columns), "low": low, "high": high}


def share_said(won):
    """What `share_won` found, in words."""
    if np.isnan(won["low"]):
        return (
            "it is open how much ACE saves of what lifting the limit saves: "
            "a time cannot be told from the baseline's"
        )
    saved = stats.bracketed(won["share"], won["low"], won["high"], ".0%")
    return f"ACE saves {saved} of what lifting the limit saves"


def placebos(rivals, sides):
    """(words, verdict) of one program's placebos: LEARNED where each takes longer than the learner.

    Not where a run of either failed, for those that ended may be the fast ones.
    rivals: `stats.compare` with the learner as baseline; sides: labels of those that cannot have learned.
    """
    found = rivals[rivals["allocator"].isin(sides)]
    rows = found.itertuples()
    times = [f"{row.allocator} {stats.bracketed(row.ratio, row.low, row.high)}" for row in rows]
    if found.empty:
        return "no placebo ran beside it, so learning is not shown", "NOT SHOWN"
    failed = [f"{row.allocator}: {row.status}" for row in found.itertuples() if row.status != "ok"]
    beaten = len(found) == len(sides) and (found["low"] > 1).all() and not failed
    why = f"runs failed ({', '.join(failed)})" if failed else "not all can be told from ACE"
    end = "each takes longer" if beaten else f"{why}, so learning is not shown"
    return f"the placebos' times over ACE's: {', '.join(times)}; {end}", "LEARNED" if beaten else "NOT SHOWN"


def regret(history):
    """Regret of one learner's windows in units of reward: columns seconds, regret, setting, reward.

    Measured against the mean of the arm that is best in hindsight: the one whose mean has the highest lower
    bound (two standard errors, by the spread within all arms). By its mean alone a lucky arm of few windows
    could be it.
    """
    arms = history.groupby("setting")["reward"]
    means, sizes = arms.mean(), arms.size()
    spread = (history["reward"] - arms.transform("mean")).std()
    best = means[(means - 2 * spread / np.sqrt(sizes)).idxmax()]
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


def returned(resting):
    """One row per label of `after_peak`: share still resident after SOON_S, and seconds until it is below
    LITTLE (nan: never)."""
    rows = []
    for label, table in resting.groupby("label", sort=False):
        below = table.loc[table["share"] < LITTLE, "seconds"]
        share = table.loc[table["seconds"] <= SOON_S, "share"].iloc[-1]
        rows.append({"label": label, "share": share, "seconds": below.iloc[0] if len(below) else np.nan})
    return pd.DataFrame(rows)
