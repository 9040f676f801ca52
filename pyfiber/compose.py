"""Descriptions of work: values that say what to do, combined before any of it is done.

    >>> from pyfiber.compose import blocking, delay, race, succeed
    >>> greet = delay(0.001).combine(succeed("hello"))
    >>> loud = greet.map(str.upper)
    >>> blocking(race(loud, delay(10)))
    'HELLO'

A ``Work`` is lazy and can be used as often as you like: nothing happens before it is passed to
``blocking()``, or ``perform()`` in a fiber, and all of it happens again when it is passed once
more. A work ends as a fiber does: with a value, with an exception, or cancelled. An exception skips
every step that is made for values; cancellation skips everything. Parts that run at the same time
are fibers, and a cancelled work cancels its parts and waits for them.

One loop performs the whole description, so chains of any length need no stack.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast, overload

import pyfiber
from pyfiber import _engine
from pyfiber._engine import Fiber, _load
from pyfiber._outcome import Failed, Ok, Outcome

__all__ = [
    "Work",
    "blocking",
    "call",
    "delay",
    "describe",
    "fail",
    "of_future",
    "parallel",
    "perform",
    "race",
    "run_parallel",
    "succeed",
    "unfold",
]

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")

# Kinds of nodes, in the order in which the loop tests them: the value of `Work._kind`.
_VALUE = 0  # `_value` is the result
_BIND = 1  # perform `_first`, then the work that `_then` makes of its value
_LEAF = 2  # `_run()` performs it
_FRAME = 3  # perform `_first`, then call `_value_of` or `_error_of`


class Work(Generic[T_co]):
    """A description of something to do, with a result.  Made by this module's functions."""

    __slots__ = ()
    _kind: int

    def map(self, fn: Callable[[T_co], U]) -> Work[U]:
        """This work, with the result ``fn(value)`` in place of ``value``."""
        return _Map(self, _callable(fn, "map"))

    def bind(self, fn: Callable[[T_co], Work[U]]) -> Work[U]:
        """This work, then the work that ``fn(value)`` returns."""
        if not callable(fn):
            _callable(fn, "bind")
        return _Bind(self, fn)

    def combine(self, other: Work[U]) -> Work[U]:
        """This work, then ``other``; the result of this one is dropped."""
        return _Combine(self, _work(other, "combine"))

    def apply(self: Work[Callable[[U], V]], argument: Work[U]) -> Work[V]:
        """This work, whose result is a function, and a call of that with ``argument``'s result."""
        _work(argument, "apply")
        return self.bind(lambda fn: argument.map(fn))

    def join(self: Work[Work[U]]) -> Work[U]:
        """This work, then the work that is its result."""
        return self.bind(lambda inner: inner)

    def map_outcome(self, fn: Callable[[Outcome[T_co]], Outcome[U]]) -> Work[U]:
        """This work, with the outcome ``fn(outcome)``, for ``Ok`` or ``Failed`` with an Exception.

        ``fn`` is not called for a cancellation or KeyboardInterrupt, which cannot be changed.
        """
        return _MapOutcome(self, _callable(fn, "map_outcome"))

    def catch(
        self,
        handler: Callable[[Any], Work[U]],
        *types: type[BaseException],
    ) -> Work[T_co | U]:
        """This work; if it raises one of ``types`` (default: Exception), then ``handler(exc)``.

        The handler returns a work.
        """
        for kind in types:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError(f"catch() takes exception classes, not {kind!r}")
        return _Catch(self, _callable(handler, "catch"), types or (Exception,))

    def timeout(self, seconds: float) -> Work[T_co]:
        """A race of this work with a delay that fails with TimeoutError after ``seconds``."""
        late = delay(seconds).combine(fail(TimeoutError(f"not done after {seconds} seconds")))
        return race(self, late)

    def traced(self, name: str, sink: Callable[[str], object] = print) -> Work[T_co]:
        """This work; ``sink`` is called with a line of text when it begins and when it ends."""
        return _Traced(self, str(name), _callable(sink, "traced"))

    def timed(self) -> Work[tuple[float, T_co]]:
        """This work, with the result ``(seconds, value)``, by the scheduler's clock."""
        return _Timed(self)

    def start_child(self) -> Work[Work[T_co]]:
        """Start this work in a fiber, as a child; the result is a work that waits for the child.

        A child ends no later than the description that has started it, which waits for its
        children, and cancels them when it fails or is cancelled.
        """
        return _StartChild(self)

    def on_thread_pool(self) -> Work[T_co]:
        """This work, performed by a thread of the pool that ``to_thread()`` uses.

        The thread has a separate scheduler, so it can perform every work. A cancellation cancels
        the work on the thread, and waits for its end.
        """
        return _Elsewhere(self, new_thread=False)

    def on_new_thread(self) -> Work[T_co]:
        """As ``on_thread_pool()``, but on a new thread that ends with the work."""
        return _Elsewhere(self, new_thread=True)


