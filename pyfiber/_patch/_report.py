"""``PatchReport``, which ``patch_report()`` returns."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType, FunctionType, ModuleType
from typing import Any

from pyfiber._patch._blocking import blocking_modules
from pyfiber._patch._record import AnyGate, Record


@dataclass(frozen=True)
class PatchReport:
    """What the patch has reached, and what it has not.

    ``str(report)`` is a text for people.
    """

    #: By part: the callables that have a gate, such as ``time.sleep``.
    reached: dict[str, list[str]] = field(default_factory=dict)
    #: Names in other modules that held an original and now hold its gate: ``module.name``.
    names: list[str] = field(default_factory=list)
    #: By part: what else has changed, in words.
    notes: dict[str, list[str]] = field(default_factory=dict)
    #: Places that still hold an original, which blocks in a fiber: (original, place).
    held: list[tuple[str, str]] = field(default_factory=list)
    #: Loaded extension modules that are known to block: (module, reason, what to do).
    blocking: list[tuple[str, str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, records: Mapping[str, Record]) -> PatchReport:
        """The report on the parts that are in force."""
        return cls(
            reached={part: list(record.gates) for part, record in records.items()},
            names=[".".join(name) for record in records.values() for name in record.names],
            notes={part: list(record.notes) for part, record in records.items() if record.notes},
            held=[
                (label, where)
                for record in records.values()
                for label, gate in record.gates.items()
                for where in sorted(set(_holders(gate)))
            ],
            blocking=list(blocking_modules()),
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.reached:
            yield from self._changes()
        else:
            yield "Nothing is patched: pyfiber.patch() does it."
        if self.blocking:
            yield "Loaded, and known to wait in C, where nothing parks:"
            for name, reason, advice in self.blocking:
                yield f"  {name}: {reason}; {advice}"

    def _changes(self) -> Iterator[str]:
        yield "In a fiber of a run these park, and everywhere else they do what they did:"
        for part, labels in self.reached.items():
            notes = self.notes.get(part, [])
            reached = ", ".join(labels) or ("" if notes else "when it is imported")
            yield f"  {part}: {reached}".rstrip()
            yield from (f"    {note}" for note in notes)
        if self.names:
            yield f"Also under these names, bound before: {', '.join(self.names)}"
        if self.held:
            yield "Out of reach, and so blocking in fibers, too:"
            yield from (f"  {label}, held by {where}" for label, where in self.held)


def _holders(gate: AnyGate) -> Iterator[str]:
    """Describe the places that refer to the original function, other than the gate."""
    original = gate.__wrapped__
    if getattr(original, "__qualname__", "") != getattr(original, "__name__", ""):
        return  # a method, which its class finds by itself
    for referrer in gc.get_referrers(original):
        if referrer is not gate and (where := _words_for(referrer, original)):
            yield where


def _words_for(referrer: Any, original: Any) -> str:
    """Describe a place. Empty if it does not keep the original (a frame), or is the patch's own."""
    if isinstance(referrer, FunctionType):
        return ""  # by its own globals or closure, which are places themselves
    if isinstance(referrer, tuple):
        return _first(_words_for_defaults(each, referrer) for each in gc.get_referrers(referrer))
    if isinstance(referrer, CellType):
        return _first(_words_for_closure(each, referrer) for each in _up_to(referrer, 2))
    if isinstance(referrer, dict):
        return _words_for_dict(referrer, original)
    return ""


def _first(found: Iterator[str]) -> str:
    return next((each for each in found if each), "")


def _up_to(thing: Any, steps: int) -> Iterator[Any]:
    for referrer in gc.get_referrers(thing):
        yield referrer
        if steps > 1 and isinstance(referrer, tuple):
            yield from _up_to(referrer, steps - 1)


def _words_for_defaults(function: Any, defaults: tuple[Any, ...]) -> str:
    if isinstance(function, FunctionType) and function.__defaults__ is defaults:
        return _unless_ours(function.__module__, f"a default of {_name_of(function)}")
    return ""


def _words_for_closure(function: Any, cell: CellType) -> str:
    if isinstance(function, FunctionType) and cell in (function.__closure__ or ()):
        return _unless_ours(function.__module__, f"the closure of {_name_of(function)}")
    return ""


def _words_for_dict(names: dict[Any, Any], original: Any) -> str:
    name = next((str(name) for name, value in list(names.items()) if value is original), "")
    for owner in gc.get_referrers(names):
        if isinstance(owner, type) and owner.__dict__.get(name) is original:
            return _unless_ours(owner.__module__, f"{owner.__module__}.{owner.__qualname__}.{name}")
        if isinstance(owner, ModuleType) and vars(owner) is names:
            return _unless_ours(owner.__name__, f"the module {owner.__name__} as {name}")
        if getattr(owner, "__dict__", None) is names and type(owner).__module__ in sys.modules:
            kind = type(owner)
            words = f"an object of {kind.__module__}.{kind.__qualname__} as {name}"
            return _unless_ours(kind.__module__, words)
    return ""


#: Packages that hold originals, but call them so that they do not wait.
_INNOCENT = ("pyfiber", "selectors", "subprocess")


def _unless_ours(module: str | None, words: str) -> str:
    return "" if (module or "").partition(".")[0] in _INNOCENT else words


def _name_of(function: FunctionType) -> str:
    return f"{function.__module__}.{function.__qualname__}()"
