"""What is shown on a terminal must neither move its cursor nor forge a line.

Names of fibers, functions and files may be made of what came by the network.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import Cancelled, Fiber, _report, current, park, run, yield_now
from pyfiber._debug import text
from pyfiber._debug.snapshot import snapshot
from pyfiber.debug import LogFilter, Profiler, dump_fibers, watchdog

EVIL = "two\nforged \x1b[2J\x9b\u202e\r"


def evil(function: Callable[[], object]) -> object:
    """Call it from a function whose name and file are as bad."""
    source = "def forged(function):\n    return function()\n"
    made: dict[str, Any] = {}
    exec(compile(source, f"{EVIL}.py", "exec"), made)
    forged = made["forged"]
    forged.__qualname__ = forged.__name__ = EVIL
    forged.__code__ = forged.__code__.replace(co_name=EVIL, co_qualname=EVIL)
    return forged(function)


def assert_harmless(shown: str) -> None:
    assert r"two\nforged \x1b[2J\x9b\u202e\r" in shown
    for line in shown.splitlines():
        assert line.isprintable()
        assert not line.lstrip().startswith("forged")


def waiting() -> Fiber[object]:
    fiber = Fiber(evil, (park,), name=EVIL).start()
    yield_now()
    return fiber


def test_dump_is_harmless() -> None:
    def main() -> str:
        fiber = waiting()
        shown = io.StringIO()
        dump_fibers(shown)
        fiber.unpark()
        return shown.getvalue()

    shown = run(main)
    assert_harmless(shown)
    assert r'File "two\nforged \x1b[2J\x9b\u202e\r.py", line 2, in two\nforged' in shown


def test_page_and_screen_are_harmless() -> None:
    def main() -> str:
        fiber = waiting()
        found = snapshot()
        fiber.unpark()
        return text.page(found, found["pid"]) + text.screen(found, None, 10**6, 10**6)

    assert_harmless(run(main))


def test_text_of_a_deadlock_is_harmless() -> None:
    def main() -> str:
        fiber = waiting()
        shown = _report.deadlock_text([fiber])
        fiber.unpark()
        return shown

    assert_harmless(run(main))


class Named:
    def __repr__(self) -> str:
        return EVIL


def test_repr_of_what_is_waited_for_is_harmless() -> None:
    assert_harmless(_report.name_of(Named()))
    named = lambda: None  # noqa: E731
    named.__qualname__ = EVIL
    assert_harmless(_report.title_of(Fiber(named)))


def test_watchdog_is_harmless(caplog: pytest.LogCaptureFixture) -> None:
    def computes() -> None:
        while not caplog.records:
            pass

    with watchdog(0.02):
        run(lambda: Fiber(evil, (computes,), name=EVIL).start().join())
    assert_harmless(caplog.records[0].getMessage())


def test_report_of_a_fiber_that_ignores_its_cancellation_is_harmless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def goes_on() -> None:
        while not caplog.records:
            with contextlib.suppress(Cancelled):
                park()

    def main() -> None:
        fiber = Fiber(evil, (goes_on,), name=EVIL).start()
        yield_now()
        fiber.cancel()
        fiber.join()

    run(main)
    assert_harmless(caplog.records[0].getMessage())


def test_name_in_log_records_is_harmless() -> None:
    def main() -> str:
        current().name = EVIL
        record = logging.makeLogRecord({})
        LogFilter().filter(record)
        return record.__dict__["fiber"]

    assert_harmless(run(main))


def test_table_of_the_profiler_is_harmless() -> None:
    shown = io.StringIO()
    with Profiler() as profiler:
        run(lambda: Fiber(yield_now, name=EVIL).start().join())
        profiler.print(shown)
    assert_harmless(shown.getvalue())
