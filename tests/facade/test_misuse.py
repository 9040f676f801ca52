"""Every entry point used as it should not be: a clear exception, and the process goes on."""

from __future__ import annotations

import gc
import math
import sys
import textwrap
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    Fiber,
    FiberError,
    Scheduler,
    check_cancelled,
    current,
    park,
    run,
    sleep,
    sleep_until,
    spawn,
    yield_now,
)
from tests.support.subprocesses import run_script

Case = Callable[[], Any]


def cases(table: dict[str, Any]) -> pytest.MarkDecorator:
    """One test for each line of a table."""
    return pytest.mark.parametrize("case", table.values(), ids=table.keys())


def nothing(*args: Any) -> None:
    pass


def still_works() -> None:
    """The engine is unharmed: raw and scheduled fibers do their work."""
    root = current()
    raw: Fiber[Any] = Fiber(lambda: root.switch(1))
    assert raw.switch() == 1
    assert raw.switch(2) == 2
    assert run(lambda: [spawn(lambda i=i: (yield_now(), i)[1]).result() for i in range(3)]) == [
        0,
        1,
        2,
    ]


# Wrong types --------------------------------------------------------------------------------------

TYPE_ERRORS: dict[str, Case] = {
    "Fiber()": lambda: Fiber(),
    "Fiber(None)": lambda: Fiber(None),
    "Fiber(1)": lambda: Fiber(1),  # type: ignore[arg-type]
    "Fiber args not iterable": lambda: Fiber(nothing, 1),  # type: ignore[arg-type]
    "Fiber kwargs not a mapping": lambda: Fiber(nothing, (), 1),  # type: ignore[arg-type]
    "Fiber name not a str": lambda: Fiber(nothing, name=1),  # type: ignore[arg-type]
    "Fiber stack_size not an int": lambda: Fiber(nothing, stack_size="1"),  # type: ignore[arg-type]
    "Fiber stack_size a float": lambda: Fiber(nothing, stack_size=1e6),  # type: ignore[arg-type]
    "Fiber context not a context": lambda: Fiber(nothing, context={}),  # type: ignore[arg-type]
    "Fiber unknown keyword": lambda: Fiber(nothing, nonsense=1),  # type: ignore[call-arg]
    "Fiber name by position": lambda: Fiber(nothing, (), {}, "name"),  # type: ignore[misc]
    "Fiber.switch of a fresh fiber with a value": lambda: Fiber(nothing).switch(1),
    "Fiber.switch two arguments": lambda: Fiber(nothing).switch(1, 2),  # type: ignore[call-arg]
    "Fiber.switch keyword": lambda: Fiber(nothing).switch(x=1),  # type: ignore[call-arg]
    "Fiber.throw nothing": lambda: Fiber(nothing).throw(),  # type: ignore[call-arg]
    "Fiber.throw a str": lambda: Fiber(nothing).throw("text"),  # type: ignore[arg-type]
    "Fiber.throw a class": lambda: Fiber(nothing).throw(int),  # type: ignore[arg-type]
    "Fiber.throw None": lambda: Fiber(nothing).throw(None),  # type: ignore[arg-type]
    "Fiber.start argument": lambda: Fiber(nothing).start(1),  # type: ignore[call-arg]
    "Fiber.join two arguments": lambda: Fiber(nothing).join(1, 2),  # type: ignore[call-arg]
    "Fiber.join keyword": lambda: Fiber(nothing).join(seconds=1),  # type: ignore[call-arg]
    "Fiber.result keyword": lambda: Fiber(nothing).result(seconds=1),  # type: ignore[call-arg]
    "Fiber.exception keyword": lambda: Fiber(nothing).exception(x=1),  # type: ignore[call-arg]
    "Fiber.done argument": lambda: Fiber(nothing).done(1),  # type: ignore[call-arg]
    "Fiber.cancelled argument": lambda: Fiber(nothing).cancelled(1),  # type: ignore[call-arg]
    "Fiber.cancel two arguments": lambda: Fiber(nothing).cancel(1, 2),  # type: ignore[call-arg]
    "Fiber.cancel keyword": lambda: Fiber(nothing).cancel(why=1),  # type: ignore[call-arg]
    "Fiber.unpark two arguments": lambda: Fiber(nothing).unpark(1, 2),  # type: ignore[call-arg]
    "Fiber.unpark keyword": lambda: Fiber(nothing).unpark(x=1),  # type: ignore[call-arg]
    "Fiber.unpark both": lambda: Fiber(nothing).unpark(1, value=2),  # type: ignore[call-arg,misc]
    "Fiber.add_done_callback 1": lambda: Fiber(nothing).add_done_callback(1),  # type: ignore[arg-type]
    "Fiber.parent of 1": lambda: setattr(Fiber(nothing), "parent", 1),
    "Fiber.parent of None": lambda: setattr(Fiber(nothing), "parent", None),
    "Fiber.name of 1": lambda: setattr(Fiber(nothing), "name", 1),
    "Fiber.name deleted": lambda: delattr(Fiber(nothing), "name"),
    "current(1)": lambda: current(1),  # type: ignore[call-arg]
    "run()": lambda: run(),  # type: ignore[call-arg]
    "run(1)": lambda: run(1),  # type: ignore[arg-type]
    "sleep()": lambda: sleep(),  # type: ignore[call-arg]
    "sleep(str)": lambda: sleep("1"),  # type: ignore[arg-type]
    "sleep(1, 2)": lambda: sleep(1, 2),  # type: ignore[call-arg]
    "sleep_until(None)": lambda: sleep_until(None),  # type: ignore[arg-type]
    "yield_now(1)": lambda: yield_now(1),  # type: ignore[call-arg]
    "park two": lambda: park(1, 2),  # type: ignore[call-arg]
    "park keyword": lambda: park(seconds=1),  # type: ignore[call-arg]
    "check_cancelled(1)": lambda: check_cancelled(1),  # type: ignore[call-arg]
    "now(1)": lambda: pyfiber.now(1),  # type: ignore[call-arg]
    "stack_size(str)": lambda: pyfiber.stack_size("1"),  # type: ignore[arg-type]
    "stack_size(1, 2)": lambda: pyfiber.stack_size(1, 2),  # type: ignore[call-arg]
    "stack_stats(1)": lambda: pyfiber.debug.stack_stats(1),  # type: ignore[call-arg]
    "trim_stacks(1)": lambda: pyfiber.debug.trim_stacks(1),  # type: ignore[call-arg]
    "Scheduler(1)": lambda: Scheduler(1),  # type: ignore[call-arg]
    "Scheduler.run_once(str)": lambda: Scheduler().run_once("1"),  # type: ignore[arg-type]
    "Scheduler.run_once two": lambda: Scheduler().run_once(1, 2),  # type: ignore[call-arg]
    "Scheduler.run(1)": lambda: Scheduler().run(1),  # type: ignore[arg-type]
    "Scheduler.spawn(1)": lambda: Scheduler().spawn(1),  # type: ignore[arg-type]
    "Scheduler.call_soon_threadsafe(1)": lambda: Scheduler().call_soon_threadsafe(1),  # type: ignore[arg-type]
    "Scheduler.stop(1)": lambda: Scheduler().stop(1),  # type: ignore[call-arg]
    "Scheduler.close(1)": lambda: Scheduler().close(1),  # type: ignore[call-arg]
    "Scheduler.stats(1)": lambda: Scheduler().stats(1),  # type: ignore[call-arg]
    "Scheduler.fileno(1)": lambda: Scheduler().fileno(1),  # type: ignore[call-arg]
}


