"""The pipes of pyfiber.subprocess.Popen: file objects that park."""

from __future__ import annotations

import io
import os
import subprocess as standard
from typing import Any

import pytest

import pyfiber.subprocess
from pyfiber import (
    FiberCancelled,
    run,
    spawn,
    yield_now,
)
from pyfiber.subprocess import PIPE, Popen
from tests.support.children import (  # noqa: F401  # the fixture is used by being here
    BIG,
    CAT,
    FOREVER,
    SLEEPS,
    no_child_is_left,
    parked,
    python,
)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="programs of POSIX")


@pytest.mark.parametrize("bufsize", [0, 2, -1])
def test_pipes_park(bufsize: int) -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE, bufsize=bufsize) as process:
            reads = parked(process.stdout.read, 3)
            process.stdin.write(b"abcdef\n")
            process.stdin.flush()
            assert reads.result() == b"abc"
            assert process.stdout.readline() == b"def\n"
            rest = parked(process.stdout.read)
            process.stdin.write(b"1\n2")
            process.stdin.close()
            assert rest.result() == b"1\n2"

    run(main)


@pytest.mark.parametrize("bufsize", [0, -1])
def test_write_of_more_than_fits_parks(bufsize: int) -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE, bufsize=bufsize) as process:

            def write() -> None:
                left = memoryview(BIG)
                while left:
                    left = left[process.stdin.write(left) :]
                process.stdin.close()

            writes = parked(write)
            assert process.stdout.read() == BIG
            writes.result()

    run(main)


def test_text_parks_line_by_line() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE, text=True, bufsize=1) as process:
            lines = parked(list, process.stdout)
            process.stdin.write("one\n")
            process.stdin.write("two\nthree")
            process.stdin.close()
            assert lines.result() == ["one\n", "two\n", "three"]

    run(main)


def test_readinto_and_peek_park() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE) as process:
            memory = bytearray(4)
            reads = parked(process.stdout.readinto, memory)
            process.stdin.write(b"abcdef")
            process.stdin.flush()
            process.stdin.close()
            assert reads.result() == 4
            assert memory == b"abcd"
            assert process.stdout.peek() == b"ef"
            assert process.stdout.read1() == b"ef"

    run(main)


def test_fibers_take_turns_in_one_file_object() -> None:
    """The standard objects call the second one reentrant and fail."""

    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE, text=True) as process:
            readers = [parked(process.stdout.readline) for _ in range(3)]
            process.stdin.write("one\ntwo\n")
            process.stdin.flush()
            process.stdin.close()
            assert [reader.result() for reader in readers] == ["one\n", "two\n", ""]

    run(main)


def test_fibers_take_turns_in_one_buffer() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE) as process:
            readers = [parked(process.stdout.read, 2), parked(next, process.stdout)]
            process.stdin.write(b"abcd\n")
            process.stdin.close()
            assert [reader.result() for reader in readers] == [b"ab", b"cd\n"]
            assert process.stdout.read() == b""

    run(main)


def test_close_waits_for_the_reader_as_with_threads() -> None:
    def main() -> None:
        for bufsize in (0, -1):
            with Popen(CAT, stdin=PIPE, stdout=PIPE, bufsize=bufsize) as process:
                reads = parked(process.stdout.read, 1)
                closes = parked(process.stdout.close)
                process.stdin.write(b"x")
                process.stdin.close()
                assert reads.result() == b"x"
                closes.result()
                with pytest.raises(ValueError, match="closed"):
                    process.stdout.read()

    run(main)


def test_cancelled_read_leaves_the_pipe_usable() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE) as process:
            reads = parked(process.stdout.readline)
            reads.cancel()
            with pytest.raises(FiberCancelled):
                reads.result()
            process.stdin.write(b"line\n")
            process.stdin.close()
            assert process.stdout.readline() == b"line\n"

    run(main)


def test_reader_that_never_waits_lets_others_run() -> None:
    def read(process: Any) -> None:
        while not stop:
            assert process.stdout.read(1) == b"\0"

    stop: list[bool] = []

    def main() -> None:
        with Popen(FOREVER, stdout=PIPE, bufsize=0) as process:
            reads = spawn(read, process)
            for _ in range(5):
                yield_now()
            stop.append(True)
            reads.result()
            process.kill()

    run(main)


def test_pipe_without_a_reader_breaks() -> None:
    def main() -> None:
        with Popen(["/bin/true"], stdin=PIPE) as process:
            process.wait()
            process.stdin.write(b"x")
            with pytest.raises(BrokenPipeError):
                process.stdin.flush()
            with pytest.raises(BrokenPipeError):
                process.stdin.close()

    run(main)


def test_output_of_one_process_is_the_input_of_another() -> None:
    """The other one shares the pipe's end, which must block as it expects."""

    def main() -> None:
        for popen in (Popen, standard.Popen):
            slow = ["/bin/sh", "-c", "read line; echo $line"]
            with Popen(slow, stdin=PIPE, stdout=PIPE) as first:
                second: Any = popen(CAT, stdin=first.stdout, stdout=PIPE)
                first.stdout.close()
                first.stdin.write(b"line\n")
                first.stdin.flush()
                if popen is Popen:
                    assert second.communicate() == (b"line\n", None)
                else:
                    assert second.communicate(timeout=60) == (b"line\n", None)

    run(main)


def test_pipe_whose_number_was_asked_for_parks_all_the_same() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE) as process:
            for file in (process.stdin, process.stdout):
                assert os.get_blocking(file.fileno())
            reads = parked(process.stdout.read)
            writes = spawn(process.stdin.write, BIG)
            writes.result()
            process.stdin.close()
            assert reads.result() == BIG

    run(main)


def test_fibers_take_turns_in_a_pipe_whose_number_was_asked_for() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE, bufsize=0) as process:
            process.stdout.fileno()
            readers = [parked(process.stdout.read, 10) for _ in range(2)]
            process.stdin.write(b"first")
            assert readers[0].result() == b"first"
            yield_now()
            assert not readers[1].done()
            process.stdin.close()
            assert readers[1].result() == b""

    run(main)


def test_reports_name_the_pipe() -> None:
    def main() -> None:
        with Popen(CAT, stdin=PIPE, stdout=PIPE) as process:
            reads = parked(process.stdout.read)
            out = io.StringIO()
            pyfiber.debug.dump_fibers(out)
            assert "a pipe" in out.getvalue()
            process.stdin.close()
            reads.result()

    run(main)
