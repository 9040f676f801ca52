"""csrc/include/pyfiber.h as text for the reference.

Each entry there is a comment and a declaration; the functions are members of a table, and are
called by macros of the same name with ``PyFiber_`` before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

HEADER = Path(__file__).resolve().parents[2] / "csrc" / "include" / "pyfiber.h"
TABLE = "typedef struct PyFiber_CAPI {"
COMMENT = r"/\*(?P<comment>(?:[^*]|\*(?!/))*)\*/\n"
#: A comment alone, or a declaration with the comment that stands before it.
MEMBER = re.compile(rf"(?:{COMMENT})?\s*(?P<code>[^;/]+;)?", re.DOTALL)
#: `PyObject *(*New)(...)`: what it returns, its name, its parameters.
POINTER = re.compile(r"(?P<returns>.*?)\(\*(?P<name>\w+)\)(?P<parameters>\(.*\));", re.DOTALL)
SECTION = re.compile(r"\s*--- (?P<title>.*?)[ -]*(?:\n\s*\*\s*\n(?P<text>.*)|$)", re.DOTALL)
TYPE = re.compile(rf"(?:{COMMENT})?(?P<code>typedef [^;{{]*;|#define PYFIBER_\w+)", re.DOTALL)
STRUCT = re.compile(rf"{COMMENT}typedef struct (?P<name>\w+) (?P<body>{{.*?}}) \w+;", re.DOTALL)
INLINE = re.compile(rf"{COMMENT}static inline (?P<returns>\w+)\n(?P<call>PyFiber_\w+\(.*?\))\n")
#: Used by the macros of the header alone.
INTERNAL = ("PyFiber_IsReady", "PyFiber_Table")


def words(comment: str) -> list[str]:
    """A comment as lines of reStructuredText, in which no sign of C means anything."""
    lines = [re.sub(r"^\s*\*? ?", "", line) for line in comment.strip().splitlines()]
    return [re.sub(r"([*\\|])", r"\\\1", line) for line in lines]


def described(directive: str, names: list[str], comment: str) -> list[str]:
    """Return the lines of a directive: its signatures and its text."""
    first, *more = names
    signatures = [f".. c:{directive}:: {first}", *(" " * 4 + name for name in more)]
    return ["", *signatures, "", *(" " * 3 + line for line in words(comment)), ""]


def one_line(code: str) -> str:
    """A declaration without its breaks."""
    return re.sub(r"\s+", " ", code).strip().rstrip(";")


def called(pointer: re.Match[str]) -> str:
    """A member of the table as the function that a program calls."""
    returns = one_line(pointer["returns"])
    star = "" if returns.endswith("*") else " "
    return f"{returns}{star}PyFiber_{pointer['name']}{one_line(pointer['parameters'])}"


def of_types(text: str) -> Iterator[str]:
    """Macros, types, counters: what stands before the table."""
    before = text.partition(TABLE)[0].partition('extern "C" {')[2]
    for match in TYPE.finditer(before):
        directive, _, name = one_line(match["code"]).partition(" ")
        directive = "macro" if directive == "#define" else "type"
        yield from described(directive, [name], match["comment"] or "")
    for match in STRUCT.finditer(before):
        yield from described("struct", [match["name"]], match["comment"])
        yield from ["   .. code-block:: c", ""]
        yield from (" " * 6 + line for line in match["body"].splitlines())


def of_functions(text: str) -> Iterator[str]:
    """What is called: a function without a comment belongs to the one before it."""
    for match in INLINE.finditer(text):
        if not match["call"].startswith(INTERNAL):
            yield from described(
                "function", [f"{match['returns']} {match['call']}"], match["comment"]
            )
    group: list[str] = []
    told = ""
    table = text.partition(TABLE)[2].partition("} PyFiber_CAPI;")[0]
    for match in MEMBER.finditer(table):
        comment, code = match["comment"] or "", match["code"] or ""
        pointer = POINTER.search(code)
        if group and (comment or not pointer):
            yield from described("function", group, told)
            group = []
        section = SECTION.match(comment)
        if section:
            title = one_line(" ".join(words(section["title"])))
            title = title[0].upper() + title[1:]
            yield from ["", f".. rubric:: {title}", "", *words(section["text"] or ""), ""]
        if pointer:
            group.append(called(pointer))
            told = told if not comment else "" if section else comment
        elif code and not code.strip().startswith("unsigned"):
            kind, _, name = one_line(code).rpartition("*")
            yield f"* `{kind}*PyFiber_API->{name}`"
    yield from described("function", group, told) if group else ()
