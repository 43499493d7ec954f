"""Executed notebooks as offline HTML pages, and the front page that leads through them.

Each page begins with what it found: a picture and its results, which lead to the figures they are read from.

A page makes no request: styles, scripts and formulas are in it, figures are drawn by one plotly.min.js that
all pages share (or inside the page, if it is to be mailed). Reads notebooks and records only; runs nothing.
"""

import hashlib
import html
import json
import re
from pathlib import Path
from urllib.parse import quote

import nbformat
from jinja2 import Environment, FileSystemLoader, pass_context
from latex2mathml.converter import convert as mathml
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from plotly.offline import get_plotlyjs
from traitlets.config import Config

from . import store, thumbnail
from .notebook import HEADLINE, PLOTLY, damage, incomplete

TEMPLATES = Path(__file__).parent / "templates"
# Of an output in several forms a page shows the first of these. Widgets, which need a kernel, are left out.
FORMS = [
    PLOTLY,
    HEADLINE,
    "text/html",
    "text/markdown",
    "image/svg+xml",
    "image/png",
    "text/latex",
    "text/plain",
]
TONES = {
    **dict.fromkeys(["GO", "FASTER", "REPLICATED"], "good"),
    **dict.fromkeys(["NO-GO", "SLOWER", "NOT REPLICATED", "VOID"], "bad"),
    "UNDECIDED": "open",
}
FIRST = 4  # results of a notebook that its page and the front page show unfolded


def badge(verdict):
    """A verdict as a small label: the word says it, the colour only helps."""
    tone = TONES.get((verdict or "").upper(), "")
    return f'<span class="badge {tone}">{html.escape(verdict)}</span>' if verdict else ""


def code(text):
    """A line of text as HTML, what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def slug(text):
    """A heading's anchor."""
    return re.sub(r"[^\w]+", "-", re.sub(r"<[^>]+>", "", text).lower()).strip("-")


class _Renderer(IPythonRenderer):
    """Markdown to HTML: formulas become MathML, headings are remembered as (level, anchor, text)."""

    def __init__(self):
        super().__init__(escape=False)
        self.outline = []

    def heading(self, text, level, **attributes):
        self.outline.append((level, slug(text), re.sub(r"<[^>]+>", "", text)))
        return f'<h{level} id="{slug(text)}">{text}</h{level}>\n'

    def inline_math(self, body):
        return mathml(body)

    def block_math(self, body):
        return mathml(body, display="block")

    def latex_environment(self, name, body):
        return mathml(f"\\begin{{{name}}}{body}\\end{{{name}}}", display="block")


def markdown(source):
    """(HTML, outline) of a markdown text."""
    renderer = _Renderer()
    return MarkdownWithMath(renderer=renderer).render(source), renderer.outline


def linked(text, names):
    """HTML with links to the pages of these names, wherever its text names them."""

    def link(found):
        name = found["name"]
        return f'<a href="{name}.html">{name}</a>' if name in names else found[0]

    return re.sub(r"<(code|pre|a)\b.*?</\1>|<[^>]+>|\b(?P<name>\d\d_\w+)", link, text, flags=re.DOTALL)


def figure(spec):
    """A plotly figure (its JSON) with its alt text; page.js draws it. Raises ValueError without the text."""
    alt = (spec["layout"].get("meta") or {}).get("alt")
    if not alt:
        raise ValueError("a figure has no alt text: make it by a function of hakmem_py.figures")
    height = spec["layout"].get("height", 450)  # px; 450 is plotly's own default
    drawing = json.dumps({key: spec[key] for key in ("data", "layout", "frames", "config") if spec.get(key)})
    canvas = (
        f'<div class="canvas" role="img" aria-label="{html.escape(alt)}" style="min-height:{height}px"></div>'
    )
    drawing = drawing.replace("<", "\\u003c")  # nothing inside may end the script element
    script = f'<script type="application/json">{drawing}</script>'
    words = f"<figcaption>{html.escape(alt)}</figcaption>"
    return f'<figure class="plot" id="{place(alt)}">{canvas}{script}{words}</figure>'


def place(alt):
    """The anchor of the figure with this alt text."""
    return f"figure-{hashlib.sha256(alt.encode()).hexdigest()[:8]}"


def special(data):
    """The outputs that only this project knows: a figure or a headline."""
    if PLOTLY in data:
        return figure(data[PLOTLY])
    line = data[HEADLINE]
    return f'<p class="headline">{badge(line["verdict"])}<span>{html.escape(line["text"])}</span></p>'


class PageExporter(HTMLExporter):
    """nbconvert with the template of this package."""

    def __init__(self):
        config = Config({"NbConvertBase": {"display_data_priority": FORMS}})
        super().__init__(config=config, template_name="hakmem", extra_template_basedirs=[str(TEMPLATES)])
        self.register_filter("special", special)
        self.register_filter("code", code)
        self.register_preprocessor(CoalesceStreamsPreprocessor, enabled=True)

    @pass_context
    def markdown2html(self, context, source):
        return linked(markdown(source)[0], context["resources"]["page"]["beside"])


def outputs(notebook, form):
    """Every output of the given MIME form, in order."""
    return [
        output.data[form]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if form in output.get("data", {})
    ]


def outline(notebook):
    """[(level, anchor, text)] of all headings."""
    return [
        head for cell in notebook.cells if cell.cell_type == "markdown" for head in markdown(cell.source)[1]
    ]


def title(notebook, name):
    """The first heading, or the notebook's name."""
    return next((text for level, _, text in outline(notebook) if level == 1), name)


