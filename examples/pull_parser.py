"""Turn a parser that pushes events into callbacks into one from which events are pulled.

    python examples/pull_parser.py FILE.xml

Expat reads a document and calls back for everything it finds: the C function ParseFile is on the
stack, and does not return before the end. As a pyfiber.generator it runs on a fiber, and `emit`,
its callback, leaves that with each event, so that the events come out of an ordinary `for` loop.
There is no thread, and no event waits in a queue. This way works for every function that reports
to a callback.

Run on a file, the example compares the events with those of xml.etree.ElementTree.iterparse, one
for one, and both with bare callbacks in speed. (iterparse puts its events together in C; the
callbacks here are Python, which is most of their time. What pulling adds is the difference to
bare callbacks.)
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from xml.etree import ElementTree
from xml.parsers import expat

from pyfiber import emit, generator

#: ("start", tag, attributes) or ("end", tag, text)
Event = tuple[str, str, dict[str, str] | str | None]


class QualifiedNames(dict[str, str]):
    """Names as ElementTree writes them, {namespace}name; each is put together once."""

    def __missing__(self, name: str) -> str:
        qualified = self[name] = "{" + name if "}" in name else name
        return qualified


class Handlers:
    """Expat's callbacks: they put events together and hand them on."""

    def __init__(self, emit: Callable[[Event], object]) -> None:
        self.emit = emit
        self.names = QualifiedNames()
        self.data: list[str] = []  # characters since the last tag
        self.texts: list[str | None] = []  # of the open elements, as far as they are complete
        self.after_start = False  # whether the last tag was a start tag

    def install(self, parser: expat.XMLParserType) -> None:
        """Have the parser call this object."""
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.data.append

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Report a start tag."""
        if self.data:
            self.complete_text()
        self.texts.append(None)
        self.after_start = True
        names = self.names
        if attributes:
            attributes = {names[key]: value for key, value in attributes.items()}
        self.emit(("start", names[name], attributes))

    def end(self, name: str) -> None:
        """Report an end tag."""
        if self.data:
            self.complete_text()
        self.after_start = False
        self.emit(("end", self.names[name], self.texts.pop()))

    def complete_text(self) -> None:
        """Keep an element's text: it reaches from its start tag to the next tag of any kind."""
        if self.after_start:
            self.texts[-1] = "".join(self.data)
        self.data.clear()


def parse(path: Path, emit: Callable[[Event], object]) -> None:
    """Push the events of a document into a callback. Returns at the end of the document."""
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    Handlers(emit).install(parser)
    with path.open("rb") as file:
        parser.ParseFile(file)


def pulled(path: Path) -> Iterator[Event]:
    """The events of a document, pulled."""
    return generator(parse)(path, emit)


def iterparsed(path: Path) -> Iterator[Event]:
    """The same events from the standard library's own pull parser."""
    with path.open("rb") as file:
        for event, element in ElementTree.iterparse(file, events=("start", "end")):
            if event == "start":
                yield ("start", element.tag, element.attrib)
            else:
                yield ("end", element.tag, element.text)
                element.clear()


def push_only(path: Path) -> None:
    """Parse with callbacks alone: what the parser takes, with nothing turned around."""
    forget: deque[Event] = deque(maxlen=0)
    parse(path, forget.append)


def compare(path: Path) -> int:
    """Pull the same document from both, event for event; the number of events."""
    count = 0
    for count, (ours, theirs) in enumerate(zip(pulled(path), iterparsed(path), strict=True), 1):
        if ours != theirs:
            raise SystemExit(f"event {count} differs:\n  pulled    {ours}\n  iterparse {theirs}")
    return count


def best_time(function: Callable[[], object], repetitions: int) -> float:
    """The shortest of some times, in seconds."""
    times = []
    for _ in range(repetitions):
        start = perf_counter()
        function()
        times.append(perf_counter() - start)
    return min(times)


def exhaust(events: Iterator[Event]) -> None:
    """Pull until the end."""
    for _ in events:
        pass


def main() -> None:
    """Compare what the parsers yield, then how long they take."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="an XML document")
    parser.add_argument("--show", type=int, default=4, help="print so many events first")
    parser.add_argument("--repeat", type=int, default=5, help="best of so many runs")
    options = parser.parse_args()
    for _, event in zip(range(options.show), pulled(options.file), strict=False):
        print(*event)
    count = compare(options.file)
    print(f"{count:,} events, the same from pulled() and from iterparse")
    ways: tuple[tuple[str, Callable[[], object]], ...] = (
        ("expat callbacks alone", lambda: push_only(options.file)),
        ("pulled out of expat", lambda: exhaust(pulled(options.file))),
        ("ElementTree.iterparse", lambda: exhaust(iterparsed(options.file))),
    )
    for name, way in ways:
        seconds = best_time(way, options.repeat)
        print(f"{name:<22} {seconds * 1e3:8.1f} ms {seconds / count * 1e9:8,.0f} ns an event")


if __name__ == "__main__":
    main()
