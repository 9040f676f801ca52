"""The switch below Python: what the engine's C code and the processor need for it.

Both loops are C and lie in the extension. `pyfiber` goes through the engine's one context-switch
function; `bare assembly` calls the assembly routine alone, which nothing can be faster than.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

from ..model import Case, Row, Sample, Unavailable

RING = 16
NANOSECONDS_IN_SECOND = 1e9


def engine_loop(name: str, *arguments: int) -> Sample:
    """Let a C loop of the extension do as many switches as its last argument says."""
    loop = getattr(import_module("pyfiber._engine"), name, None)
    if loop is None:
        raise Unavailable(f"this build of the extension has no {name}")
    try:
        seconds = loop(*arguments)
    except NotImplementedError as reason:
        raise Unavailable(str(reason)) from None
    return Sample(seconds * NANOSECONDS_IN_SECOND, arguments[-1])


ROWS = (
    Row(
        "raw-switch",
        "one context switch in C, ping-pong",
        "Two C contexts switch to each other in a C loop, no Python involved; half a round trip.",
        (
            Case("pyfiber", partial(engine_loop, "_bench_context_switch")),
            Case("bare assembly", partial(engine_loop, "_bench_bare_switch")),
        ),
        count=20_000_000,
        quick=1_000_000,
    ),
    Row(
        "raw-ring",
        f"one context switch in C, ring of {RING}",
        f"{RING} C contexts switch each to the next in a C loop; the time of one switch.",
        (
            Case("pyfiber", partial(engine_loop, "_bench_context_ring", RING)),
            Case("bare assembly", partial(engine_loop, "_bench_bare_ring", RING)),
        ),
        count=20_000_000,
        quick=1_000_000,
    ),
)
