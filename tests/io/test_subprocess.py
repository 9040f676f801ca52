"""pyfiber.subprocess: the standard module, whose waits park."""

from __future__ import annotations

import contextlib
import errno
import inspect
import io
import os
import signal
import subprocess as standard
import sys
import threading
import warnings
from typing import Any

import pytest

import pyfiber.subprocess
from pyfiber import (
    Fiber,
    FiberCancelled,
    Scheduler,
    gather,
    move_on_after,
    now,
    run,
    sleep,
    subprocess,
)
from pyfiber.subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired
from tests.support.children import (  # noqa: F401  # the fixture is used by being here
    BIG,
    CAT,
    FOREVER,
    SLEEPS,
    no_child_is_left,
    parked,
    python,
)
from tests.support.subprocesses import EMULATED, run_script

pytestmark = pytest.mark.skipif(os.name == "nt", reason="programs of POSIX")

# a process ends -----------------------------------------------------------------------------------


def test_wait_parks_and_others_run() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE) as process:
            waits = parked(process.wait)
            process.stdin.close()
            assert waits.result() == 0
            assert process.returncode == 0

    run(main)


def test_several_fibers_wait_for_one_process() -> None:
    def main() -> None:
        with Popen(["/bin/sh", "-c", "read line; exit 7"], stdin=PIPE) as process:
            waits = [parked(process.wait) for _ in range(3)]
            process.stdin.close()
            assert [fiber.result() for fiber in waits] == [7, 7, 7]

    run(main)


def test_process_that_ended_while_nobody_waited() -> None:
    def main() -> None:
        process = Popen(["/bin/sh", "-c", "exit 3"], stdout=PIPE)
        assert process.stdout.read() == b""
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.wait() == 3
        assert process.wait(timeout=0) == 3
        process.stdout.close()

    run(main)


def test_process_that_somebody_else_has_waited_for_counts_as_ended_well() -> None:
    def main() -> None:
        process = Popen(["/bin/sh", "-c", "exit 3"])
        os.waitpid(process.pid, 0)
        assert process.wait() == 0  # as the standard one

    run(main)


def test_somebody_else_waits_for_the_process_meanwhile() -> None:
    def main() -> None:
        with Popen(["/bin/sh", "-c", "read line; exit 3"], stdin=PIPE) as process:
            waits = parked(process.wait)
            process.stdin.close()
            os.waitpid(process.pid, 0)
            assert waits.result() == 0

    run(main)


def test_plain_thread_waits_for_the_same_process() -> None:
    def main() -> None:
        with Popen(["/bin/sh", "-c", "read line; exit 3"], stdin=PIPE) as process:
            found: list[int] = []
            thread = threading.Thread(target=lambda: found.append(process.wait()))
            thread.start()
            waits = parked(process.wait)
            process.stdin.close()
            assert waits.result() == 3
            thread.join()
            assert found == [3]

    run(main)


def test_many_processes_at_once() -> None:
    def one(number: int) -> int:
        return subprocess.run(["/bin/sh", "-c", f"read line; exit {number}"], stdin=PIPE).returncode

    def main() -> None:
        assert gather(*[lambda n=n: one(n) for n in range(50)]) == list(range(50))  # type: ignore[misc]

    run(main)


def test_wait_times_out_and_leaves_the_process_alone() -> None:
    def main() -> None:
        with Popen(SLEEPS) as process:
            for timeout in (0.001, 0, -1):
                with pytest.raises(TimeoutExpired) as caught:
                    process.wait(timeout)
                assert (caught.value.cmd, caught.value.timeout) == (SLEEPS, timeout)
            with move_on_after(0.001) as limit:
                process.wait()
            assert limit.cancelled()
            assert process.poll() is None
            process.terminate()
            assert process.wait() == -signal.SIGTERM

    run(main)


def test_asking_in_a_loop_lets_others_run() -> None:
    def ask(process: Any) -> None:
        while process.returncode is None:
            with contextlib.suppress(TimeoutExpired):
                process.wait(timeout=0)

    def main() -> None:
        with Popen(SLEEPS) as process:
            asks = parked(ask, process)
            process.kill()
            asks.result()

    run(main)


def test_cancelled_wait_leaves_the_process_alone() -> None:
    def main() -> None:
        with Popen(SLEEPS) as process:
            waits = parked(process.wait)
            waits.cancel()
            with pytest.raises(FiberCancelled):
                waits.result()
            assert process.poll() is None
            process.kill()

    run(main)


