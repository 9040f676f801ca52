"""The standard module ``subprocess``, whose calls park the running fiber.

Every public name of the standard module is here. In a fiber of a run the waits of ``Popen``, of its
pipes and of ``run()`` and its kin park that fiber, and others run; anywhere else they work as in
the standard library. On Windows a ``Popen`` has the standard library's pipes, whose own methods
block; ``wait()``, ``communicate()`` and the functions park there, too.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess as _standard
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from subprocess import *  # noqa: F403
from subprocess import PIPE, TimeoutExpired, list2cmdline
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from pyfiber import _pipes
from pyfiber._engine import (
    Cancelled,
    FiberExit,
    _may_park,
    _outside,
    move_on_after,
    shield,
    wait_readable,
    yield_now,
)
from pyfiber._futures import await_future
from pyfiber._groups import gather
from pyfiber._native import native_thread

if TYPE_CHECKING:

    class _Standard(_standard.Popen[Any]):
        """``subprocess.Popen`` with the private names that a subclass needs."""

        encoding: str | None
        errors: str | None
        text_mode: bool | None
        _communication_started: bool
        _fileobj2output: dict[Any, list[bytes]]
        _input: Any
        _input_offset: int

        def _communicate(self, input: Any, endtime: Any, orig_timeout: Any) -> tuple[Any, Any]: ...
        def _execute_child(self, *args: Any) -> None: ...
        def _save_input(self, input: Any) -> None: ...
        def _translate_newlines(self, data: bytes, encoding: str, errors: str) -> str: ...
        def _wait(self, timeout: float | None) -> int: ...

else:
    _Standard = _standard.Popen

__all__ = [*_standard.__all__, "list2cmdline"]

#: ``time.sleep()`` as it is without patch().
_block: Callable[[float], None] = _outside(time.sleep)

T = TypeVar("T")

#: Do threads wait for pipes? On Windows a fiber cannot wait for a pipe's descriptor.
_IN_THREADS = os.name == "nt"


def _in_thread(fn: Callable[..., T], *args: Any) -> Future[T]:
    """Call ``fn`` in a separate thread, since it may take for ever."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(fn(*args))
        except BaseException as exc:
            future.set_exception(exc)

    native_thread(work, name="pyfiber.subprocess", daemon=True).start()
    return future


@contextlib.contextmanager
def _end_of(pid: int) -> Iterator[int]:
    """A descriptor that becomes readable when the child ends.

    Raises ProcessLookupError if the child is gone, another OSError if there are no such
    descriptors.
    """
    if hasattr(os, "pidfd_open"):
        number = os.pidfd_open(pid)
        try:
            yield number
        finally:
            os.close(number)
    elif hasattr(select, "kqueue"):
        queue: Any = select.kqueue()
        with contextlib.closing(queue):
            event: Any = select.kevent(  # type: ignore[attr-defined]
                pid,
                select.KQ_FILTER_PROC,  # type: ignore[attr-defined]
                select.KQ_EV_ADD,  # type: ignore[attr-defined]
                select.KQ_NOTE_EXIT,  # type: ignore[attr-defined]
            )
            queue.control([event], 0)
            yield queue.fileno()
    else:
        raise OSError("this system has none")


