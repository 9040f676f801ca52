"""threading.local: per fiber in a fiber of a run, per thread elsewhere."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import pyfiber


class Counted(threading.local):
    """Made before the patch; a subclass with arguments."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.given = [args, kwargs]


class Hooked(threading.local):
    def __getattr__(self, name: str) -> str:
        return "no " + name


class Watched(threading.local):
    def __getattribute__(self, name: str) -> Any:
        if name == "asked":
            return "asked"
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)


EARLY = threading.local()
EARLY_COUNTED = Counted(1, two=2)
EARLY_HOOKED = Hooked()


@pytest.fixture(autouse=True)
def patched() -> Iterator[None]:
    with pyfiber.patch(local=True):
        yield


def in_fiber(fn: Any) -> Any:
    return pyfiber.spawn(fn).result()


@pytest.mark.parametrize("make", [lambda: EARLY, threading.local, Hooked, Watched])
def test_each_fiber_has_its_own(make: Any) -> None:
    local = make()
    local.name = "thread"
    seen: list[Any] = []

    def fiber(name: str) -> None:
        assert "name" not in vars(local)
        assert name not in dir(local)
        local.name = name
        pyfiber.yield_now()
        seen.append(local.name)
        assert local.__dict__ == {"name": name}
        del local.name
        assert "name" not in vars(local)

    pyfiber.run(lambda: [pyfiber.spawn(fiber, name) for name in "abc"])
    assert seen == ["a", "b", "c"]
    assert local.name == "thread"
    del local.name


def test_thread_and_raw_fiber_have_the_threads() -> None:
    local = threading.local()
    local.name = "here"
    there: list[bool] = []

    def main() -> None:
        local.name = "fiber"
        raw: pyfiber.Fiber[str] = pyfiber.Fiber(lambda: local.name)
        assert raw.switch() == "here"
        thread = threading.Thread(target=lambda: there.append(hasattr(local, "name")))
        thread.start()
        thread.join()

    pyfiber.run(main)
    assert pyfiber.Fiber(lambda: local.name).switch() == "here"
    assert there == [False]


@pytest.mark.parametrize("early", [True, False])
def test_init_of_a_subclass_runs_in_each_fiber(early: bool) -> None:
    local = EARLY_COUNTED if early else Counted(1, two=2)
    ours = local.given

    def fiber() -> Any:
        local.given.append("changed")
        return local.given

    def main() -> None:
        given = [in_fiber(fiber), in_fiber(fiber)]
        assert given == [[(1,), {"two": 2}, "changed"]] * 2
        assert given[0] is not given[1]

    pyfiber.run(main)
    assert local.given is ours == [(1,), {"two": 2}]


def test_object_made_in_a_fiber_is_initialised_in_its_thread_too() -> None:
    made: list[Counted] = []
    calls: list[object] = []

    class Once(threading.local):
        def __init__(self) -> None:
            calls.append(self)
            self.name = len(calls)

    def main() -> None:
        made.append(Counted(1))
        made[0].given.append("fiber")
        once = Once()
        assert calls == [once]
        assert once.name == 1
        made.append(once)  # type: ignore[arg-type]

    pyfiber.run(main)
    assert made[0].given == [(1,), {}]
    assert made[1].name == 2  # type: ignore[attr-defined]
    assert len(calls) == 2


def test_init_that_fails_is_tried_again() -> None:
    class Fails(threading.local):
        def __init__(self) -> None:
            if fails.pop():
                raise ValueError("not yet")
            self.name = "now"

    fails = [False, True, False]
    local = Fails()

    def main() -> None:
        with pytest.raises(ValueError, match="not yet"):
            _ = local.name
        assert local.name == "now"

    pyfiber.run(main)


def test_what_a_fiber_has_goes_with_it() -> None:
    class Value:
        pass

    local = threading.local()
    known: list[weakref.ref[Value]] = []

    def fiber() -> None:
        local.value = Value()
        known.append(weakref.ref(local.value))

    def main() -> None:
        in_fiber(fiber)
        assert known[0]() is None
        fiber()
        assert known[1]() is not None

    pyfiber.run(main)
    gc.collect()
    assert known[1]() is None


def test_local_that_dies_takes_what_fibers_have_along() -> None:
    class Value:
        pass

    def main() -> None:
        local = threading.local()
        local.value = value = Value()
        known = weakref.ref(value)
        known_local = weakref.ref(local)
        del value
        assert known() is not None
        del local
        gc.collect()
        assert known_local() is None
        assert known() is None

    pyfiber.run(main)


def test_dict_cannot_be_replaced() -> None:
    def main() -> None:
        local = threading.local()
        with pytest.raises(AttributeError, match="read-only"):
            local.__dict__ = {}
        with pytest.raises(AttributeError):
            del local.missing
        with pytest.raises(AttributeError, match="missing"):
            _ = local.missing

    pyfiber.run(main)


def test_arguments_without_an_init_are_refused() -> None:
    def main() -> None:
        with pytest.raises(TypeError):
            threading.local(1)
        assert isinstance(Counted(1), threading.local)

    pyfiber.run(main)


def test_undone_patch_leaves_the_threads_attributes() -> None:
    local = Counted()
    local.name = "thread"

    def main() -> None:
        local.name = "fiber"
        pyfiber._engine._local_patch(False)
        assert local.name == "thread"
        pyfiber._engine._local_patch(True)
        assert local.name == "fiber"

    pyfiber.run(main)
    assert local.name == "thread"
