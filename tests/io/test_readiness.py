"""Fibers that wait for descriptors: the loop, its poller, and virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyfiber import (
    Fiber,
    FiberCancelled,
    FiberError,
    Scheduler,
    current,
    now,
    park,
    run,
    sleep,
    spawn,
    testing,
    wait_readable,
    wait_writable,
    yield_now,
)
from pyfiber.testing import VirtualClock
from tests.support.subprocesses import run_python, run_script

numbers_of_posix = pytest.mark.skipif(os.name == "nt", reason="only sockets are waited for there")


class Pipe:
    """Its two ends, and what fibers do with them; on Windows they are sockets."""

    def __init__(self) -> None:
        if os.name == "nt":
            self.ends = socket.socketpair()
            self.reader, self.writer = (end.fileno() for end in self.ends)
        else:
            self.reader, self.writer = os.pipe()

    def wait(self, timeout: float | None = None) -> bool:
        """False: it timed out."""
        try:
            wait_readable(self.reader, timeout)
        except TimeoutError:
            return False
        return True

    def fill(self) -> None:
        if os.name == "nt":
            self.ends[1].send(b"x")
        else:
            os.write(self.writer, b"x")

    def empty(self) -> None:
        if os.name == "nt":
            self.ends[0].recv(100)
        else:
            os.read(self.reader, 100)

    def close(self) -> None:
        if os.name == "nt":
            for end in self.ends:
                end.close()
        else:
            os.close(self.reader)
            os.close(self.writer)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    it = Pipe()
    yield it
    it.close()


# the loop -----------------------------------------------------------------------------------------


def test_fiber_goes_on_when_its_descriptor_is_ready(pipe: Pipe) -> None:
    log: list[str] = []

    def read() -> None:
        assert pipe.wait()
        log.append("read")

    def main() -> None:
        wait_writable(pipe.writer)
        fiber = spawn(read)
        yield_now()
        log.append("write")
        pipe.fill()
        fiber.join()

    run(main)
    assert log == ["write", "read"]


def test_one_ready_descriptor_of_many_wakes_one_fiber() -> None:
    pipes = [Pipe() for _ in range(20)]
    log: list[int] = []

    def read(i: int) -> None:
        pipes[i].wait()
        log.append(i)

    def main() -> None:
        fibers = [spawn(read, i) for i in range(20)]
        yield_now()
        for i in (13, 2, 19):
            pipes[i].fill()
            fibers[i].join()
            pipes[i].empty()
        assert log == [13, 2, 19]
        for each in pipes:
            each.fill()

    run(main)
    assert sorted(log) == list(range(20))
    for each in pipes:
        each.close()


@numbers_of_posix
def test_run_that_waits_for_a_descriptor_is_no_deadlock(pipe: Pipe) -> None:
    """Whoever makes it ready need not be of this process."""
    code = f"import os; os.write({pipe.writer}, b'x')"
    child = subprocess.Popen([sys.executable, "-c", code], pass_fds=[pipe.writer])
    assert run(pipe.wait)
    assert child.wait() == 0


def test_run_is_a_deadlock_once_nobody_waits_for_a_descriptor() -> None:
    done = run_script("""
        import socket
        from pyfiber import DeadlockError, park, run, wait_readable

        def main():
            reader, writer = socket.socketpair()
            try:
                wait_readable(reader, 0.001)
            except TimeoutError:
                park()

        try:
            run(main)
        except DeadlockError:
            print("deadlock")
    """)
    assert done.stdout == "deadlock\n"


def test_fibers_that_are_ready_do_not_starve_one_that_waits_for_a_descriptor(pipe: Pipe) -> None:
    def main() -> int:
        fiber = spawn(pipe.wait)
        yield_now()
        pipe.fill()
        turns = 0
        while not fiber.done():
            yield_now()
            turns += 1
        return turns

    assert run(main) < 1000


def test_wait_that_ends_otherwise_leaves_the_descriptor_to_others(pipe: Pipe) -> None:
    def main() -> None:
        assert not pipe.wait(0)
        fiber = spawn(pipe.wait)
        yield_now()
        fiber.cancel()
        with pytest.raises(FiberCancelled):
            fiber.result()
        pipe.fill()
        assert pipe.wait()

    run(main)


def test_fiber_that_is_unwound_while_it_waits_leaves_the_poller(pipe: Pipe) -> None:
    scheduler = Scheduler()
    scheduler.spawn(pipe.wait)
    scheduler.run_once()
    scheduler.close()
    pipe.fill()
    run(pipe.wait)


def test_all_that_wait_for_a_descriptor_are_woken(pipe: Pipe) -> None:
    def main() -> None:
        fibers = [spawn(pipe.wait) for _ in range(3)]
        writer = spawn(wait_writable, pipe.writer)
        yield_now()
        pipe.fill()
        assert [fiber.result() for fiber in fibers] == [True] * 3
        writer.result()

    run(main)


def test_wait_for_both_directions_of_a_descriptor_ends_for_each(pipe: Pipe) -> None:
    left, right = socket.socketpair()
    left.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            left.send(bytes(65536))

    def main() -> None:
        reader = spawn(wait_readable, left)
        writer = spawn(wait_writable, left)
        yield_now()
        right.send(b"x")
        reader.result()
        assert not writer.done()
        right.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                right.recv(2**20)
        writer.result()

    run(main)
    left.close()
    right.close()


@numbers_of_posix
def test_wait_for_a_closed_descriptor_is_refused(pipe: Pipe) -> None:
    def main() -> None:
        closed = os.dup(pipe.reader)
        os.close(closed)
        with pytest.raises(OSError, match="descriptor") as caught:
            wait_readable(closed)
        assert caught.value.errno == errno.EBADF

    run(main)


@numbers_of_posix
def test_wait_for_a_number_that_was_closed_and_opened_again_finds_the_new_file(pipe: Pipe) -> None:
    def main() -> None:
        for _ in range(3):
            reader, writer = os.pipe()
            with pytest.raises(TimeoutError):
                wait_readable(reader, 0.001)
            fiber = spawn(wait_readable, reader)
            yield_now()
            os.write(writer, b"x")
            fiber.result()
            os.close(reader)
            os.close(writer)

    run(main)


@numbers_of_posix
def test_regular_file_is_always_ready(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        run(wait_readable, file)
        run(wait_writable, file)


def test_wait_with_a_timeout_of_0_only_looks(pipe: Pipe) -> None:
    def main() -> None:
        assert not pipe.wait(0)
        pipe.fill()
        assert pipe.wait(0)
        pipe.empty()

    run(main)
    main()


def test_wait_for_a_descriptor_outside_of_a_run_blocks_the_thread(pipe: Pipe) -> None:
    assert not pipe.wait(0.001)
    thread = fill_from_a_thread(pipe)
    assert pipe.wait()
    thread.join()


@pytest.mark.parametrize("bad", [-1, "0", None, 2**70])
def test_what_is_no_descriptor_is_refused(bad: Any) -> None:
    for wait in (wait_readable, wait_writable):
        for call in (wait, lambda fd, wait=wait: run(wait, fd)):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                call(bad)


def test_run_once_hears_of_descriptors(pipe: Pipe) -> None:
    scheduler = Scheduler()
    fiber: Fiber[bool] = scheduler.spawn(pipe.wait)
    scheduler.run_once()
    scheduler.run_once()
    assert not fiber.done()
    pipe.fill()
    scheduler.run_once(timeout=30)
    assert fiber.done()
    scheduler.close()


tells_of_descriptors = pytest.mark.skipif(
    os.environ.get("PYFIBER_POLLER") == "poll" or os.name == "nt",
    reason="poll(2) has no descriptor for all, a completion port none at all",
)


@tells_of_descriptors
def test_fileno_is_readable_when_a_descriptor_is_ready_and_not_after_that(pipe: Pipe) -> None:
    scheduler = Scheduler()

    def readable() -> bool:
        return bool(select.select([scheduler.fileno()], [], [], 0)[0])

    def read() -> None:
        for _ in range(3):
            pipe.wait()
            pipe.empty()

    fiber = scheduler.spawn(read)
    assert readable()
    for _ in range(3):
        scheduler.run_once()
        assert not fiber.done()
        assert not readable()
        pipe.fill()
        assert readable()
    scheduler.run_once()
    assert fiber.done()
    scheduler.run_once()
    assert not readable()
    scheduler.close()


@tells_of_descriptors
def test_loop_of_asyncio_hears_of_descriptors_that_fibers_wait_for(pipe: Pipe) -> None:
    scheduler = Scheduler()

    def read() -> str:
        pipe.wait()
        return "read"

    async def main() -> str:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        scheduler.spawn(read).add_done_callback(lambda done: ended.set_result(done.result()))
        loop.add_reader(scheduler.fileno(), scheduler.run_once)
        loop.call_later(0.01, pipe.fill)
        result = await asyncio.wait_for(ended, 30)
        loop.remove_reader(scheduler.fileno())
        return result

    assert asyncio.run(main()) == "read"
    scheduler.close()


@numbers_of_posix
def test_number_that_is_reused_after_its_file_lived_on_elsewhere_is_another(pipe: Pipe) -> None:
    """epoll has an event of the file that was closed: nobody takes it for the new one's."""
    other = Pipe()
    copy = os.dup(pipe.reader)

    def main() -> bool:
        waiting = spawn(pipe.wait)
        yield_now()
        os.dup2(other.reader, pipe.reader)  # closes it under the wait
        waiting.cancel()
        yield_now()
        pipe.fill()
        return pipe.wait(0.01)

    assert not run(main)
    os.close(copy)
    other.close()