def test_wait_after_kill_is_not_cancelled() -> None:
    def main() -> None:
        process = Popen(SLEEPS)
        with move_on_after(0):
            process.kill()
            process.wait()
        assert process.returncode == -signal.SIGKILL

    run(main)


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EMFILE, errno.EPERM])
def test_without_a_descriptor_for_it_a_thread_waits(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)

    def main() -> None:
        with Popen(["/bin/sh", "-c", "read line; exit 3"], stdin=PIPE) as process:
            before = threading.active_count()
            for _ in range(3):
                with pytest.raises(TimeoutExpired):
                    process.wait(0.001)
            waits = [parked(process.wait) for _ in range(2)]
            assert threading.active_count() == before + 1
            process.stdin.close()
            assert [fiber.result() for fiber in waits] == [3, 3]

    run(main)


def test_handler_of_sigchld_is_the_programs() -> None:
    told: list[int] = []

    def handler(number: int, frame: object) -> None:
        told.append(number)

    before = signal.signal(signal.SIGCHLD, handler)
    try:
        run(subprocess.run, ["/bin/true"])
        assert signal.getsignal(signal.SIGCHLD) is handler
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert told


def test_ignored_sigchld_ends_the_wait_all_the_same() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE) as process:
            waits = parked(process.wait)
            process.stdin.close()
            assert waits.result() == 0

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        run(main)
    finally:
        signal.signal(signal.SIGCHLD, before)


# communicate --------------------------------------------------------------------------------------


def test_communicate_moves_any_size_both_ways() -> None:
    both = "import sys; d = sys.stdin.buffer.read(); " + "".join(
        f"sys.{name}.buffer.write(d);" for name in ("stderr", "stdout")
    )

    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE) as process:
            assert process.communicate(BIG) == (BIG, None)
        with Popen(python(both), stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
            assert process.communicate(BIG, timeout=1000) == (BIG, BIG)

    run(main)


def test_communicate_lets_others_run() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
            keep_open = os.dup(process.stdin.fileno())
            waits = parked(process.communicate)
            os.write(keep_open, b"input")
            os.close(keep_open)
            assert waits.result() == (b"input", b"")

    run(main)


def test_communicate_takes_what_is_in_the_buffer_already() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE) as process:
            process.stdin.write(b"one\ntwo\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"one\n"
            assert process.communicate(b"three\n") == (b"two\nthree\n", None)

    run(main)


def test_communicate_goes_on_after_a_timeout() -> None:
    code = "import sys; sys.stdout.write('begun'); sys.stdout.flush(); sys.stdin.read(); print('!')"

    def main() -> None:
        with Popen(python(code), stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
            keep_open = os.dup(process.stdin.fileno())
            output = None
            while output is None:
                with pytest.raises(TimeoutExpired) as caught:
                    process.communicate(timeout=0.01)
                output = caught.value.output
            assert output == b"begun"
            os.close(keep_open)
            assert process.communicate() == (b"begun!\n", b"")

    run(main)


def test_communicate_with_a_child_that_reads_nothing() -> None:
    def main() -> None:
        with Popen(["/bin/true"], stdin=PIPE, stdout=PIPE) as process:
            assert process.communicate(BIG) == (b"", None)
        with Popen(["/bin/true"], stdin=PIPE) as process:
            assert process.communicate(BIG) == (None, None)

    run(main)


def test_communicate_of_text() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE, encoding="latin-1") as process:
            assert process.communicate("ä\r\nö") == ("ä\nö", None)

    run(main)


@pytest.mark.parametrize("pipes", [{"stdout": PIPE}, {"stdin": PIPE, "stdout": PIPE}], ids=len)
def test_cancelled_communicate_kills_and_reaps(pipes: dict[str, int]) -> None:
    def main() -> None:
        with Popen(SLEEPS, **pipes) as process:  # type: ignore[call-overload]
            waits = parked(process.communicate)
            waits.cancel()
            with pytest.raises(FiberCancelled):
                waits.result()
            assert process.returncode == -signal.SIGKILL

    run(main)


def test_communicate_of_a_scheduler_that_is_closed_kills_and_reaps() -> None:
    scheduler = Scheduler()
    process = Popen(SLEEPS, stdout=PIPE)
    scheduler.spawn(process.communicate)
    scheduler.run_once()
    scheduler.close()
    assert process.returncode == -signal.SIGKILL
    process.stdout.close()


def test_windows_way_a_thread_communicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyfiber.subprocess, "_IN_THREADS", True)

    def main() -> None:
        assert subprocess.run(CAT, input=BIG, capture_output=True).stdout == BIG
        with pytest.raises(TimeoutExpired):
            subprocess.run(SLEEPS, capture_output=True, timeout=0.01)
        with Popen(SLEEPS, stdout=PIPE) as process:
            waits = parked(process.communicate)
            waits.cancel()
            with pytest.raises(FiberCancelled):
                waits.result()
            assert process.returncode == -signal.SIGKILL

    run(main)
    for thread in threading.enumerate():
        if thread.name == "pyfiber.subprocess":
            thread.join()


