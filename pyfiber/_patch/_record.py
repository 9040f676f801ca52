"""``Record``: what a part of the patch has changed, so that it can be undone.

Most changes put a gate in the place of a function (csrc/python/patch/gate.c). In a fiber an open
gate calls the function ``inside``; elsewhere, and once closed, it calls the original.
"""

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

#: All gates made so far, by the id of the original. A later patch opens the same gate again, so
#: names that are bound to it since the earlier patch work again.
_made: dict[int, AnyGate] = {}


def _binds(original: Any) -> bool:
    """Whether the original becomes a method when it is an attribute of a class."""
    return hasattr(type(original), "__get__")


def gate_for(original: Any, inside: Callable[..., Any]) -> AnyGate:
    """An open gate, which calls ``inside`` in a fiber and the original elsewhere."""
    original = _outside(original)
    gate = _made.get(id(original))
    if gate is None or gate._inside is not inside:
        kind = MethodGate if _binds(original) else Gate
        gate = _made[id(original)] = kind(original, inside)
    gate._open = True
    return gate


def modules() -> Iterator[tuple[str, ModuleType]]:
    """Yield name and module of all loaded modules but pyfiber's, which need no gates."""
    for name, module in list(sys.modules.items()):
        if issubclass(type(module), ModuleType) and name.partition(".")[0] != "pyfiber":
            yield name, module


def variables_of(module: ModuleType) -> dict[str, Any]:
    """The variables of a module; one that is loaded late stays unloaded."""
    found: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return found


class Record:
    """The changes of one part, which are undone in reverse order.

    If somebody else has changed the same attribute since, that change stays.
    """

    def __init__(self) -> None:
        #: For reports: the gates, by the names of the functions that they replace.
        self.gates: dict[str, AnyGate] = {}
        #: For reports: names in other modules that held an original: (module, name).
        self.names: list[tuple[str, str]] = []
        #: For reports: other changes, such as the class of sockets made in a fiber, in words.
        self.notes: list[str] = []
        self._undo: list[Callable[[], object]] = []
        self._sought: dict[int, AnyGate] = {}

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Replace an attribute of a module or of a class."""
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
        """Replace an attribute of an immutable type; it must not be one with a slot in the type."""
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
        """Put a gate in the place of a module's function.

        Other modules that have imported the function by name get the gate when the part is
        complete: see bind_names().
        """
        original = getattr(module, name)
        gate = self._gate(f"{module.__name__}.{name}", original, inside)
        self._sought[id(_outside(original))] = gate
        self.replace(module, name, gate)

    def method(self, cls: type[Any], name: str, inside: Callable[..., Any]) -> None:
        """Put a gate in the place of a class's method, its own or an inherited one."""
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
        """Call ``change(module)`` now if the module is loaded, and when it is imported later."""

        def imported(module: ModuleType) -> None:
            change(module)
            self.bind_names()

        self.on_undo(when_imported(name, imported))

    def on_undo(self, fn: Callable[[], object]) -> None:
        """Have undo() call ``fn()``."""
        self._undo.append(fn)

    def bind_names(self) -> None:
        """Give the gates to the modules that have imported the functions by name."""
        for module_name, module in modules():
            names = variables_of(module)
            for name, value in list(names.items()):
                gate = self._sought.get(id(value))
                if gate is not None and gate.__wrapped__ is value:
                    self.replace(module, name, gate)
                    if module_name != gate.__module__:  # the C module itself
                        self.names.append((module_name, name))

    def defaults(self, function: Any) -> None:
        """Replace originals among a function's default arguments by their gates."""
        old = function.__defaults__
        new = function.__defaults__ = tuple(self._sought.get(id(each), each) for each in old)

        def undo() -> None:
            if function.__defaults__ is new:
                function.__defaults__ = old

        self._undo.append(undo)

    def undo(self) -> None:
        """Undo all changes. Gates in modules imported since then call the originals from now on."""
        while self._undo:
            self._undo.pop()()


#: Py_TPFLAGS_IMMUTABLETYPE
_IMMUTABLE = 1 << 8
