"""The standard module ``selectors``, whose waits park the running fiber; ``select()``, ``poll()``.

Every public name of the standard module is here, and replacements for ``select.select``,
``select.poll`` and ``select.epoll``. A wait in a fiber of a run parks that fiber, and others run;
anywhere else it works as in the standard library. A call with a timeout of 0 that finds nothing
ready lets other fibers run, too, because programs make such calls in loops.
"""

from __future__ import annotations

import contextlib
import math
import select as _select
import selectors as _standard
import sys
from collections.abc import Callable, Iterable
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, SelectorKey
from typing import TYPE_CHECKING, Any, TypeVar

from pyfiber._engine import (
    _may_park,
    _network,
    _wait_any,
    now,
    wait_readable,
    yield_now,
)
from pyfiber._engine import _outside as _theirs  # the standard function, also after patch()
from pyfiber._memory import (
    ERROR,
    HUNG_UP,
    READABLE,
    WRITABLE,
    end_of,
    enter_in_epoll,
    in_epoll,
    is_in_memory,
    polled,
)
from pyfiber._memory import ready as ready_in_memory

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

__all__ = ["EVENT_READ", "EVENT_WRITE", "BaseSelector", "DefaultSelector", "SelectorKey", "select"]
__all__ += [
    name
    for name in (
        "SelectSelector",
        "PollSelector",
        "EpollSelector",
        "DevpollSelector",
        "KqueueSelector",
    )
    if hasattr(_standard, name)
]
__all__ += [name for name in ("poll", "epoll") if hasattr(_select, name)]

R = TypeVar("R")

#: Has the system epoll or kqueue: one descriptor that is ready when one of many others is?
_HAS_ONE_FOR_MANY = hasattr(_select, "epoll") or hasattr(_select, "kqueue")


def _ask_until(
    ask: Callable[[], R], wait: Callable[[float | None], None], timeout: float | None
) -> R:
    """Call ``ask``, then wait and call it again, until its answer is not empty or time is over."""
    if timeout is not None and math.isnan(timeout):
        raise ValueError("timeout must not be NaN")
    end = math.inf if timeout is None else now() + timeout
    found = ask()
    if not found and timeout is not None and timeout <= 0:
        yield_now()
        return ask()
    while not found and (left := end - now()) > 0:
        try:
            wait(None if left == math.inf else left)
        except TimeoutError:
            return ask()
        found = ask()
    return found


class _Many:
    """What a fiber waits for: descriptors, and sockets in memory."""

    def __init__(self) -> None:
        #: One descriptor of the system for many, made when the first of them is added.
        self.poller: Any = None
        self.reading: list[Any] = []
        self.writing: list[Any] = []

    def __enter__(self) -> _Many:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.poller is not None:
            self.poller.close()

    def add(self, fd: int, read: bool, write: bool, urgent: bool = False) -> None:
        """Wait for this descriptor as well."""
        what: Any = fd
        if is_in_memory(fd):
            what = end_of(fd)
            if what is None:
                return
        elif _HAS_ONE_FOR_MANY:
            self._add_to_poller(fd, read, write, urgent)
            return
        self.reading += [what] if read else []
        self.writing += [what] if write else []

    def _add_to_poller(self, fd: int, read: bool, write: bool, urgent: bool) -> None:
        if self.poller is None:
            self.poller = _select.epoll() if hasattr(_select, "epoll") else _select.kqueue()  # type: ignore[attr-defined]
        if hasattr(_select, "epoll"):
            mask = (
                (_select.EPOLLIN if read else 0)
                | (_select.EPOLLOUT if write else 0)
                | (_select.EPOLLPRI if urgent else 0)
            )
            with contextlib.suppress(PermissionError):  # a regular file, which is always ready
                self.poller.register(fd, mask)
            return
        filters = [
            *([_select.KQ_FILTER_READ] if read or urgent else []),  # type: ignore[attr-defined]
            *([_select.KQ_FILTER_WRITE] if write else []),  # type: ignore[attr-defined]
        ]
        for each in filters:
            self.poller.control([_select.kevent(fd, each)], 0)  # type: ignore[attr-defined]

    def wait(self, timeout: float | None) -> None:
        """Park until one of them is ready; TimeoutError."""
        if not self.reading and not self.writing and self.poller is not None:
            wait_readable(self.poller, timeout)
            return
        poller = [] if self.poller is None else [self.poller.fileno()]
        _wait_any([*self.reading, *poller], self.writing, timeout)


