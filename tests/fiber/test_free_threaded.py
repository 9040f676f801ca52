"""What a CPython without a GIL asks for; with one, the same holds by itself."""

from __future__ import annotations

import gc
import sys
import sysconfig
import textwrap
import threading
import types
import weakref
from contextlib import suppress
from random import randrange
from typing import Any

import pytest

from pyfiber import Fiber, FiberError, current, park, run, spawn, to_thread, yield_now
from pyfiber.debug import info
from pyfiber.threads import Portal
from tests.support.subprocesses import run_python

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

without_gil = pytest.mark.skipif(not FREE_THREADED, reason="this CPython has a GIL")


@without_gil
def test_import_leaves_the_gil_off() -> None:
    program = "import sys, pyfiber, pyfiber.greenlet, pyfiber.testing; print(sys._is_gil_enabled())"
    done = run_python("-W", "error", "-c", program)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


@without_gil
def test_info_says_that_fibers_share_no_stacks() -> None:
    assert info()["slots"] == 0
    assert "GIL" in info()["slots_refused"]


@without_gil
@pytest.mark.parametrize("parts", [{}, {"time": True}], ids=["all", "one"])
@pytest.mark.parametrize("gil", ["0", "1"])
def test_patch_is_refused_while_the_gil_is_off(gil: str, parts: dict[str, bool]) -> None:
    program = f"""
        import pyfiber
        try:
            with pyfiber.patch(**{parts}):
                pass
        except pyfiber.FiberError as exc:
            print("needs the GIL" in str(exc))
        print("gil", pyfiber.debug.info()["gil"])
    """
    done = run_python("-c", textwrap.dedent(program), env={"PYTHON_GIL": gil})
    refused = "True\n" if gil == "0" else ""
    assert (done.stdout, done.stderr) == (f"{refused}gil {gil == '1'}\n", "")


