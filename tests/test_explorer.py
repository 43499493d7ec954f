"""The explorer: its JavaScript repeats the C policies play by play, and its page works alone."""

import itertools
import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from hakmem_py import bandits, explorer
from hakmem_py.problems import ACE_MEANS, BanditError

SIX = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
PLAYS = 1500
CASES = [  # (policy, parameters)
    ("ucb1", {}),
    ("ucb1-tuned", {}),
    ("ucb-scaled", {}),
    ("ucb-scaled", {"scale": 0.02}),
    ("ucb-near", {}),
    ("ucb-near", {"arm": 4, "gamma": 1}),
    ("ucb-near", {"least": 0.5}),
    ("ucb-restart", {}),
    ("ucb-recall", {}),
    ("d-ucb", {}),
    ("d-ucb", {"gamma": 0.98, "scale": 0}),
    ("kl-ucb", {}),
    ("epsilon-greedy", {"epsilon": 0.2}),
    ("thompson-gaussian", {}),
    ("exp3", {}),
    ("elo", {}),
    ("elo", {"restart": 8}),
    ("halving", {}),
    ("halving", {"budget": 100}),
    ("round-robin", {}),
]
PLAYED = """
const runs = %s.map((task) => simulate(task));
tell(runs.map((run) => ({ arm: run.arm, reward: run.reward, regret: run.regret.at(-1) })));
"""
MOVED = """
const drift = "best arm moves on, four times", means = [1, 2, 3, 4, 5, 6];
const best = ({ means }) => means.indexOf(Math.max(...means));
tell([2, 3, 4, 5, 6, 7, 8, 9, 10].map((arms) => pieces({ means, arms, drift, horizon: 1000 }).map(best)));
"""


def ask(tmp_path, code):
    """What JavaScript that knows the module tells."""
    module, script = tmp_path / "explorer.mjs", tmp_path / "run.mjs"
    shutil.copy(explorer.MODULE, module)
    head = f'import {{ simulate, pieces }} from "{module.as_uri()}";\n'
    script.write_text(head + "const tell = (found) => console.log(JSON.stringify(found));\n" + code)
    return json.loads(subprocess.run([node(), script], capture_output=True, text=True, check=True).stdout)


def node():
    """Node, or the one that Playwright brings along."""
    found = shutil.which("node")
    if not found:
        playwright = pytest.importorskip("playwright")
        found = Path(playwright.__file__).parent / "driver" / "node"
    return found


@pytest.mark.parametrize(
    ("rewards", "noise", "means", "changes"),
    [
        ("bernoulli", "bernoulli", SIX, {}),
        ("gaussian:0.02", 0.02, list(ACE_MEANS), {500: list(ACE_MEANS[::-1]), 800: list(ACE_MEANS)}),
        ("exact", 0, SIX, {700: SIX[::-1]}),
    ],
)
def test_the_module_repeats_the_c_policies_play_by_play(tmp_path, rewards, noise, means, changes):
    pieces = [{"start": 0, "means": means}, *({"start": t, "means": m} for t, m in changes.items())]
    shared = {"pieces": pieces, "noise": noise, "horizon": PLAYS, "seed": 11}
    tasks = [{"policy": policy, "parameters": parameters, **shared} for policy, parameters in CASES]
    answer = ask(tmp_path, PLAYED % json.dumps(tasks))
    assert {policy for policy, _ in CASES} == set(explorer.CHOICES)
    for (policy, parameters), theirs in zip(CASES, answer, strict=True):
        ours = bandits.simulate(policy, means, rewards, PLAYS, 1, seed=11, changes=changes, **parameters)
        assert theirs["arm"] == ours.arms_played.tolist(), policy
        assert theirs["reward"] == pytest.approx(ours.rewards_seen.tolist(), abs=1e-14), policy
        assert theirs["regret"] == pytest.approx(ours.total_regret.mean), policy


def test_where_the_best_arm_moves_on_no_phase_returns(tmp_path):
    for arms, best in enumerate(ask(tmp_path, MOVED), 2):
        assert all(before != after for before, after in itertools.pairwise(best)), arms
        assert len(set(best)) == min(arms, 5), arms


def test_the_module_knows_the_name_of_every_choice_and_drift():
    source = explorer.MODULE.read_text(encoding="utf-8")
    names = [*explorer.CHOICES.values(), *explorer.DRIFTS]
    assert [name for name in names if f'"{name}"' not in source] == []


def test_what_cannot_be_shown_is_refused():
    with pytest.raises(BanditError, match="allowed: ucb1, "):
        explorer.explorer(policy="doubling")
    with pytest.raises(BanditError, match="0 to 3"):
        explorer.explorer(drift=7)


def test_the_widget_carries_a_page_that_needs_nothing_else():
    data, _ = explorer.explorer(labels=["</script>"] * 6)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    page = data["text/html"]
    assert page.count("</script>") == 1
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert len(page) < 60_000


def recorded():
    """Three decisions of a learner with two arms."""
    names = ["arm", "next_arm", "reward", "mean", "index_0", "index_1", "phase"]
    events = [
        (0, 1, 0.5, 0.5, 0.9, float("inf"), 0),
        (1, 1, 0.7, 0.7, 0.8, 1.0, 0),
        (1, 0, 0.3, 0.5, 0.8, 0.7, 1),
    ]
    return pd.DataFrame(events, columns=names).assign(learner=0, block_size=64, threads=2)


