"""How the interpreter calls the engine, shown to it: see csrc/python/fiber/pack.c.

A fiber that waits can do without a stack of its own if every call on that is one that the engine knows. So, once in a process,
the engine is called here in each of the ways in which Python code calls C functions, and is called back from, by code that is
new to the interpreter and by code that it has specialised.
"""

from __future__ import annotations

import functools
from typing import Any

from pyfiber import _engine

_WARM = 40  # calls after which the interpreter has specialised a piece of code


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


_CALLS = """
def functions(probe, called, made, functions):
    noargs, o, fast = functions.noargs, functions.o, functions.fast
    positional, keywords, args = functions.positional, functions.keywords, functions.args
    nothing, some, named = (), (1, 2), {"a": 1}
    noargs(); o(1); fast(); fast(1); fast(1, a=2); positional(); positional(1, 2)
    keywords(); keywords(1); keywords(a=1); args(); args(1, 2)
    noargs(*nothing); fast(*some, **named); positional(*some); keywords(*some, **named); args(*some); o(*(1,))
    functions.noargs(); functions.o(1); functions.fast(1); functions.positional(1); functions.keywords(a=1)

def methods(probe, called, made, functions):
    nothing, some, named = (), (1, 2), {"a": 1}
    probe.noargs(); probe.o(1); probe.fast(); probe.fast(1); probe.fast(1, a=2); probe.positional(1)
    probe.positional(1, 2); probe.keywords(1, a=2); probe.args(1); probe.noargs(*nothing)
    probe.fast(*some, **named); probe.keywords(*some, **named)
    noargs, o, fast, positional, keywords = probe.noargs, probe.o, probe.fast, probe.positional, probe.keywords
    noargs(); o(1); fast(1, a=2); positional(1); keywords(1, a=1)
    noargs(*nothing); o(*(1,)); fast(*some, **named); positional(*some); keywords(**named)
    probe(); probe(1, a=2); probe(*some, **named)
    probe.attribute
    with probe:
        pass
    for _ in probe:
        break
    next(probe)
    next(probe, None)
    try:
        with probe:
            raise KeyError
    except KeyError:
        noargs()
    finally:
        fast(1)

def subclasses(probe, called, made, functions):
    nothing, some, named = (), (1, 2), {"a": 1}
    made.noargs(); made.fast(1, a=2); made.o(1); made.fast(*some, **named)
    noargs, fast = made.noargs, made.fast
    noargs(); fast(1); fast(*some, **named)

def called_back(probe, called, made, functions):
    nothing, some, named = (), (1, 2), {"a": 1}
    one = called(functions.noargs)
    called(functions.noargs, 1, a=2); called(functions.noargs, *some, **named)
    one(); one(1, a=2); one(*some, **named); one.run(); one.run(1, a=2); one.run(*some, **named)
    run = one.run
    run(); run(1); run(a=1); run(*some, **named)
    one.attribute
    with one:
        pass
    for _ in one:
        break
    next(one)
    called.of_class(functions.noargs); called.of_none(functions.noargs); one.of_class(functions.noargs)
    partial(functions.noargs)(); partial(run, 1)(2); partial(run, 1, a=2)(*some, b=3); partial(functions.fast, 1)(2, c=3)
    (lambda: functions.noargs())()
    (lambda *a, **k: functions.fast(*a, **k))(*some, **named)
    def inner(a=1, *, b=2):
        functions.noargs()
    inner(); inner(2); inner(b=3); inner(*(1,), **{"b": 2})
"""


class _Way:
    """One of the functions above, as a fiber calls it."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def _call(self) -> None:
        # new probes each time would not warm anything
        self._function(_PROBE, _Called, _MADE, _engine._probes)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._call()

    def run(self) -> None:
        self._call()


_PROBE = _engine._Probe()
_MADE = _Made()


def _fresh() -> list[Any]:
    names: dict[str, Any] = {"partial": functools.partial}
    exec(compile(_CALLS, __file__, "exec"), names)
    return [names[name] for name in ("functions", "methods", "subclasses", "called_back")]


def learn() -> None:
    """Show the engine all the ways, by fresh code and by warm code."""
    cold, warm = _fresh(), _fresh()
    for function in warm:
        for _ in range(_WARM):
            function(_PROBE, _Called, _MADE, _engine._probes)
    for function in [*cold, *warm]:
        way = _Way(function)

        def plain(*args: Any, function: Any = function, **kwargs: Any) -> None:
            function(_PROBE, _Called, _MADE, _engine._probes)

        plain.run = plain  # type: ignore[attr-defined]
        _engine._learn([way, plain])
    bound = _Way(warm[0])
    _engine._learn([_Callables(bound.run), _Callables(functools.partial(bound)), _Callables(_engine._probes.fast)])


class _Callables:
    """Gives something that has no `run` one."""

    def __init__(self, callable: Any) -> None:
        self._callable = callable

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._callable()

    def run(self) -> None:
        self._callable()
