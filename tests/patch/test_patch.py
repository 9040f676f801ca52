"""patch(): what is in force, and for how long."""

from __future__ import annotations

import random
import socket
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyfiber
from pyfiber import _engine, _patch
from pyfiber.testing import run

BOUND_EARLY = time.sleep


class Originals:
    """Not names of this module: those get gates, too."""

    sleep = staticmethod(time.sleep)
    look_up = staticmethod(socket.getaddrinfo)


def is_patched(name: str) -> bool:
    if name == "time":
        return time.sleep is not Originals.sleep
    return socket.getaddrinfo is not Originals.look_up


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    for each in _patch._asked[:]:
        each.undo()
    assert not list(_patch.in_force())
    assert not is_patched("time")
    assert not is_patched("dns")


def together(sleep: Callable[[float], object]) -> bool:
    """Two fibers sleep at the same time."""
    begun = []

    def one(name: str) -> None:
        begun.append(name)
        sleep(0.001)
        assert begun == ["a", "b"]

    def main() -> None:
        fibers = [pyfiber.spawn(one, name) for name in "ab"]
        for fiber in fibers:
            fiber.result()

    try:
        pyfiber.run(main)
    except pyfiber.FiberError:
        raise
    except AssertionError:
        return False
    return True


def test_sleep_parks_in_a_fiber() -> None:
    assert not together(time.sleep)
    patch = pyfiber.patch()
    assert together(time.sleep)
    assert time.sleep(0) is None  # type: ignore[func-returns-value]
    patch.undo()
    assert not together(time.sleep)


@pytest.mark.parametrize("seconds", [-1, float("nan"), 10**30, "x", None])
def test_sleep_refuses_what_the_standard_one_refuses(seconds: Any) -> None:
    def failure() -> tuple[type, str]:
        with pytest.raises((ValueError, TypeError, OverflowError)) as caught:
            time.sleep(seconds)
        return caught.type, str(caught.value)

    expected = failure()
    with pyfiber.patch(time=True):
        assert pyfiber.run(failure) == expected


def test_sleep_takes_what_has_an_index() -> None:
    class One:
        def __index__(self) -> int:
            return 0

    with pyfiber.patch(time=True):
        pyfiber.run(time.sleep, One())


def test_name_bound_before_is_reached() -> None:
    module = types.ModuleType("early")
    module.pause = time.sleep  # type: ignore[attr-defined]
    import sys

    sys.modules["early"] = module
    try:
        with pyfiber.patch():
            assert module.pause is time.sleep  # type: ignore[attr-defined]
            assert together(module.pause)  # type: ignore[attr-defined]
        assert module.pause is Originals.sleep  # type: ignore[attr-defined]
    finally:
        del sys.modules["early"]


def test_name_bound_during_the_patch_is_the_standard_one_afterwards() -> None:
    with pyfiber.patch():
        pause = time.sleep
    assert not together(pause)
    with pyfiber.patch():
        assert together(pause)  # it has come back


def test_class_attribute_does_not_bind() -> None:
    with pyfiber.patch():

        class Retry:
            pause = time.sleep

        pyfiber.run(lambda: Retry().pause(0))


def test_parts_are_chosen_by_name() -> None:
    patch = pyfiber.patch(dns=True)
    assert repr(patch) == "<pyfiber.patch() of dns>"
    assert not is_patched("time")
    assert is_patched("dns")
    patch.undo()
    pyfiber.patch(dns=False)
    assert is_patched("time")
    assert not is_patched("dns")
    pyfiber.patch(dns=True)  # more of it
    assert {"time", "dns"} <= set(_patch.in_force())


def test_unknown_part_is_refused_with_those_there_are() -> None:
    with pytest.raises(TypeError, match=r"there is no part 'sockets'; there are: time, dns"):
        pyfiber.patch(sockets=True)
    assert not list(_patch.in_force())


def test_patch_stays_until_the_last_who_asked_undoes_it() -> None:
    first = pyfiber.patch()
    gate = time.sleep
    second = pyfiber.patch()
    assert time.sleep is gate
    for _ in range(2):
        first.undo()
        assert is_patched("time")
    second.undo()


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_lock_that_a_fiber_holds_when_the_patch_ends_parks_the_others(make: Any) -> None:
    lock = make()
    log: list[str] = []

    def holds(patch: _patch.Patch) -> None:
        with lock:
            patch.undo()
            pyfiber.sleep(0.001)
            log.append("held")

    def main() -> None:
        holder = pyfiber.spawn(holds, pyfiber.patch())
        pyfiber.yield_now()
        with lock:
            log.append("taken")
        holder.join()
        assert lock.acquire(False)
        lock.release()

    pyfiber.run(main)
    assert log == ["held", "taken"]
    assert _engine._lot_count() == 0


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_wait_of_a_condition_ends_after_the_patch_has(make: Any) -> None:
    condition = threading.Condition(make())

    def waits() -> None:
        with condition:
            assert condition.wait()

    def main() -> None:
        patch = pyfiber.patch()
        waiter = pyfiber.spawn(waits)
        pyfiber.yield_now()
        with condition:
            condition.notify()
            patch.undo()
            pyfiber.sleep(0.001)
        waiter.join()

    pyfiber.run(main)
    assert _engine._lot_count() == 0


