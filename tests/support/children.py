"""Children for tests, and the promise that a test leaves none."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import Fiber, run, spawn, yield_now

CAT = ["/bin/cat"]
#: It never ends by itself.
FOREVER = ["/bin/cat", "/dev/zero"]
SLEEPS = ["/bin/sleep", "1000"]
BIG = bytes(range(256)) * 4096


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """Neither running nor a zombie, nor a descriptor of one."""
    run(lambda: None)  # what the first run opens for good
    gc.collect()  # what other tests have left
    before = sorted(os.listdir("/dev/fd"))
    yield
    gc.collect()  # a failed run's scheduler
    subprocess._cleanup()  # type: ignore[attr-defined]
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert sorted(os.listdir("/dev/fd")) == before


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def parked(fn: Callable[..., Any], *args: Any) -> Fiber[Any]:
    """A fiber that does it and does not come back soon."""
    fiber = spawn(fn, *args)
    for _ in range(5):
        yield_now()
    assert not fiber.done()
    return fiber
