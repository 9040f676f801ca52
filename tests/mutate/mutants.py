"""Finds small faults that can be put into a C file: a statement left out, a condition negated, ...

There is no parser here. It relies on how clang-format lays out this project's C: a function's name
at the beginning of a line, its braces at the beginning of lines of their own, blanks around binary
operators, braces around every branch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# What is left alone: comments, strings, characters, assertions, test points, the preprocessor's.
NO_CODE = re.compile(
    r"""/\*.*?\*/ | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
    | \b(?:assert|PF_TEST_POINT)\([^;]*; | ^[ ]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
FUNCTION = re.compile(r"^(\w+)\([^;{}]*\)\n\{\n(.*?)^\}", re.DOTALL | re.MULTILINE)
STATEMENT = re.compile(r"(?<=[;{}:])\s+(?=[\w*(+-])([^;{}]*);")
LABELS = re.compile(r"(?:(?:case\b[^:;]*|default|\w+)\s*:(?!:)\s*)+")
DECLARATION = re.compile(r"(?:\w+\s+)*\w+\s*(?:\s|\*)\s*\**\w+(?:\s*\[[^]]*\])*\s*(?:[=,(]|$)")
KEPT = re.compile(r"(?:return\s.*|(?:if|for|while|switch|do|else)\b.*)", re.DOTALL)
CONDITION = re.compile(r"\b(?:if|while) (?=\()")
RETURN = re.compile(r"\breturn (\S[^;]*);")
TRUTH = re.compile(r"[<>=!]=| [<>] |&&|\|\||^!")
LITERAL = re.compile(r"-?\d+|true|false|NULL")
SWAPS = {
    " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ",
    " && ": " || ", " || ": " && ", " + ": " - ", " - ": " + ", " += ": " -= ", " -= ": " += ",
    "++": "--", "--": "++", "true": "false", "false": "true", "0": "1", "1": "0",
}  # fmt: skip
SWAPPED = re.compile(r" (?:[<>=!]=|[<>]|&&|\|\||[+-]=?)(?=\s)|\+\+|--|\b(?:true|false|0|1)\b")


@dataclass(frozen=True)
class Mutant:
    path: str
    start: int
    end: int
    new: str
    name: str  # the same in later versions of the file, while that line stays as it is

    def applied(self, text: str) -> str:
        """The mutated text; lines keep their numbers."""
        return text[: self.start] + self.new + text[self.end :]


def blanked(text: str) -> str:
    """The text with blanks in place of what is no code."""
    return NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def closing(code: str, opening: int) -> int:
    """Where the bracket that opens there closes."""
    depth = 0
    for place in range(opening, len(code)):
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        if depth == 0:
            return place
    raise ValueError(code[opening : opening + 40])


def deletions(code: str, start: int, end: int) -> Iterator[tuple[int, int, str]]:
    for found in STATEMENT.finditer(code, start, end):
        begin = found.start(1)
        if labels := LABELS.match(code, begin, found.end()):
            begin = labels.end()
        text = code[begin : found.end() - 1]
        inside = code.count("(", start, begin) != code.count(")", start, begin)  # for (...; here;
        if not (inside or KEPT.match(text) or DECLARATION.match(text)):
            yield begin, found.end() - 1, ""


def negations(code: str, start: int, end: int) -> Iterator[tuple[int, int, str]]:
    for found in CONDITION.finditer(code, start, end):
        last = closing(code, found.end()) + 1
        text = code[found.end() : last]
        if len(re.findall(r"[=!]=", text)) != 1 or re.search(r"&&|\|\|", text):  # else swaps do it
            yield found.end(), last, f"(!{text})"


def swaps(code: str, start: int, end: int) -> Iterator[tuple[int, int, str]]:
    for found in SWAPPED.finditer(code, start, end):
        yield (
            found.start(),
            found.end(),
            SWAPS.get(found[0] + " ", SWAPS.get(found[0], "")).rstrip(),
        )


def returns(code: str, start: int, end: int) -> Iterator[tuple[int, int, str]]:
    for found in RETURN.finditer(code, start, end):
        if not LITERAL.fullmatch(found[1]):
            yield found.start(1), found.end(1), "0"
        if TRUTH.search(found[1]) and "?" not in found[1]:
            yield found.start(1), found.end(1), "1"


def mutants_of(path: str, text: str) -> list[Mutant]:
    """All of them, in the order of the file."""
    code = blanked(text)
    made: list[Mutant] = []
    seen: dict[str, int] = {}
    for function in FUNCTION.finditer(code):
        found = [
            mutant
            for kind in (deletions, negations, swaps, returns)
            for mutant in kind(code, function.start(2) - 1, function.end(2))
        ]
        for start, end, new in sorted(found):
            old = text[start:end]
            line = text[text.rfind("\n", 0, start) + 1 : text.find("\n", end)]
            change = f"{old.strip()} -> {new.strip() or 'nothing'}"
            name = " ".join(f"{path} {function[1]}: {line} | {change}".split())
            seen[name] = seen.get(name, 0) + 1
            if seen[name] > 1:
                name += f" #{seen[name]}"
            made.append(
                Mutant(path, start, end, new + "\n" * (old.count("\n") - new.count("\n")), name)
            )
    return made
