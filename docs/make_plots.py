"""Makes the plots in docs/images of results that are kept: python docs/make_plots.py

    python -m bench curves --json bench/results/curves.json  # measures them anew
    python -m bench io --json bench/results/servers.json

The plots are SVG, legible on light and on dark ground. The program makes them without a library, so
a test can compare them with what this makes. In a plot a line connects medians; a bar goes from the
best to the worst repetition, and a ring marks the best. The chart of README.md compares the best
repetitions.
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
    #: Only these, where a plot of all subjects could not be read.
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

#: Of the chart, which is narrow so that it can be read on a phone.
CHART_WIDTH, CHART_LEFT, CHART_RIGHT = 480, 74, 322
BAR_HEIGHT, TITLE_HEIGHT, ROW_GAP = 15, 24, 8
CHART_TICKS = {0.1: "a tenth", 1.0: "pyfiber", 10.0: "10x", 100.0: "100x"}


@dataclass(frozen=True)
class Bars:
    """One row of the chart: other libraries, beside pyfiber."""

    title: str
    row: str
    file: str = "curves.json"
    #: How libraries are called in the results, where that is not their name.
    aliases: tuple[tuple[str, str], ...] = ()


CHART = "plot-beside.svg"
CHART_TITLE = "What others take, as a multiple of what pyfiber takes"
CHART_SUBJECTS = ("greenlet", "gevent", "asyncio", "uvloop")
CHART_ROWS = (
    Bars("a switch below 100 Python frames", "curve-depth-100"),
    Bars("a yield among 1,000", "curve-yield-1000"),
    Bars("start, yield once, end: each of 10,000", "wave-first"),
    Bars(
        "processor time of an echo, 100 connections",
        "io-echo-100",
        "servers.json",
        (("asyncio", "asyncio streams"), ("uvloop", "uvloop streams")),
    ),
    Bars("memory of one that waits, among 10,000", "curve-memory-10000"),
    Bars("a yield among 100,000", "curve-yield-100000"),
    Bars("memory of one that waits, among 100", "curve-memory-100"),
)

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


def three_digits(value: float) -> str:
    """As in the tables: three digits where they matter, thousands set apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def bar(index: int, name: str, value: float, ratio: float, unit: str, y: int) -> list[str]:
    """A library's bar, which begins where pyfiber is; its name, its value, the ratio."""
    across = Scale(0.1, 100, CHART_LEFT, CHART_RIGHT)
    start, end = sorted((across(1), across(ratio)))
    base = y + BAR_HEIGHT - 4
    short = {"bytes": "B"}.get(unit, unit)
    return [
        f'<text class="n{index} end" x="{CHART_LEFT - 8}" y="{base}">{escape(name)}</text>',
        f'<rect class="n{index}" x="{start}" y="{y + 2}" width="{max(end - start, 1.5):.1f}"'
        f' height="{BAR_HEIGHT - 4}"/>',
        f'<text class="end" x="{CHART_WIDTH - 60}" y="{base}">'
        f"{three_digits(value)} {escape(short)}</text>",
        f'<text class="end" x="{CHART_WIDTH - 8}" y="{base}">{three_digits(ratio)}x</text>',
    ]


def scale_lines(top: int, bottom: int) -> list[str]:
    """The lines behind the bars of one row: a tenth, pyfiber, 10x, 100x."""
    across = Scale(0.1, 100, CHART_LEFT, CHART_RIGHT)
    return [
        f'<path class="{"own" if tick == 1 else "grid"}" d="M{across(tick)} {top}'
        f' L{across(tick)} {bottom}"/>'
        for tick in CHART_TICKS
    ]


def chart_row(documents: dict[str, dict[str, Any]], each: Bars, y: int) -> tuple[list[str], int]:
    """A title, a bar for each library, and where they end."""
    row = next(row for row in documents[each.file]["rows"] if row["name"] == each.row)
    values = {result["subject"]: result["value"] for result in row["results"]}
    own, unit = values["pyfiber"], row["unit"]
    title = [
        f'<text x="8" y="{y + 18}">{escape(each.title)}</text>',
        f'<text class="end pyfiber" x="{CHART_WIDTH - 8}" y="{y + 18}">'
        f"pyfiber {three_digits(own)} {escape(unit)}</text>",
    ]
    top = y = y + TITLE_HEIGHT
    bars: list[str] = []
    for index, name in enumerate(CHART_SUBJECTS):
        value = values.get(dict(each.aliases).get(name, name))
        if value:
            bars += bar(index, name, value, value / own, unit, y)
            y += BAR_HEIGHT
    return [*title, *scale_lines(top, y), *bars], y


def chart(documents: dict[str, dict[str, Any]]) -> str:
    """Libraries beside pyfiber; a bar to the left of pyfiber's line takes less than pyfiber."""
    across = Scale(0.1, 100, CHART_LEFT, CHART_RIGHT)
    shapes = [f'<text class="title" x="8" y="22">{escape(CHART_TITLE)}</text>']
    for tick, label in CHART_TICKS.items():
        shapes.append(f'<text class="mid note" x="{across(tick)}" y="48">{label}</text>')
    y = 52
    for each in CHART_ROWS:
        row, y = chart_row(documents, each, y)
        shapes += row
        y += ROW_GAP
    facts = documents["curves.json"]["environment"]
    where = f"CPython {facts['python']}, {facts['processor']}, {facts['processors']} processors"
    for note in ("Best repetitions. The echo is of asyncio's and uvloop's streams.", where):
        y += 17
        shapes.append(f'<text class="note" x="8" y="{y}">{escape(note)}</text>')
    light, dark = (
        f".own {{ stroke: {each}; }} .pyfiber {{ fill: {each}; }}" for each in COLOURS["pyfiber"]
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {CHART_WIDTH} {y + 10}"'
            f' width="{CHART_WIDTH}" height="{y + 10}" role="img">',
            f"<title>{escape(CHART_TITLE)}</title>",
            f"<style>{style(list(CHART_SUBJECTS))}  {light}\n"
            f"  @media (prefers-color-scheme: dark) {{ {dark} }}\n</style>",
            *shapes,
            "</svg>\n",
        ]
    )


def chart_of_results() -> str:
    """The chart of the results that are kept."""
    files = {each.file for each in CHART_ROWS}
    read = {name: json.loads((RESULTS / name).read_text(encoding="utf-8")) for name in files}
    return chart(read)


def main() -> None:
    """Write them all."""
    for name, plot in PLOTS.items():
        document = json.loads((RESULTS / plot.file).read_text(encoding="utf-8"))
        (DOCS / "images" / name).write_text(draw(document, plot), encoding="utf-8")
    (DOCS / "images" / CHART).write_text(chart_of_results(), encoding="utf-8")


if __name__ == "__main__":
    main()
