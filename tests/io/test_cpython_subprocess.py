"""CPython's own tests of subprocess, with pyfiber.subprocess inserted and each test in a fiber.

They come from the interpreter's installed ``test`` package. Those left out are named here, with the
reason.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess as standard
import sys
import types
from typing import Any
from unittest import mock

import pytest

from pyfiber import run, subprocess

LEFT_OUT = {
    "ProcessTestCaseNoPoll": "ProcessTestCase once more, with a selector that fibers do not use",
    "Win32ProcessTestCase": "the standard class with arguments of Windows, which ours hands on",
}

pytest.importorskip("test.test_subprocess", reason="not shipped with this Python")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="pipes and signals of POSIX")


class Inserted(types.ModuleType):
    """What the tests import as subprocess: our names, and the standard module's private ones.

    What they replace in it, they replace where our functions and the standard class look.
    """

    def __init__(self) -> None:
        super().__init__("subprocess")
        self.__dict__.update(subprocess._names)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        subprocess._names[name] = value
        if name.startswith("_"):
            setattr(standard, name, value)


def imported_anew() -> Any:
    """Their module, as it is when it finds ours."""
    spec = importlib.util.find_spec("test.test_subprocess")
    assert spec
    assert spec.loader
    theirs = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, subprocess=Inserted()):
        spec.loader.exec_module(theirs)
    return theirs


theirs = imported_anew()


class InFiber:
    """Each test in the main fiber of a run."""

    def _callTestMethod(self, method: Any) -> None:
        run(method)


def slow(name: str, cls: Any = theirs.ProcessTestCase) -> Any:
    """Where this CPython has it."""
    test = getattr(cls, name, None)
    return pytest.mark.slow(test) if test is not None else None


class TestProcess(InFiber, theirs.ProcessTestCase):  # type: ignore[misc,name-defined]
    test_check_output_timeout = slow("test_check_output_timeout")
    test_communicate_pipe_fd_leak = slow("test_communicate_pipe_fd_leak")
    test_communicate_timeout = slow("test_communicate_timeout")
    test_leaking_fds_on_error = slow("test_leaking_fds_on_error")


class TestRun(InFiber, theirs.RunFuncTestCase):  # type: ignore[misc,name-defined]
    test_check_output_timeout = slow("test_check_output_timeout", theirs.RunFuncTestCase)


@pytest.mark.slow
class TestPosix(InFiber, theirs.POSIXProcessTestCase):  # type: ignore[misc,name-defined]
    pass


class TestMisc(InFiber, theirs.MiscTests):  # type: ignore[misc,name-defined]
    pass


class TestCommandsWithSpaces(InFiber, theirs.CommandsWithSpaces):  # type: ignore[misc,name-defined]
    pass


def test_all_others_of_theirs_are_run() -> None:
    cases = {n for n, c in vars(theirs).items() if isinstance(c, type) and hasattr(c, "run")}
    run_here = {c.__mro__[2].__name__ for n, c in globals().items() if n.startswith("Test")}
    assert cases - run_here - set(LEFT_OUT) == {"BaseTestCase"}


if hasattr(theirs, "FastWaitTestCase"):  # from 3.15 on

    class TestFastWait(InFiber, theirs.FastWaitTestCase):  # type: ignore[misc,name-defined]
        pass


class TestContextManager(InFiber, theirs.ContextManagerTests):  # type: ignore[misc,name-defined]
    pass
