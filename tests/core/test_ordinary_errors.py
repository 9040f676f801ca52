"""Ordinary code on a fiber: exceptions, tracebacks, what is being handled, `finally`, `with`."""

# What is being handled is the very thing these tests look at.
# ruff: noqa: PT017

from __future__ import annotations

import contextlib
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from pyfiber import Fiber, current


def in_fiber(function: Any, *args: Any) -> Any:
    return Fiber(function, args).switch()


def names(error: BaseException) -> list[str]:
    return [entry.name for entry in traceback.extract_tb(error.__traceback__)]


# ------------------------------------------------------------------------ tracebacks


def test_traceback_shows_the_fibers_calls_below_the_switch() -> None:
    def inner() -> None:
        raise KeyError("inner")

    def outer() -> None:
        inner()

    with pytest.raises(KeyError) as caught:
        in_fiber(outer)
    assert names(caught.value)[-3:] == ["in_fiber", "outer", "inner"]


def test_traceback_of_a_caught_exception_starts_at_the_fibers_first_frame() -> None:
    def inner() -> None:
        raise KeyError

    def outer() -> list[str]:
        try:
            inner()
        except KeyError as error:
            return names(error)
        return []

    assert in_fiber(outer) == ["outer", "inner"]


def test_traceback_of_a_thrown_exception_shows_where_it_was_raised() -> None:
    main = current()

    def waiting() -> None:
        main.switch()

    def outer() -> list[str]:
        try:
            waiting()
        except KeyError as error:
            return names(error)
        return []

    fiber: Fiber[list[str]] = Fiber(outer)
    fiber.switch()
    assert fiber.throw(KeyError) == ["outer", "waiting"]


def test_traceback_line_numbers_are_right() -> None:
    def fail() -> None:
        number = 1
        raise KeyError(number)

    with pytest.raises(KeyError) as caught:
        in_fiber(fail)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.lineno == fail.__code__.co_firstlineno + 2
    assert last.line == "raise KeyError(number)"


def test_traceback_formats_through_several_fibers() -> None:
    def level(depth: int) -> None:
        if depth == 0:
            raise ValueError("bottom")
        in_fiber(level, depth - 1)

    with pytest.raises(ValueError, match="bottom") as caught:
        level(3)
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("in level") == 4
    assert text.endswith("ValueError: bottom\n")


# ------------------------------------------------------------------- context and cause


def test_context_of_an_exception_raised_while_handling_in_the_fiber() -> None:
    def work() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904

    with pytest.raises(ValueError, match="second") as caught:
        in_fiber(work)
    assert isinstance(caught.value.__context__, KeyError)
    assert not caught.value.__suppress_context__


def test_cause_is_kept() -> None:
    first = KeyError("first")

    def work() -> None:
        raise ValueError("second") from first

    with pytest.raises(ValueError, match="second") as caught:
        in_fiber(work)
    assert caught.value.__cause__ is first
    assert caught.value.__suppress_context__


def test_context_is_not_what_another_fiber_handles() -> None:
    main = current()

    def handling() -> None:
        try:
            raise KeyError("handled elsewhere")
        except KeyError:
            main.switch()

    other: Fiber[None] = Fiber(handling)
    other.switch()
    with pytest.raises(ValueError, match="here") as caught:
        raise ValueError("here")
    assert caught.value.__context__ is None
    other.switch()


def test_exception_thrown_into_a_handler_gets_its_context() -> None:
    main = current()

    def work() -> BaseException:
        try:
            try:
                raise KeyError("handled")
            except KeyError:
                main.switch()
        except ValueError as error:
            return error
        raise AssertionError

    fiber: Fiber[Any] = Fiber(work)
    fiber.switch()
    error = fiber.throw(ValueError("thrown"))
    assert isinstance(error.__context__, KeyError)


def test_exception_out_of_a_fiber_into_a_handler_gets_its_context() -> None:
    def fail() -> None:
        raise ValueError("from the fiber")

    try:
        try:
            raise KeyError("handled")
        except KeyError:
            in_fiber(fail)
    except ValueError as error:
        assert isinstance(error.__context__, KeyError)
    else:
        pytest.fail("nothing raised")