def _number(fd: FileDescriptorLike) -> int:
    return fd if isinstance(fd, int) else fd.fileno()


def _in_thread(fn: Callable[[], R]) -> R:
    """Call ``fn`` in a thread, for a wait that the run cannot make."""
    from pyfiber._threads import to_thread

    return to_thread(fn)


# selectors ----------------------------------------------------------------------------------------


Ready = list[tuple[SelectorKey, int]]
Ask = Callable[[float | None], Ready]


def _keys_in_memory(selector: Any) -> list[SelectorKey]:
    """The keys of sockets in memory; a run that has no network in memory has none."""
    if _network() is None:
        return []
    keys = selector.get_map() or {}
    return [key for key in keys.values() if is_in_memory(key.fd)]


def _ready_in_memory(keys: list[SelectorKey]) -> Ready:
    found = [
        (key, key.events & _events_of(bits)) for key in keys if (bits := ready_in_memory(key.fd))
    ]
    return [(key, events) for key, events in found if events]


def _events_in_memory(fd: FileDescriptorLike) -> int:
    """What a socket in memory is ready for; 0 for a descriptor of the system."""
    number = _number(fd)
    return _events_of(ready_in_memory(number)) if is_in_memory(number) else 0


def _events_of(bits: int) -> int:
    failed = bits & (ERROR | HUNG_UP)
    return (EVENT_READ if failed or bits & READABLE else 0) | (
        EVENT_WRITE if failed or bits & WRITABLE else 0
    )


def select_by_descriptor(selector: Any, ask: Ask, timeout: float | None) -> Ready:
    """select() in a fiber, of a selector that has a descriptor (epoll, kqueue, devpoll)."""
    memory = _keys_in_memory(selector)
    if not memory:
        return _ask_until(lambda: ask(0), partial(wait_readable, selector), timeout)
    with _Many() as many:
        many.add(selector.fileno(), True, False)
        return _select_many(many, memory, ask, timeout)


def select_by_keys(selector: Any, ask: Ask, timeout: float | None) -> Ready:
    """select() in a fiber, of a selector without a descriptor: one is made for each wait."""
    memory = _keys_in_memory(selector)
    found = [] if memory else ask(0)
    if found:
        return found
    with _Many() as many:
        for key in selector.get_map().values():
            if not is_in_memory(key.fd):
                many.add(key.fd, bool(key.events & EVENT_READ), bool(key.events & EVENT_WRITE))
        return _select_many(many, memory, ask, timeout)


def _select_many(many: _Many, memory: list[SelectorKey], ask: Ask, timeout: float | None) -> Ready:
    for key in memory:
        many.add(key.fd, bool(key.events & EVENT_READ), bool(key.events & EVENT_WRITE))
    return _ask_until(lambda: ask(0) + _ready_in_memory(memory), many.wait, timeout)


def entering(cls: type[Any], name: str) -> Callable[..., Any]:
    """A replacement for ``register()``, ``modify()`` or ``unregister()`` of a standard class.

    The system knows nothing of a socket in memory, so that is entered in the selector's map only.
    """
    theirs = _theirs(getattr(cls, name))
    in_map = getattr(_standard._BaseSelectorImpl, name)

    def method(self: Any, fileobj: FileDescriptorLike, *args: Any, **kwargs: Any) -> Any:
        ours = is_in_memory(self._fileobj_lookup(fileobj))
        return (in_map if ours else theirs)(self, fileobj, *args, **kwargs)

    method.__name__ = name
    return method


#: The methods that entering() replaces.
ENTERING = ("register", "modify", "unregister")

C = TypeVar("C", bound=type[Any])


def _knows_memory(cls: C) -> C:
    """Make a class of selectors take sockets in memory."""
    for name in ENTERING:
        setattr(cls, name, entering(cls, name))
    return cls


class _WithDescriptor:
    """A selector that has a descriptor itself."""

    def select(self, timeout: float | None = None) -> Ready:
        """Return what is ready, as the standard method; the running fiber parks."""
        ask = partial(_theirs(super().select.__func__), self)  # type: ignore[misc]
        return select_by_descriptor(self, ask, timeout) if _may_park() else ask(timeout)


