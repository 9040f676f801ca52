"""_Explorer.configure(): each wrong argument has an error of its own that says what to do."""

from __future__ import annotations

import pytest

from pyfiber import FiberError, Scheduler, _engine


@pytest.fixture
def explorer():
    scheduler = Scheduler()
    yield _engine._Explorer(scheduler, lambda: RuntimeError("too long"), lambda fiber: False)
    scheduler.close()


@pytest.mark.parametrize("strategy", [-1, 5])
def test_configure_unknown_strategy(explorer, strategy):
    with pytest.raises(ValueError, match=f"there is no strategy {strategy}: use a number from 0"):
        explorer.configure(strategy=strategy)


@pytest.mark.parametrize("depth", [0, 17])
def test_configure_depth_out_of_range(explorer, depth):
    with pytest.raises(ValueError, match=f"depth must be from 1 to 16, not {depth}"):
        explorer.configure(depth=depth)


def test_configure_without_steps(explorer):
    with pytest.raises(ValueError, match="max_steps must be at least 1, not 0"):
        explorer.configure(max_steps=0)


def test_configure_during_a_run(explorer):
    def main():
        with pytest.raises(FiberError, match=r"call configure\(\) before it or after it"):
            explorer.configure()
        return "done"

    explorer.configure()
    assert explorer.run(None, main) == "done"
    explorer.configure()
