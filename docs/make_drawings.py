"""Makes the drawings in docs/images that are lines and words: python docs/make_drawings.py

They are SVG, legible on light and on dark ground. A test looks whether they are what this makes.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parent / "images"

STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328; }
  .head { font-weight: 600; text-anchor: middle; }
  .note { font-size: 13px; }
  .step { font-weight: 600; text-anchor: middle; fill: #ffffff; }
  .life { stroke: #8c959f; stroke-dasharray: 3 5; }
  .runs { fill: #0969da; }
  .parked { fill: #d0d7de; }
  .waits { fill: #bf8700; }
  .arrow { stroke: #1f2328; stroke-width: 1.5; fill: none; marker-end: url(#tip); }
  .tip { fill: #1f2328; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .step { fill: #0d1117; }
    .life { stroke: #6e7681; }
    .runs { fill: #58a6ff; }
    .parked { fill: #30363d; }
    .waits { fill: #d29922; }
    .arrow { stroke: #e6edf3; }
    .tip { fill: #e6edf3; }
  }
"""

TIP = """<defs>
  <marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"
    orient="auto">
    <path class="tip" d="M0 0 L10 5 L0 10 z"/>
  </marker>
</defs>"""


class Drawing:
    """Shapes, one after the other; later ones lie above."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size = width, height
        self.title = title
        self.shapes: list[str] = []

    def line(self, kind: str, x1: int, y1: int, x2: int, y2: int) -> None:
        self.shapes.append(f'<path class="{kind}" d="M{x1} {y1} L{x2} {y2}"/>')

    def box(self, kind: str, x: int, y: int, height: int) -> None:
        self.shapes.append(
            f'<rect class="{kind}" x="{x - 7}" y="{y}" width="14" height="{height}" rx="3"/>'
        )

    def text(self, kind: str, x: int, y: int, text: str) -> None:
        self.shapes.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>')

    def step(self, x: int, y: int, number: int) -> None:
        self.shapes.append(f'<circle class="runs" cx="{x}" cy="{y}" r="11"/>')
        self.text("step", x, y + 5, str(number))

    def svg(self) -> str:
        width, height = self.size
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
                f' width="{width}" height="{height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                TIP,
                *self.shapes,
                "</svg>\n",
            ]
        )


def waiting() -> Drawing:
    """A fiber parks in recv() and is woken."""
    drawing = Drawing(860, 500, "A fiber parks in recv(), others run, the loop waits, it is woken")
    ann, bob, loop, system = 90, 250, 410, 570
    for x, name in ((ann, "Ann's fiber"), (bob, "Bob's fiber"), (loop, "the loop")):
        drawing.text("head", x, 24, name)
        drawing.line("life", x, 36, x, 455)
    drawing.text("head", system, 24, "the system")
    drawing.line("life", system, 36, system, 455)

    drawing.box("runs", ann, 44, 76)
    drawing.box("parked", ann, 120, 245)
    drawing.box("runs", ann, 365, 75)
    drawing.box("runs", bob, 130, 70)
    drawing.box("parked", bob, 200, 240)
    drawing.box("runs", loop, 210, 30)
    drawing.box("waits", loop, 240, 80)
    drawing.box("runs", loop, 320, 35)

    for start, y, end, text in (
        (ann, 70, system, "recv(): is there anything?"),
        (system, 95, ann, "not yet"),
        (ann, 135, bob, ""),
        (bob, 205, loop, ""),
        (loop, 240, system, "epoll_wait()"),
        (system, 320, loop, "Ann's descriptor"),
        (loop, 370, ann, ""),
        (ann, 395, system, "recv()"),
        (system, 420, ann, "“hello”"),
    ):
        gap = 9 if start < end else -9
        drawing.line("arrow", start + gap, y, end - gap, y)
        drawing.text("note", min(start, end) + 18, y - 6, text)

    notes = [
        (1, 82, "The data have not come."),
        (2, 135, "Ann's fiber is noted down at its", "descriptor and parks; Bob's runs."),
        (3, 205, "Bob's has to wait, too:", "nobody is left who can run."),
        (4, 262, "One call, epoll_wait(), waits for", "all descriptors at once."),
        (5, 320, "Ann's data are there."),
        (6, 370, "Her fiber is ready, and the next", "to run."),
        (7, 420, "recv() returns to her code."),
    ]
    for number, y, *lines in notes:
        drawing.step(system + 40, y - 2, number)
        for i, text in enumerate(lines):
            drawing.text("note", system + 60, y + 3 + 17 * i, text)
    for x, kind, text in (
        (ann, "runs", "runs"),
        (bob, "parked", "is parked: the thread is free for others"),
        (system, "waits", "the thread waits"),
    ):
        drawing.box(kind, x, 472, 14)
        drawing.text("note", x + 14, 484, text)
    return drawing


DRAWINGS = {"waiting.svg": waiting}


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (IMAGES / name).write_text(draw().svg(), encoding="utf-8")
