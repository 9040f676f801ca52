from __future__ import annotations

from collections.abc import Iterator

import pytest

import pyfiber
from pyfiber import _patch


@pytest.fixture
def patched() -> Iterator[None]:
    with pyfiber.patched():
        yield


@pytest.fixture(autouse=True)
def nothing_is_patched_afterwards() -> Iterator[None]:
    yield
    pyfiber.unpatch()
    assert not list(_patch.in_force())
