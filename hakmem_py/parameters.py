"""What a notebook's `parameters` cell declares, and the check of a value against it.

The declaration is the cell itself, one line per parameter:

    blocks: int = 6        # 1..1000; randomised blocks
    policy: str = "ucb1"   # one of ucb1 | thompson | fixed; who chooses the arm
    sizes: list[int] = [16, 32]  # 8..1024; block sizes in bytes

A comment may open with a range (with an extra number beside it: "0 or 6..1000"), or with the allowed words
or numbers. For a list they apply to each element; a list may be empty if its default is.
"""

import ast
import re
from dataclasses import dataclass

TYPES = {"bool": bool, "int": int, "float": float, "str": str, "list": list, "dict": dict}
NUMBER = r"(-?[\d.]+(?:e-?\d+)?)"
RANGE = re.compile(rf"\s*(?:{NUMBER} or )?{NUMBER}\.\.{NUMBER}\b")
WORDS = re.compile(r"\s*one of ([\w.+-]+(?: \| [\w.+-]+)+)")
PLAIN = re.compile(r"(\s*\[)?([^][\"']*)(?(1)\]\s*)")  # hakmem,system, or the same in brackets
DECLARATION = re.compile(r"^\w+: [\w\[\]]+ = ", re.MULTILINE)
CHANGED = {}  # values of the running notebook's parameters that are not those of its declarations
INJECTED = "# Parameters"  # first line of the cell that papermill puts behind the declarations


class ParameterError(ValueError):
    """One line: the parameter, what is wrong, what is allowed."""


@dataclass(frozen=True)
class Parameter:
    """One declaration. `element`: type inside a list; `limits` (both included), `words`: None where anything
    is allowed; `beside`: a number that is allowed outside the limits."""

    name: str
    type: str
    element: str | None
    limits: tuple[float, float] | None
    words: tuple[str, ...] | None
    default: object
    beside: float | None = None

    def allowed(self):
        """The declaration in words, for messages: "int from 1 to 1000"."""
        kind = f"{self.type}[{self.element}]" if self.element else self.type
        if self.limits:
            kind += f" from {self.limits[0]:g} to {self.limits[1]:g}"
        if self.beside is not None:
            kind += f", or {self.beside:g}"
        kind += f", one of {', '.join(self.words)}" if self.words else ""
        kind += ", written as [A, B]" if self.type == "list" else ""
        return kind + (", not empty" if self.type == "list" and self.default else "")

    def check(self, value):
        """The value with its declared type (text such as "[16, 32]" is read); raises ParameterError."""
        value = self._typed(value, self.type)
        if self.type == "list":
            if self.default and not value:
                raise self._error(value)
            value = [self._bounded(self._typed(item, self.element or "any")) for item in value]
        return value if self.type in ("list", "dict") else self._bounded(value)

    def _typed(self, value, kind):
        if isinstance(value, str) and kind not in ("str", "any"):
            value = self._read(value, kind)
        if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        expected = TYPES.get(kind, object)
        if not isinstance(value, expected) or (isinstance(value, bool) and kind in ("int", "float")):
            raise self._error(value)
        return value

    def _read(self, text, kind):
        try:
            value = ast.literal_eval({"true": "True", "false": "False"}.get(text.strip(), text))
            return list(value) if isinstance(value, tuple) else value  # 16,32
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            if kind == "list" and (plain := PLAIN.fullmatch(text)):
                return [item.strip() for item in plain[2].split(",")]
            raise self._error(text) from None

    def _bounded(self, value):
        outside = self.limits and not self.limits[0] <= value <= self.limits[1] and value != self.beside
        if outside or (self.words and str(value) not in self.words):
            raise self._error(value)
        return value

    def _error(self, value):
        return ParameterError(f"parameter {self.name} = {value!r} is not allowed; allowed: {self.allowed()}")


def declared(source):
    """{name: Parameter} from the text of a parameters cell. Raises ParameterError for a type nobody knows."""
    lines = source.splitlines()
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.AnnAssign)]
    return {node.target.id: _declaration(node, lines[node.end_lineno - 1]) for node in nodes}


def _declaration(node, line):
    name, annotation = node.target.id, ast.unparse(node.annotation)
    kind, _, element = annotation.rstrip("]").partition("[")
    if kind not in TYPES or (element and element not in TYPES):
        raise ParameterError(f"parameter {name}: type {annotation!r} is unknown; allowed: {', '.join(TYPES)}")
    comment = line[node.end_col_offset :].partition("#")[2]
    limits, words = RANGE.match(comment), WORDS.match(comment)
    beside = float(limits[1]) if limits and limits[1] else None
    limits = tuple(map(float, limits.groups()[1:])) if limits else None
    words = tuple(words[1].split(" | ")) if words else None
    return Parameter(name, kind, element or None, limits, words, ast.literal_eval(node.value), beside)


def check(values, parameters, where):
    """Every value checked and typed; ParameterError names `where`, the parameter and what is allowed."""
    for name in values:
        if name not in parameters:
            raise ParameterError(
                f"{where}: unknown parameter {name!r}; allowed: {', '.join(parameters) or 'none'}"
            )
    try:
        return {name: parameters[name].check(value) for name, value in values.items()}
    except ParameterError as error:
        raise ParameterError(f"{where}: {error}") from None


def settle(namespace):
    """Called by a notebook below its parameters: `hp.parameters.settle(globals())`.

    Plain papermill takes any name and any type, and hands "[16, 32]" over as text. Here a wrong one stops the
    notebook by ParameterError, and text becomes what the declaration says. IPython's own record (In) tells
    which cells were run.
    """
    cells = [cell for cell in namespace.get("In", []) if cell.strip()]
    sources = [cell for cell in cells if DECLARATION.search(cell)]
    if not sources:
        raise ParameterError("settle found no parameters cell: run the notebook from its top")
    parameters = declared(sources[0])
    injected = [cell for cell in cells if cell.startswith(INJECTED)]
    names = {n.targets[0].id for cell in injected for n in ast.parse(cell).body if isinstance(n, ast.Assign)}
    values = {name: namespace[name] for name in [*parameters, *(names - set(parameters))]}
    checked = check(values, parameters, "this notebook")
    namespace.update(checked)
    CHANGED.clear()
    CHANGED.update({name: value for name, value in checked.items() if value != parameters[name].default})


def expect_rival(allocators):
    """Raises ParameterError where a choice of allocators leaves none to compare: the floor is no rival."""
    if allocators and set(allocators) <= {"hakmem", "floor"}:
        raise ParameterError("allocators: name one to compare, beside hakmem and floor")