def test_nested_blocks_undo_what_nobody_else_needs() -> None:
    with pyfiber.patch(time=True):
        with pyfiber.patch(time=True, dns=True):
            assert is_patched("dns")
        assert not is_patched("dns")
        assert is_patched("time")
        pyfiber.patch(dns=True)
    assert not is_patched("time")
    assert is_patched("dns")


def test_block_keeps_its_parts_when_others_undo_theirs() -> None:
    patch = pyfiber.patch()
    with pyfiber.patch(time=True):
        patch.undo()
        assert together(time.sleep)


def test_block_that_fails_undoes_it() -> None:
    with pytest.raises(ZeroDivisionError), pyfiber.patch():
        raise ZeroDivisionError


def test_part_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = types.ModuleType("broken")

    def apply(record: Any) -> None:
        record.function(time, "sleep", lambda seconds: None)
        raise ZeroDivisionError

    broken.apply = apply  # type: ignore[attr-defined]
    import sys

    monkeypatch.setitem(sys.modules, "pyfiber._patch._broken", broken)
    monkeypatch.setitem(_patch.PARTS, "broken", "pyfiber._patch._broken")
    with pytest.raises(ZeroDivisionError):
        pyfiber.patch(dns=True, broken=True)
    assert not list(_patch.in_force())
    with pytest.raises(ZeroDivisionError), pyfiber.patch(broken=True):
        pass
    assert not is_patched("time")


def test_replacement_by_others_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with pyfiber.patch(time=True):
        time.sleep = mine = lambda seconds: None  # type: ignore[assignment]
    assert time.sleep is mine
    time.sleep = Originals.sleep


def test_fiber_that_waits_finishes_after_the_patch_was_undone() -> None:
    def main() -> bool:
        fiber = pyfiber.spawn(time.sleep, 5)
        pyfiber.yield_now()
        patch.undo()
        assert not fiber.done()
        fiber.result()
        return True

    patch = pyfiber.patch()
    assert run(main)  # in virtual time, which the patched call obeys
    assert not is_patched("time")


def test_cancellation_ends_a_sleep() -> None:
    def main() -> None:
        fiber = pyfiber.spawn(time.sleep, 1000)
        pyfiber.yield_now()
        fiber.cancel()
        with pytest.raises(pyfiber.FiberCancelled):
            fiber.result()

    with pyfiber.patch():
        pyfiber.run(main)


def test_threads_patch_and_undo_at_the_same_time() -> None:
    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(50):
            part = chance.choice(["time", "dns"])
            with pyfiber.patch(**{part: True}):
                assert part in _patch.in_force()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_names_are_looked_up_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def look_up(host: str) -> str:
        asked.append(threading.get_ident())
        return "127.0.0.9"

    monkeypatch.setattr(socket, "gethostbyname", look_up)
    with pyfiber.patch():
        assert pyfiber.run(socket.gethostbyname, "a.test") == "127.0.0.9"
        assert socket.gethostbyname("a.test") == "127.0.0.9"
    assert asked[0] != threading.get_ident()
    assert asked[1] == threading.get_ident()


@pytest.mark.parametrize("name", ["getaddrinfo", "gethostbyname", "gethostbyname_ex", "getfqdn"])
def test_numbers_and_local_names_are_found(name: str) -> None:
    args = ("127.0.0.1", 80) if name == "getaddrinfo" else ("127.0.0.1",)
    expected = getattr(socket, name)(*args)
    with pyfiber.patch():
        assert pyfiber.run(lambda: getattr(socket, name)(*args)) == expected
        assert getattr(socket, name)(*args) == expected


def test_report_tells_what_was_reached_and_what_was_not() -> None:
    def late(pause: Any = Originals.sleep) -> None: ...

    class Retry:
        pause = Originals.sleep

    assert "Nothing is patched" in str(pyfiber.debug.patch_report())
    with pyfiber.patch(time=True):
        report = pyfiber.debug.patch_report()
    assert report.reached == {"time": ["time.sleep"]}
    text = str(report)
    assert f"time.sleep, held by a default of {__name__}.{late.__qualname__}()" in text
    assert f"time.sleep, held by {__name__}.{Retry.__qualname__}.pause" in text
    assert f"{__name__}.BOUND_EARLY" in report.names


def test_import_of_pyfiber_brings_none_of_it() -> None:
    import subprocess
    import sys

    code = "import pyfiber, sys; assert not [m for m in sys.modules if '_patch' in m]"
    assert subprocess.run([sys.executable, "-c", code], check=True).returncode == 0
