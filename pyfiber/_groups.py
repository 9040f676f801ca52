"""gather(), race(), first_success() and pmap(): several functions or fibers at the same time.

Each uses a task group, so nothing keeps running afterwards: fibers whose results are not needed are
cancelled and waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

from pyfiber._engine import (
    Cancelled,
    Fiber,
    FiberError,
    FiberExit,
    Grain,
    TaskGroup,
    _check_function,
    _failed_with,
    _is_ours,
    _Latch,
    _load,
    _spawn_inside,
    _succeeded,
    check_cancelled,
    current,
    current_grain,
    shield,
)
from pyfiber._words import how_to_catch

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

T = TypeVar("T")
R = TypeVar("R")
Work: TypeAlias = Callable[[], T] | Fiber[T] | Grain[T]
Task: TypeAlias = Fiber[T] | Grain[T]

# The participants ---------------------------------------------------------------------------------


def _check(works: tuple[Any, ...], function: str) -> None:
    """Raise for arguments that cannot take part, before anything has been started."""
    for work in works:
        if not isinstance(work, (Fiber, Grain)):
            _check_function(f"{function}()", work)
        elif work is current() or work is current_grain():
            raise FiberError(f"{function}() cannot wait for the fiber that calls it")
        elif not (work.state == "new" or work.done() or _is_ours(work)):
            raise FiberError(
                f"{function}() cannot wait for {work!r}: it was not started on the scheduler that "
                "runs here"
            )


def _follow(fiber: Task[T]) -> T:
    """Represent a fiber or grain that was started before: end with it, be cancelled with it."""
    try:
        return fiber.result()
    except Cancelled as exc:
        fiber.cancel(exc.reason)
        with shield():
            fiber.join()
        raise


def _start(group: TaskGroup, work: Work[T], on_done: Callable[[Task[T]], object]) -> Task[T]:
    """Start a participant. Returns a fiber that represents `work` if that was started before.

    A grain that is in a pool counts as started.
    """
    task: Task[T]
    if isinstance(work, (Fiber, Grain)) and (work.state != "new" or getattr(work, "pool", None)):
        task = group._spawn_watched(partial(_follow, work), on_done)
    else:
        task = group._spawn_watched(work, on_done)
    return task


# gather, race, first_success ----------------------------------------------------------------------


@overload
def gather(*works: Work[T], return_exceptions: Literal[False] = False) -> list[T]: ...
@overload
def gather(*works: Work[T], return_exceptions: Literal[True]) -> list[T | Exception]: ...
@overload
def gather(*works: Work[T], return_exceptions: bool) -> list[T] | list[T | Exception]: ...
def gather(*works: Work[T], return_exceptions: bool = False) -> list[T] | list[T | Exception]:
    """Run all arguments at once; return their results, in the order of the arguments.

    Each argument is a function without parameters, a fiber or a grain, started or not. The first
    failure cancels the rest, and is raised when all have ended; other failures are logged. A fiber
    that is cancelled from elsewhere counts as failed, with FiberCancelled.

    With return_exceptions=True a failure cancels nothing: the list has the exception in place of
    the result. KeyboardInterrupt, SystemExit and others that are no Exception are raised all the
    same, and so is Cancelled if the caller is cancelled.

    Raises TypeError for other arguments, and FiberError for a fiber that cannot be waited for and
    outside of a run. Then nothing has been started.
    """
    _check(works, "gather")
    failed: list[Task[T]] = []

    def on_done(task: Task[T]) -> None:
        if group.cancel_called or _succeeded(task):
            return
        if not return_exceptions or not isinstance(_failed_with(task), Exception | None):
            failed.append(task)
            group.cancel("another one failed")

    with TaskGroup() as group:
        tasks = [_start(group, work, on_done) for work in works]
    if return_exceptions and not failed:
        return [_result_or_exception(task) for task in tasks]
    return [task.result() for task in failed or tasks]


def _result_or_exception(task: Task[T]) -> T | Exception:
    """The result or failure of an ended task; exception() adds no frame to the traceback."""
    try:
        failure = task.exception()
    except Exception as cancelled:  # FiberCancelled
        return cancelled
    return failure if isinstance(failure, Exception) else task.result()


def race(*works: Work[T]) -> T:
    """Run all arguments at once; return the result, or raise the exception, of the first to end.

    The others are cancelled and waited for. Arguments and errors are those of gather(); ValueError
    without arguments.
    """
    _check(works, "race")
    if not works:
        raise ValueError("race() needs at least one function, fiber or grain")
    ended: list[Task[T]] = []

    def on_done(fiber: Task[T]) -> None:
        if not group.cancel_called:
            ended.append(fiber)
            group.cancel("another one was faster")

    with TaskGroup() as group:
        for work in works:
            _start(group, work, on_done)
    return ended[0].result()


def first_success(*works: Work[T]) -> T:
    """Run all arguments at once; return the result of the first one that succeeds.

    The others are cancelled and waited for. If all fail, raises an ExceptionGroup of their
    exceptions in the order of the failures. Arguments and errors are those of gather(); ValueError
    without arguments.
    """
    _check(works, "first_success")
    if not works:
        raise ValueError("first_success() needs at least one function, fiber or grain")
    winners: list[Task[T]] = []
    failures: list[BaseException] = []

    def on_done(fiber: Task[T]) -> None:
        if group.cancel_called:
            return
        if _succeeded(fiber):
            winners.append(fiber)
            group.cancel("another one succeeded")
            return
        try:
            fiber.result()
        except BaseException as exc:
            failures.append(exc)

    with TaskGroup() as group:
        for work in works:
            _start(group, work, on_done)
    if winners:
        return winners[0].result()
    text = f"none of them succeeded; {how_to_catch(failures)}"
    raise BaseExceptionGroup(text, failures)


# pmap ---------------------------------------------------------------------------------------------


class _Stream(Generic[T, R]):
    """The state that the fibers of a pmap() share; the fibers must not keep the iterator alive.

    One fiber, the feeder, owns the group. Only the feeder takes items, because they may come from
    code that waits or enters cancel scopes, and starts a fiber for each. The feeder waits at `slot`
    for room, the user of the iterator waits at `news` for a result.
    """

    def __init__(self, fn: Callable[[T], R], items: Iterator[T], limit: int, ordered: bool):
        self.fn = fn
        self.items = items
        self.limit = limit
        self.ordered = ordered
        self.group = TaskGroup()
        self.slot = _Latch()
        self.news = _Latch()
        self.count = 0  # items taken from the iterable
        self.active = 0  # fibers at work
        self.over = False  # no more items are needed, or there are none
        self.hungry = False  # the user waits for a result
        self.ready: dict[int, Callable[[], R]] = {}  # if ordered: results by place
        self.arrived: deque[Callable[[], R]] = deque()  # if not: results in the order of arrival
        self.taken = 0  # if ordered: the place of the next result

    def full(self) -> bool:
        """Is there no room for an item? Results not taken count unless the user waits for one.

        So a slow user is not flooded with results.
        """
        waiting = 0 if self.hungry else len(self.ready) + len(self.arrived)
        return not self.over and self.active + waiting >= self.limit

    def feed(self) -> None:
        """The function of the feeder; the iterator raises its failure after all results."""
        failure: BaseException | None = None
        with self.group:
            try:
                self.start_all()
            except (Cancelled, FiberExit):
                raise
            except BaseException as exc:
                failure = exc
            finally:
                del self.items
                self.over = True
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # the traceback refers to this frame

    def start_all(self) -> None:
        """Take items, each when there is room, and start a fiber for each."""
        spawn, call = self.group._spawn_watched, self.fn
        for item in self.items:
            if self.over:
                return
            place = self.count
            self.count += 1
            self.active += 1
            spawn(partial(call, item), partial(self.ended, place))
            rings = self.slot.rings
            while self.full():
                self.slot.wait(None, "room for the next item of a pmap()", rings)
                rings = self.slot.rings

    def ended(self, place: int, fiber: Fiber[R]) -> None:
        """The done-callback of the fiber for the item at ``place``."""
        self.active -= 1
        if not _succeeded(fiber):
            self.over = True
        self.arrive(place, fiber.result)

    def arrive(self, place: int, result: Callable[[], R]) -> None:
        """Store a function that returns or raises a result; wake the feeder and the user."""
        if self.ordered:
            self.ready[place] = result
        else:
            self.arrived.append(result)
        self.slot.ring()
        self.news.ring()

    def take(self) -> Callable[[], R] | None:
        """The function that returns or raises the next result, if that has arrived."""
        if not self.ordered:
            return self.arrived.popleft() if self.arrived else None
        result = self.ready.pop(self.taken, None)
        if result is not None:
            self.taken += 1
        return result


def _is_in(group: TaskGroup) -> bool:
    """Does the running fiber belong to this group, or to one that a fiber of it has entered?"""
    fiber: Any = current()
    while fiber is not None:
        if fiber._group is group:
            return True
        fiber = fiber._group and fiber._group._parent_fiber
    return False


class ParallelMap(Iterator[R]):
    """The iterator that pmap() returns. close(), or the end of a with block, ends its fibers."""

    _feeder: Fiber[None] | None = None
    _closed = False

    def __init__(self, stream: _Stream[Any, R]) -> None:
        self._stream = stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> R:
        if self._feeder is None and not self._closed:
            self._begin()
        while not self._closed:
            rings = self._stream.news.rings
            result = self._stream.take()
            if result is not None:
                return self._give(result)
            if self._feeder_is_done():
                break
            self._wait(rings)
        raise StopIteration

    def _begin(self) -> None:
        self._feeder = _spawn_inside(self._stream.feed, self._stream.news.ring)

    def _feeder_is_done(self) -> bool:
        feeder = self._feeder
        if feeder is None or not feeder.done():
            return False
        self._closed = True
        check_cancelled()
        feeder.result()  # raises if the feeder failed or was cancelled
        return True

    def _wait(self, rings: int) -> None:
        """Wait for a result, unless one has arrived since the caller read ``rings``."""
        stream = self._stream
        stream.hungry = True
        try:
            stream.slot.ring()
            stream.news.wait(None, "the next result of a pmap()", rings)
        finally:
            stream.hungry = False

    def _give(self, result: Callable[[], R]) -> R:
        try:
            value = result()
        except BaseException as exc:
            self.close()
            check_cancelled()
            if isinstance(exc, _load("pyfiber._cancelled").FiberCancelled):
                self._raise_failure()  # of the feeder, which has cancelled the call
            if isinstance(exc, StopIteration):  # would look like the end of the results
                raise RuntimeError("a pmap() function raised StopIteration") from exc
            raise
        self._stream.slot.ring()
        return value

    def _raise_failure(self) -> None:
        if self._feeder is not None and _failed_with(self._feeder) is not None:
            self._feeder.result()

    def close(self) -> None:
        """Cancel the calls in flight and wait for them. Closing twice is fine.

        Raises FiberError in a call of the mapped function, which would wait for itself, and on
        another thread: then the calls are cancelled, but not waited for.
        """
        self._closed = True
        feeder = self._feeder
        if feeder is None or feeder.done():
            return
        group = self._stream.group
        group.cancel("the pmap() was closed")
        if _is_in(group):
            raise FiberError(
                "a pmap() was closed by a call of its own function, which cannot wait for its own "
                "end: its calls are cancelled, but not waited for"
            )
        with shield():
            feeder.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except FiberError:
            if not isinstance(exc, FiberExit):
                raise

    def __del__(self) -> None:
        """Close an iterator that is dropped before its end, after a `break`, say.

        Where no wait is allowed, in the garbage collector or on another thread, the fibers are only
        cancelled.
        """
        with suppress(FiberError):
            self.close()


def pmap(
    fn: Callable[[T], R], items: Iterable[T], *, limit: int, ordered: bool = True
) -> ParallelMap[R]:
    """Call fn(item) for every item, `limit` at a time, each in a fiber; iterate over the results.

    Nothing happens before the first result is requested. From then on `limit` calls are in flight
    whenever the user waits for a result. A slow user is not flooded: calls in flight and results
    not taken are then `limit` together. `items` may be endless, and may wait. Results come in the
    order of the items, or with ordered=False as they are done.

    A failure is raised in its place and ends the iteration, as do close(), the end of `with
    pmap(...) as results:`, and dropping the iterator: the calls in flight are cancelled and waited
    for.

    Raises TypeError and ValueError for wrong arguments, FiberError outside of a run.
    """
    _check_function("pmap()", fn)
    if not isinstance(limit, int):
        raise TypeError(f"limit must be an int, not '{type(limit).__name__}'")
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    return ParallelMap(_Stream(fn, iter(items), limit, ordered))
