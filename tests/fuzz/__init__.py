"""Random programs that attack pyfiber: README.md beside this file."""

from __future__ import annotations

from importlib import import_module

#: What is attacked: the module of the same name here defines `Kind`, a Program.
KINDS = (
    *("raw", "scheduled", "primitives", "scopes", "grains", "loops", "standin", "explored"),
    *("sockets", "threads", "patched", "parallel", "spread", "ends"),
)


def load(kind: str) -> type:
    """The class of a kind's programs."""
    return import_module(f"{__name__}.{kind}").Kind