def test_events_become_decisions():
    rows = explorer.decisions(recorded())
    assert [row["arm"] for row in rows] == [0, 1, 1, 0]
    assert "128 was chosen" in explorer.decisions(recorded().assign(next_arm=3))[1]["note"]
    assert [row["reward"] for row in rows] == [0.5, 0.7, 0.3, None]
    assert rows[0]["mean"] == rows[0]["index"] == [None, None]
    assert rows[1]["mean"] == [0.5, None]
    assert rows[1]["index"] == [0.9, None]
    assert rows[3]["mean"] == [0.5, 0.5]
    with pytest.raises(BanditError, match="keep one"):
        explorer.decisions(recorded().assign(learner=[0, 0, 1]))


@pytest.fixture
def shown(browser, tmp_path):
    """Opens an explorer in a browser without network: (page, errors and requests seen)."""
    pages = []

    def show(**options):
        file = tmp_path / "page.html"
        file.write_text(
            f"<!doctype html><meta charset=utf-8>{explorer.page(explorer.explorer(**options).options)}"
        )
        page, seen = browser.new_page(), []
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda request: seen.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector(".said")
        pages.append(page)
        assert seen == [file.as_uri()]
        return page

    yield show
    for page in pages:
        page.close()


def test_it_can_be_stepped_played_scrubbed_and_changed(shown):
    page = shown()
    said = page.locator(".said")
    assert "Play 1 of 1200" in said.inner_text()
    page.get_by_role("button", name="one play on").click()
    assert "Play 2 of 1200" in said.inner_text()
    slider = page.get_by_role("slider", name="Play")
    slider.focus()
    page.keyboard.press("End")
    assert "Play 1200 of 1200" in said.inner_text()
    assert "21 % of the plays" in said.inner_text()
    page.get_by_label("Policy").select_option("UCB scaled by the noise")
    assert "Play 1200 of 1200" in said.inner_text()
    assert "9" in said.inner_text().split("best arm got ")[1][:1]
    slider.focus()
    page.keyboard.press("Home")
    page.get_by_role("button", name="▶ Play").click()
    page.get_by_text("its index is the highest").wait_for()
    page.get_by_role("button", name="❚❚ Pause").click()
    assert "Play 1 of" not in said.inner_text()


def test_paper_which_is_narrower_than_the_screen_holds_all_of_it(shown):
    narrowed = """all => { document.body.style.width = '600px'; // as for paper: it is not told before
      const right = (node) => node.getBoundingClientRect().right;
      return all.filter(t => right(t) > right(t.ownerSVGElement) + 1).map(t => t.textContent) }"""
    page = shown()
    assert page.eval_on_selector_all("svg text", narrowed) == []
    keys = "all => all.map(i => getComputedStyle(i).printColorAdjust)"
    page.emulate_media(media="print")
    assert set(page.eval_on_selector_all("i", keys)) == {"exact"}


@pytest.mark.parametrize("width", [1200, 500, 360])
def test_words_in_the_bars_stand_clear_of_the_marks_and_have_the_colour_of_the_text(shown, width):
    """JupyterLab's theme need not be the system's, whose Canvas may have the colour of the letters."""
    overlaps = """svg => [...svg.querySelectorAll('text')].filter(word => {
      const a = word.getBoundingClientRect(), others = [...svg.querySelectorAll('line, text')];
      return others.filter(other => other !== word).some(other => {
        const b = other.getBoundingClientRect();
        return a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top < a.bottom - 2; });
    }).map(word => word.textContent)"""
    for arms in (2, 10):
        means = [0.9 + 0.1 * arm / arms for arm in range(arms)]
        page = shown(means=means, labels=[str(arm) for arm in range(arms)])
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("() => new Promise(requestAnimationFrame)")
        drawing = page.locator("svg#arms")
        assert "index ∞" in drawing.text_content()
        assert drawing.evaluate(overlaps) == []
        strokes = page.eval_on_selector_all("svg text", "all => all.map(t => getComputedStyle(t).stroke)")
        assert set(strokes) == {"none"}


def test_a_plain_key_pressed_in_it_is_no_command_of_jupyterlab(shown):
    page = shown()
    page.evaluate("taken = []; document.addEventListener('keydown', (event) => taken.push(event.key))")
    page.get_by_label("Policy").press("x")
    page.get_by_role("slider", name="Play").press("d")
    page.get_by_role("button", name="▶ Play").press("Control+s")
    assert page.evaluate("taken") == ["Control", "s"]


def test_a_recorded_run_is_stepped_through_in_the_same_way(shown):
    page = shown(rows=explorer.decisions(recorded()), labels=["16", "32"])
    page.get_by_role("button", name="one play on").click()
    assert (
        "Window 2 of 4: capacity 32 is in force; nothing was known of it yet"
        in page.locator(".said").inner_text()
    )
    page.get_by_role("button", name="one play on").click()
    words = page.locator(".said").inner_text()
    assert "Window 3 of 4: capacity 32 is in force" in words
    assert "Phase 0" in words
    assert page.locator(".knobs").count() == 0
    assert "Rewards over time, from 0.300 to 0.600" in page.locator("svg#curve").get_attribute("aria-label")
