"""Fixtures of a marked test, for the pytest plugin: made afresh in each run, and ended in it.

pytest makes fixtures before it calls the test, once. For a fixture that belongs in the run it gets
a placeholder instead; each run makes the values in the order in which pytest asked for them::

    pytest                setup(item)         call(item)                       teardown(item)
    the plugin            placeholders        a run, or one per schedule       -
    in the run                                fixtures, the test, their ends

These fixtures are the test's own: of function scope, plain, and not of pytest or another installed
package. pytest's ``setup_method`` and ``setup_function`` are such fixtures, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from _pytest.fixtures import SubRequest, call_fixture_func, resolve_fixture_function

from pyfiber.testing.guards import PACKAGES_LEFT_ALONE

__tracebackhide__ = True  # pytest's

INSTALLED = {"site-packages", "dist-packages"}
OF_XUNIT = ("_xunit_setup_method_fixture", "_xunit_setup_function_fixture")


class Placeholder:
    """What pytest gets in place of a fixture's value, until a run has made that."""

    __slots__ = ("arguments", "fixturedef", "request")

    def __init__(self, fixturedef: pytest.FixtureDef[Any], request: SubRequest) -> None:
        self.fixturedef = fixturedef
        self.request = request
        self.arguments = {name: request.getfixturevalue(name) for name in fixturedef.argnames}

    def show(self, value: object) -> None:
        """Let pytest take this for the fixture's value."""
        self.fixturedef.cached_result = (value, self.fixturedef.cache_key(self.request), None)

    def __repr__(self) -> str:
        return f"<fixture {self.fixturedef.argname!r}, which each run makes>"


class Fixtures:
    """The fixtures of one test that belong in its runs."""

    def __init__(self) -> None:
        self.waiting: list[Placeholder] = []
        self.values: dict[Placeholder, Any] = {}
        self.run: ExitStack | None = None  # what the present run has to end

    def setup(self, fixturedef: pytest.FixtureDef[Any], request: SubRequest) -> object:
        """Give pytest a placeholder, or the value if the test asks for the fixture in a run."""
        placeholder = Placeholder(fixturedef, request)
        if self.run is None:
            self.waiting.append(placeholder)
            placeholder.show(placeholder)
            return placeholder
        # At its end the run forgets the fixture: the next run may ask for it again, or may not.
        self.run.callback(request._fixture_defs.pop, fixturedef.argname, None)
        self.run.callback(fixturedef.finish, request)
        return self.make(placeholder, self.run)

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the test's function in a run, with fixtures around it."""
        with ExitStack() as run:
            self.run = run
            run.callback(self.forget)
            for placeholder in self.waiting:
                run.callback(placeholder.show, placeholder)
                self.make(placeholder, run)
            return function(*args, **{name: self.actual(kwargs[name]) for name in kwargs})

    def make(self, placeholder: Placeholder, run: ExitStack) -> object:
        """Call the fixture's function. The end of the run calls its finalizers."""
        fixturedef, request = placeholder.fixturedef, placeholder.request
        arguments = {name: self.actual(value) for name, value in placeholder.arguments.items()}
        function = resolve_fixture_function(fixturedef, request)
        finalizers = fixturedef._finalizers
        before = len(finalizers)
        try:
            value: object = call_fixture_func(function, request, arguments)
        finally:
            for finalizer in finalizers[before:]:
                run.callback(finalizer)
            del finalizers[before:]
        placeholder.show(value)
        self.values[placeholder] = value
        return value

    def actual(self, value: object) -> object:
        """The present run's value for a placeholder."""
        return self.values[value] if isinstance(value, Placeholder) else value

    def forget(self) -> None:
        """Drop the values: the run is over."""
        self.run = None
        self.values.clear()


FIXTURES = pytest.StashKey[Fixtures]()


def fixtures_of(item: pytest.Item) -> Fixtures:
    """The fixtures of this test."""
    return item.stash.setdefault(FIXTURES, Fixtures())


def belongs_in_the_run(fixturedef: pytest.FixtureDef[Any]) -> bool:
    """Is the fixture the test's own, and can a run make it?"""
    function = fixturedef.func
    if fixturedef.scope != "function":
        return False
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return False  # another plugin's matter
    if fixturedef.argname.startswith(OF_XUNIT):
        return True
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    if package in PACKAGES_LEFT_ALONE:
        return False
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and INSTALLED.isdisjoint(Path(code.co_filename).parts)
