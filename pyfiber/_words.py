"""Parts of the text of error messages. No hot path calls these functions."""

from __future__ import annotations

from collections.abc import Iterator

#: How many names or types one message lists.
MOST_NAMED = 5
MOST_TYPES = 3


def clean(text: str) -> str:
    """Escape line ends and control characters, which could write on the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def some(names: list[str], count: int | None = None) -> str:
    """A list in words, shortened if long; ``count`` is the real number if not all are given."""
    listed = names[:MOST_NAMED]
    left = (len(names) if count is None else count) - len(listed)
    if left:
        listed.append(f"{left:,} more")
    return ", ".join(listed)


def leaves(exceptions: list[BaseException]) -> Iterator[BaseException]:
    """The exceptions in the groups, nested groups included."""
    pending = exceptions[::-1]
    while pending:
        exc = pending.pop()
        if isinstance(exc, BaseExceptionGroup):
            pending += exc.exceptions[::-1]
        else:
            yield exc


def how_to_catch(exceptions: list[BaseException]) -> str:
    """A hint for code that catches `except ValueError:` where a group is raised."""
    types = list(dict.fromkeys(type(exc).__name__ for exc in leaves(exceptions)))
    if len(types) > MOST_TYPES:
        wanted = "Exception"
    elif len(types) == 1:
        wanted = types[0]
    else:
        wanted = f"({', '.join(types)})"
    return f'catch with "except* {wanted}:"'
