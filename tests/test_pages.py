"""Pages and notebooks as a reader meets them: in a browser that cannot reach any network."""

import functools
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest

from hakmem_py import ROOT, pages, thumbnail

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
MARKS = "querySelectorAll('.trace, .hm')"  # what plotly draws for each kind of trace
CUT = """figures => figures.flatMap(figure => {
    const room = figure.getBoundingClientRect();
    const out = box => box.left < room.left - 1 || box.right > room.right + 1 || box.top < room.top - 1;
    const words = [...figure.querySelectorAll('svg text')].filter(word => word.checkVisibility());
    return words.filter(word => out(word.getBoundingClientRect())).map(word => word.textContent);
})"""  # the words that are cut off
LOST = "no figure is drawn, a request left the page, or the browser complained"

SPECIMEN = [
    (
        "markdown",
        "# A specimen of $\\sqrt{2 \\ln t / n}$\n\n## Question\nIt is short. **Does it draw?**\n\n## Run",
    ),
    ("code", "import hakmem_py as hp\nimport pandas as pd\nimport sys\nprint('working', file=sys.stderr)"),
    ("code", "table = pd.DataFrame({'t': [1, 2, 3], 'y': [1.0, 4.0, 9.0], 'who': 'ucb1'})"),
    ("code", "fig = hp.figures.curves(table, 't', 'y', 'who', title='</script><b>')\nfig"),
    ("markdown", "## Result\n$$ R_T = \\sum_i \\Delta_i\\, n_i $$"),
    ("code", "hp.report.headline('It draws & more', 'GO', fig)\nhp.report.table(table)"),
]


def write(path, cells):
    book = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    book.cells = [make[kind](text) for kind, text in cells]
    nbformat.write(book, path)
    return path


