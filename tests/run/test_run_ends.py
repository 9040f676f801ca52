"""What run() raises when something else has ended the run and main fails as well."""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

import pytest

from pyfiber import Fiber, FiberCancelled, current, park, run, spawn, yield_now
from tests.conftest import Child


def exits(code: object) -> None:
    raise SystemExit(code)


def test_exit_has_the_failure_of_main_as_its_context(caplog: pytest.LogCaptureFixture) -> None:
    """It was the later one, and nobody else tells of it; so nothing is logged."""

    def main() -> None:
        spawn(exits, 3)
        try:
            park()
        finally:
            raise LookupError("while it was cancelled")

    with caplog.at_level(logging.DEBUG), pytest.raises(SystemExit) as caught:
        run(main)
    assert caught.value.code == 3
    assert isinstance(caught.value.__context__, LookupError)
    assert not caplog.records


def test_exit_that_has_a_context_keeps_it() -> None:
    def fails_and_exits() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            exits(3)

    def main() -> None:
        spawn(fails_and_exits)
        try:
            park()
        finally:
            raise LookupError("while it was cancelled")

    with pytest.raises(SystemExit) as caught:
        run(main)
    assert isinstance(caught.value.__context__, KeyError)


@pytest.mark.parametrize("how", ["returns", "is cancelled", "exits itself"])
def test_exit_beside_a_main_that_did_not_fail_has_no_context(how: str) -> None:
    def main() -> None:
        if how == "exits itself":
            exits(3)
        spawn(exits, 3)
        if how == "returns":
            return
        yield_now()
        park()

    with pytest.raises(SystemExit) as caught:
        run(main)
    assert caught.value.__context__ is None


def test_run_ends_without_memory_for_a_reason(child: Child) -> None:
    """The n-th request after main's failure is refused, alone or with all that follow."""
    pytest.importorskip("_testcapi")
    done = child(
        """
        import _testcapi
        from pyfiber import Cancelled, run, sleep, spawn, yield_now

        def waits():
            try:
                sleep(60)
            except Cancelled as exc:
                if exc.reason is None:
                    without_reason.append(exc)
                raise

        def main(n, width):
            spare = [(i, i) for i in range(3000)]  # the interpreter's own, so that none is left
            for _ in range(3):
                spawn(waits)
            yield_now()
            _testcapi.set_nomemory(n, n + width)
            raise ValueError

        def outcome(n, width):
            try:
                run(main, n, width)
            except expected as exc:
                _testcapi.remove_mem_hooks()
                return type(exc).__name__

        expected = ValueError, MemoryError
        without_reason = []
        print({outcome(n, width) for width in (1, 3, 1000) for n in range(50)})
        print(len(without_reason) > 0)
        """,
        check=False,  # who is cancelled may fail for want of memory, too, which is logged
    )
    assert done.returncode == 0, done.stderr
    kinds, cancelled = done.stdout.splitlines()
    assert kinds in ("{'ValueError', 'MemoryError'}", "{'MemoryError', 'ValueError'}")
    assert cancelled == "True"


def test_fiber_started_while_the_answer_of_a_run_is_made_leads_back() -> None:
    """The run's loop was over, and yet the fiber that had run it could be nobody's parent: the
    switch looked for another for ever.
    """
    log: list[Any] = []
    before = sys.gettrace()

    def main() -> None:
        log.append(Fiber(lambda: "back"))  # its parent will have ended
        current().cancel()
        park()

    def tracer(frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_globals.get("__name__") == "pyfiber._cancelled" and len(log) == 1:
            log.append(None)
            log[-1] = log[0].switch()
        return None

    sys.settrace(tracer)
    try:
        with pytest.raises(FiberCancelled):
            run(main)
    finally:
        sys.settrace(before)
    assert log[1:] == ["back"]
