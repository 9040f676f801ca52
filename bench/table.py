"""Show the results of several Pythons beside each other, as Markdown.

python bench/table.py [--results DIRECTORY] > table.md
python bench/table.py --summary FILE.json           # one run, a line for each row
python bench/table.py --summary FILE.json --into README.md

The summary is of one family of rows: a run of `bench io` has a line for each server, and a place
of its own in the document.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from results import RESULTS, Run, description, load, row_names, subjects

#: The columns of the summary of fibers and schedulers.
COLUMNS = ("pyfiber", "greenlet", "gevent", "asyncio", "uvloop", "trio", "generator", "threads")
#: Where a document has the summary of a family of rows.
PLACE = r"(?<=<!-- {0}: begin -->\n).*?(?=<!-- {0}: end -->)"


def number(value: float) -> str:
    """Three digits where they matter, thousands set apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(result: dict[str, Any] | None) -> str:
    """A value, and how many times that of pyfiber it is."""
    if result is None:
        return ""
    if result["value"] is None:
        return "-"
    ratio = f" ({number(result['ratio'])}x)" if result["ratio"] is not None else ""
    return number(result["value"]) + ratio


def line(cells: list[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def row_lines(runs: list[Run], row_name: str) -> list[str]:
    """One benchmark: a line for each subject, a column for each Python."""
    row = description(runs, row_name)
    title = f"{row['title']} [{row['unit']}]"
    lines = []
    for subject in subjects(runs, row_name):
        cells = [cell(run.result(row_name, subject)) for run in runs]
        lines.append(line([title, subject, *cells]))
        title = ""
    return lines


def reasons(runs: list[Run]) -> list[str]:
    """Why there is a dash instead of a value, each reason once."""
    found: dict[str, None] = {}
    for run in runs:
        for row in run.rows():
            for result in row["results"]:
                if result["value"] is None:
                    what = f"{row['name']}, {result['subject']}, {run.python}"
                    found[f"- {what}: {result['reason']}"] = None
            for subject, reason in row["impossible"].items():
                found[f"- {row['name']}, {subject}: {reason}"] = None
    return list(found)


def peers(runs: list[Run]) -> str:
    """The versions of the peers; the newest of each if the Pythons have different ones."""
    versions: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.document["environment"]["peers"].items():
            if version:
                versions.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' / '.join(sorted(found))}" for name, found in versions.items())


def table(runs: list[Run]) -> str:
    """The whole table with what one has to know about it."""
    environment = runs[0].document["environment"]
    head = ["", "", *(f"CPython {run.python}" for run in runs)]
    lines = [
        line(head),
        line(["---", "---", *("---:" for _ in runs)]),
        *(text for name in row_names(runs) for text in row_lines(runs, name)),
        "",
        f"{environment['system']}, {environment['processor']}, "
        f"{environment['processors']} processors. Peers: {peers(runs) or 'none'}. "
        f"Garbage {environment['gc']}. {meaning_of_ratios(runs[0])}",
        "",
        *reasons(runs),
    ]
    return "\n".join(lines).rstrip()


def is_of_servers(run: Run) -> bool:
    """Whether the rows are those of `bench io`."""
    return any(row.get("family") == "io" for row in run.rows())


def columns_of(run: Run) -> tuple[str, ...]:
    """The subjects that have a column: of servers all that were measured."""
    names = [row["name"] for row in run.rows()]
    if not is_of_servers(run):
        return COLUMNS
    return tuple(dict.fromkeys(subject for name in names for subject in subjects([run], name)))


def summary_line(run: Run, row: dict[str, Any], columns: tuple[str, ...]) -> str:
    """One benchmark of the summary."""
    cells = [cell(run.result(row["name"], subject)) for subject in columns]
    return line([f"{row['title']} [{row['unit']}]", *cells])


def meaning_of_ratios(run: Run) -> str:
    """What is in parentheses; rows may have references of their own."""
    others: dict[str, list[str]] = {}
    for row in run.rows():
        reference = row.get("reference", "pyfiber")
        if reference != "pyfiber":
            others.setdefault(reference, []).append(row["title"])
    text = "In parentheses: the value divided by that of pyfiber; above 1, pyfiber is better."
    for reference, titles in others.items():
        text += f" Divided by that of {reference}: {'; '.join(titles)}."
    return text


def summary(run: Run) -> str:
    """One run, with a line for each benchmark and a column for each peer."""
    columns = columns_of(run)
    return "\n".join(
        [
            line(["", *columns]),
            line(["---", *("---:" for _ in columns)]),
            *(summary_line(run, row, columns) for row in run.rows()),
            "",
            circumstances(run),
        ]
    )


def server_summary(run: Run) -> str:
    """The same with a line for each server and a column for each benchmark: there are many."""
    rows = list(run.rows())
    lines = [
        line([subject, *(cell(run.result(row["name"], subject)) for row in rows)])
        for subject in columns_of(run)
    ]
    return "\n".join(
        [
            line(["", *(f"{row['title']} [{row['unit']}]" for row in rows)]),
            line(["---", *("---:" for _ in rows)]),
            *lines,
            "",
            circumstances(run),
        ]
    )


def circumstances(run: Run) -> str:
    """Where and how it was measured."""
    environment = run.document["environment"]
    settings = run.document["settings"]
    quick = " with --quick" if settings["quick"] else ""
    busy = environment["load_average"]
    note = f" Load of the machine as it began: {busy:.1f}." if busy is not None else ""
    return (
        f"CPython {run.python}, {environment['system']}, {environment['processor']}, "
        f"{environment['processors']} processors. Peers: {peers([run]) or 'none'}. "
        f"Best of {settings['repetitions']} repetitions{quick}.{note} {meaning_of_ratios(run)}"
    )


def put_into(path: Path, text: str, name: str) -> None:
    """Replace what is between the marks of that name in a document."""
    before = path.read_text(encoding="utf-8")
    place = re.compile(PLACE.format(name), re.DOTALL)
    after, places = place.subn(lambda _: text + "\n", before)
    if places != 1:
        raise SystemExit(f"{path} has {places} places for the table of {name}, not one")
    path.write_text(after, encoding="utf-8")


def main() -> None:
    """Print the table, or put it into a document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the documents are")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="one run only, in short")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put it between the marks there")
    options = parser.parse_args()
    name = "bench"
    if options.summary:
        run = Run(json.loads(options.summary.read_text(encoding="utf-8")))
        text = server_summary(run) if is_of_servers(run) else summary(run)
        name = "bench io" if is_of_servers(run) else name
    else:
        text = table(load(options.results))
    if options.into:
        put_into(options.into, text, name)
    else:
        print(text)


if __name__ == "__main__":
    main()
