"""The latch that done-callbacks, pmap and compose wait for."""

from __future__ import annotations

import pytest

from pyfiber import FiberError, run, spawn, yield_now
from tests.support.threads import in_thread


def test_latch_serves_all_that_wait() -> None:
    from pyfiber import _engine

    latch = _engine._Latch()

    def main() -> None:
        fiber = spawn(latch.wait, None, "the latch")
        yield_now()
        assert fiber.waiting_on == "the latch"
        another = spawn(latch.wait, None, "the latch")
        yield_now()
        assert not latch.is_set()
        in_thread(latch.set)
        assert fiber.result() is True
        assert another.result() is True
        in_thread(latch.set)
        assert latch.wait(0, "the latch") is True

    run(main)
    with pytest.raises(TypeError):
        latch.wait(1)  # type: ignore[call-arg]
    with pytest.raises(FiberError, match="needs a running scheduler"):
        _engine._Latch().wait(None, "nothing")


def test_latch_that_rings_is_not_set() -> None:
    from pyfiber import _engine

    latch = _engine._Latch()

    def main() -> None:
        for ring in latch.ring, lambda: in_thread(latch.ring):
            fiber = spawn(latch.wait, None, "a ring")
            yield_now()
            ring()
            assert fiber.result() is True
        assert not latch.is_set()
        assert latch.wait(0, "a ring that is over") is False

    run(main)
