"""Look-ups of host names that park the running fiber, and a way to replace the resolver.

The functions are those of the standard module ``socket``; ``pyfiber.socket`` has them as well. In a
fiber of a run numeric addresses are answered at once, without a thread. Names are looked up by
threads that do nothing else, at most ``THREADS`` at a time, because only the system's own function
obeys all of its configuration (nsswitch.conf, mDNS, VPNs) and that function blocks. Look-ups of the
same name at the same time share one call. Anywhere else each function is the standard one.

``set_resolver()`` puts another function in place of the threads.
"""

from __future__ import annotations

import contextlib
import copy
import os
import socket as _standard
from _thread import allocate_lock
from collections.abc import Callable
from socket import AF_INET, AF_INET6, gaierror
from typing import Any, Protocol, TypeAlias

from pyfiber import _engine
from pyfiber._engine import FiberError, ThreadLimiter
from pyfiber._engine import _outside as _theirs  # the standard function, also after patch()

__all__ = [
    "THREADS",
    "Resolver",
    "getaddrinfo",
    "getfqdn",
    "gethostbyaddr",
    "gethostbyname",
    "gethostbyname_ex",
    "gethostname",
    "getnameinfo",
    "resolved",
    "set_resolver",
    "system",
]

#: How many look-ups are made at a time; more wait for their turn.
THREADS = 16

#: What getaddrinfo() returns: family, type, protocol, canonical name, address.
Found: TypeAlias = list[tuple[Any, Any, int, str, Any]]


class Resolver(Protocol):
    """A function like ``getaddrinfo()``, which set_resolver() takes."""

    def __call__(
        self, host: str, port: int, family: int, type: int, proto: int, flags: int, /
    ) -> Found: ...


_resolver: Resolver | None = None


# A look-up in a thread ----------------------------------------------------------------------------

#: Separate from to_thread()'s: a program that keeps those threads busy still finds its hosts.
_threads = ThreadLimiter(THREADS, abandon_on_cancel=True)


