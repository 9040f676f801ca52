"""Show the results of a run as Markdown.

    python -m bench.table --summary FILE.json           # a line for each row
    python -m bench.table --summary FILE.json --into docs/performance.md
    python -m bench.table --summary FILE.json --servers SERVERS.json  # ten rows of both

The summary is of one family of rows: a run of `bench io` has a line for each server, three tables
that are narrow enough to be read, and a place of its own in the document. With both it is the ten
rows that matter most.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
#: The columns of the tables of servers: one table with all of them could not be read.
SERVER_TABLES = (
    ("io-echo-1", "io-echo-100", "io-echo-1000", "io-tls"),
    ("io-calls", "io-short", "io-idle", "io-computing"),
    ("io-http", "io-wsgi"),
)
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
#: Where a document has the summary of a family of rows.
PLACE = r"(?<=<!-- {0}: begin -->\n).*?(?=<!-- {0}: end -->)"


@dataclass(frozen=True)
class Run:
    """What `python -m bench --json` has written."""

    document: dict[str, Any]

    @classmethod
    def from_file(cls, file: Path) -> Run:
        """Read it."""
        return cls(json.loads(file.read_text(encoding="utf-8")))

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows, in the order of the table."""
        yield from self.document["rows"]

    def row(self, name: str) -> dict[str, Any]:
        """The row of that name."""
        return next(row for row in self.rows() if row["name"] == name)

    def result(self, row: str, subject: str) -> dict[str, Any] | None:
        """What came of one subject in one row."""
        results = self.row(row)["results"]
        return next((result for result in results if result["subject"] == subject), None)


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


def is_of_servers(run: Run) -> bool:
    """Whether the rows are those of `bench io`."""
    return any(row.get("family") == "io" for row in run.rows())


def subjects_of(rows: list[dict[str, Any]]) -> list[str]:
    """Who was measured in any of the rows."""
    return list(dict.fromkeys(result["subject"] for row in rows for result in row["results"]))


def heading(row: dict[str, Any]) -> str:
    """What a row is about, with its unit."""
    return f"{row['title']} [{row['unit']}]"


def summary_line(run: Run, row: dict[str, Any], columns: tuple[str, ...]) -> str:
    """One benchmark of the summary."""
    cells = [cell(run.result(row["name"], subject)) for subject in columns]
    return line([heading(row), *cells])


def meaning_of_ratios(rows: list[dict[str, Any]]) -> str:
    """What is in parentheses; rows may have references of their own."""
    titles: dict[str, list[str]] = {}
    for row in rows:
        titles.setdefault(row.get("reference", "pyfiber"), []).append(row["title"])
    begin = "In parentheses: the value divided by that of"
    if list(titles) == ["pyfiber"]:
        return f"{begin} pyfiber; above 1, pyfiber is better."
    if len(titles) == 1:
        return f"{begin} {next(iter(titles))}."
    parts = [f"{reference} ({'; '.join(found)})" for reference, found in titles.items()]
    return f"{begin} {', of '.join(parts)}."


def summary(run: Run) -> str:
    """One run, with a line for each benchmark and a column for each peer."""
    rows = list(run.rows())
    return "\n".join(
        [
            line(["", *COLUMNS]),
            line(["---", *("---:" for _ in COLUMNS)]),
            *(summary_line(run, row, COLUMNS) for row in rows),
            "",
            f"{circumstances(run)} {meaning_of_ratios(rows)}",
        ]
    )


def server_tables(run: Run) -> list[list[dict[str, Any]]]:
    """The rows of each table of servers; a last one is for what SERVER_TABLES does not know."""
    rows = {row["name"]: row for row in run.rows()}
    tables = [[rows.pop(name) for name in names if name in rows] for names in SERVER_TABLES]
    return [table for table in (*tables, list(rows.values())) if table]


def server_table(run: Run, rows: list[dict[str, Any]]) -> list[str]:
    """A line for each server and a column for each benchmark: there are many servers."""
    return [
        line(["", *map(heading, rows)]),
        line(["---", *("---:" for _ in rows)]),
        *(
            line([subject, *(cell(run.result(row["name"], subject)) for row in rows)])
            for subject in subjects_of(rows)
        ),
        "",
        meaning_of_ratios(rows),
        "",
    ]


