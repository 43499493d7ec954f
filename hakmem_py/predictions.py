"""What became of the predictions that notebooks make before measuring: one row each, judged by the samples.

Every function returns a DataFrame of prediction, found, held (yes, no, or open where the interval does not
decide); a prediction for which nothing was measured has no row.
"""

import numpy as np
import pandas as pd

from . import calibration, ceiling, stats
from .sides import EQUIVALENT
from .style import listed

BY_FACTORS = 1.5  # times: from here on something is a matter of factors and not of tenths
SIZE_MATTERS = 1.2  # largest size over smallest, above which size matters
LAYOUT_MOVES = 1.03  # times at most: a percent or two
DRAWS = 200  # of whole blocks
FEW_PERCENT = 1.05  # times at most, either way
NEARLY_A_COIN = (0.3, 0.7)  # share of comparisons in which a rule says yes
COIN = (0.25, 0.75)  # share of the claims that come back
NEARLY_ALL = 0.8  # share of the windows, once a few were tried
FEW_TRIES = 10  # windows
HARDLY_ANY = 0.05  # share of the slabs
NO_COST = 1e-3  # share of the instructions: less comes from setting up
SMALL_BYTES = 256
YOUNG_BYTES = 1 << 16  # taken by the program meanwhile
WIN_PERCENTS = 1.25  # times at most, either way
CALLED = ("hakmem", "mimalloc", "tcmalloc", "jemalloc")  # whose cache is said to hold a hundred blocks


def _table(rows):
    """rows: (prediction, found, held)."""
    table = pd.DataFrame(rows, columns=["prediction", "found", "held"])
    return table.assign(held=table["held"].map({True: "yes", False: "no"}).fillna("open"))


def _inside(low, high, least, most):
    """Whether a value with this interval lies between least and most; None: the interval does not tell."""
    if least < low and high < most:
        return True
    return False if high < least or most < low else None


def _all_inside(table, least, most):
    """As `_inside`, for all rows (columns low, high) together: False where one certainly lies outside."""
    told = [_inside(low, high, least, most) for low, high in table[["low", "high"]].to_numpy(float)]
    return False if False in told else None if None in told else True


def _certainly(yes, no):
    """True, False or, where neither is certain, None."""
    return True if yes else False if no else None


def _redrawn(samples, told):
    """value, low, high: the Series told(median times by allocator, size_bytes, workload) with 95 % intervals,
    from drawing whole blocks again."""
    keys = ["allocator", "size_bytes", "workload"]
    blocks = samples.pivot_table("cpu_ns_per_op", ["host", "block"], keys, "last", sort=False)
    low, high = 0.0, np.inf
    if len(blocks) >= stats.MIN_PAIRS:
        drawn = stats.redrawn_medians(blocks, np.random.default_rng(1), DRAWS)
        values = [told(pd.Series(medians, blocks.columns)) for medians in drawn]
        low, high = pd.concat(values, axis=1).quantile([0.025, 0.975], axis=1).to_numpy()
    return pd.DataFrame({"value": told(blocks.median()), "low": low, "high": high})


def _span(times):
    """Time of the slowest order over the fastest, of each allocator: the median over the sizes."""
    span = times.groupby(["allocator", "size_bytes"], sort=False).agg(lambda t: t.max() / t.min())
    return span.groupby("allocator", sort=False).median()


def _growth(times):
    """Time at the largest size over that at the smallest, of each allocator: the median over the orders."""
    wide = times.unstack("size_bytes")
    growth = wide[wide.columns.max()] / wide[wide.columns.min()]
    return growth.dropna().groupby("allocator", sort=False).median()


def rules(table):
    """Of 01_ruler. table: `calibration.rules`."""
    rate = table.set_index("rule")[["rate", "low", "high"]]

    def said(rule):
        return stats.bracketed(*rate.loc[rule], ".1%")

    def above(rule):
        return True if rate.loc[rule, "low"] > calibration.ALPHA else None

    ten, thirty = (f"{n} of A, then {n} of B: " for n in (calibration.TEN, 3 * calibration.TEN))
    t, t30, go = f"{ten}Welch t", f"{thirty}Welch t", f"{ten}GO if the mean gains 1 %"
    worse = rate.loc[t30, "low"] > rate.loc[t, "high"], rate.loc[t30, "high"] < rate.loc[t, "low"]
    chunks, ours = "chunks of one process as samples: Welch t", calibration.OURS
    low, high = rate.loc[ours, ["low", "high"]]
    rows = [
        ("runs in a row raise more false alarms than 5 %", said(t), above(t)),
        ("more runs per side make it worse", f"{said(t)}, then {said(t30)}", _certainly(*worse)),
        (
            "the mean of ten is nearly a coin",
            said(go),
            _inside(*rate.loc[go, ["low", "high"]], *NEARLY_A_COIN),
        ),
        ("parts of one process are no samples", said(chunks), above(chunks)),
        (
            "randomised pairs: 5 % or a little less",
            said(ours),
            _certainly(high <= calibration.WORST_RATE, low > calibration.ALPHA),
        ),
    ]
    return _table(rows)