class Key:
    """Compares by leaving the fiber, so within list.sort(), which holds a lock of the list."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __lt__(self, other: Key) -> bool:
        yield_now()
        return self.n < other.n


def test_lock_of_an_object_is_left_with_the_fiber() -> None:
    """Both lists are sorted by turns, and a third fiber uses another thread meanwhile."""
    lists = [[Key((i * 7) % 13) for i in range(13)] for _ in range(4)]

    def main() -> None:
        for each in lists:
            spawn(each.sort)

    run(main)
    assert all([k.n for k in each] == list(range(13)) for each in lists)


def test_list_that_a_suspended_fiber_sorts_can_be_used() -> None:
    keys = [Key(i) for i in (2, 1, 0)]
    lengths = []

    def look() -> None:
        for _ in range(3):
            keys.append(Key(5))
            lengths.append(len(keys))
            yield_now()

    def main() -> None:
        sorting = spawn(keys.sort)
        spawn(look)
        with pytest.raises(ValueError, match="modified during sort"):
            sorting.result()

    run(main)
    assert lengths


def fleeting() -> Any:
    """A function that, once it waits in leave(), is referred to by its frames alone."""
    module = types.ModuleType("gone")
    exec(
        "def inner(leave):\n"
        "    after = later\n"
        "    for name in ('inner', 'outer', 'later'):\n"
        "        del globals()[name]\n"
        "    leave()\n"
        "    return after()\n"
        "def later():\n"
        "    return [n for n in range(3)]\n"
        "def outer(leave):\n"
        "    return inner(leave)\n",
        module.__dict__,
    )
    return module.outer


def collect_elsewhere() -> None:
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()


@pytest.mark.parametrize("collect", [gc.collect, collect_elsewhere])
def test_function_that_only_a_suspended_fiber_uses_is_kept(collect: Any) -> None:
    main = current()
    fiber = Fiber(fleeting(), (main.switch,))
    fiber.switch()
    collect()
    junk = [eval(f"lambda: {n}") for n in range(200)]  # in the place of what was freed
    collect()
    assert len(junk) == 200
    assert fiber.switch() == [0, 1, 2]


@pytest.mark.parametrize("collect", [gc.collect, collect_elsewhere])
def test_function_that_only_the_root_fiber_uses_is_kept(collect: Any) -> None:
    results = []

    def in_thread() -> None:
        def elsewhere() -> None:
            for _ in range(3):
                collect()

        fiber = Fiber(elsewhere)
        results.append(fleeting()(fiber.switch))

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert results == [[0, 1, 2]]


def test_parked_fibers_survive_a_collecting_thread() -> None:
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            gc.collect()

    def begin_fleeting() -> list[int]:
        """CPython 3.14 itself clears the module of a function that only its running frame has."""
        begins = [fleeting()]

        def leave() -> None:
            begins.clear()
            yield_now()

        return begins[0](leave)

    def work(n: int) -> int:
        return sum(len(begin_fleeting()) for _ in range(n))

    def main() -> int:
        return sum(fiber.result() for fiber in [spawn(work, 10) for _ in range(30)])

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        assert run(main) == 900
    finally:
        stop.set()
        thread.join()


def test_cycle_through_a_suspended_frame_is_unwound() -> None:
    if not info()["collects_suspended_cycles"]:
        pytest.skip("this CPython keeps such cycles")
    ended = []

    def body(own: list[Fiber]) -> None:
        local = fleeting()
        try:
            local(main.switch)
        finally:
            ended.append(len(own))

    main = current()
    own: list[Fiber] = []
    own.append(Fiber(body, (own,)))
    own[0].switch()
    del own
    gc.collect()
    assert ended == [1]


def test_schedulers_of_several_threads_run_side_by_side() -> None:
    results: list[int] = []

    def work(n: int) -> int:
        yield_now()
        return n

    def main() -> int:
        return sum(sum(f.result() for f in [spawn(work, i) for i in range(20)]) for _ in range(50))

    threads = [threading.Thread(target=lambda: results.append(run(main))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [9500] * 8


def test_fibers_dropped_on_another_thread_are_unwound_by_their_own() -> None:
    ended: list[int] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def body() -> None:
        try:
            main.switch()
        finally:
            ended.append(threading.get_ident())

    main = current()
    try:
        for _ in range(20):
            fibers = [Fiber(body) for _ in range(20)]
            for fiber in fibers:
                fiber.switch()
            del fiber
            thread = threading.Thread(target=fibers.clear)
            thread.start()
            thread.join()
            Fiber(int).switch()
    finally:
        sys.setswitchinterval(interval)
    gc.collect()
    Fiber(int).switch()
    assert ended == [threading.get_ident()] * 400


def other_thread(body: Any) -> threading.Thread:
    thread = threading.Thread(target=body)
    thread.start()
    return thread


def test_callbacks_that_another_thread_adds_are_each_called_once() -> None:
    """While the fibers end: none may be added to a list that has just been gone through."""
    called: list[int] = []
    fibers: list[Fiber[int]] = []
    rounds, started = 300, threading.Event()

    def body(number: int) -> int:
        yield_now()
        return number

    def main() -> None:
        for number in range(rounds):
            fibers.append(spawn(body, number))
            started.set()
            fibers[-1].join()

    thread = other_thread(lambda: run(main))
    started.wait()
    added = 0
    while added < rounds:
        for _ in range(3):
            fibers[added].add_done_callback(lambda fiber: called.append(fiber.result()))
        added += 1
        while added < rounds and len(fibers) == added:
            yield_processor()
    thread.join()
    assert sorted(called) == sorted([*range(rounds)] * 3)


def yield_processor() -> None:
    threading.Event().wait(0)


def test_value_of_a_fiber_that_another_thread_sees_done_is_complete() -> None:
    fibers: list[Fiber[tuple[int, int]]] = []
    rounds, wrong = 2000, []

    def body(number: int) -> tuple[int, int]:
        return number, number

    def main() -> None:
        for number in range(rounds):
            fibers.append(spawn(body, number))
            yield_now()

    thread = other_thread(lambda: run(main))
    for number in range(rounds):
        while len(fibers) <= number or not fibers[number].done():
            yield_processor()
        if fibers[number].result() != (number, number):
            wrong.append(number)
    thread.join()
    assert wrong == []


def test_fibers_dropped_elsewhere_while_a_wake_up_arrives_are_freed() -> None:
    """Another thread drops the last reference just as the loop reads what that thread posted."""
    fibers: list[Fiber[Any]] = []
    rounds, freed = 1000, []

    class Fine:
        def __del__(self) -> None:
            freed.append(1)

    def body(thing: Fine) -> Fine:
        park()
        return thing

    def main() -> None:
        for _ in range(rounds):
            fiber = spawn(body, Fine())
            fibers.append(fiber)
            fiber.join()
            del fiber
            yield_now()

    thread = other_thread(lambda: run(main))
    for _ in range(rounds):
        while not fibers:
            yield_processor()
        fiber = fibers.pop()
        fiber.unpark()
        while not fiber.done():
            with suppress(FiberError):  # it is done by now
                fiber.unpark()
        del fiber
    thread.join()
    gc.collect()
    assert len(freed) == rounds


def function_of_its_own() -> types.FunctionType:
    """One that nothing refers to but the caller, as a module's is: the collector frees it."""
    namespace: dict[str, Any] = {"yield_now": yield_now}
    exec("def function():\n    yield_now()\n    return 'ran'", namespace)
    function = namespace.pop("function")
    assert isinstance(function, types.FunctionType)
    return function