def question(notebook):
    """The question in bold under the heading "Question", or the first paragraph there, as HTML."""
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    section = re.search(r"^#+ Question\s*\n(.+?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    if not section:
        return ""
    bold = re.search(r"\*\*([^*]+\?)\*\*", section[1])
    asked = bold[1] if bold else section[1].strip().split("\n\n")[0]
    return re.sub(r"</?p>", "", markdown(asked)[0]).strip()


def results(notebook, page=""):
    """What a notebook found: {thumbnail: SVG, at: where it leads, lines: [(badge, text, where)]}, as HTML.

    page: the address of its page, "" where the results stand on that page itself. The picture is the figure
    that a headline names, or the first one.
    """
    headlines, figures = outputs(notebook, HEADLINE), outputs(notebook, PLOTLY)
    alts = [figure["layout"]["meta"]["alt"] for figure in figures]
    named = [line["figure"] for line in headlines if line["figure"] in alts]
    alt = (named or alts or [""])[0]

    def where(figure):
        return f"{page}#{place(figure) if figure in alts else 'result'}"

    return {
        "thumbnail": thumbnail.svg(figures[alts.index(alt)]) if alts else "",
        "at": where(alt),
        "lines": [
            (badge(line["verdict"]), html.escape(line["text"]), where(line["figure"])) for line in headlines
        ],
    }


def page(executed, self_contained=False):
    """HTML of one executed notebook (path): its record, put there by the batch, ends the page, which links to
    those beside it unless it is to be mailed."""
    notebook = nbformat.read(executed, as_version=4)
    there = [path.stem for path in sorted(executed.parent.glob("*.ipynb"))]
    beside = [] if self_contained else [name for name in there if not name.endswith(".failed")]
    record = notebook.metadata.get("hakmem", {}).get("record", {})
    template = TEMPLATES / "hakmem"
    resources = {
        "page": {
            "name": executed.stem,
            "title": title(notebook, executed.stem),
            "outline": outline(notebook),
            "results": results(notebook),
            "first": FIRST,
            "code": any(cell.cell_type == "code" for cell in notebook.cells),
            "reference": record.get("parameters", {}).get("reference", False),
            "calibration": record.get("calibration", ""),
            "beside": beside,
            "next": next((name for name in beside if name > executed.stem), ""),
            "command": record.get("command", ""),
            "made": made(record),
            "css": (template / "page.css").read_text(encoding="utf-8"),
            "js": (template / "page.js").read_text(encoding="utf-8"),
            "plotly": get_plotlyjs() if self_contained and outputs(notebook, PLOTLY) else "",
        }
    }
    notebook.metadata.pop("widgets", None)  # megabytes of state that no page can show
    return PageExporter().from_notebook_node(notebook, resources)[0]


def made(record):
    """When and how long, in words."""
    if not record:
        return ""
    return f"Made on {record['started_at'][:16].replace('T', ' ')} UTC in {record['seconds']:.0f}\u00a0s."


def write_page(executed, folder, self_contained=False):
    """The page of an executed notebook into `folder`, plotly.min.js beside it. Returns its path."""
    script, drawing = folder / "plotly.min.js", get_plotlyjs()
    if not (self_contained or (script.exists() and script.read_text(encoding="utf-8") == drawing)):
        store.save_text(folder, script.name, drawing)
    path = folder / f"{executed.stem}.html"
    store.save_text(folder, path.name, page(executed, self_contained))
    return path


# ---------------------------------------------------------------- the front page


def _words(notebook, name):
    """What the search box looks through: every word of name, text, figures' captions and results, once."""
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    figures = [figure["layout"]["meta"]["alt"] for figure in outputs(notebook, PLOTLY)]
    found = [f"{line['verdict']} {line['text']}" for line in outputs(notebook, HEADLINE)]
    text = re.sub(r"<[^>]+>|[*`$#]", "", " ".join([name, *prose, *figures, *found]))
    return html.escape(" ".join(dict.fromkeys(text.lower().split())))


def _card(path, record):
    """What the front page says of one notebook. `record`, read from the file `path`, is of its last run,
    which may have failed. A damaged file is named under "failure"."""
    name, executed = path.stem, path.with_suffix(".ipynb")
    card = {"name": name, "part": str(record.get("part", "")), "title": name, "words": name}
    card["failure"] = incomplete(record, path) or ("" if record["status"] == "ok" else failure(record))
    if not executed.exists():
        return card
    if damaged := damage(executed):
        return card | {"failure": damaged}
    notebook, address = nbformat.read(executed, as_version=4), f"html/{quote(name)}.html"
    success = notebook.metadata["hakmem"]["record"]
    return card | {
        "href": address,
        "title": title(notebook, name),
        "question": question(notebook),
        "results": results(notebook, address),
        "made": made(success),
        "reference": success["parameters"].get("reference", False),
        "words": _words(notebook, name),
    }


def failure(record):
    """One line: what kind of failure, where, what was said."""
    where = f" in {record['cell']}" if record.get("cell") else ""
    return f"{record['status']}{where}: {record['error']}"


def write_index(reports, machine):
    """reports/index.html from all records in reports/executed. Returns its path."""
    executed = reports / "executed"
    records = {path: store.read_json(path) for path in sorted(executed.glob("*.json"))}
    cards = [_card(path, record) for path, record in records.items() if record]
    parts = list(dict.fromkeys(card["part"] for card in cards))  # in the order of the notebooks
    template = Environment(loader=FileSystemLoader(TEMPLATES / "hakmem")).get_template("site.html.j2")
    css = (TEMPLATES / "hakmem" / "page.css").read_text(encoding="utf-8")
    path = reports / "index.html"
    text = template.render(cards=cards, parts=parts, machine=machine, css=css, first=FIRST)
    store.save_text(reports, path.name, text)
    return path