def heap(spans, steps):
    """Of 02_anatomy. spans: `native.spans`; steps: `anatomy.journey`."""
    slabs = spans[spans["kind"] == "slab"]
    first = slabs[slabs["superslab"] == slabs["superslab"].iloc[0]]
    empty, back = int((slabs["used"] == 0).sum()), steps["same_address"].dropna()
    used = steps["slab_used"]
    rows = [
        (
            "thirty-two slabs of as many sizes in a superslab",
            f"{len(first)} slabs of {first['block_size'].nunique()} sizes in the first",
            len(first) == first["block_size"].nunique() == 32,
        ),
        ("hardly any slab becomes empty", f"{empty} of {len(slabs)} are", empty <= HARDLY_ANY * len(slabs)),
        ("a freed block is the next one returned", "yes" if back.all() else "another came", bool(back.all())),
        (
            "a block goes home only when somebody tidies up",
            f"out of its slab: {used.iloc[0]} until the last step, then {used.iloc[-1]}",
            bool((used.iloc[:-1] == used.iloc[0]).all() and used.iloc[-1] < used.iloc[0]),
        ),
    ]
    return _table(rows)


def scenarios(samples):
    """Of 03_scenarios. An allocator gives pages back in a case where it faults at least once per block."""
    good = samples[samples["status"] == "ok"]
    faults = (good["minor_faults"] / good["ops"]).groupby([good["case"], good["allocator"]]).median()
    table = stats.compare(samples, baseline="hakmem-baseline").dropna(subset="ratio")
    table = table.set_index(["case", "allocator"])
    gives = table[(faults.reindex(table.index) >= 1).to_numpy()]
    rows = []
    if len(gives):
        said = [f"{who} on {case} {row['ratio']:.1f}" for (case, who), row in gives.iterrows()]
        certain = _certainly((gives["low"] > BY_FACTORS).all(), (gives["high"] < BY_FACTORS).any())
        rows.append(("who gives pages back early loses by factors", "times: " + ", ".join(said), certain))
    learned = table[table.index.get_level_values("allocator") == "hakmem-evolving"].droplevel("allocator")
    if len(learned):
        found = f"evolving over baseline: {listed(learned['ratio'], '{:.2f}')}"
        held = _all_inside(learned, 1 / FEW_PERCENT, FEW_PERCENT)
        rows.append(("learning costs a few percent at most", found, held))
    return _table(rows)


def patterns(samples):
    """Of 04_patterns: how times depend on order and on size, and what inlining saves."""
    good, rows = samples[samples["status"] == "ok"], []
    called = good[good["allocator"].isin(CALLED)]
    if not called.empty:
        span = _redrawn(called, _span)
        found = f"slowest over fastest order: {listed(span['value'], '{:.2f}')}"
        rows.append(("orders differ by tenths", found, _all_inside(span, 0, BY_FACTORS)))
    low, high = good["size_bytes"].min(), good["size_bytes"].max()
    if low < high:
        growth = _redrawn(good, _growth)
        found = f"time at {high:.0f} B over {low:.0f} B: {listed(growth['value'], '{:.2f}')}"
        rows.append(("size matters little", found, _all_inside(growth, 0, SIZE_MATTERS)))
    pair = samples[samples["allocator"].isin(["hakmem", "inlined"])]
    means = stats.geometric_mean(stats.compare(pair, baseline="hakmem"))
    if len(means) and np.isfinite(means["ratio"].iloc[0]):
        share = means.iloc[0]
        found = f"{stats.bracketed(share['ratio'], share['low'], share['high'])} of the library's time"
        rows.append(("inlined takes two thirds", found, _inside(share["low"], share["high"], 0.6, 0.73)))
    return _table(rows)


def random_mixed(table):
    """Of 05_scorecard. table: `stats.compare` of random mixed, mimalloc the baseline."""
    found = table.set_index("allocator").dropna(subset="ratio")
    expected = {
        "hakmem": ("within 15 % of mimalloc, either way", 1 / 1.15, 1.15),
        "system": ("the system allocator at half", 1.75, 2.25),
    }
    rows = []
    for name, (prediction, least, most) in expected.items():
        if name in found.index:
            ratio, low, high = found.loc[name, ["ratio", "low", "high"]]
            said = f"{name} takes {stats.bracketed(ratio, low, high)} of mimalloc's time"
            rows.append((prediction, said, _inside(low, high, least, most)))
    if "floor" in found.index:
        best = min(1.0, found.drop("floor")["ratio"].min())
        share, low, high = found.loc["floor", ["ratio", "low", "high"]] / best
        said = f"the floor takes {stats.bracketed(share, low, high)} of the best time"
        rows.append(("the floor at less than twice the best speed", said, _inside(low, high, 0.5, np.inf)))
    return _table(rows)


