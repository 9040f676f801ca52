"""CPython's own tests of asyncio on our loop, each test in a fiber of a run.

As a program: cpython_program.py MODULE LEFT_OUT [TEST...], where LEFT_OUT is a JSON object of test
names and reasons. The tests are those of the interpreter's installed package ``test``.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import sys
import unittest
from typing import Any

from pyfiber.aio._loop import FiberEventLoop
from tests.support.cpython_tests import PATIENCE, in_fibers


class SelectorEventLoop(FiberEventLoop):
    """Ours, where a test asks for asyncio's own."""

    def __init__(self, selector: Any = None) -> None:
        if selector is not None:
            selector.close()
        super().__init__()


def put_in_place() -> None:
    for name in ("SelectorEventLoop", "EventLoop"):
        if hasattr(asyncio, name):
            setattr(asyncio, name, SelectorEventLoop)
    policy: Any = type(asyncio.get_event_loop_policy())
    policy._loop_factory = SelectorEventLoop


def main(module: str, left_out: str, *names: str) -> None:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    put_in_place()
    in_fibers(json.loads(left_out))
    unittest.main(module=f"test.test_asyncio.{module}", argv=[module, *names], verbosity=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
