"""Each variable outside of a function says what kind of state it is: python3 .ci/state.py

There are three kinds (see docs/design_state.md), named in a comment at or above the variable:

    constant after import       set while the module is imported, read by everybody from then on
    shared, behind SOME_lock    written later; or "shared, one word", which is atomic;
                                "shared, behind its own mutex" (core/objlock.h): the GIL, if any
    shared, behind the GIL      in a room that builds without a GIL never enter (slice/)
    of a thread                 thread-local, or used by one thread alone

Tables that the interpreter wants without `const`, and that nobody writes, need not say anything.
Lists every other variable of csrc/python without a kind, and exits 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CSRC = Path(__file__).resolve().parent.parent / "csrc"

KIND = re.compile(
    r"constant after import|shared, (behind (?:\w+_lock|its own mutex|the GIL)|one word)"
    r"|of a thread",
    re.I,
)
#: A line that declares a variable: as clang-format has it, at the left or static in a function.
VARIABLE = re.compile(r"^(?:[A-Za-z_]|    +static ).*(?:;|\{|,|=)$")
OTHER = re.compile(
    r"^(typedef|extern|enum|union|struct|return|goto|case|default|else|do|_Static_assert)\b"
)
TABLE = re.compile(r"Py(MethodDef|GetSetDef|MemberDef|Type_Slot|Type_Spec|ModuleDef\w*)\b")
NAMES = re.compile(r"\bchar \*names\[\]")
LOCK = re.compile(r"\bpf_mutex \w+_lock = PF_MUTEX_INIT;")
#: The variable itself, not what it points to.
CONST = re.compile(r"\*const \w+|^\s*(static )?const [^*]*$|^\s*(static )?const [^*=]*=")
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"', re.DOTALL)


def blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def is_variable(line: str) -> bool:
    if not VARIABLE.match(line) or any(e.search(line) for e in (TABLE, NAMES, LOCK, CONST)):
        return False
    declared = re.sub(r"PF_ATOMIC\([^)]*\)", "", line.split("=")[0])
    return "(" not in declared and not OTHER.match(line)


def comment_at(lines: list[str], at: int) -> str:
    """What stands directly above, and on the line, with what that goes on with."""
    first = at
    while first > 0 and re.match(r"\s*(/\*| \*)", lines[first - 1]):
        first -= 1
    last = at
    while "/*" in lines[last] and "*/" not in lines[last]:
        last += 1
    return re.sub(r"\s+\*?\s*", " ", " ".join(lines[first : last + 1]))


def without_kind(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8")
    code = [line.rstrip() for line in STRING.sub(blank, COMMENT.sub(blank, text)).splitlines()]
    lines = text.splitlines()
    found = []
    depth = 0
    for at, line in enumerate(code):
        outside = depth == 0 or line.lstrip().startswith("static ")
        if outside and is_variable(line) and not KIND.search(comment_at(lines, at)):
            found.append(f"{file.relative_to(CSRC).as_posix()}:{at + 1}: {line.strip()}")
        depth += line.count("{") - line.count("}")
    return found


def main() -> int:
    files = sorted((CSRC / "python").rglob("*.c"))
    found = [variable for file in files for variable in without_kind(file)]
    print(*found, f"{len(files)} files, {len(found)} variables without a kind", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
