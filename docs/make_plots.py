"""Makes the plots in docs/images of results that are kept: python docs/make_plots.py

    python -m bench curves --json bench/results/curves.json  # measures them anew
    python -m bench io --json bench/results/servers.json

They are SVG, legible on light and on dark ground, made without a library, so that a test can look
whether they are what this makes. A line connects medians; a bar goes from the best to the worst
repetition, and a ring marks the best.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "bench" / "results"

WIDTH, HEIGHT = 860, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 660, 50, 360
#: Between two names at the right, so that they can be read.
LINE_HEIGHT = 17

#: For light and for dark ground.
COLOURS = {
    "pyfiber": ("#0969da", "#58a6ff"),
    "pyfiber 256 KiB": ("#54aeff", "#9ecbff"),
    "C epoll": ("#1f2328", "#e6edf3"),
    "greenlet": ("#1a7f37", "#3fb950"),
    "gevent": ("#4d7c0f", "#a3c94b"),
    "asyncio": ("#cf222e", "#ff7b72"),
    "asyncio streams": ("#cf222e", "#ff7b72"),
    "asyncio protocols": ("#e16f24", "#ffa657"),
    "uvloop": ("#bf8700", "#d29922"),
    "uvloop streams": ("#bf8700", "#d29922"),
    "trio": ("#8250df", "#bc8cff"),
    "generator": ("#6e7781", "#8b949e"),
    "threads": ("#a40e68", "#f778ba"),
}

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-size: 15px; font-weight: 600; }
  .note { font-size: 12px; fill: #59636e; }
  .mid { text-anchor: middle; }
  .end { text-anchor: end; }
  .grid { stroke: #d0d7de; }
  .line { fill: none; stroke-width: 2; }
  .bar { stroke-width: 5; stroke-opacity: 0.3; }
  .ring { fill: none; stroke-width: 1.5; }
"""
DARK = """
    text { fill: #e6edf3; }
    .note { fill: #9198a1; }
    .grid { stroke: #30363d; }
"""


@dataclass(frozen=True)
class Plot:
    """One curve for each subject of the rows whose names begin with `rows`."""

    rows: str
    title: str
    across: str
    file: str = "curves.json"
    #: Only these, where there are more than can be told apart.
    subjects: tuple[str, ...] = ()


PLOTS = {
    "plot-depth.svg": Plot(
        "curve-depth-",
        "One switch [ns]",
        "Python frames on each of the two stacks",
    ),
    "plot-yield.svg": Plot("curve-yield-", "One yield [ns]", "fibers that take turns"),
    "plot-memory.svg": Plot(
        "curve-memory-", "Memory of a parked fiber [bytes]", "fibers that are parked"
    ),
    "plot-echo.svg": Plot(
        "io-echo-",
        "Time on a processor for an echo of 128 bytes [ns]",
        "connections",
        "servers.json",
        (
            "pyfiber",
            "C epoll",
            "uvloop streams",
            "asyncio streams",
            "asyncio protocols",
            "gevent",
            "trio",
            "threads",
        ),
    ),
}

Points = dict[int, list[float]]


def curves(document: dict[str, Any], plot: Plot) -> dict[str, Points]:
    """Of each subject the samples at each place."""
    found: dict[str, Points] = {}
    for row in document["rows"]:
        if row["name"].startswith(plot.rows):
            place = int(row["name"].removeprefix(plot.rows))
            for result in row["results"]:
                samples = [value for value in result["samples"] if value > 0]
                if samples and result["subject"] in (plot.subjects or COLOURS):
                    found.setdefault(result["subject"], {})[place] = samples
    return found


class Scale:
    """Where a value lies, between two ends: a logarithm."""

    def __init__(self, low: float, high: float, start: int, end: int) -> None:
        self.low, self.start = math.log10(low), start
        self.step = (end - start) / ((math.log10(high) - self.low) or 1)

    def __call__(self, value: float) -> float:
        return round(self.start + (math.log10(value) - self.low) * self.step, 1)


