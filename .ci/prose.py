"""Lists sentences of comments and documents that are hard to read: python .ci/prose.py [PATH...]

Looks at the comments of csrc, pyfiber, tests/c and bench, at Python's docstrings, and at the text
of Markdown pages outside code, tables and headings. Three kinds of sentence are listed:

- one whose first word is a pronoun ("It", "Those", "Who"): the subject is in another sentence, so a
  reader who comes from a search or sees a diff does not know what the sentence is about;
- one that uses a word of WORDS: a private or old-fashioned word that has a plain one;
- one in which no word can be a verb.

Without PATH all of these places are read. The exit status is 1 if a sentence is found.

Verbs are looked up in the dictionary of lemminflect, a library for English inflection.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from lemminflect import getAllLemmas

ROOT = Path(__file__).resolve().parent.parent

#: What is read when no path is named. CHANGELOG.md is history; origins.md cites.
PLACES = ["csrc", "pyfiber", "tests/c", "bench", "docs", "examples", "README.md", "CONTRIBUTING.md"]

PRONOUNS = {
    "it",
    "its",
    "they",
    "them",
    "their",
    "those",
    "who",
    "whoever",
    "whose",
    "that",
    "he",
    "his",
}

#: What to say instead is in the second column.
WORDS = {
    r"\btold\b": "say what happens: 'raises', 'reports', 'the caller passes'",
    r"\bis told of\b": "is notified about",
    r"\bstands? for\b": "represents, is the proxy of",
    r"\bwhoever\b": "any thread that, the caller",
    r"\blest\b": "so that ... not",
    r"\bsuch as it\b": "as it",
    r"\bknows? of\b": "holds a reference to, has registered",
    r"\bis meant\b": "name the thing itself",
    r"\bof (?:its|one's|their) own\b": "separate, private",
    r"\ba like\b|\bthe like\b": "name the things, or 'and similar ...'",
    r"\bnone of (?:its|their)\b": "not",
    r"\bgoes for\b": "applies to",
    r"\bwants? (?:no|none)\b": "does not need",
    r"\bthereof\b|\bwherein\b|\bthereby\b|\bwhereby\b|\bherein\b": "of it, in which, so",
    r"\bas ever\b|\bas well as ever\b": "as always",
    r"\babroad\b|\blent\b|\bguest\b": "on another thread, borrowed, hosted",
}

COMMENT_C = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|/\*(.*?)\*/|//([^\n]*(?:\n[ \t]*//[^\n]*)*)""",
    re.S,
)
SENTENCE_END = re.compile(r"""(?<=[.!?])["')\]*_]*\s+(?=["'(\[*_`]*[A-Z0-9`])""")
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")


def verb(word: str) -> bool:
    lower = word.lower()
    if "'" in lower:
        return True  # don't, it's, can't
    return bool(getAllLemmas(lower, upos="VERB") or getAllLemmas(lower, upos="AUX"))


def of_c(text: str) -> Iterator[tuple[int, str]]:
    for match in COMMENT_C.finditer(text):
        if match.group(1):
            continue
        body = match.group(2) if match.group(2) is not None else match.group(3)
        body = re.sub(r"^[ \t]*(?:\*|//)", "", body, flags=re.M)
        yield from paragraphs(body, text.count("\n", 0, match.start()) + 1)


def of_python(text: str) -> Iterator[tuple[int, str]]:
    block: list[str] = []
    start = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, own = token.start[0], not token.line[: token.start[1]].strip()
        if block and (line != last + 1 or not own):
            yield from paragraphs("\n".join(block), start)
            block = []
        if not block:
            start = line
        block.append(token.string.lstrip("#:").strip())
        last = line
        if not own:
            yield from paragraphs("\n".join(block), start)
            block = []
    if block:
        yield from paragraphs("\n".join(block), start)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield from paragraphs(docstring, node.body[0].lineno)


def of_markdown(text: str) -> Iterator[tuple[int, str]]:
    # Keep the lines, so that their numbers stay right.
    def blank(match: re.Match[str]) -> str:
        return "\n" * match.group().count("\n")

    text = re.sub(
        r"^([ \t]*)(`{3,}|~{3,}|:{3,}).*?^[ \t]*\2[ \t]*$", blank, text, flags=re.M | re.S
    )
    # What bench/table.py writes is made of results.
    text = re.sub(r"<!-- (bench[^:]*): begin -->.*?<!-- \1: end -->", blank, text, flags=re.S)
    text = re.sub(r"<!--.*?-->", blank, text, flags=re.S)
    text = re.sub(r"^[ \t]*(?:\||#|<|\[[^\]]*\]:|\(.*\)=$).*$", "", text, flags=re.M)
    yield from paragraphs(text, 1)


def paragraphs(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Blocks of prose with their line. A blank line or the next item of a list ends a block."""
    block: list[str] = []
    start = line
    for number, row in enumerate(text.splitlines(), line):
        item = re.match(r"\s*(?:[-*+]|\d+[.)])\s+", row)
        if not row.strip() or item:
            if block:
                yield start, " ".join(block)
            block = []
        if row.strip():
            if not block:
                start = number
            block.append(row[item.end() :].strip() if item else row.strip())
    if block:
        yield start, " ".join(block)


def faults(path: Path) -> Iterator[tuple[int, str, str]]:
    text = path.read_text()
    match path.suffix:
        case ".py" | ".pyi":
            blocks = of_python(text)
        case ".md":
            blocks = of_markdown(text)
        case _:
            blocks = of_c(text)
    for line, block in blocks:
        if block.startswith((">>>", "$", "clang-format", "noqa", "type:")):
            continue
        for sentence in SENTENCE_END.split(block):
            plain = re.sub(r"`[^`]*`", "`code`", sentence)
            words = WORD.findall(plain)
            if not words:
                continue
            if (
                words[0].lower() in PRONOUNS
                and not plain.rstrip().endswith("?")
                and re.match(r"[\W_]*" + words[0], plain)
            ):
                yield line, f"begins with '{words[0]}'", sentence
            for pattern, instead in WORDS.items():
                if re.search(pattern, plain, re.I):
                    yield line, f"'{re.search(pattern, plain, re.I).group()}': {instead}", sentence  # type: ignore[union-attr]
            if (
                plain.endswith(".")
                and plain[0].isupper()
                and len(words) > 2
                and "code" not in words
                and not any(map(verb, words))
            ):
                yield line, "has no verb", sentence


def files(places: list[str]) -> Iterator[Path]:
    for place in places:
        path = Path(place).resolve() if Path(place).exists() else ROOT / place
        if path.is_file():
            yield path
        else:
            yield from (
                p
                for p in sorted(path.rglob("*"))
                if p.suffix in {".c", ".h", ".S", ".py", ".pyi", ".md"}
            )


def main(arguments: list[str]) -> int:
    found = 0
    for path in files(arguments or PLACES):
        for line, why, sentence in faults(path):
            print(f"{path.relative_to(ROOT)}:{line}: {why}\n    {sentence[:160]}")
            found = 1
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
