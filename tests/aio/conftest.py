"""What the tests of pyfiber.aio share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from tests.aio.loops import FACTORIES, Factory, run_on

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=FACTORIES)
def factory(request: pytest.FixtureRequest) -> Factory:
    """Makes a loop of each kind."""
    made: Factory = request.param
    return made


@pytest.fixture
def arun(factory: Factory) -> Run:
    """Run a coroutine on a loop of each kind."""
    return partial(run_on, factory)
