"""The C API from C: the example extension is compiled and called."""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib.machinery
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import threading
import weakref
from pathlib import Path

import pytest

import pyfiber
from pyfiber import (
    Fiber,
    FiberCancelled,
    FiberError,
    FiberExit,
    current,
    park,
    run,
    spawn,
    yield_now,
)
from tests.support.compilers import extension_compiler
from tests.support.growth import grows
from tests.support.subprocesses import run_script

pytestmark = pytest.mark.slow  # it compiles

EXAMPLE = Path(__file__).parents[1] / "c_api_example"
WINDOWS = sys.platform == "win32"


def environment() -> dict[str, str]:
    """For a child that must find the same pyfiber."""
    path = os.path.dirname(os.path.dirname(pyfiber.__file__))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([path, *sys.path])}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Where the compiled modules are."""
    pytest.importorskip("setuptools")
    if not WINDOWS:
        extension_compiler("CC")
    place = tmp_path_factory.mktemp("c_api_example")
    for name in ("setup.py", "c_api_example.c", "used_too_early.c", "ensured.c"):
        shutil.copy(EXAMPLE / name, place)
    built = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
    )
    if WINDOWS and "Visual C++" in built.stderr and built.returncode != 0:
        pytest.skip("no compiler: Microsoft Visual C++ is not installed")
    assert built.returncode == 0, built.stdout + built.stderr
    return place


def load(place, name):
    path = place / f"{name}{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example(built):
    return load(built, "c_api_example")


# --- used too early -------------------------------------------------------------


def test_function_used_before_the_import_raises_and_says_what_to_call(built):
    early = load(built, "used_too_early")
    with pytest.raises(RuntimeError, match=r"before PyFiber_Import\(\): call that first"):
        early.raises(current())
    with pytest.raises(RuntimeError, match=r"before PyFiber_Import\(\): call that first"):
        early.raises_from_int()
    early.import_()
    assert early.raises(current()) is None


def test_function_that_cannot_raise_used_before_the_import_ends_with_a_message(built):
    done = run_script(
        f"""
        import sys
        sys.path.insert(0, {str(built)!r})
        import used_too_early
        used_too_early.cannot_raise(None)
        """,
        check=False,
    )
    assert done.returncode != 0
    assert "pyfiber's C API is used before PyFiber_Import(): call that first" in done.stderr


# --- the header ---------------------------------------------------------------


def compile_only(tmp_path, command, name, *flags, code):
    source = tmp_path / name
    source.write_text(code)
    strict = ["-Wall", "-Wextra", "-Werror", "-fPIC"]
    include = ["-isystem", sysconfig.get_path("include"), "-I", pyfiber.get_include()]
    command = [*command, *flags, *strict, *include, "-c", str(source), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


USE_ALL = """
#include <pyfiber.h>

static PyObject *body(void *arg) { return PyFiber_Park(*(double *)arg); }

static PyObject *use(PyObject *module, PyObject *fiber)
{
    (void)module;
    static double forever = PYFIBER_FOREVER;
    PyFiber_SchedulerStats stats;
    stats.size = sizeof(stats);
    if (!PyFiber_Check(fiber) || PyFiber_GetSchedulerStats(&stats) < 0) {
        return NULL;
    }
    PyFiber_UnparkNoGIL(fiber);
    return PyFiber_NewC(body, &forever, NULL);
}

