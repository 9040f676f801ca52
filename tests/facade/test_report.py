"""Reports: the wait graph of a deadlock, `dump_fibers()` and `dump_on_signal()`."""

from __future__ import annotations

import io
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from pyfiber import (
    Fiber,
    Scheduler,
    TaskGroup,
    _engine,
    _report,
    await_future,
    current,
    park,
    run,
    sleep,
    spawn,
    to_thread,
    yield_now,
)
from pyfiber.debug import dump_fibers, dump_on_signal
from tests.conftest import Child
from tests.support.threads import in_thread

needs_signals = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs SIGUSR1")


class Thing:
    """Stands for a primitive: fibers wait for it, and it names its holders."""

    def __init__(self, name: str, *holders: Any) -> None:
        self.name = name
        self.holders = list(holders)
        self.latch = _engine._Latch()

    def wait(self) -> None:
        self.latch.wait(None, self)

    def _holders(self) -> list[Any]:
        return self.holders

    def __repr__(self) -> str:
        return f"<Thing {self.name}>"


def text_of(main: Callable[[], None]) -> str:
    """The report on the fibers that are left when `main` returns and they wait."""
    scheduler = Scheduler()
    scheduler.spawn(main)
    while scheduler.stats()["ready"]:
        scheduler.run_once()
    text = _report.deadlock_text(scheduler.fibers())
    scheduler.close()
    return text


