"""What a part of the patch has changed, so that it can be undone."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeAlias

from pyfiber._engine import Gate, MethodGate, _outside, _set_in_type
from pyfiber._patch._imports import when_imported

AnyGate: TypeAlias = Gate | MethodGate

_NOTHING: Any = object()

#: Gates that were made before, by the original's id: names that were bound to one are alive again
#: when the patch comes back.
_made: dict[int, AnyGate] = {}


def _binds(original: Any) -> bool:
    """It becomes a method where it is an attribute of a class."""
    return hasattr(type(original), "__get__")


def gate_for(original: Any, inside: Callable[..., Any]) -> AnyGate:
    """An open one."""
    original = _outside(original)
    gate = _made.get(id(original))
    if gate is None or gate._inside is not inside:
        kind = MethodGate if _binds(original) else Gate
        gate = _made[id(original)] = kind(original, inside)
    gate._open = True
    return gate


def modules() -> Iterator[tuple[str, ModuleType]]:
    """All but pyfiber's own, which know what they call."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.partition(".")[0] != "pyfiber":
            yield name, module


class Record:
    """The changes of one part, which are undone in reverse order.

    A change that somebody else has made on top of one of these stays as it is.
    """

    def __init__(self) -> None:
        #: What was given a gate, for reports: its name and the gate.
        self.gates: dict[str, AnyGate] = {}
        #: Names in other modules that held an original: (module, name).
        self.names: list[tuple[str, str]] = []
        #: Classes of which sockets, locks and so on are made otherwise.
        self.notes: list[str] = []
        self._undo: list[Callable[[], object]] = []
        self._sought: dict[int, AnyGate] = {}

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """An attribute of a module or of a class."""
        old = vars(owner).get(name, _NOTHING)

        def undo() -> None:
            if vars(owner).get(name) is not new:
                return
            if old is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, old)

        setattr(owner, name, new)
        self._undo.append(undo)

    def replace_in_type(self, type: type[Any], name: str, new: Any) -> None:
        """An attribute of a type that Python code cannot change; none that has a slot."""
        old = vars(type).get(name, _NOTHING)

        def undo() -> None:
            if vars(type).get(name) is not new:
                return
            if old is _NOTHING:
                _set_in_type(type, name)
            else:
                _set_in_type(type, name, old)

        _set_in_type(type, name, new)
        self._undo.append(undo)

    def function(self, module: ModuleType, name: str, inside: Callable[..., Any]) -> None:
        """A gate instead of a module's function, wherever a module's name holds that.

        Other modules get it when the part is complete: see bind_names().
        """
        original = getattr(module, name)
        gate = self._gate(f"{module.__name__}.{name}", original, inside)
        self._sought[id(_outside(original))] = gate
        self.replace(module, name, gate)

    def method(self, cls: type[Any], name: str, inside: Callable[..., Any]) -> None:
        """A gate instead of a class's method, its own or an inherited one."""
        original = inspect.getattr_static(cls, name)
        label = f"{cls.__module__}.{cls.__qualname__}.{name}"
        if name == "__new__":
            self.replace(cls, name, staticmethod(self._gate(label, original, inside)))
            return
        if isinstance(original, (classmethod, staticmethod)):
            gate = self._gate(label, original.__func__, inside)
            self.replace(cls, name, type(original)(gate))
            return
        gate = self._gate(label, original, inside)
        if cls.__flags__ & _IMMUTABLE:
            self.replace_in_type(cls, name, gate)
        else:
            self.replace(cls, name, gate)

    def _gate(self, label: str, original: Any, inside: Callable[..., Any]) -> AnyGate:
        gate = self.gates[label] = gate_for(original, inside)
        self._undo.append(lambda: setattr(gate, "_open", False))
        return gate

    def when_imported(self, name: str, change: Callable[[ModuleType], object]) -> None:
        """Make a change to a module, if it is there now or when it is imported."""

        def imported(module: ModuleType) -> None:
            change(module)
            self.bind_names()

        self.on_undo(when_imported(name, imported))

    def on_undo(self, fn: Callable[[], object]) -> None:
        """To be called then."""
        self._undo.append(fn)

    def bind_names(self) -> None:
        """Give the gates to the modules that have imported the functions by name."""
        for module_name, module in modules():
            names = vars(module)
            for name, value in list(names.items()):
                gate = self._sought.get(id(value))
                if gate is not None and gate.__wrapped__ is value:
                    self.replace(module, name, gate)
                    if module_name != gate.__module__:  # its home in C
                        self.names.append((module_name, name))

    def undo(self) -> None:
        """Everything is as it was, in modules imported since then as well: the gates are closed."""
        while self._undo:
            self._undo.pop()()


#: Py_TPFLAGS_IMMUTABLETYPE
_IMMUTABLE = 1 << 8
