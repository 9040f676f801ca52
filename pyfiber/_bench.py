"""`python -m pyfiber bench`: a small table of pyfiber beside the libraries that do the same work.

    python -m pyfiber._bench ROW SUBJECT    measure one subject here and print its value

Each measurement runs in a separate process, which warms up and measures a few times. The subjects
of a row take turns, so that a slow moment of the machine affects all of them; the best value
counts. All subjects do the same work in the same Python loop, with methods bound beforehand:
pyfiber and gevent run the same functions here. The repository has a larger program, `python -m
bench`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from itertools import repeat
from pathlib import Path
from time import perf_counter_ns as clock
from types import SimpleNamespace
from typing import Any

import pyfiber
import pyfiber.debug
import pyfiber.socket

#: Distributions that are not part of CPython.
PEERS = ("greenlet", "gevent", "uvloop", "trio")
SUBJECTS = ("pyfiber", "greenlet", "gevent", "asyncio", "uvloop", "trio")

BATCH, FIBERS, CONNECTIONS = 1_000, 100, 50
MESSAGE, MINUTE = b"x" * 128, 60

#: Nanoseconds that one measurement should take, measurements of one process, and seconds after
#: which the process is killed.
BUDGET, TIMES, PATIENCE = 100e6, 3, 120

#: Takes a number of operations; returns the nanoseconds that they take, or the bytes they hold.
Measure = Callable[[int], float]
Fibers = Callable[[Any, int], float]
Tasks = Callable[[int], Coroutine[Any, Any, float]]


def load(name: str) -> Any:
    """Import a library, untyped: whether it is installed must not matter to type checkers."""
    return importlib.import_module(name)


def nothing() -> None: ...


async def nothing_async() -> None: ...


def on_gevent() -> Any:
    """gevent's functions and classes under pyfiber's names."""
    gevent = load("gevent")

    class Channel:
        def __init__(self) -> None:
            made = load("gevent.queue").Channel()
            self.send, self.receive = made.put, made.get

    return SimpleNamespace(
        run=lambda function, *arguments: function(*arguments),
        spawn=gevent.spawn,
        yield_now=gevent.sleep,
        timeout=gevent.Timeout,
        Event=load("gevent.event").Event,
        Channel=Channel,
        socket=load("gevent.socket"),
    )


def spawn(on: Any, count: int) -> float:
    start = clock()
    for _ in repeat(None, count // BATCH):
        for fiber in [on.spawn(nothing) for _ in repeat(None, BATCH)]:
            fiber.join()
    return clock() - start


def yields(on: Any, count: int) -> float:
    def turns() -> None:
        turn = on.yield_now
        for _ in repeat(None, count // FIBERS):
            turn()

    start = clock()
    for fiber in [on.spawn(turns) for _ in repeat(None, FIBERS)]:
        fiber.join()
    return clock() - start


def channel(on: Any, count: int) -> float:
    there, back = on.Channel(), on.Channel()

    def answer() -> None:
        receive, send = there.receive, back.send
        for _ in repeat(None, count // 2):
            send(receive())

    other = on.spawn(answer)
    send, receive = there.send, back.receive
    start = clock()
    for _ in repeat(None, count // 2):
        send("ball")
        receive()
    elapsed = clock() - start
    other.join()
    return elapsed


def timeout(on: Any, count: int) -> float:
    limit = on.timeout
    start = clock()
    for _ in repeat(None, count):
        with limit(MINUTE):
            pass
    return clock() - start


def echo(on: Any, count: int) -> float:
    def answer(connection: Any) -> None:
        receive, send = connection.recv, connection.sendall
        with connection:
            while data := receive(4096):
                send(data)

    def ask(connection: Any) -> None:
        receive, send = connection.recv, connection.sendall
        with connection:
            for _ in repeat(None, count // CONNECTIONS):
                send(MESSAGE)
                receive(4096)

    with on.socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        clients = [on.socket.socket() for _ in range(CONNECTIONS)]
        for client in clients:
            client.connect(listener.getsockname())
            on.spawn(answer, listener.accept()[0])
    start = clock()
    for fiber in [on.spawn(ask, client) for client in clients]:
        fiber.join()
    return clock() - start


async def asyncio_spawn(count: int) -> float:
    create_task = asyncio.get_running_loop().create_task
    start = clock()
    for _ in repeat(None, count // BATCH):
        for task in [create_task(nothing_async()) for _ in repeat(None, BATCH)]:
            await task
    return clock() - start


async def asyncio_yields(count: int) -> float:
    async def turns() -> None:
        sleep = asyncio.sleep
        for _ in repeat(None, count // FIBERS):
            await sleep(0)

    start = clock()
    for task in [asyncio.create_task(turns()) for _ in repeat(None, FIBERS)]:
        await task
    return clock() - start


async def asyncio_timeout(count: int) -> float:
    limit = asyncio.timeout
    start = clock()
    for _ in repeat(None, count):
        async with limit(MINUTE):
            pass
    return clock() - start


async def asyncio_echo(count: int) -> float:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in repeat(None, count // CONNECTIONS):
            writer.write(MESSAGE)
            await writer.drain()
            await reader.read(4096)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    clients = [await asyncio.open_connection(*address) for _ in range(CONNECTIONS)]
    start = clock()
    for task in [asyncio.create_task(ask(*client)) for client in clients]:
        await task
    elapsed = clock() - start
    server.close()
    return elapsed


async def trio_spawn(count: int) -> float:
    open_nursery = load("trio").open_nursery
    start = clock()
    for _ in repeat(None, count // BATCH):
        async with open_nursery() as nursery:
            for _ in repeat(None, BATCH):
                nursery.start_soon(nothing_async)
    return clock() - start


async def trio_yields(count: int) -> float:
    async def turns() -> None:
        checkpoint = load("trio").lowlevel.checkpoint
        for _ in repeat(None, count // FIBERS):
            await checkpoint()

    start = clock()
    async with load("trio").open_nursery() as nursery:
        for _ in repeat(None, FIBERS):
            nursery.start_soon(turns)
    return clock() - start


async def trio_channel(count: int) -> float:
    send_there, receive_there = load("trio").open_memory_channel(0)
    send_back, receive_back = load("trio").open_memory_channel(0)

    async def answer() -> None:
        receive, send = receive_there.receive, send_back.send
        for _ in repeat(None, count // 2):
            await send(await receive())

    async with load("trio").open_nursery() as nursery:
        nursery.start_soon(answer)
        send, receive = send_there.send, receive_back.receive
        start = clock()
        for _ in repeat(None, count // 2):
            await send("ball")
            await receive()
        return clock() - start


async def trio_timeout(count: int) -> float:
    limit = load("trio").fail_after
    start = clock()
    for _ in repeat(None, count):
        with limit(MINUTE):
            pass
    return clock() - start


async def trio_echo(count: int) -> float:
    async def answer(stream: Any) -> None:
        async with stream:
            while data := await stream.receive_some(4096):
                await stream.send_all(data)

    async def ask(stream: Any) -> None:
        async with stream:
            for _ in repeat(None, count // CONNECTIONS):
                await stream.send_all(MESSAGE)
                await stream.receive_some(4096)

    (listener,) = await load("trio").open_tcp_listeners(0, host="127.0.0.1")
    address = listener.socket.getsockname()
    async with load("trio").open_nursery() as servers, listener:
        clients = []
        for _ in range(CONNECTIONS):
            clients.append(await load("trio").open_tcp_stream(*address))
            servers.start_soon(answer, await listener.accept())
        start = clock()
        async with load("trio").open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(ask, client)
        return clock() - start


def time_switches(there: Callable[[], object], count: int) -> float:
    there()
    start = clock()
    for _ in repeat(None, count // 2):
        there()
    return clock() - start


def answer_forever(back: Callable[[], object]) -> None:
    while True:
        back()


def pyfiber_switch(count: int) -> float:
    other = pyfiber.Fiber(answer_forever, (pyfiber.current().switch,))
    return time_switches(other.switch, count)


def greenlet_switch(count: int) -> float:
    greenlet = load("greenlet")
    other = greenlet.greenlet(answer_forever)
    other.switch(greenlet.getcurrent().switch)
    return time_switches(other.switch, count)


def memory() -> int:
    """Bytes that this process holds, page tables included."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return 1024 * sum(int(values[name].split()[0]) for name in ("VmRSS", "VmPTE"))


