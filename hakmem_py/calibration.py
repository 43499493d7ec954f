"""How far this machine's verdicts can be trusted: error rates of the ruler, and of naive rules, on real runs.

Input: the samples of experiment 01_ruler, each block of which holds the same allocator twice ("same",
"again") and once with an exact slow-down ("slow"). Disjoint groups of consecutive blocks are comparisons of
their own, so one long series holds hundreds of them, with the drift and the bursts that this machine really
has.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats as sps

from . import ROOT, provenance, store
from .estimates import (
    CONFIDENCE,
    POWER,
    RUN_THRESHOLD,
    autocorrelation,
    bracketed,
    cv,
    plan,
    ratio,
    robust_cv,
    robust_sd,
    verdict,
)
from .ranks import signed_rank_p

FILE = ROOT / "data" / "calibration.json"
GROUP = 8  # pairs of one A/A comparison; the level of the exact test is 3.9 % there
TEN = 10  # runs a side of the naive rules
PILOT = 600  # blocks from which the planner learns the noise: long enough for the moods of a machine
LEAST_BLOCKS = 200  # a calibration needs more
EFFECT = 0.01  # the slow-down that 01_ruler injects
LEAST_TRIALS = 10  # a rate over fewer comparisons is not drawn
ENOUGH = 400  # with fewer comparisons an error rate is only an indication
WORST_RATE = 0.08  # the upper Wilson bound of false positives must stay below this
COVERAGE = (0.93, 0.97)
ALPHA = 1 - CONFIDENCE
OURS = f"{GROUP} randomised pairs: signed rank"


def costs(samples, metric="cpu_ns_per_op"):
    """`metric` (ns per operation) of each block in which all three runs succeeded, in the order of blocks.

    Columns same, again, slow.
    """
    good = samples[samples["status"] == "ok"]
    table = good.pivot_table(index="block", columns="allocator", values=metric, aggfunc="last", observed=True)
    return table.reindex(columns=["same", "again", "slow"]).dropna().sort_index()


def rate(events):
    """Share of true values with Wilson 95 % interval: {rate (None: no trial), low, high, events, trials}."""
    trials, events = len(events), int(np.sum(events))
    low, high = sps.binomtest(events, trials).proportion_ci(1 - ALPHA, "wilson") if trials else (0, 1)
    share = {"rate": events / trials if trials else None, "low": max(0.0, round(float(low), 12))}
    return share | {"high": float(high), "events": events, "trials": trials}


def groups(table, size):
    """Disjoint runs of `size` consecutive rows."""
    return [table.iloc[i : i + size] for i in range(0, len(table) - size + 1, size)]


def error_rates(table):
    """What the ruler does where the truth is known: {name: as of `rate`}. table: see `costs`."""
    null = [ratio(part["again"], part["same"]) for part in groups(table, GROUP)]
    slow = [ratio(part["slow"], part["same"]) for part in groups(table, GROUP)]
    kinds = [verdict(e).kind for e in null]
    return {
        "false_positives": rate([e.p_value <= ALPHA for e in null]),
        "false_go": rate([kind == "GO" for kind in kinds]),
        "false_no_go": rate([kind == "NO-GO" for kind in kinds]),
        "coverage": rate([e.low <= 1 <= e.high for e in null]),
        "coverage_slow": rate([e.low <= 1 + EFFECT <= e.high for e in slow]),
    }


def planned_power(table):
    """How often a slow-down is found with the n that the planner names from the blocks before it.

    {effect: {planned_n (median; None: infinite), and as of `rate`}}. A pilot (identical sides) and the
    comparison behind it move through the series together, n blocks at a time but at most a sixth of a pilot:
    where n is larger, comparisons overlap. 1 % is the injected slow-down; for 2 % and 5 % the identical
    side's times are multiplied, which comes to the same, as the measured 1 % shows (`slow_ratio`).
    """
    null, slow = (np.log(table[name] / table["same"]).to_numpy() for name in ("again", "slow"))
    effects = {0.01: slow, 0.02: null + np.log(1.02), 0.05: null + np.log(1.05)}
    return {f"{effect:.0%}": _walk(null, d, effect) for effect, d in effects.items()}


def _walk(null, d, effect):
    pilot = min(PILOT, len(d) // 2)
    start, planned, found = pilot, [], []
    while True:
        n = plan(effect, null[start - pilot : start])
        planned.append(n)
        if start + n > len(d):
            middle = np.median(planned)
            return {"planned_n": int(middle) if np.isfinite(middle) else None, **rate(found)}
        found.append(_found(d[start : start + n]))
        start += min(n, pilot // 6)


def _found(d):
    return signed_rank_p(d) <= ALPHA and np.median(d) > 0


def power_curve(table, sizes=(10, 20, 50, 100, 200, 400, 800)):
    """Share of comparisons of n pairs in which a difference is seen: truth, n, rate, low, high.

    Comparisons are disjoint groups of blocks; an n with fewer than 10 of them is left out.
    """
    d = np.log(table[["slow", "again"]].div(table["same"], axis=0))
    rows = []
    for n in sizes:
        for side, truth in (("slow", "1 % slower"), ("again", "no difference")):
            seen = [signed_rank_p(part) <= ALPHA for part in groups(d[side], n)]
            rows.append({"truth": truth, "n": n, **rate(seen)})
    found = pd.DataFrame(rows).sort_values("truth", kind="stable")
    return found[found["trials"] >= LEAST_TRIALS]


# ---------------------------------------------------------------- naive rules on the same runs


def failing(table):
    """How many of the usual rules of `rules` certainly raise more false alarms than they promise, and the
    worst of these, in words."""
    usual = table[~table["rule"].str.contains("randomised")]
    bad = usual[usual["low"] > ALPHA].sort_values("rate")
    if bad.empty:
        return f"no usual rule, in so few comparisons ({usual['trials'].min()} or more each)"
    worst = bad.iloc[-1]
    rate = bracketed(worst["rate"], worst["low"], worst["high"], ".1%")
    return f"{len(bad)} of {len(usual)} usual rules, the worst of them ({worst['rule']}) {rate}"


def rules(samples, metric="cpu_ns_per_op"):
    """False decisions of naive rules and of ours on identical binaries: rule, rate, low, high, ...

    The naive ones see the runs of both identical sides in the order in which they ran, as if all of A had run
    first and all of B after it; ours sees the randomised blocks.
    """
    good = samples[(samples["status"] == "ok") & (samples["allocator"] != "slow")]
    good = good.sort_values(["block", "position"])  # not by the clock, which can jump
    x, extra = good[metric].to_numpy(float), good["extra"].map(json.loads)
    rows = {}
    for n in (TEN, 3 * TEN):
        a, b = _in_sequence(x, n)
        welch = sps.ttest_ind(a, b, axis=1, equal_var=False).pvalue
        rows[f"{n} of A, then {n} of B: Welch t"] = welch <= ALPHA
        rows[f"{n} of A, then {n} of B: Mann-Whitney"] = sps.mannwhitneyu(a, b, axis=1).pvalue <= ALPHA
        rows[f"{n} of A, then {n} of B: GO if the mean gains 1 %"] = a.mean(1) / b.mean(1) > 1 + RUN_THRESHOLD
    rows["chunks of one process as samples: Welch t"] = _chunks_as_samples(extra) <= ALPHA
    table = costs(samples, metric)
    for n in (GROUP, TEN, 3 * TEN):
        estimates = [ratio(part["again"], part["same"]) for part in groups(table, n)]
        rows[f"{n} randomised pairs: signed rank"] = [e.p_value <= ALPHA for e in estimates]
        rows[f"{n} randomised pairs: verdict GO"] = [verdict(e).kind == "GO" for e in estimates]
    return pd.DataFrame([{"rule": rule, **rate(events)} for rule, events in rows.items()])


def _in_sequence(x, n):
    """Runs in their order, n to A and the next n to B, again and again: two arrays (comparisons, n)."""
    folded = x[: len(x) // (2 * n) * 2 * n].reshape(-1, 2, n)
    return folded[:, 0], folded[:, 1]


def _chunks_as_samples(extra):
    """p-values of Welch's t between neighbouring processes if their timed chunks are taken as samples."""
    mean, sd, chunks = (np.array([x[name] for x in extra]) for name in ("cpu_mean_ns", "cpu_sd_ns", "chunks"))
    even = len(mean) // 2 * 2
    a, b = slice(0, even, 2), slice(1, even, 2)
    return sps.ttest_ind_from_stats(
        mean[a], sd[a], chunks[a], mean[b], sd[b], chunks[b], equal_var=False
    ).pvalue


