"""What a test does with a client of any library: see clients.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from pyfiber import TaskGroup, gather, now, run, sleep, spawn, timeout
from tests.libraries.clients import Client

Opener = Callable[[], AbstractContextManager[Client]]


def need(*modules: str) -> None:
    """Skip the test, with a loud reason, where one of them is missing."""
    for module in modules:
        reason = f"{module} is NOT INSTALLED: pip install --group libraries"
        pytest.importorskip(module, reason=reason)


#: Requests that are interrupted.
SOME = 10


def until_waiting(client: Client, number: int) -> None:
    """The server is asked until it holds so many."""
    while client.waiting() != number:
        sleep(0.01)


def answers_are_right(client: Client) -> None:
    numbers = range(100)
    assert gather(*(functools.partial(client.ask, number) for number in numbers)) == list(numbers)


def many_wait_at_once(client: Client) -> None:
    number = min(client.most, 99)
    with TaskGroup() as group:
        for _ in range(number):
            group.spawn(client.wait)
        until_waiting(client, number)
        client.release()
    answers_are_right(client)


def run_out_of_time(client: Client) -> None:
    number = min(client.most, SOME)
    limits = []

    def impatient() -> bool:
        try:
            with timeout(1000) as limit:
                limits.append(limit)
                client.wait()
        except TimeoutError:
            return True
        return False

    with TaskGroup() as group:
        fibers = [group.spawn(impatient) for _ in range(number)]
        until_waiting(client, number)
        for limit in limits:
            limit.deadline = now()
    assert all(fiber.result() for fiber in fibers)
    answers_are_right(client)
    client.release()
    answers_are_right(client)


def are_cancelled(client: Client) -> None:
    number = min(client.most, SOME)
    fibers = [spawn(client.wait) for _ in range(number)]
    until_waiting(client, number)
    for fiber in fibers:
        fiber.cancel()
    for fiber in fibers:
        fiber.join()
        assert fiber.cancelled()
    answers_are_right(client)
    client.release()
    answers_are_right(client)


#: Each of them is a test of every library.
ACTS = (many_wait_at_once, run_out_of_time, are_cancelled)


def play(opener: Opener, act: Callable[[Client], None]) -> None:
    """In a run, with a client that is opened in it."""

    def program() -> None:
        with opener() as client:
            act(client)

    run(program)
