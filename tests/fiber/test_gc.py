"""Fibers and the garbage collector."""

from __future__ import annotations

import contextvars
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import pyfiber
from pyfiber import Fiber, FiberError, FiberExit, current
from tests.conftest import Child
from tests.fiber.raw import parked

COLLECTS = pyfiber.debug.info()["collects_suspended_cycles"]
HAS_GIL = pyfiber.debug.info()["gil"]


@pytest.fixture
def _every_allocation() -> Iterator[None]:
    """The collector runs at about every allocation."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*before)


class Node:
    """Something that can be in a cycle and be referenced weakly."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


# ---------------------------------------------------------------------------- cycles


def test_cycle_through_a_fresh_fiber_is_collected() -> None:
    node = Node()
    node.fiber = Fiber(print, (node,))
    alive = weakref.ref(node), weakref.ref(node.fiber)
    del node
    gc.collect()
    assert [reference() for reference in alive] == [None, None]


def test_cycle_through_a_done_fiber_is_collected() -> None:
    node = Node()
    node.fiber = Fiber(lambda: node)  # noqa: F821
    node.fiber.switch()
    alive = weakref.ref(node), weakref.ref(node.fiber)
    del node
    gc.collect()
    assert [reference() for reference in alive] == [None, None]


def test_cycle_through_the_exception_of_a_failed_fiber_is_collected() -> None:
    node = Node()

    def fail() -> None:
        kept = node  # noqa: F821
        raise KeyError(kept)

    node.fiber = Fiber(fail)
    with pytest.raises(KeyError):
        node.fiber.switch()
    alive = weakref.ref(node)
    del node, fail
    gc.collect()
    assert alive() is None


def test_cycle_through_name_context_callbacks_and_parent_is_collected() -> None:
    node = Node()
    node.fiber = Fiber(int)
    node.fiber.add_done_callback(lambda fiber: node)  # noqa: F821
    node.child = Fiber(int)
    node.child.parent = node.fiber
    alive = weakref.ref(node), weakref.ref(node.fiber), weakref.ref(node.child)
    del node
    gc.collect()
    assert [reference() for reference in alive] == [None] * 3


def test_cycle_through_a_subclass_instance_is_collected() -> None:
    class Held(Fiber[int]):
        pass

    fiber: Any = Held(int)
    fiber.itself = fiber
    alive = weakref.ref(fiber)
    del fiber
    gc.collect()
    assert alive() is None


def test_suspended_fiber_reached_from_a_cycle_is_unwound() -> None:
    """The cycle does not go through the fiber's frames: every version collects it."""
    log = []
    main = current()

    def work() -> None:
        try:
            main.switch()
        finally:
            log.append("finally")

    node = Node()
    node.itself = node
    node.fiber = Fiber(work)
    node.fiber.switch()
    del node
    assert log == []
    gc.collect()
    assert log == ["finally"]


# ------------------------------------------------------------------- fibers of a run


@pytest.mark.skipif(not HAS_GIL, reason="the collector must know of all frames here")
def test_collector_does_not_look_at_what_a_run_keeps() -> None:
    """A million that wait would be most of its work, and it could find nothing."""

    def main() -> list[bool]:
        fiber = pyfiber.spawn(lambda node: pyfiber.park(), Node())
        fresh = gc.is_tracked(fiber)
        pyfiber.yield_now()
        waits = gc.is_tracked(fiber)
        fiber.unpark()
        fiber.join()
        return [fresh, waits, gc.is_tracked(fiber)]

    assert pyfiber.run(main) == [False, False, True]


def test_collector_knows_what_is_made_in_a_run_but_is_none_of_its_fibers() -> None:
    def body() -> None:
        pyfiber.emit(1)

    def main() -> list[bool]:
        for _ in range(3):  # there is memory of earlier ones
            pyfiber.spawn(int).join()
        raw = Fiber(int)
        with_arguments = Fiber(int, (1,))
        numbers = pyfiber.generator(body)()
        next(numbers)
        made = [raw, with_arguments, *(it for it in gc.get_objects() if type(it) is Fiber)]
        numbers.close()
        return [gc.is_tracked(fiber) for fiber in made]

    before = sum(type(it) is Fiber for it in gc.get_objects())
    known = pyfiber.run(main)
    assert all(known)
    assert len(known) >= before + 5  # the generator's, both, and both again