class _WithoutDescriptor:
    """A selector that has no descriptor itself."""

    def select(self, timeout: float | None = None) -> Ready:
        """Return what is ready, as the standard method; the running fiber parks."""
        ask = partial(_theirs(super().select.__func__), self)  # type: ignore[misc]
        return select_by_keys(self, ask, timeout) if _may_park() else ask(timeout)


@_knows_memory
class SelectSelector(_WithoutDescriptor, _standard.SelectSelector):
    """The standard SelectSelector, whose select() parks."""


#: The best of these classes, as in the standard module.
DefaultSelector: Any = SelectSelector

if hasattr(_standard, "PollSelector"):

    @_knows_memory
    class PollSelector(_WithoutDescriptor, _standard.PollSelector):
        """The standard PollSelector, whose select() parks."""

    DefaultSelector = PollSelector

if hasattr(_standard, "DevpollSelector"):

    @_knows_memory
    class DevpollSelector(_WithDescriptor, _standard.DevpollSelector):  # type: ignore[misc,name-defined]
        """The standard DevpollSelector, whose select() parks."""

    DefaultSelector = DevpollSelector

if sys.platform != "win32" and hasattr(_standard, "KqueueSelector"):

    @_knows_memory
    class KqueueSelector(_WithDescriptor, _standard.KqueueSelector):  # type: ignore[misc,name-defined]
        """The standard KqueueSelector, whose select() parks."""

    DefaultSelector = KqueueSelector

if hasattr(_standard, "EpollSelector"):

    @_knows_memory
    class EpollSelector(_WithDescriptor, _standard.EpollSelector):
        """The standard EpollSelector, whose select() parks."""

    DefaultSelector = EpollSelector


# in place of the module select --------------------------------------------------------------------


_their_select = _theirs(_select.select)

Lists = tuple[list[Any], list[Any], list[Any]]


def select(
    rlist: Iterable[Any], wlist: Iterable[Any], xlist: Iterable[Any], timeout: float | None = None
) -> Lists:
    """``select.select()``, which parks the running fiber."""
    if not _may_park():
        return _their_select(rlist, wlist, xlist, timeout)
    asked = list(rlist), list(wlist), list(xlist)
    if timeout is not None and timeout < 0:
        raise ValueError("timeout must be non-negative")
    if not _HAS_ONE_FOR_MANY and asked[2]:
        return _in_thread(lambda: _their_select(*asked, timeout))

    found = _look(asked)
    if found is None:
        reading, writing, special = ({_number(fd) for fd in each} for each in asked)
        with _Many() as many:
            for fd in reading | writing | special:
                many.add(fd, fd in reading, fd in writing, fd in special)
            found = _ask_until(lambda: _look(asked), many.wait, timeout)
    return found if found is not None else ([], [], [])


def _look(asked: Lists) -> Lists | None:
    """What is ready now; None: nothing is."""
    if _network() is None:
        found = _their_select(*asked, 0)
        return found if any(found) else None
    theirs = [[fd for fd in each if not is_in_memory(_number(fd))] for each in asked]
    found = _their_select(theirs[0], theirs[1], theirs[2], 0)
    for each, ready, event in zip(asked, found, (EVENT_READ, EVENT_WRITE, 0), strict=True):
        ready += [fd for fd in each if _events_in_memory(fd) & event]
    return found if any(found) else None


