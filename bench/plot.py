"""Plot the results of several Pythons: a panel for each benchmark; further left is better.

python -m pip install matplotlib
python bench/plot.py [--results DIRECTORY] [--output FILE.svg]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from results import RESULTS, Run, description, load, row_names, subjects

COLUMNS = 3
PYFIBER_COLOURS = ("#08519c", "#2171b5", "#4292c6", "#6baed6", "#9ecae1")
PEER_COLOURS = ("#525252", "#737373", "#969696", "#bdbdbd", "#d9d9d9")


def colour(subject: str, run_index: int) -> str:
    """Blue for pyfiber, grey for the others, a shade for each Python."""
    shades = PYFIBER_COLOURS if subject.startswith("pyfiber") else PEER_COLOURS
    return shades[run_index % len(shades)]


def values(runs: list[Run], row_name: str, subject: str) -> list[float | None]:
    """The values of one subject in a row, one for each Python."""
    return [(run.result(row_name, subject) or {}).get("value") for run in runs]


def draw_subject(axes: Axes, position: int, subject: str, found: list[float | None]) -> None:
    """Draw a dot for each Python, with its value beside it."""
    spread = 0.7 / len(found)
    for index, value in enumerate(found):
        if value:
            where = position + (index - (len(found) - 1) / 2) * spread
            axes.plot(value, where, "o", markersize=5, color=colour(subject, index))
            axes.annotate(
                f"{value:,.0f}" if value >= 10 else f"{value:.1f}",
                (value, where),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=6,
            )


def draw_row(axes: Axes, runs: list[Run], row_name: str) -> None:
    """Draw one benchmark: a line for each subject. Dots, since a logarithm has no zero."""
    row = description(runs, row_name)
    measured = {name: values(runs, row_name, name) for name in subjects(runs, row_name)}
    measured = {name: found for name, found in measured.items() if any(found)}
    for position, (name, found) in enumerate(measured.items()):
        draw_subject(axes, position, name, found)
    known = [value for found in measured.values() for value in found if value]
    axes.set_xscale("log")
    axes.set_xlim(power_of_ten(min(known), math.floor), power_of_ten(max(known) * 1.5, math.ceil))
    axes.set_yticks(range(len(measured)), list(measured))
    axes.set_ylim(len(measured) - 0.5, -0.5)
    axes.set_title(f"{row['title']} [{row['unit']}]", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)


def power_of_ten(value: float, rounded: Callable[[float], int]) -> float:
    """The power of ten below or above a value."""
    return float(10 ** rounded(math.log10(value)))


def is_measured(runs: list[Run], row_name: str) -> bool:
    """Whether there is anything to draw for a benchmark."""
    names = subjects(runs, row_name)
    return any(any(values(runs, row_name, name)) for name in names)


def draw(runs: list[Run]) -> Figure:
    """Draw all benchmarks that were measured."""
    names = [name for name in row_names(runs) if is_measured(runs, name)]
    lines = math.ceil(len(names) / COLUMNS)
    figure = Figure(figsize=(5 * COLUMNS, 2.6 * lines), layout="constrained")
    panels = figure.subplots(lines, COLUMNS, squeeze=False)
    for axes in panels.flat[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(panels.flat, names, strict=False):
        draw_row(axes, runs, name)
    versions = ", ".join(run.python for run in runs)
    figure.suptitle(f"pyfiber and its peers; in each group from above: CPython {versions}")
    return figure


def main() -> None:
    """Write the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the documents are")
    parser.add_argument("--output", type=Path, help="default: plot.svg beside the documents")
    options = parser.parse_args()
    output = options.output or options.results / "plot.svg"
    draw(load(options.results)).savefig(output)
    print(output)


if __name__ == "__main__":
    main()
