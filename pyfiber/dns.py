"""Names of hosts: look-ups that park the running fiber, and a resolver of one's own.

The functions are those of the standard module ``socket``, which ``pyfiber.socket`` passes on. In a
fiber of a run numbers are answered at once, without a thread. Names are looked up by threads that
do nothing else, at most ``THREADS`` at a time, because only the system's own function obeys all of
its configuration (nsswitch.conf, mDNS, VPNs) and that function blocks. Look-ups of the same name at
the same time are one. Anywhere else each function is the standard one.

``set_resolver()`` puts another function in place of the threads.
"""

from __future__ import annotations

import copy
import os
import socket as _standard
from _thread import allocate_lock
from collections.abc import Callable
from socket import AF_INET, AF_INET6, gaierror
from typing import Any, Protocol, TypeAlias

from pyfiber import _engine
from pyfiber._engine import FiberError, ThreadLimiter
from pyfiber._engine import _outside as _theirs  # where a gate leads from it to ours

__all__ = [
    "THREADS",
    "Resolver",
    "getaddrinfo",
    "getfqdn",
    "gethostbyaddr",
    "gethostbyname",
    "gethostbyname_ex",
    "getnameinfo",
    "resolved",
    "set_resolver",
    "system",
]

#: Look-ups that are made at a time; more wait their turn.
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

#: Not that of to_thread(): a program that keeps those threads busy still finds its hosts.
_threads = ThreadLimiter(THREADS, abandon_on_cancel=True)


class _Lookup:
    """One call in a thread, for which several fibers may wait, of several runs.

    The fiber that makes it submits it; the others wait for its latch. When the first fiber is
    cancelled before a thread has begun, the look-up is withdrawn, and another fiber makes a new
    one. Whoever gets the claim decides: the thread runs it, or the first fiber withdraws it. A
    look-up that has begun goes on, for others who ask the same: a name server that does not answer
    keeps one thread busy for each name, not one for each fiber that gave up.
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
        self.lost = False  # withdrawn, or its thread is the parent's
        self.forked = False

    def run(self) -> None:
        """In the thread. It never fails: an abandoned failure would be logged."""
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
        """Unless a thread has begun it."""
        if self.claim.acquire(False):
            self.lost = True
            self.end()

    def take(self, first: bool) -> Any:
        """What each of those who wait gets: they may change it."""
        if self.failure is None:
            return self.answer[:] if isinstance(self.answer, list) else self.answer
        raise self.failure if first else copy.copy(self.failure)

    def __repr__(self) -> str:
        return f"<a look-up of {self.args[0]!r}>"


_in_flight: dict[Any, _Lookup] = {}


def _ask(function: Callable[..., Any], *args: Any) -> Any:
    """The function's answer from a thread, which may be busy with this very call."""
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
                return function(*args)  # a finalizer's: this fiber must not be left
        else:
            if not lookup.lost:
                return lookup.take(lookup is mine)


def _after_fork_in_child() -> None:
    """Ask again: the threads are the parent's."""
    lost = list(_in_flight.values())
    _in_flight.clear()
    for lookup in lost:
        lookup.lost = lookup.forked = True
        lookup.latch.set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

# Another resolver ---------------------------------------------------------------------------------


def set_resolver(resolver: Resolver | None) -> Resolver | None:
    """Look names up with this function, in all runs; None: with the system's. Returns the last one.

    It is called in the fiber that asks, as ``resolver(host, port, family, type, proto, flags)``,
    and may park, on sockets of ``pyfiber.socket``, say. ``host`` is a name in ASCII, never an
    address; the others are ints. The result is as of ``getaddrinfo()``. What it raises becomes
    ``socket.gaierror``: OSError and TimeoutError EAI_AGAIN, other exceptions EAI_FAIL; an empty
    result EAI_NONAME. It serves getaddrinfo(), gethostbyname(), gethostbyname_ex() and all that
    connect to a name; names of addresses are the system's.

    A cache, say, is a function that calls ``system()`` when it has nothing::

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
    """In place of the system's: set_resolver()'s, or that of a network in memory."""
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
    """Of a service's name, too, unless the flags forbid it."""
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
    """As the standard functions do, but not in a thread, where codecs would be imported."""
    if isinstance(host, bytearray):
        return bytes(host)
    if isinstance(host, bytes) and host.isascii():
        host = host.decode("ascii")
    return host.encode("idna") if isinstance(host, str) else host


def _is_number(host: Any) -> bool:
    """Or something else that is not looked up."""
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
    """The addresses of a host and a port, as ``socket.getaddrinfo()``; gaierror if there is none.

    A cancellation point only when it has to wait.
    """
    if not _in_run():
        return _theirs(_standard.getaddrinfo)(host, port, family, type, proto, flags)
    if isinstance(host, str):  # of a number in ASCII the encoding is the same, and quick
        host = host.encode("ascii" if host.isascii() else "idna")
    try:
        return _theirs(_standard.getaddrinfo)(host, port, family, type, proto, flags | _NUMBERS)
    except gaierror:
        host = _encoded(host)
    resolver = _chosen()
    if resolver is None or host is None or flags & _standard.AI_NUMERICHOST or _is_number(host):
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
    """The host's first IPv4 address."""
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
    """The host's canonical name, its aliases, and its IPv4 addresses."""
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
    """The canonical name of an address or a host, its aliases, and its addresses; herror."""
    if not _in_run():
        return _theirs(_standard.gethostbyaddr)(ip_address)
    found: tuple[str, list[str], list[str]] = _ask(
        _theirs(_standard.gethostbyaddr), _encoded(ip_address)
    )
    return found


def getnameinfo(sockaddr: Any, flags: int) -> tuple[str, str]:
    """The name of a socket's address, and of its port's service."""
    numbers = _standard.NI_NUMERICHOST | _standard.NI_NUMERICSERV
    if not _in_run() or flags & numbers == numbers:
        return _theirs(_standard.getnameinfo)(sockaddr, flags)
    found: tuple[str, str] = _ask(_standard.getnameinfo, sockaddr, flags)
    return found


def getfqdn(name: str = "") -> str:
    """The full name of a host; without an argument, of this one."""
    if not _in_run():
        return _theirs(_standard.getfqdn)(name)
    found: str = _ask(_standard.getfqdn, name)
    return found


def resolved(family: int, address: Any) -> Any:
    """A socket's address with a number in place of the host's name; another one as it is."""
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