def waiting(on: Any, count: int) -> float:
    event = on.Event()

    def wait() -> None:
        event.wait()

    before = memory()
    fibers = [on.spawn(wait) for _ in repeat(None, count)]
    on.yield_now()
    held = memory() - before
    event.set()
    for fiber in fibers:
        fiber.join()
    return held


def greenlet_waiting(count: int) -> float:
    module = load("greenlet")
    greenlet, back = module.greenlet, module.getcurrent().switch

    def wait() -> None:
        back()

    before = memory()
    greenlets = [greenlet(wait) for _ in repeat(None, count)]
    for each in greenlets:
        each.switch()
    return memory() - before


async def asyncio_waiting(count: int) -> float:
    event = asyncio.Event()

    async def wait() -> None:
        await event.wait()

    before = memory()
    tasks = [asyncio.create_task(wait()) for _ in repeat(None, count)]
    await asyncio.sleep(0)
    held = memory() - before
    event.set()
    await asyncio.wait(tasks)
    return held


async def trio_waiting(count: int) -> float:
    event = load("trio").Event()

    async def wait() -> None:
        await event.wait()

    async with load("trio").open_nursery() as nursery:
        before = memory()
        for _ in repeat(None, count):
            nursery.start_soon(wait)
        for _ in range(2):
            await load("trio").lowlevel.checkpoint()
        held = memory() - before
        event.set()
    return held


