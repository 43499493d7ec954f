"""A notebook as a file, and the results that it hands to the front page."""

import html
import json

PLOTLY = "application/vnd.plotly.v1+json"
HEADLINE = "application/vnd.hakmem.headline+json"


def read(path):
    """The notebook as plain dicts. Raises ValueError with one line."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def source(cell):
    """A cell's text, which a notebook file keeps as lines."""
    return "".join(cell["source"])


def headline(text, verdict=None, figure=None):
    """Show a result in the notebook, and on the front page beside a small picture of `figure`."""
    from IPython.display import display

    data = {"text": text, "verdict": verdict, "figure": figure.layout.meta["alt"] if figure else None}
    plain = f"{verdict}: {text}" if verdict else text
    shown = f"<strong>{html.escape(plain)}</strong>"
    display({HEADLINE: data, "text/html": shown, "text/plain": plain}, raw=True)