static PyMethodDef methods[] = {{"use", use, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "used", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_used(void)
{
    return PyFiber_Import() < 0 ? NULL : PyModule_Create(&definition);
}
"""

SHARED = """
#define PYFIBER_SHARED_API my_pyfiber
#include <pyfiber.h>
const PyFiber_CAPI *my_pyfiber;
int set_up(void) { return PyFiber_Import(); }
"""

ONLY_INCLUDED = "#include <pyfiber.h>\nint nothing;\n"


@pytest.mark.skipif(WINDOWS, reason="the flags are those of gcc and clang")
@pytest.mark.parametrize("code", [USE_ALL, SHARED, ONLY_INCLUDED])
@pytest.mark.parametrize("standard", ["c99", "c11", "c17"])
def test_header_is_clean_c(tmp_path, standard, code):
    compile_only(tmp_path, extension_compiler("CC"), "used.c", f"-std={standard}", code=code)


@pytest.mark.skipif(WINDOWS, reason="the flags are those of gcc and clang")
@pytest.mark.parametrize("code", [USE_ALL, SHARED, ONLY_INCLUDED])
@pytest.mark.parametrize("standard", ["c++11", "c++17"])
def test_header_is_clean_cplusplus(tmp_path, standard, code):
    compile_only(tmp_path, extension_compiler("CXX"), "used.cpp", f"-std={standard}", code=code)


def test_include_directory_holds_the_header():
    assert os.path.exists(os.path.join(pyfiber.get_include(), "pyfiber.h"))


# --- fibers and C threads -----------------------------------------------------


def test_fiber_is_woken_by_a_thread_without_python(example):
    def main():
        fiber = example.woken_by_thread(1000)
        assert fiber.state == "ready"
        return fiber.result()

    assert run(main) is None


def test_many_fibers_are_woken_by_threads_without_python(example):
    def main():
        fibers = [example.woken_by_thread(i * 10) for i in range(50)]
        return [fiber.result() for fiber in fibers]

    assert run(main) == [None] * 50


def test_waiting_for_a_thread_can_be_cancelled(example):
    def main():
        fiber = example.woken_by_thread(20000)
        yield_now()
        assert fiber.state == "parked"
        fiber.cancel("enough")
        with pytest.raises(FiberCancelled, match="enough"):
            fiber.result()

    run(main)


@pytest.mark.parametrize(("threads", "times"), [(1, 20000), (4, 5000), (16, 1000)])
def test_no_wake_up_of_a_storm_is_lost(example, threads, times):
    assert run(example.storm, threads, times) == threads * times


def test_storm_reaches_the_right_one_of_many_fibers(example):
    def main():
        others = [spawn(park, 10) for _ in range(100)]
        total = example.storm(4, 1000)
        for other in others:
            assert other.state == "parked"
            other.unpark("late")
        return total, {other.result() for other in others}

    assert run(main) == (4000, {"late"})


HOLDS = """
    import signal
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_loader
    from pyfiber import DeadlockError, current, park, run, sleep, spawn
    loader = ExtensionFileLoader("c_api_example", {path!r})
    example = module_from_spec(spec_from_loader("c_api_example", loader))
    loader.exec_module(example)

    def release(fiber):
        sleep(0.02)
        assert example.release(fiber) == 0

    def main(released):
        assert example.hold(current()) == 0
        if released:
            spawn(release, current())
        park()

    def alarm(*ignored):
        raise SystemExit("still waiting")
"""


def test_hold_stops_the_deadlock_report(example):
    """In processes of their own: a thread of the test runner could wake us."""
    prelude = textwrap.dedent(HOLDS.format(path=example.__file__))
    reported = """
try:
    run(main, True)
except DeadlockError:
    print("reported")
"""
    assert run_script(prelude + reported).stdout == "reported\n"
    if not WINDOWS:
        waits = """
signal.signal(signal.SIGALRM, alarm)
signal.setitimer(signal.ITIMER_REAL, 0.1)
run(main, False)
"""
        assert "still waiting" in run_script(prelude + waits, check=False).stderr


def test_hold_and_unpark_refuse_what_is_not_scheduled(example):
    raw = Fiber(print)
    for thing in (raw, current(), None, 3, "fiber"):
        assert example.unpark_no_gil(thing) == -errno.EINVAL
        assert example.hold(thing) == -errno.EINVAL
        assert example.release(thing) == -errno.EINVAL
    assert run(lambda: example.release(current())) == -errno.EINVAL


def test_unpark_without_the_gil_of_a_finished_fiber_is_nothing(example):
    def main():
        fiber = spawn(int)
        fiber.join()
        return fiber, example.unpark_no_gil(fiber)

    fiber, answer = run(main)
    gone = weakref.ref(fiber)
    assert answer == 0
    assert example.unpark_no_gil(fiber) == 0
    del fiber
    gc.collect()
    assert gone() is None


def test_unpark_without_the_gil_before_the_first_run_is_kept(example):
    def main():
        fiber = spawn(park)
        example.unpark_no_gil(fiber)
        example.unpark_no_gil(fiber)
        return fiber.result()

    assert run(main) is None


# --- a fiber around a C function ----------------------------------------------


class Callable:
    """Something a weak reference can be made to."""

    def __init__(self, function):
        self.function = function

    def __call__(self):
        return self.function()


def test_c_function_runs_as_a_fiber(example):
    main = current()
    before = example.destroyed()
    fiber = example.new_c(lambda: (main.switch(1), main.switch(2), "end")[2])
    assert (fiber.state, fiber.name) == ("new", "C function")
    assert example.destroyed() == before
    assert (fiber.switch(), fiber.switch(), fiber.switch()) == (1, 2, "end")
    assert example.destroyed() == before + 1
    assert fiber.done()


def test_c_function_runs_on_a_scheduler(example):
    def main():
        fiber = example.new_c(park)
        assert example.start(fiber) == 0
        yield_now()
        assert example.unpark(fiber, "value") == 1
        return example.result(fiber)

    assert run(main) == "value"


def test_c_function_never_run_is_destroyed(example):
    before = example.destroyed()
    fiber = example.new_c(Callable(int))
    arg = weakref.ref(fiber)
    del fiber
    gc.collect()
    assert arg() is None
    assert example.destroyed() == before + 1


def test_c_function_dropped_half_way_is_unwound_and_destroyed(example):
    main, before, seen = current(), example.destroyed(), []

    def body():
        try:
            main.switch()
        except FiberExit as exc:
            seen.append(type(exc))
            raise

    fiber = example.new_c(body)
    fiber.switch()
    del fiber
    assert seen == [FiberExit]
    assert example.destroyed() == before + 1


def test_c_function_cancelled_before_it_runs_is_destroyed(example):
    before = example.destroyed()

    def main():
        fiber = example.new_c(Callable(int)).start()
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()

    run(main)
    assert example.destroyed() == before + 1


def test_c_function_raises(example):
    def fail():
        raise ZeroDivisionError("in C")

    with pytest.raises(ZeroDivisionError, match="in C"):
        example.new_c(fail).switch()


def test_c_function_that_breaks_the_rules_is_a_system_error(example):
    with pytest.raises(SystemError):
        example.new_c_null(object()).switch()
    with pytest.raises(SystemError) as caught:
        example.new_c_both(object()).switch()
    assert isinstance(caught.value.__cause__, ValueError)


def test_c_function_null_is_refused(example):
    with pytest.raises(TypeError, match="NULL"):
        example.new_c_nothing()


# --- every function -----------------------------------------------------------


def test_raw_functions_do_what_the_methods_do(example):
    main = example.current()
    assert main is current()

    def target(first, *, second):
        got = example.switch(main, (first, second))
        try:
            example.switch(main, got)
        except KeyError as exc:
            return exc.args

    fiber = example.new(target, ("one",), {"second": 2})
    assert example.check(fiber)
    assert not example.check(main.name)
    assert example.is_done(fiber) == 0
    assert example.switch(fiber) == ("one", 2)
    assert example.switch(fiber, "sent") == "sent"
    assert example.throw(fiber, KeyError("thrown")) == ("thrown",)
    assert example.is_done(fiber) == 1


def test_scheduled_functions_do_what_python_does(example):
    def child(n, *, factor):
        example.yield_now()
        example.sleep(0.001)
        return n * factor + example.park(-1.0)

    def main(a, *, b):
        assert example.check_cancelled() == 0
        fiber = example.spawn(child, (a,), {"factor": b})
        assert example.join(fiber, 0.0) == 1
        assert example.unpark(fiber, 100) == 1
        with pytest.warns(RuntimeWarning, match=r"unpark\(200\) is dropped"):
            assert example.unpark(fiber, 200) == 0
        assert example.join(fiber, -1.0) == 0
        assert example.cancel(fiber) == 0
        return example.result(fiber)

    assert example.run(main, (2,), {"b": 3}) == 106
    assert example.run(lambda: 5) == 5


def test_park_and_result_time_out(example):
    def main():
        with pytest.raises(TimeoutError):
            example.park(0.001)
        fiber = example.spawn(park)
        with pytest.raises(TimeoutError):
            example.result(fiber, 0.001)
        fiber.unpark()

    run(main)


def test_cancel_carries_its_reason(example):
    def main():
        fiber = example.spawn(park)
        yield_now()
        assert example.cancel(fiber, "because") == 1
        with pytest.raises(FiberCancelled) as caught:
            example.result(fiber)
        return caught.value.reason

    assert run(main) == "because"


def refused(function, *args):
    with pytest.raises(FiberError) as caught:
        function(*args)
    return str(caught.value)


def test_misuse_is_refused_as_by_the_methods(example):
    done = Fiber(int)
    done.switch()
    assert refused(example.switch, done) == refused(done.switch)
    assert refused(example.throw, done, KeyError) == refused(done.throw, KeyError)
    raw = Fiber(int)
    assert refused(example.start, raw) == refused(raw.start)
    assert refused(example.cancel, raw) == refused(raw.cancel)
    assert refused(example.join, raw) == refused(raw.join)
    assert refused(example.park, 0.0) == refused(park, 0.0)
    assert refused(example.yield_now) == refused(yield_now)
    assert refused(example.spawn, int) == refused(spawn, int)
    assert "scheduler" in refused(example.scheduler_stats)
    assert "scheduler" in refused(example.check_cancelled)

    def inside():
        assert refused(example.run, int) == refused(run, int)
        me = current()
        assert refused(example.join, me) == refused(me.join)
        parked = spawn(park)
        yield_now()
        assert refused(example.switch, parked) == refused(parked.switch)
        parked.unpark()

    run(inside)
    with pytest.raises(TypeError, match="None"):
        example.switch(raw, "value for a fresh fiber")


def test_misuse_from_another_thread_is_refused(example):
    main = current()
    suspended = Fiber(lambda: main.switch())
    suspended.switch()
    texts = []

    def elsewhere():
        texts.append(refused(example.switch, suspended))
        texts.append(refused(example.throw, suspended, KeyError))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert all("another thread" in text for text in texts)
    assert len(texts) == 2
    suspended.switch()


@pytest.mark.parametrize("thing", [None, 3, "fiber", object(), Fiber])
def test_wrong_types_are_refused(example, thing):
    for name in ("switch", "throw", "cancel", "unpark", "is_done", "own_stack", "start"):
        with pytest.raises(TypeError, match="expected a Fiber"):
            getattr(example, name)(thing)
    for name in ("join", "result"):
        with pytest.raises(TypeError, match="expected a Fiber"):
            getattr(example, name)(thing)


def test_wrong_calls_are_refused(example):
    def refuses(function):
        with pytest.raises(TypeError, match="NULL"):
            function(None)
        with pytest.raises(TypeError, match=r"callable|function"):
            function(3)
        with pytest.raises(TypeError, match="tuple"):
            function(int, [1])
        with pytest.raises(TypeError, match="dict"):
            function(int, (), [1])

    refuses(example.new)
    refuses(example.run)
    run(refuses, example.spawn)
    with pytest.raises(TypeError, match="exception"):
        example.throw(Fiber(int), 3)


def test_wrong_numbers_are_refused(example):
    def main():
        with pytest.raises(ValueError, match="negative"):
            example.sleep(-1.0)
        for function in (example.sleep, example.park):
            with pytest.raises(ValueError, match="NaN"):
                function(float("nan"))

    run(main)
    with pytest.raises(ValueError, match="at least"):
        example.set_stack_size(1)
    with pytest.raises(ValueError, match="size"):
        run(example.scheduler_stats, 0)


def test_stack_size_can_be_set(example):
    before = example.get_stack_size()
    assert before == pyfiber.stack_size()
    try:
        assert example.set_stack_size(before * 2) == 0
        assert pyfiber.stack_size() == before * 2
        assert example.stack_stats()["stack_size"] == before * 2
    finally:
        pyfiber.stack_size(before)


def test_stats_count(example):
    def main():
        spawn(park).unpark()
        yield_now()
        return example.scheduler_stats()

    size, fibers, ready, switches = run(main)
    assert size > 0
    assert (fibers, ready) == (1, 0)
    assert switches >= 3
    assert example.stack_stats()["acquired"] >= 2


def test_stats_fill_in_only_what_there_is_room_for(example):
    one_field = 2 * 8
    size, fibers, ready, switches = run(example.scheduler_stats, one_field)
    assert (size, fibers) == (one_field, 1)
    assert (ready, switches) == (-1, -1)
    size, *_ = run(example.scheduler_stats, 10**6)
    assert size < 10**6


def test_variable_of_c_stays_where_it_is_on_a_stack_of_its_own(example):
    """Others share two stacks meanwhile, and a variable of theirs is elsewhere by then."""

    def main():
        fiber = Fiber(example.lend_variable)
        assert example.own_stack(fiber) == 0
        fiber.start()
        yield_now()
        others = [spawn(park) for _ in range(20)]
        yield_now()
        example.write_to_lent(42)
        for other in others:
            other.unpark()
        for other in others:
            other.result()
        fiber.unpark()
        return fiber.result()

    with contextlib.closing(pyfiber.Scheduler(slots=2)) as scheduler:
        assert scheduler.run(main) == 42


def test_stack_of_its_own_comes_too_late_for_a_fiber_that_runs(example):
    fiber = Fiber(current().switch)
    fiber.switch()
    for started in (fiber, current()):
        with pytest.raises(FiberError, match="has been started: that comes too late"):
            example.own_stack(started)
    fiber.switch()
    with pytest.raises(FiberError):
        example.own_stack(fiber)


def test_fiber_that_waits_in_a_function_of_c_is_not_packed_to_save_memory(example):
    def packed(wait):
        def main():
            before = sum(stats["packed"] for stats in pyfiber.debug.stack_stats())
            fibers = [spawn(wait) for _ in range(400)]
            yield_now()
            packed = sum(stats["packed"] for stats in pyfiber.debug.stack_stats()) - before
            for fiber in fibers:
                fiber.unpark()
                fiber.result()
            return packed

        with contextlib.closing(pyfiber.Scheduler(slots=16)) as scheduler:
            return scheduler.run(main)

    if pyfiber.debug.info()["slots_refused"] is None:
        assert packed(park) >= 200
        assert packed(lambda: example.park(-1.0)) == 0


# --- contexts -----------------------------------------------------------------


def test_context_is_a_coroutine(example):
    assert example.context_generate(1000) == list(range(1000))
    assert example.context_generate(0) == []


def test_context_works_on_a_fiber(example):
    def work(n):
        yield_now()
        numbers = example.context_generate(n)
        yield_now()
        return numbers

    def main():
        fibers = [spawn(work, n) for n in range(20)]
        return [fiber.result() for fiber in fibers]

    assert run(main) == [list(range(n)) for n in range(20)]


def test_context_works_on_many_threads(example):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(example.context_generate(200)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [list(range(200))] * 8


def test_context_keeps_its_rounding_mode(example):
    assert example.context_rounding()


def test_context_finished_returns_to_who_resumed_it(example):
    assert example.context_chain() == [1, 2, 3, -3, -2, -1]


def test_context_errors(example):
    assert example.context_errors() == {
        "no body": -errno.EINVAL,
        "small stack": -errno.EINVAL,
        "huge stack": -errno.ENOMEM,
        "finished": -errno.ESRCH,
        "to NULL": -errno.EINVAL,
        "to itself": 0,
        "destroy main": -errno.EINVAL,
        "destroy NULL": 0,
        "destroy running": -errno.EBUSY,
        "foreign switch": -errno.EPERM,
        "foreign destroy": -errno.EPERM,
        "foreign is_done": -errno.EPERM,
        "foreign main": 1,
    }


def test_context_abandoned_gives_its_stack_back(example):
    example.context_abandon(1000)


def test_context_may_call_python_that_returns(example):
    numbers = iter(range(100))
    assert example.context_call(lambda: next(numbers), 100) == list(range(100))


def test_context_may_not_be_left_by_its_python(example):
    def generator():
        yield example.leave_context()

    assert example.context_call(lambda: example.leave_context(), 2) == [-errno.EBUSY] * 2
    assert example.context_call(lambda: next(generator()), 2) == [-errno.EBUSY] * 2
    fibers = [Fiber(example.leave_context) for _ in range(2)]
    assert example.context_call(lambda: fibers.pop().switch(), 2) == [-errno.EBUSY] * 2


def test_context_may_switch_fibers_inside_its_python(example):
    main = current()
    fiber = Fiber(lambda: [main.switch(n) for n in range(3)])

    def recurse(n):
        return [recurse(n - 1)] if n else fiber.switch()

    assert example.context_call(lambda: recurse(50) and fiber.state, 3) == ["parked"] * 3
    assert fiber.switch() == [None] * 3


@pytest.mark.skipif(sys.version_info < (3, 14), reason="3.14 looks at the stack pointer")
def test_context_has_recursion_limits_of_its_own(example):
    def nest(n):
        return sorted([n], key=lambda n: nest(n + 1))

    def overflow():
        with pytest.raises(RecursionError):
            nest(0)
        return "survived"

    assert example.context_call(overflow, 2) == ["survived"] * 2
    assert overflow() == "survived"


# --- threads of C code ------------------------------------------------------------

ENDS = """
from pyfiber import Fiber, FiberExit, current
from ensured import in_thread, nested
log, kept = [], []

def body():
    main = current()

    def waits():
        try:
            main.switch()
        except FiberExit:
            log.append("unwound")

    kept.append(Fiber(nested, args=(waits,)))
    kept[-1].switch()

for _ in range(3):
    assert in_thread(body) == 0
print(log, [fiber.state for fiber in kept])
"""


@pytest.mark.skipif(sys.version_info < (3, 15) or WINDOWS, reason="needs PyThreadState_Ensure")
def test_thread_state_that_c_code_ensured_ends_with_fibers_that_hold_it(built):
    done = subprocess.run(
        [sys.executable, "-c", ENDS],
        cwd=built,
        env={**environment(), "PYTHONSAFEPATH": ""},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{['unwound'] * 3} {['done'] * 3}\n"


# --- nothing is left behind -------------------------------------------------------


def churn(example):
    def main():
        for fiber in [example.woken_by_thread(0) for _ in range(5)]:
            fiber.result()
        example.storm(2, 50)
        example.result(example.spawn(int))
        with pytest.raises(TypeError):
            example.switch(None)

    run(main)
    example.new_c(Callable(int)).switch()
    example.context_generate(10)
    example.context_call(int, 3)
    example.context_errors()


def test_nothing_is_left_behind(example, caplog):
    caplog.set_level(logging.ERROR)
    for _ in range(5):
        churn(example)
    gc.collect()
    live = example.stack_stats()["live"]
    assert not grows(lambda: churn(example), 100)
    assert example.stack_stats()["live"] == live
    assert not caplog.records