def powers(low: float, high: float) -> list[float]:
    """The powers of ten around some values."""
    return [10.0**n for n in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def style(subjects: list[str]) -> str:
    """Colours of lines and names."""

    def rules(which: int) -> Iterator[str]:
        for index, subject in enumerate(subjects):
            colour = COLOURS[subject][which]
            yield f".s{index} {{ stroke: {colour}; }} .n{index} {{ fill: {colour}; }}"

    light, dark = ("\n  ".join(rules(which)) for which in (0, 1))
    return f"{STYLE}  {light}\n  @media (prefers-color-scheme: dark) {{{DARK}  {dark}\n  }}\n"


def axes(plot: Plot, across: Scale, up: Scale, places: list[int], ticks: list[float]) -> list[str]:
    """Grid, numbers and words."""
    lines = [f'<text class="title" x="{LEFT}" y="26">{escape(plot.title)}</text>']
    for tick in ticks:
        y = up(tick)
        lines.append(f'<path class="grid" d="M{LEFT} {y} L{RIGHT} {y}"/>')
        lines.append(f'<text class="end" x="{LEFT - 8}" y="{y + 4:.1f}">{tick:,.0f}</text>')
    for place in places:
        x = across(place)
        lines.append(f'<text class="mid" x="{x}" y="{BOTTOM + 20}">{place:,}</text>')
    middle = (LEFT + RIGHT) // 2
    lines.append(f'<text class="mid" x="{middle}" y="{BOTTOM + 42}">{escape(plot.across)}</text>')
    return lines


def curve(index: int, points: Points, across: Scale, up: Scale) -> list[str]:
    """Medians in a line; best to worst as a bar; a ring at the best."""
    middles = [(across(place), up(median(found))) for place, found in points.items()]
    steps = " L".join(f"{x} {y}" for x, y in middles)
    lines = [f'<path class="line s{index}" d="M{steps}"/>']
    for place, found in points.items():
        x, best, worst = across(place), up(min(found)), up(max(found))
        lines.append(f'<path class="bar s{index}" d="M{x} {best} L{x} {worst}"/>')
        lines.append(f'<circle class="ring s{index}" cx="{x}" cy="{best}" r="3"/>')
    return lines


def names(found: dict[str, Points], across: Scale, up: Scale) -> list[str]:
    """The subjects' names beside the ends of their lines, apart from each other."""
    ends = sorted((up(median(list(points.values())[-1])), name) for name, points in found.items())
    lines, free = [], 0.0
    for wanted, name in ends:
        y = max(wanted + 4, free)
        free = y + LINE_HEIGHT
        index = list(found).index(name)
        lines.append(f'<text class="n{index}" x="{RIGHT + 14}" y="{y:.1f}">{escape(name)}</text>')
    return lines


def draw(document: dict[str, Any], plot: Plot) -> str:
    """The whole plot."""
    found = curves(document, plot)
    places = sorted({place for points in found.values() for place in points})
    values = [value for points in found.values() for each in points.values() for value in each]
    ticks = powers(min(values), max(values))
    across = Scale(places[0], places[-1], LEFT + 10, RIGHT - 10)
    up = Scale(ticks[0], ticks[-1], BOTTOM, TOP)
    facts = document["environment"]
    where = f"CPython {facts['python']}, {facts['processor']}, {facts['processors']} processors"
    shapes = [
        *axes(plot, across, up, places, ticks),
        *(line for i, each in enumerate(found.values()) for line in curve(i, each, across, up)),
        *names(found, across, up),
        f'<text class="note" x="{LEFT}" y="{HEIGHT - 8}">{escape(where)}; '
        "line: median, ring: best, bar: best to worst</text>",
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
            f' width="{WIDTH}" height="{HEIGHT}" role="img">',
            f"<title>{escape(plot.title)}, against: {escape(plot.across)}</title>",
            f"<style>{style(list(found))}</style>",
            *shapes,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Write them all."""
    for name, plot in PLOTS.items():
        document = json.loads((RESULTS / plot.file).read_text(encoding="utf-8"))
        (DOCS / "images" / name).write_text(draw(document, plot), encoding="utf-8")


if __name__ == "__main__":
    main()
