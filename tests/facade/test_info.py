"""info(), get_include(), what the package exports, importing the engine alone."""

from __future__ import annotations

import importlib
import inspect
import os
import platform
import sys
import sysconfig

import pytest

import pyfiber
from tests.conftest import Child


def test_info_tells_the_facts() -> None:
    facts = pyfiber.debug.info()
    assert facts["version"] == pyfiber.__version__
    assert facts["stack_size"] == pyfiber.stack_size()
    assert facts["min_stack_size"] <= facts["stack_size"]
    assert facts["guard"] in ("none", "mprotect", "madvise", "system")
    assert facts["page_size"] >= 4096
    assert facts["fiber_bytes"] == pyfiber.Fiber.__basicsize__
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    assert facts["collects_suspended_cycles"] == (free_threaded or sys.version_info >= (3, 15))
    assert facts["gil"] is getattr(sys, "_is_gil_enabled", lambda: True)()
    assert facts["python"] == platform.python_version()
    assert facts["built_for"].split(".")[:2] == facts["python"].split(".")[:2]
    assert facts["platform"] == sys.platform
    assert facts["backend"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux")
def test_info_guard_is_not_none_where_the_system_has_guards() -> None:
    assert pyfiber.debug.info()["guard"] in ("mprotect", "madvise")


def test_get_include_is_where_the_header_is() -> None:
    assert os.path.isfile(os.path.join(pyfiber.get_include(), "pyfiber.h"))


@pytest.mark.parametrize("name", [name for name in pyfiber.__all__ if name != "Outcome"])
def test_exported_name_exists_and_is_documented(name: str) -> None:
    value = getattr(pyfiber, name)
    assert inspect.getdoc(value)


def test_dir_lists_the_public_names() -> None:
    names = [name for name in dir(pyfiber) if not (name[:2] == name[-2:] == "__")]
    assert names == sorted([*pyfiber.__all__, "compose", "debug", "grains", "threads"])
    assert {"__name__", "__file__", "__version__"} < set(dir(pyfiber))


def test_dir_does_not_load_what_it_lists(child: Child) -> None:
    done = child(
        """
        import sys
        import pyfiber
        assert "await_future" in dir(pyfiber)
        print("pyfiber._futures" in sys.modules, "await_future" in vars(pyfiber))
        """
    )
    assert done.stdout == "False False\n"


@pytest.mark.parametrize("name", ["compose", "grains", "greenlet", "testing"])
def test_dir_of_a_module_lists_its_public_names(name: str) -> None:
    module = importlib.import_module(f"pyfiber.{name}")
    assert set(module.__all__) <= set(dir(module))


def test_unknown_name_raises() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        pyfiber.nonsense  # noqa: B018


@pytest.mark.parametrize("name", ["switch", "throw", "start", "join", "result", "cancel"])
def test_methods_have_signatures(name: str) -> None:
    assert "self" in inspect.signature(getattr(pyfiber.Fiber, name)).parameters


def test_fiber_and_functions_have_signatures() -> None:
    assert "stack_size" in inspect.signature(pyfiber.Fiber).parameters
    for name in ("current", "run", "spawn", "sleep", "park", "stack_size"):
        inspect.signature(getattr(pyfiber, name))


def test_importing_the_package_loads_nothing_heavy(child: Child) -> None:
    done = child(
        """
        import sys
        before = set(sys.modules)
        import pyfiber
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(sorted(new & {"asyncio", "concurrent", "traceback", "logging", "cffi", "socket"}))
        """
    )
    assert done.stdout == "[]\n"


def test_engine_alone_runs_fibers(child: Child) -> None:
    done = child(
        """
        import importlib.util, os, sys
        path = os.environ["ENGINE"]
        spec = importlib.util.spec_from_file_location("pyfiber._engine", path)
        engine = importlib.util.module_from_spec(spec)
        sys.modules["pyfiber._engine"] = engine
        spec.loader.exec_module(engine)
        main = engine.current()
        fiber = engine.Fiber(lambda: main.switch(1) + 1)
        print(fiber.switch(), fiber.switch(5), fiber.result(), fiber.outcome)
        try:
            fiber.stack()
        except RuntimeError as error:
            print(error)
        def fail(): raise KeyError("x")
        try:
            engine.run(fail)
        except KeyError:
            print("raised")
        held = engine.Fiber(main.switch)
        held.switch()
        """,
        env={"ENGINE": pyfiber._engine.__file__},
    )
    assert done.stdout.splitlines()[0] == "1 6 6 None"
    assert done.stdout.splitlines()[-1] == "raised"


def test_engine_is_imported_only_once(child: Child) -> None:
    """The module again after its removal from sys.modules: no crash, and fibers still run."""
    child(
        """
        import sys
        import pyfiber
        held = pyfiber.Fiber(pyfiber.current().switch)
        held.switch()
        for name in [name for name in sys.modules if name.startswith("pyfiber")]:
            del sys.modules[name]
        try:
            import pyfiber as second
        except ImportError:
            pass
        else:
            assert second.Fiber(int).switch() == 0
            assert second.Fiber(second.current().switch).switch() is None
        held.switch()
        """
    )


@pytest.mark.slow
def test_reload_of_the_package_keeps_working(child: Child) -> None:
    child(
        """
        import importlib, pyfiber
        importlib.reload(pyfiber._hooks)
        importlib.reload(pyfiber)
        assert pyfiber.Fiber(int).switch() == 0
        """
    )


@pytest.mark.parametrize("hidden", ["_cffi_backend", "pyfiber._capi"])
def test_capi_without_cffi_says_what_to_install(child: Child, hidden: str) -> None:
    """cffi is not there, or was not when pyfiber was built; the rest of pyfiber works."""
    done = child(
        f"""
        import sys
        sys.modules[{hidden!r}] = None
        import pyfiber
        try:
            import pyfiber.capi
        except ImportError as exc:
            print(exc)
        print(pyfiber.run(lambda: "works"))
        """
    )
    told, works = done.stdout.splitlines()
    assert "pip install 'cffi" in told
    assert works == "works"