def in_tasks(loop: str, measure: Tasks) -> Measure:
    """A Measure that runs a coroutine function on a loop of asyncio or uvloop."""

    def measured(count: int) -> float:
        with asyncio.Runner(loop_factory=load(loop).new_event_loop) as runner:
            return runner.run(measure(count))

    return measured


def in_fibers(on: Callable[[], Any], measure: Fibers) -> Measure:
    """A Measure that runs a function on pyfiber or gevent."""

    def measured(count: int) -> float:
        names = on()
        value: float = names.run(measure, names, count)
        return value

    return measured


def everybody(fibers: Fibers, tasks: Tasks | None, trios: Tasks) -> dict[str, Measure]:
    """The measures of one row for all libraries that have a scheduler."""
    found = {"pyfiber": in_fibers(lambda: pyfiber, fibers), "gevent": in_fibers(on_gevent, fibers)}
    if tasks is not None:
        found |= {loop: in_tasks(loop, tasks) for loop in ("asyncio", "uvloop")}
    return {**found, "trio": lambda count: load("trio").run(trios, count)}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    unit: str
    #: The most operations of one measurement; where bytes are counted, exactly this many.
    count: int
    measures: Mapping[str, Measure]
    description: str


SWITCH = {"pyfiber": pyfiber_switch, "greenlet": greenlet_switch}
SPAWN = everybody(spawn, asyncio_spawn, trio_spawn)
YIELD = everybody(yields, asyncio_yields, trio_yields)
CHANNEL = everybody(channel, None, trio_channel)
TIMEOUT = everybody(timeout, asyncio_timeout, trio_timeout)
ECHO = everybody(echo, asyncio_echo, trio_echo)
MEMORY = everybody(waiting, asyncio_waiting, trio_waiting) | {"greenlet": greenlet_waiting}

# fmt: off
ROWS = {row.name: row for row in (
    Row("switch", "ns", 1_000_000, SWITCH, "one switch between two raw fibers; no scheduler"),
    Row("spawn", "ns", 200_000, SPAWN, "spawn an empty function and join it, 1,000 at a time"),
    Row("yield", "ns", 500_000, YIELD, "one turn of a hundred that take turns"),
    Row("channel", "ns", 200_000, CHANNEL, "a message through a channel without a buffer"),
    Row("timeout", "ns", 200_000, TIMEOUT, "enter and leave a block with a time limit"),
    Row("echo", "ns", 20_000, ECHO, "128 bytes to and fro on one of 50 TCP connections"),
    Row("memory", "bytes", 10_000, MEMORY, "one of 10,000 that wait for an event"),
)}
# fmt: on

NOTES = """\
In `echo` both ends are in the process; asyncio and uvloop use streams. In `memory` greenlets have
switched back. asyncio has no channel without a buffer, greenlet has no scheduler."""