def pools(table, size, walk, warm, cold, call_ns):
    """Of 06_pools. table: `stats.compare` with the pool as baseline. Estimates of time over time: size, ten
    cycles in the largest pool over the smallest; walk, a pair where all objects are used, likewise; warm, ten
    cycles without preallocation over with; cold, the first pass likewise. call_ns: the quickest call."""
    cycle = table[table["case"] == "pool_cycle"].dropna(subset="ratio").set_index("allocator")
    floor, others = cycle[cycle.index == "floor"], cycle.drop("floor", errors="ignore")
    rows = []
    if len(floor):
        close = stats.bracketed(*(1 / floor.iloc[0][["ratio", "high", "low"]].astype(float)))
        found = f"a cycle takes {close} of the floor's time"
        rows.append(("a pool comes close to the floor", found, _all_inside(floor, 1 / BY_FACTORS, np.inf)))
    if len(others):
        found = f"times of the pool's: {listed(others['ratio'], '{:.1f}')}"
        held = _all_inside(others, BY_FACTORS, np.inf)
        rows.append(("it leaves every allocator behind by a factor", found, held))
    rows += [
        ("as published, size cannot matter", *_within(size, 1 / SIZE_MATTERS, SIZE_MATTERS)),
        ("where all objects are used, it does", *_within(walk, SIZE_MATTERS, np.inf)),
        ("preallocation cannot help a warm pool", *_within(warm, 1 / FEW_PERCENT, FEW_PERCENT)),
        ("and must help a cold one", *_within(cold, 1, np.inf)),
        ("no system call fits into 267 ps", f"the quickest takes {call_ns:.3g} ns", call_ns > 0.267),
    ]
    return _table(rows)


def _within(estimate, least, most):
    """(found, held) of an Estimate."""
    found = f"time over time {stats.bracketed(estimate.value, estimate.low, estimate.high)}"
    return found, _inside(estimate.low, estimate.high, least, most)


def profile(builds, table):
    """Of 07_pgo. builds: `stats.compare_builds`; table: `stats.compare`, both with plain as baseline."""
    known = builds.set_index("case").dropna(subset="ratio")
    gains = 100 * (1 / known["ratio"] - 1)
    gained = _certain(known, known["high"] < 1)
    found = f"gain in percent: {listed(gains, '{:+z.1f}')}; a gain is certain in {gained} of {len(known)}"
    not_tens = _all_inside(known, 1 / 1.1, np.inf)  # times of plain
    nothing = (known["low"] > 1 / (1 + stats.MARGIN)).all()  # certainly no gain of one percent anywhere
    found += "; nowhere as much as one percent" if nothing else ""
    held = False if nothing or not_tens is False else not_tens if gained else None
    rows = [("a few percent, not tens", found, held)]
    layouts = table[table["allocator"].str.startswith("plain, layout")].dropna(subset="ratio")
    if len(layouts):
        moved = 100 * (layouts["ratio"].astype(float) - 1)
        said = f"another layout moves a case by {moved.min():+.1f} to {moved.max():+.1f} %"
        held = _all_inside(layouts, 1 / LAYOUT_MOVES, LAYOUT_MOVES)
        rows.append(("a layout alone moves a result by a percent or two", said, held))
    wrong = table[table["allocator"] == "pgo, wrong training"].dropna(subset="ratio").set_index("case")
    small = wrong[~wrong.index.str.startswith("json")]
    if len(small):
        said = f"time over plain: {listed(small['ratio'], '{:.2f}')}"
        slower = _certain(small, small["low"] > 1) > 0
        held = slower or (None if (small["high"] > 1 + stats.MARGIN).any() else False)
        rows.append(("wrong training may make small blocks slower", said, held))
    return _table(rows)


def _certain(table, one_side):
    """How many rows are on this side of 1 for certain, by p values adjusted for all comparisons."""
    return int((one_side & (table["p_adjusted"] <= 1 - stats.CONFIDENCE)).sum())