if hasattr(_select, "poll"):
    _their_poll = _theirs(_select.poll)
    _ask_poll = _theirs(type(_their_poll()).poll)

    class poll:
        """``select.poll()``, whose poll() parks the running fiber."""

        __slots__ = ("_masks", "_poll")

        def __init__(self) -> None:
            self._poll = _their_poll()
            self._masks: dict[int, int] = {}

        def register(
            self,
            fd: FileDescriptorLike,
            eventmask: int = _select.POLLIN | _select.POLLPRI | _select.POLLOUT,
            /,
        ) -> None:
            """Ask for these events from now on."""
            if not is_in_memory(_number(fd)):
                self._poll.register(fd, eventmask)
            self._masks[_number(fd)] = eventmask

        def modify(self, fd: FileDescriptorLike, eventmask: int, /) -> None:
            """Ask for other events."""
            if _number(fd) not in self._masks or not is_in_memory(_number(fd)):
                self._poll.modify(fd, eventmask)
            self._masks[_number(fd)] = eventmask

        def unregister(self, fd: FileDescriptorLike, /) -> None:
            """Stop asking for events."""
            if not is_in_memory(_number(fd)):
                self._poll.unregister(fd)
            del self._masks[_number(fd)]

        def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
            """Return what is ready; ``timeout`` is in milliseconds, None or below 0: no limit."""
            if not _may_park():
                return _ask_poll(self._poll, timeout)
            if timeout == 0:  # a pool of connections checks one in this way
                yield_now()  # but other programs do this in a loop
                return self._ask()
            found = self._ask()
            if found:
                return found
            with _Many() as many:
                for fd, mask in self._masks.items():
                    many.add(
                        fd,
                        bool(mask & _select.POLLIN),
                        bool(mask & _select.POLLOUT),
                        bool(mask & _select.POLLPRI),
                    )
                seconds = None if timeout is None or timeout < 0 else timeout / 1000
                return _ask_until(self._ask, many.wait, seconds)

        def _ask(self) -> list[tuple[int, int]]:
            found: list[tuple[int, int]] = _ask_poll(self._poll, 0)
            if _network() is None:
                return found
            return found + [
                (fd, events)
                for fd, mask in self._masks.items()
                if is_in_memory(fd) and (events := polled(fd, mask))
            ]


if sys.platform == "linux":
    _theirs_poll = _theirs(_select.epoll.poll)

    _ALL = _select.EPOLLIN | _select.EPOLLPRI | _select.EPOLLOUT

    def poll_epoll(
        self: Any, timeout: float | None = None, maxevents: int = -1
    ) -> list[tuple[int, int]]:
        """poll() of a standard epoll object, in a fiber."""
        seconds = None if timeout is None or timeout < 0 else timeout
        memory = in_epoll(self)
        if not memory:
            ask = partial(_theirs_poll, self, 0, maxevents)
            return _ask_until(ask, partial(wait_readable, self), seconds)

        def look() -> list[tuple[int, int]]:
            found: list[tuple[int, int]] = _theirs_poll(self, 0, maxevents)
            found += [
                (fd, events)
                for fd, mask in memory.items()
                if end_of(fd) is not None and (events := polled(fd, mask))
            ]
            return found if maxevents < 0 else found[:maxevents]

        with _Many() as many:
            many.add(self.fileno(), True, False)
            for fd, mask in memory.items():
                many.add(fd, bool(mask & _select.EPOLLIN), bool(mask & _select.EPOLLOUT))
            return _ask_until(look, many.wait, seconds)

    def entering_epoll(name: str) -> Callable[..., Any]:
        """A replacement for ``register()``, ``modify()`` or ``unregister()`` of ``select.epoll``.

        The system knows nothing of a socket in memory, so the network has a table of those.
        """
        theirs = _theirs(getattr(_select.epoll, name))

        def method(self: Any, fd: FileDescriptorLike, *args: Any, **kwargs: Any) -> None:
            if _network() is None or not is_in_memory(_number(fd)):
                theirs(self, fd, *args, **kwargs)
            else:
                enter_in_epoll(self, name, _number(fd), *args, **kwargs)

        method.__name__ = name
        return method

    _REGISTER, _MODIFY, _UNREGISTER = map(entering_epoll, ENTERING)

    class epoll:
        """``select.epoll()``, whose poll() parks the running fiber."""

        def __init__(self, sizehint: int = -1, flags: int = 0) -> None:
            self._epoll = _select.epoll(sizehint, flags)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._epoll, name)

        def register(self, fd: FileDescriptorLike, eventmask: int = _ALL) -> None:
            """Ask for events of the descriptor from now on."""
            _REGISTER(self._epoll, fd, eventmask)

        def modify(self, fd: FileDescriptorLike, eventmask: int) -> None:
            """Ask for other events."""
            _MODIFY(self._epoll, fd, eventmask)

        def unregister(self, fd: FileDescriptorLike) -> None:
            """Stop asking for events."""
            _UNREGISTER(self._epoll, fd)

        def __enter__(self) -> epoll:
            return self

        def __exit__(self, *exc: object) -> None:
            self._epoll.close()

        def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
            """Return what is ready; ``timeout`` is in seconds, None or below 0: no limit."""
            if _may_park():
                return poll_epoll(self._epoll, timeout, maxevents)
            return _theirs_poll(self._epoll, timeout, maxevents)
