"""pyfiber.capi: calls of lib and native calls in every order."""

from __future__ import annotations

import ctypes
import random
import sys
import threading

import pytest

pytest.importorskip("cffi")

import pyfiber
from pyfiber import (
    Fiber,
    FiberError,
    FiberExit,
    current,
    run,
    spawn,
    yield_now,
)
from pyfiber.capi import as_handle, check, ffi, lib
from tests.capi.capi_switches import ALL_WAYS, SWITCHES, lib_switch, native_switch, through_callback

NULL = ffi.NULL


@pytest.fixture(autouse=True)
def _gil_is_held():
    """Whatever a test did, this thread holds the GIL afterwards, as it should."""
    yield
    assert ctypes.pythonapi.PyGILState_Check() == 1


# --- lib and native calls in every order --------------------------------------------


@pytest.mark.parametrize("there", SWITCHES)
@pytest.mark.parametrize("back", SWITCHES)
@pytest.mark.parametrize("again", SWITCHES)
def test_fiber_left_one_way_comes_back_another(there, back, again):
    main = current()

    def body(first):
        return [first, back(main, 1), back(main, 2)]

    fiber = Fiber(body, (0,))
    assert there(fiber) == 1
    assert again(fiber, "a") == 2
    assert there(fiber, "b") == [0, "a", "b"]


@pytest.mark.parametrize("there", SWITCHES)
@pytest.mark.parametrize("back", SWITCHES)
def test_exceptions_travel_either_way(there, back):
    main = current()

    def body():
        try:
            back(main)
        except KeyError as exc:
            raise ValueError("out") from exc

    def throw(exc):
        if there is native_switch:
            fiber.throw(exc)
        else:
            check(lib.pyfiber_throw(as_handle(fiber), as_handle(exc)))

    fiber = Fiber(body)
    there(fiber)
    with pytest.raises(ValueError, match="out") as caught:
        throw(KeyError("in"))
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("back", SWITCHES)
def test_dropped_fiber_is_unwound_out_of_lib(back):
    main, seen = current(), []

    def body():
        try:
            back(main)
        except FiberExit:
            seen.append("unwound")
            raise

    fiber = Fiber(body)
    fiber.switch()
    del fiber
    assert seen == ["unwound"]


@pytest.mark.parametrize("seed", range(20))
def test_random_walk_over_fibers_suspended_in_every_way(seed):
    """Fibers hand control to each other in any order, each time another way."""
    rng = random.Random(seed)
    main, log = current(), []
    steps = 300

    def body(me):
        while len(log) < steps:
            log.append(me)
            go_on()
        return "end"

    def go_on():
        goal = rng.choice(fibers)
        if goal is current() or goal.done():
            return
        sent = object() if goal.state == "parked" else None
        expected[goal] = sent
        way = rng.choice(ALL_WAYS)
        got = way(goal, sent)
        if got != "end":
            assert got is expected[current()]
            assert ctypes.pythonapi.PyGILState_Check() == 1

    expected = {}
    fibers = [Fiber(body, (n,)) for n in range(6)]
    for fiber in fibers:
        fiber.parent = main
    fibers.append(main)
    expected[main] = None
    while len(log) < steps:
        log.append("main")
        go_on()
    fibers.remove(main)
    for fiber in fibers:
        while not fiber.done():
            expected[fiber] = None
            rng.choice(ALL_WAYS)(fiber)
    assert {"main", 0, 1, 2, 3, 4, 5} <= set(log)


def test_lib_inside_lib_inside_callbacks():
    def deep(n):
        if n == 0:
            innermost.append(current())
            return lib_switch(main, "down there")
        inner = Fiber(deep, (n - 1,))
        return through_callback(lambda: lib_switch(inner))

    main, innermost = current(), []
    fiber = Fiber(deep, (10,))
    assert lib_switch(fiber) == "down there"
    assert fiber.state == "parked"
    assert lib_switch(innermost.pop(), "back up") == "back up"
    assert fiber.done()


def test_scheduled_fibers_of_both_kinds_mixed():
    def native(n):
        for _ in range(20):
            yield_now()
            pyfiber.sleep(0)
        return n

    def by_lib(n):
        for _ in range(20):
            check(lib.pyfiber_yield())
            check(lib.pyfiber_sleep(0.0))
        return n

    def in_callback(n):
        return through_callback(lambda: by_lib(n) + native(0))

    def main():
        kinds = (native, by_lib, in_callback)
        fibers = [spawn(kinds[n % 3], n) for n in range(30)]
        return [check(lib.pyfiber_result(as_handle(f), -1.0)) for f in fibers]

    for _ in range(3):
        assert run(main) == list(range(30))


@pytest.fixture
def quick_thread_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_thread_switches")
def test_threads_do_all_of_that_at_the_same_time():
    failures = []
    stop = threading.Event()
    counter = [0]

    def spin():
        while not stop.is_set():
            counter[0] += 1

    def work(seed):
        try:
            test_random_walk_over_fibers_suspended_in_every_way(seed)
            test_scheduled_fibers_of_both_kinds_mixed()
        except BaseException as exc:
            failures.append(exc)

    spinner = threading.Thread(target=spin)
    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in [spinner, *workers]:
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    spinner.join()
    assert failures == []


def test_other_threads_run_while_lib_waits():
    def main():
        me = current()
        waker = threading.Thread(target=lambda: lib.pyfiber_unpark(as_handle(me), as_handle("v")))
        waker.start()
        value = check(lib.pyfiber_park(-1.0))
        waker.join()
        return value

    assert run(main) == "v"


def test_misuse_through_lib_is_a_fiber_error():
    main, fiber = current(), Fiber(lambda: main.switch())
    fiber.switch()
    texts = []

    def elsewhere():
        for call in (
            lambda: lib.pyfiber_switch(as_handle(fiber), NULL),
            lambda: lib.pyfiber_throw(as_handle(fiber), as_handle(KeyError)),
            lambda: lib.pyfiber_park(0.0),
            lambda: lib.pyfiber_yield(),
            lambda: lib.pyfiber_spawn(as_handle(int), NULL, NULL),
        ):
            with pytest.raises(FiberError) as caught:
                check(call())
            texts.append(str(caught.value))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(texts) == 5
    fiber.switch()
    with pytest.raises(FiberError, match="finished"):
        lib_switch(fiber)
    with pytest.raises(TypeError, match="None"):
        lib_switch(Fiber(int), "value")


def test_exit_with_fibers_suspended_in_lib_is_quiet(child):
    done = child(
        """
        from pyfiber import Fiber, current
        from pyfiber.capi import as_handle, check, ffi, lib
        main = current()
        def body():
            try:
                check(lib.pyfiber_switch(as_handle(main), ffi.NULL))
            finally:
                print("unwound")
        fibers = [Fiber(body) for _ in range(3)]
        for fiber in fibers:
            check(lib.pyfiber_switch(as_handle(fiber), ffi.NULL))
        """
    )
    assert done.stdout.split() == ["unwound"] * 3


def test_thread_ends_with_fibers_suspended_in_lib():
    unwound = []

    def body(main):
        try:
            lib_switch(main)
        finally:
            unwound.append(1)

    def work():
        fibers = [Fiber(body, (current(),)) for _ in range(3)]
        for fiber in fibers:
            lib_switch(fiber)
        kept.extend(fibers)

    kept = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert unwound == [1, 1, 1]
    assert all(fiber.done() for fiber in kept)