# the functions ------------------------------------------------------------------------------------


def test_run_and_its_kin_park() -> None:
    script = "read line; echo done"
    reader, writer = os.pipe()

    def main() -> None:
        fibers = [
            parked(lambda: subprocess.run(script, shell=True, stdin=reader, stdout=PIPE).stdout),
            parked(lambda: subprocess.call(script, shell=True, stdin=reader, stdout=DEVNULL)),
            parked(lambda: subprocess.check_call(script, shell=True, stdin=reader, stdout=DEVNULL)),
            parked(lambda: subprocess.check_output(script, shell=True, stdin=reader)),
        ]
        os.close(writer)
        assert [fiber.result() for fiber in fibers] == [b"done\n", 0, 0, b"done\n"]

    run(main)
    os.close(reader)


def test_getoutput_parks(tmp_path: Any) -> None:
    fifos = [str(tmp_path / name) for name in "ab"]
    for fifo in fifos:
        os.mkfifo(fifo)

    def main() -> None:
        fibers = [
            parked(subprocess.getoutput, f"cat {fifos[0]}"),
            parked(subprocess.getstatusoutput, f"cat {fifos[1]}; exit 3"),
        ]
        for fifo in fifos:
            with open(fifo, "w") as file:
                file.write("x\n")
        assert [fiber.result() for fiber in fibers] == ["x", (3, "x")]

    run(main)


def test_run_that_times_out_kills_and_reaps() -> None:
    def main() -> None:
        with pytest.raises(TimeoutExpired):
            subprocess.run(SLEEPS, timeout=0.01)
        with pytest.raises(TimeoutExpired) as caught:
            subprocess.check_output(["/bin/sh", "-c", "echo x; exec sleep 1000"], timeout=0.2)
        assert caught.value.output in (b"x\n", None)

    run(main)


@pytest.mark.parametrize("options", [{}, {"capture_output": True}, {"stdout": PIPE}], ids=str)
def test_cancelled_run_kills_and_reaps(options: dict[str, Any]) -> None:
    def main() -> None:
        fiber = parked(lambda: subprocess.run(SLEEPS, **options))
        fiber.cancel()
        with pytest.raises(FiberCancelled):
            fiber.result()

    run(main)


def test_cancelled_call_kills_and_reaps() -> None:
    def main() -> None:
        fiber = parked(subprocess.call, SLEEPS)
        fiber.cancel()
        with pytest.raises(FiberCancelled):
            fiber.result()

    run(main)


def test_failures_are_the_standard_ones() -> None:
    def main() -> None:
        with pytest.raises(standard.CalledProcessError) as caught:
            subprocess.run(["/bin/sh", "-c", "echo x; exit 3"], check=True, capture_output=True)
        assert (caught.value.returncode, caught.value.stdout) == (3, b"x\n")
        if not EMULATED:  # qemu says 127 instead, also of the standard library's
            with pytest.raises(FileNotFoundError):
                subprocess.run(["/no/such/program"], stdout=PIPE, stdin=PIPE)
        with pytest.raises(LookupError):
            Popen(CAT, stdin=PIPE, encoding="no such encoding")
        with pytest.raises(TypeError):
            Popen(CAT, stdin=PIPE, bufsize="large")  # type: ignore[call-overload]

    run(main)


# anywhere else ------------------------------------------------------------------------------------


def everything() -> None:
    """A bit of each."""
    done = subprocess.run(CAT, input=BIG, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, BIG, b"")
    with Popen(CAT, stdin=PIPE, stdout=PIPE, stderr=STDOUT, text=True) as process:
        process.stdin.write("one\n")
        process.stdin.flush()
        assert process.stdout.readline() == "one\n"
        with pytest.raises(TimeoutExpired):
            process.wait(timeout=0.001)
        assert process.communicate("two\n", timeout=1000) == ("two\n", None)
    with pytest.raises(TimeoutExpired):
        subprocess.run(SLEEPS, timeout=0.001)


def test_on_a_plain_thread_it_blocks() -> None:
    everything()


def test_in_a_raw_fiber_it_blocks() -> None:
    Fiber(everything).switch()


def test_process_made_outside_of_a_run_parks_in_one() -> None:
    with Popen(CAT, stdin=PIPE, stdout=PIPE) as process:

        def main() -> None:
            reads = parked(process.stdout.read)
            waits = parked(process.wait)
            process.stdin.close()
            assert (reads.result(), waits.result()) == (b"", 0)

        run(main)