def test_cycle_through_a_finished_fiber_of_a_run_is_collected() -> None:
    def main() -> list[object]:
        node = Node()
        node.fiber = pyfiber.spawn(lambda kept: kept, node)
        node.fiber.join()
        alive = weakref.ref(node), weakref.ref(node.fiber)
        del node
        gc.collect()
        return [reference() for reference in alive]

    assert pyfiber.run(main) == [None, None]


def test_cycle_through_a_fiber_cancelled_before_its_turn_is_collected() -> None:
    def main() -> list[object]:
        node = Node()
        node.fiber = pyfiber.spawn(lambda kept: kept, node)
        node.fiber.cancel()
        node.fiber.join()
        alive = weakref.ref(node), weakref.ref(node.fiber)
        del node
        gc.collect()
        return [reference() for reference in alive]

    assert pyfiber.run(main) == [None, None]


def test_cycle_through_the_arguments_that_a_type_keeps_is_collected() -> None:
    """An exception's `args` is the tuple that the fiber called its type with."""

    def main() -> object:
        node = Node()
        error = pyfiber.spawn(KeyError, node, 1).result()
        node.error = error
        assert gc.is_tracked(error.args)
        alive = weakref.ref(node)
        del node, error
        gc.collect()
        return alive()

    assert pyfiber.run(main) is None


def test_cycle_through_a_fiber_that_a_run_abandons_is_collected(child: Child) -> None:
    """No cancellation reaches it there: it is unwound, and the run ends.

    In a process of its own: where another Python thread lives, waiting is not vain.
    """
    done = child("""
        import gc, weakref, pyfiber

        class Node:
            pass

        node = Node()

        def stay(kept):
            with pyfiber.shield():
                pyfiber.park()

        def main():
            node.fiber = pyfiber.spawn(stay, node)
            pyfiber.yield_now()

        try:
            pyfiber.run(main)
        except pyfiber.DeadlockError:
            alive = weakref.ref(node), weakref.ref(node.fiber)
        del node, main
        gc.collect()
        print([reference() for reference in alive])
    """)
    assert done.stdout == "[None, None]\n"


def make_suspended_cycle(log: list[str]) -> weakref.ref[Node]:
    main = current()
    node = Node()

    def work() -> None:
        held = node
        try:
            main.switch()
        finally:
            log.append(type(held).__name__)

    node.fiber = Fiber(work)
    node.fiber.switch()
    return weakref.ref(node)


@pytest.mark.skipif(not COLLECTS, reason="this version does not look into suspended frames")
def test_cycle_through_a_suspended_fiber_is_collected() -> None:
    log: list[str] = []
    alive = make_suspended_cycle(log)
    gc.collect()
    gc.collect()
    assert log == ["Node"]
    assert alive() is None


@pytest.mark.skipif(not COLLECTS, reason="this version does not look into suspended frames")
def test_many_cycles_through_suspended_fibers_are_collected() -> None:
    log: list[str] = []
    for _ in range(300):
        make_suspended_cycle(log)
    gc.collect()
    gc.collect()
    assert len(log) == 300


@pytest.mark.skipif(not COLLECTS, reason="this version does not look into suspended frames")
def test_suspended_fibers_that_hold_each_other_are_collected() -> None:
    log: list[int] = []
    main = current()

    def work(number: int, others: list[Any]) -> None:
        try:
            main.switch()
        finally:
            log.append(len(others) + number)

    others: list[Any] = []
    others += [Fiber(work, (n, others)) for n in range(5)]
    for fiber in others:
        fiber.switch()
    del others, fiber
    gc.collect()
    gc.collect()
    assert sorted(log) == [5, 6, 7, 8, 9]


@pytest.mark.skipif(not COLLECTS, reason="this version does not look into suspended frames")
def test_fiber_that_knows_only_itself_is_collected() -> None:
    log = []
    main = current()

    def work() -> None:
        me = current()
        try:
            main.switch()
        finally:
            log.append(me.state)

    Fiber(work).switch()
    gc.collect()
    gc.collect()
    assert log == ["running"]


