"""``patch()``: blocking calls of the standard library that park in a fiber of a run.

    >>> import pyfiber, time
    >>> def main():
    ...     fibers = [pyfiber.spawn(time.sleep, 0.01) for _ in range(100)]
    >>> with pyfiber.patch():
    ...     pyfiber.run(main)

Each call decides by where it is made: in a fiber of a run it parks that fiber; in a plain thread,
in an asyncio task or in the main program it does exactly what it did before. docs/patching.md has
the details.

A part is a module of this package with a function ``apply(record)``, which makes the changes of the
part and has the Record undo them later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyfiber._engine import FiberError, Lock, _load
from pyfiber._info import gil_is_on
from pyfiber._patch._record import Record

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pyfiber._patch._report import PatchReport

__all__ = ["Patch", "patch", "patch_report"]

#: The parts, in the order in which they are applied, and the module of each.
PARTS = {
    "time": "pyfiber._patch._time",
    "dns": "pyfiber._patch._dns",
    "socket": "pyfiber._patch._socket",
    "ssl": "pyfiber._patch._ssl",
    "select": "pyfiber._patch._select",
    "asyncio": "pyfiber._patch._asyncio",
    "subprocess": "pyfiber._patch._subprocess",
    "os": "pyfiber._patch._os",
    "threading": "pyfiber._patch._threading",
    "queue": "pyfiber._patch._queue",
    "local": "pyfiber._patch._local",
    "drivers": "pyfiber._patch._drivers",
}

#: Guards _records and _asked. This is a lock of pyfiber's: patch() changes the standard ones.
_lock = Lock()
#: The parts that are in force, in the order in which they were applied.
_records: dict[str, Record] = {}
#: Each patch() that has not been undone.
_asked: list[Patch] = []


def _chosen(parts: dict[str, bool]) -> set[str]:
    unknown = parts.keys() - PARTS.keys()
    if unknown:
        raise TypeError(
            f"there is no part {', '.join(map(repr, sorted(unknown)))}; there are:"
            f" {', '.join(PARTS)}"
        )
    if not gil_is_on():
        raise FiberError(
            "patch() needs the GIL: without it, the lists of fibers that wait for standard locks or"
            " queues are not thread-safe; start Python with PYTHON_GIL=1 or -X gil=1"
        )
    named = {name for name, wanted in parts.items() if wanted}
    return named or PARTS.keys() - parts.keys()


def _wanted() -> set[str]:
    return set[str]().union(*(each.parts for each in _asked))


def _adjust() -> None:
    """Apply the parts that are wanted, undo the others. The caller holds _lock."""
    wanted = _wanted()
    for name in [name for name in reversed(_records) if name not in wanted]:
        _records.pop(name).undo()
    for name, module in PARTS.items():
        if name in wanted and name not in _records:
            _apply(name, _load(module))


def _apply(name: str, part: Any) -> None:
    record = Record()
    try:
        part.apply(record)
        record.bind_names()
    except BaseException:
        record.undo()
        raise
    _records[name] = record


class Patch:
    """A call of ``patch()``: ``undo()``, or the end of a ``with`` block, undoes that call."""

    def __init__(self, parts: set[str]) -> None:
        self.parts = parts

    def undo(self) -> None:
        """Undo this call of ``patch()``; parts that other calls have asked for stay patched.

        Undoing twice is fine. A fiber that waits in a patched call finishes that call as it began.
        """
        with _lock:
            if self in _asked:
                _asked.remove(self)
                _adjust()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<pyfiber.patch() of {', '.join(part for part in PARTS if part in self.parts)}>"


def patch(**parts: bool) -> Patch:
    """Make blocking calls of the standard library park when a fiber of a run makes them.

    Made anywhere else, they do what they did before. Without arguments all parts are patched:
    ``time``, ``dns``, ``socket``, ``ssl``, ``select``, ``asyncio``, ``subprocess``, ``os``,
    ``threading``, ``queue``, ``local``, ``drivers``. ``patch(threading=False)`` leaves a part out;
    ``patch(socket=True, ssl=True)`` patches these alone. Another call adds parts. The call may come
    at any time, before or after imports. ``undo()`` of the object that it returns undoes the call;
    ``with patch():`` does so at the end of the block. ``pyfiber.debug.patch_report()`` shows what
    was reached.

    TypeError if there is no such part. FiberError if Python runs without the GIL, on which the
    patched locks and queues rely.
    """
    asked = Patch(_chosen(parts))
    with _lock:
        _asked.append(asked)
        try:
            _adjust()
        except BaseException:
            _asked.remove(asked)
            _adjust()
            raise
    return asked


def patch_report() -> PatchReport:
    """Report what the patch has reached, and what in this process blocks a fiber's thread."""
    _load("pyfiber._patch._report")
    from pyfiber._patch._report import PatchReport

    with _lock:
        return PatchReport.of(_records)


def in_force() -> Iterable[str]:
    """The names of the parts that are in force."""
    return list(_records)


patch.__module__ = "pyfiber"
patch_report.__module__ = "pyfiber.debug"
