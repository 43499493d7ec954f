"""The bandit explorer for notebooks and pages: explorer.js together with what it is to show.

    explorer()                                   # UCB1 on ACE's rewards, against the noise-scaled one
    explorer(policy="ucb-scaled", drift=1)
    explorer(rows=decisions(events))             # a recorded ACE run, decision by decision

Live in JupyterLab it is an anywidget; in an exported page the same module is inlined with its data, and
needs neither kernel nor network.
"""

import html
import json
import math
from functools import cache
from pathlib import Path
from uuid import uuid4

from .problems import ACE_CAPACITIES, ACE_MEANS, ACE_REWARDS, ACE_WINDOWS, BanditError, parse_rewards

MODULE = Path(__file__).with_name("explorer.js")
CHOICES = {  # policy -> its name in the explorer's list
    "ucb1": "UCB1",
    "ucb1-tuned": "UCB1-tuned",
    "ucb-scaled": "UCB scaled by the noise",
    "ucb-near": "scaled, neighbours only",
    "ucb-restart": "scaled, restart on a change",
    "ucb-recall": "scaled, recalls earlier phases",
    "d-ucb": "discounted (D-UCB), scaled",
    "kl-ucb": "KL-UCB",
    "epsilon-greedy": "ε-greedy",
    "thompson-gaussian": "Thompson, Gaussian",
    "exp3": "Exp3",
    "elo": "Elo, then its winner",
    "halving": "successive halving",
    "round-robin": "round-robin",
}
DRIFTS = (
    "none",
    "best arm changes half-way",
    "best arm moves on, four times",
    "two phases alternate, twelve times",
)
ACE_LABELS = tuple(map(str, ACE_CAPACITIES))
DIGITS = 7  # of a recorded number: finer than a bar can show, at half of a page's bytes


def explorer(
    policy="ucb1",
    rival="ucb-scaled",
    means=ACE_MEANS,
    rewards=ACE_REWARDS,
    horizon=ACE_WINDOWS,
    seed=1,
    exploration=1.0,
    drift=0,
    labels=ACE_LABELS,
    noun="capacity",
    rows=None,
):
    """The explorer, shown by being a cell's last value. Raises BanditError.

    exploration: factor of every bonus. drift: 0 to 3, see DRIFTS. labels: names of the arms, `noun` what
    they are. rows: a recorded run (see `decisions`) instead of a simulated one, to step through.
    """
    for name in (policy, rival):
        if name not in CHOICES:
            raise BanditError(f"policy {name!r} cannot be explored; allowed: {', '.join(CHOICES)}")
    if drift not in range(len(DRIFTS)):
        raise BanditError(f"drift {drift!r} is not known; allowed: 0 to {len(DRIFTS) - 1}")
    if not isinstance(seed, int) or seed < 0:
        raise BanditError(f"seed {seed!r} is not allowed; allowed: whole numbers from 0")
    kind, deviation = parse_rewards(rewards)
    options = {
        "policy": CHOICES[policy],
        "rival": CHOICES[rival],
        "means": list(means),
        "noise": "bernoulli" if kind == "bernoulli" else deviation,
        "horizon": horizon,
        "seed": seed,
        "exploration": exploration,
        "drift": DRIFTS[drift],
        "labels": list(labels),
        "noun": noun,
        "rows": rows,
    }
    return _widget()(options=options)


def decisions(events, labels=ACE_LABELS):
    """Rows for `explorer` from the events of one ACE learner, a DataFrame in order (see `ace.history`).

    Row 0 is the first window, before which nothing was known. Event n ends a window: it holds every arm's
    index after the update and the arm chosen for the next window. Event n + 1 then tells that window's reward
    and the arm in force in it, which may still be the old one if no refill took up the new one.
    """
    if events["learner"].nunique() > 1:
        raise BanditError(
            "events of several learners cannot be one run; keep one: events[events.learner == 0]"
        )
    columns = [name for name in events.columns if name.startswith("index_")]
    records = events.to_dict("records")
    first, means = records[0], {}
    rows = [
        {
            "arm": int(first["arm"]),
            "reward": _short(first["reward"]),
            "mean": [None] * len(columns),
            "index": [None] * len(columns),
            "phase": int(first["phase"]),
            "note": f"The first window, in which {labels[first['arm']]} was in force; nothing is known yet.",
        }
    ]
    for now, then in zip(records, [*records[1:], None], strict=True):
        means[now["arm"]] = now["mean"]
        rows.append(
            {
                "arm": int(then["arm"] if then else now["next_arm"]),
                "reward": _short(then["reward"]) if then else None,
                "mean": [_short(means.get(arm)) for arm in range(len(columns))],
                "index": [_short(now[name]) for name in columns],
                "phase": int(now["phase"]),
                "note": _note(now, then, labels),
            }
        )
    return rows


def _short(number):
    """A number as a page keeps it; None where there is none."""
    return float(f"{number:.{DIGITS}g}") if number is not None and math.isfinite(number) else None


def _note(now, then, labels):
    where = f"Phase {now['phase']}, {now['block_size']} byte blocks, {now['threads']} threads"
    if then is None or then["arm"] == now["next_arm"]:
        return f"{where}."
    return (
        f"{where}; {labels[now['next_arm']]} was chosen, but no refill took it up, so this is still in force."
    )


def page(options):
    """The explorer as HTML that needs nothing else: the module inline, started with these options."""
    place = f"explorer-{uuid4().hex[:8]}"
    module = MODULE.read_text(encoding="utf-8").replace("</", "<\\/")
    data = json.dumps(options, separators=(",", ":")).replace("<", "\\u003c")
    start = f'mount(document.getElementById("{place}"), {data});'
    label = html.escape("Bandit explorer; it needs JavaScript.")
    script = f'<script type="module">{module}\n{start}</script>'
    return f'<div id="{place}"><noscript>{label}</noscript></div>{script}'


@cache
def _widget():
    """The widget class; made on first use, so that reading data needs no widget library."""
    import anywidget
    import traitlets

    class Explorer(anywidget.AnyWidget):
        _esm = MODULE
        options = traitlets.Dict().tag(sync=True)

        def _repr_mimebundle_(self, **kwargs):
            live, *metadata = super()._repr_mimebundle_(**kwargs) or ({},)
            return {**live, "text/plain": "Bandit explorer", "text/html": page(self.options)}, *metadata

    return Explorer
