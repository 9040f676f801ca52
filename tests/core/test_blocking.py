"""Development mode: a call that blocks a fiber's thread is told of, once for each place."""

from __future__ import annotations

import textwrap

import pytest

from tests.support.gil import PATCH_NEEDS_IT, needs_gil
from tests.support.subprocesses import run_python

#: Blocks until as many warnings have come as are asked for, or for a minute.
PRELUDE = """
import ctypes, logging, os, socket, sys, threading, time
from pyfiber import *
import pyfiber

class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []
        self.changed = threading.Condition()
    def emit(self, record):
        with self.changed:
            self.texts.append(record.getMessage())
            self.changed.notify_all()

kept = Kept()
logging.getLogger("pyfiber").addHandler(kept)
logging.getLogger("pyfiber").propagate = False

def block(count=1):
    with kept.changed:
        assert kept.changed.wait_for(lambda: len(kept.texts) >= count, 60)
"""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this interpreter has been told."""
    monkeypatch.delenv("PYTHONDEVMODE", raising=False)
    monkeypatch.delenv("PYFIBER_WATCHDOG", raising=False)


def printed(code: str, *flags: str, env: dict[str, str] | None = None) -> list[str]:
    done = run_python(*flags, "-c", PRELUDE + textwrap.dedent(code), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


SHOW = """
def other():
    block(1)

def main():
    spawn(other).join()

{run}
print(*kept.texts, sep="\\n")
"""

WAYS = {
    "run(debug=True)": ("run(main, debug=True)", ()),
    "-X dev": ("run(main)", ("-X", "dev")),
    "a scheduler's run in -X dev": ("Scheduler().run(main)", ("-X", "dev")),
    "threads": ("run(main, threads=2, debug=True)", ()),
}


@pytest.mark.parametrize(("run", "flags"), WAYS.values(), ids=WAYS)
def test_call_that_blocks_is_told_with_its_stack_and_a_way_out(
    run: str, flags: tuple[str, ...]
) -> None:
    lines = printed(SHOW.format(run=run), *flags)
    assert lines[0].startswith("fiber 'other' at 0x")
    assert "blocks the loop of thread" in lines[0]
    assert "pyfiber.patch() at the start of the program" in lines[0]
    assert "pyfiber.to_thread()" in lines[0]
    assert any(", in other" in line for line in lines[1:])


def test_environment_switches_it_on_and_off() -> None:
    on = printed(SHOW.format(run="run(main)"), env={"PYTHONDEVMODE": "1"})
    assert "blocks the loop" in on[0]
    code = "run(time.sleep, 0.5); print(kept.texts, _engine._watchdog_start() is not None)"
    off = {"PYTHONDEVMODE": "1", "PYFIBER_WATCHDOG": "0"}
    assert printed("from pyfiber import _engine\n" + code, env=off) == ["[] True"]
    assert printed("from pyfiber import _engine\n" + code) == ["[] True"]


def test_each_place_is_told_of_once() -> None:
    lines = printed(
        """
        def one_place():
            with kept.changed:
                for count, seconds in ((1, 60), (9, 0.3)):
                    kept.changed.wait_for(lambda: len(kept.texts) >= count, seconds)

        def main():
            one_place()
            block(2)

        run(main, debug=True)
        print(*("one_place" in text for text in kept.texts))
        """
    )
    assert lines == ["True False"]


def test_fiber_that_computes_is_not_told() -> None:
    lines = printed(
        """
        def main():
            begun = time.monotonic()
            while time.monotonic() < begun + 0.5:
                pass
            sleep(0.2)  # parks

        run(main, debug=True)
        print(kept.texts)
        """
    )
    assert lines == ["[]"]


@needs_gil(PATCH_NEEDS_IT)
def test_with_patch_only_to_thread_is_advised() -> None:
    lines = printed(
        """
        patch()
        libc = ctypes.CDLL(None)

        def main():
            time.sleep(0.3)  # parks
            while not kept.texts:
                libc.usleep(200_000)

        run(main, debug=True)
        print(*kept.texts, sep="\\n")
        """
    )
    assert "patch() does not reach this call: give the function to pyfiber.to_thread()" in lines[0]
    assert "at the start of the program" not in lines[0]
    assert any(", in main" in line for line in lines)


def test_limit_of_ones_own_comes_first() -> None:
    lines = printed(
        """
        run(block, debug=True, watchdog=0.05)
        print(*kept.texts, sep="\\n")
        """
    )
    assert "does not wait" in lines[0]


def test_debug_is_an_argument_of_run_and_not_of_the_function() -> None:
    code = "run(lambda **given: print(given), debug=False, other=1)"
    assert printed(code) == ["{'other': 1}"]
