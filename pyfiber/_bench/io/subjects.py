"""The servers by name."""

from __future__ import annotations

from dataclasses import dataclass

from ..model import PYFIBER
from . import servers
from .servers import Serve

#: The server that the others are compared with.
C = "C epoll"


@dataclass(frozen=True)
class Subject:
    """A server: a function of servers.py, or None for the C program."""

    name: str
    serve: Serve | None
    #: The distribution it needs.
    peer: str | None = None
    #: Modules of pyfiber itself that it needs, and those it needs for TLS.
    needs: tuple[str, ...] = ()
    needs_for_tls: tuple[str, ...] = ()
    note: str = ""


def of_pyfiber(name: str, serve: Serve, note: str = "") -> Subject:
    """A server on pyfiber's sockets."""
    return Subject(
        name, serve, needs=("pyfiber.socket",), needs_for_tls=("pyfiber.ssl",), note=note
    )


SUBJECTS = (
    of_pyfiber(PYFIBER, servers.fibers),
    Subject(C, None),
    Subject("uvloop protocols", servers.on_uvloop(servers.protocols), peer="uvloop"),
    Subject("uvloop streams", servers.on_uvloop(servers.streams), peer="uvloop"),
    Subject("asyncio protocols", servers.on_asyncio(servers.protocols)),
    Subject("asyncio streams", servers.on_asyncio(servers.streams)),
    Subject("gevent", servers.gevent, peer="gevent"),
    Subject("trio", servers.trio, peer="trio"),
    Subject("threads", servers.threads),
)
#: For the row of memory.
SMALL_STACKS = of_pyfiber("pyfiber 256 KiB", servers.small_fibers, note="stacks of 256 KiB")


def find(name: str) -> Subject:
    """The server of that name."""
    return next(subject for subject in (*SUBJECTS, SMALL_STACKS) if subject.name == name)
