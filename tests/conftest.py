"""What the tests share: a clean engine around each, and Python in a process of its own."""

from __future__ import annotations

import gc
import signal
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points

import pytest

import pyfiber
from tests.support.subprocesses import run_python

# Installed, pyfiber brings its plugin along; a tree that is only importable does not.
if entry_points(group="pytest11", name="pyfiber"):
    pytest_plugins = []
else:
    pytest_plugins = ["pyfiber.testing.plugin"]

# What a shell or nohup starts in the background inherits that Ctrl-C is ignored, and hands it on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith("test_cpython_"):
            item.add_marker("cpython")


def pytest_collection_finish() -> None:
    """The collector need not look at thousands of tests whenever one of them calls it."""
    gc.collect()
    gc.freeze()


Child = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def _same_fiber() -> Iterator[None]:
    """A test must come back to the fiber it began on."""
    before = pyfiber.current()
    size = pyfiber.stack_size()
    yield
    assert pyfiber.current() is before, "the test ended on another fiber"
    assert pyfiber.stack_size() == size, "the test left another default stack size"


@pytest.fixture
def scheduler() -> Iterator[pyfiber.Scheduler]:
    made = pyfiber.Scheduler()
    yield made
    made.close()


@pytest.fixture
def child() -> Child:
    """Run a program in a fresh interpreter: `child(source, *arguments, env={...}, check=True)`."""

    def run(
        source: str,
        *arguments: str,
        env: dict[str, str] | None = None,
        check: bool = True,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        done = run_python("-c", textwrap.dedent(source), *arguments, env=env, timeout=timeout)
        if check:
            assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
        return done

    return run