@pytest.mark.skipif(os.name == "nt", reason="there is one")
def test_poller_is_chosen_by_the_environment() -> None:
    code = "import pyfiber; print(pyfiber.run(lambda: pyfiber.sleep(0.001)))"
    chosen = run_python("-c", code, env={"PYFIBER_POLLER": "poll"})
    assert (chosen.returncode, chosen.stdout) == (0, "None\n")
    unknown = run_python("-c", code, env={"PYFIBER_POLLER": "pool"})
    assert "OSError: PYFIBER_POLLER in the environment names nothing" in unknown.stderr


def test_message_and_descriptor_at_once_are_both_seen(pipe: Pipe) -> None:
    def main() -> None:
        me = current()
        fiber = spawn(pipe.wait)
        yield_now()

        def outside() -> None:
            pipe.fill()
            me.unpark("message")

        thread = threading.Thread(target=outside)
        thread.start()
        assert park() == "message"
        fiber.join()
        thread.join()

    run(main)


# virtual time -------------------------------------------------------------------------------------


def test_virtual_time_does_not_go_past_input_that_is_there(pipe: Pipe) -> None:
    def main() -> None:
        reader = spawn(lambda: (pipe.wait(), now()))
        spawn(sleep, 5)
        yield_now()
        pipe.fill()
        sleep(10)
        assert reader.result() == (True, 0.0)

    testing.run(main)


