"""What the tests of grains share."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from pyfiber import run
from pyfiber.grains import READY, FairShare, Policy, Priority, RoundRobin, spawn

POLICIES: list[Callable[[], Policy]] = [RoundRobin, Priority, FairShare]


def numbers(*values: Any) -> Generator[Any, Any, Any]:
    for _ in values:
        yield READY
    return values


def steps(log: list[Any], name: Any, n: int) -> Generator[Any, Any, Any]:
    for _ in range(n):
        log.append(name)
        yield READY
    return name


def result_of(start: Any, *args: Any) -> Any:
    """What a grain comes to in a run of its own."""
    return run(lambda: spawn(start, *args).result())


def deadlock(child: Any, step: str) -> str:
    """The text of the DeadlockError of a grain; in a process that has no other thread."""
    program = f"""
        import pyfiber
        from pyfiber.grains import SLEEPING, spawn
        def inner():
            yield SLEEPING
        def stuck():
            {step}
        try:
            pyfiber.run(lambda: spawn(stuck) and None)
        except pyfiber.DeadlockError as exc:
            print(exc)
        """
    text: str = child(program).stdout
    return text
