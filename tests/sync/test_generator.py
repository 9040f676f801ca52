"""@generator and emit(): an iterator over what a function emits, from any depth of its calls."""

from __future__ import annotations

import contextvars
import copy
import gc
import inspect
import pickle
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from xml.parsers.expat import ParserCreate

import pytest

from pyfiber import (
    Fiber,
    FiberCancelled,
    FiberError,
    FiberExit,
    FiberGenerator,
    Lock,
    Queue,
    current,
    emit,
    gather,
    generator,
    local,
    run,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.greenlet import getcurrent, greenlet
from pyfiber.testing import run as run_virtually
from tests.conftest import Child
from tests.support.failing import Boom
from tests.support.growth import BLOCKS_ARE_COUNTED, grows
from tests.support.threads import in_thread
from tests.sync.emitting import Log, echo, numbers, taken_from

# Pulling ------------------------------------------------------------------------------------------


def test_generator_gives_what_is_emitted_then_ends() -> None:
    values = numbers(3)
    assert iter(values) is values
    assert [next(values), next(values), next(values)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(values)
    assert list(numbers(0)) == []


def test_generator_result_is_that_of_stop_iteration() -> None:
    values = numbers(1)
    next(values)
    with pytest.raises(StopIteration) as caught:
        next(values)
    assert caught.value.value == "counted"

    def outer() -> Iterator[int]:
        result = yield from numbers(2)
        assert result == "counted"

    assert list(outer()) == [0, 1]


def test_generator_emits_from_any_depth() -> None:
    def walk(depth: int) -> None:
        if depth:
            walk(depth - 1)
            emit(depth)
            walk(depth - 1)

    assert list(FiberGenerator(walk, 3)) == [1, 2, 1, 3, 1, 2, 1]


def test_generator_emits_from_callbacks_of_c_code() -> None:
    @generator
    def events(document: str) -> None:
        parser = ParserCreate()
        parser.StartElementHandler = lambda name, attributes: emit(f"<{name}>")
        parser.EndElementHandler = lambda name: emit(f"</{name}>")
        parser.Parse(document, True)

    assert list(events("<a><b/></a>")) == ["<a>", "<b>", "</b>", "</a>"]
    assert list(FiberGenerator(sorted, [3, 1, 2], key=lambda n: (emit(n), n)[1])) == [3, 1, 2]


def test_generator_begins_with_the_first_value() -> None:
    log: Log = []
    values = FiberGenerator(log.append, "begun")
    assert log == []
    assert list(values) == []
    assert log == ["begun"]


def test_generator_in_a_generator() -> None:
    @generator
    def pairs() -> None:
        for a in numbers(2):
            for b in numbers(2):
                emit((a, b))

    assert list(pairs()) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_generator_made_of_hundreds_of_generators() -> None:
    def chain(depth: int) -> None:
        if not depth:
            emit("deep")
            return
        for value in FiberGenerator(chain, depth - 1):
            emit(value)

    assert list(FiberGenerator(chain, 300)) == ["deep"]


def test_generator_of_a_failing_function_raises_once() -> None:
    def fail() -> None:
        emit(1)
        raise Boom

    values = FiberGenerator(fail)
    assert next(values) == 1
    with pytest.raises(Boom) as caught:
        next(values)
    assert [entry.name for entry in caught.traceback][-1] == "fail"
    assert list(values) == []


def test_generator_whose_function_raises_stop_iteration_has_failed() -> None:
    def fail() -> None:
        next(iter(()))

    with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
        next(FiberGenerator(fail))
    assert isinstance(caught.value.__cause__, StopIteration)


def test_generator_handles_exceptions_of_its_own_around_emit() -> None:
    def body() -> None:
        try:
            raise Boom
        except Boom:
            emit("handling")
            raise

    values = FiberGenerator(body)
    assert next(values) == "handling"
    with pytest.raises(Boom):
        next(values)


# send, throw, close -------------------------------------------------------------------------------


def test_send_is_what_emit_returns() -> None:
    values = echo()
    assert values.send(None) is None
    assert [values.send("a"), values.send("b"), next(values)] == ["a", "b", None]


def test_send_before_the_first_value_is_refused() -> None:
    values = echo()
    with pytest.raises(TypeError, match=r"call next\(\) first"):
        values.send("a")
    assert next(values) is None


def test_send_after_the_end_stops() -> None:
    values = numbers(0)
    assert list(values) == []
    with pytest.raises(StopIteration):
        values.send(3)
    values = numbers(1)
    next(values)
    with pytest.raises(StopIteration) as caught:
        values.send(None)
    assert caught.value.value == "counted"


def test_throw_raises_in_emit() -> None:
    def body() -> None:
        while True:
            try:
                emit("waiting")
            except Boom:
                emit("caught")

    values = FiberGenerator(body)
    next(values)
    assert values.throw(Boom) == "caught"
    next(values)
    assert values.throw(Boom("with a text")) == "caught"
    with pytest.raises(KeyError):
        values.throw(KeyError("not caught"))
    with pytest.raises(StopIteration):
        next(values)
    with pytest.raises(Boom):
        values.throw(Boom)
    with pytest.raises(TypeError, match="an exception"):
        values.throw("x")  # type: ignore[arg-type]


def test_throw_before_the_first_value_ends_it() -> None:
    log: Log = []
    values = numbers(3, log)
    with pytest.raises(Boom):
        values.throw(Boom)
    assert list(values) == []
    assert log == []


def test_close_runs_finally_blocks() -> None:
    log: Log = []
    values = numbers(3, log)
    next(values)
    values.close()
    assert log == [FiberExit, "finally"]
    values.close()
    assert list(values) == []


def test_close_before_the_first_value_runs_nothing() -> None:
    log: Log = []
    values = numbers(3, log)
    values.close()
    assert list(values) == []
    assert log == []


def test_close_of_one_that_emits_all_the_same_is_an_error() -> None:
    def stubborn() -> None:
        try:
            emit(1)
        finally:
            emit(2)

    values = FiberGenerator(stubborn)
    next(values)
    with pytest.raises(RuntimeError, match="ignored FiberExit"):
        values.close()
    values.close()


def test_close_raises_what_the_clean_up_raises() -> None:
    def body() -> None:
        try:
            emit(1)
        finally:
            raise Boom

    values = FiberGenerator(body)
    next(values)
    with pytest.raises(Boom):
        values.close()


def test_close_of_one_that_returns_instead() -> None:
    def body() -> str:
        with suppress(FiberExit):
            emit(1)
        return "calm"

    values = FiberGenerator(body)
    next(values)
    values.close()
    assert list(values) == []


def test_generator_as_a_context_manager_is_closed() -> None:
    log: Log = []
    with numbers(3, log) as values:
        assert next(values) == 0
    assert log == [FiberExit, "finally"]
    with suppress(Boom), numbers(3, log) as values:
        next(values)
        raise Boom
    assert log == [FiberExit, "finally"] * 2


def test_generator_that_is_dropped_runs_finally_blocks() -> None:
    log: Log = []
    for _ in numbers(3, log):
        break
    assert log == [FiberExit, "finally"]


def test_generator_that_is_dropped_on_another_thread_runs_them_on_its_own() -> None:
    log: Log = []

    def body() -> None:
        try:
            emit(1)
        finally:
            log.append(threading.get_ident())

    held = [FiberGenerator(body)]
    next(held[0])
    in_thread(held.clear)
    Fiber(int).switch()  # the thread's next look at what was dropped
    assert log == [threading.get_ident()]


def test_generator_left_suspended_at_the_end_of_its_thread_is_unwound() -> None:
    log: Log = []
    kept: list[FiberGenerator[int]] = []

    def body() -> None:
        kept.append(numbers(3, log))
        next(kept[0])

    in_thread(body)
    assert log == [FiberExit, "finally"]
    assert list(kept[0]) == []


def test_generator_left_suspended_at_exit_is_quiet(child: Child) -> None:
    done = child(
        """
        from pyfiber import emit, generator, run

        @generator
        def values():
            try:
                emit(1)
            finally:
                print("finally")

        kept = values()
        run(next, kept)
        """
    )
    assert done.stdout == "finally\n"


# Who may pull -------------------------------------------------------------------------------------


def test_generator_shared_by_scheduled_fibers() -> None:
    def main() -> None:
        values = numbers(6)

        def take(pause: float) -> list[int]:
            taken = [next(values)]
            sleep(pause)
            return [*taken, next(values)]

        assert gather(lambda: take(2), lambda: take(1)) == [[0, 3], [1, 2]]
        assert list(values) == [4, 5]

    run_virtually(main)


def test_generator_shared_by_raw_fibers() -> None:
    values = numbers(3)
    assert next(values) == 0
    assert Fiber(next, (values,)).switch() == 1
    assert next(values) == 2


def test_generator_begun_in_a_run_goes_on_after_it() -> None:
    values = numbers(3)
    assert run(next, values) == 0
    assert next(values) == 1
    assert run(next, values) == 2


def test_generator_that_pulls_from_itself_is_refused() -> None:
    def body() -> None:
        with pytest.raises(ValueError, match="already executing"):
            next(values)
        with pytest.raises(ValueError, match="already executing"):
            values.close()
        emit("whole")

    values = FiberGenerator(body)
    assert list(values) == ["whole"]


def test_generator_pulled_while_another_fiber_waits_for_it_is_refused() -> None:
    def main() -> None:
        queue: Queue[Any] = Queue()
        values = taken_from(queue)
        first = spawn(next, values)
        yield_now()
        for act in (values.__next__, values.close, lambda: values.throw(Boom)):
            with pytest.raises(ValueError, match=r"already executing.*Lock"):
                act()
        queue.put("x")
        assert first.result() == "x"
        values.close()

    run(main)


def test_generator_shared_under_a_lock() -> None:
    def main() -> None:
        queue: Queue[Any] = Queue()
        values, lock = taken_from(queue), Lock()

        def take() -> Any:
            with lock:
                return next(values)

        fibers = [spawn(take) for _ in range(3)]
        yield_now()
        for item in "abc":
            queue.put(item)
        assert [fiber.result() for fiber in fibers] == ["a", "b", "c"]

    run(main)


def test_generator_on_another_thread_is_refused() -> None:
    values = numbers(3)
    assert in_thread(numbers(1).__next__) == 0, "made here, begun there"
    next(values)

    def elsewhere() -> None:
        for act in (values.__next__, values.close, lambda: values.send(1)):
            with pytest.raises(FiberError, match=r"another thread.*Queue"):
                act()

    in_thread(elsewhere)
    assert next(values) == 1


def test_emit_elsewhere_is_refused() -> None:
    def check() -> None:
        with pytest.raises(FiberError, match=r"@pyfiber\.generator"):
            emit(1)

    check()
    Fiber(check).switch()
    run(check)

    def body() -> None:
        Fiber(check).switch()
        spawn(check).join()
        emit("whole")

    assert run(list, FiberGenerator(body)) == ["whole"]


def test_generator_pulled_by_greenlets() -> None:
    values = numbers(4)
    assert next(values) == 0
    green = greenlet(lambda: (next(values), getcurrent().parent.switch("away"), next(values)))
    assert green.switch() == "away"
    assert next(values) == 2
    assert green.switch() == (1, (), 3)
    assert list(values) == []
    gone = weakref.ref(green)
    del green
    gc.collect()
    assert gone() is None


def test_generator_where_nobody_may_switch_is_refused_and_whole() -> None:
    def main() -> None:
        values = numbers(2)
        next(values)
        errors: Log = []

        def callback(_: Any) -> None:
            with pytest.raises(FiberError) as caught:
                next(values)
            errors.append(str(caught.value))

        fiber = spawn(int)
        fiber.add_done_callback(callback)
        fiber.join()
        assert len(errors) == 1
        assert next(values) == 1

    run(main)


def test_generator_pulled_in_the_midst_of_a_wait_is_refused_and_leaves_what_is_waited_for() -> None:
    """Who waits looks for the next one to run: a fiber that was cancelled, so its target dies."""

    class Target:
        def __call__(self) -> None:
            raise AssertionError

        def __del__(self) -> None:
            try:
                next(values)
            except FiberError as error:
                refusals.append(str(error))

    values = numbers(2)
    refusals: list[str] = []

    def main() -> weakref.ref[Fiber[None]]:
        fiber = spawn(Target())
        fiber.cancel()
        with pytest.raises(FiberCancelled):
            fiber.result()
        return weakref.ref(fiber)

    fiber = run(main)
    assert refusals
    gc.collect()
    assert fiber() is None
    assert list(values) == [0, 1]


def test_generator_consumed_by_c_code() -> None:
    assert sum(numbers(5)) == 10
    assert sorted(zip(numbers(3), numbers(3), strict=True)) == [(0, 0), (1, 1), (2, 2)]
    first, *rest = numbers(3)
    assert (first, rest) == (0, [1, 2])


def test_generator_whose_arguments_act_when_they_die() -> None:
    """The end of the body drops what it had; that may pull again, and finds it over."""

    class Acts:
        def __del__(self) -> None:
            log.append(list(values))

    log: Log = []

    def body(thing: Acts) -> None:
        emit(1)

    values = FiberGenerator(body, Acts())
    assert list(values) == [1]
    assert log == [[]]
    values = FiberGenerator(body, Acts())
    next(values)
    values.close()
    assert log == [[], []]


# Whose ------------------------------------------------------------------------------------------


def test_generator_has_a_context_and_locals_of_its_own() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    own = local()

    def body() -> None:
        emit((variable.get(), hasattr(own, "x")))
        variable.set("generator")
        emit(variable.get())

    variable.set("maker")
    own.x = 1
    values = FiberGenerator(body)
    variable.set("puller")
    assert next(values) == ("maker", False)
    assert next(values) == "generator"
    assert variable.get() == "puller"


def test_generator_runs_on_a_fiber_of_its_own() -> None:
    me = current()
    values = FiberGenerator(lambda: emit(current()))
    fiber = next(values)
    assert fiber is not me
    assert fiber.parent is None, "while it sleeps nobody is waiting for it"


def test_generator_keeps_nobody_alive_who_pulled() -> None:
    values = numbers(3)
    fiber = Fiber(lambda: (next(values), current().parent.switch(), None))
    fiber.switch()
    gone = weakref.ref(fiber)
    del fiber
    assert gone() is None
    assert next(values) == 1


def test_generator_last_reference_dropped_by_who_pulls() -> None:
    """The fiber that pulls may be kept by nobody else while it does."""
    log: Log = []
    main = current()

    def body() -> None:
        held.clear()
        emit("value")

    def puller() -> None:
        log.append(next(values))
        main.switch()

    values = FiberGenerator(body)
    held: list[Fiber[Any]] = [Fiber(puller)]
    held[0].switch()
    assert log == ["value"]


def test_generator_keeps_no_failure_and_no_arguments() -> None:
    class Thing(Exception):
        pass

    def fail(thing: Thing) -> None:
        emit(1)
        raise thing

    thing = Thing()
    gone = weakref.ref(thing)
    values = FiberGenerator(fail, thing)
    next(values)
    with pytest.raises(Thing):
        next(values)
    del thing
    gc.collect()
    assert gone() is None


def test_generator_in_a_cycle_is_collected() -> None:
    box: Log = []
    values = FiberGenerator(print, box)
    box.append(values)
    gone = weakref.ref(values)
    del values, box
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not BLOCKS_ARE_COUNTED, reason="memory blocks are not counted")
def test_generators_leave_nothing_behind() -> None:
    def exhaust() -> None:
        list(numbers(3))

    def close() -> None:
        with numbers(3) as values:
            next(values)

    def drop() -> None:
        next(numbers(3))

    def fail() -> None:
        values = echo()
        next(values)
        with pytest.raises(Boom):
            values.throw(Boom)

    for act in (exhaust, close, drop, fail):
        assert not grows(act, 200), act


# The decorator, the type --------------------------------------------------------------------------


def test_generator_decorates() -> None:
    assert numbers.__name__ == "numbers"
    assert numbers.__doc__ == "The numbers from 0 to n - 1."
    assert list(inspect.signature(numbers).parameters) == ["n", "log"]

    class Tree:
        @generator
        def leaves(self, *, n: int) -> None:
            for i in range(n):
                emit((self, i))

    tree = Tree()
    assert list(tree.leaves(n=2)) == [(tree, 0), (tree, 1)]


def test_generator_of_what_cannot_be_one_is_refused() -> None:
    def plain() -> Iterator[int]:
        yield 1

    async def coroutine() -> None:
        pass

    for what in (plain, coroutine):
        with pytest.raises(TypeError, match="calls emit"):
            generator(what)
    with pytest.raises(TypeError, match="not 'int'"):
        generator(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not 'int'"):
        FiberGenerator(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        FiberGenerator()  # type: ignore[call-arg]


def test_generator_with_wrong_arguments_fails_when_it_begins() -> None:
    values = numbers("three", log=[])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        next(values)


def test_generator_repr_tells_its_state() -> None:
    def body() -> None:
        emit(repr(values))

    values = FiberGenerator(body)
    assert " new at " in repr(values)
    assert "body' executing at " in next(values)
    assert " suspended at " in repr(values)
    values.close()
    assert repr(values).startswith("<pyfiber.FiberGenerator over at ")


def test_generator_is_no_value() -> None:
    values = numbers(1)
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            act(values)
    assert FiberGenerator[int].__origin__ is FiberGenerator  # type: ignore[attr-defined]
