"""How the interpreter calls the engine, shown to it: see csrc/python/fiber/pack.c.

A fiber that waits can do without a stack of its own if every call on that is one that the engine
knows. So, once in a process, the engine is called here in each of the ways in which Python code
calls C functions, and is called back from, by code that is new to the interpreter and by code
that it has specialised.
"""

from __future__ import annotations

from pyfiber import _engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from functools import partial
    from types import FunctionType
    from typing import Any
else:  # functools and types take longer to import than all the rest of us
    from _functools import partial

    FunctionType = type(lambda: None)

_WARM = 16  # calls after which the interpreter has specialised a piece of code


class _Called:
    """Calls a probe wherever Python code can be called by C code of the interpreter."""

    def __init__(self, probe: Any, *args: Any, **kwargs: Any) -> None:
        self._probe = probe
        probe()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._probe()

    def __enter__(self) -> None:
        self._probe()

    def __exit__(self, *args: Any) -> None:
        self._probe()

    def __iter__(self) -> _Called:
        return self

    def __next__(self) -> None:
        self._probe()

    def run(self, *args: Any, **kwargs: Any) -> None:
        self._probe()

    @property
    def attribute(self) -> None:
        self._probe()

    @classmethod
    def of_class(cls, probe: Any) -> None:
        probe()

    @staticmethod
    def of_none(probe: Any) -> None:
        probe()


class _Made(_engine._Probe):
    """A subclass, as users make them: its methods call those of the engine."""

    def noargs(self) -> None:
        super().noargs()

    def fast(self, *args: Any, **kwargs: Any) -> None:
        super().fast(*args, **kwargs)


# Made for the lesson, and dropped after it.
_PROBE: Any = None
_MADE: Any = None
_PROBES: Any = _engine._probes
_NOTHING: tuple[Any, ...] = ()
_ONE: tuple[Any, ...] = (1,)
_TWO: tuple[Any, ...] = (1, 2)
_NAMED: dict[str, Any] = {"a": 1}
_B = {"b": 2}


def _functions() -> None:
    noargs, o, fast = _PROBES.noargs, _PROBES.o, _PROBES.fast
    positional, keywords, args = _PROBES.positional, _PROBES.keywords, _PROBES.args
    noargs()
    o(1)
    fast()
    fast(1, a=2)
    positional(1)
    keywords(1)
    keywords(a=1)
    args(1)
    noargs(*_NOTHING)
    o(*_ONE)
    fast(*_TWO, **_NAMED)
    positional(*_TWO)
    keywords(*_TWO, **_NAMED)
    args(*_TWO)
    _PROBES.noargs()
    _PROBES.fast(1)
    _PROBES.keywords(a=1)


def _methods() -> None:
    _PROBE.noargs()
    _PROBE.o(1)
    _PROBE.fast()
    _PROBE.fast(1, a=2)
    _PROBE.positional(1)
    _PROBE.keywords(1, a=2)
    _PROBE.args(1)
    _PROBE.noargs(*_NOTHING)
    _PROBE.o(*_ONE)
    _PROBE.fast(*_TWO, **_NAMED)
    _PROBE.keywords(*_TWO, **_NAMED)
    noargs, o, fast = _PROBE.noargs, _PROBE.o, _PROBE.fast
    positional, keywords = _PROBE.positional, _PROBE.keywords
    noargs()
    o(1)
    fast(1, a=2)
    positional(1)
    keywords(1, a=1)
    noargs(*_NOTHING)
    fast(*_TWO, **_NAMED)
    keywords(**_NAMED)


def _slots() -> None:
    _PROBE()
    _PROBE(1, a=2)
    _PROBE(*_TWO, **_NAMED)
    _PROBE.attribute  # noqa: B018 - a getter is called
    with _PROBE:
        pass
    for _ in _PROBE:
        break
    next(_PROBE)
    next(_PROBE, None)
    try:
        with _PROBE:
            raise KeyError
    except KeyError:
        _PROBES.noargs()
    finally:
        _PROBES.fast(1)


def _subclasses() -> None:
    _MADE.noargs()
    _MADE.fast(1, a=2)
    _MADE.o(1)
    _MADE.fast(*_TWO, **_NAMED)
    noargs, fast = _MADE.noargs, _MADE.fast
    noargs()
    fast(1)
    fast(*_TWO, **_NAMED)


def _called_back() -> None:
    one = _Called(_PROBES.noargs)
    _Called(_PROBES.noargs, 1, a=2)
    _Called(_PROBES.noargs, *_TWO, **_NAMED)
    one()
    one(1, a=2)
    one(*_TWO, **_NAMED)
    one.run(1, a=2)
    one.run(*_TWO, **_NAMED)
    run = one.run
    run()
    run(a=1)
    run(*_TWO, **_NAMED)
    one.attribute  # noqa: B018 - a getter is called
    with one:
        pass
    for _ in one:
        break
    next(one)
    _Called.of_class(_PROBES.noargs)
    _Called.of_none(_PROBES.noargs)
    one.of_class(_PROBES.noargs)


def _made_functions() -> None:
    one = _Called(_PROBES.noargs)
    partial(_PROBES.noargs)()
    partial(one.run, 1)(2)
    partial(one.run, 1, a=2)(*_TWO, b=3)
    partial(_PROBES.fast, 1)(2, c=3)
    (lambda: _PROBES.noargs())()
    (lambda *a, **k: _PROBES.fast(*a, **k))(*_TWO, **_NAMED)

    def inner(a: int = 1, *, b: int = 2) -> None:
        _PROBES.noargs()

    inner()
    inner(2)
    inner(b=3)
    inner(*_ONE, **_B)


_WAYS = (_functions, _methods, _slots, _subclasses, _called_back, _made_functions)


class _Fiber:
    """What a fiber runs, called as the engine calls it: with `run` for subclasses of Fiber."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._target()

    def run(self) -> None:
        self._target()


def _all() -> None:
    for way in _WAYS:
        way()


def _fresh(function: Any) -> Any:
    return FunctionType(function.__code__.replace(), function.__globals__)


def learn() -> None:
    """Show the engine all the ways, by code that is fresh and by code that is warm."""
    global _PROBE, _MADE
    _PROBE, _MADE = _engine._Probe(), _Made()
    try:
        _lesson()
    finally:
        _PROBE = _MADE = None


def _lesson() -> None:
    def plain(*args: Any, **kwargs: Any) -> None:
        _PROBES.noargs()

    plain.run = plain  # type: ignore[attr-defined]
    one = _Called(_PROBES.noargs)
    cold = [_fresh(way) for way in _WAYS]
    _engine._learn(lambda: [way() for way in cold] and None, once=True)
    for _ in range(_WARM):
        _all()
        plain()
    _engine._learn(_all, once=True)
    for target in (_PROBES.fast, one.run, partial(one), partial(plain, 1)):
        _engine._learn(_Fiber(target))
    _engine._learn(plain)
