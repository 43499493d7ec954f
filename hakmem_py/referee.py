"""The referee's list: ten faults of the published reports, each shown by their own figures or by our samples.

Every function returns (fault, what was published, what can be seen). Rates are found by resampling what was
published or measured, with a fixed seed.
"""

import re

import numpy as np
import pandas as pd

from . import claims

DRAWS = 20_000
WINDOW_S = 0.5  # the fast loop of the published learner
STRESS_OPS = 269_320  # operations of the published stress, by its report
BENCHES_SAID, RUNS_SAID = 14, 7121  # what two reports say of themselves
SERIES = ["experiment", "case", "allocator"]  # runs of the same work
RUNS = 10  # of each allocator in each scenario


def faults(samples):
    """All ten as a DataFrame: fault, published, shown. samples: {experiment: DataFrame}."""
    measured = pd.concat(samples.values(), ignore_index=True)
    measured = measured[measured["status"] == "ok"]
    random = np.random.default_rng(1)
    rows = [
        below_a_cycle(measured),
        cost_below_zero(measured, random),
        one_side_trained(),
        another_session(),
        benches_counted(),
        runs_counted(),
        test_missing(),
        rank_of_noise(random),
        windows_counted(),
        ten_run_means(measured, random),
    ]
    return pd.DataFrame(rows, columns=["fault", "published", "shown"])


def _same_work(measured, random, runs):
    """Means of `runs` runs of the same work, drawn twice: two arrays (DRAWS,), each pair from one series."""
    series = [cost.to_numpy() for _, cost in measured.groupby(SERIES)["cpu_ns_per_op"] if len(cost) > 1]
    chosen = random.multinomial(DRAWS, np.full(len(series), 1 / len(series)))
    drawn = [random.choice(cost, (2, n, runs)).mean(axis=2) for cost, n in zip(series, chosen, strict=True)]
    return np.concatenate(drawn, axis=1)


def below_a_cycle(measured):
    value = claims.published("P0", "numa_strategies", "time")
    called = measured[(measured["unit"] == "call") & (measured["backend"] == "malloc")]
    least = called.nsmallest(1, "min_cpu_ns_per_op").iloc[0]
    shown = (
        f"of {len(called)} runs here that call a library, the fastest ({least['allocator']}, "
        f"{least['case']}) takes {1000 * least['min_cpu_ns_per_op']:.0f} ps a call in its fastest chunk"
    )
    said = f"allocating by a placement policy takes {value.min():.0f} ps"
    return "a time in which no call fits", said, shown


def cost_below_zero(measured, random):
    value = claims.published("P0", "stats_overhead", "time")
    gain = value["with"] / value["without"] - 1
    a, b = _same_work(measured, random, 1)
    share = np.mean(np.abs(a / b - 1) >= abs(gain))
    shown = f"of two runs of the same work here, {share:.0%} differ by as much or more"
    return "work that costs less than nothing", f"reading statistics changes the time by {gain:+.1%}", shown


def one_side_trained():
    lone = claims.published("P2", "pgo_effect", "throughput_32B")
    system = claims.published("P2", "test4_interleaved", "throughput_32B")["system"]
    trained, plain = lone["hakmem-pgo"] / system, lone["hakmem-plain"] / system
    shown = f"compared like with like, both without a profile, it is {plain:.0%}: the rest is the compiler's"
    return "a profile on one side only", f"hakmem reaches {trained:.0%} of system in test 4", shown


def another_session():
    rows = claims.figures().query("report == 'P2'").pivot_table("value", ["experiment", "metric"], "subject")
    both = (rows["hakmem-pgo-earlier"] / rows["hakmem-pgo"]).dropna() - 1
    shown = (
        f"the same version of hakmem differs by {both.min():+.0%} to {both.max():+.0%} between two sessions"
    )
    return "a rival from another session", "mimalloc's 307 M/s comes from an earlier run", shown


def benches_counted():
    count = len(claims.figures().query("report == 'P0'"))
    return "a count that is not one", f"{BENCHES_SAID} benches", f"{count} are listed"


def runs_counted():
    rows = claims.figures().query("report == 'P1'")
    cells = rows["experiment"].nunique() * rows["subject"].nunique()
    shown = f"{cells} cells of {RUNS} runs are {cells * RUNS}"
    return "a sum that is not one", f"{RUNS_SAID} runs", shown


def test_missing():
    names = claims.figures().query("report == 'P2'")["experiment"].unique()
    numbers = sorted(int(found[1]) for name in names if (found := re.match(r"test(\d+)", name)))
    missing = sorted(set(range(1, max(numbers) + 1)) - set(numbers))
    shown = f"tests {', '.join(map(str, numbers))} are reported, {', '.join(map(str, missing))} never was"
    return "a test that vanished", f"tests numbered up to {max(numbers)}", shown


def rank_of_noise(random):
    rows = claims.figures().query("report == 'P1' and experiment == 'json'")
    means, spreads = rows["value"].to_numpy()[:, None, None], rows["stdev"].to_numpy()[:, None, None]
    medians = np.median(random.normal(means, spreads, (len(rows), DRAWS // 10, RUNS)), axis=2)
    first = rows["subject"].iloc[int(np.argmin(rows["value"]))]
    holds = np.mean(np.argmin(medians, axis=0) == int(np.argmin(rows["value"])))
    spread = rows["stdev"].iloc[int(np.argmin(rows["value"]))] / rows["value"].min()
    shown = f"ten runs drawn again from the published spreads put {first} first in {holds:.0%} of trials only"
    return "a rank of noise", f"{first} is first on json, with a CV of {spread:.0%}", shown


def windows_counted():
    speed = claims.published("P4", "fragmentation_stress", "throughput")["ace_off"]
    seconds = STRESS_OPS / (speed * 1e6)
    shown = (
        f"a run of {1000 * seconds:.0f} ms holds {seconds / WINDOW_S:.1f} windows of {1000 * WINDOW_S:.0f} ms"
    )
    return "a learner that had no time", "ACE wins 7.8 to 10.7 %", shown


def ten_run_means(measured, random):
    a, b = _same_work(measured, random, RUNS)
    share = np.mean(a / b - 1 > 0.01)
    shown = f"between identical programs, with the spread measured here, that is so in {share:.0%} of trials"
    return "a threshold on means", f"GO where the mean of {RUNS} runs gains 1 %", shown