@without_gil
def test_spawning_a_function_of_a_module_does_not_count_references_to_it() -> None:
    function = function_of_its_own()

    def main() -> None:
        before = sys.getrefcount(function)
        fibers = [spawn(function) for _ in range(100)]
        assert sys.getrefcount(function) == before
        for fiber in fibers:
            assert fiber.result() == "ran"
        assert sys.getrefcount(function) == before

    run(main)


def test_function_that_only_a_spawned_fiber_knows_survives_the_collector() -> None:
    def main() -> None:
        fibers = [spawn(function_of_its_own()) for _ in range(10)]
        gc.collect()
        assert [repr(fiber).count("function") for fiber in fibers] == [1] * 10
        yield_now()  # they are suspended in it
        gc.collect()
        assert [fiber.result() for fiber in fibers] == ["ran"] * 10

    run(main)


def test_function_is_freed_after_the_fibers_that_ran_it() -> None:
    def main() -> weakref.ref[types.FunctionType]:
        function = function_of_its_own()
        fibers = [spawn(function), spawn(function)]
        fibers[0].join()
        fibers[1].cancel()
        return weakref.ref(function)

    freed = run(main)
    gc.collect()
    assert freed() is None


@without_gil
def test_interpreter_ends_beside_a_fiber_that_alone_knows_its_function() -> None:
    """The last collections free functions that others only refer to without counting."""
    done = run_python(
        "-c",
        textwrap.dedent(
            """
            import gc, threading, pyfiber
            there = threading.Event()
            kept = []

            def main():
                namespace = {}
                for n in range(50):
                    exec("def function(): pass", namespace)
                    kept.append(pyfiber.spawn(namespace.pop("function")))
                there.set()
                threading.Event().wait()  # the thread is blocked, they never begin

            class Last:
                def __del__(self):
                    [repr(fiber) for fiber in self.fibers]

            threading.Thread(target=pyfiber.run, args=(main,), daemon=True).start()
            there.wait()
            fibers, last = kept, Last()
            last.itself = last
            last.fibers = fibers
            """
        ),
    )
    assert done.returncode == 0, done.stderr


def linger(rounds: int) -> None:
    """Some time that is no use to a scheduler of processes: a moment, of random length."""
    for _ in range(randrange(rounds)):
        pass


def test_suspended_fiber_dies_on_another_thread_while_its_own_ends() -> None:
    """Its thread, which unwinds what is suspended, must not take what is being freed elsewhere."""
    ended: list[int] = []
    rounds = 3000

    def body(main: list[Fiber]) -> None:
        try:
            main[0].switch()
        finally:
            ended.append(1)

    def suspend(box: list[Fiber], left: list[int]) -> None:
        main.append(current())
        box.pop().switch()
        left.append(1)

    for _ in range(rounds):
        main: list[Fiber] = []
        left: list[int] = []
        fiber = Fiber(body, (main,))
        thread = threading.Thread(target=suspend, args=([fiber], left))
        thread.start()
        while not left:
            linger(2)
        linger(800)
        del fiber
        thread.join()
        main.clear()
    gc.collect()
    assert len(ended) == rounds


