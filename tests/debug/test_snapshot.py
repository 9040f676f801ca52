"""What is told of a process: of this one, without a socket."""

from __future__ import annotations

import _socket
import contextlib
import json
import math
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyfiber.testing
from pyfiber import (
    Condition,
    Event,
    Fiber,
    Lock,
    _engine,
    park,
    run,
    sleep,
    spawn,
    to_thread,
    wait_readable,
    yield_now,
)
from pyfiber._debug import server, snapshot, text
from pyfiber._debug.client import Connection, Failed
from pyfiber.threads import OneThread
from tests.debug.programs import OURS, needs_unix
from tests.support.threads import in_thread


def mine(found: snapshot.Snapshot) -> snapshot.ThreadState:
    return next(each for each in found["threads"] if each["id"] == threading.get_ident())


def apart(main: Callable[[], snapshot.Snapshot], start: Any = run) -> snapshot.Snapshot:
    """What main() has seen of its own thread, where no other test has left a fiber."""

    def alone() -> snapshot.Snapshot:
        found: snapshot.Snapshot = start(main)
        return {**found, "threads": [mine(found)]}

    seen: snapshot.Snapshot = in_thread(alone)
    return seen


def groups(found: snapshot.Snapshot) -> dict[str, snapshot.Group]:
    """By the first name in each; of the only thread."""
    [thread] = found["threads"]
    return {group["names"][0]: group for group in thread["groups"]}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a look takes longer than a slice, and in virtual time nobody may pause."""
    monkeypatch.setattr(snapshot, "SLICE", math.inf)


# what is told -------------------------------------------------------------------------------------


def test_states_waits_and_stacks_are_told() -> None:
    def waits() -> None:
        event.wait()

    def main() -> snapshot.Snapshot:
        for _ in range(3):
            Fiber(waits, name="waiter").start()
        yield_now()
        Fiber(int, name="fresh").start()
        found = snapshot.snapshot()
        event.set()
        return found

    event = Event()
    found = apart(main)
    [thread] = found["threads"]
    told = groups(found)
    waiter = told["waiter"]
    assert (waiter["state"], waiter["count"]) == ("parked", 3)
    assert waiter["names"] == ["waiter"]
    assert waiter["wait"] is not None
    assert waiter["wait"].startswith("waits for <pyfiber.Event at 0x")
    assert waiter["stack"][-1][2].endswith("waits")
    assert (told["fresh"]["state"], told["fresh"]["wait"]) == ("ready", None)
    running = next(name for name in told if name.endswith("main"))
    assert told[running]["state"] == "running"
    assert thread["fibers"] == thread["examined"] == 5


def test_wait_lasts_from_the_park_on() -> None:
    def main() -> tuple[float | None, ...]:
        before = _engine._waited(spawn(int))
        early = spawn(park)
        yield_now()
        sleep(5)
        late = spawn(park)
        yield_now()
        sleep(2)
        found = _engine._waited(early), _engine._waited(late), _engine._waited(pyfiber.current())
        early.unpark()
        late.unpark()
        return before, *found

    assert pyfiber.testing.run(main) == (None, 7.0, 2.0, None)


def test_wait_that_ended_is_forgotten() -> None:
    def main() -> tuple[Any, ...]:
        fiber = spawn(parks_twice)
        yield_now()
        sleep(5)
        fiber.unpark()
        ready = _engine._waited(fiber)
        yield_now()
        again = _engine._waited(fiber)
        fiber.unpark()
        fiber.join()
        return ready, again, _engine._waited(fiber)

    def parks_twice() -> None:
        park()
        park()

    assert pyfiber.testing.run(main) == (None, 0.0, None)


def test_wait_of_what_is_no_fiber_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a Fiber, not 'int'"):
        _engine._waited(7)  # type: ignore[arg-type]


def test_waits_since_the_last_look_are_counted() -> None:
    def main() -> snapshot.Snapshot:
        fibers = [Fiber(park, name="waits").start() for _ in range(3)]
        yield_now()
        sleep(5)
        fibers[0].unpark()
        fibers[0] = Fiber(park, name="waits").start()
        yield_now()
        sleep(1)
        found = snapshot.snapshot(since=2.0)
        for fiber in fibers:
            fiber.unpark()
        return found

    group = groups(apart(main, pyfiber.testing.run))["waits"]
    assert group["moved"] == 1
    assert group["waited"] == (1.0, 6.0)


def wait_of_reader(
    read: Callable[[], Any], theirs: Any, look: Callable[[], snapshot.Snapshot]
) -> str | None:
    """What `look` sees of a fiber that reads, until they send something."""

    def main() -> snapshot.Snapshot:
        fiber = Fiber(read, name="reader").start()
        yield_now()
        found = look()
        theirs.send(b"x")
        fiber.join()
        return found

    return groups(apart(main))["reader"]["wait"]


def test_waits_of_another_threads_fibers_name_their_descriptors() -> None:
    from pyfiber import socket as parking

    ours, theirs = parking.socketpair()
    with ours, theirs:
        wait = wait_of_reader(lambda: ours.recv(1), theirs, lambda: to_thread(snapshot.snapshot))
        assert wait is not None
        assert wait.startswith(f"waits to read from fd {ours.fileno()}, a ")


@pytest.mark.parametrize("plain", [False, True], ids=["number", "socket"])
def test_wait_for_a_foreign_descriptor_names_it(plain: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        what = ours if plain else ours.fileno()
        wait = wait_of_reader(lambda: wait_readable(what), theirs, snapshot.snapshot)
        assert wait is not None
        assert wait.startswith(f"waits to read from fd {ours.fileno()}, a ")


class Noisy:
    """Code of the program."""

    def __repr__(self) -> str:
        raise AssertionError("its repr was called")

    def __call__(self) -> None:
        pass

    work = __call__


class Guarded(Noisy):
    """A lock."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@pytest.mark.parametrize("function", [Noisy(), Noisy().work], ids=["object", "method"])