@cases(TYPE_ERRORS)
def test_wrong_types_are_type_errors(case: Case) -> None:
    with pytest.raises(TypeError) as caught:
        case()
    assert str(caught.value)
    still_works()


@cases(TYPE_ERRORS)
def test_wrong_types_inside_a_run_are_type_errors(case: Case) -> None:
    if case in (TYPE_ERRORS["run()"], TYPE_ERRORS["run(1)"], TYPE_ERRORS["Scheduler.run(1)"]):
        kind: Any = (TypeError, FiberError)
    elif case in (TYPE_ERRORS["Scheduler.run_once(str)"],):
        kind = (TypeError, FiberError)
    else:
        kind = TypeError

    def main() -> None:
        with pytest.raises(kind):
            case()

    run(main)


VALUE_ERRORS: dict[str, Case] = {
    "stack_size 0": lambda: Fiber(nothing, stack_size=0),
    "stack_size negative": lambda: Fiber(nothing, stack_size=-1),
    "stack_size tiny": lambda: Fiber(nothing, stack_size=4096),
    "stack_size() 0": lambda: pyfiber.stack_size(0),
    "stack_size() negative": lambda: pyfiber.stack_size(-(2**40)),
    "run_once negative": lambda: Scheduler().run_once(-1),
    "run_once NaN": lambda: Scheduler().run_once(math.nan),
    "sleep negative": lambda: run(sleep, -1),
    "sleep NaN": lambda: run(sleep, math.nan),
    "sleep_until NaN": lambda: run(sleep_until, math.nan),
    "park negative": lambda: run(park, -1),
    "park NaN": lambda: run(park, math.nan),
    "join negative": lambda: run(lambda: spawn(nothing).join(-1)),
    "own parent": lambda: setattr(current(), "parent", current()),
}


