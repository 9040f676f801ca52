"""One program, written three ways: as coroutines, as generators and as plain functions.

    python examples/async_without_async.py

Each program waits for a delay and for a result made by a thread, two calls deep, while a side job
runs. Coroutines and generators show in the signature of every function that it waits; the plain
functions do not. All three programs print their lines in the same order, on one thread.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any

from pyfiber import Fiber, run, sleep, spawn, to_thread
from pyfiber.grains import Grain, until
from pyfiber.grains import spawn as spawn_grain

DELAY = 0.05


def say(line: str) -> None:
    """Print the line, and on which thread it was said if that is not the main one."""
    here = threading.current_thread()
    print(line if here is threading.main_thread() else f"{line} - on {here.name}!")


def string_from_a_thread() -> Future[str]:
    """A future that another thread completes."""
    future: Future[str] = Future()
    threading.Thread(target=future.set_result, args=("Some string",)).start()
    return future


# --- coroutines


async def outer_coroutine() -> None:
    say("Before nesting")
    await inner_coroutine()
    say("After nesting")


async def inner_coroutine() -> None:
    say("Before creating task")
    delay = spawn(sleep, DELAY)
    say("After creating delay")
    await delay
    say("After sleeping")
    data = string_from_a_thread()
    say("After creating data")
    say(f"After reading data {await until(data)}")


# --- generators


def outer_generator() -> Generator[Any, Any, None]:
    say("Before nesting")
    yield inner_generator()
    say("After nesting")


def inner_generator() -> Generator[Any, Any, None]:
    say("Before creating task")
    delay = spawn(sleep, DELAY)
    say("After creating delay")
    yield delay
    say("After sleeping")
    data = string_from_a_thread()
    say("After creating data")
    text = yield data
    say(f"After reading data {text}")


# --- plain functions


def outer() -> None:
    say("Before nesting")
    inner()
    say("After nesting")


def inner() -> None:
    say("Before creating task")
    delay = spawn(sleep, DELAY)
    say("After creating delay")
    delay.join()
    say("After sleeping")
    data = spawn(to_thread, str, "Some string")
    say("After creating data")
    say(f"After reading data {data.result()}")


def side_job() -> None:
    """Runs while the others wait."""
    say("Side job")


WAYS: dict[str, Callable[[], Fiber[None] | Grain[None]]] = {
    "coroutines": partial(spawn_grain, outer_coroutine),
    "generators": partial(spawn_grain, outer_generator),
    "functions": partial(spawn, outer),
}


def program(start: Callable[[], Fiber[None] | Grain[None]]) -> None:
    """The job and the side job, at the same time."""
    job = start()
    spawn(side_job)
    job.result()


def main() -> None:
    """Run the program in the ways asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ways", nargs="*", default=list(WAYS), help=", ".join(WAYS))
    for way in parser.parse_args().ways:
        print(f"--- {way}")
        run(program, WAYS[way])


if __name__ == "__main__":
    main()
