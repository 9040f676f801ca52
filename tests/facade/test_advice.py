"""An error where no run is says what to do in that place: see pyfiber/_advice.py."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable

import pytest

import pyfiber
from pyfiber import (
    Event,
    Fiber,
    FiberError,
    TaskGroup,
    current_scheduler,
    from_thread,
    generator,
    run,
    sleep,
    spawn,
    timeout,
    to_thread,
    yield_now,
)
from pyfiber.aio import await_, run_in_fiber
from pyfiber.testing import explore
from pyfiber.testing import run as run_under_test
from pyfiber.threads import Portal
from tests.support.subprocesses import run_script

Call = Callable[[], object]
Where = Callable[[Call], str]

NEEDS_A_RUN: dict[str, Call] = {
    "sleep": lambda: sleep(0),
    "spawn": lambda: spawn(int),
    "yield_now": yield_now,
    "to_thread": lambda: to_thread(int),
    "timeout": lambda: timeout(1).__enter__(),
    "TaskGroup": lambda: TaskGroup().__enter__(),
    "Fiber.start": lambda: Fiber(int).start(),
    "current_scheduler": current_scheduler,
    "Portal": Portal,
}


def told(call: Call) -> str:
    with pytest.raises(FiberError) as info:
        call()
    return str(info.value)


# the places ---------------------------------------------------------------------------------------


def in_plain_code(call: Call) -> str:
    return told(call)


def in_coroutine(call: Call) -> str:
    async def coroutine() -> str:
        return told(call)

    return asyncio.run(coroutine())


def in_callback_of_asyncio(call: Call) -> str:
    async def coroutine() -> str:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        loop.call_soon(lambda: future.set_result(told(call)))
        return await future

    return asyncio.run(coroutine())


def in_coroutine_of_another_library(call: Call) -> str:
    """Its loop is not known, but the coroutine is seen."""

    async def coroutine() -> str:
        return told(call)

    with pytest.raises(StopIteration) as info:
        coroutine().send(None)
    return str(info.value.value)


def in_run_in_fiber(call: Call) -> str:
    return asyncio.run(run_in_fiber(told, call))


def in_raw_fiber_of_run_in_fiber(call: Call) -> str:
    return asyncio.run(run_in_fiber(in_raw_fiber, call))


def in_raw_fiber(call: Call) -> str:
    text: str = Fiber(told, (call,)).switch()
    return text


def in_generator(call: Call) -> str:
    @generator
    def told_once() -> None:
        pyfiber.emit(told(call))

    text: str = next(told_once())
    return text


def in_thread_beside_a_run(call: Call) -> str:
    def main() -> str:
        texts: list[str] = []
        thread = threading.Thread(target=lambda: texts.append(told(call)))
        thread.start()
        to_thread(thread.join)
        return texts[0]

    return run(main)


def in_worker(call: Call) -> str:
    return run(to_thread, told, call)


def in_setup_of_a_test(call: Call) -> str:
    texts: list[str] = []
    explore(lambda _: None, 1, setup=lambda: texts.append(told(call)))
    return texts[0]


PLACES: dict[Where, tuple[str, ...]] = {
    in_plain_code: ("call it from a function that pyfiber.run() runs",),
    in_coroutine: ("a coroutine has none", "await host.run(fn)", "run_in_fiber"),
    in_callback_of_asyncio: ("a coroutine has none", "await host.run(fn)"),
    in_coroutine_of_another_library: ("a coroutine has none", "run_in_fiber"),
    in_run_in_fiber: ("await_(asyncio.sleep(1))", "await host.run(fn)"),
    in_raw_fiber_of_run_in_fiber: ("await_(asyncio.sleep(1))", "await host.run(fn)"),
    in_raw_fiber: ("for a raw fiber", "pyfiber.run()"),
    in_generator: ("for a raw fiber", "pyfiber.run()"),
    in_thread_beside_a_run: ("Portal", "call_soon_threadsafe()", "from_thread()"),
    in_worker: ("a thread of to_thread() has none", "from_thread()"),
    in_setup_of_a_test: ("setup= and check=",),
}


@pytest.mark.parametrize("call", NEEDS_A_RUN.values(), ids=NEEDS_A_RUN)
@pytest.mark.parametrize(
    ("where", "words"), PLACES.items(), ids=lambda v: getattr(v, "__name__", "")
)
def test_what_needs_a_run_advises_what_fits_the_place(
    call: Call, where: Where, words: tuple[str, ...]
) -> None:
    text = where(call)
    assert "needs a running" in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("where", "word"),
    [
        (in_plain_code, "use signal.signal()"),
        (in_coroutine, "add_signal_handler()"),
        (in_run_in_fiber, "add_signal_handler()"),
        (in_raw_fiber, "pyfiber.run()"),
    ],
)
def test_signals_outside_of_a_run_names_what_handles_them_there(where: Where, word: str) -> None:
    assert word in where(lambda: pyfiber.signals(signal.SIGINT).__enter__())


def in_fiber(call: Call) -> str:
    return run(told, call)


@pytest.mark.parametrize(
    ("where", "word"),
    [
        (in_plain_code, "asyncio.run()"),
        (in_coroutine, "write `await`"),
        (in_fiber, "new_event_loop"),
        (in_worker, "run_coroutine_threadsafe()"),
    ],
)
def test_await_outside_of_its_fibers_names_what_calls_coroutines_there(
    where: Where, word: str
) -> None:
    assert word in where(lambda: await_(asyncio.Future.__new__(asyncio.Future)))


@pytest.mark.parametrize(
    ("where", "word"),
    [
        (in_plain_code, "use pyfiber.run()"),
        (in_coroutine, "await host.run(fn)"),
        (in_fiber, "call the function, or spawn() it"),
        (in_thread_beside_a_run, "Portal, made in the run"),
    ],
)
def test_from_thread_outside_of_to_thread_names_the_way_in_from_there(
    where: Where, word: str
) -> None:
    assert word in where(lambda: from_thread(int))


def test_portal_to_a_fiber_that_was_never_started_names_the_fiber() -> None:
    text = told(lambda: Portal(Fiber(int, name="idle")))
    assert "'idle'" in text
    assert "was not started" in text


def test_wait_in_the_fiber_of_a_run_in_fiber_is_told_of_await() -> None:
    assert "await_()" in in_run_in_fiber(Event().wait)


def test_advice_that_cannot_be_had_leaves_the_error_what_it_is() -> None:
    """When modules can no longer be imported, say."""
    code = """
import sys
import pyfiber
sys.modules["pyfiber._advice"] = None
try:
    pyfiber.sleep(1)
except pyfiber.FiberError as exc:
    print(exc)
"""
    done = run_script(code)
    assert (done.stdout, done.stderr) == ("sleep() needs a running scheduler\n", "")


# in virtual time ----------------------------------------------------------------------------------


def connect() -> None:
    with socket.socket() as client:
        client.connect(("127.0.0.1", 1))


def test_blocking_call_in_virtual_time_is_told_of_patch() -> None:
    for call in (lambda: time.sleep(5), connect):
        with pytest.raises(FiberError, match=r"let it park by pyfiber.patch\(\)"):
            run_under_test(call)
