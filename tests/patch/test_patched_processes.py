"""subprocess, os.waitpid() and its kin, forks and multiprocessing under the patch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyfiber
from pyfiber import run, spawn, yield_now
from tests.patch.test_patched_sockets import in_fiber
from tests.support.subprocesses import EMULATED, run_script

pytestmark = [
    pytest.mark.usefixtures("patched"),
    pytest.mark.skipif(os.name == "nt", reason="there are no forks"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

if sys.platform != "win32":
    import fcntl

SLEEP = [sys.executable, "-c", "import time; time.sleep(100)"]
CAT = ["/bin/cat"]


class Mine(subprocess.Popen[Any]):
    """A program's own."""


@contextlib.contextmanager
def child(code: int = 0) -> Iterator[tuple[int, Callable[[], None]]]:
    """Its number, and what ends it."""
    reader, writer = os.pipe()
    number = os.fork()
    if number == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(code)
    os.close(reader)
    yield number, lambda: os.close(writer)


WAITS: dict[str, Callable[[int], tuple[int, int]]] = {
    "waitpid": lambda number: os.waitpid(number, 0),
    "waitpid any": lambda number: os.waitpid(-1, 0),
    "waitpid group": lambda number: os.waitpid(0, 0),
    "wait": lambda number: os.wait(),
    "wait3": lambda number: os.wait3(0)[:2],
    "wait4": lambda number: os.wait4(number, 0)[:2],
}
if hasattr(os, "waitid"):
    WAITS["waitid"] = lambda number: (
        os.waitid(os.P_PID, number, os.WEXITED).si_pid,  # type: ignore[union-attr]
        7 << 8,
    )


@pytest.mark.parametrize("name", WAITS)
def test_wait_for_a_child_parks(name: str) -> None:
    def main() -> None:
        with child(7) as (number, end):
            waiting = in_fiber(WAITS[name], number)
            end()
            assert waiting.result() == (number, 7 << 8)

    run(main)


@pytest.mark.parametrize(
    "name", ["waitpid", "wait4", "waitid"]
)  # the others may have other children
def test_second_wait_for_a_child_fails(name: str) -> None:
    def main() -> None:
        with child(7) as (number, end):
            end()
            WAITS[name](number)
        with pytest.raises(ChildProcessError):
            WAITS[name](number)

    run(main)


@pytest.mark.parametrize("name", WAITS)
def test_cancelled_wait_loses_no_child(name: str) -> None:
    def main() -> None:
        with child(7) as (number, end):
            waiting = in_fiber(WAITS[name], number)
            waiting.cancel()
            with pytest.raises(pyfiber.FiberCancelled):
                waiting.result()
            end()
            assert WAITS[name](number) == (number, 7 << 8)

    run(main)


def test_question_does_not_wait() -> None:
    def main() -> None:
        with child() as (number, end):
            assert os.waitpid(number, os.WNOHANG) == (0, 0)
            assert os.wait3(os.WNOHANG)[0] == os.wait4(number, os.WNOHANG)[0] == 0
            end()
            os.waitpid(number, 0)

    run(main)


def test_stopped_child_is_told_of() -> None:
    import signal

    def main() -> None:
        with child() as (number, end):
            os.kill(number, signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(number, os.WUNTRACED)[1])
            os.kill(number, signal.SIGCONT)
            end()
            os.waitpid(number, 0)

    run(main)


def test_system_and_popen_park(tmp_path: Path) -> None:
    def main() -> None:
        path = tmp_path / "fifo"
        os.mkfifo(path)
        waiting = in_fiber(os.system, f"read x <{path}; exit 3")
        path.write_text("x\n")
        assert waiting.result() == 3 << 8
        with os.popen(f"read x <{path}; echo $x") as shell:
            reading = in_fiber(shell.read)
            path.write_text("word\n")
            assert reading.result() == "word\n"

    run(main)


