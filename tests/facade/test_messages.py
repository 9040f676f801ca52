"""What a new user gets wrong, and the sentence that says what to do instead."""

from __future__ import annotations

import asyncio
import textwrap
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyfiber
from pyfiber import (
    Fiber,
    FiberError,
    Lock,
    RLock,
    Scheduler,
    TaskGroup,
    first_success,
    from_thread,
    gather,
    net,
    pmap,
    race,
    run,
    sleep,
    spawn,
    spawn_now,
    to_thread,
)
from pyfiber.threads import FiberExecutor, Portal
from tests.support.subprocesses import run_script


def printed(code: str) -> str:
    """What a program prints, in an interpreter of its own: no other thread lives there."""
    done = run_script("from pyfiber import *\n" + textwrap.dedent(code))
    assert done.stderr == ""
    return done.stdout


# async functions and coroutines -------------------------------------------------------------------


async def asynchronous() -> None: ...


class Thing:
    async def method(self) -> None: ...


def starts(fn: Any) -> dict[str, Callable[[], Any]]:
    """Every way to have a function called in a fiber."""

    def in_group() -> None:
        with TaskGroup() as group:
            group.spawn(fn)

    def calls_through(portal: Portal) -> None:
        to_thread(portal.call, fn)

    return {
        "run": lambda: run(fn),
        "spawn": lambda: run(lambda: spawn(fn)),
        "spawn_now": lambda: run(lambda: spawn_now(fn)),
        "group.spawn": lambda: run(in_group),
        "Fiber": lambda: Fiber(fn),
        "Scheduler.run": lambda: Scheduler().run(fn),
        "Scheduler.spawn": lambda: Scheduler().spawn(fn),
        "call_soon_threadsafe": lambda: Scheduler().call_soon_threadsafe(fn),
        "to_thread": lambda: run(lambda: to_thread(fn)),
        "from_thread": lambda: run(lambda: to_thread(from_thread, fn)),
        "Portal.spawn": lambda: Portal(Scheduler()).spawn(fn),
        "Portal.call": lambda: run(lambda: calls_through(Portal())),
        "submit": lambda: run(lambda: FiberExecutor().submit(fn)),
        "gather": lambda: run(gather, fn),
        "race": lambda: run(race, fn),
        "first_success": lambda: run(first_success, fn),
        "pmap": lambda: run(lambda: pmap(fn, [], limit=1)),
        "serve": lambda: run(net.serve, fn, "127.0.0.1", 0),
    }


def raised(call: Callable[[], Any]) -> BaseException:
    """What it raises; of a group with one exception that one."""
    with pytest.raises((TypeError, ExceptionGroup)) as info:
        call()
    exc: BaseException = info.value
    return exc.exceptions[0] if isinstance(exc, ExceptionGroup) else exc


@pytest.mark.parametrize("way", starts(None))
@pytest.mark.parametrize("fn", [asynchronous, Thing().method])
def test_async_function_is_refused_with_a_way_out(way: str, fn: Any) -> None:
    exc = raised(starts(fn)[way])
    assert isinstance(exc, TypeError)
    assert f"{fn.__qualname__}() is an async one" in str(exc)
    assert "asyncio.run()" in str(exc)


def generates() -> Iterator[int]:
    yield 1


class Generates:
    def method(self) -> Iterator[int]:
        yield 1

    def __call__(self) -> Iterator[int]:
        yield 1


async def generates_asynchronously() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("way", starts(None))
@pytest.mark.parametrize(
    "fn",
    [
        generates,
        Generates().method,
        Generates(),
        partial(partial(generates)),
        generates_asynchronously,
    ],
)
def test_generator_function_is_refused_with_a_way_out(way: str, fn: Any) -> None:
    """Its call made a generator, and none of its code ran: silently."""
    exc = raised(starts(fn)[way])
    assert isinstance(exc, TypeError)
    assert "is a generator function, whose call runs none of its code" in str(exc)
    assert "pyfiber.generator" in str(exc)
    assert "pyfiber.grains" in str(exc)


@pytest.mark.parametrize("way", starts(None))
def test_coroutine_is_refused_with_a_way_out(way: str) -> None:
    coroutine = asynchronous()
    exc = raised(starts(coroutine)[way])
    coroutine.close()
    assert isinstance(exc, TypeError)
    assert "takes a function, not 'coroutine': run coroutines with asyncio.run()" in str(exc)


@pytest.mark.parametrize("way", starts(None))
def test_result_of_a_call_is_refused_with_a_way_out(way: str) -> None:
    exc = raised(starts(len("result"))[way])
    assert isinstance(exc, TypeError)
    assert "takes a function, not 'int': give it the function, and its arguments" in str(exc)


def test_await_of_a_fiber_in_asyncio_names_the_executor() -> None:
    async def waits_for(fiber: Fiber[Any]) -> None:
        await fiber

    def main() -> None:
        asyncio.run(waits_for(spawn(int)))

    with pytest.raises(
        TypeError, match=r"only a grain can await <pyfiber.Fiber 'int'.*wrap_future"
    ):
        run(main)


def test_await_of_a_fiber_in_asyncio_as_the_message_says_works() -> None:
    def nap() -> str:
        sleep(0)
        return "done"

    async def main() -> str:
        with pyfiber.threads.FiberExecutor() as executor:
            return await asyncio.wrap_future(executor.submit(nap))

    assert asyncio.run(main()) == "done"


# arguments ----------------------------------------------------------------------------------------


def two(a: int, b: int = 0) -> tuple[int, int]:
    return a, b


