"""Signatures with types for what is written in C, from pyfiber/_engine.pyi.

The native types have docstrings, but a text signature in C has no types. An overloaded
function keeps its text signature, because each overload describes only some of the calls. Parts
that tell a reader nothing are removed from all signatures.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

#: What autodoc writes, and what is shown; what Sphinx cannot read it shows as it is.
PLAINER = (
    (re.compile(r"<built-in function (\w+)>"), r"\1"),
    (re.compile(r"<[\w ]+>"), "..."),  # another default that has no literal
    (re.compile(r"(\*\*\w+: )~typing\.~(\w+)"), r"\1\2.kwargs"),
    (re.compile(r"(\*\w+: )~typing\.~(\w+)"), r"\1\2.args"),
    (re.compile(r"~(?=\w+\b(?!\.))"), ""),  # a parameter specification
    (re.compile(r"\b_SchedulerStats\b"), "dict[str, int]"),
    (re.compile(r"\b_OnUnhandled\b"), "str | Callable[[Fiber, BaseException], object]"),
    (re.compile(r"\b_(?=[A-Z])"), ""),  # of one module only: a type variable, an alias
)
LITERAL = re.compile(r"(``.*?``|`.*?`)")
STUB = Path(__file__).resolve().parents[2] / "pyfiber" / "_engine.pyi"


def definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function with its name; methods as in Fiber.switch."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from definitions(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node


def is_overload(node: ast.FunctionDef) -> bool:
    """Whether it is one of several signatures."""
    return any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list)


def rendered(name: str, node: ast.FunctionDef) -> tuple[str, str | None]:
    """The parameters without self, and what is returned."""
    parameters = node.args
    if "." in name:
        line = parameters.posonlyargs or parameters.args
        if line and line[0].arg in ("self", "cls"):
            del line[0]
    returned = None if node.returns is None or name.endswith("__") else ast.unparse(node.returns)
    return f"({ast.unparse(parameters).removeprefix('/, ')})", returned


def signatures() -> dict[str, tuple[str, str | None]]:
    """Of each function, method and class that has one signature only."""
    found: dict[str, tuple[str, str | None]] = {}
    for name, node in definitions(ast.parse(STUB.read_text(encoding="utf-8")).body):
        if not is_overload(node):
            found[name.removesuffix(".__init__").removesuffix(".__new__")] = rendered(name, node)
    return found


SIGNATURES = signatures()


def plainer(text: str | None) -> str | None:
    """A signature as a reader expects it."""
    for found, shown in PLAINER:
        text = text and found.sub(shown, text)
    return text


def with_types(
    app: Sphinx,
    what: str,
    name: str,
    thing: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str, str | None] | None:
    """Autodoc asks for each name; None leaves it as it is."""
    if what in ("attribute", "property"):
        return None
    module, _, rest = name.partition(".")
    if ":" not in (signature or "") and module == "pyfiber":  # else in Python, with its types
        rest = rest.removeprefix("grains.").removeprefix("testing.")
        signature, returned = SIGNATURES.get(rest, (signature, returned))
    return plainer(signature), plainer(returned)


def plain_stars(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Docstrings write fn(*args), where an asterisk would begin emphasis."""
    for index, line in enumerate(lines):
        if not line.startswith("    "):  # no code
            parts = LITERAL.split(line)
            parts[::2] = [re.sub(r"\*(?=[\w*])", r"\\*", part) for part in parts[::2]]
            lines[index] = "".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-signature", with_types)
    app.connect("autodoc-process-docstring", plain_stars)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
