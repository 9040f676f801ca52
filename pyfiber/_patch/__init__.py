"""``patch()``: blocking calls of the standard library that park in a fiber of a run.

    >>> import pyfiber, time
    >>> def main():
    ...     fibers = [pyfiber.spawn(time.sleep, 0.01) for _ in range(100)]
    >>> with pyfiber.patched():
    ...     pyfiber.run(main)

Each call decides where it is made: in a fiber of a run it parks that fiber; in a plain thread, in
an asyncio task, in the main program it does exactly what it did. docs/patching.md tells more.

A part is a module of this package with a function ``apply(record)``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyfiber._engine import FiberError, Lock, _load
from pyfiber._info import gil_is_on
from pyfiber._patch._record import Record

if TYPE_CHECKING:
    from pyfiber._patch._report import PatchReport

__all__ = ["patch", "patch_report", "patched", "unpatch"]

#: Each part, in the order in which they are applied, and its module.
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

#: Guards what follows. It is pyfiber's own: the standard ones are about to change.
_lock = Lock()
#: The parts that are in force.
_records: dict[str, Record] = {}
#: What patch() has asked for, and each patched() block that has not ended.
_by_patch: set[str] = set()
_by_blocks: list[set[str]] = []


def _chosen(parts: dict[str, bool]) -> set[str]:
    unknown = parts.keys() - PARTS.keys()
    if unknown:
        raise TypeError(
            f"there is no part {', '.join(map(repr, sorted(unknown)))}; there are:"
            f" {', '.join(PARTS)}"
        )
    if not gil_is_on():
        raise FiberError(
            "patch() needs the GIL: without it, the lines of fibers that wait for locks and queues"
            " of the standard library are not safe; start Python with PYTHON_GIL=1 or -X gil=1"
        )
    named = {name for name, wanted in parts.items() if wanted}
    return named or PARTS.keys() - parts.keys()


def _wanted() -> set[str]:
    return _by_patch.union(*_by_blocks)


def _adjust() -> None:
    """Apply what is wanted and not in force, undo the rest; the lock is held."""
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


def patch(**parts: bool) -> None:
    """From now on blocking calls of the standard library park when made in a fiber of a run.

    Made anywhere else, they do what they did. Without arguments all parts: ``time``, ``dns``,
    ``socket``, ``ssl``, ``select``, ``asyncio``, ``subprocess``, ``os``, ``threading``, ``queue``,
    ``local``, ``drivers``. ``patch(threading=False)`` leaves that one out;
    ``patch(socket=True, ssl=True)`` patches these alone. Calling it again adds parts. At any time,
    before or after imports; ``unpatch()`` undoes it, ``patch_report()`` tells what was reached.
    FiberError where Python runs without the GIL, which what is patched counts on.
    """
    chosen = _chosen(parts)
    with _lock:
        before = set(_by_patch)
        _by_patch.update(chosen)
        try:
            _adjust()
        except BaseException:
            _by_patch.clear()
            _by_patch.update(before)
            _adjust()
            raise


def unpatch() -> None:
    """Undo ``patch()``; what a ``with patched()`` block needs stays until its end.

    A fiber that waits in such a call finishes it as it began. Without a patch it does nothing.
    """
    with _lock:
        _by_patch.clear()
        _adjust()


@contextlib.contextmanager
def patched(**parts: bool) -> Iterator[None]:
    """``patch()`` for a ``with`` block, at whose end what others have asked for stays."""
    chosen = _chosen(parts)
    with _lock:
        _by_blocks.append(chosen)
        try:
            _adjust()
        except BaseException:
            _leave(chosen)
            raise
    try:
        yield
    finally:
        with _lock:
            _leave(chosen)


def _leave(chosen: set[str]) -> None:
    for at, each in enumerate(_by_blocks):
        if each is chosen:
            del _by_blocks[at]
            break
    _adjust()


def patch_report() -> PatchReport:
    """What the patch has reached, and what in this process still blocks a fiber's thread."""
    _load("pyfiber._patch._report")
    from pyfiber._patch._report import PatchReport

    with _lock:
        return PatchReport.of(_records)


def in_force() -> Iterable[str]:
    """The names of the parts that are."""
    return list(_records)


for _each in (patch, unpatch, patched, patch_report):
    _each.__module__ = "pyfiber"
