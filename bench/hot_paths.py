"""The operations whose instructions are counted, so that their cost does not rise unnoticed.

`python bench/hot_paths.py NAME NUMBER` performs an operation NUMBER times; instructions.py counts
what that takes. Without arguments the program lists the names. All methods are bound before the
measured part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pyfiber
from pyfiber import Channel, Fiber, Lock, Queue, TaskGroup, grains, greenlet, spawn
from pyfiber.socket import create_connection, create_server
from pyfiber.socket import socket as Socket

#: Fibers that take turns, where there are several.
TURNS = 100


def nothing() -> None:
    pass


def switch(number: int) -> None:
    """Switch between two raw fibers, there and back."""
    back = pyfiber.current().switch

    def body() -> None:
        while True:
            back()

    there = Fiber(body).switch
    for _ in range(number):
        there()


def value(number: int) -> None:
    """The same with a value each way."""
    back = pyfiber.current().switch

    def body() -> None:
        while True:
            back(1)

    there = Fiber(body).switch
    there()
    for _ in range(number):
        there(1)


def create(number: int) -> None:
    """Make a raw fiber and run it to its end."""
    for _ in range(number):
        Fiber(nothing).switch()


def yields(number: int) -> None:
    """Call yield_now() in one of a hundred fibers."""

    def turns() -> None:
        turn = pyfiber.yield_now
        for _ in range(number // TURNS):
            turn()

    for _ in range(TURNS):
        spawn(turns)


def spawn_join(number: int) -> None:
    """Start a fiber and wait for its end."""
    for _ in range(number):
        spawn(nothing).join()


def spawn_many(number: int) -> None:
    """The same, a hundred at a time."""
    for _ in range(number // TURNS):
        for fiber in [spawn(nothing) for _ in range(TURNS)]:
            fiber.join()


def park_unpark(number: int) -> None:
    """Wake a parked fiber, which parks again."""

    def parks() -> None:
        park = pyfiber.park
        for _ in range(number):
            park()

    unpark = spawn(parks).unpark
    turn = pyfiber.yield_now
    turn()
    for _ in range(number):
        unpark()
        turn()


def queue(number: int) -> None:
    """Put an item into a Queue and get it out in another fiber."""
    items = Queue[int]()

    def gets() -> None:
        get = items.get
        for _ in range(number):
            get()

    fiber = spawn(gets)
    put = items.put
    for item in range(number):
        put(item)
    fiber.join()


def channel(number: int) -> None:
    """Hand a value over in a Channel without capacity."""
    values = Channel[int]()

    def receives() -> None:
        receive = values.receive
        for _ in range(number):
            receive()

    fiber = spawn(receives)
    send = values.send
    for item in range(number):
        send(item)
    fiber.join()


def lock(number: int) -> None:
    """Acquire and release a free Lock."""
    free = Lock()
    acquire, release = free.acquire, free.release
    for _ in range(number):
        acquire()
        release()


def select(number: int) -> None:
    """Call select() twice, to send and to receive, without waiting."""
    first, second = Channel[int](4), Channel[int](4)
    sends, receives, idle = first.sending(1), first.receiving(), second.receiving()
    choose = pyfiber.select
    for _ in range(number):
        choose(sends, idle)
        choose(receives, idle)


def timeout(number: int) -> None:
    """Enter and leave timeout(1)."""
    limit = pyfiber.timeout
    for _ in range(number):
        with limit(1):
            pass


def group(number: int) -> None:
    """Run a fiber in a TaskGroup of a hundred."""
    for _ in range(number // TURNS):
        with TaskGroup() as tasks:
            for _ in range(TURNS):
                tasks.spawn(nothing)


def grain(number: int) -> None:
    """Run a step of one of a hundred grains."""

    def steps() -> Iterator[None]:
        for _ in range(number // TURNS):
            yield

    for one in [grains.spawn(steps()) for _ in range(TURNS)]:
        one.join()


def connections(number: int) -> list[tuple[Socket, Socket]]:
    """Return pairs of connected TCP sockets."""
    with create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        return [(create_connection(address), listener.accept()[0]) for _ in range(number)]


def send_recv(number: int) -> None:
    """Call send(), and recv() of what is there, so that neither waits."""
    [(here, there)] = connections(1)
    send, receive = here.send, there.recv
    data = bytes(128)
    with here, there:
        for _ in range(number):
            send(data)
            receive(128)


def echo(number: int) -> None:
    """Call sendall(), and recv(), which waits, in one of a hundred fibers that form pairs."""

    def echoes(connection: Socket) -> None:
        receive, send = connection.recv, connection.sendall
        with connection:
            while data := receive(4096):
                send(data)

    def asks(connection: Socket) -> None:
        receive, send = connection.recv, connection.sendall
        data = bytes(128)
        for _ in range(number // TURNS):
            send(data)
            receive(4096)
        connection.close()

    with TaskGroup() as tasks:
        for here, there in connections(TURNS // 2):
            tasks.spawn(echoes, there)
            tasks.spawn(asks, here)


def greenlet_switch(number: int) -> None:
    """Switch between two greenlets, there and back."""
    back = greenlet.getcurrent().switch

    def body() -> None:
        while True:
            back()

    there = greenlet.greenlet(body).switch
    for _ in range(number):
        there()


def greenlet_create(number: int) -> None:
    """Make a greenlet and run it to its end."""
    for _ in range(number):
        greenlet.greenlet(nothing).switch()


#: For each name the operation, and whether it needs a run.
OPERATIONS: dict[str, tuple[Callable[[int], None], bool]] = {
    "switch": (switch, False),
    "value": (value, False),
    "create": (create, False),
    "yield": (yields, True),
    "spawn+join": (spawn_join, True),
    "spawn many": (spawn_many, True),
    "park/unpark": (park_unpark, True),
    "queue": (queue, True),
    "channel": (channel, True),
    "lock": (lock, True),
    "select": (select, True),
    "timeout": (timeout, True),
    "group": (group, True),
    "grain": (grain, True),
    "send+recv": (send_recv, True),
    "echo": (echo, True),
    "greenlet": (greenlet_switch, False),
    "greenlet create": (greenlet_create, False),
}


def main(name: str, number: int) -> None:
    operation, needs_run = OPERATIONS[name]
    if needs_run:
        pyfiber.run(operation, number)
    else:
        operation(number)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print("\n".join(OPERATIONS))
    else:
        main(sys.argv[1], int(sys.argv[2]))
