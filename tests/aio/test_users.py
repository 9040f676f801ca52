"""Programs of others as users of pyfiber.aio: httpx, aiohttp, FastAPI on uvicorn; on 127.0.0.1."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

import pyfiber
from pyfiber.aio import Host, await_, new_event_loop, run_in_fiber
from tests.aio.loops import FACTORIES, Factory

httpx = pytest.importorskip("httpx", reason="httpx is NOT INSTALLED: pip install --group io")
aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is NOT INSTALLED: pip install --group io")
fastapi = pytest.importorskip("fastapi", reason="fastapi is NOT INSTALLED: pip install --group io")
uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is NOT INSTALLED: pip install --group io")

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="loops of Windows watch no descriptors"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # theirs
]

Main = Coroutine[Any, Any, Any]


def on_a_loop_of(factory: Factory) -> Callable[[Main], Any]:
    def run(main: Main) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main)

    return run


def in_a_fiber(main: Main) -> Any:
    """On our loop, while other fibers run."""

    def run() -> Any:
        beside = pyfiber.spawn(lambda: [pyfiber.sleep(0.001) for _ in range(10)])
        result = on_a_loop_of(new_event_loop)(main)
        beside.join()
        return result

    return pyfiber.run(run)


EVERYWHERE = [
    *(pytest.param(on_a_loop_of(p.values[0]), id=p.id, marks=p.marks) for p in FACTORIES),
    pytest.param(in_a_fiber, id="fiber"),
]

everywhere = pytest.mark.parametrize("arun", EVERYWHERE)
#: A Host is not for loops that are in a run.
hosting = pytest.mark.parametrize("arun", EVERYWHERE[:-1])


async def load(key: str) -> str:
    await asyncio.sleep(0.001)
    return f"loaded {key}"


class Lazy:
    """An attribute that is loaded at its first use: code that cannot be async."""

    def __getattr__(self, name: str) -> str:
        value: str = await_(load(name))
        setattr(self, name, value)
        return value


def make_app() -> Any:
    """Routes of FastAPI that call plain code which waits, in a fiber of the task and of a Host."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        if pyfiber._engine._running_scheduler() is not None:
            yield
            return
        app.state.released = pyfiber.Event()
        async with Host() as app.state.host:
            yield

    app = fastapi.FastAPI(lifespan=lifespan)

    @app.get("/lazy/{name}")
    async def lazy(name: str) -> str:
        return await run_in_fiber(getattr, Lazy(), name)

    @app.get("/sorted")
    async def in_the_host(words: str) -> list[str]:
        def main() -> list[str]:
            loaded = pyfiber.gather(
                *(lambda word=word: await_(load(word)) for word in words.split())
            )
            return sorted(loaded)

        return await app.state.host.run(main)  # type: ignore[no-any-return]

    @app.get("/slow")
    async def slow() -> None:
        await app.state.host.run(app.state.released.wait)

    return app


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """FastAPI's application on uvicorn, in a task of the running loop."""
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="on")
    )
    task = asyncio.ensure_future(server.serve())
    while not server.started:
        assert not task.done(), task.result()
        await asyncio.sleep(0.001)
    host, port = server.servers[0].sockets[0].getsockname()
    yield f"http://{host}:{port}"
    server.should_exit = True
    await task


def client(**options: Any) -> Any:
    return httpx.AsyncClient(trust_env=False, **options)


@everywhere
def test_fastapi_route_calls_plain_code_that_waits(arun: Callable[[Main], Any]) -> None:
    async def main() -> list[Any]:
        async with serving(make_app()) as url, client() as http:
            names = [f"n{i}" for i in range(10)]
            answers = await asyncio.gather(*(http.get(f"{url}/lazy/{name}") for name in names))
            return [answer.json() for answer in answers]

    assert arun(main()) == [f"loaded n{i}" for i in range(10)]


@hosting
def test_fastapi_application_has_a_host(arun: Callable[[Main], Any]) -> None:
    async def main() -> Any:
        async with serving(make_app()) as url, client() as http:
            return (await http.get(f"{url}/sorted", params={"words": "tim arthur zoot"})).json()

    assert arun(main()) == ["loaded arthur", "loaded tim", "loaded zoot"]


@everywhere
def test_httpx_is_called_by_plain_code(arun: Callable[[Main], Any]) -> None:
    """A synchronous interface to an asynchronous client."""

    async def main() -> Any:
        async with serving(make_app()) as url, client() as http:

            def fetch(name: str) -> Any:
                return await_(http.get(f"{url}/lazy/{name}")).json()

            def plain() -> list[Any]:
                return [fetch(name) for name in ("one", "two")]

            return await asyncio.gather(*(run_in_fiber(plain) for _ in range(5)))

    assert arun(main()) == [["loaded one", "loaded two"]] * 5


@hosting
def test_time_limit_of_pyfiber_ends_a_request_of_httpx(arun: Callable[[Main], Any]) -> None:
    async def main() -> Any:
        app = make_app()
        async with serving(app) as url, client() as http, Host() as host:

            def plain() -> list[Any]:
                with pyfiber.move_on_after(0.05) as scope:
                    await_(http.get(f"{url}/slow", timeout=None))
                app.state.released.set()
                return [scope.cancelled(), await_(http.get(f"{url}/lazy/again")).json()]

            return await host.run(plain)

    assert arun(main()) == [True, "loaded again"]


@everywhere
def test_aiohttp_serves_and_asks(arun: Callable[[Main], Any]) -> None:
    async def answer(request: Any) -> Any:
        return aiohttp.web.Response(text=await run_in_fiber(getattr, Lazy(), request.query["name"]))

    async def echo(request: Any) -> Any:
        socket = aiohttp.web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data.upper())
        return socket

    async def main() -> Any:
        app = aiohttp.web.Application()
        app.add_routes([aiohttp.web.get("/", answer), aiohttp.web.get("/echo", echo)])
        runner = aiohttp.web.AppRunner(app)
        await runner.setup()
        site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession(f"http://{host}:{port}") as session:

            def plain() -> list[str]:
                response = await_(session.get("/", params={"name": "it"}))
                socket = await_(session.ws_connect("/echo"))
                await_(socket.send_str("spam"))
                got = [await_(response.text()), await_(socket.receive_str())]
                await_(socket.close())
                return got

            result = await run_in_fiber(plain)
        await runner.cleanup()
        return result

    import aiohttp.web

    assert arun(main()) == ["loaded it", "SPAM"]