def test_popen_made_in_a_fiber_is_ours() -> None:
    import pyfiber.subprocess

    def main() -> None:
        with subprocess.Popen(CAT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
            assert isinstance(cat, subprocess.Popen)
            assert isinstance(cat, pyfiber.subprocess.Popen)
            assert cat.stdin is not None
            assert cat.stdout is not None
            reading = in_fiber(cat.stdout.readline)
            cat.stdin.write(b"line\n")
            cat.stdin.flush()
            assert reading.result() == b"line\n"
        done = subprocess.run(CAT, input="text", capture_output=True, text=True, check=True)
        assert done.stdout == "text"
        assert subprocess.check_output(["echo", "x"]) == b"x\n"
        if not EMULATED:  # qemu says 127 instead, also of the standard library's
            with pytest.raises(FileNotFoundError):
                subprocess.run(["/no/such/program"], check=False)

    run(main)
    with subprocess.Popen(CAT, stdin=subprocess.PIPE) as outside:
        assert type(outside) is subprocess.Popen


@pytest.mark.parametrize("kind", [subprocess.Popen, Mine])
def test_popen_made_elsewhere_is_waited_for(kind: type[subprocess.Popen[Any]]) -> None:
    options: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    first, second, third = kind(CAT, **options), kind(CAT, **options), kind(SLEEP)

    def main() -> None:
        waiting = in_fiber(first.wait)
        assert first.stdin is not None
        first.stdin.close()
        assert waiting.result() == 0
        assert second.communicate(b"data") == (b"data", None)
        with pytest.raises(subprocess.TimeoutExpired):
            third.wait(0.01)
        cancelled = in_fiber(third.wait)
        cancelled.cancel()
        with pytest.raises(pyfiber.FiberCancelled):
            cancelled.result()
        assert third.poll() is None
        third.kill()
        assert third.wait() < 0

    run(main)
    assert first.stdout is not None
    first.stdout.close()


def test_cancelled_communicate_kills_the_child() -> None:
    def main() -> None:
        process = Mine(SLEEP, stdout=subprocess.PIPE)
        talking = in_fiber(process.communicate)
        talking.cancel()
        with pytest.raises(pyfiber.FiberCancelled):
            talking.result()
        assert process.returncode is not None
        assert process.stdout is not None
        process.stdout.close()

    run(main)


# forks --------------------------------------------------------------------------------------------


def test_fibers_do_not_survive_a_fork() -> None:
    """gevent#957, gevent#2023: copies of the parent's greenlets went on in the child."""
    done = run_script("""
        import os, sys, time, socket, pyfiber
        def other():
            for _ in range(3):
                time.sleep(0.01)
                print("other", os.getpid() == parent, flush=True)
        def main():
            fiber = pyfiber.spawn(other)
            pyfiber.yield_now()
            left, right = socket.socketpair()
            number = os.fork()
            if number == 0:
                time.sleep(0.1)
                right.sendall(b"x")
                print("child", left.recv(1), flush=True)
                os._exit(0)
            os.waitpid(number, 0)
            fiber.result()
        parent = os.getpid()
        pyfiber.patch()
        pyfiber.run(main)
        print(pyfiber.run(lambda: time.sleep(0.01)))
    """)
    assert "other False" not in done.stdout
    assert done.stdout.count("other True") == 3
    assert "child b'x'" in done.stdout


@pytest.mark.parametrize(
    "fork", ["fork()", "subprocess.run(['true'], preexec_fn=lambda: None)", "fork(os.forkpty)"]
)
def test_hooks_of_a_fork_in_a_cancelled_fiber_keep_the_lock_of_another(fork: str) -> None:
    """The first half of the hook was cancelled, and the second released the other's lock."""
    done = run_script(
        f"""
        import os, subprocess, threading, time, pyfiber
        pyfiber.patch()
        lock, log = threading.Lock(), []
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
        def fork(how=os.fork):
            number = how()
            number = number if how is os.fork else number[0]
            if number == 0:
                os._exit(0)
            os.waitpid(number, 0)
        def holder():
            with lock:
                time.sleep(0.3)
                log.append(lock.locked())
        def main():
            fiber = pyfiber.spawn(holder)
            pyfiber.yield_now()
            with pyfiber.move_on_after(0.05) as scope:
                {fork}
            fiber.join()
            return log, lock.locked(), scope.cancel_called
        print(pyfiber.run(main))
    """,
        "-W",
        "ignore",
    )
    assert done.stdout == "([True], False, True)\n"
    assert done.stderr == ""


def test_child_of_a_fork_in_a_fiber_runs_fibers_of_its_own() -> None:
    done = run_script("""
        import os, time, pyfiber
        def child():
            fibers = [pyfiber.spawn(time.sleep, 0.01) for _ in range(3)]
            for fiber in fibers: fiber.result()
            return "slept"
        def main():
            number = os.fork()
            if number == 0:
                print(pyfiber.run(child), flush=True)
                os._exit(5)
            return os.waitpid(number, 0)[1]
        pyfiber.patch()
        print(pyfiber.run(main))
    """)
    assert done.stdout == "slept\n1280\n", done.stderr


def test_child_of_a_fork_in_the_main_program_is_patched() -> None:
    done = run_script("""
        import os, time, pyfiber
        def both():
            fibers = [pyfiber.spawn(time.sleep, 0.01) for _ in range(3)]
            return [fiber.result() for fiber in fibers]
        pyfiber.patch()
        pyfiber.run(both)
        number = os.fork()
        if number == 0:
            print(pyfiber.run(both), flush=True)
            os._exit(0)
        assert os.waitpid(number, 0)[1] == 0
        print(pyfiber.run(both))
    """)
    assert done.stdout == "[None, None, None]\n" * 2, done.stderr


def square(number: int) -> int:
    return number * number


def test_process_pool_works_beside_fibers_and_in_them() -> None:
    """gevent#936: a ProcessPoolExecutor hung under the patch."""
    with ProcessPoolExecutor(2) as pool:
        assert list(pool.map(square, range(4))) == [0, 1, 4, 9]

    def main() -> None:
        with ProcessPoolExecutor(1) as pool:
            assert list(pool.map(square, range(4))) == [0, 1, 4, 9]

    run(main)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_works_in_a_fiber(method: str) -> None:
    done = run_script(f"""
        from tests.patch import test_patched_processes as tests
        if __name__ == "__main__":
            tests.talk({method!r})
    """)
    assert done.stdout == "0\n", done.stderr


def talk(method: str) -> None:
    """In a process of its own, since it leaves a process that tracks resources."""
    import multiprocessing

    context: Any = multiprocessing.get_context(method)

    def main() -> None:
        here, there = context.Pipe()
        process = context.Process(target=echo, args=(there,))
        process.start()
        receiving = in_fiber(here.recv)
        here.send("x" * 300_000)
        assert receiving.result() == "x" * 300_000
        joining = spawn(process.join)
        here.send(None)
        joining.result()
        print(process.exitcode)

    with pyfiber.patch():
        run(main)


def test_lock_of_multiprocessing_parks_the_fiber_that_waits() -> None:
    done = run_script("""
        import multiprocessing, pyfiber

        def main():
            lock = multiprocessing.Lock()
            assert lock.acquire()
            assert not lock.acquire(timeout=0.01)
            assert not lock.acquire(timeout=-1)
            assert not lock.acquire(False)
            waiting = pyfiber.spawn(lock.acquire), pyfiber.spawn(lock.__enter__)
            pyfiber.yield_now()
            assert not any(fiber.done() for fiber in waiting)
            lock.release()
            while not any(fiber.done() for fiber in waiting):
                pyfiber.sleep(0.001)
            lock.release()
            assert [fiber.result() for fiber in waiting] == [True, True]
            print("done")

        with pyfiber.patch():
            pyfiber.run(main)
    """)
    assert done.stdout == "done\n", done.stderr


def echo(connection: Any) -> None:
    while (said := connection.recv()) is not None:
        connection.send(said)


def test_thread_waits_for_its_child_as_ever() -> None:
    def main() -> None:
        with child(1) as (number, end):
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(os.waitpid(number, 0)))
            thread.start()
            yield_now()
            end()
            while thread.is_alive():
                yield_now()
            assert found == [(number, 256)]

    run(main)


def test_rlock_of_multiprocessing_belongs_to_the_fiber() -> None:
    done = run_script("""
        import multiprocessing, pyfiber

        def main():
            lock = multiprocessing.RLock()
            def attempt():
                assert not lock.acquire(timeout=0.01)
                try:
                    lock.release()
                except AssertionError:
                    return "refused"
            with lock, lock:
                assert pyfiber.spawn(attempt).result() == "refused"
            assert pyfiber.spawn(lock.acquire).result()
            print("done")

        with pyfiber.patch():
            pyfiber.run(main)
    """)
    assert done.stdout == "done\n", done.stderr


def test_fiber_waits_for_a_lock_of_a_file_that_another_holds(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    log: list[str] = []

    def wait() -> None:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            fcntl.lockf(file, fcntl.LOCK_EX, 1)
            log.append("locked")
            fcntl.lockf(file, fcntl.LOCK_UN, 1)

    def main() -> None:
        with path.open() as file, path.open() as other:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            waiting, given_up = spawn(wait), spawn(wait)
            yield_now()
            given_up.cancel()
            log.append("waits")
            fcntl.flock(file, fcntl.LOCK_UN)
            waiting.result()
            assert given_up.cancelled()

    run(main)
    assert log == ["waits", "locked"]
