"""Grains: what they are made of, whose turn it is, what is seen of them."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import pickle
import sys
import weakref
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    FiberError,
    Ok,
    run,
    sleep,
    yield_now,
)
from pyfiber import spawn as spawn_fiber
from pyfiber.grains import (
    READY,
    SLEEPING,
    STOPPED,
    Grain,
    GrainState,
    current_grain,
    spawn,
    until,
)
from pyfiber.testing import run as run_virtually
from tests.grain.grain_makers import deadlock, numbers, result_of

# --- starting


def test_grain_of_a_function() -> None:
    assert result_of(numbers) == ()


def test_grain_of_a_function_with_arguments() -> None:
    assert result_of(numbers, 1, 2) == (1, 2)


def test_grain_started_with_an_argument() -> None:
    assert run(lambda: Grain(numbers).start(7).result()) == (7,)


def test_grain_given_arguments_twice() -> None:
    with pytest.raises(TypeError, match="given to Grain"):
        run(lambda: Grain(numbers, 1).start(2))


def test_grain_of_a_generator() -> None:
    assert result_of(numbers(3)) == (3,)


def test_grain_of_an_iterable() -> None:
    assert result_of([READY, 0, READY]) is None


def test_grain_of_an_iterator() -> None:
    it = iter([READY, READY])
    assert result_of(it) is None
    assert next(it, "exhausted") == "exhausted"


def test_grain_of_a_function_that_returns_an_iterable() -> None:
    assert result_of(lambda n: [READY] * n, 3) is None


def test_grain_of_a_coroutine_function() -> None:
    async def answer(n: int) -> int:
        return n

    assert result_of(answer, 42) == 42


def test_grain_of_a_coroutine() -> None:
    async def answer() -> int:
        return 42

    assert result_of(answer()) == 42


def test_grain_of_an_awaitable() -> None:
    class Answer:
        def __await__(self) -> Generator[Any, Any, int]:
            yield READY
            return 42

    assert result_of(Answer()) == 42


def test_grain_of_a_python_iterator_with_send() -> None:
    class Echo:
        def __init__(self) -> None:
            self.sent: list[Any] = []

        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            return self.send(None)

        def send(self, value: Any) -> Any:
            self.sent.append(value)
            if len(self.sent) == 3:
                raise StopIteration(self.sent)
            return numbers(len(self.sent))

    assert result_of(Echo()) == [None, (1,), (2,)]


@pytest.mark.parametrize("nonsense", [5, None, 2.5, ...], ids=repr)
def test_grain_of_nonsense(nonsense: Any) -> None:
    with pytest.raises(TypeError, match="a grain is made of"):
        Grain(nonsense)


def test_grain_of_nothing() -> None:
    with pytest.raises(TypeError, match="needs a function"):
        Grain()  # type: ignore[call-overload]


@pytest.mark.parametrize("name", [5, b"x"], ids=repr)
def test_grain_with_a_bad_name(name: Any) -> None:
    with pytest.raises(TypeError, match="name must be a str"):
        Grain(numbers, name=name)


def test_grain_of_a_function_that_returns_nonsense() -> None:
    def main() -> None:
        with pytest.raises(TypeError, match="must return a generator"):
            spawn(lambda: 5)

    run(main)


@pytest.mark.parametrize("what", [5, [1]], ids=repr)
def test_grain_of_an_awaitable_without_an_iterator(what: Any) -> None:
    class Awaitable:
        def __await__(self) -> Any:
            return what

    def main() -> None:
        for start in (Awaitable(), Awaitable):
            with pytest.raises(TypeError, match="must return an iterator"):
                spawn(start)

    run(main)


def test_grain_of_a_function_that_raises_can_be_started_again() -> None:
    tries = []

    def start() -> Generator[Any, Any, int]:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        return numbers()

    def main() -> Any:
        grain = Grain(start)
        with pytest.raises(ValueError, match="not yet"):
            grain.start()
        assert grain.state == "new"
        return grain.start().result()

    assert run(main) == ()


def test_iterable_takes_no_arguments() -> None:
    with pytest.raises(TypeError, match="arguments are for functions"):
        result_of([READY], 1)


def test_start_outside_of_a_run() -> None:
    with pytest.raises(FiberError, match=r"needs a running scheduler"):
        Grain(numbers).start()
    with pytest.raises(FiberError, match=r"needs a running scheduler"):
        spawn(numbers)


def test_start_twice() -> None:
    def main() -> None:
        grain = spawn(numbers)
        with pytest.raises(FiberError, match="started already"):
            grain.start()
        grain.join()
        with pytest.raises(FiberError, match="started already"):
            grain.start()

    run(main)


def test_grain_can_be_made_outside_of_a_run() -> None:
    grain = Grain(numbers, 1)
    assert grain.state == "new"
    assert grain.last_known_state is STOPPED
    assert run(lambda: grain.start().result()) == (1,)


# --- turns


def test_grains_and_fibers_take_turns() -> None:
    order: list[str] = []

    def grain(name: str) -> Generator[Any, Any, None]:
        for i in range(3):
            order.append(f"{name}{i}")
            yield READY

    def fiber(name: str) -> None:
        for i in range(3):
            order.append(f"{name}{i}")
            yield_now()

    def main() -> None:
        spawn(grain, "g")
        spawn_fiber(fiber, "f")
        spawn(grain, "h")

    run(main)
    assert order == ["g0", "f0", "h0", "g1", "f1", "h1", "g2", "f2", "h2"]


def test_yield_without_a_value_is_a_turn() -> None:
    def bare() -> Generator[Any, Any, Any]:
        got = yield
        return got

    assert result_of(bare) is None


def test_busy_grain_does_not_keep_timers_waiting() -> None:
    """In real time: virtual time stands while anything is busy."""
    done: list[bool] = []

    def busy() -> Generator[Any, Any, int]:
        steps = 0
        while not done:
            steps += 1
            yield READY
        return steps

    def main() -> int:
        grain = spawn(busy)
        sleep(0.005)
        done.append(True)
        return grain.result()

    assert run(main) > 1


def test_stopped_ends_the_grain_after_its_finally() -> None:
    order = []

    def stops() -> Generator[Any, Any, int]:
        try:
            yield STOPPED
        finally:
            order.append("finally")
        return 5

    def main() -> Any:
        grain = spawn(stops)
        grain.join()
        return grain.outcome

    assert run(main) == Ok(None)
    assert order == ["finally"]


def test_stopped_ends_the_callers_as_well() -> None:
    order = []

    def inner() -> Generator[Any, Any, None]:
        try:
            yield STOPPED
        finally:
            order.append("inner")

    def outer() -> Generator[Any, Any, None]:
        try:
            yield inner()
        finally:
            order.append("outer")

    assert result_of(outer) is None
    assert order == ["inner", "outer"]


def test_what_a_finally_raises_at_stopped_is_the_outcome() -> None:
    def stops() -> Generator[Any, Any, None]:
        try:
            yield STOPPED
        finally:
            raise KeyError("late")

    with pytest.raises(KeyError, match="late"):
        result_of(stops)


# --- time


def test_seconds() -> None:
    def sleeper(seconds: float) -> Generator[Any, Any, float]:
        start = pyfiber.now()
        yield seconds
        return pyfiber.now() - start

    assert result_of(sleeper, 0.01) >= 0.01
    assert result_of(sleeper, 0) < 1


def test_sleepers_wake_in_order() -> None:
    woken: list[int] = []

    def sleeper(n: int) -> Generator[Any, Any, None]:
        yield n / 1000
        woken.append(n)

    run(lambda: [spawn(sleeper, n) for n in (9, 3, 6)])
    assert woken == [3, 6, 9]


@pytest.mark.parametrize(
    ("seconds", "error"), [(-1, ValueError), (-0.5, ValueError), (float("nan"), ValueError)]
)
def test_bad_seconds_are_raised_at_the_yield(seconds: float, error: type[Exception]) -> None:
    def sleeper() -> Generator[Any, Any, str]:
        try:
            yield seconds
        except error as exc:
            return str(exc)
        return "nothing"

    assert "must not be NaN" in result_of(sleeper) or "negative" in result_of(sleeper)


def test_endless_sleep_is_a_deadlock(child: Any) -> None:
    assert "has yielded inf" in deadlock(child, "yield float('inf')")


# --- nonsense


@pytest.mark.parametrize("nonsense", [True, "a", {}, [1], 1j, ...], ids=repr)
def test_nonsense_is_raised_at_the_yield(nonsense: Any) -> None:
    def grain() -> Generator[Any, Any, str]:
        try:
            yield nonsense
        except TypeError as exc:
            return str(exc)
        return "nothing"

    assert f"not '{type(nonsense).__name__}'" in result_of(grain)


def test_what_cannot_be_asked_what_it_is_raises_that_at_the_yield() -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise LookupError(name)

    def grain() -> Generator[Any, Any, str]:
        try:
            yield Broken()
        except LookupError as exc:
            return str(exc)
        return "nothing"

    assert result_of(grain) == "add_done_callback"


def test_iterator_that_cannot_be_asked_for_its_methods() -> None:
    class Broken:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            return numbers(1)  # its result is to be sent

        def __getattr__(self, name: str) -> Any:
            raise LookupError(name)

    with pytest.raises(LookupError, match="send"):
        result_of(Broken())


def test_nonsense_of_a_plain_iterator_ends_the_grain() -> None:
    with pytest.raises(TypeError, match="not 'str'"):
        result_of("abc")


def test_grain_that_insists_on_nonsense_starves_nobody() -> None:
    def insists() -> Generator[Any, Any, None]:
        while True:
            with contextlib.suppress(TypeError):
                yield {}

    def main() -> str:
        grain = spawn(insists)
        for _ in range(10):
            yield_now()
        grain.cancel()
        grain.join()
        return grain.state

    assert run(main) == "done"


# --- looking at one


def test_states() -> None:
    seen: list[Any] = []

    def grain() -> Generator[Any, Any, None]:
        me = current_grain()
        assert me is not None
        seen.append((me.state, me.last_known_state))
        yield 1

    def main() -> None:
        one = Grain(grain)
        seen.append((one.state, one.last_known_state, one.suspended_state))
        one.start()
        seen.append((one.state, one.last_known_state))
        yield_now()
        seen.append((one.state, one.last_known_state, one.suspended_state))
        one.join()
        seen.append((one.state, one.last_known_state, one.suspended_state))

    run_virtually(main)
    assert seen == [
        ("new", STOPPED, None),
        ("ready", READY),
        ("running", READY),
        ("parked", SLEEPING, 1),
        ("done", STOPPED, None),
    ]


def test_names() -> None:
    async def coroutine() -> None: ...

    assert Grain(numbers).name == "numbers"
    assert Grain(numbers()).name == "numbers"
    assert Grain([READY]).name == "list"
    assert Grain(numbers, name="mine").name == "mine"
    made = coroutine()
    assert Grain(made).name.endswith("coroutine")
    made.close()

    def main() -> str:
        grain = spawn(numbers)
        before = repr(grain)
        grain.name = "other"
        with pytest.raises(TypeError):
            grain.name = 5  # type: ignore[assignment]
        with pytest.raises(TypeError):
            del grain.name
        grain.join()
        assert "'other' done" in repr(grain)
        return before

    assert run(main).startswith("<pyfiber.grains.Grain 'numbers' ready at")


def test_stack_shows_every_generator() -> None:
    def inner() -> Generator[Any, Any, None]:
        yield SLEEPING

    def middle() -> Generator[Any, Any, None]:
        yield from inner()

    def outer() -> Generator[Any, Any, None]:
        yield middle()

    async def awaits() -> None:
        await deeper()

    async def deeper() -> None:
        await until(SLEEPING)

    def main() -> list[list[str]]:
        grains = [spawn(outer), spawn(awaits)]
        yield_now()
        names = [[entry.name for entry in grain.stack()] for grain in grains]
        for grain in grains:
            grain.unpark()
        return names

    assert run(main) == [["outer", "middle", "inner"], ["awaits", "deeper"]]


def test_grain_cannot_be_copied() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(Grain(numbers))


def test_grain_cannot_be_subclassed() -> None:
    with pytest.raises(TypeError):
        type("Sub", (Grain,), {})


def test_grain_state_has_three_members() -> None:
    assert list(GrainState) == [READY, SLEEPING, STOPPED]
    assert repr(READY) == "READY"


# --- contexts


def test_each_grain_has_a_context_of_its_own() -> None:
    var = contextvars.ContextVar("var", default="default")
    seen: dict[str, list[str]] = {}

    def grain(name: str) -> Generator[Any, Any, None]:
        seen[name] = [var.get()]
        var.set(name)
        for _ in range(3):
            yield READY
            seen[name].append(var.get())

    def main() -> str:
        var.set("main")
        first, second = spawn(grain, "a"), spawn(grain, "b")
        var.set("changed")
        first.join()
        second.join()
        return var.get()

    assert run(main) == "changed"
    assert seen == {name: ["main", name, name, name] for name in "ab"}


def test_predicates_are_asked_in_the_grains_context() -> None:
    var = contextvars.ContextVar("var", default="default")

    def grain() -> Generator[Any, Any, Any]:
        var.set("mine")
        return (yield lambda: var.get())

    assert result_of(grain) == "mine"


# --- memory


def test_dropped_grain_is_freed() -> None:
    grain = Grain(numbers)
    ref = weakref.ref(grain)
    del grain
    assert ref() is None


def test_finished_grain_is_freed() -> None:
    refs: list[Any] = []

    def main() -> None:
        grain = spawn(numbers)
        refs.append(weakref.ref(grain))
        grain.join()

    run(main)
    assert refs[0]() is None


def test_cycle_through_a_grain_is_collected() -> None:
    holder: list[Any] = []

    def grain(hold: list[Any]) -> Generator[Any, Any, None]:
        yield READY

    one = Grain(grain, holder)
    holder.append(one)
    ref = weakref.ref(one)
    del one, holder
    gc.collect()
    assert ref() is None


@pytest.mark.filterwarnings("ignore:.*dropped without close:ResourceWarning")
def test_scheduler_dropped_with_grains_in_it_closes_them() -> None:
    order = []

    def grain() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        finally:
            order.append("closed")

    def futures() -> Generator[Any, Any, None]:
        try:
            yield Future()
        finally:
            order.append("closed")

    scheduler = pyfiber.Scheduler()
    scheduler.spawn(lambda: [spawn(grain), spawn(futures), spawn(lambda: iter([10]))])
    for _ in range(4):
        scheduler.run_once()
    del scheduler
    gc.collect()
    assert order == ["closed"] * 2


def test_hosted_scheduler_runs_grains() -> None:
    got: list[Any] = []

    def grain() -> Generator[Any, Any, None]:
        yield READY
        got.append((yield lambda: len(got) or "asked"))

    scheduler = pyfiber.Scheduler()
    scheduler.spawn(lambda: spawn(grain) and None)
    while scheduler.run_once(timeout=0.01):
        pass
    scheduler.close()
    assert got == ["asked"]


def test_grain_is_small() -> None:
    def waits() -> Generator[Any, Any, None]:
        yield 1000

    generator = waits()
    assert sys.getsizeof(Grain(generator)) + sys.getsizeof(generator) <= 500


def test_grains_at_interpreter_exit(child: Any) -> None:
    done = child(
        """
        import pyfiber
        from pyfiber.grains import SLEEPING, spawn
        def grain():
            try:
                yield SLEEPING
            finally:
                print("closed")
        scheduler = pyfiber.Scheduler()
        scheduler.spawn(lambda: spawn(grain) and None)
        scheduler.run_once(); scheduler.run_once(); scheduler.run_once()
        """
    )
    assert done.stdout == "closed\n"


def test_import_of_pyfiber_leaves_grains_out(child: Any) -> None:
    done = child(
        """
        import sys, pyfiber
        print("pyfiber.grains" in sys.modules, "enum" in sys.modules, "typing" in sys.modules)
        print(pyfiber.grains.READY)
        """
    )
    assert done.stdout.splitlines()[1] == "GrainState.READY"
    assert done.stdout.split()[0] == "False"