# ---------------------------------------------------------------- tables for readers


MEANINGS = {
    "run_ms": "median length of a run, ms",
    "load": "median one-minute load of the machine",
    "cv": "CV of single runs",
    "robust_cv": "the same, from medians: how a typical run behaves",
    "noise_sd": "standard deviation of the paired log ratio",
    "robust_noise_sd": "the same, from medians",
    "autocorrelation": "of neighbouring pairs: 0 where a block does not depend on the one before",
    "slow_ratio": "measured ratio of the side with exactly 1 % more work",
}


def facts(result):
    """The noise of a calibration as rows: name, value, meaning."""
    rows = [(name.replace("_", " "), result[name], meaning) for name, meaning in MEANINGS.items()]
    return pd.DataFrame(rows, columns=["name", "value", "meaning"])


def shares(result, names):
    """Rates of a calibration as rows: name, rate, low, high, events, trials; planned_n where there is one.

    planned_n is null where the pilot was too short for this noise.
    """
    return pd.DataFrame([{"name": name.replace("_", " "), **result[name]} for name in names])


def price(table, run_ms, effects=(0.005, 0.01, 0.02, 0.05, 0.1)):
    """Pairs, and seconds inside their runs, needed to find each effect at this noise; inf: not known.

    table: see `costs`; run_ms: length of one run in ms. Columns effect, pairs, seconds.
    """
    noise = np.log(table["again"] / table["same"])
    pairs = [plan(effect, noise) for effect in effects]
    shown = [f"{effect:.1%}" for effect in effects]
    return pd.DataFrame({"effect": shown, "pairs": pairs, "seconds": [2e-3 * n * run_ms for n in pairs]})


