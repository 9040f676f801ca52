"""The report of a failure as a page of HTML: a lane for each fiber, time goes down.

The page needs no other file, and no script.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from pyfiber.testing.story import Step, Tracer, note_conflicts, shared_names

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em; color: #1d2733; background: #fff }
h1 { font-size: 1.2em } pre { background: #f4f6f8; padding: 1em; overflow: auto }
table { border-collapse: collapse; width: 100%; table-layout: fixed }
th { text-align: left; padding: .4em .6em; border-bottom: 2px solid #aab4be }
td { vertical-align: top; padding: .3em .6em; border-left: 3px solid #e4e9ee }
td.runs { border-left-color: var(--lane); background: color-mix(in srgb, var(--lane) 9%, #fff) }
td code { display: block; white-space: pre-wrap; font: 12px/1.5 ui-monospace, monospace }
.what { color: #66717c; font-size: 12px } .uses { color: #7a4a00 }
.note { color: #a4161a; font-size: 12px; margin-left: 1.5em }
.cut { color: #a4161a; font-weight: 600; font-size: 12px }
tr.turn td { border-top: 1px solid #d5dce3 } tr.unusual td.runs { border-top: 3px solid #a4161a }
@media (prefers-color-scheme: dark) {
  body { color: #d9e0e7; background: #14181d } pre { background: #1d232a }
  td { border-left-color: #2a323b }
  td.runs { background: color-mix(in srgb, var(--lane) 18%, #14181d) }
  .what { color: #93a0ad } .uses { color: #e2b566 } .note, .cut { color: #ff8d8d }
}
"""
COLOURS = ("#1b6ca8", "#b8651b", "#3a7d44", "#8a3f8f", "#8f3f4a", "#4a5d8f")


def page(headline: str, text: str, tracer: Tracer) -> str:
    """The whole page."""
    steps = list(tracer.steps)
    note_conflicts(steps)
    shared = shared_names(steps)
    lanes = list(dict.fromkeys(step.fiber for step in steps))
    heads = "".join(f'<th style="color:{colour(i)}">{escape(n)}</th>' for i, n in enumerate(lanes))
    rows = "\n".join(row(step, lanes, shared) for step in steps)
    left_out = tracer.count - len(steps)
    cut = f"<p>The first {left_out} turns are left out.</p>" if left_out else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(headline)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>{escape(headline)}</h1>{cut}"
        f"<table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table>"
        f"<pre>{escape(text.strip())}</pre></html>\n"
    )


def colour(lane: int) -> str:
    return COLOURS[lane % len(COLOURS)]


def row(step: Step, lanes: Sequence[str], shared: set[str]) -> str:
    """One turn: a cell in the lane of its fiber."""
    cells = "".join(
        f'<td class="runs" style="--lane:{colour(i)}">{"".join(cell(step, shared))}</td>'
        if lane == step.fiber
        else "<td></td>"
        for i, lane in enumerate(lanes)
    )
    kind = "turn" if step.usual else "turn unusual"
    return f'<tr class="{kind}">{cells}</tr>'


def cell(step: Step, shared: set[str]) -> Iterator[str]:
    """What the fiber did in its turn."""
    when = "" if step.time is None else f" at {step.time:.3f} s"
    yield f'<div class="what">{step.number}: {escape(step.begins.partition(" at ")[0])}{when}</div>'
    for choice in step.choices:
        yield f'<div class="what">{escape(choice)}</div>'
    for passed, left_out in step.shown():
        if passed is None:
            yield f'<div class="what">... {left_out} lines</div>'
            continue
        uses = passed.uses(shared)
        label = f'  <span class="uses">{escape(uses)}</span>' if uses else ""
        yield f"<code>{escape(passed.source)}{label}</code>"
        for note in passed.notes:
            yield f'<div class="note">{escape(note)}</div>'
    if step.ends:
        kind = "cut" if step.interrupted is not None else "what"
        yield f'<div class="{kind}">{escape(step.ends)}</div>'