def _callable(fn: Any, method: str) -> Any:
    if not callable(fn):
        raise TypeError(f"{method}() takes a function, not {type(fn).__name__!r}")
    return fn


def _work(work: Any, method: str) -> Any:
    if not isinstance(work, Work):
        raise TypeError(f"{method}() takes a Work, not {type(work).__name__!r}")
    return work


# --- leaves


class _Succeed(Work[T]):
    __slots__ = ("_value",)
    _kind = _VALUE

    def __init__(self, value: T) -> None:
        self._value = value

    def __repr__(self) -> str:
        return f"succeed({self._value!r})"


class _Leaf(Work[T]):
    __slots__ = ()
    _kind = _LEAF

    def _run(self, scope: _Children) -> T:
        raise NotImplementedError


class _Fail(_Leaf[NoReturn]):
    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def _run(self, scope: _Children) -> NoReturn:
        # The next performance must not find the traceback of this one.
        raise self._error.with_traceback(None)

    def __repr__(self) -> str:
        return f"fail({self._error!r})"


class _Call(_Leaf[T]):
    __slots__ = ("_args", "_fn", "_kwargs")

    def __init__(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._fn = fn
        self._args = args
        self._kwargs = kwargs

    def _run(self, scope: _Children) -> T:
        return self._fn(*self._args, **self._kwargs)

    def __repr__(self) -> str:
        return f"call({getattr(self._fn, '__qualname__', self._fn)}, ...)"


class _OfFuture(_Leaf[T]):
    __slots__ = ("_future",)

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def _run(self, scope: _Children) -> T:
        return pyfiber.await_future(self._future)


class _Parallel(_Leaf[list[T]]):
    __slots__ = ("_works",)

    def __init__(self, works: tuple[Work[T], ...]) -> None:
        self._works = works

    def _run(self, scope: _Children) -> list[T]:
        return pyfiber.gather(*[partial(perform, work) for work in self._works])


class _Race(_Leaf[T]):
    __slots__ = ("_works",)

    def __init__(self, works: tuple[Work[T], ...]) -> None:
        self._works = works

    def _run(self, scope: _Children) -> T:
        return pyfiber.race(*[partial(perform, work) for work in self._works])


class _RunParallel(_Leaf[list[T]]):
    __slots__ = ("_limit", "_works")

    def __init__(self, limit: int, works: Iterable[Work[T]]) -> None:
        self._limit = limit
        self._works = works

    def _run(self, scope: _Children) -> list[T]:
        results: dict[int, T] = {}
        # Not ordered, so that a failure is raised when it happens, and not when its turn comes.
        with pyfiber.pmap(
            _perform_numbered, enumerate(self._works), limit=self._limit, ordered=False
        ) as ends:
            results.update(ends)
        return [results[number] for number in range(len(results))]


class _StartChild(_Leaf[Work[T]]):
    __slots__ = ("_child",)

    def __init__(self, child: Work[T]) -> None:
        self._child = child

    def _run(self, scope: _Children) -> Work[T]:
        return _Call(scope.start(self._child).result, (), {})


class _Elsewhere(_Leaf[T]):
    __slots__ = ("_inner", "_new_thread")

    def __init__(self, inner: Work[T], *, new_thread: bool) -> None:
        self._inner = inner
        self._new_thread = new_thread

    def _run(self, scope: _Children) -> T:
        _load("pyfiber._remote")
        from pyfiber._remote import perform_elsewhere

        return perform_elsewhere(partial(perform, self._inner), new_thread=self._new_thread)


class _Unfold(_Leaf[list[T]]):
    __slots__ = ("_seed", "_step")

    def __init__(self, step: Callable[[Any], Work[tuple[Any, T] | None]], seed: Any) -> None:
        self._step = step
        self._seed = seed

    def _run(self, scope: _Children) -> list[T]:
        items: list[T] = []
        state = self._seed
        while True:
            step = _interpret(_made(self._step(state), self._step), scope)
            if step is None:
                return items
            state, item = step
            items.append(item)


# --- nodes with parts: what remains to do when the first part is done


class _Bind(Work[U]):
    __slots__ = ("_first", "_then")
    _kind = _BIND

    def __init__(self, first: Work[Any], then: Callable[[Any], Work[U]]) -> None:
        self._first = first
        self._then = then


class _Frame(Work[U]):
    """``_value_of`` and ``_error_of`` return (True, value), or (False, the next work)."""

    __slots__ = ("_first",)
    _kind = _FRAME
    _first: Work[Any]

    def _begin(self) -> _Frame[U]:
        """Return what goes on the loop's stack: this node, or a record of this one performance."""
        return self

    def _value_of(self, value: Any) -> tuple[bool, Any]:
        return True, value

    def _error_of(self, error: BaseException) -> tuple[bool, Any]:
        raise error


class _Map(_Frame[U]):
    __slots__ = ("_fn",)

    def __init__(self, first: Work[Any], fn: Callable[[Any], U]) -> None:
        self._first = first
        self._fn = fn

    def _value_of(self, value: Any) -> tuple[bool, Any]:
        return True, self._fn(value)


class _Combine(_Frame[U]):
    __slots__ = ("_second",)

    def __init__(self, first: Work[Any], second: Work[U]) -> None:
        self._first = first
        self._second = second

    def _value_of(self, value: Any) -> tuple[bool, Any]:
        return False, self._second


class _Catch(_Frame[U]):
    __slots__ = ("_handler", "_types")

    def __init__(
        self,
        first: Work[Any],
        handler: Callable[[Any], Work[U]],
        types: tuple[type[BaseException], ...],
    ) -> None:
        self._first = first
        self._handler = handler
        self._types = types

    def _error_of(self, error: BaseException) -> tuple[bool, Any]:
        if not isinstance(error, self._types):
            raise error
        return False, _made(self._handler(error), self._handler)


class _MapOutcome(_Frame[U]):
    __slots__ = ("_fn",)

    def __init__(self, first: Work[Any], fn: Callable[[Outcome[Any]], Outcome[U]]) -> None:
        self._first = first
        self._fn = fn

    def _value_of(self, value: Any) -> tuple[bool, Any]:
        return self._mapped(Ok(value))

    def _error_of(self, error: BaseException) -> tuple[bool, Any]:
        if not isinstance(error, Exception):
            raise error
        return self._mapped(Failed(error))

    def _mapped(self, outcome: Outcome[Any]) -> tuple[bool, Any]:
        match self._fn(outcome):
            case Ok(value):
                return True, value
            case Failed(exception):
                raise exception
            case other:
                raise TypeError(f"map_outcome's function must return Ok or Failed, not {other!r}")


class _Traced(_Frame[U]):
    __slots__ = ("_name", "_sink")

    def __init__(self, first: Work[U], name: str, sink: Callable[[str], object]) -> None:
        self._first = first
        self._name = name
        self._sink = sink

    def _begin(self) -> _Frame[U]:
        self._sink(f"{self._name} - begins")
        return self

    def _value_of(self, value: Any) -> tuple[bool, Any]:
        self._sink(f"{self._name} - result: {value!r}")
        return True, value

    def _error_of(self, error: BaseException) -> tuple[bool, Any]:
        how = "cancelled" if isinstance(error, _engine.Cancelled) else "failed"
        self._sink(f"{self._name} - {how}: {error!r}")
        raise error


class _Timed(_Frame[tuple[float, U]]):
    __slots__ = ("_since",)

    def __init__(self, first: Work[U], since: float = 0) -> None:
        self._first = first
        self._since = since

    def _begin(self) -> _Frame[tuple[float, U]]:
        return _Timed(self._first, _engine.now())

    def _value_of(self, value: Any) -> tuple[bool, Any]:
        return True, (_engine.now() - self._since, value)


class _Do(_Frame[U]):
    """What a function made by ``describe`` returns. Each performance makes a new generator."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Generator[Work[Any], Any, U]]) -> None:
        self._make = make
        self._first = _NOTHING

    def _begin(self) -> _Frame[U]:
        return _Doing(self._make(), _NOTHING)


class _Doing(_Frame[U]):
    """A generator that waits for the value of the work that it has yielded."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Generator[Work[Any], Any, U], first: Work[Any]) -> None:
        self._steps = steps
        self._first = first

    def _value_of(self, value: Any) -> tuple[bool, Any]:
        return self._next(self._steps.send, value)

    def _error_of(self, error: BaseException) -> tuple[bool, Any]:
        return self._next(self._steps.throw, error)

    def _next(self, resume: Callable[[Any], Work[Any]], value: Any) -> tuple[bool, Any]:
        try:
            work = resume(value)
        except StopIteration as stop:
            return True, stop.value
        if not isinstance(work, Work):
            work = _Fail(TypeError(f"a description yields works, not {work!r}"))
        return False, _Doing(self._steps, work)


# --- the loop


class _Children:
    """Fibers that a description has started and has not waited for."""

    __slots__ = ("fibers",)

    def __init__(self) -> None:
        self.fibers: list[Fiber[Any]] = []

    def start(self, work: Work[T]) -> Fiber[T]:
        fiber = _engine.spawn(perform, work)
        self.fibers.append(fiber)
        return fiber

    def wait(self) -> None:
        for fiber in self.fibers:
            fiber.join()

    def cancel(self, reason: BaseException) -> None:
        for fiber in self.fibers:
            fiber.cancel(f"the work that started it ended with {type(reason).__name__}")
        with pyfiber.shield():
            self.wait()


def _made(work: Any, by: Any) -> Any:
    """Return ``work``, which the user's function ``by`` returned; TypeError unless it is a Work."""
    if not isinstance(work, Work):
        name = getattr(by, "__qualname__", by)
        raise TypeError(f"{name} must return a Work, not {type(work).__name__!r}")
    return work


def _interpret(work: Any, scope: _Children) -> Any:
    """Perform ``work``: go down to its innermost first part, then do the rest on the way up."""
    frames: list[Any] = []
    push, pop, check_cancelled = frames.append, frames.pop, _engine.check_cancelled
    while True:
        try:
            while (kind := work._kind) != _VALUE:
                if kind == _BIND:
                    push(work)
                    work = work._first
                elif kind == _LEAF:
                    value = work._run(scope)
                    break
                else:
                    frame = work._begin()
                    push(frame)
                    work = work._first
            else:
                value = work._value
            while True:
                if not frames:
                    return value
                frame = pop()
                if frame._kind == _BIND:
                    check_cancelled()
                    work = frame._then(value)
                    if not isinstance(work, Work):
                        _made(work, frame._then)
                    break
                done, value = frame._value_of(value)
                if not done:
                    check_cancelled()
                    work = value
                    break
        except BaseException as exc:
            work = _unwound(exc, frames)


def _unwound(error: BaseException, frames: list[Any]) -> Work[Any]:
    """How to continue after an exception; raises it if no frame handles it."""
    while frames:
        frame = frames.pop()
        if frame._kind == _BIND:
            continue
        try:
            done, value = frame._error_of(error)
        except BaseException as exc:
            if exc is not error and exc.__context__ is None:
                exc.__context__ = error
            error = exc
        else:
            return _Succeed(value) if done else value
    raise error


def perform(work: Work[T]) -> T:
    """Perform a work in this fiber; return its result, or raise. FiberError outside of a run."""
    _engine.check_cancelled()
    children = _Children()
    try:
        value = _interpret(_work(work, "perform"), children)
        children.wait()
    except BaseException as exc:
        if children.fibers:
            children.cancel(exc)
        raise
    return cast("T", value)


def _perform_numbered(numbered: tuple[int, Work[T]]) -> tuple[int, T]:
    number, work = numbered
    return number, perform(work)


def blocking(work: Work[T]) -> T:
    """Perform a work from ordinary code, in a new run if none is active; return its result."""
    _work(work, "blocking")
    if _engine._running_scheduler() is not None:
        return perform(work)
    return _engine.run(perform, work)


# --- functions that make descriptions


def succeed(value: T) -> Work[T]:
    """A work with the result ``value``."""
    return _Succeed(value)


_NOTHING: Work[None] = _Succeed(None)


def fail(error: BaseException | type[BaseException]) -> Work[NoReturn]:
    """A work that raises ``error``, an exception or a class of exceptions."""
    if isinstance(error, type) and issubclass(error, BaseException):
        error = error()
    if not isinstance(error, BaseException):
        raise TypeError(f"fail() takes an exception, not {error!r}")
    return _Fail(error)


@overload
def delay(seconds: float) -> Work[None]: ...
@overload
def delay(seconds: float, value: T) -> Work[T]: ...
def delay(seconds: float, value: Any = None) -> Work[Any]:
    """A work with the result ``value`` after ``seconds``. ValueError if these are negative."""
    if not seconds >= 0:
        raise ValueError(f"a delay takes a number of seconds that is not negative, not {seconds!r}")
    waiting = _Call(_engine.sleep, (seconds,), {})
    return waiting if value is None else _Combine(waiting, _Succeed(value))


def call(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Work[T]:
    """A work that calls ``fn(*args, **kwargs)`` each time it is performed; ``fn`` may wait."""
    return _Call(_callable(fn, "call"), args, kwargs)


def of_future(future: Future[T]) -> Work[T]:
    """A work that waits for a ``concurrent.futures.Future``, which any thread may complete."""
    if not isinstance(future, Future):
        raise TypeError(f"of_future() takes a Future, not {type(future).__name__!r}")
    return _OfFuture(future)


def parallel(*works: Work[T]) -> Work[list[T]]:
    """All works at the same time; the results are in order. The first failure cancels the rest."""
    for work in works:
        _work(work, "parallel")
    return _Parallel(works)


def race(*works: Work[T]) -> Work[T]:
    """All works at the same time; ends as the first one to end. The others are cancelled."""
    for work in works:
        _work(work, "race")
    if not works:
        raise ValueError("race() needs at least one work")
    return _Race(works)


def run_parallel(limit: int, works: Iterable[Work[T]]) -> Work[list[T]]:
    """All works, always ``limit`` at a time until they run out; the results are in order.

    The first failure cancels the works in progress, and no more begin. If ``works`` is an iterator,
    this can be performed only once.
    """
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise TypeError(f"limit must be an int, not {type(limit).__name__!r}")
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    return _RunParallel(limit, works)


def unfold(step: Callable[[U], Work[tuple[U, T] | None]], seed: U) -> Work[list[T]]:
    """A work with the list of the items that ``step`` makes, one after the other.

    ``step(state)`` returns a work with the result ``(next state, item)``, or None at the end; the
    first state is ``seed``.
    """
    return _Unfold(_callable(step, "unfold"), seed)


def describe(fn: Callable[P, Generator[Work[Any], Any, T]]) -> Callable[P, Work[T]]:
    """Make a generator function into one that returns a work: ``value = yield work`` performs one.

    Each performance calls the function afresh, with the same arguments.
    """

    @wraps(fn)
    def described(*args: P.args, **kwargs: P.kwargs) -> Work[T]:
        return _Do(lambda: fn(*args, **kwargs))

    return described
