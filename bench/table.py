"""Show the results of several Pythons beside each other, as Markdown.

python bench/table.py [--results DIRECTORY] > table.md
python bench/table.py --summary FILE.json           # one run, a line for each row
python bench/table.py --summary FILE.json --into docs/performance.md
python bench/table.py --summary FILE.json --servers SERVERS.json --into README.md  # ten rows

The summary is of one family of rows: a run of `bench io` has a line for each server, and a place
of its own in the document. With both it is the ten rows that matter most.
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
#: The columns of the ten rows, and which server stands for each.
SHORT_COLUMNS = {
    "pyfiber": "pyfiber",
    "greenlet": "",
    "gevent": "gevent",
    "asyncio": "asyncio streams",
    "uvloop": "uvloop streams",
    "trio": "trio",
    "threads": "threads",
}
#: Of the rows of fibers and schedulers those that matter most, and the one of servers.
SHORT_ROWS = (
    "switch",
    "deep-python",
    "spawn-many",
    "yield-10000",
    "queue",
    "timeout",
    "group",
    "to-thread",
    "memory",
)
SHORT_SERVERS = "io-echo-100"
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


def short_summary(run: Run, servers: Run) -> str:
    """Ten rows of two runs."""
    lines = [
        summary_line(run, description([run], name), tuple(SHORT_COLUMNS)) for name in SHORT_ROWS
    ]
    row = description([servers], SHORT_SERVERS)
    lines.append(summary_line(servers, beside_pyfiber(row), tuple(SHORT_COLUMNS.values())))
    head = [line(["", *SHORT_COLUMNS]), line(["---", *("---:" for _ in SHORT_COLUMNS)])]
    return "\n".join([*head, *lines, "", circumstances(run)])


def beside_pyfiber(row: dict[str, Any]) -> dict[str, Any]:
    """A row of servers, its values divided by that of pyfiber and not of another reference."""
    own = next(each["value"] for each in row["results"] if each["subject"] == "pyfiber")
    for each in row["results"]:
        is_other = each["subject"] != "pyfiber" and each["value"] is not None
        each["ratio"] = each["value"] / own if is_other else None
    return row


def spread(result: dict[str, Any] | None) -> str:
    """The best value, and in parentheses the median and the worst one."""
    if result is None or result["value"] is None:
        return ""
    worst = max(result["samples"])
    return f"{number(result['value'])} ({number(result['median'])}, {number(worst)})"


def curve_summary(run: Run) -> str:
    """Of `bench curves` a table for each curve, a line for each subject, with the spread."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in run.rows():
        groups.setdefault(row["name"].removeprefix("curve-").partition("-")[0], []).append(row)
    lines = []
    for rows in groups.values():
        names = dict.fromkeys(name for row in rows for name in subjects([run], row["name"]))
        lines.append(line(["", *(f"{row['title']} [{row['unit']}]" for row in rows)]))
        lines.append(line(["---", *("---:" for _ in rows)]))
        for name in names:
            cells = [spread(run.result(row["name"], name)) for row in rows]
            lines.append(line([name, *cells]))
        lines.append("")
    return "\n".join([*lines, circumstances(run).partition(" In parentheses")[0]])


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


def summary_of(run: Run) -> tuple[str, str]:
    """The table that its family of rows has, and the name of its place."""
    families = {row.get("family") for row in run.rows()}
    if "curves" in families:
        return curve_summary(run), "bench curves"
    if is_of_servers(run):
        return server_summary(run), "bench io"
    return summary(run), "bench"


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
    parser.add_argument("--servers", type=Path, metavar="FILE", help="ten rows of that and this")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put it between the marks there")
    options = parser.parse_args()
    name = "bench"
    text = ""
    if options.summary:
        run = Run(json.loads(options.summary.read_text(encoding="utf-8")))
        text, name = summary_of(run)
        if options.servers:
            servers = Run(json.loads(options.servers.read_text(encoding="utf-8")))
            text, name = short_summary(run, servers), "bench ten"
    else:
        text = table(load(options.results))
    if options.into:
        put_into(options.into, text, name)
    else:
        print(text)


if __name__ == "__main__":
    main()
