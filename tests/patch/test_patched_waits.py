"""select, selectors and asyncio under the patch."""

from __future__ import annotations

import asyncio
import select
import selectors
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyfiber
from pyfiber import run, spawn, yield_now
from tests.patch.test_patched_sockets import in_fiber
from tests.support.subprocesses import run_script

pytestmark = pytest.mark.usefixtures("patched")

SELECTORS = [
    getattr(selectors, name)
    for name in ("SelectSelector", "PollSelector", "EpollSelector", "KqueueSelector")
    if hasattr(selectors, name)
]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


Pair = tuple[socket.socket, socket.socket]


def with_poll(sock: socket.socket) -> Callable[[float | None], Any]:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return lambda timeout: poll.poll(None if timeout is None else timeout * 1000)


def with_epoll(sock: socket.socket) -> Callable[[float | None], Any]:
    epoll = select.epoll()
    epoll.register(sock, select.EPOLLIN)
    return epoll.poll


def with_select(sock: socket.socket) -> Callable[[float | None], Any]:
    return lambda timeout: select.select([sock], [], [], timeout)[0]


def with_selector(kind: Any) -> Callable[[socket.socket], Callable[[float | None], Any]]:
    def make(sock: socket.socket) -> Callable[[float | None], Any]:
        selector = kind()
        selector.register(sock, selectors.EVENT_READ)
        return selector.select  # type: ignore[no-any-return]

    return make


MAKERS = [with_select]
if hasattr(select, "poll"):
    MAKERS.append(with_poll)
if hasattr(select, "epoll"):
    MAKERS.append(with_epoll)
MAKERS += [with_selector(kind) for kind in SELECTORS]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("make", MAKERS)
def test_wait_parks(make: Any, early: bool, pair: Pair) -> None:
    made = make(pair[0]) if early else None

    def main() -> None:
        ask = made or make(pair[0])
        assert not ask(0)
        assert not ask(0.001)
        waiting = in_fiber(ask, None)
        pair[1].send(b"x")
        assert len(waiting.result()) == 1
        assert len(ask(None)) == 1
        pair[0].recv(1)
        cancelled = in_fiber(ask, None)
        cancelled.cancel()
        with pytest.raises(pyfiber.FiberCancelled):
            cancelled.result()

    run(main)


def test_none_of_them_disappears() -> None:
    """requests#3831, Flask-SocketIO#413: gevent removes select.epoll."""
    done = run_script("""
        import select, selectors
        names = set(vars(select)), set(vars(selectors))
        import pyfiber
        pyfiber.patch()
        assert (set(vars(select)), set(vars(selectors))) == names
        assert selectors.DefaultSelector is not selectors.SelectSelector
        assert isinstance(select.epoll, type) if hasattr(select, "epoll") else True
    """)
    assert not done.stderr


def test_a_scheduler_of_sched_parks_by_its_default_arguments() -> None:
    done = run_script("""
        import sched
        import pyfiber
        kept = sched.scheduler.__init__.__defaults__
        with pyfiber.patch():
            def main():
                events = sched.scheduler()
                events.enter(0.001, 1, done.append, ("s",))
                fiber = pyfiber.spawn(events.run)
                while not done:  # other fibers run meanwhile
                    turns.append(pyfiber.yield_now())
                fiber.join()
            turns, done = [], []
            pyfiber.run(main)
        print(len(turns) > 0, done, sched.scheduler.__init__.__defaults__ is kept)
    """)
    assert done.stdout == "True ['s'] True\n"


# asyncio ------------------------------------------------------------------------------------------


async def three_times(log: list[str], name: str) -> str:
    for _ in range(3):
        log.append(name)
        await asyncio.sleep(0.002)
    return name


def test_asyncio_in_fibers_parks_them() -> None:
    def main() -> None:
        log: list[str] = []
        both = [spawn(asyncio.run, three_times(log, name)) for name in "ab"]
        assert [fiber.result() for fiber in both] == ["a", "b"]
        assert log != sorted(log)
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()

    run(main)


def test_asyncio_in_a_thread_beside_fibers_notices_nothing() -> None:
    """gevent#2026, temporalio/sdk-python#291: a patch that changed asyncio in every thread."""

    def alone(name: str) -> tuple[str, Any]:
        log: list[str] = []

        async def main() -> tuple[str, Any]:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"hello")
            await three_times(log, name)
            data = await reader.readexactly(5)
            writer.close()
            return data.decode(), type(asyncio.get_running_loop())

        return asyncio.run(main())

    def main() -> None:
        nonlocal address
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()

            def serve() -> None:
                with listener.accept()[0] as one:
                    one.sendall(one.recv(5))

            served = spawn(serve)
            said, loop = pyfiber.to_thread(alone, "thread")
            assert said == "hello"
            assert loop is type(standard)
            served.result()

    address: Any = None
    standard = asyncio.new_event_loop()
    standard.close()
    run(main)


def test_standard_loop_in_a_fiber_parks_it_unseen_by_others() -> None:
    loop = asyncio.new_event_loop()  # outside of a run, so asyncio's own

    async def other_has_run(other: pyfiber.Fiber[object]) -> object:
        while not other.done():
            await asyncio.sleep(0.001)
        return asyncio.get_running_loop()

    def main() -> None:
        other = spawn(asyncio._get_running_loop)
        assert loop.run_until_complete(other_has_run(other)) is loop
        assert other.result() is None

    try:
        run(main)
    finally:
        loop.close()


def test_standard_loop_is_called_by_another_fiber() -> None:
    async def ask() -> str:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        fiber = spawn(loop.call_soon_threadsafe, answer.set_result, "an answer")
        found: str = await answer
        fiber.result()
        return found

    def main() -> str:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            return runner.run(ask())

    assert run(main) == "an answer"


def test_asyncio_imported_later_is_reached() -> None:
    done = run_script("""
        import sys, pyfiber
        finders = sys.meta_path[:]
        patch = pyfiber.patch()
        assert "asyncio" not in sys.modules
        import asyncio
        async def kind():
            return type(asyncio.get_running_loop()).__module__
        print(pyfiber.run(lambda: asyncio.run(kind())))
        print(asyncio.run(kind()).partition(".")[0])
        patch.undo()
        print(pyfiber.run(lambda: asyncio.run(kind())).partition(".")[0])
        print([finder for finder in sys.meta_path if finder not in finders])
    """)
    assert done.stdout == "pyfiber.aio._loop\nasyncio\nasyncio\n[]\n", done.stderr


def test_program_without_asyncio_does_not_import_it() -> None:
    done = run_script("""
        import sys, pyfiber
        pyfiber.patch()
        heavy = ("asyncio", "multiprocessing.connection", "psycopg", "psycopg2")
        print([name for name in heavy if name in sys.modules])
    """)
    assert done.stdout == "[]\n", done.stderr


def test_poll_returns_at_once_what_is_ready(pair: Pair) -> None:
    if sys.platform == "win32":
        pytest.skip("there is no poll()")
    poll = select.poll()
    poll.register(pair[0], select.POLLOUT)

    def main() -> None:
        assert poll.poll() == [(pair[0].fileno(), select.POLLOUT)]
        assert poll.poll(0) == [(pair[0].fileno(), select.POLLOUT)]
        yield_now()

    run(main)
