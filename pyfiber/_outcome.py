"""The three values of ``fiber.outcome``, which say how a fiber ended, for ``match``.

A cancellation is a third case, neither a value nor an error.

The classes behave as frozen dataclasses, but are written out, because the ``dataclasses`` module
takes longer to import than all of pyfiber. A plain import of that module when an outcome is first
used would not work: while a switch has suspended the import, all other fibers see an incomplete
module. Types are in the stub.
"""

from __future__ import annotations

from types import GenericAlias

from pyfiber._engine import _load


class FromDataclass:
    """An attribute that ``dataclasses`` looks for, taken from a real dataclass made for that."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        _load("dataclasses")
        from dataclasses import field, make_dataclass

        (name,) = owner.__match_args__
        default = field(default=None) if owner.__init__.__defaults__ else field()
        twin = make_dataclass(owner.__name__, [(name, owner.KIND, default)], frozen=True)
        return getattr(twin, self.name)


class Frozen:
    """A class with one field, which ``__match_args__`` names."""

    __slots__ = ()
    __dataclass_fields__ = FromDataclass()
    __dataclass_params__ = FromDataclass()

    def _values(self):
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __repr__(self):
        (name,), (value,) = self.__match_args__, self._values()
        return f"{type(self).__qualname__}({name}={value!r})"

    def __eq__(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self):
        return hash(self._values())

    def __setattr__(self, name, value):
        _load("dataclasses")
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name):
        _load("dataclasses")
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __reduce__(self):
        return type(self), self._values()

    def __replace__(self, /, **changes):
        return type(self)(**dict(zip(self.__match_args__, self._values(), strict=True)) | changes)


class Ok(Frozen):
    """The function returned ``value``."""

    __slots__ = __match_args__ = ("value",)
    __class_getitem__ = classmethod(GenericAlias)
    KIND = "R"

    def __init__(self, value):
        object.__setattr__(self, "value", value)


class Failed(Frozen):
    """The function raised ``exception``."""

    __slots__ = __match_args__ = ("exception",)
    KIND = "BaseException"

    def __init__(self, exception):
        object.__setattr__(self, "exception", exception)


class CancelledOutcome(Frozen):
    """The fiber was cancelled; ``reason`` is the argument of ``cancel()``."""

    __slots__ = __match_args__ = ("reason",)
    KIND = "Any"

    def __init__(self, reason=None):
        object.__setattr__(self, "reason", reason)


def __getattr__(name):
    if name not in ("Outcome", "R"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load("typing")
    from typing import TypeVar

    result = globals().setdefault("R", TypeVar("R"))
    globals().setdefault("Outcome", Ok[result] | Failed | CancelledOutcome)
    return globals()[name]