def test_exception_groups_pass_through() -> None:
    def fail() -> None:
        raise ExceptionGroup("both", [KeyError(1), ValueError(2)])

    caught = []
    try:
        in_fiber(fail)
    except* KeyError as group:
        caught.append(group)
    except* ValueError as group:
        caught.append(group)
    assert len(caught) == 2


def test_notes_are_kept() -> None:
    def fail() -> None:
        error = KeyError()
        error.add_note("seen on a fiber")
        raise error

    with pytest.raises(KeyError) as caught:
        in_fiber(fail)
    assert caught.value.__notes__ == ["seen on a fiber"]


# --------------------------------------------------------------- what is being handled


def test_fresh_fiber_handles_no_exception() -> None:
    try:
        raise KeyError
    except KeyError:
        assert in_fiber(sys.exc_info) == (None, None, None)
        assert isinstance(sys.exc_info()[1], KeyError)


def test_handled_exception_is_the_fibers_own() -> None:
    main = current()

    def work(number: int) -> list[Any]:
        seen = []
        try:
            raise KeyError(number)
        except KeyError:
            for _ in range(3):
                main.switch()
                seen.append(sys.exc_info()[1].args)  # type: ignore[union-attr]
        main.switch()
        seen.append(sys.exc_info()[1])
        return seen

    fibers = [Fiber(work, (n,)) for n in range(3)]
    for _ in range(4):
        for fiber in fibers:
            fiber.switch()
            assert sys.exc_info() == (None, None, None)
    assert [fiber.switch() for fiber in fibers] == [[(n,), (n,), (n,), None] for n in range(3)]


def test_handled_exception_of_the_caller_is_kept_over_a_switch() -> None:
    main = current()

    def work() -> None:
        try:
            raise ValueError
        except ValueError:
            main.switch()

    fiber: Fiber[None] = Fiber(work)
    try:
        raise KeyError("mine")
    except KeyError as error:
        fiber.switch()
        assert sys.exc_info()[1] is error
        fiber.switch()
        assert sys.exc_info()[1] is error
    assert sys.exc_info()[1] is None


def test_bare_raise_after_switches_raises_the_same_exception() -> None:
    main = current()

    def work() -> None:
        try:
            raise KeyError("again")
        except KeyError:
            main.switch()
            raise

    fiber: Fiber[None] = Fiber(work)
    try:
        raise ValueError("other")
    except ValueError:
        fiber.switch()
    with pytest.raises(KeyError, match="again"):
        fiber.switch()


def test_nested_handlers_are_kept_in_order() -> None:
    main = current()

    def work() -> list[str]:
        seen = []
        try:
            raise KeyError("outer")
        except KeyError:
            try:
                main.switch()
                raise ValueError("inner")
            except ValueError:
                main.switch()
                seen.append(repr(sys.exc_info()[1]))
            main.switch()
            seen.append(repr(sys.exc_info()[1]))
        return seen

    fiber: Fiber[list[str]] = Fiber(work)
    for _ in range(3):
        try:
            raise OSError
        except OSError:
            fiber.switch()
    assert fiber.switch() == ["ValueError('inner')", "KeyError('outer')"]


def test_generators_handled_exception_is_kept_apart() -> None:
    main = current()

    def generate() -> Iterator[int]:
        try:
            raise KeyError
        except KeyError:
            main.switch()
            yield 1
            main.switch()
            assert isinstance(sys.exc_info()[1], KeyError)
            yield 2

    def work() -> list[int]:
        assert sys.exc_info()[1] is None
        found = []
        for number in generate():
            assert sys.exc_info()[1] is None
            main.switch()
            found.append(number)
        return found

    fiber: Fiber[list[int]] = Fiber(work)
    try:
        raise ValueError
    except ValueError:
        for _ in range(4):
            fiber.switch()
            assert isinstance(sys.exc_info()[1], ValueError)
        assert fiber.switch() == [1, 2]


def test_traceback_print_exc_inside_a_fiber() -> None:
    def work() -> str:
        try:
            raise KeyError("shown")
        except KeyError:
            return traceback.format_exc()

    assert "KeyError: 'shown'" in in_fiber(work)


