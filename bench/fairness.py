"""Measures how long others wait beside code that computes without end.

    python -m bench.fairness [--hogs 1 4 64] [--seconds 3] [SUBJECT...]

Each subject has a process, in which run:

- hogs: fibers (threads, greenlets, tasks) that compute without end;
- an echo server. The client, in another process, sends 64 bytes, waits for the answer, and pauses
  for a millisecond;
- a fiber that sleeps for a millisecond again and again.

The table shows the median and the 99th percentile of two delays in milliseconds: the echo's round
trip, and by how much a sleep takes longer than a millisecond. "blocked" means that fewer than ten
came back. The last column is the work of all hogs, in percent of what one hog does alone in the
same time, measured right before and after.

The last lines show what slices cost: when no fiber is over its slice, a switch in nanoseconds; and
the time of four fibers that only compute, in milliseconds. Each is the best of many runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pyfiber
import pyfiber.socket

from .model import ROOT
from .peers import is_installed, load

ADDRESS = "127.0.0.1"
MESSAGE = b"x" * 64
PAUSE = 0.001
#: Computing is counted in loops of so many steps, about 0.1 ms.
STEPS = 5_000
#: Seconds in which all hogs begin, and nothing is counted.
WARM_UP = 1.0
SWITCHES = 1_000_000
#: As many of these loops does each fiber that only computes.
COMPUTED = 200


class Bench:
    """One measurement in this process: the work of the hogs and the delays of a sleep."""

    def __init__(self, hogs: int, seconds: float) -> None:
        self.hogs = hogs
        self.seconds = seconds
        self.loops = [0] * max(hogs, 1)
        self.delays: list[float] = []
        self.listener = socket.create_server((ADDRESS, 0))
        self.counted = self.end = 0.0

    def begin(self) -> None:
        """Tell the parent that everything has been started."""
        self.counted = time.perf_counter() + WARM_UP
        self.end = self.counted + self.seconds
        print(self.listener.getsockname()[1], flush=True)

    def hog(self, number: int) -> None:
        loops, end = self.loops, self.end
        while (now := time.perf_counter()) < end:
            for _ in range(STEPS):
                pass
            loops[number] += now >= self.counted

    def doze(self, sleep: Callable[[float], object]) -> None:
        while (begun := time.perf_counter()) < self.end:
            sleep(PAUSE)
            self.slept(begun)

    def slept(self, begun: float) -> None:
        if begun >= self.counted:
            self.delays.append(time.perf_counter() - begun - PAUSE)

    def serve(self, sockets: Any) -> None:
        """Echo to one client until the client closes its connection."""
        with sockets.socket(fileno=self.listener.detach()) as listener:
            connection, _ = listener.accept()
        with connection:
            while got := connection.recv(1000):
                connection.sendall(got)

    def jobs(self, sockets: Any, sleep: Callable[[float], object]) -> list[Callable[[], object]]:
        """All that runs side by side, the server first."""
        hogs = [lambda number=number: self.hog(number) for number in range(self.hogs)]
        return [lambda: self.serve(sockets), lambda: self.doze(sleep), *hogs]


def in_fibers(bench: Bench, time_slice: float) -> None:
    def main() -> None:
        bench.begin()
        for job in bench.jobs(pyfiber.socket, pyfiber.sleep):
            pyfiber.spawn(job)

    pyfiber.run(main, time_slice=time_slice or None)


def in_threads(bench: Bench, interval: float) -> None:
    sys.setswitchinterval(interval)
    bench.begin()
    threads = [threading.Thread(target=job) for job in bench.jobs(socket, time.sleep)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_gevent(bench: Bench, _: float) -> None:
    gevent = load("gevent")
    bench.begin()
    jobs = bench.jobs(load("gevent.socket"), gevent.sleep)
    gevent.joinall([gevent.spawn(job) for job in jobs])


def in_asyncio(bench: Bench, _: float) -> None:
    import asyncio

    async def hog(number: int) -> None:
        bench.hog(number)

    async def doze() -> None:
        while (begun := time.perf_counter()) < bench.end:
            await asyncio.sleep(PAUSE)
            bench.slept(begun)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        bench.listener.setblocking(False)
        connection, _ = await loop.sock_accept(bench.listener)
        with connection:
            connection.setblocking(False)
            while got := await loop.sock_recv(connection, 1000):
                await loop.sock_sendall(connection, got)

    async def main() -> None:
        bench.begin()
        await asyncio.gather(serve(), doze(), *map(hog, range(bench.hogs)))

    asyncio.run(main())


def alone(bench: Bench, _: float) -> None:
    bench.begin()
    bench.hog(0)


SUBJECTS: dict[str, tuple[Callable[[Bench, float], None], float]] = {
    "pyfiber, 1 ms": (in_fibers, 0.001),
    "pyfiber, 5 ms": (in_fibers, 0.005),
    "threads, 5 ms (default)": (in_threads, 0.005),
    "threads, 1 ms": (in_threads, 0.001),
    "pyfiber, no slices": (in_fibers, 0.0),
    "gevent": (in_gevent, 0.0),
    "asyncio": (in_asyncio, 0.0),
}
ALONE = "alone"


def perform(name: str, hogs: int, seconds: float) -> None:
    """Measure in this process; print the port, and in the end what was found."""
    how, option = {**SUBJECTS, ALONE: (alone, 0.0)}[name]
    bench = Bench(hogs, seconds)
    how(bench, option)
    print(json.dumps([sum(bench.loops), bench.delays]), flush=True)


def echoes(port: int, seconds: float) -> list[float]:
    """The client: the times of round trips until `seconds` are over."""
    found = []
    with socket.create_connection((ADDRESS, port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        counted = time.perf_counter() + WARM_UP
        end = counted + seconds
        while (begun := time.perf_counter()) < end:
            client.sendall(MESSAGE)
            if not select.select([client], [], [], end - begun)[0]:
                break
            client.recv(len(MESSAGE))
            if begun >= counted:
                found.append(time.perf_counter() - begun)
            time.sleep(PAUSE)
    return found


def measure(name: str, hogs: int, seconds: float) -> tuple[list[float], int, list[float]]:
    """Run a subject in a new process; return the echoes, the loops, and the delays of a sleep."""
    command = [sys.executable, "-m", "bench.fairness", "--perform"]
    command += ["--hogs", str(hogs), "--seconds", str(seconds), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        trips = [] if name == ALONE else echoes(port, seconds * 0.9)
        loops, delays = json.loads(process.stdout.readline())
    return trips, loops, delays


def cells(delays: list[float]) -> str:
    """Show the median and the 99th percentile, in milliseconds."""
    if len(delays) < 10:
        return f"{'blocked':>17}"
    parts = statistics.quantiles(delays, n=100)
    return f"{parts[49] * 1e3:8.2f} {parts[98] * 1e3:8.2f}"


def compare(names: list[str], counts: list[int], seconds: float) -> None:
    print(
        f"{'hogs':>4}  {'':24} {'echo: 50 %':>10} {'99 %':>6}  {'sleep: 50 %':>9} {'99 %':>6}  hogs"
    )
    for hogs, name in itertools.product(counts, names):
        before = measure(ALONE, 1, seconds)[1]
        trips, loops, delays = measure(name, hogs, seconds)
        after = measure(ALONE, 1, seconds)[1]
        share = 2 * loops / (before + after)
        print(f"{hogs:4}  {name:24} {cells(trips)}  {cells(delays)}  {share:5.1%}", flush=True)


def switch(time_slice: float | None) -> float:
    """Nanoseconds, of all threads, of a switch between two fibers that do nothing but yield."""

    def yields() -> None:
        for _ in range(SWITCHES // 2):
            pyfiber.yield_now()

    def main() -> float:
        begun = time.process_time()
        for fiber in [pyfiber.spawn(yields) for _ in range(2)]:
            fiber.join()
        return (time.process_time() - begun) / SWITCHES * 1e9

    return pyfiber.run(main, time_slice=time_slice)


def compute(time_slice: float | None) -> float:
    """Milliseconds that four fibers need which only compute."""

    def computes() -> None:
        for _ in range(COMPUTED * STEPS):
            pass

    def main() -> float:
        begun = time.perf_counter()
        for fiber in [pyfiber.spawn(computes) for _ in range(4)]:
            fiber.join()
        return (time.perf_counter() - begun) * 1e3

    return pyfiber.run(main, time_slice=time_slice)


def overhead(what: str, measured: Callable[[float | None], float], unit: str) -> None:
    slices = (None, 0.005, 0.001)
    best = dict.fromkeys(slices, float("inf"))
    for _ in range(40):
        for each in slices:
            best[each] = min(best[each], measured(each))
    for each in slices:
        name = "no slices" if each is None else f"slices of {each * 1e3:g} ms"
        print(f"{what}, {name:15} {best[each]:6.1f} {unit}  {best[each] / best[None] - 1:+.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hogs", type=int, nargs="+", default=[1, 4, 64])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--perform", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="these subjects only", metavar="SUBJECT")
    options = parser.parse_args()
    if options.perform:
        perform(options.names[0], options.hogs[0], options.seconds)
        return
    names = options.names or [
        name for name in SUBJECTS if name != "gevent" or is_installed("gevent")
    ]
    compare(names, options.hogs, options.seconds)
    overhead("yield_now()", switch, "ns")
    overhead("4 fibers compute", compute, "ms")


if __name__ == "__main__":
    main()