class _Popen(_Standard):
    """A ``subprocess.Popen`` whose waits, and those of its pipes, park the running fiber.

    A cancellation of ``wait()`` leaves the child alone. A cancellation of ``communicate()`` or
    ``run()`` kills the child and waits for its end, and that wait is not cancelled. One fiber at a
    time may use a pipe's file object: the next one waits, also to close it. A cancelled ``read()``
    that has read several pieces loses them.
    """

    _killed = False
    _by_thread: Future[Any] | None = None

    if not _IN_THREADS:

        def __init__(
            self,
            args: Any,
            bufsize: int = -1,
            executable: Any = None,
            stdin: Any = None,
            stdout: Any = None,
            stderr: Any = None,
            *more: Any,
            **options: Any,
        ) -> None:
            given = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
            self._bufsize = -1 if bufsize is None else bufsize
            self._ends: dict[str, _pipes.Pipe] = {}
            with contextlib.ExitStack() as theirs, contextlib.ExitStack() as on_failure:
                for name in [name for name, what in given.items() if what == PIPE]:
                    given[name], self._ends[name] = _make_pipe(name, options.get("pipesize", -1))
                    theirs.callback(os.close, given[name])
                    on_failure.callback(self._ends[name].close)
                super().__init__(args, bufsize, executable, *given.values(), *more, **options)
                on_failure.pop_all()

        def _execute_child(self, *args: Any) -> None:
            # The base class calls this to start the child, when it has checked the arguments.
            for name, end in self._ends.items():
                setattr(self, name, self._file(end))
            super()._execute_child(*args)

        def _file(self, end: _pipes.Pipe) -> Any:
            if not self.text_mode:
                return _pipes.buffered(end, self._bufsize)
            writes = {
                "write_through": True,
                "line_buffering": self._bufsize == 1,
            }
            return _pipes.Text(
                _pipes.buffered(end, -1 if self._bufsize == 1 else self._bufsize),
                encoding=self.encoding,
                errors=self.errors,
                **(writes if end.writable() else {}),
            )

    def kill(self) -> None:
        """Kill the child. From now on a wait for its end is not cancelled, because it is short."""
        super().kill()
        self._killed = True

    # waiting for the end --------------------------------------------------------------------------

    def _wait(self, timeout: float | None) -> int:
        # The base class's wait() calls this, and handles Ctrl-C itself.
        if not _may_park():
            return super()._wait(timeout)
        return wait_in_fiber(self, super()._wait, timeout)

    # communicating --------------------------------------------------------------------------------

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """The standard method; but a cancellation kills the child and waits for its end."""
        both: tuple[Any, Any]
        try:
            if _IN_THREADS and _may_park():
                both = await_future(_in_thread(super().communicate, input, timeout))
            else:
                both = super().communicate(input, timeout)
        except Cancelled:
            self.kill()
            self.wait()
            raise
        except FiberExit:  # the fiber cannot park any more; the child ends at once
            self.kill()
            while self.poll() is None:
                _block(0.001)
            raise
        return both

    def _communicate(self, input: Any, endtime: Any, orig_timeout: Any) -> tuple[Any, Any]:
        # The base class calls this when there are several pipes, or a timeout.
        if not _may_park():
            return super()._communicate(input, endtime, orig_timeout)
        self._begin(input)
        with move_on_after(_time_left(endtime)) as limit:
            gather(*self._transfers())
            self.wait()
        output, errors = (
            None if file is None else b"".join(self._fileobj2output[file])
            for file in (self.stdout, self.stderr)
        )
        if limit.cancelled():
            raise TimeoutExpired(self.args, orig_timeout, output or None, errors or None)
        return self._decoded(self.stdout, output), self._decoded(self.stderr, errors)

    def _begin(self, input: Any) -> None:
        if self._communication_started:
            return
        self._fileobj2output = {file: [] for file in (self.stdout, self.stderr) if file}
        if self.stdin:
            self._flush()
            if not input:
                with contextlib.suppress(BrokenPipeError):
                    self.stdin.close()
        self._save_input(input)

    def _flush(self) -> None:  # as newer versions of the standard class do
        try:
            self.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            pass
        except ValueError:  # perhaps the file has been closed
            if not self.stdin.closed:  # type: ignore[union-attr]
                raise

    def _transfers(self) -> Iterator[Callable[[], None]]:
        if self.stdin and self._input and not self.stdin.closed:
            yield self._feed
        for file, chunks in self._fileobj2output.items():
            if not file.closed:
                yield lambda file=file, chunks=chunks: _drain(file, chunks)  # type: ignore[misc]

    def _feed(self) -> None:
        end = _pipes.end_of(self.stdin)
        data = memoryview(self._input).cast("B")
        with contextlib.suppress(BrokenPipeError):
            while self._input_offset < len(data):
                self._input_offset += end.write(data[self._input_offset :])
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()  # type: ignore[union-attr]

    def _decoded(self, file: Any, data: bytes | None) -> Any:
        if data is None or not self.text_mode:
            return data
        return self._translate_newlines(data, file.encoding, file.errors)