def measured_here(row: Row, measure: Measure) -> float:
    """The nanoseconds, or bytes, that one operation takes in this process."""
    if row.unit == "bytes":
        return measure(row.count) / row.count
    few = 2 * BATCH
    affordable = int(BUDGET / (measure(few) / few))
    count = max(min(row.count, affordable) // BATCH, 1) * BATCH
    values = []
    for _ in range(TIMES):
        gc.collect()
        values.append(measure(count) / count)
    return min(values)


@dataclass
class Result:
    """The values of one subject in a row, or the reason why there are none."""

    samples: list[float] = field(default_factory=list)
    value: float | None = None
    ratio: float | None = None
    reason: str | None = None

    def __str__(self) -> str:
        value = "-" if self.value is None else number(self.value)
        return value if self.ratio is None else f"{value} ({number(self.ratio)}x)"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def version(distribution: str) -> str | None:
    """The installed version, None where there is none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def measure_once(row: Row, subject: str, result: Result) -> None:
    """Measure in a separate process."""
    command = [sys.executable, "-m", "pyfiber._bench", row.name, subject]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        result.samples.append(float(done.stdout))
    except subprocess.TimeoutExpired:
        result.reason = f"no answer within {PATIENCE} s"
    except ValueError:
        result.reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]


def measure_row(row: Row, repetitions: int) -> dict[str, Result]:
    """Measure all subjects of the row, in turns."""
    results = {name: Result() for name in SUBJECTS if name in row.measures}
    for name, result in results.items():
        if name in PEERS and version(name) is None:
            result.reason = "not installed"
        elif row.unit == "bytes" and sys.platform != "linux":
            result.reason = "needs /proc, which only Linux has"
    for _ in range(repetitions):
        for name, result in results.items():
            if result.reason is None:
                measure_once(row, name, result)
    own = results["pyfiber"]
    for result in results.values():
        if result.reason is None:
            result.value = min(result.samples)
            if own.value and result is not own:
                result.ratio = result.value / own.value
    return results


def environment() -> dict[str, Any]:
    """What the values depend on."""
    return {
        "pyfiber": f"{pyfiber.__version__} ({pyfiber.debug.info()['backend']})",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.platform()}, {os.cpu_count()} processors",
        "peers": {name: version(name) for name in PEERS},
    }


def head(facts: dict[str, Any], repetitions: int) -> str:
    """The lines above the table: the environment, the method, and the names of the columns."""
    beside = [f"{name} {found}" for name, found in facts["peers"].items() if found]
    return (
        f"pyfiber {facts['pyfiber']}, {facts['python']}, {facts['system']}\n"
        f"beside {', '.join(beside) or 'no other library'}\n\n"
        "Each measurement runs in a separate process; the subjects of a row take turns, and the "
        f"best of {repetitions}\ncounts. In parentheses: the value divided by that of pyfiber; "
        f"above 1, pyfiber is better.\n\n{'':8}" + "".join(name.rjust(16) for name in SUBJECTS)
    )


def foot(found: dict[str, dict[str, Result]]) -> str:
    """The lines below the table: what the rows are, and the reason for each dash."""
    reasons = dict.fromkeys(
        f"- {name}: {result.reason}"
        for results in found.values()
        for name, result in results.items()
        if result.reason is not None
    )
    rows = [f"{name:9} {ROWS[name].description} [{ROWS[name].unit}]" for name in found]
    return "\n".join(["", *rows, "", NOTES, *reasons])


def main(options: argparse.Namespace) -> int:
    """Measure and print. Returns 1 if pyfiber itself could not be measured, 2 for unknown rows."""
    names = options.only or list(ROWS)
    if unknown := [name for name in names if name not in ROWS]:
        print(f"no row is named {unknown[0]!r}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    facts, repetitions = environment(), 2 if options.quick else 5
    print(head(facts, repetitions))
    found: dict[str, dict[str, Result]] = {}
    for name in names:
        results = found[name] = measure_row(ROWS[name], repetitions)
        cells = [str(results.get(subject, "")).rjust(16) for subject in SUBJECTS]
        print(f"{name:8}" + "".join(cells).rstrip(), flush=True)
    print(foot(found))
    if options.json:
        rows = {
            name: {"unit": ROWS[name].unit, "results": results} for name, results in found.items()
        }
        text = json.dumps({"environment": facts, "rows": rows}, indent=1, default=asdict)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return int(any(results["pyfiber"].value is None for results in found.values()))


if __name__ == "__main__":
    print(measured_here(ROWS[sys.argv[1]], ROWS[sys.argv[1]].measures[sys.argv[2]]))