@pytest.mark.parametrize("way", ["run", "spawn", "spawn_now", "group.spawn", "Scheduler.spawn"])
def test_missing_argument_is_told_where_the_function_is_given(way: str) -> None:
    exc = raised(starts(two)[way])
    assert str(exc) == "two() missing 1 required positional argument: 'a'"
    lines = [frame.line for frame in traceback.extract_tb(exc.__traceback__)]
    assert any("(fn)" in str(line) for line in lines)


def test_misspelt_keyword_is_told_where_the_function_is_given() -> None:
    def main() -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'bb'"):
            spawn(two, 1, bb=2)  # type: ignore[call-arg]

    run(main)


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda a, b=1: None,
        lambda a, /, b, *, c, d=1: None,
        lambda *args: None,
        lambda a, *args, b: None,
        lambda a=1, **more: None,
        lambda a, /, **more: None,
        lambda a, b, c=1, *args, d, e=2, **more: None,
    ],
)
@given(
    count=st.integers(0, 5),
    names=st.lists(st.sampled_from("abcdex"), unique=True, max_size=4),
    bound=st.booleans(),
)
def test_arguments_are_taken_or_refused_as_by_a_call(
    function: Any, count: int, names: list[str], bound: bool
) -> None:
    """spawn() looks at them itself, before the call."""
    called = function.__get__(0) if bound else function
    keywords = dict.fromkeys(names, 1)
    try:
        called(*range(count), **keywords)
        expected = True
    except TypeError:
        expected = False

    def main() -> bool:
        try:
            fiber = spawn(called, *range(count), **keywords)
        except TypeError:
            return False
        fiber.join()
        fiber.result()
        return True

    assert run(main) is expected


def test_arguments_of_a_function_with_strange_defaults_are_left_to_the_call() -> None:
    class Key(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            function.__kwdefaults__ = None  # the dict that is being searched
            raise ZeroDivisionError

        def __hash__(self) -> int:
            return hash("a")

    def function(*, a: int = 1) -> None: ...

    function.__kwdefaults__ = {Key("a"): 1}

    def main() -> None:
        with pytest.raises((TypeError, ZeroDivisionError)):
            spawn(function).result()

    run(main)


# scopes without with ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: pyfiber.timeout(1), r"timeout\(1.0\)"),
        (lambda: pyfiber.move_on_after(2), r"move_on_after\(2.0\)"),
        (pyfiber.shield, r"shield\(\)"),
    ],
)
def test_scope_that_is_never_entered_warns(make: Callable[[], object], what: str) -> None:
    with pytest.warns(RuntimeWarning, match=f"{what} was never entered.*write 'with {what}:'"):
        make()


def test_scope_that_is_refused_does_not_warn_as_well() -> None:
    with pytest.raises(FiberError, match="running scheduler"), pyfiber.timeout(1):
        pass


def test_scope_that_is_entered_or_plain_does_not_warn() -> None:
    def main() -> None:
        with pyfiber.timeout(1):
            pass
        pyfiber.CancelScope()

    run(main)


def test_scope_that_is_never_entered_keeps_the_exception_under_way() -> None:
    def fails() -> None:
        scope = pyfiber.timeout(1)
        raise KeyError(scope.deadline)

    def main() -> list[str]:
        try:
            fails()
        except KeyError as exc:
            exc.__traceback__ = None  # the last reference to the scope goes here
            return [repr(exc)]
        return []

    with pytest.warns(RuntimeWarning, match="never entered"):
        assert main() == ["KeyError(None)"]


# locks --------------------------------------------------------------------------------------------


def test_lock_taken_twice_is_said_to_be_held_by_the_fiber_itself() -> None:
    text = printed("""
        lock = Lock()
        def main():
            with lock:
                with lock:
                    pass
        try:
            run(main)
        except DeadlockError as exc:
            print(exc)
    """)
    assert "held by itself: it cannot take a Lock twice, but an RLock" in text
    assert text.count("'main'") == 1


@pytest.mark.parametrize("kind", [Lock, RLock])
def test_lock_of_a_fiber_that_has_ended_names_it(kind: type) -> None:
    text = printed(f"""
        lock = {kind.__name__}()
        def forgetful():
            lock.acquire()
        def main():
            spawn(forgetful).join()
            lock.acquire()
        try:
            run(main)
        except DeadlockError as exc:
            print(exc)
    """)
    assert "taken by fiber 'forgetful', which has ended without release()" in text


def test_lost_holder_of_a_lock_that_is_free_or_held_is_none() -> None:
    lock = Lock()
    assert lock._lost_holder() is None
    with lock:
        assert lock._lost_holder() is None
    assert lock._lost_holder() is None


def test_lost_holder_that_ended_long_ago_may_be_forgotten() -> None:
    lock = Lock()

    def main() -> None:
        spawn(lock.acquire).join()
        for _ in range(256):
            other = Lock()
            spawn(other.acquire).join()

    run(main)
    assert lock._lost_holder() == "?"


# threads ------------------------------------------------------------------------------------------


def test_wait_in_a_thread_of_to_thread_names_from_thread() -> None:
    with pytest.raises(
        FiberError, match=r"sleep\(\) needs a running.*to_thread\(\) has none.*from_thread\(\)"
    ):
        run(lambda: to_thread(sleep, 1))


def test_wait_in_a_thread_of_to_thread_as_the_message_says_works() -> None:
    run(lambda: to_thread(from_thread, sleep, 0))


def test_wait_outside_of_a_run_names_run() -> None:
    with pytest.raises(FiberError, match=r"call it from a function that pyfiber.run\(\) runs"):
        sleep(1)
