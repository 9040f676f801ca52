"""What a type checker makes of the package: small programs, checked with mypy."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import pyfiber

pytestmark = pytest.mark.slow  # mypy takes seconds to begin

ACCEPTED = """
import signal
import threading
from collections.abc import Generator
from typing import Any, Literal, assert_type

import pyfiber
from pyfiber import Fiber, FiberCancelled, Outcome, Scheduler, current, park, run, spawn
from pyfiber.grains import Grain


def number(a: int, b: str = "") -> float:
    return 1.0


def keyword(*, x: int) -> bytes:
    return b""


def nothing() -> str:
    return ""


def steps() -> Generator[float, None, int]:
    yield 0.5
    return 1


class Worker(Fiber[int]):
    def __init__(self, n: int) -> None:
        super().__init__(name=f"worker {n}")
        self.n = n

    def run(self) -> int:
        return self.n


# The function's parameters and result come through.
assert_type(run(number, 1, "x"), float)
assert_type(run(number, 1, b="x"), float)
assert_type(spawn(number, 1), Fiber[float])
assert_type(spawn(number, 1, b="x").result(), float)
assert_type(spawn(lambda: 3).result(timeout=1), int)
assert_type(Fiber(number, (1, "x")), Fiber[float])
assert_type(Fiber(number, (1,)), Fiber[float])
assert_type(Fiber(number, [1]), Fiber[float])
assert_type(Fiber(keyword, kwargs={"x": 1}), Fiber[bytes])
assert_type(Fiber(number, (), {"a": 1}), Fiber[float])
assert_type(Fiber(nothing, name="n", daemon=True, stack_size=65536).start(), Fiber[str])
assert_type(Worker(3).start(), Worker)
assert_type(Worker(3).result(), int)
assert_type(Scheduler().run(number, 1), float)


# Structured: a block under timeout() has run to its end, one that may be moved on from has not.
def limited() -> int:
    with pyfiber.timeout(1):
        return 3


def moved_on() -> int | None:
    with pyfiber.move_on_after(1) as scope:
        return 3
    assert_type(scope.cancelled(), bool)
    return None


def grouped() -> float | None:
    with pyfiber.TaskGroup() as group:
        assert_type(group.spawn(number, 1, b="x"), Fiber[float])
        assert_type(group.spawn(Worker(3)), Fiber[int])
        assert_type(group.spawn(Grain(steps)), Grain[int])
        return group.spawn(number, 1).result()
    return None


assert_type(pyfiber.gather(nothing, Fiber(nothing)), list[str])
assert_type(pyfiber.gather(nothing, return_exceptions=True), list[str | Exception])
assert_type(pyfiber.current_scheduler(), Scheduler)
assert_type(pyfiber.threads.OneThread("n").run(number, 1, b="x"), float)
with pyfiber.threads.OneThread() as one:
    assert_type(one, pyfiber.threads.OneThread)
emitted: pyfiber.FiberGenerator[str] = pyfiber.generator(number)(1, b="x")
with emitted as values:
    assert_type(next(values), str)
    assert_type([value for value in values], list[str])
assert_type(pyfiber.race(Grain(steps), Grain(steps)), int)
assert_type(pyfiber.race(nothing, nothing), str)
assert_type(pyfiber.first_success(nothing), str)
assert_type(list(pyfiber.pmap(number, [1], limit=2)), list[float])
assert_type(Scheduler().spawn(nothing), Fiber[str])
Scheduler().call_soon_threadsafe(number, 1, "x")

# A Fiber[str] is a Fiber[object].
general: Fiber[object] = Fiber(nothing)

# An outcome can be matched.
outcome = Fiber(nothing).outcome
assert_type(outcome, Outcome[str] | None)
match outcome:
    case pyfiber.Ok(value):
        assert_type(value, str)
    case pyfiber.Failed(exception):
        assert_type(exception, BaseException)
    case pyfiber.CancelledOutcome(reason):
        print(reason)
    case None:
        print("still running")

try:
    spawn(nothing).result()
except FiberCancelled as exc:
    print(exc.reason)

current().parent = current()
current().name = "new"
spawn(nothing).add_done_callback(lambda fiber: print(fiber.result().upper()))
print(park(), park(1.5), park(timeout=None))

# Between fibers.
numbers: pyfiber.Channel[int] = pyfiber.Channel()
words: pyfiber.Channel[str] = pyfiber.Channel(3)
assert_type([number for number in numbers], list[int])
assert_type(words.receive(timeout=1), str)
assert_type(pyfiber.select(numbers.receiving()), tuple[Literal[0], int])
assert_type(pyfiber.select(numbers.receiving(), timeout=1), tuple[Literal[0], int] | None)
with numbers:
    match pyfiber.select(
        numbers.receiving(), words.sending("x"), spawn(nothing).joining(), timeout=2
    ):
        case 0, value_received:
            assert_type(value_received, int)
        case 1, sent:
            assert_type(sent, None)
        case 2, joined:
            assert_type(joined, None)
        case None:
            pass
items: pyfiber.Queue[int] = pyfiber.PriorityQueue(3)
assert_type(items.getting(), pyfiber.Case[int])
stop = pyfiber.Event()
match pyfiber.select(items.getting(), items.putting(3), stop.waiting(), words.receiving()):
    case 0, item_got:
        assert_type(item_got, int)
    case 3, word:
        assert_type(word, str)
    case _, other:
        assert_type(other, None)
