"""Only another thread could wake somebody, and none does: that is told, once in a run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pyfiber import Event, Scheduler, _hooks, current, park, run, sleep, spawn, to_thread
from pyfiber.testing import VirtualClock
from pyfiber.testing import run as run_virtually

TINY = 1e-6


@pytest.fixture(autouse=True)
def tiny_limit() -> Iterator[None]:
    before = _hooks.stall_limit
    _hooks.set_stall_limit(TINY)
    yield
    _hooks.set_stall_limit(before)


class Told(logging.Handler):
    """Whoever waits for a warning is woken by it, as by another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            self.texts.append(record.getMessage())
            self.event.set()


@pytest.fixture
def told() -> Iterator[Told]:
    handler = Told()
    logger = logging.getLogger("pyfiber")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def idle_thread() -> Iterator[threading.Thread]:
    """As a library's exporter is: alive, and of no use to any fiber."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="exporter", daemon=True)
    thread.start()
    yield thread
    over.set()
    thread.join()


def wakes_when_told(told: Told) -> threading.Thread:
    """Until then nothing happens."""
    me = current()

    def wakes() -> None:
        assert told.event.wait(60)
        told.event.clear()
        me.unpark()

    thread = threading.Thread(target=wakes, name="the waker", daemon=True)
    thread.start()
    return thread


def test_stall_is_told_with_who_waits_and_which_threads_live(
    told: Told, idle_thread: threading.Thread
) -> None:
    """A daemon thread hid every deadlock for good."""

    def main() -> None:
        event = Event()
        waits = spawn(event.wait)
        thread = wakes_when_told(told)
        park()
        event.set()
        waits.join()
        thread.join()

    run(main)
    (text,) = told.texts
    assert text.startswith("nothing has happened for 1e-06 s, and only another thread could")
    assert "'exporter' (daemon)" in text
    assert "'the waker' (daemon)" in text
    assert "this is a deadlock of 2 fibers" in text
    assert "waits in park()" in text
    assert "waits for <pyfiber.Event" in text


def test_stall_is_told_once_in_a_run(told: Told, idle_thread: threading.Thread) -> None:
    def main() -> None:
        wakes_when_told(told).name = "first"
        park()
        me = current()
        for _ in range(3):  # nothing more is said, however often it waits again
            pause = threading.Timer(0.01, me.unpark)
            pause.start()
            park()
            pause.join()

    run(main)
    assert len(told.texts) == 1
    told.event.clear()
    run(main)
    assert len(told.texts) == 2


def test_stall_of_an_embedded_scheduler(told: Told, idle_thread: threading.Thread) -> None:
    scheduler = Scheduler()

    def main() -> None:
        wakes_when_told(told)
        park()

    scheduler.spawn(main)
    while scheduler.run_once(timeout=None):
        pass
    scheduler.close()
    assert len(told.texts) == 1


def test_no_stall_while_a_timer_or_a_job_is_under_way(
    told: Told, idle_thread: threading.Thread
) -> None:
    def main() -> None:
        sleep(0.01)
        with_timeout = current()
        with_timeout.unpark()
        park(60)
        to_thread(threading.Event().wait, 0.01)

    run(main)
    assert told.texts == []


def test_no_stall_when_the_limit_is_zero(told: Told, idle_thread: threading.Thread) -> None:
    _hooks.set_stall_limit(0)

    def main() -> None:
        me = current()
        pause = threading.Timer(0.05, me.unpark)
        pause.start()
        park()
        pause.join()

    run(main)
    assert told.texts == []


@pytest.mark.parametrize(
    ("wrong", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)]
)
def test_wrong_limit_is_refused(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        _hooks.set_stall_limit(wrong)


def test_limit_from_the_environment(child: Any) -> None:
    source = "import pyfiber; print(pyfiber._hooks.stall_limit)"
    assert child(source).stdout == "10.0\n"
    assert child(source, env={"PYFIBER_STALL_WARNING": "2.5"}).stdout == "2.5\n"
    assert child(source, env={"PYFIBER_STALL_WARNING": "0"}).stdout == "0.0\n"
    done = child(source, env={"PYFIBER_STALL_WARNING": "soon"}, check=False)
    assert done.returncode == 1
    assert "PYFIBER_STALL_WARNING must be a number of seconds (0: never), not 'soon'" in done.stderr


def test_stall_is_told_in_virtual_time_that_waits_for_threads(
    told: Told, idle_thread: threading.Thread
) -> None:
    """It waited in silence for ever."""

    def main() -> None:
        wakes_when_told(told)
        park()

    run_virtually(main, clock=VirtualClock(threads=True))
    (text,) = told.texts
    assert "this is a deadlock of 1 fiber" in text