def learner(won, raced, history, overhead, rested):
    """Of 09_ace. won: `ceiling.oracle`; raced: the watched side's rows of `ab.judge`; history: decisions of
    one learner; overhead: `ab.overhead`, None where nothing was counted; rested: `ceiling.returned`."""
    best = history.groupby("setting")["reward"].mean().idxmax()
    share = (history["setting"] == best).iloc[FEW_TRIES:].mean()
    said = stats.bracketed(*won.iloc[0][["held_out", "low", "high"]].astype(float), ".3f")
    times = raced.apply("{case} {ratio:.2f} [{low:.2f}, {high:.2f}]".format_map, axis=1)
    few = (raced["verdict"] == "FEW FIRINGS").any()  # ACE had no time to learn, so nothing is decided
    ours = rested[rested["label"] == "hakmem"].iloc[0]
    rows = [
        (
            "nothing to win by the number of blocks alone",
            f"fixed over oracle, held out: {said}",
            _all_inside(won, 0, 1 + EQUIVALENT),
        ),
        (
            "something to win by their bytes",
            "ACE over fixed: " + ", ".join(times),
            None if few else _all_inside(raced, 0, 1),
        ),
        (
            "the best capacity holds almost all windows",
            f"{best} blocks: {share:.0%} of them after {FEW_TRIES}",
            bool(share >= NEARLY_ALL),
        ),
    ]
    if overhead is not None:
        most = overhead["ratio"].max()
        rows.append(
            ("a hit costs nothing", f"instructions: at most {most:.5f} times", bool(most < 1 + NO_COST))
        )
    found = f"{ours['share']:.1%} of it resident after {ceiling.SOON_S:g} s"
    rows.append(("a peak goes back while the program rests", found, bool(ours["share"] < ceiling.LITTLE)))
    return _table(rows)


def thresholds(table, sizes):
    """Of 11_elo_sites. table: `stats.compare` with a column `mb`; sizes: MB of a block, by case."""
    table = table.dropna(subset="ratio")
    low, rows = table["mb"] <= table["case"].map(sizes), []
    for prediction, chosen, least, most in (
        ("at or below the block's size a threshold is a disaster", table[low], BY_FACTORS, np.inf),
        ("above it all thresholds are alike", table[~low], 1 / FEW_PERCENT, FEW_PERCENT),
    ):
        if len(chosen):
            found = f"times of the highest's: {chosen['ratio'].min():.2f} to {chosen['ratio'].max():.2f}"
            rows.append((prediction, found, _all_inside(chosen, least, most)))
    return _table(rows)


def program(sizes, lifetimes, time, memory):
    """Of 12_your_program. sizes, lifetimes: of `demand`; time, memory: `ab.judge` of CPU time and peaks."""
    small = sizes.loc[sizes["at_most"] <= SMALL_BYTES, "block_share"].sum()
    young = lifetimes.query("of == 'blocks' and age <= @YOUNG_BYTES")["share"].max()
    time, memory = (table.dropna(subset="ratio").set_index("allocator") for table in (time, memory))
    rows = [
        ("nine in ten blocks are small", f"up to {SMALL_BYTES} bytes: {small:.1%}", bool(small >= 0.9)),
        ("half of them die young", f"within {YOUNG_BYTES >> 10} KiB: {young:.1%}", bool(young >= 0.5)),
    ]
    if len(time):
        found = f"times: {listed(time['ratio'], '{:.2f}')}"
        held = _all_inside(time, 1 / WIN_PERCENTS, WIN_PERCENTS)
        rows.append(("an allocator wins percents, not factors", found, held))
    fastest = time["ratio"].astype(float).idxmin() if len(time) else None
    if len(time) and time.loc[fastest, "ratio"] >= 1:
        rows.append(("the fastest takes more memory", "the fastest is the first side itself", None))
    elif fastest in memory.index:
        row = memory.loc[fastest]
        found = f"{fastest}: {stats.bracketed(row['ratio'], row['low'], row['high'])} times the memory"
        rows.append(("the fastest takes more memory", found, _certainly(row["low"] > 1, row["high"] < 1)))
    return _table(rows)


def published(verdicts):
    """Of 13_claims. verdicts: `claims.judge`."""
    tested = verdicts[verdicts["ratio"].notna()]
    back, lost = tested["verdict"].str.startswith("replicated"), tested["verdict"] == "not replicated"
    large = tested["claim"].str.startswith("P1")
    ours = tested["claim"].str.contains("hakmem") & ~tested["claim"].str.contains("pgo_effect")
    small = np.abs(np.log(tested["claimed"].astype(float))) < np.log(1.1)
    small &= tested["hypothesis"] == "difference"  # that nothing differs is another kind of claim

    def count(rows):
        return f"{int((rows & back).sum())} of {int(rows.sum())} replicated"

    others = large & ~ours
    shares = back[small].mean(), 1 - lost[small].mean()  # none of the undecided ones comes back, or all do
    rows = [
        (
            "large effects of others on large blocks come back",
            count(others),
            _certainly(back[others].all(), lost[others].any()),
        ),
        (
            "hakmem against others does not come back",
            count(ours),
            _certainly(lost[ours].all(), back[ours].any()),
        ),
        ("effects below 10 % come back as often as a coin", count(small), _inside(*shares, *COIN)),
    ]
    return _table([row for row, chosen in zip(rows, (others, ours, small), strict=True) if chosen.any()])