def test_input_that_a_fiber_makes_later_is_awaited_in_virtual_time(pipe: Pipe) -> None:
    def main() -> None:
        reader = spawn(lambda: (pipe.wait(100), now()))
        sleep(3)
        pipe.fill()
        reader.join()
        assert reader.result() == (True, 3.0)

    testing.run(main)


def test_timeout_of_a_wait_for_input_is_virtual(pipe: Pipe) -> None:
    assert testing.run(lambda: (pipe.wait(1e6), now())) == (False, 1e6)


def test_virtual_run_that_only_real_input_could_wake_is_an_error(pipe: Pipe) -> None:
    with pytest.raises(FiberError, match="waits for a descriptor that nobody in it makes ready"):
        testing.run(pipe.wait)


def test_input_is_looked_at_before_advance_moves_the_time(pipe: Pipe) -> None:
    clock = VirtualClock(auto=False)

    def main() -> None:
        reader = spawn(lambda: (pipe.wait(), now()))
        yield_now()
        pipe.fill()
        clock.advance(10)
        assert now() == 10.0
        assert reader.result() == (True, 0.0)

    testing.run(main, clock=clock)


def fill_from_a_thread(pipe: Pipe) -> threading.Thread:
    thread = threading.Thread(target=pipe.fill)
    thread.start()
    return thread


@pytest.mark.parametrize("auto", [True, False])
def test_virtual_time_waits_for_real_input_if_that_is_allowed(pipe: Pipe, auto: bool) -> None:
    """Else the hour would be over at once, and a year later so."""

    def main() -> float:
        sleeper = spawn(sleep, 3600)
        yield_now()
        thread = fill_from_a_thread(pipe)
        assert pipe.wait()
        thread.join()
        sleeper.cancel()
        return now()

    assert testing.run(main, clock=VirtualClock(auto=auto), threads=True) < 1800


def test_virtual_time_goes_on_at_its_real_pace_while_real_input_may_come(pipe: Pipe) -> None:
    def main() -> None:
        reader = spawn(pipe.wait, 0.02)
        sleep(0.01)
        assert now() == 0.01
        assert not reader.result()
        assert now() == 0.02
        sleep(3600)  # nothing is awaited any more

    testing.run(main, threads=True)


def test_advance_does_not_wait_for_real_input(pipe: Pipe) -> None:
    clock = VirtualClock()

    def main() -> None:
        reader = spawn(pipe.wait)
        yield_now()
        clock.advance(1000)
        assert now() == 1000.0
        pipe.fill()
        assert reader.result()

    testing.run(main, clock=clock, threads=True)


def test_attached_scheduler_waits_for_real_input_no_longer_than_its_timeout(pipe: Pipe) -> None:
    clock = VirtualClock(auto=False)
    scheduler = Scheduler()
    clock.attach(scheduler)
    fiber: Fiber[bool] = scheduler.spawn(pipe.wait)
    scheduler.run_once()
    scheduler.run_once(timeout=5)
    assert clock.now() == 5.0
    assert not fiber.done()
    pipe.fill()
    scheduler.run_once(timeout=5)
    assert fiber.done()
    scheduler.close()
