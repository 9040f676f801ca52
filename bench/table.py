"""Formats the results of a run as Markdown.

    python -m bench.table --summary FILE.json           # a line for each row
    python -m bench.table --summary FILE.json --into docs/performance.md
    python -m bench.table --summary FILE.json --servers SERVERS.json  # ten rows of both

A summary is about one family of rows. A run of `bench io` has a line for each server, in tables
that are narrow enough to be read, and a separate place in the document. With --summary and
--servers the program prints the ten rows that matter most.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The summary of fibers and schedulers has these columns.
COLUMNS = ("pyfiber", "greenlet", "gevent", "asyncio", "uvloop", "trio", "generator", "threads")
#: The columns of the ten rows, and the server whose results each one shows.
SHORT_COLUMNS = {
    "pyfiber": "pyfiber",
    "greenlet": "",
    "gevent": "gevent",
    "asyncio": "asyncio streams",
    "uvloop": "uvloop streams",
    "trio": "trio",
    "threads": "threads",
}
#: The nine rows of fibers and schedulers that matter most, and the row of servers.
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
#: The columns of each table of servers; one table with all columns would be too wide.
SERVER_TABLES = (
    ("io-echo-1", "io-echo-100", "io-echo-1000", "io-tls"),
    ("io-calls", "io-short", "io-idle", "io-computing"),
    ("io-http", "io-wsgi"),
)
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
#: The place between marks where a document has the summary of a family of rows.
PLACE = r"(?<=<!-- {0}: begin -->\n).*?(?=<!-- {0}: end -->)"


@dataclass(frozen=True)
class Run:
    """What `python -m bench --json` has written."""

    document: dict[str, Any]

    @classmethod
    def from_file(cls, file: Path) -> Run:
        """Read a run from a JSON document."""
        return cls(json.loads(file.read_text(encoding="utf-8")))

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows, in the order of the table."""
        yield from self.document["rows"]

    def row(self, name: str) -> dict[str, Any]:
        """The row of that name."""
        return next(row for row in self.rows() if row["name"] == name)

    def result(self, row: str, subject: str) -> dict[str, Any] | None:
        """The result of one subject in one row, or None."""
        results = self.row(row)["results"]
        return next((result for result in results if result["subject"] == subject), None)


def number(value: float) -> str:
    """Format a value with three digits, or with commas between thousands."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(result: dict[str, Any] | None) -> str:
    """A value, and its ratio to that of the reference."""
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
    """The subjects that were measured in any of the rows."""
    return list(dict.fromkeys(result["subject"] for row in rows for result in row["results"]))


def heading(row: dict[str, Any]) -> str:
    """The title of a row, with its unit."""
    return f"{row['title']} [{row['unit']}]"


def summary_line(run: Run, row: dict[str, Any], columns: tuple[str, ...]) -> str:
    """The line of one benchmark in the summary."""
    cells = [cell(run.result(row["name"], subject)) for subject in columns]
    return line([heading(row), *cells])


def meaning_of_ratios(rows: list[dict[str, Any]]) -> str:
    """A sentence that explains the ratios in parentheses; rows may have different references."""
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
    """The summary of a run: a line for each benchmark, a column for each peer."""
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
    """The rows of each table of servers; the last table has the rows that SERVER_TABLES lacks."""
    rows = {row["name"]: row for row in run.rows()}
    tables = [[rows.pop(name) for name in names if name in rows] for names in SERVER_TABLES]
    return [table for table in (*tables, list(rows.values())) if table]


def server_table(run: Run, rows: list[dict[str, Any]]) -> list[str]:
    """A table with a line for each server, as there are many, and a column for each benchmark."""
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
    """The summary of a run of servers: several tables, as one would be too wide."""
    lines = [text for rows in server_tables(run) for text in server_table(run, rows)]
    return "\n".join([*lines, circumstances(run)])


def short_summary(run: Run, servers: Run) -> str:
    """The ten rows that matter most, from two runs."""
    lines = [summary_line(run, run.row(name), tuple(SHORT_COLUMNS)) for name in SHORT_ROWS]
    row = beside_pyfiber(servers.row(SHORT_SERVERS))
    lines.append(summary_line(servers, row, tuple(SHORT_COLUMNS.values())))
    head = [line(["", *SHORT_COLUMNS]), line(["---", *("---:" for _ in SHORT_COLUMNS)])]
    meaning = meaning_of_ratios(list(run.rows()))
    return "\n".join([*head, *lines, "", f"{circumstances(run)} {meaning}"])


def beside_pyfiber(row: dict[str, Any]) -> dict[str, Any]:
    """A row of servers with ratios to pyfiber, instead of to the row's reference."""
    own = next(each["value"] for each in row["results"] if each["subject"] == "pyfiber")
    for each in row["results"]:
        is_other = each["subject"] != "pyfiber" and each["value"] is not None
        each["ratio"] = each["value"] / own if is_other else None
    return row


def spread(result: dict[str, Any] | None) -> str:
    """The best value, then in parentheses the median and the worst one, without a line break."""
    if result is None or result["value"] is None:
        return ""
    worst = number(max(result["samples"]))
    return f"{number(result['value'])} ({number(result['median'])},{NO_BREAK_SPACE}{worst})"


def common(titles: list[list[str]]) -> int:
    """How many words all titles begin with."""
    words = zip(*titles, strict=False)
    return next((n for n, each in enumerate(words) if len(set(each)) > 1), 0)


def curve_head(rows: list[dict[str, Any]]) -> list[str]:
    """The words that the titles have in common, then the other words of each title."""
    titles = [row["title"].split() for row in rows]
    begin, end = common(titles), common([title[::-1] for title in titles])
    first = titles[0]
    words = [*first[:begin], "...", *first[len(first) - end :]]
    own = [" ".join(title[begin : len(title) - end]) for title in titles]
    return [f"{' '.join(words)} [{rows[0]['unit']}]", *own]


def curve_summary(run: Run) -> str:
    """The summary of `bench curves`: a table for each curve, with the spread of each subject."""
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
    """A sentence on the machine, the peers and the repetitions."""
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
    """The summary of a run, as its family has it, and the name of its place in documents."""
    families = {row.get("family") for row in run.rows()}
    if "curves" in families:
        return curve_summary(run), "bench curves"
    if is_of_servers(run):
        return server_summary(run), "bench io"
    return summary(run), "bench"


def put_into(path: Path, text: str, name: str) -> None:
    """Replace the text between the marks of that name in a document."""
    before = path.read_text(encoding="utf-8")
    place = re.compile(PLACE.format(name), re.DOTALL)
    after, places = place.subn(lambda _: text + "\n", before)
    if places != 1:
        raise SystemExit(f"{path} has {places} places for the table of {name}, not one")
    path.write_text(after, encoding="utf-8")


def main() -> None:
    """Print the table, or put it into a document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--summary", type=Path, metavar="FILE", required=True, help="the run to show"
    )
    parser.add_argument("--servers", type=Path, metavar="FILE", help="show ten rows of both runs")
    parser.add_argument("--into", type=Path, metavar="FILE", help="replace the table there")
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