perhaps: float | None = None
chosen = pyfiber.select(numbers.receiving(), words.receiving(), timeout=perhaps)
if chosen is not None:
    assert_type(chosen[1], int | str)
    if chosen[0] == 1:
        assert_type(chosen[1], str)
assert_type(pyfiber.select(*[numbers.receiving(), items.getting()]), tuple[int, int])
either: pyfiber.Case[int | str] = numbers.receiving()
items.put(3, block=False)
assert_type(items.get(timeout=1), int)
with pyfiber.Lock(), pyfiber.Semaphore(2), pyfiber.Condition(threading.Lock()) as got:
    assert_type(got, bool)
assert_type(pyfiber.Condition().wait_for(lambda: 3), int)
assert_type(pyfiber.Barrier(2, action=nothing).wait(), int)
with pyfiber.signals(signal.SIGTERM, signal.SIGHUP) as named:
    assert_type(named.get(), signal.Signals)
with pyfiber.signals(15) as numbered:
    assert_type(next(numbered), int)
own = pyfiber.local()
own.anything = 3
assert_type(own.anything, Any)
print(pyfiber.debug.stack_stats()[0]["live"] + 1, Scheduler().stats()["switches"] + 1)
"""

PREAMBLE = """
import pyfiber
import pyfiber.greenlet
from pyfiber import Fiber, run, spawn

def number(a: int, b: str = "") -> float: return 1.0
def nothing() -> str: return ""
"""

REFUSED = [
    "spawn(number)",
    "spawn(number, 'x')",
    "run(number, 1, c=2)",
    "run(3)",
    "Fiber(number)",
    "Fiber(number, ('x',))",
    "Fiber(number, (1, 'x', 3))",
    "Fiber(3)",
    "Fiber(nothing, name=3)",
    "Fiber(nothing, (), None, 'name')",
    "Fiber(nothing).switch(1, 2)",
    "Fiber(nothing).throw('x')",
    "Fiber(nothing).join('x')",
    "Fiber(nothing).state = 'new'",
    "Fiber(nothing).parent = None",
    "spawn(nothing).result().no_such_method()",
    "pyfiber.sleep('x')",
    "pyfiber.Scheduler().call_soon_threadsafe(number, 'x')",
    "pyfiber.Channel[int]().send('x')",
    "pyfiber.Queue[int]().put('x')",
    "pyfiber.select(pyfiber.Channel[int]())",
    "pyfiber.select(pyfiber.Channel[int]().sending('x'))",
    "pyfiber.select(pyfiber.Queue[int]().putting('x'))",
    "pyfiber.select(pyfiber.Queue[int]())",
    "pyfiber.select(pyfiber.Lock())",
    "pyfiber.select(pyfiber.Event())",
    "pyfiber.select(spawn(nothing))",
    "pyfiber.select(pyfiber.Queue[int]().getting())[1].upper()",
    "pyfiber.Condition(3)",
    "pyfiber.Semaphore('x')",
    "pyfiber.Lock().acquire(wait=True)",
    "pyfiber.generator(number)('x')",
    "pyfiber.generator(3)",
    "pyfiber.threads.OneThread().run(number, 'x')",
    "pyfiber.spwan(nothing)",
    "pyfiber.greenlet.getcurent()",
    "pyfiber.grains.Grian",
    "pyfiber.gather(nothing, return_exception=True)",
]


def environment(place: Path) -> dict[str, str]:
    """mypy finds an installed package by itself and is told where another one is."""
    found = {**os.environ, "MYPY_CACHE_DIR": str(place / "cache")}
    directory = os.path.dirname(os.path.dirname(os.path.abspath(pyfiber.__file__)))
    if directory not in site.getsitepackages():
        found |= {"MYPYPATH": directory, "PYTHONPATH": directory}
    return found


def check(module: str, *arguments: str, place: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mypy")
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
    )


def test_right_programs_are_accepted(tmp_path):
    (tmp_path / "program.py").write_text(ACCEPTED)
    done = check("mypy", "--strict", "program.py", place=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wrong_programs_are_refused(tmp_path):
    source = textwrap.dedent(PREAMBLE) + "\n".join(REFUSED) + "\n"
    (tmp_path / "program.py").write_text(source)
    first = source[: source.index(REFUSED[0])].count("\n") + 1
    done = check("mypy", "--strict", "--no-error-summary", "program.py", place=tmp_path)
    complaints = [line for line in done.stdout.splitlines() if ": error:" in line]
    lines = {int(line.split(":")[1]) for line in complaints}
    accepted = [text for n, text in enumerate(REFUSED, first) if n not in lines]
    assert accepted == [], done.stdout
    assert min(lines) >= first, done.stdout


def test_the_package_itself_is_strict(tmp_path):
    settings = Path(__file__).resolve().parents[2] / "pyproject.toml"
    done = check(
        *("mypy", "--strict", "--config-file", str(settings), "--package", "pyfiber"),
        place=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", ["pyfiber._engine", "pyfiber.greenlet"])
def test_the_stub_says_what_the_module_has(module, tmp_path):
    done = check("mypy.stubtest", module, place=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
