"""pyfiber.service: background fibers, and functions for the start and the end."""

from __future__ import annotations

from typing import Any

import pytest

from pyfiber import (
    Fiber,
    FiberError,
    TaskGroup,
    move_on_after,
    now,
    run,
    service,
    shield,
    sleep,
    spawn,
    testing,
)
from pyfiber.service import background


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this test only."""
    monkeypatch.setattr(service, "_starts", [])
    monkeypatch.setattr(service, "_stops", [])


@pytest.fixture
def log() -> list[str]:
    return []


def ticking(log: list[str], name: str) -> None:
    try:
        while True:
            sleep(1)
    finally:
        with shield():
            sleep(0.1)
        log.append(name)


def test_background_fiber_ends_with_the_run(log: list[str]) -> None:
    def main() -> None:
        assert background(ticking, log, name="background").daemon
        spawn(sleep, 5).add_done_callback(lambda _: log.append("spawned"))
        log.append("main")

    testing.run(main)
    assert log == ["main", "spawned", "background"]


def test_all_keywords_are_the_functions() -> None:
    def told(**keywords: Any) -> dict[str, Any]:
        return keywords

    keywords: dict[str, Any] = {"fn": 1, "name": 2, "daemon": 3, "args": 4, "kwargs": 5}
    assert run(lambda: background(told, **keywords).result()) == keywords


@pytest.mark.parametrize("way", [background, service.on_start, service.on_stop])
def test_generator_function_is_refused(way: Any) -> None:
    def ticking() -> Any:
        yield 1

    with pytest.raises(TypeError, match="generator function"):
        run(way, ticking)


def test_background_outside_of_a_run_is_refused() -> None:
    with pytest.raises(FiberError):
        background(sleep, 1)


def test_service_begins_and_ends_in_order(log: list[str]) -> None:
    @service.on_start
    def first() -> None:
        sleep(1)
        log.append("first")
        background(ticking, log, "its fiber")
        service.on_stop(lambda: log.append("end of the first"))

    service.on_start(lambda: log.append("second"))
    service.on_stop(lambda: log.append("end"))

    def main() -> None:
        with service.running():
            assert now() == 1
            log.append("block")
            background(ticking, log, "another fiber")
            sleep(3)
            log.append("end of the block")
        log.append("over")

    for _ in range(2):  # what the start has told is for one service only
        log.clear()
        testing.run(main)
        assert log == [
            "first",
            "second",
            "block",
            "end of the block",
            "its fiber",
            "another fiber",
            "end of the first",
            "end",
            "over",
        ]


def test_all_functions_of_the_end_are_called_though_some_fail(log: list[str]) -> None:
    @service.on_stop
    def last() -> None:
        background(ticking, log, "started at the end")
        sleep(0)
        log.append("last")

    @service.on_stop
    def failing() -> None:
        raise ValueError("at the end")

    def serve() -> None:
        with service.running():
            background(ticking, log, "fiber")
            sleep(0)

    def main() -> None:
        with pytest.raises(ValueError, match="at the end"):
            serve()
        assert log == ["fiber", "last", "started at the end"]

    testing.run(main)


def test_failure_of_the_start_ends_what_has_begun(log: list[str]) -> None:
    service.on_start(lambda: background(ticking, log, "fiber"))
    service.on_stop(lambda: log.append("end"))

    @service.on_stop
    def failing_too() -> None:
        raise KeyError("at the end")

    @service.on_start
    def failing() -> None:
        sleep(1)
        raise ValueError("at the start")

    def main() -> None:
        with pytest.raises(KeyError, match="at the end") as caught, service.running():
            log.append("block")
        assert str(caught.value.__context__) == "at the start"
        assert log == ["fiber", "end"]

    testing.run(main)


def test_cancellation_does_not_reach_the_functions_of_the_end(log: list[str]) -> None:
    @service.on_stop
    def end() -> None:
        sleep(5)
        log.append("end")

    def main() -> None:
        with move_on_after(1), service.running():
            background(ticking, log, "fiber")
            sleep(100)
        assert now() == pytest.approx(6.1)

    testing.run(main)
    assert log == ["fiber", "end"]


def test_one_service_in_a_run() -> None:
    def main() -> None:
        with service.running(), pytest.raises(FiberError, match="already"), service.running():
            pass
        with service.running():
            pass

    run(main)
    with pytest.raises(FiberError), service.running():
        pass


def test_stop_ends_the_waits_for_it(log: list[str]) -> None:
    def stream(seconds: float | None) -> None:
        while not service.until_stop(seconds):
            log.append("event")

    def main() -> None:
        assert not service.until_stop(2)
        assert now() == 2
        with service.running(), TaskGroup() as group:
            group.spawn(stream, 5)
            group.spawn(stream, None)
            sleep(12)
            service.stop()
            assert service.until_stop(100)
        assert now() == 14
        service.stop()  # there is none

    testing.run(main)
    assert log == ["event", "event"]


def test_end_of_the_others_cancels_them_once(log: list[str]) -> None:
    cancelled = 0

    def stubborn() -> None:
        nonlocal cancelled
        try:
            sleep(1000)
        finally:
            cancelled += 1
            try:
                with shield():
                    sleep(10)
            finally:
                log.append("stubborn")

    def main() -> None:
        spawn(stubborn)
        Fiber(ticking, (log, "daemon"), daemon=True).start()
        spawn(ticking, log, "spawned")
        sleep(1)
        service.end_others("the end", 3, lambda: log.append("beat"))
        assert now() == pytest.approx(4)
        assert log == ["daemon", "spawned", "beat", "beat", "beat"]
        service.end_others("the end", 100, lambda: None)
        assert log[-1] == "stubborn"
        assert now() == pytest.approx(11)

    testing.run(main)
    assert cancelled == 1