def outlive_a_run(rounds: int) -> None:
    """Have the last reference to a fiber of a thread's scheduler, and drop it as that ends."""
    portals: list[Portal] = []
    started, over, left = threading.Event(), threading.Event(), threading.Event()

    def main() -> None:
        portals.append(Portal())
        started.set()
        to_thread(over.wait)

    def in_thread() -> None:
        run(main)
        left.set()

    thread = other_thread(in_thread)
    started.wait()
    fiber = portals.pop().spawn(int)
    while not fiber.done():
        yield_processor()
    over.set()
    left.wait()
    linger(rounds)
    del fiber
    thread.join()


def test_scheduler_dies_on_another_thread_while_its_own_ends() -> None:
    for _ in range(300):
        outlive_a_run(1000)


def one(number: int) -> list[int]:
    return [number]


def two(number: int, other: int) -> list[int]:
    return [number, other]


def change_all(fibers: list[Fiber[list[int]]], begin: threading.Barrier) -> None:
    begin.wait()
    for fiber in fibers:
        with suppress(FiberError):  # it has begun
            fiber.__init__(two, (2, 2))  # type: ignore[misc]
            fiber.__init__(one, (1,))  # type: ignore[misc]


def test_fiber_that_another_thread_changes_as_it_begins_is_whole() -> None:
    """It has function and arguments of one call, and is never refused for good.

    A mixture was never seen, so this finds a claim that is not given back.
    """

    def main(fibers: list[Fiber[list[int]]], begin: threading.Barrier) -> None:
        begin.wait()
        for fiber in fibers:
            while fiber.state == "new":
                with suppress(FiberError):  # it is just being changed
                    fiber.start()
        for fiber in fibers:
            assert fiber.result() in ([1], [2, 2])

    for _ in range(100):
        fibers: list[Fiber[list[int]]] = [Fiber(one, (1,)) for _ in range(300)]
        begin = threading.Barrier(2)
        thread = threading.Thread(target=change_all, args=(fibers, begin))
        thread.start()
        run(main, fibers, begin)
        thread.join()


PATCHED = """
import pyfiber
pyfiber.patch()
import _thread, threading

def main():
    lock = _thread.allocate_lock()
    lock.acquire()
    pyfiber.spawn(lock.release)
    lock.acquire()  # woken by a fiber
    threading.Thread(target=lock.release).start()
    lock.acquire()  # by a thread
    return "woken"

print(pyfiber.run(main))
"""


@without_gil
def test_patched_lock_wakes_fibers_where_the_gil_was_switched_on() -> None:
    done = run_python("-c", PATCHED, env={"PYTHON_GIL": "1"})
    assert (done.returncode, done.stdout) == (0, "woken\n"), done.stderr


class Told:
    """Something that a weak reference tells of."""


@without_gil
def test_fiber_that_another_thread_collects_leaves_nothing_once_it_has_ended() -> None:
    made, collected = threading.Event(), threading.Event()
    told: list[weakref.ref[Any]] = []

    def live() -> None:
        main = current()

        def body(fibers: list[Any]) -> None:
            try:
                main.switch()
            finally:
                fibers.append("ended")

        body.told = Told()  # type: ignore[attr-defined]
        told.append(weakref.ref(body.told))  # type: ignore[attr-defined]
        fibers: list[Any] = []
        fibers.append(Fiber(body, args=(fibers,)))
        fibers[0].switch()
        del fibers, body
        made.set()
        collected.wait()
        Fiber(int).switch()  # ends what was left here

    thread = threading.Thread(target=live)
    thread.start()
    made.wait()
    gc.collect()
    collected.set()
    thread.join()
    gc.collect()
    assert [ref() for ref in told] == [None]
