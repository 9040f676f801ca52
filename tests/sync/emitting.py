"""Generators that emit."""

from __future__ import annotations

from typing import Any

from pyfiber import Queue, emit, generator

Log = list[Any]


@generator
def numbers(n: int, log: Log | None = None) -> str:
    """The numbers from 0 to n - 1."""
    try:
        for i in range(n):
            emit(i)
    except BaseException as exc:
        if log is not None:
            log.append(type(exc))
        raise
    finally:
        if log is not None:
            log.append("finally")
    return "counted"


@generator
def echo() -> None:
    """Emits what it is sent."""
    value = None
    while True:
        value = emit(value)


@generator
def taken_from(queue: Queue[Any]) -> None:
    """What a queue gives, up to None."""
    while (item := queue.get()) is not None:
        emit(item)
