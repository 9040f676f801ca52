"""pyfiber.capi: the C API through cffi, mixed with native calls in every order."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import sys
import threading
import time
import weakref

import pytest

pytest.importorskip("cffi")

import pyfiber
from pyfiber import (
    Fiber,
    FiberCancelled,
    FiberError,
    _engine,
    capi,
    current,
    park,
    run,
    spawn,
    yield_now,
)
from pyfiber.capi import as_handle, check, check_errno, ffi, from_handle, lib, take
from tests.capi.capi_switches import ALL_WAYS, lib_switch
from tests.support.growth import grows
from tests.support.threads import PATIENCE

NULL = ffi.NULL


@pytest.fixture(autouse=True)
def _gil_is_held():
    """Whatever a test did, this thread holds the GIL afterwards, as it should."""
    yield
    assert ctypes.pythonapi.PyGILState_Check() == 1


# --- handles and errors --------------------------------------------------------


def test_lib_reaches_the_capsule_s_own_table():
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get(_engine._C_API, b"pyfiber._engine._C_API")
    assert address == int(ffi.cast("uintptr_t", lib.pyfiber_table()))
    abi_version = ctypes.c_uint.from_address(address).value
    assert abi_version == lib.PYFIBER_ABI_VERSION


def test_importing_pyfiber_does_not_import_cffi(child):
    child("import sys, pyfiber; assert '_cffi_backend' not in sys.modules")


def test_handle_leads_back_to_its_object():
    thing = object()
    handle = as_handle(thing)
    assert from_handle(handle) is thing
    assert take(lib.pyfiber_incref(handle)) is thing


def test_handle_that_was_taken_holds_no_reference():
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    handle = lib.pyfiber_incref(as_handle(thing))
    del thing
    assert gone() is from_handle(handle)
    take(handle)
    assert gone() is None


@pytest.mark.parametrize("thing", [None, 3, "x", object(), ffi.NULL, ffi.new("int *")])
def test_from_handle_refuses_what_is_no_handle(thing):
    with pytest.raises(TypeError, match="PyObject"):
        from_handle(thing)


def test_from_handle_refuses_null():
    with pytest.raises(ValueError, match="NULL"):
        from_handle(ffi.cast("PyObject *", 0))


def test_check_raises_each_error_once():
    result = lib.pyfiber_switch(NULL, NULL)
    assert result == NULL
    with pytest.raises(TypeError, match="expected a Fiber"):
        check(result)
    with pytest.raises(SystemError, match="did not fail"):
        check(result)


def test_check_passes_numbers_on():
    assert check(lib.pyfiber_is_done(as_handle(current()))) == 0
    assert check(lib.pyfiber_check(as_handle(current()))) == 1
    assert check(lib.pyfiber_check(as_handle(3))) == 0


def test_check_errno_is_an_os_error():
    assert check_errno(0) == 0
    with pytest.raises(OSError, match=r".") as caught:
        check_errno(lib.pyfiber_hold(as_handle(3)))
    assert caught.value.errno == errno.EINVAL


def test_each_fiber_keeps_its_own_error():
    main = current()

    def fail_with(timeout):
        result = lib.pyfiber_sleep(timeout)
        main.switch()
        with pytest.raises((ValueError, FiberError)) as caught:
            check(result)
        return type(caught.value)

    def start():
        fibers = [Fiber(fail_with, (n,)) for n in (-1.0, 1.0)]
        for fiber in fibers:
            fiber.switch()
        return [fiber.switch() for fiber in fibers]

    assert start() == [ValueError, FiberError]


# --- the functions ---------------------------------------------------------------


def test_raw_functions():
    main = take(lib.pyfiber_current())
    assert main is current()

    def target(first, *, second):
        try:
            main.switch((first, second))
        except KeyError as exc:
            return exc.args

    args, kwargs = (1,), {"second": 2}
    fiber = check(lib.pyfiber_new(as_handle(target), as_handle(args), as_handle(kwargs)))
    assert lib_switch(fiber) == (1, 2)
    error = KeyError("thrown")
    assert check(lib.pyfiber_throw(as_handle(fiber), as_handle(error))) == ("thrown",)
    assert lib.pyfiber_is_done(as_handle(fiber)) == 1


def test_stack_of_its_own_is_asked_for_before_the_start():
    fiber = Fiber(current().switch)
    assert check(lib.pyfiber_own_stack(as_handle(fiber))) == 0
    fiber.switch()
    with pytest.raises(FiberError, match="has been started: that comes too late"):
        check(lib.pyfiber_own_stack(as_handle(fiber)))
    fiber.switch()
    with pytest.raises(TypeError, match="expected a Fiber"):
        check(lib.pyfiber_own_stack(as_handle(3)))


def test_scheduled_functions():
    def child(n):
        check(lib.pyfiber_yield())
        check(lib.pyfiber_sleep(0.001))
        return n + check(lib.pyfiber_park(-1.0))

    def main(a):
        assert check(lib.pyfiber_check_cancelled()) == 0
        args = (a,)
        fiber = check(lib.pyfiber_spawn(as_handle(child), as_handle(args), NULL))
        handle = as_handle(fiber)
        assert check(lib.pyfiber_join(handle, 0.0)) == 1
        assert check(lib.pyfiber_unpark(handle, as_handle(40))) == 1
        assert check(lib.pyfiber_join(handle, -1.0)) == 0
        assert check(lib.pyfiber_cancel(handle, NULL)) == 0
        return check(lib.pyfiber_result(handle, -1.0))

    args = (2,)
    assert check(lib.pyfiber_run(as_handle(main), as_handle(args), NULL)) == 42


def test_start_takes_a_new_fiber():
    def main():
        fiber = Fiber(park)
        assert check(lib.pyfiber_start(as_handle(fiber))) == 0
        with pytest.raises(FiberError, match="started already"):
            check(lib.pyfiber_start(as_handle(fiber)))
        fiber.unpark("woken")
        return fiber.result()

    assert run(main) == "woken"


def test_cancelled_in_lib():
    def child():
        check(lib.pyfiber_park(-1.0))

    def main():
        fiber = spawn(child)
        yield_now()
        assert check(lib.pyfiber_cancel(as_handle(fiber), as_handle("why"))) == 1
        with pytest.raises(FiberCancelled) as caught:
            check(lib.pyfiber_result(as_handle(fiber), -1.0))
        reason = caught.value.reason
        # No cycle for test_nothing_is_left_behind: CPython 3.14 without a GIL loses memory with
        # each exception that has attributes of its own and dies by the collector.
        del caught
        return reason

    assert run(main) == "why"


def test_timeout_comes_out_of_lib():
    def main():
        with pytest.raises(TimeoutError):
            check(lib.pyfiber_park(0.0))

    assert check(lib.pyfiber_run(as_handle(main), NULL, NULL)) is None


def test_deadlock_comes_out_of_lib(child):
    # In a process of its own: where another Python thread lives, waiting is not vain.
    child("""
        from pyfiber import DeadlockError
        from pyfiber.capi import as_handle, check, ffi, lib

        def main():
            check(lib.pyfiber_park(-1.0))

        try:
            check(lib.pyfiber_run(as_handle(main), ffi.NULL, ffi.NULL))
        except DeadlockError:
            pass
        else:
            raise SystemExit("no deadlock was reported")
    """)


def test_stats_structs():
    stacks = ffi.new("PyFiber_StackStats *")
    with pytest.raises(ValueError, match="size"):
        check(lib.pyfiber_stack_stats(stacks))
    stacks.size = ffi.sizeof(stacks[0])
    assert check(lib.pyfiber_stack_stats(stacks)) == 0
    assert stacks.stack_size == pyfiber.stack_size()

    def main():
        spawn(int)
        stats = ffi.new("PyFiber_SchedulerStats *")
        stats.size = ffi.sizeof(stats[0])
        assert check(lib.pyfiber_scheduler_stats(stats)) == 0
        return stats.fibers, stats.foreground, stats.ready, stats.switches

    assert run(main) == (2, 2, 1, 1)


def test_stack_size():
    before = lib.pyfiber_get_stack_size()
    assert before == pyfiber.stack_size()
    assert check(lib.pyfiber_set_stack_size(before * 2)) == 0
    assert pyfiber.stack_size() == before * 2
    pyfiber.stack_size(before)
    with pytest.raises(ValueError, match="at least"):
        check(lib.pyfiber_set_stack_size(1))


# --- fibers around C functions -----------------------------------------------------


def test_pointer_to_a_c_function_is_a_fiber():
    text = object()
    body = ffi.addressof(lib, "pyfiber_incref")  # returns its argument, with a reference
    body = ffi.cast("PyFiber_Body", body)
    fiber = check(lib.pyfiber_new_c(body, as_handle(text), NULL))
    assert (fiber.switch(), fiber.name) == (text, "C function")


def test_def_extern_callback_is_a_fiber():
    main = current()
    handle = ffi.new_handle(lambda: (main.switch(1), lib_switch(main, 2), 3)[2])
    fiber = check(lib.pyfiber_new_c(lib.pyfiber_call, handle, NULL))
    assert (fiber.switch(), lib_switch(fiber), fiber.switch()) == (1, 2, 3)


def test_exception_of_a_callback_is_the_fiber_s():
    handle = ffi.new_handle(lambda: 1 / 0)
    fiber = check(lib.pyfiber_new_c(lib.pyfiber_call, handle, NULL))
    with pytest.raises(ZeroDivisionError):
        fiber.switch()


def test_ffi_callback_is_a_fiber_and_its_argument_is_destroyed_once():
    destroyed = []

    @ffi.callback("PyFiber_Body")
    def body(arg):
        result = check(lib.pyfiber_park(-1.0))
        return lib.pyfiber_incref(as_handle(result))

    @ffi.callback("PyFiber_Destroy")
    def destroy(arg):
        destroyed.append(int(ffi.cast("uintptr_t", arg)))

    def main():
        handles = [ffi.cast("void *", n) for n in range(1, 4)]
        fibers = [check(lib.pyfiber_new_c(body, arg, destroy)) for arg in handles]
        for fiber in fibers:
            fiber.start()
        yield_now()
        assert destroyed == []
        for fiber in fibers:
            lib.pyfiber_unpark(as_handle(fiber), as_handle("woken"))
        return [fiber.result() for fiber in fibers]

    assert run(main) == ["woken"] * 3
    assert destroyed == [1, 2, 3]
    check(lib.pyfiber_new_c(body, ffi.cast("void *", 4), destroy))  # and dropped
    gc.collect()
    assert destroyed == [1, 2, 3, 4]


def test_body_that_returns_null_without_an_error_is_a_system_error():
    @ffi.callback("PyFiber_Body")
    def body(arg):
        return NULL

    fiber = check(lib.pyfiber_new_c(body, NULL, NULL))
    with pytest.raises(SystemError, match="without setting an error"):
        fiber.switch()


def test_null_function_is_refused():
    with pytest.raises(TypeError, match="NULL"):
        check(lib.pyfiber_new_c(NULL, NULL, NULL))


# --- C threads without Python ---------------------------------------------------------


def start_c_thread(function, arg):
    """A thread that Python does not know runs lib.`function`(arg)."""
    start = ctypes.pythonapi.PyThread_start_new_thread
    start.restype, start.argtypes = ctypes.c_ulong, [ctypes.c_void_p, ctypes.c_void_p]
    pointer = ffi.addressof(lib, function)
    start(int(ffi.cast("uintptr_t", pointer)), int(ffi.cast("uintptr_t", arg)))


def test_c_thread_wakes_a_fiber_without_the_gil():
    def main():
        me = current()
        check_errno(lib.pyfiber_hold(as_handle(me)))
        for _ in range(50):
            start_c_thread("pyfiber_unpark_no_gil", as_handle(me))
            assert check(lib.pyfiber_park(10.0)) is None
        check_errno(lib.pyfiber_release(as_handle(me)))
        assert lib.pyfiber_release(as_handle(me)) == -errno.EINVAL

    run(main)


def test_c_thread_takes_the_gil_where_it_must():
    class Thing:
        pass

    thing, gone = Thing(), threading.Event()
    weakref.finalize(thing, gone.set)
    handle = lib.pyfiber_incref(as_handle(thing))
    del thing
    start_c_thread("pyfiber_decref", handle)
    # Without a GIL this thread drops it, as it made it: when it next runs code, not in a wait.
    end = time.monotonic() + PATIENCE
    while not gone.wait(0.01):
        assert time.monotonic() < end


# --- contexts ---------------------------------------------------------------------------


def new_context(body, arg=NULL, stack_size=0):
    place = ffi.new("PyFiber_Context **")
    check_errno(lib.pyfiber_context_create(place, body, arg, stack_size))
    return place[0]


def context_switch(context, value=0):
    """Send a number, return the number that comes."""
    place = ffi.new("void **", ffi.cast("void *", value))
    check_errno(lib.pyfiber_context_switch(context, place))
    return int(ffi.cast("uintptr_t", place[0]))


@ffi.callback("PyFiber_ContextBody")
def add_one(arg, value):
    return value + 1


def test_context_runs_c_that_switches_back():
    """The body is lib.pyfiber_context_switch itself: it goes back to its argument."""
    body = ffi.cast("PyFiber_ContextBody", ffi.addressof(lib, "pyfiber_context_switch"))
    context = new_context(body, lib.pyfiber_context_main())
    slot = ffi.new("void **", ffi.cast("void *", 1234))
    assert context_switch(context, int(ffi.cast("uintptr_t", slot))) == 1234
    assert lib.pyfiber_context_is_done(context) == 0
    context_switch(context, 99)
    assert slot[0] == ffi.cast("void *", 99)
    assert lib.pyfiber_context_is_done(context) == 1
    assert lib.pyfiber_context_destroy(context) == 0


def test_context_body_may_be_python_that_returns():
    context = new_context(add_one)
    assert lib.pyfiber_context_is_done(context) == 0
    assert context_switch(context, 41) == 42
    assert lib.pyfiber_context_is_done(context) == 1
    with pytest.raises(OSError, match=r".") as caught:
        context_switch(context)
    assert caught.value.errno == errno.ESRCH
    assert lib.pyfiber_context_destroy(context) == 0


def test_context_with_python_on_it_is_not_left():
    @ffi.callback("PyFiber_ContextBody")
    def body(arg, value):
        assert lib.pyfiber_context_current() != lib.pyfiber_context_main()
        for goal in (lib.pyfiber_context_main(), other):
            answers.append(lib.pyfiber_context_switch(goal, NULL))
        answers.append(lib.pyfiber_context_destroy(lib.pyfiber_context_current()))
        return value

    answers = []
    other = new_context(add_one)
    context = new_context(body)
    assert context_switch(context, 5) == 5
    assert answers == [-errno.EBUSY] * 3
    for each in (context, other):
        assert lib.pyfiber_context_destroy(each) == 0


@pytest.mark.parametrize("switch", ALL_WAYS)
def test_context_and_fibers_mix(switch):
    """A fiber enters a context whose Python switches to another fiber and back."""
    main = current()
    partner = Fiber(lambda: [switch(main, n) for n in range(3)])

    @ffi.callback("PyFiber_ContextBody")
    def body(arg, value):
        got.append(switch(partner))
        return value

    got = []
    for n in range(3):
        context = new_context(body)
        assert context_switch(context, n + 1) == n + 1
        lib.pyfiber_context_destroy(context)
    assert got == [0, 1, 2]
    assert partner.switch() == [None] * 3


def test_context_inside_of_fibers_of_a_scheduler():
    def work(n):
        context = new_context(add_one)
        yield_now()
        answer = context_switch(context, n)
        yield_now()
        lib.pyfiber_context_destroy(context)
        return answer

    def main():
        return [fiber.result() for fiber in [spawn(work, n) for n in range(10)]]

    assert run(main) == list(range(1, 11))


def test_context_of_another_thread_is_refused():
    context, answers = new_context(add_one), []

    def elsewhere():
        answers.append(lib.pyfiber_context_switch(context, NULL))
        answers.append(lib.pyfiber_context_is_done(context))
        answers.append(lib.pyfiber_context_destroy(context))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert answers == [-errno.EPERM] * 3
    assert lib.pyfiber_context_destroy(context) == 0


def test_context_misuse_is_an_errno():
    place = ffi.new("PyFiber_Context **")
    assert lib.pyfiber_context_create(place, NULL, NULL, 0) == -errno.EINVAL
    assert lib.pyfiber_context_create(NULL, add_one, NULL, 0) == -errno.EINVAL
    assert lib.pyfiber_context_create(place, add_one, NULL, 1) == -errno.EINVAL
    assert lib.pyfiber_context_create(place, add_one, NULL, 2**62) == -errno.ENOMEM
    assert lib.pyfiber_context_switch(NULL, NULL) == -errno.EINVAL
    assert lib.pyfiber_context_is_done(NULL) == -errno.EINVAL
    assert lib.pyfiber_context_destroy(NULL) == 0
    assert lib.pyfiber_context_destroy(lib.pyfiber_context_main()) == -errno.EINVAL


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs libm's numbers")
def test_context_keeps_its_rounding_mode():
    libm = ctypes.CDLL(None)
    if not hasattr(libm, "fesetround"):
        pytest.skip("fesetround is not in this process")
    nearest = libm.fegetround()
    upward = {"x86_64": 0x800, "aarch64": 0x400000}.get(__import__("platform").machine())
    if upward is None:
        pytest.skip("the number of FE_UPWARD is not known for this processor")

    @ffi.callback("PyFiber_ContextBody")
    def body(arg, value):
        seen.append(libm.fegetround())
        libm.fesetround(upward)
        seen.append(libm.fegetround())
        return value

    seen = []
    context = new_context(body)
    context_switch(context)
    assert (seen, libm.fegetround()) == ([nearest, upward], nearest)
    lib.pyfiber_context_destroy(context)


# --- nothing is left behind ----------------------------------------------------------------


def churn():
    test_raw_functions()
    test_scheduled_functions()
    test_cancelled_in_lib()
    test_exception_of_a_callback_is_the_fiber_s()
    test_def_extern_callback_is_a_fiber()
    test_context_with_python_on_it_is_not_left()
    test_each_fiber_keeps_its_own_error()


def test_nothing_is_left_behind():
    def live():
        return sum(pool["live"] for pool in pyfiber.debug.stack_stats())

    for _ in range(10):
        churn()
    gc.collect()
    stacks = live()
    assert not grows(churn, 200)
    assert live() == stacks


def test_everything_public_is_named():
    assert set(capi.__all__) <= set(dir(capi))


# descriptors --------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="pipes are no handles to wait for there")
def test_wait_for_a_descriptor_parks_in_a_run_and_blocks_outside():
    reader, writer = os.pipe()

    def main():
        waits = spawn(lambda: check(lib.pyfiber_wait_readable(reader, -1.0)))
        yield_now()
        assert not waits.done()
        assert check(lib.pyfiber_wait_readable(reader, 0.0)) == 1
        assert check(lib.pyfiber_wait_readable(reader, 0.001)) == 1
        assert check(lib.pyfiber_wait_writable(writer, -1.0)) == 0
        os.write(writer, b"x")
        assert waits.result() == 0

    run(main)
    assert check(lib.pyfiber_wait_readable(reader, -1.0)) == 0
    assert check(lib.pyfiber_wait_writable(writer, 10.0)) == 0
    os.close(reader)
    os.close(writer)


@pytest.mark.skipif(os.name == "nt", reason="pipes are no handles to wait for there")
def test_wait_for_what_is_no_descriptor_fails():
    def main():
        with pytest.raises(OSError, match="Bad file") as caught:
            check(lib.pyfiber_wait_readable(-1, -1.0))
        assert caught.value.errno == errno.EBADF
        with pytest.raises(ValueError, match=r"nan|NaN"):
            check(lib.pyfiber_wait_writable(1, float("nan")))

    run(main)