def test_function_in_a_thread_is_told_without_its_repr(function: Any) -> None:
    """It may be slow, or not made for this thread: that of a method asks its object."""

    def main() -> snapshot.Snapshot:
        with OneThread() as thread:
            blocker = Fiber(thread.run, (gate.wait,), name="blocker").start()
            Fiber(thread.run, (function,), name="job").start()
            yield_now()
            try:
                return snapshot.snapshot()
            finally:
                gate.set()
                blocker.join()

    gate = threading.Event()
    wait = groups(apart(main))["job"]["wait"]
    assert wait is not None
    assert re.fullmatch(
        r"waits for <to_thread job (Noisy\.\w+|<.*Noisy object at 0x\w+>) \w+>", wait
    )


def test_condition_of_a_foreign_lock_is_told_without_its_repr() -> None:
    def waits() -> None:
        with condition:
            condition.wait()

    def main() -> snapshot.Snapshot:
        Fiber(waits, name="waiter").start()
        yield_now()
        found = snapshot.snapshot()
        with condition:
            condition.notify()
        return found

    condition = Condition(Guarded())
    wait = groups(apart(main))["waiter"]["wait"]
    assert wait is not None
    assert re.fullmatch(r"waits for <pyfiber\.Condition at 0x\w+>", wait)


class Evil(type):
    """No hash, no equality."""

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError


def test_fiber_that_waits_for_something_odd_does_not_spoil_the_answer() -> None:
    class Odd(Event, metaclass=Evil):
        pass

    class OfNoModule(Event):
        __module__ = 3  # type: ignore[assignment]

    def main() -> snapshot.Snapshot:
        events = [Odd(), OfNoModule()]
        for number, event in enumerate(events):
            Fiber(event.wait, name=f"waiter {number}").start()
        yield_now()
        found = snapshot.snapshot()
        for event in events:
            event.set()
        return found

    found = apart(main)
    waits = [groups(found)[f"waiter {number}"]["wait"] for number in range(2)]
    assert waits[0] is not None
    assert waits[0].startswith("waits for <tests.")
    assert waits[1] == "waits for something that cannot be described: AttributeError"


def test_fiber_that_cannot_be_told_of_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fiber: object) -> None:
        raise MemoryError

    def main() -> snapshot.Snapshot:
        fibers = [Fiber(park, name="waits").start() for _ in range(3)]
        yield_now()
        found = snapshot.snapshot()
        for fiber in fibers:
            fiber.unpark()
        return found

    monkeypatch.setattr(_engine, "_places", refuse)
    found = apart(main)
    assert "  3 fibers, '?': parked cannot be described: MemoryError, and so on\n" in text.page(
        found, os.getpid()
    )


