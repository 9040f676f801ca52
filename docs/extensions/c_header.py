"""``.. c-api:: functions`` and ``.. c-api:: types``: the reference of the C header, made of it."""

from __future__ import annotations

from c_reader import HEADER, of_functions, of_types
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PARTS = {"types": of_types, "functions": of_functions}


class CApi(SphinxDirective):
    """A part of the header; the parts are PARTS."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(HEADER))
        part = PARTS[self.arguments[0]]
        lines = part(HEADER.read_text(encoding="utf-8"))
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("c-api", CApi)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
