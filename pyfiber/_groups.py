"""Several functions or fibers at once: all of them, the first of them, a stream of them.

Each is made of a task group, so that nothing is left running behind: whoever lost, or is not
needed any more, is cancelled and waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from pyfiber._engine import (
    Cancelled,
    Fiber,
    FiberError,
    FiberExit,
    TaskGroup,
    _is_ours,
    _spawn_inside,
    _succeeded,
    current,
    park,
    shield,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

T = TypeVar("T")
R = TypeVar("R")
Work: TypeAlias = Callable[[], T] | Fiber[T]

# Who takes part -----------------------------------------------------------------------------------


def _check(works: tuple[Any, ...], function: str) -> None:
    """Refuse what cannot take part before anything has been started."""
    for work in works:
        if not isinstance(work, Fiber):
            if not callable(work):
                kind = type(work).__name__
                raise TypeError(f"{function}() takes functions and fibers, not '{kind}'")
        elif work is current():
            raise FiberError(f"{function}() cannot wait for the fiber that calls it")
        elif not (work.state == "new" or work.done() or _is_ours(work)):
            raise FiberError(
                f"{function}() cannot wait for {work!r}: it was not started on the scheduler that "
                "runs here"
            )


def _follow(fiber: Fiber[T]) -> T:
    """Be a fiber that somebody else has started: end with it, cancel it when cancelled."""
    try:
        return fiber.result()
    except Cancelled as exc:
        fiber.cancel(exc.reason)
        with shield():
            fiber.join()
        raise


def _start(group: TaskGroup, work: Work[T], on_done: Callable[[Fiber[T]], object]) -> Fiber[T]:
    """Let one take part; the fiber returned is not `work` if that had been started before."""
    if isinstance(work, Fiber) and work.state != "new":
        return group._spawn_watched(partial(_follow, work), on_done)
    return group._spawn_watched(work, on_done)


# gather, race, first_success ----------------------------------------------------------------------


def gather(*works: Work[T]) -> list[T]:
    """Run all at once; their results, in the order of the arguments.

    Each is a function without parameters, or a fiber, started or not. The first failure cancels
    the rest, and is raised when all have ended; failures beside it are logged. A fiber that
    somebody else cancels has failed, with FiberCancelled.

    TypeError for anything else; FiberError for a fiber that cannot be waited for, and outside of
    a run. Then nothing has been started.
    """
    _check(works, "gather")
    failed: list[Fiber[T]] = []

    def on_done(fiber: Fiber[T]) -> None:
        if not group.cancel_called and not _succeeded(fiber):
            failed.append(fiber)
            group.cancel("another one failed")

    with TaskGroup() as group:
        fibers = [_start(group, work, on_done) for work in works]
    return [fiber.result() for fiber in failed or fibers]


def race(*works: Work[T]) -> T:
    """Run all at once; the result, or the exception, of the one that ends first.

    The others are cancelled and waited for. What each may be, and the errors, as with gather();
    ValueError if there is none.
    """
    _check(works, "race")
    if not works:
        raise ValueError("race() needs at least one function or fiber")
    ended: list[Fiber[T]] = []

    def on_done(fiber: Fiber[T]) -> None:
        if not group.cancel_called:
            ended.append(fiber)
            group.cancel("another one was faster")

    with TaskGroup() as group:
        for work in works:
            _start(group, work, on_done)
    return ended[0].result()


def first_success(*works: Work[T]) -> T:
    """Run all at once; the result of the first one that does not fail.

    The others are cancelled and waited for. If all fail: an ExceptionGroup of their exceptions,
    the first one first. What each may be, and the errors, as with gather(); ValueError if there
    is none.
    """
    _check(works, "first_success")
    if not works:
        raise ValueError("first_success() needs at least one function or fiber")
    winners: list[Fiber[T]] = []
    failures: list[BaseException] = []

    def on_done(fiber: Fiber[T]) -> None:
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
    raise BaseExceptionGroup("none of them succeeded", failures)


# pmap ---------------------------------------------------------------------------------------------

_NOTHING: Any = object()  # what a fiber of pmap() returns that found no item


class _Stream(Generic[T, R]):
    """What the fibers of a pmap() share; they must not keep its iterator alive.

    Each fiber takes one item and calls the function with it. Only one at a time is taking; when
    it has its item it starts the next fiber, if another one may be in flight. So items are taken
    in order, from fibers, and a source that waits holds up nobody.
    """

    def __init__(self, fn: Callable[[T], R], items: Iterator[T], limit: int, ordered: bool):
        self.fn = fn
        self.items = items
        self.limit = limit
        self.ordered = ordered
        self.group = TaskGroup()
        self.open = False  # the group has been entered
        self.count = 0  # fibers so far
        self.active = 0  # of them, not done
        self.taking = False  # one of them waits for its item
        self.exhausted = False  # no more items are wanted
        self.hungry = False  # the user of the iterator waits
        self.ready: dict[int, Fiber[R]] = {}  # ordered: by place
        self.arrived: deque[Fiber[R]] = deque()  # not ordered: as they came
        self.taken = 0

    def supervise(self) -> None:
        """The body of the fiber that owns the group; park() returns when all is over."""
        with self.group:
            self.open = True
            self.fill()
            park()

    def fill(self) -> None:
        """Start a fiber, if there may be one more.

        While nobody waits for results, those not taken count as well: a slow user is not flooded.
        """
        busy = self.active
        if not self.hungry:
            busy += len(self.ready) + len(self.arrived)
        if self.open and not (self.taking or self.exhausted) and busy < self.limit:
            place = self.count
            self.count += 1
            self.active += 1
            self.taking = True
            self.group._spawn_watched(self.work, partial(self.ended, place))

    def work(self) -> R:
        """The body of a fiber: one item."""
        try:
            item = next(self.items, _NOTHING)
        except BaseException:
            self.exhausted = True
            raise
        finally:
            self.taking = False
        if item is _NOTHING:
            self.exhausted = True
            return item  # type: ignore[no-any-return]
        self.fill()
        return self.fn(item)

    def ended(self, place: int, fiber: Fiber[R]) -> None:
        """One fiber is done."""
        self.active -= 1
        if not _succeeded(fiber):
            self.exhausted = True
        elif fiber.result() is _NOTHING:
            return
        if self.ordered:
            self.ready[place] = fiber
        else:
            self.arrived.append(fiber)
        self.fill()

    def take(self) -> Fiber[R] | None:
        """The next one that is done, if it is."""
        if not self.ordered:
            return self.arrived.popleft() if self.arrived else None
        fiber = self.ready.pop(self.taken, None)
        if fiber is not None:
            self.taken += 1
        return fiber


class ParallelMap(Iterator[R]):
    """The iterator that pmap() returns. close(), or the end of a with block, ends its fibers."""

    def __init__(self, stream: _Stream[Any, R]) -> None:
        self._stream = stream
        self._supervisor: Fiber[None] | None = None
        self._over = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> R:
        stream = self._stream
        while not self._over:
            fiber = stream.take()
            if fiber is not None:
                return self._give(fiber)
            if self._supervisor is None:
                self._begin()
            elif self._supervisor.done():
                self._over = True
                self._supervisor.result()  # raises: it was cancelled
            elif stream.exhausted and not stream.active:
                self.close()
                break
            self._wait()
        raise StopIteration

    def _begin(self) -> None:
        wake = self._stream.group._wake
        self._supervisor = _spawn_inside(self._stream.supervise)
        self._supervisor.add_done_callback(lambda fiber: wake())

    def _wait(self) -> None:
        self._stream.hungry = True
        try:
            self._stream.fill()
            self._stream.group._wait_child()
        finally:
            self._stream.hungry = False

    def _give(self, fiber: Fiber[R]) -> R:
        if _succeeded(fiber):
            self._stream.fill()
        else:
            self.close()
        return fiber.result()

    def close(self) -> None:
        """Cancel what is in flight and wait for it. Closing twice is fine."""
        self._over = True
        supervisor = self._supervisor
        if supervisor is None or supervisor.done():
            return
        self._stream.exhausted = True
        self._stream.group.cancel("the pmap() was closed")
        with shield():
            supervisor.join()

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
        """Dropped before its end, after a `break`, say.

        Where nobody may wait, inside of the collector or on another thread, the fibers are
        cancelled only.
        """
        with suppress(FiberError):
            self.close()


def pmap(
    fn: Callable[[T], R], items: Iterable[T], *, limit: int, ordered: bool = True
) -> ParallelMap[R]:
    """Call fn(item) for every item, `limit` at a time, each in a fiber; iterate over the results.

    Nothing happens before the first result is asked for. From then on `limit` calls are in
    flight whenever somebody waits for a result; who is slow to take results is not flooded: then
    calls in flight and results not taken are `limit` together. `items` may be without end, and
    may wait. Results come in the order of the items, or with ordered=False as they are done.

    A failure comes in its place, and ends the iteration: what is in flight is cancelled and waited
    for. The same do close(), the end of `with pmap(...) as results:`, and dropping the iterator.

    TypeError and ValueError for arguments that cannot be; FiberError outside of a run.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, not '{type(fn).__name__}'")
    if not isinstance(limit, int):
        raise TypeError(f"limit must be an int, not '{type(limit).__name__}'")
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    return ParallelMap(_Stream(fn, iter(items), limit, ordered))
