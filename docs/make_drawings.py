"""Makes the drawings in docs/images that are lines and words: python docs/make_drawings.py

The drawings are SVG, legible on light and on dark ground. A test compares them with what this
makes.
"""

from __future__ import annotations

import json
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
  .fails { fill: #cf222e; }
  .frame { fill: #ddf4ff; stroke: #0969da; }
  .native { fill: #fff8c5; stroke: #bf8700; }
  .empty { fill: none; stroke: #8c959f; stroke-dasharray: 3 5; }
  .block { fill: none; stroke: #8c959f; }
  .light { fill: #ffffff; text-anchor: middle; }
  .mid { text-anchor: middle; }
  .small { font-size: 12px; text-anchor: middle; }
  .tiny { font-size: 11px; }
  .code { font: 13px ui-monospace, monospace; text-anchor: middle; }
  .bad { stroke: #cf222e; stroke-width: 1.5; fill: none; marker-end: url(#tip); }
  .arrow { stroke: #1f2328; stroke-width: 1.5; fill: none; marker-end: url(#tip); }
  .tip { fill: #1f2328; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .step { fill: #0d1117; }
    .life { stroke: #6e7681; }
    .runs { fill: #58a6ff; }
    .parked { fill: #30363d; }
    .waits { fill: #d29922; }
    .fails { fill: #f85149; }
    .frame { fill: #121d2f; stroke: #58a6ff; }
    .native { fill: #272115; stroke: #d29922; }
    .empty, .block { stroke: #6e7681; }
    .light { fill: #0d1117; }
    .bad { stroke: #f85149; }
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

    def rect(self, kind: str, x: int, y: int, width: int, height: int) -> None:
        self.shapes.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>'
        )

    def path(self, kind: str, *points: tuple[int, int]) -> None:
        (x, y), *rest = points
        steps = " ".join(f"L{x} {y}" for x, y in rest)
        self.shapes.append(f'<path class="{kind}" d="M{x} {y} {steps}"/>')

    def labelled(self, kind: str, place: tuple[int, int, int, int], label: str, text: str) -> None:
        """A box with words in its middle, of the class `label`."""
        x, y, width, height = place
        self.rect(kind, *place)
        self.text(label, x + width // 2, y + height // 2 + 5, text)

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


def stack() -> Drawing:
    """Three stacks, one of which runs; nothing is copied."""
    drawing = Drawing(860, 364, "Each fiber has a stack of its own; the processor works on one")
    stacks = [
        (40, "fiber A", "parked", ["main()", "load()", "sleep(1)"]),
        (320, "fiber B", "runs", ["report()", "sorted()", "key()", "fetch()"]),
        (600, "fiber C", "parked", ["serve()", "recv()"]),
    ]
    for x, name, state, frames in stacks:
        drawing.text("head", x + 100, 24, name)
        for level in range(5):
            kind = "empty"
            if level < len(frames):
                kind = "native" if frames[level] in ("sorted()", "sleep(1)", "recv()") else "frame"
            drawing.rect(kind, x, 40 + 38 * level, 200, 32)
            if level < len(frames):
                drawing.text("code", x + 100, 61 + 38 * level, frames[level])
        drawing.box(state, x + 7, 242, 14)
        words = "runs" if state == "runs" else "is parked, with all its calls"
        drawing.text("note", x + 22, 254, words)
    drawing.path("arrow", (278, 170), (316, 170))
    drawing.text("note", 250, 160, "processor")
    drawing.path("arrow", (524, 170), (560, 170), (560, 93), (596, 93))
    drawing.text("small", 560, 190, "switch")
    for x, kind, text in ((40, "frame", "a Python function"), (200, "native", "a C function")):
        drawing.rect(kind, x, 284, 14, 14)
        drawing.text("note", x + 22, 296, text)
    for y, text in (
        (326, "A switch makes the processor go on with another stack, where that one was left."),
        (346, "Nothing is copied, however deep the calls are."),
    ):
        drawing.text("note", 40, y, text)
    return drawing


def parking() -> Drawing:
    """Two fibers on one thread: park, unpark, ready, running."""
    drawing = Drawing(860, 260, "Fiber A parks, B runs and unparks it, A is ready and runs again")
    first, second = 70, 150
    drawing.text("head", 50, first + 20, "A")
    drawing.text("head", 50, second + 20, "B")
    for lane, parts in (
        (first, [("runs", 80, 170), ("parked", 250, 260), ("waits", 510, 120), ("runs", 630, 170)]),
        (second, [("waits", 80, 170), ("runs", 250, 380), ("parked", 630, 170)]),
    ):
        for kind, x, width in parts:
            drawing.rect(kind, x, lane, width, 30)
    for x, y, kind, text in (
        (165, first, "light", "runs"),
        (380, first, "mid", "parked: costs no time"),
        (570, first, "light", "ready"),
        (715, first, "light", "runs"),
        (165, second, "light", "ready"),
        (440, second, "light", "runs"),
        (715, second, "mid", "parked"),
    ):
        drawing.text(kind, x, y + 20, text)
    drawing.text("code", 250, first - 14, "park()")
    drawing.path("arrow", (250, first + 32), (250, second - 3))
    drawing.text("code", 510, second + 52, 'a.unpark("hello")')
    drawing.path("arrow", (510, second - 2), (510, first + 33))
    drawing.text("code", 640, first - 14, 'park() returns "hello"')
    drawing.path("arrow", (630, second - 2), (630, first + 33))
    drawing.path("arrow", (80, 232), (800, 232))
    drawing.text("note", 808, 237, "time")
    return drawing


def scopes() -> Drawing:
    """A tree of groups and fibers: a failure goes up, cancellation goes down."""
    drawing = Drawing(860, 400, "A failure goes up to its group, cancellation goes down the tree")
    drawing.labelled("frame", (320, 20, 160, 34), "code", "run(main)")
    drawing.path("block", (400, 54), (400, 80))
    drawing.labelled("block", (290, 80, 220, 34), "code", "with timeout(5):")
    drawing.path("block", (400, 114), (400, 140))
    drawing.labelled("block", (290, 140, 220, 34), "code", "with TaskGroup():")
    for x, kind, name in (
        (110, "frame", "fetch(a)"),
        (400, "fails", ""),
        (690, "frame", "fetch(c)"),
    ):
        drawing.path("block", (400, 174), (400, 196), (x, 196), (x, 220))
        drawing.labelled(kind, (x - 80, 220, 160, 34), "code", name)
    drawing.text("light", 400, 242, "fetch(b) fails")
    drawing.path("block", (690, 254), (690, 274))
    drawing.labelled("block", (600, 274, 180, 34), "code", "with TaskGroup():")
    for x in (630, 750):
        drawing.path("block", (690, 308), (690, 322), (x, 322), (x, 336))
        drawing.labelled("frame", (x - 55, 336, 110, 34), "code", "part()")
    drawing.path("bad", (440, 218), (440, 178))
    drawing.step(458, 206, 1)
    drawing.path("arrow", (288, 157), (150, 157), (150, 216))
    drawing.step(220, 157, 2)
    drawing.path("arrow", (512, 157), (650, 157), (650, 216))
    drawing.step(580, 157, 2)
    drawing.path("arrow", (780, 254), (812, 254), (812, 332))
    drawing.step(812, 292, 2)
    for number, y, text in (
        (1, 300, "One fails, and the failure goes up to its group."),
        (2, 330, "The group cancels all others in it, with all that they have started."),
        (3, 360, "When they have all ended, its block raises the error."),
    ):
        drawing.step(42, y, number)
        drawing.text("note", 62, y + 5, text)
    return drawing


def hosted() -> Drawing:
    """A turn of asyncio's loop, one of whose callbacks gives fibers a turn."""
    drawing = Drawing(860, 300, "In each turn of asyncio's loop the host lets its fibers run")
    drawing.text("head", 430, 26, "one turn of asyncio's loop")
    drawing.rect("block", 20, 40, 820, 150)
    drawing.labelled("waits", (40, 90, 150, 50), "light", "epoll_wait()")
    drawing.labelled("frame", (220, 90, 90, 50), "mid", "task 1")
    drawing.labelled("frame", (330, 90, 90, 50), "mid", "task 2")
    drawing.rect("block", 450, 64, 370, 106)
    drawing.text("note", 462, 84, "the Host's callback: run_once()")
    for index, name in enumerate(("fiber A", "fiber B", "fiber C")):
        drawing.labelled("runs", (466 + 118 * index, 98, 102, 50), "light", name)
    for start, end in ((190, 218), (310, 328), (420, 448), (568, 582), (686, 700)):
        drawing.path("arrow", (start, 115), (end, 115))
    drawing.path("arrow", (820, 130), (832, 130), (832, 215), (115, 215), (115, 144))
    drawing.text("note", 340, 208, "and again")
    drawing.text(
        "note",
        20,
        250,
        "All of it is one thread. The Host's descriptor is one of those that epoll_wait() watches: "
        "it is readable when a fiber is ready.",
    )
    drawing.text(
        "note",
        20,
        274,
        "A fiber waits for a task's future by await_(), a task for a fiber by await host.run().",
    )
    return drawing


def choosing() -> Drawing:
    """select(): in three lines at once, served in one, gone from the others."""
    drawing = Drawing(860, 330, "A fiber in select() stands in three lines and is served once")
    drawing.text("head", 110, 26, "what it waits for")
    drawing.text("head", 420, 26, "who waits there")
    rows = [
        (60, "orders.getting()", "a queue", ["other", "mine"]),
        (140, "radio.receiving()", "a channel", ["mine"]),
        (220, "closing.waiting()", "an event", ["other", "other", "mine"]),
    ]
    for y, code, what, line in rows:
        drawing.rect("frame", 20, y, 180, 50)
        drawing.text("code", 110, y + 22, code)
        drawing.text("small", 110, y + 40, what)
        for index, who in enumerate(line):
            place = (240 + 110 * index, y + 8, 96, 34)
            if who == "other":
                drawing.labelled("parked", place, "mid", "another")
            elif y == 140:
                drawing.labelled("runs", place, "light", "our fiber")
            else:
                drawing.labelled("empty", place, "mid", "our fiber")
    drawing.path("arrow", (338, 165), (616, 165))
    drawing.text("code", 480, 157, "a value comes here first")
    drawing.labelled("runs", (620, 140, 220, 50), "light", "(1, value)")
    for y in (85, 245):
        drawing.text("note", 620, y + 5, "our fiber leaves this line;")
        drawing.text("note", 620, y + 23, "nothing was taken here")
    drawing.text(
        "note",
        20,
        312,
        "select() stands in all lines at once. The first that serves it decides; "
        "in the others it is as if it had never been there.",
    )
    return drawing


def timeline() -> Drawing:
    """What trace() has recorded of the program in docs/profiling.md."""
    recorded = json.loads((IMAGES / "timeline.json").read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in recorded if event["ph"] == "X"]
    rows = [event for event in recorded if event["name"] == "thread_name"]
    first = min(event["ts"] for event in spans)
    last = max(event["ts"] + event["dur"] for event in spans)
    left, width, height = 110, 720, 30

    def place(moment: float) -> int:
        return left + round((moment - first) / (last - first) * width)

    drawing = Drawing(860, 60 + 44 * len(rows) + 30, "A timeline of one run: who ran, who waited")
    bottom = 24 + 44 * len(rows)
    for millisecond in range(int((last - first) / 1000) + 1):
        x = place(first + 1000 * millisecond)
        drawing.line("life", x, 16, x, bottom)
        drawing.text("small", x, bottom + 18, f"{millisecond} ms")
    for index, row in enumerate(rows):
        y = 24 + 44 * index
        drawing.text("note", 10, y + 20, row["args"]["name"])
        for event in spans:
            if event["tid"] != row["tid"]:
                continue
            x, end = place(event["ts"]), place(event["ts"] + event["dur"])
            waits = event["name"].startswith("waits") or event["name"] == "ready"
            where = (x, y, max(2, end - x), height)
            if 2 * (end - x) < 13 * len(event["name"]):
                drawing.rect("parked" if waits else "runs", *where)
            elif waits:
                drawing.labelled("parked", where, "small", event["name"])
            else:
                drawing.labelled("runs", where, "light tiny", event["name"])
    drawing.text(
        "note",
        10,
        bottom + 44,
        "Blue: a turn. Grey: a wait, and for what. Where the loop's row is empty nobody ran.",
    )
    return drawing


#: The rooms of the source from the top down, as `.ci/rooms.py` has them from the ground up: where a
#: floor is, its rooms, and what is said beside them.
FLOORS = (
    ("pyfiber/", ("pyfiber",), "Python: what users import"),
    ("csrc/python", ("module.c",), "puts the rooms together"),
    ("csrc/python", ("capi",), "the table of functions for C programs"),
    ("csrc/python", ("grain", "patch", "virtual"), "tasks that are generators; patch(); threads"),
    ("csrc/python", ("queue", "slice"), "queues and channels; time slices"),
    ("csrc/python", ("sync", "threads", "io", "testing", "greenlet", "watch"), ""),
    ("csrc/python", ("run/unix", "run/windows"), "signals"),
    ("csrc/python", ("run",), "the Scheduler and its loop"),
    ("csrc/python", ("cancel",), "scopes, cancellation, groups"),
    ("csrc/python", ("fiber",), "the type Fiber"),
    ("csrc/python", ("look",), "frames and attributes, for reports"),
    ("csrc/python", ("wait",), "park, sleep, yield, join"),
    ("csrc/python", ("pack",), "moves the stacks of parked fibers"),
    ("csrc/python", ("switch",), "leaves one fiber for another"),
    ("csrc/python", ("waitq",), "queues of waiters"),
    ("csrc/python", ("task",), "what the ready queue holds"),
    ("csrc/python", ("core",), "threads, CPython's thread state, arguments"),
    ("csrc/engine", ("unix", "windows"), "what differs between systems"),
    ("csrc/engine", ("core",), "tasks, the ready queue, timers, messages"),
    ("csrc/engine", ("stack", "io"), "stacks and guards; how an idle loop waits"),
    ("csrc/context", ("context",), "leaves one C stack for another"),
    ("csrc/engine", ("base",), "atomics, memory, the clock"),
)


def rooms() -> Drawing:
    """The floors of the source; what is on one uses what is below it."""
    step, top = 28, 40
    drawing = Drawing(
        860, top + step * len(FLOORS) + 34, "The rooms of the source, on their floors"
    )
    drawing.text("note", 10, 24, "A room uses the rooms below it, and no room beside it or above.")
    kinds = {"pyfiber/": "runs", "csrc/python": "frame", "csrc/engine": "native"}
    before = ""
    for index, (where, names, words) in enumerate(FLOORS):
        y = top + step * index
        if where != before:
            drawing.text("note", 10, y + 16, where)
        before = where
        for column, name in enumerate(names):
            kind = kinds.get(where, "parked")
            label = "light" if kind == "runs" else "mid"
            drawing.labelled(kind, (110 + 122 * column, y, 114, 22), label, name)
        drawing.text("note", 118 + 122 * len(names), y + 16, words)
    bottom = top + step * len(FLOORS)
    drawing.path("arrow", (846, top), (846, bottom - 6))
    drawing.text(
        "note", 10, bottom + 18, "python3 .ci/rooms.py checks that includes and calls lead down."
    )
    return drawing


DRAWINGS = {
    "choosing.svg": choosing,
    "hosted.svg": hosted,
    "parking.svg": parking,
    "rooms.svg": rooms,
    "scopes.svg": scopes,
    "stack.svg": stack,
    "timeline.svg": timeline,
    "waiting.svg": waiting,
}


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (IMAGES / name).write_text(draw().svg(), encoding="utf-8")
