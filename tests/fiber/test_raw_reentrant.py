"""Code that runs in the midst of an act on a raw fiber: converted arguments, what dies, what is
computed. It may enter that very fiber, end it, change it or drop it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import Fiber, FiberError, current, emit, generator, park, run, sleep, spawn
from tests.fiber.raw import finished, parked
from tests.support.threads import in_thread


class Dies:
    """Calls a function when it dies."""

    def __init__(self, last_act: Callable[[], object]) -> None:
        self.last_act = last_act

    def __del__(self) -> None:
        self.last_act()


def attempt(act: Callable[[], object], log: list[object]) -> None:
    try:
        log.append(act())
    except (FiberError, ValueError, TypeError) as refusal:
        log.append(type(refusal))


# --------------------------------------------------------- __init__, setters


@pytest.mark.parametrize("argument", ["args", "kwargs", "stack_size", "daemon"])
def test_init_whose_argument_starts_the_fiber_comes_too_late(argument: str) -> None:
    main = current()

    class Evil(dict[str, int]):
        def start(self) -> None:
            fiber.switch()

        def __iter__(self) -> Iterator[str]:
            self.start()
            return iter(())

        def keys(self) -> Any:
            self.start()
            return ()

        def __index__(self) -> int:
            self.start()
            return 1 << 20

        def __bool__(self) -> bool:
            self.start()
            return True

    def body(*args: object) -> object:
        main.switch()
        return args

    fiber = Fiber(body, ("kept",))
    with pytest.raises(FiberError, match="comes too late"):
        fiber.__init__(body, **{argument: Evil()})  # type: ignore[misc]
    assert fiber.frame is not None
    assert fiber.switch() == ("kept",)


def test_init_drops_what_it_replaces_when_the_fiber_is_as_it_will_be() -> None:
    log: list[object] = []
    fiber: Fiber[object] = Fiber(lambda *args: args, (Dies(lambda: log.append(fiber.switch())),))
    fiber.__init__(lambda *args: args, ("new",))  # type: ignore[misc]
    assert log == [("new",)]


def test_init_that_fails_changes_nothing() -> None:
    fiber: Fiber[object] = Fiber(lambda *args: args, ("old",), name="old")
    with pytest.raises(ValueError, match="stack_size"):
        fiber.__init__(print, ("new",), name="new", stack_size=1)  # type: ignore[misc]
    assert (fiber.name, fiber.switch()) == ("old", ("old",))


def test_daemon_setter_whose_value_starts_the_fiber_comes_too_late() -> None:
    class Starts:
        def __bool__(self) -> bool:
            fiber.start()
            return False

    def main() -> str:
        nonlocal fiber
        fiber = Fiber(park, daemon=True)
        with pytest.raises(FiberError, match="after the start"):
            fiber.daemon = Starts()  # type: ignore[assignment]
        sleep(0.001)
        return "not cancelled"

    fiber: Fiber[object]
    assert run(main) == "not cancelled"


def test_start_drops_the_parent_when_the_fiber_is_in_the_queue() -> None:
    def main() -> object:
        maker: Fiber[Fiber[int]] = Fiber(lambda: Fiber(lambda: 7))
        fiber = maker.switch()
        gone = weakref.ref(maker, lambda _: log.append(fiber.join()))
        del maker
        fiber.start()
        return gone(), fiber.result()

    log: list[object] = []
    assert run(main) == (None, 7)
    assert log == [True]


# ------------------------------------------------- the parent that is replaced


def orphan(body: Callable[[], object], last_act: Callable[[], object]) -> Fiber[Any]:
    """A new fiber that alone keeps its parent, which has ended; `last_act` runs as that goes."""
    maker: Fiber[Fiber[Any]] = Fiber(lambda: Fiber(body))
    fiber = maker.switch()
    weakref.finalize(maker, last_act)
    return fiber


def test_fiber_that_ended_as_its_old_parent_died_is_not_entered_again() -> None:
    runs = []
    fiber = orphan(lambda: runs.append("ran"), lambda: fiber.switch())
    with pytest.raises(FiberError, match="has finished"):
        fiber.switch()
    assert runs == ["ran"]


def test_fiber_that_began_as_its_old_parent_died_is_gone_back_to() -> None:
    main = current()
    log: list[object] = []
    fiber = orphan(lambda: main.switch("begun"), lambda: log.append(fiber.switch()))
    assert fiber.switch("back") if log else fiber.switch() is None
    assert (log, fiber.done()) == (["begun"], True)


def test_throw_into_a_fiber_that_began_as_its_old_parent_died() -> None:
    main = current()
    log: list[object] = []
    fiber = orphan(lambda: main.switch("begun"), lambda: log.append(fiber.switch()))
    with pytest.raises(KeyError):
        fiber.throw(KeyError)
    assert (log, fiber.done()) == (["begun"], True)


def test_fiber_that_went_to_another_thread_as_its_old_parent_died_is_refused() -> None:
    log: list[object] = []

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: log.append(fiber.switch()))
        thread.start()
        thread.join()

    fiber = orphan(lambda: threading.get_ident(), elsewhere)
    with pytest.raises(FiberError, match="has finished"):
        fiber.switch()
    assert len(log) == 1


def test_fiber_that_was_started_as_its_old_parent_died_belongs_to_the_scheduler() -> None:
    def main() -> int:
        fiber = orphan(lambda: 7, lambda: fiber.start())
        with pytest.raises(FiberError, match="belongs to a scheduler"):
            fiber.switch()
        return fiber.result()

    assert run(main) == 7


def test_switch_to_a_fiber_whose_starter_descends_from_it_is_a_cycle() -> None:
    def refused() -> str:
        with pytest.raises(ValueError, match="its own ancestor"):
            fiber.switch()
        return "refused"

    fiber = orphan(int, int)
    child: Fiber[str] = Fiber(refused)
    child.parent = fiber
    assert child.switch() == "refused"
    assert fiber.switch() == 0  # from elsewhere it can begin


def test_new_fiber_that_finds_no_stack_can_be_started_by_the_collector() -> None:
    """Garbage is collected for stacks, and what that runs may do with the fiber what it likes."""

    class Garbage:
        def __init__(self) -> None:
            self.myself = self

        def __del__(self) -> None:
            fiber.start()

    def main() -> int:
        Garbage()
        with pytest.raises(FiberError, match="belongs to a scheduler"):
            fiber.switch()
        fiber.cancel()
        return 5

    fiber: Fiber[object] = Fiber(print, stack_size=1 << 52)
    gc.collect()
    # A new thread, because collections that freed no stack put off later ones of their thread.
    assert in_thread(lambda: run(main)) == 5


# ----------------------------------------------------------------- unwinding


@pytest.mark.parametrize("other", [finished, parked, lambda: Fiber(int)])
def test_parent_cannot_be_set_while_the_fiber_is_unwound(other: Any) -> None:
    main = current()
    log: list[object] = []
    another = other()

    def body() -> None:
        try:
            main.switch()
        finally:
            attempt(lambda: setattr(current(), "parent", another), log)

    fiber: Fiber[None] = Fiber(body)
    fiber.switch()
    del fiber
    assert log == [FiberError]
    if another.state == "parked":
        another.switch()


def test_unwound_fiber_keeps_its_parent_and_goes_back_to_who_unwinds_it() -> None:
    main = current()
    log: list[object] = []

    def body() -> None:
        try:
            main.switch()
        finally:
            log.append(current().parent is home)

    def drop() -> str:
        nonlocal fiber
        fiber = None
        return "dropped"

    home: Fiber[None] = Fiber(main.switch)
    home.switch()
    fiber: Fiber[None] | None = Fiber(body)
    assert fiber is not None
    fiber.parent = home
    fiber.switch()
    assert Fiber(drop).switch() == "dropped"
    assert (log, home.state) == ([True], "parked")
    home.switch()


def test_old_parent_that_dies_with_an_unwound_fiber_cannot_enter_it() -> None:
    main = current()
    log: list[object] = []

    def make() -> None:
        nonlocal fiber
        fiber = Fiber(main.switch)
        main.switch()

    fiber: Fiber[Any] | None = None
    maker: Fiber[None] = Fiber(make)
    maker.switch()
    assert fiber is not None
    fiber.switch()
    weak = weakref.ref(fiber)

    def enter(_: object) -> None:
        left = weak()
        log.append(left is None or left.state)
        if left is not None:
            attempt(left.switch, log)

    gone = weakref.ref(maker, enter)
    del maker
    fiber = None
    assert gone() is None
    assert log[0] in (True, "done")
    assert set(log[1:]) <= {FiberError}


def test_fiber_that_unwinds_another_is_running() -> None:
    """Nobody may enter or unwind it meanwhile."""
    main = current()
    log: list[object] = []

    def body() -> None:
        try:
            main.switch()
        finally:
            log.append((unwinder.state, unwinder.frame is not None, unwinder.context is not None))
            attempt(unwinder.switch, log)

    def unwind() -> None:
        nonlocal fiber
        fiber = None

    fiber: Fiber[None] | None = Fiber(body)
    assert fiber is not None
    fiber.switch()
    unwinder: Fiber[None] = Fiber(unwind)
    unwinder.switch()
    assert log == [("running", True, True), FiberError]


def test_fiber_that_took_the_result_of_a_child_unwinds_another_as_it_ends() -> None:
    log: list[str] = []
    main = current()

    def sleeps() -> None:
        try:
            main.switch()
        finally:
            log.append("unwound")

    def ends(sleeper: Fiber[Any]) -> str:
        del sleeper  # the last reference is in the fiber's arguments, which go with it
        Fiber(int).switch()
        return "ended"

    sleeper = Fiber(sleeps)
    sleeper.switch()
    fiber = Fiber(ends, (sleeper,))
    del sleeper
    assert fiber.switch() == "ended"
    assert log == ["unwound"]


def test_fiber_unwound_by_a_descendant_is_not_its_own_ancestor() -> None:
    """At the end of a run, say: then who looked for ancestors never came to an end."""
    log: list[object] = []

    def waits() -> None:
        try:
            park()
        finally:
            attempt(lambda: setattr(Fiber(int), "parent", child), log)

    def fails() -> None:
        spawn(outer.switch)
        sleep(0)
        raise KeyError

    outer: Fiber[None] = Fiber(waits)
    child: Fiber[None] = Fiber(run, (fails,))
    child.parent = outer
    with pytest.raises(KeyError):
        child.switch()
    assert log == [None]


def test_fiber_that_pulls_from_the_generator_that_made_it_is_no_cycle() -> None:
    log: list[object] = []

    @generator
    def numbers() -> Iterator[int]:
        nonlocal child
        child = Fiber(lambda: next(pulled))
        emit(1)
        attempt(lambda: setattr(Fiber(int), "parent", child), log)
        emit(2)

    child: Fiber[Any] = current()
    pulled = numbers()
    assert next(pulled) == 1
    child.switch()  # its result goes to its parent, the generator's function
    assert log == [None]


# --------------------------------------------------------- the last reference


def test_last_reference_to_a_running_fiber_may_go_more_than_once() -> None:
    """Nobody but the loop leads to a raw fiber that waits: it may lose its last reference while it
    runs, be found again, and lose the next one."""
    log: list[object] = []

    def main() -> None:
        me = current()
        kept: list[Any] = []

        def body() -> None:
            nonlocal entered
            sleep(0.001)
            kept.append(current())
            entered = None
            for _ in range(3):
                kept.clear()
                kept.append(current())
                sleep(0)
            log.append("alive")

        def enter() -> None:
            fiber: Fiber[None] = Fiber(body)
            fiber.parent = me
            fiber.switch()

        def start() -> None:
            assert entered is not None
            entered.switch()
            me.switch()

        entered: Fiber[None] | None = Fiber(enter)
        starter = Fiber(start, daemon=True).start()
        sleep(0)
        starter.switch()  # nobody waits in `entered.switch()` any more
        sleep(0.02)

    run(main)
    assert log == ["alive"]


def test_hub_dropped_by_a_fiber_of_its_run_ends_that_first() -> None:
    main = current()
    log: list[object] = []

    def work() -> int:
        nonlocal entry, hub
        fibers.append(current())
        main.switch()
        entry = hub = None
        sleep(0)
        return 5

    def enter() -> None:
        assert hub is not None
        hub.switch()

    fibers: list[Fiber[Any]] = []
    hub: Fiber[None] | None = Fiber(lambda: log.append(run(work)))
    entry: Fiber[None] | None = Fiber(enter)
    assert hub is not None
    assert entry is not None
    hub.parent = entry.parent = main
    entry.switch()
    fibers[0].switch()
    assert log == [5]


# --------------------------------------------------------------- names, reports


class SwitchesToItsParent:
    """A fiber's target, which the fiber drops when it ends."""

    def __call__(self) -> None:
        current().parent.switch()  # type: ignore[union-attr]


def test_name_of_a_target_that_goes_as_it_is_asked() -> None:
    class Target(SwitchesToItsParent):
        def __getattr__(self, name: str) -> object:
            if fiber.state == "parked":
                fiber.switch()
            raise AttributeError(name)

    fiber: Fiber[None] = Fiber(Target())
    fiber.switch()
    assert (fiber.name, fiber.state) == ("Target", "done")


def test_repr_of_a_target_that_goes_as_it_is_asked() -> None:
    class Target(SwitchesToItsParent):
        def __repr__(self) -> str:
            fiber.switch()
            return "the target"

    fiber: Fiber[None] = Fiber(Target(), name="named")
    fiber.switch()
    assert "target the target" in repr(fiber)
    assert fiber.done()


# ------------------------------------------------------------- the fiber's end


def test_permit_that_dies_with_the_fiber_sees_it_done() -> None:
    log: list[object] = []

    def main() -> None:
        def last_act() -> None:
            log.append((fiber.done(), fiber.cancelled(), fiber.result()))
            attempt(lambda: fiber.unpark("late"), log)

        fiber = spawn(lambda: 5)
        fiber.unpark(Dies(last_act))
        assert fiber.result() == 5

    run(main)
    assert log == [(True, False, 5), FiberError]
