from __future__ import annotations

from collections.abc import Iterator

import pytest

import pyfiber
from pyfiber import _patch
from tests.support.gil import GIL, PATCH_NEEDS_IT


@pytest.fixture(autouse=True, scope="session")
def there_is_a_gil() -> None:
    """The refusal itself is under test in tests/fiber/test_free_threaded.py."""
    if not GIL:
        pytest.skip(PATCH_NEEDS_IT)


@pytest.fixture
def patched() -> Iterator[None]:
    with pyfiber.patch():
        yield


@pytest.fixture(autouse=True)
def nothing_is_patched_afterwards() -> Iterator[None]:
    yield
    for each in _patch._asked[:]:
        each.undo()
    assert not list(_patch.in_force())
