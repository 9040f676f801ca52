"""``.. unchanged:: pyfiber.socket``: what a twin of a standard module hands on as it is."""

from __future__ import annotations

import importlib
from types import ModuleType

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def public(module: ModuleType) -> list[str]:
    """What the module says is public, or what looks like it."""
    names = getattr(module, "__all__", None)
    return sorted(names if names is not None else (n for n in vars(module) if n[0] != "_"))


class Unchanged(SphinxDirective):
    """A list of names, folded: there are hundreds."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        twin = importlib.import_module(self.arguments[0])
        standard = importlib.import_module(self.arguments[0].rpartition(".")[2])
        same = [
            name
            for name in public(standard)
            if getattr(twin, name, None) is getattr(standard, name)
            and not isinstance(getattr(standard, name), ModuleType)
        ]
        listed = nodes.paragraph()
        for name in same:
            listed += [nodes.literal(name, name), nodes.Text(" ")]
        title = f"{len(same)} more names, which are those of <code>{standard.__name__}</code>"
        return [
            nodes.raw("", f"<details><summary>{title}</summary>", format="html"),
            listed,
            nodes.raw("", "</details>", format="html"),
        ]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("unchanged", Unchanged)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
