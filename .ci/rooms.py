"""Arrows between the rooms of csrc go down only: python3 .ci/rooms.py

A room is a folder, FLOORS says how high it lies. An arrow is an #include, or the use of a name (a
function, variable, macro or constant) that a header of another room declares. It must lead to a
lower floor. (A structure may be named anywhere: who looks into it needs the header.)

What a header declares must be defined in its own room, so that nobody climbs by declaring the name
somewhere lower; the folders of one system (unix, windows) define what the engine's other rooms
declare.

Files of csrc/python include Python.h before anything else, as it decides what the system's headers
define: directly or by a header of csrc/python, their first #include leads there.

Exits 1 if an arrow climbs that EXCEPTIONS does not name, if one of those is gone, or if Python.h is
not first.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

CSRC = Path(__file__).resolve().parent.parent / "csrc"

#: From the ground up; rooms on one floor do not know each other.
FLOORS = [
    ["include", "engine/base"],
    ["context"],
    ["engine/stack", "engine/io"],
    ["engine/core"],
    ["engine/unix", "engine/windows"],
    ["python/core"],
    ["python/task"],
    ["python/waitq"],
    ["python/switch"],
    ["python/pack"],
    ["python/wait"],
    ["python/look"],
    ["python/fiber"],
    ["python/cancel"],
    ["python/run"],
    ["python/run/unix", "python/run/windows"],
    [
        "python/sync",
        "python/threads",
        "python/io",
        "python/testing",
        "python/greenlet",
        "python/watch",
    ],
    ["python/grain", "python/patch"],  # grains' steps send to channels and wait for events
    ["python/capi"],
    ["python"],
]
HEIGHT = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
SYSTEMS = {"engine/unix", "engine/windows", "python/run/unix", "python/run/windows"}

#: (file, name or header): why it may climb.
EXCEPTIONS: dict[tuple[str, str], str] = {}

NOISE = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
FIRST = re.compile(r'^#include (?:"(.+)"|<(.+)>)', re.MULTILINE)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
NAME = re.compile(r"\b[A-Za-z_]\w*\b")
MACRO = re.compile(r"^#define (\w+)", re.MULTILINE)
#: Of a line at the outermost level, what it declares.
FUNCTION = re.compile(r"\b((?:pf|pystate)_\w+)\s*\(")
VARIABLE = re.compile(r"^extern .*?(\w+)(?:\[\w*\])?;")
CONSTANT = re.compile(r"^ +(P[FY]_\w+)(?: =|,|$)")
DEFINED = re.compile(r"^((?:pf|pystate)_\w+)\(", re.MULTILINE)


def room_of(file: Path) -> str:
    return file.parent.relative_to(CSRC).as_posix()


def code_of(file: Path) -> str:
    """Without comments; strings stay in #include lines only."""
    text = file.read_text(encoding="utf-8")
    includes = "".join(f'#include "{name}"\n' for name in INCLUDE.findall(text))
    return includes + NOISE.sub(lambda found: "\n" * found[0].count("\n"), text)


def declared(code: str) -> set[str]:
    """The names that a header gives."""
    names = {name for name in MACRO.findall(code) if not name.endswith("_H")}
    depth = 0
    for line in code.splitlines():
        if line.startswith("#"):
            continue
        if depth == 0 or line.startswith("}"):
            names.update(FUNCTION.findall(line) if not line.startswith(" ") else [])
            names.update(VARIABLE.findall(line))
        elif found := CONSTANT.match(line):
            names.add(found[1])
        depth += line.count("{") - line.count("}")
    return names


class House:
    """All files under csrc that belong to a room."""

    def __init__(self) -> None:
        found = sorted([*CSRC.rglob("*.c"), *CSRC.rglob("*.h")])
        self.code = {file: code_of(file) for file in found if room_of(file) in HEIGHT}
        self.home: dict[str, Path] = {}
        headers = {file: code for file, code in self.code.items() if file.suffix == ".h"}
        for find in (MACRO.findall, declared):  # a macro's use may look like a constant
            for file, code in headers.items():
                for name in find(code):
                    self.home.setdefault(name, file)

    def arrows(self) -> dict[tuple[Path, str], str]:
        """(file, name or header): the room that it leads to."""
        arrows = {}
        for file, code in self.code.items():
            for header in INCLUDE.findall(code):
                target = CSRC / header
                if target in self.code:
                    arrows[file, header] = room_of(target)
            for name in set(NAME.findall(INCLUDE.sub("", code))) & self.home.keys():
                if self.home[name] != file:
                    arrows[file, name] = room_of(self.home[name])
        return arrows

    def climbs(self) -> dict[tuple[str, str], str]:
        found = {}
        for (file, what), target in self.arrows().items():
            room = room_of(file)
            if room != target and HEIGHT[target] >= HEIGHT[room]:
                found[file.relative_to(CSRC).as_posix(), what] = target
        return found

    def strangers(self) -> dict[tuple[str, str], str]:
        """What is defined in another room than its header is in."""
        found = {}
        for file, code in self.code.items():
            room = room_of(file)
            for name in DEFINED.findall(code):
                home = self.home.get(name)
                if home is not None and room_of(home) != room and room not in SYSTEMS:
                    found[file.relative_to(CSRC).as_posix(), name] = room_of(home)
        return found

    def late(self) -> list[str]:
        """Files of csrc/python that include another header before Python.h."""
        found = []
        for file in self.code:
            first = FIRST.search(file.read_text(encoding="utf-8"))
            name = "Python.h" if first is None else first[1] or first[2]
            late = name != "Python.h" and not name.startswith("python/")
            if late and room_of(file).startswith("python"):
                found.append(f"{file.relative_to(CSRC)} includes {name} before Python.h")
        return found


def main() -> int:
    house = House()
    between = {
        (file, target) for (file, _), target in house.arrows().items() if room_of(file) != target
    }
    wrong = {**house.climbs(), **house.strangers()}
    gone = EXCEPTIONS.keys() - wrong.keys()
    left = {key: room for key, room in wrong.items() if key not in EXCEPTIONS}
    by_file = defaultdict(list)
    for (file, what), room in sorted(left.items()):
        by_file[file, room].append(what)
    for (file, room), names in by_file.items():
        print(f"{file} -> {room}: {', '.join(names)}")
    for file, what in sorted(gone):
        print(f"{file} no longer needs its exception for {what}")
    late = house.late()
    print(*late, sep="\n", end="\n" if late else "")
    print(
        f"{len(house.code)} files, {len(between)} arrows between rooms,"
        f" {len(left)} of {len(wrong)} climbs without a reason"
    )
    return 1 if left or gone or late else 0


if __name__ == "__main__":
    sys.exit(main())