# ---------------------------------------------------------------------- finally, with


def test_finally_runs_when_the_function_returns() -> None:
    main = current()
    log = []

    def work() -> str:
        try:
            main.switch()
            return "result"
        finally:
            main.switch()
            log.append("finally")

    fiber: Fiber[str] = Fiber(work)
    fiber.switch()
    fiber.switch()
    assert not log
    assert fiber.switch() == "result"
    assert log == ["finally"]


def test_finally_may_switch_while_an_exception_is_in_flight() -> None:
    main = current()

    def work() -> None:
        try:
            raise KeyError("in flight")
        finally:
            main.switch()

    fiber: Fiber[None] = Fiber(work)
    fiber.switch()
    with pytest.raises(KeyError, match="in flight"):
        fiber.switch()


def test_with_may_switch_on_entry_inside_and_on_exit() -> None:
    main = current()
    log = []

    class Managed:
        def __enter__(self) -> str:
            main.switch("enter")
            return "value"

        def __exit__(self, *exc: object) -> bool:
            main.switch("exit")
            log.append(exc[0])
            return True

    def work() -> str:
        with Managed() as value:
            main.switch(value)
            raise KeyError
        return "after"

    fiber: Fiber[str] = Fiber(work)
    assert [fiber.switch() for _ in range(4)] == ["enter", "value", "exit", "after"]
    assert log == [KeyError]


def test_contextmanager_and_exit_stack_over_switches() -> None:
    main = current()
    log = []

    @contextlib.contextmanager
    def managed(name: str) -> Iterator[str]:
        main.switch(f"enter {name}")
        try:
            yield name
        finally:
            main.switch(f"exit {name}")
            log.append(name)

    def work() -> None:
        with contextlib.ExitStack() as stack:
            for name in "ab":
                stack.enter_context(managed(name))
            raise KeyError

    fiber: Fiber[None] = Fiber(work)
    assert [fiber.switch() for _ in range(4)] == ["enter a", "enter b", "exit b", "exit a"]
    with pytest.raises(KeyError):
        fiber.switch()
    assert log == ["b", "a"]


def test_return_in_finally_swallows_a_thrown_exception() -> None:
    main = current()

    def work() -> str:
        with contextlib.suppress(KeyError):
            main.switch()
        return "swallowed"

    fiber: Fiber[str] = Fiber(work)
    fiber.switch()
    assert fiber.throw(KeyError) == "swallowed"


def test_warnings_name_the_line_in_the_fiber() -> None:
    def work() -> None:
        warnings.warn("from a fiber", stacklevel=1)

    with pytest.warns(UserWarning, match="from a fiber") as seen:
        in_fiber(work)
    assert seen[0].filename == __file__
    assert seen[0].lineno == work.__code__.co_firstlineno + 1


def test_warning_with_a_stacklevel_beyond_the_fibers_stack() -> None:
    def work() -> None:
        warnings.warn("deep", stacklevel=50)

    with pytest.warns(UserWarning, match="deep"):
        in_fiber(work)


def test_sys_exception_follows_the_fiber() -> None:
    main = current()

    def work() -> bool:
        try:
            raise KeyError
        except KeyError as error:
            main.switch()
            return sys.exception() is error

    fiber: Fiber[bool] = Fiber(work)
    fiber.switch()
    assert sys.exception() is None
    assert fiber.switch() is True


def test_system_exit_in_a_fiber_reaches_the_main_one() -> None:
    with pytest.raises(SystemExit) as caught:
        in_fiber(sys.exit, 3)
    assert caught.value.code == 3


def test_stop_iteration_out_of_a_fiber_stays_what_it_is() -> None:
    def work() -> None:
        raise StopIteration(5)

    with pytest.raises(StopIteration) as caught:
        in_fiber(work)
    assert caught.value.value == 5


def test_assertion_rewriting_works_in_a_fiber() -> None:
    def work() -> None:
        left, right = [1, 2], [1, 3]
        assert left == right

    with pytest.raises(AssertionError, match=r"\[1, 2\] == \[1, 3\]"):
        in_fiber(work)
