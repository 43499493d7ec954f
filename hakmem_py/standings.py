"""What is said of the runs of a comparison: which tell nothing, who is faster, by how much, how surely.

A side that learns must have learned something: its decisions are counted in its history
(HAKMEM_ACE_EVENTS), and with fewer than 100 in a run there is no result unless one is asked for.
"""

import sys
from math import ceil

from . import native, stats, store
from .sides import EQUIVALENT, METRICS, AbError

FIRINGS = 100  # decisions of a loop inside the measured interval, below which nothing was learned
FIRED = {"fast": "firings", "slow": "slow_firings"}  # loop -> column of its decisions
SHOWN = ["allocator", "ratio", "low", "high", "n", "p_adjusted", "tost_p", "cv", "verdict", "needs_n"]


def refuse(target, one, row, allow_few, env=(), share=1.0):
    """Raises AbError where a trial run failed, or its side decided too seldom; says what would help.

    share: the part of the run in which the side's learner is at work.
    """
    if row["status"] != "ok":
        raise AbError(f"side {one.label}: {row['error']}")
    if one.loop is None or allow_few or (fired := row[FIRED[one.loop]]) >= FIRINGS:
        return
    seconds, option = row["elapsed_ns"] / 1e9, f"--{one.loop}-interval-ms"
    knob = f"ace_{one.loop}_interval_ms"
    asked = {**dict(env), **one.env}.get(f"HAKMEM_{knob.upper()}")
    interval = int(asked or native.knobs().at[knob, "preset"])
    ways, shorter = [], max(1, int(800 * seconds * share / FIRINGS))
    if shorter < interval:
        ways.append(f"{option} {shorter}")
    if target.bench and fired:
        more = 1.2 * FIRINGS / fired
        larger = f"--scale {more:.2g} times as large"
        ways.append(f"--seconds {ceil(target.seconds * more)}" if target.seconds else larger)
    rare = "" if ways else "; its blocks hardly leave the magazines, so there is little to learn"
    raise AbError(
        f"side {one.label}: {fired} firings in {seconds:.2g} s, below {FIRINGS} nothing is learned{rare}: "
        f"{', '.join([*ways, ''])}{'or ' if ways else ''}--allow-few for a marked result"
    )


def judge(samples, metric="cpu_ns_per_op"):
    """`stats.compare` with the baseline, and for every case and side the fewest firings of its runs, and
    medians of settled, peak_rss_mb and cached_kb. All cases are one family.

    A row whose side, or baseline, had fewer than 100 decisions in any run keeps its numbers; its verdict says
    FEW FIRINGS. tost_p: below 5 % the side takes the same time as the baseline, within EQUIVALENT.
    """
    baseline, loops = samples.attrs["baseline"], samples.attrs["loops"]
    table, cases = stats.compare(samples, baseline, metric), dict(iter(samples.groupby("case", sort=False)))
    for i, case, label in table[["case", "allocator"]].itertuples():
        sides = cases[case][cases[case]["allocator"].isin([label, baseline])]
        timed = stats.timed(sides, metric).query("status == 'ok'")
        pairs = timed.pivot(index="block", columns="allocator", values=metric)
        pairs = pairs.reindex(columns=[label, baseline]).dropna()
        rows, ran = sides[sides["allocator"] == label], sides[sides["status"] == "ok"]
        least = {
            side: ran.loc[ran["allocator"] == side, FIRED[loops[side]]].min()
            for side in (label, baseline)
            if loops[side]
        }
        table.loc[i, "tost_p"] = stats.tost(pairs[label], pairs[baseline], EQUIVALENT) if len(pairs) else None
        table.loc[i, "settled"] = rows["settled"].median()
        table.loc[i, "firings"] = least.get(label)
        table.loc[i, "peak_rss_mb"] = rows["peak_rss_bytes"].median() / 1e6
        table.loc[i, "cached_kb"] = rows["cached_bytes"].median() / 1e3
        if any(fired < FIRINGS for fired in least.values()):
            table.loc[i, "verdict"] = "FEW FIRINGS"
    return table


def show(target, samples, args, memory=("peak_rss_mb", "cached_kb")):
    """Prints what `judge` says of samples, and the errors of runs that failed. memory: columns to show."""
    metric, what = METRICS[args.metric]
    baseline = samples.attrs["baseline"]
    if metric not in samples:
        errors = samples["error"].value_counts()
        raise RuntimeError(
            f"no run of {target.label} succeeded; {errors.iloc[0]} of {len(samples)}: {errors.index[0]}"
        )
    short = (samples["status"] == "ok") & samples[metric].isna()
    unseen = f"ended too soon for a peak, because memory is read every few ms: give {target.label} more to do"
    if short.any() and samples[metric].isna().all():
        raise RuntimeError(f"all {len(samples)} runs failed or {unseen}")
    table = judge(samples, metric)
    said = f"{what} of each side / that of {baseline}"
    base = samples[samples["allocator"] == baseline].median(numeric_only=True)
    peak = base["peak_rss_bytes"] / 1e6
    alone = "" if target.bench else " of it alone, without its children"
    peak = f"peak {peak:.4g} MB{alone}" if peak == peak else "ended too soon for a peak"
    time = base["wall_ns_per_op" if args.metric == "wall" else "cpu_ns_per_op"]
    time_said = f"{time:.4g} ns an operation" if target.bench else f"{time / 1e6:.4g} ms"
    print(f"{target.label}: {said} ({time_said}, {peak}), ", end="")
    print(f"{samples['block'].nunique()} blocks, seed {args.seed}")
    learned = ["settled", "firings"] if any(samples.attrs["loops"].values()) else []
    shown = table[[*SHOWN, *learned, *memory]].dropna(axis="columns", how="all")
    shown = shown.rename(columns={"tost_p": f"tost_p({EQUIVALENT:.0%})"})  # a verdict's margin is another
    print(shown.to_string(index=False, float_format="{:.4g}".format, na_rep="-"))
    if note := stats.family_note(table):
        print(note)
    store.tell_errors(samples)
    if short.any():
        print(f"{short.sum()} runs {unseen}", file=sys.stderr)
