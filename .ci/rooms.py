"""Arrows between the rooms of csrc go down only: python3 .ci/rooms.py

A room is a folder, FLOORS says how high it lies. An arrow is an #include, or the use of a name (a
function, variable, macro or constant) that a header of another room declares. It must lead to a
lower floor. (A structure may be named anywhere: who looks into it needs the header.)

What a header declares must be defined in its own room, so that nobody climbs by declaring the name
somewhere lower; the folders of one system (unix, windows) define what the engine's other rooms
declare.

Files of csrc/python include Python.h before anything else, as it decides what the system's headers
define: directly or by a header of csrc/python, their first #include leads there.

A shared name begins with the name of its room, of the file that defines or declares it, or of a
structure that its header declares: pf_pack_peek, pf_thread_init. What names a whole language of
operations, as atomics.h does, is in WORDS; what looks into the interpreter is called pystate_.

A room has at most 24 files. At most 6 files use each other in a circle; a header and the source of
the same name are one file here.

Exits 1 if one of these rules is broken, or if an exception is not needed any more.
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
    ["python/queue", "python/slice"],
    # grains' steps send to channels and wait for events
    ["python/grain", "python/patch", "python/virtual"],
    ["python/capi"],
    ["python"],
]
HEIGHT = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
SYSTEMS = {"engine/unix", "engine/windows", "python/run/unix", "python/run/windows"}

#: (file, name or header): why it may climb.
EXCEPTIONS: dict[tuple[str, str], str] = {}

#: Headers whose names are a vocabulary of their own.
WORDS = {"engine/base/atomics.h"}
MOST_FILES = 24
MOST_IN_CIRCLE = 6

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
#: ... or a variable's value.
VALUE = re.compile(r"^[A-Za-z][^=;(\n]*?\b(pf_\w+)(?:\[\w*\])?(?: =|;)", re.MULTILINE)
STRUCTURE = re.compile(r"^(?:\}|typedef .*?)\s*\**(\w+);|^struct (\w+) \{", re.MULTILINE)


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


def reach(uses: dict[Path, set[Path]], start: Path) -> set[Path]:
    """All that `start` uses, directly or not."""
    found: set[Path] = set()
    new = {start}
    while new:
        new = {used for unit in new for used in uses[unit]} - found
        found |= new
    return found


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

    def misnamed(self) -> list[str]:
        """Shared names that do not tell where they belong."""
        source = {
            name: file
            for file, code in self.code.items()
            if file.suffix == ".c"
            for name in {*DEFINED.findall(code), *VALUE.findall(code)}
        }
        found = []
        for name, header in self.home.items():
            where = header.relative_to(CSRC).as_posix()
            if not name.startswith("pf_") or where in WORDS:
                continue
            words = {header.stem, *header.parent.relative_to(CSRC).parts}
            words.update(source[name].stem.split("_")[:1] if name in source else [])
            words.add(source[name].stem if name in source else header.stem)
            for pair in STRUCTURE.findall(self.code[header]):
                words.add(re.sub(r"^pf_?|object$", "", (pair[0] or pair[1]).lower()))
            words = {word.removesuffix("s") for word in words}
            if not any(re.match(rf"pf_{word}s?(_|$)", name) for word in words):
                found.append(f"{where}: {name} begins with none of {sorted(words)}")
        return found

    def crowded(self) -> list[str]:
        """Rooms with too many files."""
        files: dict[str, int] = defaultdict(int)
        for file in self.code:
            files[room_of(file)] += 1
        return [
            f"{room} has {count} files, more than {MOST_FILES}"
            for room, count in files.items()
            if count > MOST_FILES
        ]

    def circles(self) -> list[str]:
        """Files, at least too many of them, each of which is used by what it uses."""
        uses: dict[Path, set[Path]] = defaultdict(set)
        sources = [file for file in self.code if file.suffix == ".c"]
        owner = {
            name: file.with_suffix("")
            for file in sources
            for name in DEFINED.findall(self.code[file])
        }
        for file, code in self.code.items():
            for name in set(NAME.findall(INCLUDE.sub("", code))) & owner.keys():
                uses[file.with_suffix("")].add(owner[name])
        reached = {unit: reach(uses, unit) for unit in set(owner.values())}
        circles = {
            frozenset(other for other in reached[unit] if unit in reached[other])
            for unit in reached
        }
        return [
            f"{len(circle)} files use each other in a circle: "
            + ", ".join(sorted(unit.relative_to(CSRC).as_posix() for unit in circle))
            for circle in circles
            if len(circle) > MOST_IN_CIRCLE
        ]

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
    broken = [*house.late(), *house.misnamed(), *house.crowded(), *house.circles()]
    print(*broken, sep="\n", end="\n" if broken else "")
    print(
        f"{len(house.code)} files, {len(between)} arrows between rooms,"
        f" {len(left)} of {len(wrong)} climbs without a reason"
    )
    return 1 if left or gone or broken else 0


if __name__ == "__main__":
    sys.exit(main())
