"""The same programs, unmodified, on greenlet and on `pyfiber.greenlet` in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import repeat

import pyfiber.greenlet

from ..model import Case, Measure, Row, Sample, Unavailable, clock
from ..peers import install_command, is_installed, load
from .lifecycle import async_nothing, gevent_spawn, greenlet_create
from .switching import (
    DEPTH_C,
    DEPTH_PYTHON,
    below_c,
    below_python,
    greenlet_deep,
    greenlet_switch,
)
from .yielding import gevent_yield

FIBERS = 100


def on_stand_in(measure: Measure, peer: str) -> Measure:
    """The case with the stand-in installed: its process has not imported greenlet yet."""

    def measured(count: int) -> Sample:
        pyfiber.greenlet.install()
        if peer != "greenlet":
            require(peer)
        return measure(count)

    return measured


def on_greenlet(measure: Measure) -> Measure:
    """The case with greenlet itself, which its peer may not have installed."""

    def measured(count: int) -> Sample:
        require("greenlet")
        return measure(count)

    return measured


def require(peer: str) -> None:
    """Raise Unavailable, with the command that installs a missing peer."""
    if not is_installed(peer):
        raise Unavailable(f"{peer} is not installed: {install_command([peer])}")


def on_both(measure: Measure, peer: str = "greenlet", note: str = "") -> tuple[Case, Case]:
    """One program on the stand-in and on greenlet."""
    return (
        Case(
            "pyfiber",
            on_stand_in(measure, peer),
            peer=None if peer == "greenlet" else peer,
            note=note,
        ),
        Case("greenlet", on_greenlet(measure), peer=peer),
    )


def await_once(await_only: Callable[[object], object]) -> None:
    """Wait once, as SQLAlchemy's synchronous core does for each round trip to a database."""
    await_only(async_nothing())


def sqlalchemy_spawn(count: int) -> Sample:
    """`await greenlet_spawn(function)`, whose function waits once with `await_only`."""
    concurrency = load("sqlalchemy.util.concurrency")
    spawn, await_only = concurrency.greenlet_spawn, concurrency.await_only

    async def main() -> Sample:
        start = clock()
        for _ in repeat(None, count):
            await spawn(await_once, await_only)
        return Sample(clock() - start, count)

    return asyncio.run(main())


ROWS = (
    Row(
        "greenlet-switch",
        "greenlet.switch(), ping-pong",
        "As `switch`, the same greenlet code on both; the time of half a round trip.",
        on_both(greenlet_switch),
        count=1_000_000,
        quick=50_000,
    ),
    Row(
        "greenlet-deep",
        f"greenlet.switch(), {DEPTH_PYTHON} Python frames deep",
        f"As `deep-python`: both greenlets are suspended below {DEPTH_PYTHON} nested calls.",
        on_both(partial(greenlet_deep, below_python, DEPTH_PYTHON)),
        count=1_000_000,
        quick=50_000,
    ),
    Row(
        "greenlet-deep-c",
        f"greenlet.switch(), {DEPTH_C} C frames deep",
        f"As `deep-c`: both greenlets are suspended below {DEPTH_C} nested callbacks of map().",
        on_both(partial(greenlet_deep, below_c, DEPTH_C)),
        count=1_000_000,
        quick=50_000,
    ),
    Row(
        "greenlet-create",
        "greenlet: create + run + finish",
        "As `create`: greenlet(function).switch() with an empty function.",
        on_both(greenlet_create),
        count=500_000,
        quick=20_000,
    ),
    Row(
        "gevent-sleep",
        f"gevent.sleep(0), {FIBERS} greenlets",
        f"{FIBERS} gevent greenlets call gevent.sleep(0) in turn; the time of one call.",
        on_both(partial(gevent_yield, FIBERS), peer="gevent"),
        count=200_000,
        quick=10_000,
    ),
    Row(
        "gevent-spawn",
        "gevent: spawn + join",
        "gevent.spawn(function).join() with an empty function, one after the other.",
        on_both(gevent_spawn, peer="gevent"),
        count=200_000,
        quick=10_000,
    ),
    Row(
        "sqlalchemy-spawn",
        "SQLAlchemy: greenlet_spawn with one await_only",
        "What each call of SQLAlchemy's asyncio extension adds: a greenlet that waits once.",
        on_both(sqlalchemy_spawn, peer="sqlalchemy"),
        count=200_000,
        quick=10_000,
    ),
)