class _Lookup:
    """One call in a thread, for which several fibers may wait, of several runs.

    The fiber that makes the look-up submits it; the others wait for its latch. When the first fiber
    is cancelled before a thread has begun, the look-up is withdrawn, and another fiber makes a new
    one. The lock `claim` is taken once: by the thread, which then makes the call, or by the first
    fiber, which withdraws the look-up. A look-up that has begun goes on, for other fibers that ask
    the same: a name server that does not answer keeps one thread busy for each name, not one for
    each fiber that gave up.
    """

    __slots__ = ("answer", "args", "claim", "failure", "forked", "function", "key", "latch", "lost")

    def __init__(self, key: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.key = key
        self.function = function
        self.args = args
        self.claim = allocate_lock()
        self.latch = _engine._Latch()
        self.answer: Any = None
        self.failure: Exception | None = None
        self.lost = False  # withdrawn, or made before a fork
        self.forked = False  # made before a fork: the thread is the parent's

    def run(self) -> None:
        """Make the call, in the thread. Raises nothing: an abandoned failure would be logged."""
        if not self.claim.acquire(False):
            return
        try:
            self.answer = self.function(*self.args)
        except Exception as exc:
            self.failure = exc
        self.end()

    def end(self) -> None:
        if _in_flight.get(self.key) is self:
            del _in_flight[self.key]
        self.latch.set()

    def withdraw(self) -> None:
        """Withdraw the look-up, unless a thread has begun it."""
        if self.claim.acquire(False):
            self.lost = True
            self.end()

    def take(self, first: bool) -> Any:
        """The answer for one waiter, which may change it, so each one gets a copy; or raise."""
        if self.failure is None:
            return self.answer[:] if isinstance(self.answer, list) else self.answer
        raise self.failure if first else copy.copy(self.failure)

    def __repr__(self) -> str:
        return f"<a look-up of {self.args[0]!r}>"


_in_flight: dict[Any, _Lookup] = {}


def _ask(function: Callable[..., Any], *args: Any) -> Any:
    """The function's answer from a thread, of a new call or of one that is in flight already."""
    function = _theirs(function)
    key = (function, args)
    while True:
        mine = _Lookup(key, function, args)
        try:
            lookup = _in_flight.setdefault(key, mine)
            if lookup is mine:
                _threads.to_thread(mine.run)
            else:
                lookup.latch.wait(None, lookup)
        except BaseException as exc:
            mine.withdraw()
            if not isinstance(exc, FiberError) or not mine.lost:
                raise
            if not mine.forked:
                return function(*args)  # called by a finalizer: this fiber must not park
        else:
            if not lookup.lost:
                return lookup.take(lookup is mine)


def _after_fork_in_child() -> None:
    """Let all waiters ask again: only the parent has the threads."""
    lost = list(_in_flight.values())
    _in_flight.clear()
    for lookup in lost:
        lookup.lost = lookup.forked = True
        lookup.latch.set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

# Another resolver ---------------------------------------------------------------------------------


def set_resolver(resolver: Resolver | None) -> Resolver | None:
    """Look names up with ``resolver``, in all runs; None: with the system's. Returns the last one.

    The resolver is called in the fiber that asks, as
    ``resolver(host, port, family, type, proto, flags)``, and may park, on sockets of
    ``pyfiber.socket``, say. ``host`` is a name in ASCII, never an address; the others are ints. The
    result is that of ``getaddrinfo()``. An exception becomes ``socket.gaierror``: OSError and
    TimeoutError EAI_AGAIN, others EAI_FAIL; an empty result EAI_NONAME. The resolver serves
    getaddrinfo(), gethostbyname(), gethostbyname_ex() and everything that connects to a name; the
    names of addresses come from the system.

    A cache, say, is a function that calls ``system()`` when it has no answer::

        def cached(*question):
            if question not in answers:
                answers[question] = dns.system(*question)
            return answers[question]

        dns.set_resolver(cached)
    """
    global _resolver
    if resolver is not None and not callable(resolver):
        raise TypeError(f"expected a function or None, not {type(resolver).__name__!r}")
    before, _resolver = _resolver, resolver
    return before


def _chosen() -> Resolver | None:
    """The resolver in place of the system's: set_resolver()'s, or that of a network in memory."""
    if _resolver is not None or (network := _engine._network()) is None:
        return _resolver
    found: Resolver = network._resolve
    return found


def _by_resolver(
    resolver: Resolver, host: bytes | str, port: Any, family: int, kind: int, proto: int, flags: int
) -> Found:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    number = _port_number(port, kind, proto, flags)
    try:
        found = list(resolver(name, number, family, kind, proto, flags))
    except gaierror:
        raise
    except OSError as exc:
        raise gaierror(_standard.EAI_AGAIN, f"the look-up of {name!r} failed: {exc}") from exc
    except Exception as exc:
        raise gaierror(_standard.EAI_FAIL, f"the look-up of {name!r} failed: {exc}") from exc
    if not found:
        raise gaierror(_standard.EAI_NONAME, "Name or service not known")
    return found


def _port_number(port: Any, kind: int, proto: int, flags: int) -> int:
    """The number of a port, also if that is a service's name, unless the flags forbid names."""
    if port is None or isinstance(port, int):
        return port or 0
    flags &= _standard.AI_NUMERICSERV
    number: int = getaddrinfo(None, port, 0, kind, proto, flags)[0][4][1]
    return number


# The functions of the module socket ---------------------------------------------------------------

_NUMBERS = _standard.AI_NUMERICHOST | _standard.AI_NUMERICSERV


def _in_run() -> bool:
    return _engine._running_scheduler() is not None


def _encoded(host: Any) -> Any:
    """Encode a host as the standard functions do, but not in a thread, as that imports codecs."""
    if isinstance(host, bytearray):
        return bytes(host)
    if isinstance(host, bytes) and host.isascii():
        host = host.decode("ascii")
    return host.encode("idna") if isinstance(host, str) else host


def _is_number(host: Any) -> bool:
    """Is the host a numeric address, or something else that is not looked up?"""
    if host in (None, b"", b"<broadcast>"):
        return True
    try:
        _theirs(_standard.getaddrinfo)(host, None, flags=_NUMBERS)
    except gaierror:
        return False
    return True


def getaddrinfo(
    host: bytes | str | None,
    port: bytes | str | int | None,
    family: int = 0,
    type: int = 0,
    proto: int = 0,
    flags: int = 0,
) -> Found:
    """Return the addresses of a host and a port, as ``socket.getaddrinfo()``.

    A cancellation point only when it has to wait. Raises ``socket.gaierror`` if there is none.
    """
    if not _in_run():
        return _theirs(_standard.getaddrinfo)(host, port, family, type, proto, flags)
    if isinstance(host, str):  # for a numeric address, ASCII is the same encoding, and quick
        host = host.encode("ascii" if host.isascii() else "idna")
    try:
        return _theirs(_standard.getaddrinfo)(host, port, family, type, proto, flags | _NUMBERS)
    except gaierror:
        host = _encoded(host)
    resolver = _chosen()
    if resolver is None or host is None or flags & _standard.AI_NUMERICHOST or _is_number(host):
        if _engine._network() is not None:  # only the port can be a name, and a file has those
            flags |= _standard.AI_NUMERICHOST
            return _theirs(_standard.getaddrinfo)(host, port, family, type, proto, flags)
        return system(host, port, family, type, proto, flags)
    return _by_resolver(resolver, host, port, family, type, proto, flags)


def system(
    host: bytes | str | None,
    port: bytes | str | int | None,
    family: int = 0,
    type: int = 0,
    proto: int = 0,
    flags: int = 0,
) -> Found:
    """``getaddrinfo()`` of the operating system, by a thread, whatever the resolver is."""
    if not _in_run():
        return _theirs(_standard.getaddrinfo)(host, port, family, type, proto, flags)
    found: Found = _ask(
        _theirs(_standard.getaddrinfo), _encoded(host), port, family, type, proto, flags
    )
    return found


def gethostbyname(hostname: str) -> str:
    """Return the host's first IPv4 address."""
    if not _in_run():
        return _theirs(_standard.gethostbyname)(hostname)
    host = _encoded(hostname)
    if _is_number(host):
        return _theirs(_standard.gethostbyname)(host)
    if _chosen() is not None:
        first: str = getaddrinfo(host, 0, AF_INET, _standard.SOCK_STREAM)[0][4][0]
        return first
    found: str = _ask(_standard.gethostbyname, host)
    return found


def gethostbyname_ex(hostname: str) -> tuple[str, list[str], list[str]]:
    """Return the host's canonical name, its aliases, and its IPv4 addresses."""
    if not _in_run():
        return _theirs(_standard.gethostbyname_ex)(hostname)
    host = _encoded(hostname)
    if _chosen() is not None and not _is_number(host):
        infos = getaddrinfo(host, 0, AF_INET, _standard.SOCK_STREAM, flags=_standard.AI_CANONNAME)
        name = infos[0][3] or host.decode("ascii", "replace")
        return name, [], [info[4][0] for info in infos]
    found: tuple[str, list[str], list[str]] = _ask(_standard.gethostbyname_ex, host)
    return found


def gethostbyaddr(ip_address: str) -> tuple[str, list[str], list[str]]:
    """Return the canonical name of an address or a host, its aliases, and its addresses.

    Raises ``socket.herror`` if there is none.
    """
    if not _in_run():
        return _theirs(_standard.gethostbyaddr)(ip_address)
    if (network := _engine._network()) is not None:
        return network._names_of(ip_address)  # type: ignore[no-any-return]
    found: tuple[str, list[str], list[str]] = _ask(
        _theirs(_standard.gethostbyaddr), _encoded(ip_address)
    )
    return found


def getnameinfo(sockaddr: Any, flags: int) -> tuple[str, str]:
    """Return the name of a socket's address, and of its port's service."""
    numbers = _standard.NI_NUMERICHOST | _standard.NI_NUMERICSERV
    if not _in_run() or flags & numbers == numbers:
        return _theirs(_standard.getnameinfo)(sockaddr, flags)
    if (network := _engine._network()) is not None:
        host, port = _theirs(_standard.getnameinfo)(sockaddr, flags | _standard.NI_NUMERICHOST)
        if not flags & _standard.NI_NUMERICHOST:
            with contextlib.suppress(_standard.herror):
                host = network._names_of(host)[0]
        return host, port
    found: tuple[str, str] = _ask(_standard.getnameinfo, sockaddr, flags)
    return found


def getfqdn(name: str = "") -> str:
    """Return the full name of a host; without an argument, of this one."""
    if not _in_run():
        return _theirs(_standard.getfqdn)(name)
    if (network := _engine._network()) is not None:
        try:
            first: str = network._names_of(name or network._hostname())[0]
        except OSError:
            return name
        return first
    found: str = _ask(_standard.getfqdn, name)
    return found


def gethostname() -> str:
    """Return the name of this host."""
    network = _engine._network()
    found: str = _theirs(_standard.gethostname)() if network is None else network._hostname()
    return found


def resolved(family: int, address: Any) -> Any:
    """Return a socket's address, with a numeric address in place of a host's name."""
    if family not in (AF_INET, AF_INET6) or not isinstance(address, tuple) or not _in_run():
        return address
    host = address[0] if address else None
    if not host or not isinstance(host, (str, bytes, bytearray)) or host == "<broadcast>":
        return address
    try:
        _standard.inet_pton(family, host)  # type: ignore[arg-type]
    except (OSError, TypeError, ValueError):
        found = getaddrinfo(_encoded(host), 0, family, _standard.SOCK_STREAM)
        return (found[0][4][0].partition("%")[0], *address[1:])
    return address
