"""Exercises of the teaching notebooks: predict first, then let a cell check the prediction."""

import html


class Checked:
    """What a check says, as a notebook and as a terminal show it. right: None where nothing was predicted."""

    def __init__(self, right, text):
        self.right, self.text = right, text

    def __repr__(self):
        return self.text

    def _repr_html_(self):
        sign = {None: "✎", True: "✔", False: "✘"}[self.right]
        return f'<p role="status"><strong>{sign}</strong> {html.escape(self.text)}</p>'


def check(prediction, answer, hint="", tolerance=0.0):
    """Holds a prediction against the measured answer without giving it away. None: not predicted yet.

    Numbers may be off by `tolerance`; lists are compared as they are, strings without regard to case.
    """
    if prediction is None:
        return Checked(
            None, "No prediction yet: replace None in the cell above with yours, then run both cells again."
        )
    try:
        right = _matches(prediction, answer, tolerance)
    except TypeError:
        kind = f"a list such as {[0] * len(answer)}" if isinstance(answer, list | tuple) else "a number"
        return Checked(None, f"{prediction!r} cannot be compared with the answer, which is {kind}.")
    if right:
        return Checked(True, f"Right: {_words(answer)}.")
    return Checked(False, f"Not {_words(prediction)}. {hint}".strip())


def _matches(prediction, answer, tolerance):
    if isinstance(answer, str):
        return str(prediction).strip().lower() == answer.lower()
    if isinstance(answer, list | tuple):
        if not isinstance(prediction, list | tuple):
            raise TypeError
        return list(prediction) == list(answer)
    return abs(prediction - answer) <= tolerance


def _words(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)
