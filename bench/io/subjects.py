"""The servers, by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..model import PYFIBER
from . import servers
from .servers import Serve

#: The server that the others are compared with.
C = "C epoll"

#: What a server does with received bytes: it sends them back, answers HTTP requests that it parses
#: itself, or calls a WSGI application.
ECHO, HTTP, WSGI = "echo", "http", "wsgi"


@dataclass(frozen=True)
class Subject:
    """A server: a function of servers.py, or None for the C program."""

    name: str
    serve: Serve | None
    #: The distribution that the server needs.
    peer: str | None = None
    #: Modules of pyfiber that the server needs, and modules that it needs for TLS.
    needs: tuple[str, ...] = ()
    needs_for_tls: tuple[str, ...] = ()
    note: str = ""
    speaks: str = ECHO


def of_pyfiber(name: str, serve: Serve, note: str = "", *, speaks: str = ECHO) -> Subject:
    """Return a server on pyfiber's sockets."""
    sockets, tls = ("pyfiber.socket",), ("pyfiber.ssl",)
    return Subject(name, serve, needs=sockets, needs_for_tls=tls, note=note, speaks=speaks)


def of_aio(name: str, serve: Serve, peer: str | None = None) -> Subject:
    """Return a server on pyfiber and asyncio together."""
    return Subject(
        name,
        serve,
        peer=peer,
        needs=("pyfiber.aio", "pyfiber.socket"),
        needs_for_tls=("pyfiber.ssl",),
    )


def of_gunicorn(name: str, worker: str, peer: str = "gunicorn", **settings: int) -> Subject:
    """Return gunicorn with one of its workers."""
    needs = ("pyfiber.gunicorn", "pyfiber.wsgi") if worker.startswith("pyfiber.") else ("gunicorn",)
    serve = partial(servers.gunicorn, worker, settings)
    return Subject(f"gunicorn, {name}", serve, peer=peer, needs=needs, speaks=WSGI)


echo_fibers = partial(servers.accepting, servers.echo)
echo_protocols = partial(servers.protocols, servers.Echo)
hello_protocols = partial(servers.protocols, servers.Hello)

SUBJECTS = (
    of_pyfiber(PYFIBER, partial(servers.fibers, servers.echo)),
    Subject(C, None),
    Subject("uvloop protocols", servers.on_loop("uvloop", echo_protocols), peer="uvloop"),
    Subject("uvloop streams", servers.on_loop("uvloop", servers.streams), peer="uvloop"),
    Subject("asyncio protocols", servers.on_loop("asyncio", echo_protocols)),
    Subject("asyncio streams", servers.on_loop("asyncio", servers.streams)),
    of_aio("pyfiber on uvloop", servers.on_uvloop_in_turns(echo_fibers), peer="uvloop"),
    of_aio("asyncio protocols in a fiber", servers.in_a_fiber(echo_protocols)),
    of_aio("asyncio streams in a fiber", servers.in_a_fiber(servers.streams)),
    Subject("gevent", partial(servers.gevent, servers.echo), peer="gevent"),
    Subject("trio", servers.trio, peer="trio"),
    Subject("threads", partial(servers.threads, servers.echo)),
)
#: The server for the row of memory.
SMALL_STACKS = of_pyfiber(
    "pyfiber 128 KiB", partial(servers.small_fibers, servers.echo), note="stacks of 128 KiB"
)
#: The servers that answer HTTP requests.
HTTP_SUBJECTS = (
    of_pyfiber(PYFIBER, partial(servers.fibers, servers.hello), speaks=HTTP),
    Subject(
        "uvloop protocols", servers.on_loop("uvloop", hello_protocols), peer="uvloop", speaks=HTTP
    ),
    Subject("asyncio protocols", servers.on_loop("asyncio", hello_protocols), speaks=HTTP),
    Subject("gevent", partial(servers.gevent, servers.hello), peer="gevent", speaks=HTTP),
    Subject("threads", partial(servers.threads, servers.hello), speaks=HTTP),
)
#: The servers that call a WSGI application.
WSGI_SUBJECTS = (
    Subject(PYFIBER, servers.fibers_wsgi, needs=("pyfiber.wsgi",), speaks=WSGI),
    Subject("gevent.pywsgi", servers.gevent_wsgi, peer="gevent", speaks=WSGI),
    of_gunicorn("pyfiber", "pyfiber.gunicorn.Worker"),
    of_gunicorn("pyfiber, gunicorn's own HTTP", "pyfiber.gunicorn.PlainWorker"),
    of_gunicorn("gevent", "gevent", peer="gevent"),
    of_gunicorn("4 threads", "gthread", threads=4),
    of_gunicorn("100 threads", "gthread", threads=100),
)
ALL = (*SUBJECTS, SMALL_STACKS, *HTTP_SUBJECTS, *WSGI_SUBJECTS)


def find(name: str, speaks: str = ECHO) -> Subject:
    """The server of that name."""
    return next(subject for subject in ALL if (subject.name, subject.speaks) == (name, speaks))