# ---------------------------------------------------------------- the record of this machine


def judge(samples):
    """The calibration of the machine that made these samples: plain values, ready for JSON."""
    table = costs(samples, samples.attrs.get("metric", "cpu_ns_per_op"))
    if len(table) <= LEAST_BLOCKS:
        raise ValueError(
            f"a calibration needs more than {LEAST_BLOCKS} complete blocks: measure more, there are "
            f"{len(table)}"
        )
    noise = np.log(table["again"] / table["same"])
    identity = samples["provenance"].iloc[-1]
    facts = store.demand_json(Path(samples.attrs["folder"], f"provenance-{identity}.json"))
    result = {
        "when": f"{samples['started_at'].max():%Y-%m-%d %H:%M} UTC", "kernel": facts["kernel"],
        "machine": _machine(facts["host"], facts["machine"]),
        "build": samples["build_hash"].iloc[-1], "blocks": len(table), "group": GROUP,
        "run_ms": float(samples["elapsed_ns"].median() / 1e6), "load": float(samples["load1"].median()),
        "cv": cv(table["same"]), "robust_cv": robust_cv(table["same"]), "noise_sd": float(np.std(noise)),
        "robust_noise_sd": robust_sd(noise), "autocorrelation": autocorrelation(noise),
        "slow_ratio": ratio(table["slow"], table["same"]).value, **error_rates(table),
        "power": planned_power(table),
    }  # fmt: skip
    return result | {"complaints": complaints(result)}


def complaints(result):
    """What is wrong with a calibration, in words: an interval excludes what is promised, or is too wide."""
    found, power = result["false_positives"], result["power"]["1%"]
    tests = {
        f"false positives {found['rate']:.1%}, promised 5 %": found["low"] > ALPHA,
        f"false positives may reach {found['high']:.1%}": found["trials"] >= ENOUGH
        and found["high"] > WORST_RATE,
        f"1 % is found too seldom at n = {power['planned_n']}": power["high"] < POWER,
    }
    for name in ("coverage", "coverage_slow"):
        share = result[name]
        wrong = share["high"] < COVERAGE[0] or share["low"] > COVERAGE[1]
        tests[f"{name.replace('_', ' ')} {share['rate']:.1%}"] = wrong
    return [text for text, wrong in tests.items() if wrong]


def record(result):
    """Keeps a calibration as its machine's: the full one where comparisons are enough, else a check."""
    machines, trials = _recorded(), result["false_positives"]["trials"]
    earlier = machines.get(result["machine"])
    kept = earlier if isinstance(earlier, dict) else {}
    machines[result["machine"]] = {"full": result} if trials >= ENOUGH else kept | {"check": result}
    store.save_json(FILE.parent, FILE.name, machines)


def calibration_note():
    """One sentence for the top of every report: how far verdicts of this machine can be trusted."""
    mine = _recorded().get(_machine(provenance.host(), provenance.machine()), {})
    try:
        return _note(mine.get("full"), mine.get("check"))
    except (LookupError, TypeError, ValueError, AttributeError):  # by hand, or by another version
        return f"The calibration of this machine in {FILE.name} cannot be read: run `hakmem calibrate` again."


def _note(full, check):
    if not (full or check):
        return "This machine is not calibrated: run `hakmem calibrate` before believing a verdict made on it."
    for result in filter(None, (full, check)):
        if result["kernel"] != provenance.kernel():
            other = result["kernel"]
            return f"This machine was calibrated under another kernel, {other}: run `hakmem calibrate`."
    for result in filter(None, (full, check)):
        if result["complaints"]:
            what = f"({result['when']}): {'; '.join(result['complaints'])}"
            return f"The calibration of this machine is bad {what}. Verdicts made on it are in doubt."
    if not full:
        return f"This machine is calibrated by a short check only: {_said(check)}"
    return f"Calibrated: {_said(full)}"


def _said(x):
    wrong, inside, power = x["false_positives"], x["coverage"], x["power"]["1%"]
    noise = x["robust_noise_sd"]
    if power["planned_n"] is None:
        found = "comparisons too few and noisy to tell how many pairs an injected 1 % takes"
    else:
        rate = "not shown" if power["trials"] < LEAST_TRIALS else f"{power['rate']:.2f}"
        found = f"power for an injected 1 % at the planned n = {power['planned_n']}: {rate}"
    return (
        f"{wrong['rate']:.1%} false positives in {wrong['trials']} A/A comparisons (at most "
        f"{wrong['high']:.1%}), "
        f"intervals hold the truth in {inside['rate']:.1%}, {found}; noise of a pair {noise:.1%}, "
        f"load {x['load']:.1f}, {x['when']}."
    )


def _recorded():
    return store.read_json(FILE) if FILE.exists() else {}


def _machine(host, machine):
    return f"{host}, {machine}"