def _time_left(endtime: float | None) -> float | None:
    # By the clock of the standard class, and not by its method, which is gone in Python 3.15.
    return None if endtime is None else max(endtime - time.monotonic(), 0)


# waiting for the end, also of a standard Popen ----------------------------------------------------

Ask = Callable[[float | None], int]


def wait_in_fiber(process: Any, ask: Ask, timeout: float | None) -> int:
    """``Popen._wait()`` in a fiber. ``ask`` is the standard method of ``process``."""
    if not _has_ended(ask):
        killed = getattr(process, "_killed", False)
        with shield() if killed else contextlib.nullcontext():
            _park(process, ask, timeout)
    code: int = process.returncode
    return code


def _has_ended(ask: Ask) -> bool:
    try:
        ask(0)
    except TimeoutExpired:
        return False
    return True


def _park(process: Any, ask: Ask, timeout: float | None) -> None:
    if timeout is not None and timeout <= 0:
        yield_now()  # programs ask in loops, in which other fibers must get their turns
    else:
        with move_on_after(timeout):
            _park_until_end(process, ask)
    if not _has_ended(ask):
        assert timeout is not None
        raise TimeoutExpired(process.args, timeout)


def _park_until_end(process: Any, ask: Ask) -> None:
    try:
        with _end_of(process.pid) as number:
            wait_readable(number)
    except ProcessLookupError:
        pass  # another call has waited for the child, or none need
    except OSError:  # the system has no such descriptor, or none left
        by_thread = getattr(process, "_by_thread", None) or _in_thread(ask, None)
        process._by_thread = by_thread
        await_future(by_thread)
    ask(None)  # returns at once; another thread may be about to do the same


def _drain(file: Any, chunks: list[bytes]) -> None:
    """Read what is in the file object's buffer, then all that comes, and close the file object."""
    binary = getattr(file, "buffer", file)
    read = getattr(binary, "read1", binary.read)
    while data := read(_pipes.AT_A_TIME):
        chunks.append(data)
    file.close()


def _make_pipe(name: str, size: Any) -> tuple[int, _pipes.Pipe]:
    """Make a pipe; return the child's descriptor and this process's Pipe."""
    reader, writer = os.pipe()
    if isinstance(size, int) and size > 0:
        _set_size(writer, size)
    if name == "stdin":
        return reader, _pipes.Pipe(writer, "wb")
    return writer, _pipes.Pipe(reader, "rb")


def _set_size(pipe: int, size: int) -> None:
    import fcntl

    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)


# for the users of the module ----------------------------------------------------------------------

_Popen.__name__ = _Popen.__qualname__ = "Popen"

#: The globals of the standard functions below: they find this module's Popen, and each other.
_names: dict[str, Any] = {**vars(_standard), "__name__": __name__, "Popen": _Popen}


def _with_our_names(theirs: FunctionType) -> FunctionType:
    """A copy of a standard function that looks its globals up in `_names`."""
    ours = FunctionType(
        theirs.__code__, _names, theirs.__name__, theirs.__defaults__, theirs.__closure__
    )
    ours.__kwdefaults__ = theirs.__kwdefaults__
    ours.__doc__ = theirs.__doc__
    return ours


if not TYPE_CHECKING:  # type checkers use the standard module's names
    Popen = _Popen
    for _name in ("run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"):
        _names[_name] = globals()[_name] = _with_our_names(getattr(_standard, _name))
    del _name
