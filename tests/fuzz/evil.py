"""Arguments that do something when they are looked at.

An `Evil` has every protocol that a C function may ask an argument for. Each asks the running
program what to do, which as a rule is more random calls, and then gives an answer or raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Where evil objects find the program they belong to.
programs: list[Any] = []


class Boom(Exception):
    """What random programs raise."""


def betray(protocol: str) -> Any:
    """The running program does something; returns it, or None if there is none."""
    program = programs[-1] if programs else None
    if program is not None:
        program.betray(protocol)
    return program


def perform(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call proper: a frame of its own, for trace functions."""
    return function(*args, **kwargs)


def answer(protocol: str, values: Callable[[Any], Any]) -> Any:
    """A method that betrays, and returns what `values` makes of the program."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        program = betray(protocol)
        return values(program) if program is not None else None

    method.__name__ = method.__qualname__ = protocol
    return method


class Evil:
    """Everything a caller could ask for. `hold` keeps something alive for as long as this is."""

    __slots__ = ("__weakref__", "hold")

    def __init__(self, hold: Any = None) -> None:
        self.hold = hold

    def __iter__(self) -> Any:
        betray("__iter__")
        return iter(())

    def __enter__(self) -> Any:
        betray("__enter__")
        return self

    def __await__(self) -> Any:
        betray("__await__")
        return iter(())

    def __del__(self) -> None:
        betray("__del__")

    def __getitem__(self, key: Any) -> Any:
        betray("__getitem__")
        if isinstance(key, int) and key > 1:
            raise IndexError
        return key


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "__float__": lambda p: p.seconds(),
    "__index__": lambda p: p.random.choice((0, 0, 1, 1, 2, 3, -1, 1 << 16, 1 << 17)),
    "__int__": lambda p: p.random.choice((0, 1, 2, -1)),
    "__bool__": lambda p: p.random.random() < 0.5,
    "__len__": lambda p: p.random.randrange(3),
    "__hash__": lambda p: p.random.randrange(2),
    "__eq__": lambda p: p.random.random() < 0.5,
    "__lt__": lambda p: p.random.random() < 0.5,
    "__contains__": lambda p: p.random.random() < 0.5,
    "__call__": lambda p: p.value(),
    "__next__": lambda p: p.value() if p.random.random() < 0.6 else stop(),
    "__exit__": lambda p: p.random.random() < 0.2,
    "__str__": lambda p: "evil",
    "__repr__": lambda p: "evil",
    "send": lambda p: p.value() if p.random.random() < 0.5 else stop(),
    "throw": lambda p: stop(),
    "close": lambda p: None,
    "keys": lambda p: ["a", "b"],
    "acquire": lambda p: p.random.random() < 0.8,
    "release": lambda p: None,
    "set": lambda p: None,
    "result": lambda p: p.value(),
    "run": lambda p: p.value(),
}
for _name, _values in ANSWERS.items():
    setattr(Evil, _name, answer(_name, _values))


def stop() -> Any:
    """End an iteration."""
    raise StopIteration


class Looked(Evil):
    """Evil whose every attribute betrays when it is looked up, and which lies about its class."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        betray(name)
        return object.__getattribute__(self, name)


class Liar(Evil):
    """Evil that says it is a Fiber's name, a number or whatever the program takes it for."""

    __slots__ = ()

    @property
    def __class__(self) -> Any:
        program = betray("__class__")
        lies = (Liar, str, int, dict, ValueError)
        return Liar if program is None else program.random.choice(lies)
