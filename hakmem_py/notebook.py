"""A notebook as a file, and the results that it passes to the front page."""

import html
import json

PLOTLY = "application/vnd.plotly.v1+json"
HEADLINE = "application/vnd.hakmem.headline+json"
FACTS = {  # of a record; one without them is damaged
    "name": str, "part": str, "parameters": dict, "status": str, "started_at": str, "seconds": int | float,
}  # fmt: skip


def read(path):
    """The notebook as plain dicts. Raises ValueError with one line."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not _whole(found):
            raise ValueError("it is no notebook")
        return found
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def _whole(found):
    """Whether a value that was read has all of a notebook that is looked at without asking."""
    if not (isinstance(found, dict) and {"cells", "metadata", "nbformat"} <= found.keys()):
        return False
    parts = [found, *found["cells"]] if isinstance(found["cells"], list) else []
    kept = parts and all(isinstance(part, dict) and isinstance(part.get("metadata"), dict) for part in parts)
    return bool(kept) and all(isinstance(cell.get("source"), str | list) for cell in found["cells"])


def incomplete(record, path):
    """What the record in a file lacks, as one line; "" for nothing."""
    record = record if isinstance(record, dict) else {}
    absent = [fact for fact, kind in FACTS.items() if not isinstance(record.get(fact), kind)]
    absent += ["error"] if record.get("status") != "ok" and "error" not in record else []
    return f"{path} is damaged: its record has no {absent[0]!r}; run the notebook again" if absent else ""


def damage(path):
    """Why an executed notebook cannot be shown, as one line; "" where it can."""
    import nbformat  # a quarter of a second, of which those who only read notebooks have no use

    try:
        found = read(path)
        nbformat.validate(found, version=4, relax_add_props=True)
    except (AssertionError, TypeError, nbformat.ValidationError) as error:  # the first two: of a wrong type
        said = str(error).partition("\n")[0] or "its format is no number"
        return f"{path} is damaged: {said}; run the notebook again"
    except ValueError as error:
        return f"{error}; run the notebook again"
    facts = found["metadata"].get("hakmem")
    return incomplete(facts.get("record") if isinstance(facts, dict) else None, path)


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


def table(frame, columns=None):
    """All rows of a DataFrame without its index, to four digits, in a box that scrolls if it is long."""
    from IPython.display import HTML

    shown = (frame[list(columns)] if columns is not None else frame).copy()
    for name in shown.select_dtypes(["object", "string", "category"]):
        words = shown[name].fillna("").astype(str)
        shown[name] = [f'<span class="word">{html.escape(word)}</span>' for word in words]
    whole = dict.fromkeys(shown.select_dtypes("integer"), "{:,}".format)
    looks = {"float_format": _number, "formatters": whole, "border": 0, "classes": "long", "escape": False}
    return HTML(shown.to_html(index=False, na_rep="", **looks))


def _number(value):
    """Four digits, as people write them: 19,370 and 0.1234, powers of ten only where they save zeros."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def side_of(lows, highs, right, left):
    """`right` or `left`, if every interval lies wholly on that side of 1; else UNDECIDED.

    So several intervals together err no more often than one does.
    """
    return right if min(lows) > 1 else left if max(highs) < 1 else "UNDECIDED"


def compared(row, baseline="hakmem", where=""):
    """A row of a comparison (allocator, ratio, low, high, status) as a headline, seen from the baseline.

    FASTER and SLOWER: the whole interval of this one comparison lies on that side of 1; UNDECIDED: it does
    not, or runs failed, which the text then says. Verdicts of tables are corrected for the number of
    comparisons as well.
    """
    # Not at the top: scipy takes a second to load, too long for those who only read notebooks.
    from .estimates import bracketed

    failed = "" if row.get("status", "ok") == "ok" else f"not judged: {row['status']}"
    verdict = "UNDECIDED" if failed else side_of([row["low"]], [row["high"]], "FASTER", "SLOWER")
    interval = bracketed(row["ratio"], row["low"], row["high"])
    text = f"{baseline} does {interval} times the work of {row['allocator']} in the same time"
    return {"text": ", ".join(filter(None, (text, where, failed))), "verdict": verdict}
