"""Functions in threads and back, futures, executors.

When a thread comes back depends on the machine: such a program need not repeat itself. What is
judged is what holds whatever the order.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

import pyfiber
from pyfiber import _engine
from pyfiber.threads import FiberExecutor, OneThread, Portal

from .evil import Boom
from .primitives import PrimitiveActs
from .program import acts


class Kind(PrimitiveActs):
    """Workers do what ends by itself; what they call back is random, and runs in the loop."""

    ACTS = acts(
        "to_thread 6, call_back 12, one_thread 6, portal 6,"
        "new_future 4, settle_future 10, wait_for_future 10, submit 12, executor_call 4"
    )
    EXPECTED = (CancelledError, InvalidStateError, RuntimeError)

    # ---------------------------------------------------------------- threads

    def to_thread(self) -> None:
        if self.forever():
            self.call("to_thread", pyfiber.to_thread, divmod, 7, self.random.choice((3, 2)))

    def call_back(self) -> None:
        """A worker calls something in the run that waits for it."""
        if not self.forever():
            return
        body = self.body()
        way: Callable[..., Any] = pyfiber.from_thread
        if self.random.random() < 0.4:
            way = Portal().call
        self.call("to_thread and back", pyfiber.to_thread, way, body, *self.few_values())

    def one_thread(self) -> None:
        thread = self.any("thread") or self.keep("thread", OneThread())
        if not self.forever():
            return
        if self.random.random() < 0.3:
            self.call(f"{self.name(thread)}.close", thread.close)
        else:
            self.call(f"{self.name(thread)}.run", thread.run, divmod, 7, 3)

    def portal(self) -> None:
        running = _engine._running_scheduler()
        portal = self.call("Portal", Portal, self.random.choice((None, running, self.fiber())))
        if portal is not None:
            self.call("portal.spawn", portal.spawn, self.target(), *self.few_values())

    # ---------------------------------------------------------------- futures

    def new_future(self) -> Any:
        return self.keep("future", Future())

    def future(self) -> Any:
        return self.any("future") or self.new_future()

    def settle_future(self) -> None:
        future = self.future()
        name = self.random.choice(("set_result", "set_exception", "cancel", "add_done_callback"))
        arguments = {
            "set_result": [self.value()],
            "set_exception": [Boom("future")],
            "add_done_callback": [lambda _: self.betray("done")],
        }
        label = f"{self.name(future)}.{name}"
        self.call(label, getattr(future, name), *arguments.get(name, []))

    def wait_for_future(self) -> None:
        future = self.maybe(self.future())
        self.call(f"await_future {self.name(future)}", pyfiber.await_future, future, self.limit())

    # -------------------------------------------------------------- executors

    def executor(self) -> Any:
        """One of a run; others have a thread that would run random code beside ours."""
        executor = self.any("executor")
        if executor is None:
            limit = self.random.choice((None, 1, 2))
            executor = self.call("FiberExecutor", FiberExecutor, self.maybe(limit))
        return self.keep("executor", executor) if executor is not None else None

    def submit(self) -> None:
        if self.forever() and (executor := self.executor()) is not None:
            label = f"{self.name(executor)}.submit"
            future = self.call(label, executor.submit, self.target(), *self.few_values())
            if future is not None:
                self.keep("future", future)

    def executor_call(self) -> None:
        if self.forever() and (executor := self.executor()) is not None:
            cancels = self.random.random() < 0.5
            shutdown = executor.shutdown
            label = f"{self.name(executor)}.shutdown"
            self.call(label, shutdown, wait=self.maybe(False), cancel_futures=cancels)