@cases(VALUE_ERRORS)
def test_wrong_values_are_value_errors(case: Case) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        case()
    assert str(caught.value)
    still_works()


@pytest.mark.parametrize("size", [2**62, 2**50, sys.maxsize])
def test_stack_that_cannot_be_had_is_a_memory_error(size: int) -> None:
    with pytest.raises(MemoryError):
        Fiber(nothing, stack_size=size).switch()
    still_works()


@pytest.mark.parametrize("size", [2**62, sys.maxsize])
def test_spawned_fiber_whose_stack_cannot_be_had_fails(size: int) -> None:
    def main() -> None:
        fiber = Fiber(nothing, stack_size=size).start()
        assert isinstance(fiber.exception(), MemoryError)

    run(main)
    still_works()


def test_stack_size_beyond_all_integers_is_an_overflow_error() -> None:
    with pytest.raises(OverflowError):
        Fiber(nothing, stack_size=2**200)
    with pytest.raises(OverflowError):
        pyfiber.stack_size(2**200)


@pytest.mark.parametrize("size", [2**62, sys.maxsize])
def test_default_stack_size_that_cannot_be_had_is_a_memory_error(size: int) -> None:
    before = pyfiber.stack_size()
    pyfiber.stack_size(size)
    try:
        with pytest.raises(MemoryError):
            run(nothing)
        with pytest.raises(MemoryError):
            Fiber(nothing).switch()
    finally:
        pyfiber.stack_size(before)
    still_works()


# Methods on the wrong object ----------------------------------------------------------------------

METHODS = [name for name in dir(Fiber) if callable(getattr(Fiber, name)) and name[0] != "_"]
SCHEDULER_METHODS = [
    name for name in dir(Scheduler) if callable(getattr(Scheduler, name)) and name[0] != "_"
]
PROPERTIES = ["name", "state", "parent", "context", "frame", "outcome", "daemon", "waiting_on"]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("bad", [None, 1, object(), Scheduler])
def test_fiber_methods_on_something_else(name: str, bad: Any) -> None:
    with pytest.raises(TypeError):
        getattr(Fiber, name)(bad)


@pytest.mark.parametrize("name", SCHEDULER_METHODS)
@pytest.mark.parametrize("bad", [None, 1, object(), Fiber])
def test_scheduler_methods_on_something_else(name: str, bad: Any) -> None:
    with pytest.raises(TypeError):
        getattr(Scheduler, name)(bad)


@pytest.mark.parametrize("name", PROPERTIES)
def test_fiber_properties_on_something_else(name: str) -> None:
    with pytest.raises(TypeError):
        vars(Fiber)[name].__get__(1)