def test_stack_that_is_long_is_cut_in_the_middle() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        else:
            park()

    def main() -> snapshot.Snapshot:
        fiber = Fiber(deep, (200,), name="deep").start()
        yield_now()
        found = snapshot.snapshot()
        fiber.unpark()
        return found

    found = apart(main)
    stack = groups(found)["deep"]["stack"]
    assert len(stack) == snapshot.MOST_CALLS + 1
    assert stack[snapshot.MOST_CALLS // 2] == (None, 201 - snapshot.MOST_CALLS, "")
    assert "      ... 141 calls\n" in text.page(found, os.getpid())


def test_names_and_waits_that_are_long_are_cut() -> None:
    def main() -> snapshot.Snapshot:
        fiber = Fiber(park, name="n" * 10_000).start()
        joins = Fiber(fiber.join, name="joins").start()
        yield_now()
        found = snapshot.snapshot()
        fiber.unpark()
        joins.join()
        return found

    told = groups(apart(main))
    assert max(map(len, told)) == snapshot.LONGEST_NAME + 3
    wait = told["joins"]["wait"]
    assert wait is not None
    assert len(wait) == snapshot.LONGEST_WAIT + 3


def test_fibers_beyond_the_budget_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "BUDGET", 0.01)
    monkeypatch.setattr(snapshot, "SLICE", 0.0)
    monkeypatch.setattr(snapshot, "PAUSE", 0.0)
    monkeypatch.setattr(snapshot.time, "perf_counter", counter())
    everybody = _engine._threads
    monkeypatch.setattr(  # for others no time is spent
        _engine,
        "_threads",
        lambda: [each for each in everybody() if each[0] == threading.get_ident()],
    )

    def main() -> snapshot.Snapshot:
        fibers = [Fiber(park, name="waits").start() for _ in range(1000)]
        yield_now()
        found = snapshot.snapshot()
        for fiber in fibers:
            fiber.unpark()
        return found

    found = apart(main)
    [thread] = found["threads"]
    assert thread["fibers"] == 1001
    assert 0 < thread["examined"] < 20
    left = 1001 - thread["examined"]
    assert f"and {left} fibers more: to examine all would take too long" in text.page(
        found, os.getpid()
    )
    assert f"and {left} fibers not examined" in text.screen(found, None, 200, 50)


def counter() -> Any:
    """A clock that goes on by a millisecond whenever it is read."""
    ticks = iter(range(10**6))
    return lambda: next(ticks) / 1000


def test_answer_keeps_no_fiber() -> None:
    def main() -> int:
        fibers = [Fiber(park, name="waits").start() for _ in range(10)]
        yield_now()
        snapshot.snapshot()
        for fiber in fibers:
            fiber.cancel()
        del fibers, fiber
        yield_now()
        yield_now()
        return len(pyfiber.current_scheduler().fibers())

    assert run(main) == 1


