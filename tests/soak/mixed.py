"""Everything at once, at random: sockets, threads, cancellation, time limits, garbage, failures.

Fibers of one run do acts that are chosen at random, with a server in the same run; threads call
into the run, and have runs of their own. After each round all is quiet, and a sample is taken.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pyfiber
from pyfiber import (
    CancelScope,
    Channel,
    Event,
    Fiber,
    FiberCancelled,
    Lock,
    Queue,
    TaskGroup,
    current,
    gather,
    grains,
    move_on_after,
    net,
    race,
    run,
    select,
    sleep,
    spawn,
    timeout,
    to_thread,
    yield_now,
)
from pyfiber.threads import Portal, default_thread_limiter
from tests.soak.gauge import Gauge

#: At once, in a round.
FIBERS = 300
#: Acts of each.
ACTS = 20
#: KiB. An hour moves the heap about; a leak of 100 bytes in each act would be some 100 MiB.
SLACK = 8 * 1024
#: Seconds that nobody waits for: they are cancelled before, but where their canceller is cancelled.
LONG = 1.0
#: Seconds between samples.
INTERVAL = 15.0


class Failure(Exception):
    """An act's own."""


class World:
    """What the acts of a round share."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.queue = Queue[int](10)
        self.channel = Channel[int]()
        self.lock = Lock()
        self.event = Event()
        self.server: Any = None
        self.portal: Any = None
        self.done = 0


# acts ---------------------------------------------------------------------------------------------


def talk(world: World) -> None:
    message = world.random.randbytes(world.random.choice((1, 100, 70_000)))
    with net.connect(*world.server.address) as stream:
        for _ in range(world.random.randrange(4)):
            with TaskGroup() as group:
                group.spawn(stream.write, message)
                assert stream.read_exactly(len(message)) == message


def hang_up(world: World) -> None:
    stream = net.connect(*world.server.address)
    stream.write(b"and gone")
    stream.close()


def compute_in_thread(world: World) -> None:
    assert to_thread(sum, range(world.random.randrange(1000))) >= 0


def call_from_thread(world: World) -> None:
    to_thread(world.portal.call, yield_now)


def run_in_thread(world: World) -> None:
    """A run of its own, on another thread."""
    seed = world.random.random()

    def other() -> list[int]:
        return run(lambda: gather(*(lambda: spawn(int, seed).result() for _ in range(5))))

    assert to_thread(other) == [0] * 5


def put(world: World) -> None:
    with move_on_after(0.01):
        world.queue.put(1)


def get(world: World) -> None:
    with move_on_after(0.01):
        world.queue.get()


def send(world: World) -> None:
    with move_on_after(0.01):
        world.channel.send(1)


def choose(world: World) -> None:
    with move_on_after(0.01):
        select(world.channel.receiving(), world.queue.getting(), world.channel.sending(1))


def hold_lock(world: World) -> None:
    with world.lock:
        yield_now()


def wait_for_event(world: World) -> None:
    world.event.wait(world.random.random() / 100)
    world.event.set()
    world.event.clear()


def run_out_of_time(world: World) -> None:
    try:
        with timeout(world.random.random() / 100):
            sleep(LONG)
    except TimeoutError:
        pass


def cancel_another(world: World) -> None:
    victim = spawn(sleep, LONG)
    if world.random.random() < 0.5:
        yield_now()
    victim.cancel()
    with contextlib.suppress(FiberCancelled):
        victim.result()


def cancel_a_scope(world: World) -> None:
    with CancelScope() as scope, TaskGroup() as group:
        for _ in range(5):
            group.spawn(sleep, LONG)
        yield_now()
        scope.cancel()
        sleep(LONG)


def fail(world: World) -> None:
    try:
        with TaskGroup() as group:
            group.spawn(sleep, LONG)
            yield_now()
            raise Failure
    except* Failure:
        pass


def win(world: World) -> None:
    race(lambda: sleep(LONG), lambda: sleep(world.random.random() / 100))


def leave_a_cycle(world: World) -> None:
    """A suspended raw fiber in a reference cycle, for the collector to unwind."""

    def inner(outer: Fiber[Any]) -> None:
        keeps.append(current())
        outer.switch()

    keeps: list[Any] = []
    keeps.append(keeps)
    Fiber(inner, (current(),)).switch()
    if not pyfiber.debug.info()["collects_suspended_cycles"]:
        keeps.clear()


def collect(world: World) -> None:
    gc.collect(world.random.randrange(3))


def walk_with_grains(world: World) -> None:
    def walker() -> Any:
        for _ in range(world.random.randrange(10)):
            yield
        yield 0.001

    with move_on_after(0.005):
        grains.spawn(walker).join()


def recurse(world: World) -> int:
    return deep(world.random.randrange(1, 200))


def deep(depth: int) -> int:
    if depth == 0:
        yield_now()
        return 0
    return 1 + deep(depth - 1)


ALL: tuple[Callable[[World], object], ...] = (
    talk,
    talk,
    talk,
    hang_up,
    compute_in_thread,
    call_from_thread,
    run_in_thread,
    put,
    get,
    send,
    choose,
    hold_lock,
    wait_for_event,
    run_out_of_time,
    cancel_another,
    cancel_a_scope,
    fail,
    win,
    leave_a_cycle,
    collect,
    walk_with_grains,
    recurse,
)


# a round ------------------------------------------------------------------------------------------


def echo(stream: Any) -> None:
    with move_on_after(5):
        for data in iter(lambda: stream.read(65536), b""):
            stream.write(data)


def member(world: World) -> None:
    for _ in range(ACTS):
        with contextlib.suppress(OSError):  # a connection in which somebody was cancelled
            world.random.choice(ALL)(world)
        world.done += 1


def bother(world: World, members: list[Fiber[None]]) -> None:
    """Cancels one of ten, sooner or later."""
    for victim in world.random.sample(members, len(members) // 10):
        sleep(world.random.random() / 100)
        victim.cancel("bothered")


def round_of(seed: int) -> int:
    world = World(seed)

    def main() -> None:
        world.portal = Portal()
        with net.serve(echo, "127.0.0.1", 0, grace=1) as world.server:
            members = [spawn(member, world) for _ in range(FIBERS)]
            bother(world, members)
            for each in members:
                each.join()
            world.server.stop()

    run(main)
    return world.done


def fill_the_pool() -> None:
    """As many threads as there may be; at random they would all be there some minutes later."""
    all_there = threading.Barrier(default_thread_limiter().total_tokens)
    gather(*([lambda: to_thread(all_there.wait)] * all_there.parties))


def mixed(minutes: float, seed: int) -> None:
    logging.getLogger("pyfiber").setLevel(logging.CRITICAL)  # lost connections are meant to be
    run(fill_the_pool)
    gauge = Gauge("mixed", f"{minutes:g} minutes are asked for, seeds from {seed}", slack=SLACK)
    end = time.monotonic() + minutes * 60
    following = time.monotonic()
    done = 0
    while time.monotonic() < end:
        done += round_of(seed)
        seed += 1
        if time.monotonic() >= following:
            following += max(0.1, min(INTERVAL, minutes * 60 / 30))
            gauge.sample(done)
    print(f"the last seed was {seed - 1}; {threading.active_count()} threads of Python")
    gauge.check()
