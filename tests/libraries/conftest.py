"""A server of each kind for the tests of a module that want it.

For no longer: it is a child of this process, and tests that come later wait for any child.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from tests.libraries import services
from tests.libraries.services import Service
from tests.support.gil import GIL, PATCH_NEEDS_IT

#: Where a server that is missing is a failure, not a reason to skip: in the project's own checks.
REQUIRED = os.environ.get("PYFIBER_SERVICES_REQUIRED", "").split()


@pytest.fixture(autouse=True, scope="session")
def there_is_a_gil() -> None:
    """The libraries run in fibers by patch()."""
    if not GIL:
        pytest.skip(PATCH_NEEDS_IT)


def _server(start: Callable[[], AbstractContextManager[Service]]) -> Iterator[Service]:
    with contextlib.ExitStack() as stack:
        try:
            service = stack.enter_context(start())
        except services.Missing as exc:
            if start.__name__ in REQUIRED:
                raise
            pytest.skip(f"NO SERVER: {exc}")
        yield service


@pytest.fixture(scope="module")
def redis_server() -> Iterator[Service]:
    yield from _server(services.redis)


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[Service]:
    yield from _server(services.postgres)


@pytest.fixture(scope="module")
def mariadb_server() -> Iterator[Service]:
    yield from _server(services.mariadb)


@pytest.fixture(scope="module")
def ssh_server() -> Iterator[Service]:
    yield from _server(services.sshd)