def report(*words):
    command = [sys.executable, "-m", "hakmem_py", "report", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def specimen(tmp_path_factory):
    """The reports folder of one small notebook that has everything a page can hold."""
    folder = tmp_path_factory.mktemp("specimen")
    done = report(write(folder / "00_specimen.ipynb", SPECIMEN), "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_links_lead_to_pages_whatever_their_names(tmp_path):
    record = {"part": "", "parameters": {}, "status": "ok", "started_at": "2026-01-01T00:00", "seconds": 1.0}
    for name in ("01_a", "02_100%#?"):
        book = nbformat.v4.new_notebook(metadata={"hakmem": {"record": record | {"name": name}}})
        nbformat.write(book, tmp_path / f"{name}.ipynb")
    card = pages._card(tmp_path / f"{name}.json", record | {"name": name})
    assert card["href"] == "html/02_100%25%23%3F.html" and card["results"]["at"].startswith(card["href"])
    assert '<a href="02_100%25%23%3F.html">02_100%#?</a>' in pages.page(tmp_path / "01_a.ipynb")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """(finished process, reports folder) of every notebook, drawn from the reference samples."""
    folder = tmp_path_factory.mktemp("site")
    return report("-p", "reference=true", "--out", folder), folder


class Visit:
    """A page open in the browser, and everything that it asked for or complained of."""

    def __init__(self, browser, url, **context):
        self.context = browser.new_context(**context)
        self.page, self.requests, self.complaints = self.context.new_page(), [], []
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.goto(url)

    def drawn(self):
        """Waits until every figure is drawn; the number of its traces, one for each figure."""
        self.page.wait_for_function(
            "[...document.querySelectorAll('figure.plot')].every(f => f.dataset.drawn)"
        )
        return self.page.evaluate(f"[...document.querySelectorAll('figure.plot')].map(f => f.{MARKS}.length)")

    def left_the_disk(self):
        return [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]


def visit(browser, path, **context):
    return Visit(browser, Path(path).as_uri(), **context)


@pytest.fixture
def opened(specimen, browser):
    """opened(**context): a visit to the specimen's page."""
    return functools.partial(visit, browser, specimen / "html" / "00_specimen.html")


# ---------------------------------------------------------------- what every page holds


def test_figures_are_drawn_and_nothing_is_asked_of_the_network(opened):
    open_page = opened()
    assert open_page.drawn() == [1]
    assert open_page.left_the_disk() == [] and open_page.complaints == []


def test_a_figure_has_its_text_for_those_who_cannot_see_it(opened):
    page = opened().page
    label = page.get_attribute("figure.plot [role=img]", "aria-label")
    assert "At the end: ucb1 9" in label and label == page.inner_text("figcaption")


def test_a_small_picture_shows_lines_of_one_point():
    """As those of patterns are, where one size was asked for."""
    line = {"type": "scatter", "mode": "lines+markers", "x": [128], "y": [7]}
    assert "<circle" in thumbnail.svg({"data": [line], "layout": {}})


def test_a_figure_without_text_is_refused():
    with pytest.raises(ValueError, match="alt text"):
        pages.figure({"data": [], "layout": {}})


def test_contents_formulas_result_and_provenance_are_on_the_page(opened):
    page = opened().page
    heads = ["Question", "Run", "Result", "Make this page again"]
    assert page.locator("nav.toc a").all_inner_texts() == heads
    assert page.locator("math").count() == 2 and page.locator("math msqrt").count() == 1
    assert page.inner_text(".headline") == "GO\nIt draws & more"
    assert "python -m hakmem_py report" in page.inner_text("#again")
    for anchor in page.eval_on_selector_all("nav.toc a", "links => links.map(a => a.hash.slice(1))"):
        assert page.locator(f"[id='{anchor}']").count() == 1


def test_code_is_folded_but_reachable(opened):
    page = opened().page
    assert not page.locator("details.code pre").first.is_visible()
    page.click("#code-switch")
    assert page.locator("details.code pre").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_take_the_colours_of_the_page(opened, scheme):
    open_page = opened(color_scheme=scheme)
    open_page.drawn()
    ink = open_page.page.evaluate("getComputedStyle(document.body).color")
    text = open_page.page.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill")
    assert text == ink
    open_page.page.hover(".plotly")
    bar = "getComputedStyle(document.querySelector('.modebar-group')).backgroundColor"
    assert open_page.page.evaluate(bar) == "rgba(0, 0, 0, 0)", "it lies on the title"
    open_page.page.locator(".modebar-btn").first.focus()
    open_page.page.keyboard.press("Tab")
    ring = "getComputedStyle(document.activeElement).outline"
    assert open_page.page.evaluate(ring).startswith(ink), "who uses the keys does not see where they are"


def test_a_phone_scrolls_in_one_direction_only(opened, specimen, browser):
    open_page = opened(viewport={"width": 360, "height": 740})
    open_page.drawn()
    assert open_page.page.locator(".modebar-btn").count() == 0
    assert open_page.page.evaluate("document.documentElement.scrollWidth") <= 360
    front = visit(browser, specimen / "index.html", viewport={"width": 360, "height": 740}).page
    assert front.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_phone_shows_the_numbers_of_a_heat_map_where_they_can_be_read(opened):
    open_page = opened(viewport={"width": 390, "height": 800})
    open_page.drawn()
    page = open_page.page
    drawn = """async n => {
        const row = Array(n).fill(1.23), x = row.map((_, i) => 'side ' + i), texttemplate = '%{text:.2f}';
        const data = [{type: 'heatmap', x, y: ['case'], z: [row], text: [row], texttemplate}];
        const figure = document.querySelector('figure.plot'), canvas = figure.querySelector('.canvas');
        figure.spec = {data, layout: {height: 300}};
        dispatchEvent(new Event('afterprint'));
        while (canvas.data[0].x?.length !== n) await new Promise(requestAnimationFrame);
        const numbers = [...canvas.querySelectorAll('.heatmap-label text')];
        return numbers.map(text => parseFloat(getComputedStyle(text).fontSize));
    }"""
    sizes = page.evaluate(drawn, 6)
    assert len(sizes) == 6 and min(sizes) >= 8, "too small to be read"
    assert page.evaluate(drawn, 11) == []


def test_paper_is_not_taken_for_a_phone(opened):
    page = opened(viewport={"width": 688, "height": 1000}).page
    badge_above = """line => line.querySelector('.badge').getBoundingClientRect().bottom
      <= line.querySelector('span:not(.badge)').getBoundingClientRect().top"""
    assert page.eval_on_selector(".headline", badge_above)
    page.emulate_media(media="print")
    assert not page.eval_on_selector(".headline", badge_above)


def test_a_verdict_has_its_tone_however_it_is_written():
    assert "bad" in pages.badge("not replicated") and "bad" in pages.badge("NOT REPLICATED")
    assert pages.badge(None) == ""
    assert pages.code("run `a < b`") == "run <code>a &lt; b</code>"


def test_pages_are_small_and_share_one_plotly(specimen):
    assert (specimen / "html" / "00_specimen.html").stat().st_size < 300_000
    assert (specimen / "html" / "plotly.min.js").stat().st_size > 1_000_000


def test_a_self_contained_page_needs_nothing_beside_it(specimen, browser, tmp_path):
    pages.write_page(specimen / "executed" / "00_specimen.ipynb", tmp_path, self_contained=True)
    assert [path.name for path in tmp_path.iterdir()] == ["00_specimen.html"]
    open_page = visit(browser, tmp_path / "00_specimen.html")
    assert open_page.drawn() == [1] and open_page.complaints == []


def test_a_page_is_open_before_its_figures_are_there(opened):
    open_page = opened()
    open_page.page.add_init_script("addEventListener('load', () => { self.then = typeof Plotly })")
    open_page.page.reload()
    assert open_page.drawn() == [1] and open_page.page.evaluate("self.then") == "undefined"


def test_a_page_that_lost_its_plotly_says_so(specimen, browser, tmp_path):
    shutil.copy(specimen / "html" / "00_specimen.html", tmp_path)
    page = visit(browser, tmp_path / "00_specimen.html").page
    page.wait_for_function("document.querySelector('.canvas').textContent.includes('--self-contained')")


def test_the_front_page_leads_and_finds(specimen, browser):
    open_page = visit(browser, specimen / "index.html")
    page = open_page.page
    assert page.inner_text(".card .results").split("\n") == ["GO", "It draws & more"]
    assert (
        page.inner_text(".card p >> nth=0") == "Does it draw?"
        and page.locator(".thumb svg polyline").count() == 1
    )
    page.fill("#search", "nowhere")
    assert not page.locator(".card").is_visible()
    page.fill("#search", "specimen draws")
    assert page.locator(".card").is_visible()
    page.click(".card h3 a")
    assert page.title().startswith("A specimen") and open_page.complaints == []


def test_a_page_begins_with_what_it_found(opened, specimen, browser):
    """Below its title: a picture and the results, each of which leads to the figure it was read from."""
    page = opened().page
    assert page.inner_text("h1 + .card .results").split("\n") == ["GO", "It draws & more"]
    assert page.locator("h1 + .card .thumb svg polyline").count() == 1
    figure = page.get_attribute("figure.plot", "id")
    page.click("h1 + .card .results a")
    assert page.evaluate("location.hash") == f"#{figure}"
    front = visit(browser, specimen / "index.html").page
    front.click(".results a")
    assert front.url.endswith(f"html/00_specimen.html#{figure}")


# ---------------------------------------------------------------- the real notebooks


def test_every_notebook_runs_from_the_reference_samples(site):
    done, folder = site
    assert done.returncode == 0, done.stderr
    assert sorted(path.stem for path in (folder / "html").glob("*.html")) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_page_of_every_notebook(site, browser, name, scheme, width):
    path = site[1] / "html" / f"{name}.html"
    if not path.exists():
        pytest.fail(f"{name} made no page:\n{site[0].stderr}")
    open_page = visit(browser, path, color_scheme=scheme, viewport={"width": width, "height": 900})
    traces = open_page.drawn()
    assert traces and all(traces), LOST
    assert open_page.left_the_disk() == [] and open_page.complaints == [], LOST
    page = open_page.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("figure.plot > [role=img][aria-label]").count() == len(traces)
    assert page.eval_on_selector_all("figure.plot .canvas", CUT) == []
    assert {"question", "prediction", "run", "result", "what-it-does-not-show"} <= set(
        page.eval_on_selector_all("h2", "heads => heads.map(h => h.id)")
    )
    aims = page.eval_on_selector_all("a[href^='#']", "links => links.map(a => a.hash.slice(1))")
    assert [aim for aim in aims if page.locator(f"[id='{aim}']").count() != 1] == []
    links = page.eval_on_selector_all("a[href]", "links => links.map(a => a.href.split('#')[0])")
    assert all(link.startswith(f"{site[1].as_uri()}/") for link in links), "a link leaves the reports' folder"
    assert all(Path(link.removeprefix("file://")).exists() for link in links), "a link leads nowhere"
    assert "Reference samples" in page.inner_text(".note")
    assert path.stat().st_size < 1_000_000


def test_paper_holds_all_columns_of_every_table(site, browser):
    cut = "all => all.filter(t => t.scrollWidth > t.clientWidth + 1).map(t => t.innerText.slice(0, 80))"
    page = browser.new_page(viewport={"width": 688, "height": 1000})  # A4 within the page's own margins
    page.emulate_media(media="print")
    for path in sorted((site[1] / "html").glob("*.html")):
        page.goto(path.as_uri())
        assert page.eval_on_selector_all(".html", cut) == [], path.name
        assert (
            page.eval_on_selector(".provenance th", "head => getComputedStyle(head).display") == "table-cell"
        )
    page.close()


def test_the_front_page_of_all(site, browser):
    open_page = visit(browser, site[1] / "index.html")
    assert open_page.page.locator(".card h3 a").count() == len(NOTEBOOKS)
    assert open_page.complaints == [] and open_page.left_the_disk() == []


def test_a_page_leads_to_those_that_it_names_and_to_the_next(site, browser):
    page = visit(browser, site[1] / "html" / f"{NOTEBOOKS[0]}.html").page
    assert page.locator("li strong a").all_inner_texts() == NOTEBOOKS[1:]
    for name in NOTEBOOKS[1:]:
        page.click("#again a")
        assert page.inner_text(".bar span") == name
    assert page.locator("#again a").count() == 0
    assert pages.linked("<code>07_pgo</code> 07_pgo", ["07_pgo"]).count("<a ") == 1


def test_a_drawing_script_that_was_cut_short_is_written_again(specimen, tmp_path):
    (tmp_path / "plotly.min.js").write_text("half of")
    pages.write_page(specimen / "executed" / "00_specimen.ipynb", tmp_path)
    assert (tmp_path / "plotly.min.js").stat().st_size > 1_000_000


# ---------------------------------------------------------------- JupyterLab, started for real


@pytest.fixture
def lab(tmp_path):
    """Address of a JupyterLab with a configuration of its own and one notebook, which reads the reference."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    text = (ROOT / "notebooks" / "04_patterns.ipynb").read_text()
    (folder / "book.ipynb").write_text(text.replace("reference: bool = False", "reference: bool = True"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    private = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "RUNTIME")}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
    command += [f"--port={port}", "--IdentityProvider.token=t", f"--notebook-dir={folder}"]
    command.append("--LabApp.news_url=None")
    with (tmp_path / "lab.log").open("w") as log:
        env = os.environ | private | {"IPYTHONDIR": str(tmp_path / "ipython")}
        server = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        try:
            _answers(f"http://127.0.0.1:{port}/api", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:  # how Jupyter ends is not what is tested here
                server.kill()
                server.wait()


def _answers(address, server):
    until = time.monotonic() + 90
    while time.monotonic() < until and server.poll() is None:
        try:
            return urllib.request.urlopen(address, timeout=2)
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError("JupyterLab did not start")


def test_run_all_in_jupyterlab_draws_the_figures(lab, browser):
    page = Visit(
        browser, f"{lab}/lab/tree/book.ipynb?token=t&reset", viewport={"width": 1280, "height": 900}
    ).page
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)
    page.wait_for_selector("text=Python 3 (ipykernel) | Idle", timeout=60_000)  # else the click is lost
    page.click(".lm-MenuBar-itemLabel:text-is('Run')", timeout=30_000)
    page.click("li[data-command='runmenu:run-all']")
    page.wait_for_function("document.querySelector('table.provenance')", timeout=120_000)  # the last cell
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg .trace').length > 20")
    assert page.locator("[data-mime-type='application/vnd.jupyter.error']").count() == 0