def server_summary(run: Run) -> str:
    """Tables that are narrow enough to be read."""
    lines = [text for rows in server_tables(run) for text in server_table(run, rows)]
    return "\n".join([*lines, circumstances(run)])


def short_summary(run: Run, servers: Run) -> str:
    """Ten rows of two runs."""
    lines = [summary_line(run, run.row(name), tuple(SHORT_COLUMNS)) for name in SHORT_ROWS]
    row = beside_pyfiber(servers.row(SHORT_SERVERS))
    lines.append(summary_line(servers, row, tuple(SHORT_COLUMNS.values())))
    head = [line(["", *SHORT_COLUMNS]), line(["---", *("---:" for _ in SHORT_COLUMNS)])]
    meaning = meaning_of_ratios(list(run.rows()))
    return "\n".join([*head, *lines, "", f"{circumstances(run)} {meaning}"])


def beside_pyfiber(row: dict[str, Any]) -> dict[str, Any]:
    """A row of servers, its values divided by that of pyfiber and not of another reference."""
    own = next(each["value"] for each in row["results"] if each["subject"] == "pyfiber")
    for each in row["results"]:
        is_other = each["subject"] != "pyfiber" and each["value"] is not None
        each["ratio"] = each["value"] / own if is_other else None
    return row


def spread(result: dict[str, Any] | None) -> str:
    """The best value, and in parentheses the median and the worst one, which stay together."""
    if result is None or result["value"] is None:
        return ""
    worst = number(max(result["samples"]))
    return f"{number(result['value'])} ({number(result['median'])},{NO_BREAK_SPACE}{worst})"


def common(titles: list[list[str]]) -> int:
    """How many words all titles begin with."""
    words = zip(*titles, strict=False)
    return next((n for n, each in enumerate(words) if len(set(each)) > 1), 0)


def curve_head(rows: list[dict[str, Any]]) -> list[str]:
    """What the titles have in common, and of each what is its own."""
    titles = [row["title"].split() for row in rows]
    begin, end = common(titles), common([title[::-1] for title in titles])
    first = titles[0]
    words = [*first[:begin], "...", *first[len(first) - end :]]
    own = [" ".join(title[begin : len(title) - end]) for title in titles]
    return [f"{' '.join(words)} [{rows[0]['unit']}]", *own]


def curve_summary(run: Run) -> str:
    """Of `bench curves` a table for each curve, a line for each subject, with the spread."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in run.rows():
        groups.setdefault(row["name"].removeprefix("curve-").partition("-")[0], []).append(row)
    lines = []
    for rows in groups.values():
        lines.append(line(curve_head(rows)))
        lines.append(line(["---", *("---:" for _ in rows)]))
        for name in subjects_of(rows):
            cells = [spread(run.result(row["name"], name)) for row in rows]
            lines.append(line([name, *cells]))
        lines.append("")
    return "\n".join([*lines, circumstances(run)])


def circumstances(run: Run) -> str:
    """Where and how it was measured."""
    environment = run.document["environment"]
    settings = run.document["settings"]
    quick = " with --quick" if settings["quick"] else ""
    busy = environment["load_average"]
    note = f" Load of the machine as it began: {busy:.1f}." if busy is not None else ""
    peers = [f"{name} {version}" for name, version in environment["peers"].items() if version]
    return (
        f"CPython {environment['python']}, {environment['system']}, {environment['processor']}, "
        f"{environment['processors']} processors. Peers: {', '.join(peers) or 'none'}. "
        f"Best of {settings['repetitions']} repetitions{quick}.{note}"
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
    parser.add_argument("--summary", type=Path, metavar="FILE", required=True, help="of this run")
    parser.add_argument("--servers", type=Path, metavar="FILE", help="ten rows of that and this")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put it between the marks there")
    options = parser.parse_args()
    run = Run.from_file(options.summary)
    if options.servers:
        text, name = short_summary(run, Run.from_file(options.servers)), "bench ten"
    else:
        text, name = summary_of(run)
    if options.into:
        put_into(options.into, text, name)
    else:
        print(text)


if __name__ == "__main__":
    main()
