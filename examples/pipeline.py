"""A pipeline of processes, as a shell would write it, fed and read by fibers.

    fiber that feeds | sort | uniq -c | sort -rn | fiber that reads

The most frequent words of the files that are named, or of this one. No pipe can fill up and stop
everything: each end that is ours has a separate fiber. A signal or a time limit ends all of it,
and leaves no process behind.

    python examples/pipeline.py --top 3 README.md
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from signal import SIGTERM
from typing import IO, Any

import pyfiber
from pyfiber.subprocess import PIPE, Popen

STAGES = ["sort"], ["uniq", "-c"], ["sort", "-rn"]


def words_of(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                yield from re.findall(r"[^\W\d_]+", line.lower())


def started(stages: Iterable[list[str]], stack: ExitStack) -> tuple[IO[str], IO[str]]:
    """Start them all, each one's output the next one's input: where it begins, where it ends."""
    processes: list[Popen[str]] = []
    for stage in stages:
        source: Any = processes[-1].stdout if processes else PIPE
        process = stack.enter_context(Popen(stage, stdin=source, stdout=PIPE, text=True))
        stack.callback(process.kill)  # comes before the wait; does nothing to one that has ended
        processes.append(process)
        if source is not PIPE:
            source.close()  # the process has a copy of this end now
    first, last = processes[0].stdin, processes[-1].stdout
    assert first
    assert last
    return first, last


def feed(into: IO[str], words: Iterable[str]) -> None:
    with into:
        for word in words:
            into.write(f"{word}\n")


def stop_at_signal(group: pyfiber.TaskGroup) -> None:
    with pyfiber.signals(SIGTERM) as received:
        group.cancel(received.get().name)


def most_frequent(paths: list[str], top: int) -> list[str]:
    lines: list[str] = []
    with pyfiber.TaskGroup() as group, ExitStack() as stack:
        begin, end = started(STAGES, stack)
        watch = group.spawn(stop_at_signal, group)
        group.spawn(feed, begin, words_of(paths))
        for line in end:
            if len(lines) < top:
                lines.append(" ".join(line.split()))
        watch.cancel()
    if group.cancel_called:
        raise SystemExit(f"ended by {group.reason}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", default=[__file__])
    parser.add_argument(
        "--top", type=int, default=5, metavar="N", help="how many to show (%(default)s)"
    )
    parser.add_argument("--limit", type=float, default=60, metavar="SECONDS", help="(%(default)s)")
    options = parser.parse_args()
    with pyfiber.timeout(options.limit):
        print(*most_frequent(options.files, options.top), sep="\n")


if __name__ == "__main__":
    pyfiber.run(main)