# questions ----------------------------------------------------------------------------------------


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """To a thread of this process that answers."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(60)
        thread = in_background(theirs.detach())
        yield ours
    thread.join()


def in_background(number: int) -> threading.Thread:
    thread = threading.Thread(target=lambda: server.serve(_socket.socket(fileno=number)))
    thread.start()
    return thread


@needs_unix
def test_many_questions_on_one_connection(connection: socket.socket) -> None:
    asked = Connection(connection, 0, OURS)
    for _ in range(3):
        assert asked.ask()["pyfiber"] == pyfiber.__version__


@needs_unix
@pytest.mark.parametrize(
    ("question", "error"),
    [
        (b"{}", "KeyError"),
        (b"[]", "TypeError"),
        (b"\xff", "UnicodeDecodeError"),
        (b'{"protocol": 99}', "this process speaks version 1"),
        (b'{"protocol": 1, "since": "x"}', "ValueError"),
    ],
)
def test_question_that_is_none_is_answered_with_an_error(
    connection: socket.socket, question: bytes, error: str
) -> None:
    connection.sendall(question + b"\n")
    answer = connection.makefile("rb").readline()
    assert error in json.loads(answer)["error"]


@needs_unix
def test_question_that_does_not_end_ends_the_connection(connection: socket.socket) -> None:
    connection.sendall(b"x" * (server.LONGEST_QUESTION + 1))
    with contextlib.suppress(ConnectionResetError):  # it had not read all
        assert connection.recv(1) == b""


@needs_unix
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-OpenSSH\n", "cannot be understood"),
        (b"7\n", "cannot be understood"),
        (b'{"protocol": 2}\n', "another version of pyfiber"),
        (b'{"protocol": 1, "error": "no"}\n', "the process refuses: no"),
        (b"", "has ended, or has closed its socket"),
    ],
)
def test_answer_that_is_none_is_refused_in_words(answer: bytes, error: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        if not answer:
            theirs.close()
        with pytest.raises(Failed, match=error):
            Connection(ours, 4242, OURS).ask()


@needs_unix
def test_process_that_does_not_answer_is_told_of() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.01)
        with pytest.raises(Failed, match=r"process 4242 does not answer within 0\.01 s"):
            Connection(ours, 4242, OURS).ask()


def test_refusal_of_the_other_side_is_escaped() -> None:
    """It is printed on the terminal."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(json.dumps({"protocol": 1, "error": "\x1b[2J"}).encode() + b"\n")
        with pytest.raises(Failed, match=r"the process refuses: \\x1b\[2J$"):
            Connection(ours, 4242, OURS).ask()


def test_default_timeout_of_the_program_is_not_that_of_answers() -> None:
    """A client may wait before it asks."""
    socket.setdefaulttimeout(0.001)
    try:
        ours, theirs = socket.socketpair()
        thread = in_background(theirs.detach())
    finally:
        socket.setdefaulttimeout(None)
    with ours:
        ours.settimeout(0.1)
        with pytest.raises(TimeoutError):
            ours.recv(1)  # it has not hung up
        ours.settimeout(60)
        assert Connection(ours, os.getpid(), OURS).ask()["pid"] == os.getpid()
    thread.join()


# threads that only watch --------------------------------------------------------------------------


def test_many_threads_may_watch_but_not_any_number() -> None:
    over = threading.Event()
    begun = threading.Semaphore(0)
    granted: list[bool] = []

    def watch() -> None:
        granted.append(_engine._only_watches())
        granted[-1] = granted[-1] and _engine._only_watches()  # it has its place already
        begun.release()
        over.wait()

    threads = [threading.Thread(target=watch) for _ in range(520)]
    for thread in threads:
        thread.start()
        begun.acquire()
    over.set()
    for thread in threads:
        thread.join()
    assert granted.count(True) >= 500
    assert granted[-1] is False
    assert in_thread(_engine._only_watches)  # the others' places are free again


# words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1e-9, "0 us"),
        (0.00012, "120 us"),
        (0.0031, "3.1 ms"),
        (0.25, "250 ms"),
        (0.9999, "1 s"),
        (1.25, "1.2 s"),
        (12.4, "12 s"),
        (59.6, "60 s"),
        (125, "2 min 5 s"),
        (3600 * 3 + 60 * 10, "3 h 10 min"),
    ],
)
def test_time_in_words(seconds: float, words: str) -> None:
    assert text.time_text(seconds) == words


def test_screen_keeps_to_its_size() -> None:
    def main() -> snapshot.Snapshot:
        fibers = [Fiber(park, name=f"{n} {'x' * 80}").start() for n in range(30)]
        parents = [Fiber(fiber.join, name=fiber.name).start() for fiber in fibers]
        yield_now()
        found = snapshot.snapshot()
        for fiber in fibers:
            fiber.unpark()
        for fiber in parents:
            fiber.join()
        return found

    lines = text.screen(apart(main), None, 60, 10).splitlines()
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 60
    assert lines[-1].endswith(" groups more")


def test_source_is_shown_of_python_files_only() -> None:
    sources = text.Sources(0)
    assert (
        sources.line(__file__, 1)
        == '"""What is told of a process: of this one, without a socket."""'
    )
    assert sources.line("/etc/passwd", 1) == ""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_source_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "source.py")
    assert text.Sources(0).line(str(tmp_path / "source.py"), 1) == ""
