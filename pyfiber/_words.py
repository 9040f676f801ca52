"""Words for messages, made where something has failed: off every hot path."""

from __future__ import annotations

from collections.abc import Iterator

#: Names and types that one message lists.
MOST_NAMED = 5
MOST_TYPES = 3


def some(names: list[str], count: int | None = None) -> str:
    """A list in words, cut where it becomes long; ``count`` if there are more than are given."""
    listed = names[:MOST_NAMED]
    left = (len(names) if count is None else count) - len(listed)
    if left:
        listed.append(f"{left:,} more")
    return ", ".join(listed)


def leaves(exceptions: list[BaseException]) -> Iterator[BaseException]:
    """The exceptions in groups, and in groups in those."""
    pending = exceptions[::-1]
    while pending:
        exc = pending.pop()
        if isinstance(exc, BaseExceptionGroup):
            pending += exc.exceptions[::-1]
        else:
            yield exc


def how_to_catch(exceptions: list[BaseException]) -> str:
    """For whoever writes `except ValueError:` around what raises a group, and wonders."""
    types = list(dict.fromkeys(type(exc).__name__ for exc in leaves(exceptions)))
    if len(types) > MOST_TYPES:
        wanted = "Exception"
    elif len(types) == 1:
        wanted = types[0]
    else:
        wanted = f"({', '.join(types)})"
    return f'catch with "except* {wanted}:"'
