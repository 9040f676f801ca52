"""Operators of pyfiber.compose, one by one: each line is a description, and what it came to.

    python examples/operators.py

Making a description does nothing. `blocking()` performs the descriptions one after the other, in
this order.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

from pyfiber import Failed, Ok, Outcome
from pyfiber.compose import Work, blocking, call, delay, describe, fail, of_future, succeed, unfold


def half(number: int) -> Work[int]:
    """Fails for odd numbers."""
    if number % 2:
        return fail(ValueError(f"{number} is odd"))
    return succeed(number // 2)


def halves(number: int) -> Work[tuple[int, int] | None]:
    """The next state and an item, for `unfold`; None at the end."""
    return succeed(None) if number == 0 else succeed((number // 2, number))


def in_words(outcome: Outcome[int]) -> Outcome[str]:
    """A value or an exception becomes a value; a cancellation does not come here."""
    match outcome:
        case Ok(value):
            return Ok(f"worked: {value}")
        case Failed(exception):
            return Ok(f"failed: {exception}")
    return outcome


def promised() -> Work[str]:
    """The result of a future that a thread completes."""
    future: Future[str] = Future()
    threading.Timer(0.01, future.set_result, ("from a thread",)).start()
    return of_future(future)


def name_of_thread() -> str:
    return threading.current_thread().name.split("-")[0]


@describe
def with_clean_up() -> Generator[Work[Any], Any, str]:
    """What needs no operator: names, `try`, `with`, loops."""
    try:
        yield half(3)
    except ValueError as exc:
        return f"caught: {exc}"
    return "not reached"


WORKS: dict[str, Work[Any]] = {
    "bind": succeed(12).bind(half).bind(half),
    "combine": delay(0.01).combine(succeed("after the delay")),
    "map": succeed("loud").map(str.upper),
    "apply": succeed(round).apply(delay(0.01, 2.7)),
    "join": succeed(delay(0.01, "inner")).join(),
    "unfold": unfold(halves, 20),
    "catch": half(7).catch(lambda exc: succeed(f"instead of: {exc}")),
    "map_outcome": half(7).map_outcome(in_words),
    "of_future": call(promised).join(),
    "on_new_thread": call(name_of_thread).on_new_thread(),
    "describe": with_clean_up(),
}


def main() -> None:
    """Perform each."""
    for name, work in WORKS.items():
        print(f"{name}: {blocking(work)}")


if __name__ == "__main__":
    main()