# Without a GIL the collector may come to the generator before the fiber that runs it: CPython then
# says that it cannot close it yet, and the fiber closes it.
@pytest.mark.filterwarnings(
    "ignore:.*while closing generator:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.skipif(not COLLECTS, reason="this version does not look into suspended frames")
def test_cycle_through_a_suspended_generator_in_a_suspended_fiber_is_collected() -> None:
    log = []
    main = current()
    node = Node()

    def generate() -> Iterator[int]:
        held = node  # noqa: F821
        try:
            yield 1
            main.switch()
        finally:
            log.append(type(held).__name__)

    def work() -> None:
        for _ in generate():
            pass

    node.fiber = Fiber(work)
    node.fiber.switch()
    del node
    gc.collect()
    gc.collect()
    assert log == ["Node"]


def test_live_object_in_a_generator_of_a_garbage_fiber_is_not_finalized() -> None:
    """A reference that the collector is shown twice makes a live object look like garbage."""
    log = []
    main = current()

    class Watched:
        def __del__(self) -> None:
            log.append("finalized")

    def generate(held: Any) -> Iterator[Any]:
        main.switch()
        yield held

    def work(box: list[Any], fresh: list[Any]) -> None:
        next(generate(fresh.pop()))

    watched = Watched()
    gone = weakref.ref(watched, log.append)
    box: list[Any] = []
    box.append(Fiber(work, (box, [watched])))
    box[0].switch()
    del box
    gc.collect()
    assert log == []
    assert gone() is watched


def test_cycles_through_suspended_fibers_do_no_harm_anywhere(child: Child) -> None:
    """Where they are not collected, they are unwound at exit."""
    done = child(
        """
        import gc
        from pyfiber import Fiber, current
        main = current()
        def work(box):
            try:
                main.switch()
            finally:
                print("unwound", len(box))
        for _ in range(3):
            box = []
            box.append(Fiber(work, (box,)))
            box[0].switch()
        del box
        gc.collect()
        gc.collect()
        print("end of the program")
        """
    )
    assert done.stdout.count("unwound 1") == 3
    assert done.stdout.count("end of the program") == 1


def test_values_held_only_by_suspended_frames_are_not_collected() -> None:
    main = current()

    def work() -> list[Any]:
        held = Node(value=[1])
        held.itself = held
        alive = weakref.ref(held)
        main.switch()
        return [held.value, alive() is held]

    fibers = [Fiber(work) for _ in range(50)]
    for fiber in fibers:
        fiber.switch()
    for generation in (0, 1, 2):
        gc.collect(generation)
    assert [fiber.switch() for fiber in fibers] == [[[1], True]] * 50


def test_values_on_the_evaluation_stack_are_not_collected() -> None:
    main = current()

    def work() -> list[Any]:
        # The first list is on the stack only, while the second element is computed.
        return [[Node(), Node()], main.switch(), [Node()]]

    fiber: Fiber[list[Any]] = Fiber(work)
    fiber.switch()
    gc.collect()
    made = fiber.switch()
    assert [type(node) for node in made[0]] == [Node, Node]


def test_deep_suspended_stack_is_traversed() -> None:
    main = current()

    def down(depth: int) -> int:
        held = [depth]
        if depth:
            down(depth - 1)
        else:
            main.switch()
        return held[0]

    fibers = [Fiber(down, (800,)) for _ in range(5)]
    for fiber in fibers:
        fiber.switch()
    gc.collect()
    assert [fiber.switch() for fiber in fibers] == [800] * 5


# ---------------------------------------------------------------- collecting always


@pytest.mark.usefixtures("_every_allocation")
def test_collector_runs_at_every_switch() -> None:
    main = current()

    def work(number: int) -> Any:
        kept: list[Any] = []
        for step in range(30):
            kept.append({"step": [step]})
            main.switch([number, (step,)])
        return kept[-1]

    fibers = [Fiber(work, (n,)) for n in range(10)]
    for step in range(30):
        assert [fiber.switch() for fiber in fibers] == [[n, (step,)] for n in range(10)]
    assert [fiber.switch() for fiber in fibers] == [{"step": [29]}] * 10


@pytest.mark.usefixtures("_every_allocation")
def test_collector_runs_while_fibers_are_made_dropped_and_fail() -> None:
    main = current()
    ended = 0

    def work(number: int) -> None:
        nonlocal ended
        try:
            main.switch([number])
            raise KeyError([number])
        finally:
            ended += 1

    for number in range(200):
        fiber = Fiber(work, (number,))
        assert fiber.switch() == [number]
        if number % 2:
            with pytest.raises(KeyError):
                fiber.switch()
        del fiber
    gc.collect()
    assert ended == 200


@pytest.mark.usefixtures("_every_allocation")
def test_collector_runs_inside_of_frame_and_stack() -> None:
    main = current()

    def work() -> None:
        here = [1]
        main.switch(here)

    for _ in range(20):
        fiber: Fiber[None] = Fiber(work)
        fiber.switch()
        assert fiber.frame is not None
        assert fiber.frame.f_locals["here"] == [1]
        assert len(fiber.stack()) == 1
        fiber.switch()


# -------------------------------------------------- switching inside of the collector


def collect_with_finalizer(action: Any) -> list[Any]:
    """Let the collector run `action` in a __del__; what came of it."""
    log: list[Any] = []

    class Trap:
        def __del__(self) -> None:
            try:
                log.append(action())
            except FiberError as error:
                log.append(error)

    trap: Any = Trap()
    trap.itself = trap
    del trap
    gc.collect()
    return log


def test_switching_in_a_finalizer_of_the_collector_raises() -> None:
    fiber = parked()
    log = collect_with_finalizer(fiber.switch)
    assert len(log) == 1
    assert "garbage collector" in str(log[0])
    assert fiber.state == "parked"
    assert fiber.switch(1) == 1


def test_throwing_in_a_finalizer_of_the_collector_raises() -> None:
    fiber = parked()
    (error,) = collect_with_finalizer(lambda: fiber.throw(KeyError))
    assert isinstance(error, FiberError)
    assert fiber.state == "parked"


def test_starting_a_fiber_in_a_finalizer_of_the_collector_raises() -> None:
    (error,) = collect_with_finalizer(lambda: Fiber(int).switch())
    assert isinstance(error, FiberError)


def test_switching_to_oneself_in_a_finalizer_of_the_collector_raises_or_does_nothing() -> None:
    (answer,) = collect_with_finalizer(lambda: current().switch(3))
    assert answer == 3 or isinstance(answer, FiberError)


def test_looking_at_fibers_in_a_finalizer_of_the_collector_works() -> None:
    fiber = parked()
    (answer,) = collect_with_finalizer(lambda: (fiber.state, repr(fiber), fiber.frame))
    assert answer[0] == "parked"


def test_dropping_a_suspended_fiber_in_a_finalizer_of_the_collector_unwinds_it() -> None:
    log = []
    main = current()

    def work() -> None:
        try:
            main.switch()
        finally:
            log.append("finally")

    box: list[Any] = [Fiber(work)]
    box[0].switch()
    collect_with_finalizer(box.clear)
    assert log == ["finally"]


def test_switching_in_a_weakref_callback_of_the_collector_raises() -> None:
    fiber = parked()
    log: list[Any] = []

    def gone(reference: Any) -> None:
        try:
            log.append(fiber.switch())
        except FiberError as error:
            log.append(error)

    node = Node()
    node.itself = node
    reference = weakref.ref(node, gone)
    del node
    gc.collect()
    assert reference() is None
    assert isinstance(log[0], FiberError)
    assert fiber.state == "parked"


def test_switching_is_allowed_again_after_the_collector() -> None:
    collect_with_finalizer(lambda: None)
    assert Fiber(lambda: 4).switch() == 4


def test_switching_in_a_finalizer_on_a_thread_without_fibers_raises() -> None:
    """The collector runs on a thread that has never used a fiber before."""
    log: list[Any] = []

    def thread() -> None:
        log.extend(collect_with_finalizer(lambda: Fiber(int).switch()))

    worker = threading.Thread(target=thread)
    worker.start()
    worker.join()
    assert isinstance(log[0], FiberError)


def test_switching_in_del_by_reference_count_works() -> None:
    log = []

    class Dying:
        def __del__(self) -> None:
            log.append(Fiber(lambda: "ran").switch())

    Dying()
    assert log == ["ran"]


def test_switching_in_a_weakref_callback_by_reference_count_works() -> None:
    log = []
    node = Node()
    reference = weakref.ref(node, lambda r: log.append(Fiber(lambda: "ran").switch()))
    del node
    assert reference() is None
    assert log == ["ran"]


def test_collection_inside_of_a_fiber_that_then_switches() -> None:
    main = current()

    def work() -> str:
        gc.collect()
        return main.switch("collected")

    fiber: Fiber[str] = Fiber(work)
    assert fiber.switch() == "collected"


def test_gc_callbacks_cleared_by_somebody_else() -> None:
    """Without the engine's own callback a switch may not be refused for ever."""
    before = gc.callbacks[:]
    seen: list[Any] = []

    def clear_while_collecting(phase: str, info: Any) -> None:
        if phase == "start":
            gc.callbacks.clear()

    gc.callbacks.append(clear_while_collecting)
    try:
        gc.collect()
        seen.append(Fiber(lambda: 1).switch())
        gc.collect()
        seen.append(Fiber(lambda: 2).switch())
    finally:
        gc.callbacks[:] = before
    assert seen == [1, 2]
    gc.collect()
    assert Fiber(lambda: 3).switch() == 3


def test_switching_in_a_gc_callback_raises_or_is_harmless() -> None:
    fiber = parked()
    log: list[Any] = []

    def callback(phase: str, info: Any) -> None:
        try:
            log.append(fiber.switch(phase))
        except FiberError as error:
            log.append(error)

    gc.callbacks.append(callback)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(callback)
    assert isinstance(log[0], FiberError)


# ------------------------------------------------------------------------ resurrection


def test_fiber_that_resurrects_itself_in_its_finally_block() -> None:
    saved: list[Any] = []
    main = current()

    def work() -> str:
        try:
            main.switch()
        finally:
            saved.append(current())
        return "never"

    fiber = Fiber(work)
    fiber.switch()
    del fiber
    assert len(saved) == 1
    assert saved[0].state == "done"
    with pytest.raises(FiberError):
        saved[0].switch()
    saved.clear()
    gc.collect()


def test_subclass_that_resurrects_itself_in_del() -> None:
    saved: list[Any] = []

    class Again(Fiber[int]):
        def __del__(self) -> None:
            saved.append(self)

    fiber = Again(lambda: 5)
    del fiber
    assert saved[0].switch() == 5
    saved.clear()


def test_frames_keep_their_values_when_the_fiber_is_unwound() -> None:
    main = current()

    def work() -> None:
        held = [1, 2]
        main.switch()
        held.clear()

    fiber = Fiber(work)
    fiber.switch()
    frame = fiber.frame
    del fiber
    assert frame is not None
    assert frame.f_locals["held"] == [1, 2]


def test_gc_freeze_and_get_objects_with_suspended_fibers() -> None:
    fibers = [parked() for _ in range(5)]
    gc.freeze()
    gc.unfreeze()
    tracked = [thing for thing in gc.get_objects() if type(thing) is Fiber]
    assert set(map(id, fibers)) <= set(map(id, tracked))
    for fiber in fibers:
        fiber.switch()


def test_fiber_whose_class_has_a_finalizer_is_not_lost_in_a_cycle_through_its_own_frame() -> None:
    """The collector would only call that, and the fiber never end: so it finds none such."""
    log = []

    class Finalized(Fiber[Any]):
        def __del__(self) -> None:
            log.append("__del__")

    def body(fiber: list[Any]) -> None:
        try:
            main.switch()
        finally:
            log.append(len(fiber))

    main = current()
    kept: list[Any] = []
    kept.append(Finalized(body, args=(kept,)))
    kept[0].switch()
    fiber = weakref.ref(kept[0])
    del kept
    gc.collect()
    assert fiber() is not None
    assert log == []
    fiber().throw(FiberExit)  # type: ignore[union-attr]
    gc.collect()
    assert log == [1, "__del__"]
    assert fiber() is None


@pytest.mark.parametrize("through", ["permit", "attribute", "context"])
def test_fiber_whose_class_has_a_finalizer_ends_when_a_cycle_with_it_is_collected(
    through: str,
) -> None:
    log = []

    class Finalized(Fiber[Any]):
        def __del__(self) -> None:
            log.append("__del__")

    def body() -> None:
        try:
            main.switch()
        finally:
            log.append("end")

    def make() -> weakref.ref[Any]:
        context = contextvars.copy_context()
        fiber = Finalized(body, context=context)
        fiber.switch()
        if through == "permit":
            fiber.unpark(fiber)
        elif through == "attribute":
            fiber.itself = fiber  # type: ignore[attr-defined]
        else:
            context.run(contextvars.ContextVar[Any]("itself").set, fiber)
        return weakref.ref(fiber)

    main = current()
    fiber = make()
    gc.collect()
    assert fiber() is None
    assert log == ["__del__", "end"]
    assert not [thing for thing in gc.get_objects() if type(thing).__name__ == "Finalized"]
