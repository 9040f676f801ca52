"""Grains that are cancelled and go on: told on, slowed down."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    Cancelled,
    TaskGroup,
    move_on_after,
    run,
    sleep,
    yield_now,
)
from pyfiber.grains import READY, SLEEPING, Grain, spawn


@pytest.mark.parametrize(
    "wait",
    [READY, 0, 10, SLEEPING, None, lambda: False],
    ids=["ready", "0", "seconds", "sleeping", "none", "predicate"],
)
@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "in a group"])
def test_grain_that_swallows_cancellation_is_told_on_and_slowed_down(
    wait: Any, grouped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    count = 0

    def deaf() -> Generator[Any, Any, int]:
        nonlocal count
        while count < 110:
            try:
                yield wait
            except Cancelled:
                count += 1
        return count

    def alone() -> Any:
        grain = spawn(deaf)
        yield_now()
        grain.cancel()
        return grain.result()

    def in_a_group() -> Any:
        with TaskGroup() as group:
            grain = group.spawn(Grain(deaf))
            yield_now()
            group.cancel()
        return grain.result()

    def main() -> float:
        start = pyfiber.now()
        assert (in_a_group if grouped else alone)() == 110
        return pyfiber.now() - start

    with caplog.at_level(logging.WARNING, "pyfiber"):
        seconds = run(main)
    assert len(caplog.records) == 1
    text = caplog.records[0].getMessage()
    assert "catches Cancelled and goes on" in text
    assert "<pyfiber.grains.Grain 'test_grain_that_swallows" in text
    assert "in deaf" in text
    assert seconds >= 0.008  # the last deliveries come a millisecond apart


def test_slowed_grain_gets_what_comes_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    got: list[Any] = []

    def deaf() -> Generator[Any, Any, None]:
        while not got:
            with contextlib.suppress(Cancelled):
                got.append((yield channel.receiving()))

    def main() -> None:
        grain = spawn(deaf)
        yield_now()
        grain.cancel()
        while not got:
            with move_on_after(0.001):
                channel.send("value")
        grain.join()

    channel: Any = None

    def start() -> None:
        nonlocal channel
        channel = pyfiber.Channel()
        main()

    run(start)
    assert got == ["value"]


def test_slowed_grain_does_not_call_another(caplog: pytest.LogCaptureFixture) -> None:
    started: list[int] = []

    def callee() -> Generator[Any, Any, None]:
        started.append(1)
        yield READY

    def deaf() -> Generator[Any, Any, None]:
        for _ in range(105):
            with contextlib.suppress(Cancelled):
                yield Grain(callee)

    def main() -> None:
        grain = spawn(deaf)
        yield_now()
        grain.cancel()
        grain.join()

    run(main)
    assert len(started) <= 1


def test_others_run_while_a_grain_swallows_cancellation(caplog: pytest.LogCaptureFixture) -> None:
    steps = 0

    def deaf() -> Generator[Any, Any, None]:
        nonlocal steps
        while not stop:
            try:
                yield READY
            except Cancelled:
                steps += 1

    def main() -> None:
        grain = spawn(deaf)
        yield_now()
        grain.cancel()
        sleep(0.05)
        stop.append(1)
        grain.join()

    stop: list[int] = []
    run(main)
    assert 100 <= steps < 200