def test_process_made_in_a_run_serves_after_it() -> None:
    process = run(lambda: Popen(CAT, stdin=PIPE, stdout=PIPE))
    assert process.communicate(b"x") == (b"x", None)


def test_program_that_reads_the_number_gets_a_blocking_one() -> None:
    with Popen(["/bin/sh", "-c", "read line; echo $line"], stdin=PIPE, stdout=PIPE) as process:
        number = process.stdout.fileno()
        threading.Timer(0.01, lambda: (process.stdin.write(b"x\n"), process.stdin.flush())).start()
        assert os.read(number, 10) == b"x\n"


def test_program_that_sets_the_number_non_blocking_gets_none() -> None:
    with Popen(CAT, stdin=PIPE, stdout=PIPE, bufsize=0) as process:
        os.set_blocking(process.stdout.fileno(), False)
        assert process.stdout.read(1) is None


def test_arguments_for_the_child_are_handed_on() -> None:
    def main() -> None:
        reader, writer = os.pipe()
        code = (
            f"import os; os.write({writer}, b'x'); "
            "print(os.getcwd(), os.environ['A'], os.getsid(0) == os.getpid(), os.umask(0))"
        )
        with Popen(
            python(code),
            stdout=PIPE,
            text=True,
            pass_fds=(writer,),
            cwd="/",
            env={"A": "b"},
            start_new_session=True,
            umask=0o77,
            preexec_fn=lambda: told.append("in the child only"),
        ) as process:
            os.close(writer)
            assert process.stdout.read() == f"/ b True {0o77}\n"
            with open(reader, "rb") as file:
                assert file.read() == b"x"

    told: list[str] = []
    run(main)
    assert told == []


@pytest.mark.skipif(sys.platform != "linux", reason="sizes of pipes are Linux's")
def test_pipe_has_the_size_that_was_asked_for() -> None:
    import fcntl

    with Popen(CAT, stdin=PIPE, stdout=PIPE, pipesize=4096) as process:
        for file in (process.stdin, process.stdout):
            assert fcntl.fcntl(file.fileno(), fcntl.F_GETPIPE_SZ) == 4096


def test_line_buffering_of_bytes_is_warned_of_where_it_is_asked_for() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Popen(CAT, stdin=PIPE, bufsize=1):
            pass
    assert [(each.category, each.filename) for each in caught] == [(RuntimeWarning, __file__)]


def test_file_objects_are_of_the_usual_kinds() -> None:
    def check(kind: type, **options: Any) -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE, **options) as process:
            for file in (process.stdin, process.stdout):
                assert isinstance(file, (kind, io.BufferedWriter))
                assert isinstance(file.name, int)

    check(io.FileIO, bufsize=0)
    check(io.BufferedReader)
    check(io.TextIOWrapper, text=True)


# the module ---------------------------------------------------------------------------------------


def test_module_has_every_name_of_the_standard_one() -> None:
    public = {name for name, value in vars(standard).items() if not inspect.ismodule(value)}
    public = {name for name in public if not name.startswith("_")}
    assert set(standard.__all__) <= set(subprocess.__all__)
    assert public <= set(dir(subprocess))
    assert issubclass(Popen, standard.Popen)
    assert repr(Popen) == "<class 'pyfiber.subprocess.Popen'>"
    assert subprocess.run.__module__ == "pyfiber.subprocess"
    assert subprocess.run is not standard.run
    assert inspect.signature(subprocess.run) == inspect.signature(standard.run)


def test_import_of_pyfiber_imports_none_of_it() -> None:
    code = """
        import sys, pyfiber
        names = {"pyfiber.subprocess", "pyfiber._signals", "pyfiber._pipes", "subprocess", "signal"}
        print(sorted(names & set(sys.modules)))
    """
    assert run_script(code, "-S").stdout == "[]\n"


def test_fork_of_a_run_leaves_the_pipes_usable() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE) as process:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if not pid:
                os._exit(0 if process.stdout.readable() else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            process.stdin.write(b"x")
            process.stdin.close()
            assert process.stdout.read() == b"x"

    run(main)


def test_group_that_fails_leaves_no_process() -> None:
    def fails() -> None:
        sleep(0.01)
        raise LookupError

    def main() -> None:
        began = now()
        with pytest.raises(LookupError):
            gather(fails, *[lambda: subprocess.run(SLEEPS)] * 5)
        assert now() - began < 100

    run(main)


def test_misuse_of_communicate_is_told() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE) as process:
            keep_open = os.dup(process.stdin.fileno())
            with pytest.raises(TimeoutExpired):
                process.communicate(b"x", timeout=0.01)
            with pytest.raises(ValueError, match="after starting"):
                process.communicate(b"y")
            os.close(keep_open)
            assert process.communicate() == (b"x", None)

    run(main)