def plain(text: str) -> str:
    """Without addresses."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def fiber_of(function: Callable[..., object], *args: Any, name: str) -> Fiber[Any]:
    return Fiber(function, args, name=name).start()


# the wait graph -----------------------------------------------------------------------------------


def test_report_names_what_is_waited_for_and_who_holds_it() -> None:
    def main() -> None:
        owner = fiber_of(park, name="owner")
        fiber_of(Thing("lock", owner).wait, name="waiter")

    text = plain(text_of(main))
    assert "2 fibers wait" in text
    assert "'waiter' parked" in text
    assert "waits for <Thing lock>, held by fiber 'owner'\n" in text
    assert "'owner' parked" in text
    assert "waits in park()" in text
    assert "wait for each other" not in text


def test_report_names_the_cycle() -> None:
    def main() -> None:
        one, two = Thing("one"), Thing("two")
        one.holders.append(fiber_of(two.wait, name="A"))
        two.holders.append(fiber_of(one.wait, name="B"))
        fiber_of(one.wait, name="outside")

    text = plain(text_of(main))
    cycle = text[text.index("they wait for each other") :].splitlines()[:3]
    assert cycle == [
        "they wait for each other:",
        "  fiber 'A' waits for <Thing two>, held by fiber 'B'",
        "  fiber 'B' waits for <Thing one>, held by fiber 'A'",
    ]


def test_report_names_a_cycle_of_joins_and_things() -> None:
    def main() -> None:
        lock = Thing("lock")
        fibers: list[Fiber[Any]] = []
        fibers.append(fiber_of(lambda: fibers[1].join(), name="joins"))
        fibers.append(fiber_of(lock.wait, name="locks"))
        lock.holders.append(fibers[0])

    text = plain(text_of(main))
    assert "  fiber 'joins' waits for the end of fiber 'locks'\n" in text
    assert "  fiber 'locks' waits for <Thing lock>, held by fiber 'joins'\n" in text


def test_report_names_a_fiber_that_waits_for_itself() -> None:
    def main() -> None:
        lock = Thing("lock")
        lock.holders.append(fiber_of(lock.wait, name="self"))

    text = plain(text_of(main))
    assert "waits for <Thing lock>, held by itself\n" in text


def test_report_of_a_long_chain_needs_no_recursion() -> None:
    chain: list[Fiber[Any]] = []

    def main() -> None:
        fiber = fiber_of(park, name="end")
        for _ in range(3000):
            fiber = fiber_of(fiber.join, name="link")
            chain.append(fiber)

    assert "wait for each other" not in text_of(main)
    assert len(chain) == 3000


def test_report_names_threads_and_cuts_long_lists() -> None:
    thread = threading.current_thread()

    def main() -> None:
        fiber_of(Thing("pool", *[thread] * 9).wait, name="waiter")

    assert f"held by {', '.join([f'thread {thread.name!r}'] * 5)}, 4 more" in text_of(main)


def test_report_has_the_stacks() -> None:
    def parks_here() -> None:
        park()

    text = text_of(parks_here)
    assert "in parks_here\n    park()" in text


def test_report_survives_things_that_fail() -> None:
    class Hostile(Thing):
        def __repr__(self) -> str:
            raise ValueError("no repr")

        def _holders(self) -> list[Any]:
            raise ValueError("no holders")

    text = text_of(lambda: Hostile("hostile").wait())
    assert "waits for <Hostile at 0x" in text
    assert "no repr" in text


def test_report_of_a_future_and_a_thread_job() -> None:
    future: Future[None] = Future()
    leave = threading.Event()
    lines: list[str] = []

    def main() -> None:
        fibers = [spawn(await_future, future), spawn(to_thread, leave.wait)]
        yield_now()
        lines.extend(_report.wait_of(fiber) for fiber in fibers)
        future.set_result(None)
        leave.set()

    run(main)
    assert lines[0].startswith("waits for <Future at")
    assert lines[1].startswith("waits for <to_thread job")


def test_deadlock_error_names_the_cycle(child: Child) -> None:
    done = child(
        """
        from pyfiber import *
        def main():
            a = Fiber(lambda: b.join(), name="A").start()
            b = Fiber(lambda: a.join(), name="B").start()
        try:
            run(main)
        except DeadlockError as exc:
            print(exc)
        """
    )
    assert "they wait for each other:\n  fiber 'A'" in done.stdout


# dump_fibers --------------------------------------------------------------------------------------


def dumped(**options: Any) -> str:
    file = io.StringIO()
    dump_fibers(file, **options)
    return plain(file.getvalue())


def test_dump_lists_fibers_with_stacks_by_scheduler() -> None:
    def waits_here() -> None:
        park(20)

    def main() -> str:
        parked = fiber_of(waits_here, name="parked")
        fiber_of(int, name="not yet run")
        raw = Fiber(current().switch, name="raw")
        raw.switch()
        yield_now()
        late = fiber_of(int, name="new")
        text = dumped()
        parked.unpark()
        late.join()
        raw.switch()
        return text

    text = in_thread(lambda: run(main))  # where no other test has left any
    assert re.match(r"thread '[^']+' \(\d+\): 4 fibers\n", text)
    assert "<pyfiber.Scheduler object>, running\n" in text
    assert "main' running>\n" in text
    assert "in dumped" in text  # the running fiber's stack ends in the call
    assert re.search(r"'parked' parked, target .*> waits in park\(\)\n", text)
    assert "in waits_here" in text
    assert "'new' ready" in text
    assert "  raw fibers\n" in text
    assert re.search(r"'raw' parked, target .*> was left by a direct switch\n", text)


def test_dump_outside_of_a_run() -> None:
    current()
    text = dumped()
    assert "running on the thread's own stack" in text
    assert "in dumped" in text


def test_dump_of_a_thread_without_fibers() -> None:
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(dumped()))
    thread.start()
    thread.join()
    assert texts == ["no fibers\n"]


def test_dump_goes_to_stderr_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    run(dump_fibers)
    assert "fiber" in capsys.readouterr().err


def test_dump_of_all_threads() -> None:
    begun, leave = threading.Event(), threading.Event()

    def parks_elsewhere() -> None:
        park(20)

    def blocks_elsewhere() -> None:
        begun.set()
        leave.wait(20)

    def loop() -> None:
        def main() -> None:
            fiber = fiber_of(parks_elsewhere, name="theirs")
            yield_now()
            blocks_elsewhere()
            fiber.unpark()

        run(main)

    thread = threading.Thread(target=loop, name="the other")
    thread.start()
    begun.wait(20)
    text = run(lambda: dumped(all_threads=True))
    own = run(dumped)
    leave.set()
    thread.join()
    assert "thread 'the other'" in text
    assert "in parks_elsewhere" in text
    assert "in blocks_elsewhere" in text
    assert "the other" not in own


def test_dump_shows_groups_as_a_tree() -> None:
    class Group:
        def __init__(self, name: str, fiber: Any) -> None:
            self.name = name
            self._parent_fiber = fiber

        def __repr__(self) -> str:
            return f"<Group {self.name}>"

    class Member(Fiber[None]):
        _group: Any = None  # type: ignore[assignment]

        def run(self) -> None:
            park(20)

    def main() -> str:
        host = Member(name="host").start()
        outer = Group("outer", host)
        middle, inner = Member(name="middle"), Member(name="inner")
        middle._group = outer
        inner._group = Group("inner", middle)
        for fiber in middle, inner:
            fiber.start()
        yield_now()
        text = dumped()
        for fiber in host, middle, inner:
            fiber.unpark()
        return text

    lines = [line for line in run(main).splitlines() if "File" not in line and "<" in line]
    depth = {
        name: len(line) - len(line.lstrip()) for line in lines for name in line.split("'")[1:2]
    }
    groups = {line.strip(): len(line) - len(line.lstrip()) for line in lines if "Group" in line}
    assert depth["host"] == groups["<Group outer>"]
    assert depth["middle"] == groups["<Group outer>"] + 4 == groups["<Group inner>"]
    assert depth["inner"] == groups["<Group inner>"] + 4


def test_dump_shows_task_groups() -> None:
    def inner() -> None:
        with TaskGroup() as group:
            fiber = group.spawn(park)
            fiber.name = "inner"
            yield_now()
            texts.append(dumped())
            fiber.unpark()

    def main() -> None:
        with TaskGroup() as group:
            group.spawn(inner).name = "outer"

    texts: list[str] = []
    in_thread(lambda: run(main))
    lines = [line for line in texts[0].splitlines() if line.lstrip().startswith("<")]
    places = [len(line) - len(line.lstrip()) for line in lines]
    kinds = [line.split()[0].lstrip("<").removeprefix("pyfiber.") for line in lines]
    assert kinds == [
        "Scheduler",
        "Fiber",
        "TaskGroup",
        "Fiber",
        "TaskGroup",
        "Fiber",
    ]
    assert [place - places[1] for place in places[1:]] == [0, 0, 4, 4, 8]


def test_dump_survives_groups_that_go_in_circles() -> None:
    class Member(Fiber[None]):
        _group: Any = None  # type: ignore[assignment]

    class Group:
        _parent_fiber: Any = None

    member, group = Member(int), Group()
    member._group, group._parent_fiber = group, member
    assert _report.groups_of(member) == [group]


def test_dump_survives_a_repr_that_waits() -> None:
    class Target:
        def __call__(self) -> None:
            park(20)

        def __repr__(self) -> str:
            yield_now()
            return "the target"

    def main() -> str:
        fiber = Fiber(Target(), name="name").start()
        yield_now()
        text = dumped()
        fiber.unpark()
        return text

    assert "the target" in run(main)


# dump_on_signal -----------------------------------------------------------------------------------


@needs_signals
def test_signal_prints_while_a_fiber_runs() -> None:
    file = io.StringIO()

    def runs_here() -> None:
        signal.raise_signal(signal.SIGUSR1)

    with dump_on_signal(signal.SIGUSR1, file):
        run(runs_here)
    assert "in runs_here" in file.getvalue()


@needs_signals
def test_signal_prints_while_the_loop_is_idle() -> None:
    file = io.StringIO()

    def parks_here() -> None:
        park(20)

    def main() -> None:
        fiber = spawn(parks_here)
        yield_now()  # now it is there
        ident = threading.get_ident()
        to_thread(lambda: signal.pthread_kill(ident, signal.SIGUSR1))
        for _ in range(20_000):
            if file.getvalue():
                break
            sleep(0.001)
        fiber.unpark()

    with dump_on_signal(signal.SIGUSR1, file):
        run(main)
    text = file.getvalue()
    assert "in parks_here" in text


@needs_signals
def test_signal_to_an_idle_loop_says_so(child: Child) -> None:
    done = child(
        """
        import io, os, signal, threading
        from pyfiber import *
        from pyfiber.debug import dump_on_signal
        class File(io.StringIO):
            def flush(self):
                fiber.unpark()
        def main():
            global fiber
            fiber = current()
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            park(20)
        file = File()
        with dump_on_signal(signal.SIGUSR1, file):
            run(main)
        print("the loop is idle" in file.getvalue(), "waits in park()" in file.getvalue())
        """
    )
    assert done.stdout == "True True\n"


@needs_signals
def test_signal_can_be_undone() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        dump = dump_on_signal(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) != signal.SIG_IGN
        dump.undo()
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
        dump.undo()
        with dump_on_signal(signal.SIGUSR1) as second:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL  # somebody else's: kept
        second.undo()
    finally:
        signal.signal(signal.SIGUSR1, before)


@needs_signals
def test_signals_undone_out_of_order_leave_the_handler_from_before() -> None:
    """The last undo brought back a handler that had been undone."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        dumps = [dump_on_signal(signal.SIGUSR1) for _ in range(4)]
        for number in (1, 2, 3):
            dumps[number].undo()
        assert signal.getsignal(signal.SIGUSR1) == dumps[0]._handle
        dumps[0].undo()
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


@needs_signals
def test_signal_while_it_prints_is_ignored() -> None:
    class Raising(io.StringIO):
        def write(self, text: str) -> int:
            if self.tell() == 0:
                super().write(text)
                signal.raise_signal(signal.SIGUSR1)
            return len(text)

    file = Raising()
    with dump_on_signal(signal.SIGUSR1, file):
        run(lambda: signal.raise_signal(signal.SIGUSR1))
    assert file.getvalue().count("thread 'MainThread'") <= 1


def test_signal_outside_of_the_main_thread_is_refused() -> None:
    caught: list[BaseException] = []

    def body() -> None:
        try:
            dump_on_signal(signal.SIGTERM)
        except ValueError as exc:
            caught.append(exc)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_signal_that_does_not_exist_is_refused() -> None:
    with pytest.raises((ValueError, OSError)):
        dump_on_signal(10_000)