@pytest.mark.parametrize("name", ["state", "frame", "outcome", "context", "waiting_on"])
def test_fiber_properties_that_cannot_be_set(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(Fiber(nothing), name, None)
    with pytest.raises(AttributeError):
        delattr(Fiber(nothing), name)


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("kind", ["new", "done", "root", "never initialised"])
def test_fiber_properties_can_always_be_read(name: str, kind: str) -> None:
    done: Fiber[Any] = Fiber(nothing)
    done.switch()
    fibers = {
        "new": Fiber(nothing),
        "done": done,
        "root": current(),
        "never initialised": Fiber.__new__(Fiber),
    }
    getattr(fibers[kind], name)
    repr(fibers[kind])
    fibers[kind].stack()


# Wrong states -------------------------------------------------------------------------------------


def test_fiber_that_was_never_initialised_fails_when_it_runs() -> None:
    raw: Fiber[Any] = Fiber.__new__(Fiber)
    with pytest.raises(AttributeError):
        raw.switch()
    spawned: Fiber[Any] = Fiber.__new__(Fiber)
    with pytest.raises(AttributeError):
        run(lambda: spawned.start().result())
    still_works()


def test_init_twice_before_the_start_takes_the_last() -> None:
    fiber: Fiber[int] = Fiber(lambda: 1)
    fiber.__init__(lambda: 2)  # type: ignore[misc]
    assert fiber.switch() == 2


@pytest.mark.parametrize("state", ["suspended", "done", "running", "ready"])
def test_init_after_the_start_is_refused(state: str) -> None:
    def main() -> None:
        me = current()
        fibers: dict[str, Fiber[Any]] = {
            "suspended": Fiber(lambda: me.switch()),
            "done": Fiber(nothing),
            "running": me,
            "ready": spawn(nothing),
        }
        fibers["suspended"].switch()
        fibers["done"].switch()
        with pytest.raises(FiberError, match="comes too late"):
            fibers[state].__init__(nothing)  # type: ignore[misc]
        fibers["suspended"].switch()

    run(main)


OUTSIDE: dict[str, Case] = {
    "spawn": lambda: spawn(nothing),
    "start": lambda: Fiber(nothing).start(),
    "yield_now": yield_now,
    "sleep": lambda: sleep(0),
    "sleep_until": lambda: sleep_until(0),
    "park": park,
    "park with timeout": lambda: park(0),
    "check_cancelled": check_cancelled,
}


@cases(OUTSIDE)
def test_outside_of_a_run_is_refused(case: Case) -> None:
    with pytest.raises(FiberError, match="needs a running scheduler"):
        case()
    with pytest.raises(FiberError, match="needs a running scheduler"):
        Fiber(case).switch()
    still_works()


@cases(
    {
        "join": lambda fiber: fiber.join(),
        "result": lambda fiber: fiber.result(),
        "exception": lambda fiber: fiber.exception(),
    }
)
def test_waiting_outside_of_a_run_is_refused(case: Callable[[Fiber[Any]], Any]) -> None:
    scheduler = Scheduler()
    fiber = scheduler.spawn(nothing)
    with pytest.raises(FiberError):
        case(fiber)
    scheduler.close()


ON_DONE: dict[str, Callable[[Fiber[Any]], Any]] = {
    "switch": lambda fiber: fiber.switch(),
    "throw": lambda fiber: fiber.throw(ValueError),
    "start": lambda fiber: fiber.start(),
    "unpark": lambda fiber: fiber.unpark(),
}


@cases(ON_DONE)
def test_finished_fiber_refuses(case: Callable[[Fiber[Any]], Any]) -> None:
    def main() -> Fiber[Any]:
        fiber = spawn(nothing)
        fiber.join()
        with pytest.raises(FiberError):
            case(fiber)
        return fiber

    fiber = run(main)
    with pytest.raises(FiberError):
        case(fiber)
    assert fiber.outcome == pyfiber.Ok(None)


def test_daemon_after_the_start_is_refused() -> None:
    def main() -> None:
        fiber = spawn(nothing)
        with pytest.raises(FiberError, match="after the start"):
            fiber.daemon = True
        with pytest.raises(AttributeError):
            del fiber.daemon

    run(main)


# From where it is not expected --------------------------------------------------------------------

LEAVES: dict[str, Case] = {
    "yield_now": yield_now,
    "park": lambda: park(0),
    "sleep": lambda: sleep(0.0001),
    "raw switch": lambda: Fiber(nothing).switch(),
    "raw throw": lambda: Fiber(nothing).throw(pyfiber.FiberExit),
    "join": lambda: spawn(nothing).join(),
    "run": lambda: run(nothing),
    "run_once": lambda: Scheduler().run_once(),
}
ANYWHERE: dict[str, Case] = {
    "spawn": lambda: spawn(nothing),
    "current": current,
    "now": pyfiber.now,
    "unpark": lambda: current().unpark(),
    "new fiber": lambda: Fiber(nothing),
    "new scheduler": Scheduler,
    "stack_stats": pyfiber.debug.stack_stats,
    "trim_stacks": pyfiber.debug.trim_stacks,
    "repr": lambda: repr(current()),
    "stack": lambda: current().stack(),
    "frame": lambda: current().frame,
}


class Attempts:
    """Tries something and notes how it went."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.errors: list[BaseException] = []
        self.worked = 0

    def __call__(self, *args: Any) -> None:
        try:
            self.case()
        except (FiberError, TimeoutError) as exc:
            self.errors.append(exc)
        else:
            self.worked += 1

    def refused(self) -> bool:
        return not self.worked and all(isinstance(exc, FiberError) for exc in self.errors)


class Dying:
    """Tries when it goes."""

    def __init__(self, attempts: Attempts) -> None:
        self.attempts = attempts

    def __del__(self) -> None:
        self.attempts()


def work_around(act: Callable[[], None]) -> Any:
    """act() in the middle of a run with others on the way; what it disturbs shows."""

    def worker(i: int) -> int:
        for _ in range(5):
            yield_now()
        return i

    def main() -> list[int]:
        fibers = [spawn(worker, i) for i in range(5)]
        yield_now()
        act()
        while True:
            try:
                park(0)
            except TimeoutError:
                break
        return [fiber.result() for fiber in fibers]

    assert run(main) == [0, 1, 2, 3, 4]


@cases(LEAVES | ANYWHERE)
def test_from_del_called_directly(case: Case) -> None:
    """An ordinary call as far as anybody can see: it may work, or be refused."""
    attempts = Attempts(case)

    def act() -> None:
        thing: Dying | None = Dying(attempts)
        assert thing is not None
        thing = None

    work_around(act)
    assert attempts.worked + len(attempts.errors) == 1
    still_works()


@cases(LEAVES)
def test_from_del_called_by_the_collector_cannot_leave(case: Case) -> None:
    attempts = Attempts(case)

    def act() -> None:
        cycle: list[Any] = [Dying(attempts)]
        cycle.append(cycle)
        del cycle
        gc.collect()

    work_around(act)
    assert len(attempts.errors) == 1
    assert attempts.refused()
    still_works()


@cases(ANYWHERE)
def test_from_del_called_by_the_collector_may(case: Case) -> None:
    attempts = Attempts(case)

    def act() -> None:
        cycle: list[Any] = [Dying(attempts)]
        cycle.append(cycle)
        del cycle
        gc.collect()

    work_around(act)
    assert attempts.worked == 1


@cases(LEAVES)
def test_from_a_weakref_callback_of_the_collector_cannot_leave(case: Case) -> None:
    attempts = Attempts(case)

    class Node:
        pass

    def act() -> None:
        node = Node()
        node.me = node  # type: ignore[attr-defined]
        keep.append(weakref.ref(node, attempts))
        del node
        gc.collect()

    keep: list[Any] = []
    work_around(act)
    assert attempts.refused()
    assert attempts.errors


@cases(LEAVES)
def test_from_a_gc_callback_cannot_leave(case: Case) -> None:
    attempts = Attempts(case)

    def act() -> None:
        gc.callbacks.append(attempts)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(attempts)

    work_around(act)
    phases = attempts.worked + len(attempts.errors)
    assert phases == 2
    assert attempts.errors  # at the start it is refused; at the end the collector is done
    still_works()


@cases(LEAVES)
def test_from_a_done_callback_cannot_leave(case: Case) -> None:
    attempts = Attempts(case)

    def act() -> None:
        fiber = spawn(nothing)
        fiber.add_done_callback(attempts)
        fiber.join()

    work_around(act)
    assert attempts.errors
    assert attempts.refused()


@cases({name: case for name, case in ANYWHERE.items() if name != "unpark"})
def test_from_a_done_callback_may(case: Case) -> None:
    attempts = Attempts(case)

    def act() -> None:
        fiber = spawn(nothing)
        fiber.add_done_callback(attempts)
        fiber.join()

    work_around(act)
    assert attempts.worked == 1


@cases(LEAVES | ANYWHERE)
@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile], ids=["trace", "profile"])
def test_from_a_trace_function(case: Case, install: Any) -> None:
    """It may work or be refused; the program under it must not notice."""
    attempts = Attempts(case)
    calls: list[int] = []

    def tracer(*args: Any) -> Any:
        if len(calls) < 20:
            calls.append(1)
            attempts()
        return tracer

    def traced() -> int:
        total = 0
        for i in range(10):
            total += i
            nothing(i)
        return total

    def act() -> None:
        before = sys.gettrace() if install is sys.settrace else sys.getprofile()
        install(tracer)
        try:
            assert traced() == 45
        finally:
            install(before)

    work_around(act)
    assert calls
    still_works()


@cases(LEAVES | ANYWHERE)
def test_from_a_context_switching_repr_of_the_fibers_target(case: Case) -> None:
    attempts = Attempts(case)

    class Target:
        def __call__(self) -> None:
            pass

        def __repr__(self) -> str:
            attempts()
            return "target"

    def act() -> None:
        assert "target" in repr(Fiber(Target(), name="named"))

    work_around(act)
    assert attempts.worked + len(attempts.errors) == 1


@cases(LEAVES)
def test_from_a_fiber_being_unwound_cannot_leave(case: Case) -> None:
    attempts = Attempts(case)

    def body(main: Fiber[Any]) -> None:
        try:
            main.switch()
        finally:
            attempts()

    def act() -> None:
        fiber: Fiber[Any] | None = Fiber(body, (current(),))
        assert fiber is not None
        fiber.switch()
        fiber = None

    work_around(act)
    assert attempts.errors
    assert attempts.refused()


@cases(LEAVES | ANYWHERE)
def test_from_the_hash_eq_and_bool_of_values(case: Case) -> None:
    """Values are only handed on: nothing of theirs is called on the way."""
    attempts = Attempts(case)

    class Value:
        def __eq__(self, other: object) -> bool:
            attempts()
            return True

        def __hash__(self) -> int:
            attempts()
            return 1

        def __bool__(self) -> bool:
            attempts()
            return True

    def main() -> None:
        value = Value()
        fiber = spawn(lambda: (park(), value)[1])
        fiber.unpark(value)
        assert fiber.result() is value
        fiber = spawn(park)
        yield_now()
        fiber.cancel(value)
        fiber.join()
        assert isinstance(fiber.outcome, pyfiber.CancelledOutcome)

    run(main)
    assert attempts.worked + len(attempts.errors) == 0


# When the interpreter ends ------------------------------------------------------------------------

FINALISATION = """
import atexit, gc, sys, threading
import pyfiber
from pyfiber import *
made = Scheduler()
new = Fiber(lambda: 1)
def attempt():
    {act}
def noted(where, attempt=attempt, write=sys.__stdout__.write):
    try:
        attempt()
    except Exception:
        pass
    write(where + "\\n")
class AtTheEnd:
    def __del__(self, noted=noted):
        noted("del")
atexit.register(noted, "atexit before")
run(lambda: spawn(yield_now).join())
suspended = Fiber(lambda root: root.switch(), (current(),))
suspended.switch()
atexit.register(noted, "atexit")
keep = AtTheEnd()
class Cycle: pass
cycle = Cycle()
cycle.me, cycle.keep = cycle, AtTheEnd()
sys.keep = AtTheEnd()
"""


@pytest.mark.parametrize(
    "act",
    [
        "run(lambda: 1)",
        "run(lambda: spawn(lambda: sleep(0.001)).join())",
        "spawn(lambda: 1)",
        "new.switch()",
        "Fiber(lambda: 1).switch()",
        "suspended.switch()",
        "suspended.throw(ValueError)",
        "made.run(lambda: 1)",
        "made.spawn(lambda: 1), made.run_once()",
        "made.call_soon_threadsafe(lambda: 1)",
        "made.close()",
        "Scheduler()",
        "current()",
        "park()",
        "repr(suspended), suspended.stack()",
        "thread = threading.Thread(target=run, args=(int,)); thread.start(); thread.join()",
    ],
)
def test_at_the_end_of_the_interpreter(act: str) -> None:
    done = run_script(
        FINALISATION.format(act=act),
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert done.stdout.splitlines()[:1] == ["atexit"]
    assert "Fatal" not in done.stderr


def test_at_the_end_of_a_thread() -> None:
    """What a thread-local object does when its thread goes."""
    done = run_script(
        textwrap.dedent("""
            import threading
            from pyfiber import *
            class AtTheEnd:
                def __del__(self):
                    for act in (lambda: run(lambda: spawn(int).result()),
                                lambda: Fiber(lambda: 1).switch(), current, Scheduler):
                        try:
                            act()
                        except FiberError:
                            pass
                    print("end")
            local = threading.local()
            def body():
                local.thing = AtTheEnd()
                run(lambda: 1)
                early.thing = AtTheEnd()
            early = threading.local()
            for _ in range(5):
                thread = threading.Thread(target=body)
                thread.start()
                thread.join()
            print(run(lambda: 5))
        """),
        timeout=20,
    )
    assert done.stdout.split() == ["end"] * 10 + ["5"]
