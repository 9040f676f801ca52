"""Greenlets and fibers of one thread nest: each may run inside the other."""

import gc
import weakref
from typing import Any

import pytest

import pyfiber
from pyfiber import Fiber, FiberError, current, run, sleep, spawn, yield_now
from pyfiber.greenlet import GreenletExit, error, getcurrent, greenlet
from tests.support.threads import PATIENCE, in_thread


def test_getcurrent_in_a_fiber_is_a_view_of_it():
    seen = []

    def body():
        view = getcurrent()
        assert getcurrent() is view
        seen.extend((view, view.parent, bool(view), view.dead))

    main = getcurrent()
    Fiber(body).switch()
    view, parent, active, dead = seen
    assert view is not main
    assert parent is main
    assert active
    assert not dead
    assert view.dead
    assert not view


def test_views_keep_attributes_for_as_long_as_the_fiber_lives():
    def body():
        getcurrent().mark = "mine"
        back.switch()
        return getcurrent().mark

    back = current()
    fiber = Fiber(body)
    fiber.switch()
    gc.collect()
    assert fiber.switch() == "mine"


def test_a_view_goes_with_its_fiber():
    def body():
        return weakref.ref(getcurrent())

    assert Fiber(body).switch()() is None


def test_a_view_has_no_run_and_a_fixed_parent():
    def body():
        view = getcurrent()
        with pytest.raises(AttributeError):
            _ = view.run
        with pytest.raises(AttributeError):
            view.run = print
        with pytest.raises(AttributeError, match="cannot set the parent"):
            view.parent = view

    Fiber(body).switch()


def test_a_greenlet_made_in_a_fiber_returns_to_the_fiber():
    def body():
        g = greenlet(lambda x: x + 1)
        assert g.parent is getcurrent()
        return g.switch(41)

    assert Fiber(body).switch() == 42


def test_an_exception_of_a_greenlet_reaches_the_fiber_that_entered_it():
    def body():
        with pytest.raises(ZeroDivisionError):
            greenlet(lambda: 1 / 0).switch()
        return "caught"

    assert Fiber(body).switch() == "caught"


def test_current_in_a_greenlet_is_a_fiber_that_can_be_switched_to():
    main = current()

    def body():
        fiber = current()
        assert fiber is not main
        got.append(main.switch(fiber))
        return "end"

    got = []
    g = greenlet(body)
    fiber = g.switch()
    assert fiber.state == "parked"
    assert g
    with pytest.raises(FiberError):
        fiber.start()
    assert fiber.switch("by fiber") == "end"
    assert got == ["by fiber"]
    assert g.dead
    assert fiber.state == "done"
    with pytest.raises(FiberError):
        fiber.switch()


def test_a_fiber_made_in_a_greenlet_returns_to_the_greenlet():
    def body():
        return Fiber(lambda: "inner").switch() + " outer"

    assert greenlet(body).switch() == "inner outer"


def test_exception_of_a_fiber_reaches_the_greenlet_that_entered_it():
    def body():
        with pytest.raises(KeyError):
            Fiber({}.__getitem__, ("no",)).switch()
        return "caught"

    assert greenlet(body).switch() == "caught"


def test_a_greenlet_is_reached_from_another_fiber():
    main = getcurrent()
    g = greenlet(lambda: main.switch("first") + " third")
    order = [g.switch()]

    def body():
        order.append("second")
        g.switch("and")
        order.append("never here")

    fiber = Fiber(body)
    # The greenlet's parent is the main greenlet, and there its result goes.
    assert fiber.switch() == "and third"
    assert order == ["first", "second"]
    assert fiber.state == "parked"


def test_switch_to_the_view_of_a_suspended_fiber():
    def body():
        views.append(getcurrent())
        return back.switch("suspended")

    views = []
    back = current()
    fiber = Fiber(body)
    assert fiber.switch() == "suspended"
    assert views[0].switch("value") == "value"
    assert fiber.done()


def test_greenlet_runs_inside_of_a_scheduled_fiber():
    def work(n):
        def body(x):
            return getcurrent().parent.switch(x) + 1

        g = greenlet(body)
        got = g.switch(n)
        yield_now()  # the greenlet is suspended meanwhile
        sleep(0)
        return g.switch(got)

    def main():
        return [f.result() for f in [spawn(work, n) for n in range(20)]]

    assert run(main) == [n + 1 for n in range(20)]


def test_a_greenlet_may_wait_on_the_scheduler_of_its_thread():
    order = []

    def other():
        order.append("other")

    def main():
        def body():
            spawn(other)
            sleep(0.001)
            order.append("slept")
            return pyfiber.park(timeout=PATIENCE)

        fibers = []

        def outer():
            fibers.append(current())
            return body()

        def wake():
            fibers[0].unpark("woken")

        spawn(lambda: (sleep(0.01), wake()))
        return greenlet(outer).switch()

    assert run(main) == "woken"
    assert order == ["other", "slept"]


# In processes of their own: a deadlock is found only where no other thread could end it.


def test_a_waiting_greenlet_that_nobody_refers_to_is_ended(child):
    child(
        """
        from pyfiber import DeadlockError, run, sleep
        from pyfiber.greenlet import GreenletExit, getcurrent, greenlet
        ended, children = [], []

        def body(_):
            children.pop().parent = getcurrent().parent
            try:
                sleep(10)
            except GreenletExit:
                ended.append(True)
                raise

        def main():
            # When the child ends nothing refers to its parent but the thread that runs it.
            children.append(greenlet(lambda: None, greenlet(body)))
            children[0].switch()

        try:
            run(main)
        except DeadlockError:
            assert ended == [True]
        else:
            raise SystemExit("no deadlock")
        """
    )


def test_a_greenlet_that_waits_when_its_run_ends_is_ended(child):
    child(
        """
        from pyfiber import DeadlockError, park, run, spawn
        from pyfiber.greenlet import GreenletExit, getcurrent, greenlet
        ended, kept = [], []

        def main():
            def body():
                spawn(here.switch, "left")
                try:
                    park()
                except GreenletExit:
                    ended.append(getcurrent() is kept[0])
                    raise

            here = getcurrent()
            kept.append(greenlet(body))
            assert kept[0].switch() == "left"

        try:
            run(main)
        except DeadlockError:
            assert ended == [True]
            assert kept[0].dead
        else:
            raise SystemExit("no deadlock")
        """
    )


def test_switching_to_a_fiber_that_waits_in_its_scheduler_is_refused():
    def waiter():
        views.append(getcurrent())
        pyfiber.park()

    def main():
        fiber = spawn(waiter)
        yield_now()
        with pytest.raises(error, match="waits in its scheduler"):
            views[0].switch()
        with pytest.raises(error, match="waits in its scheduler"):
            views[0].throw(ValueError)
        fiber.unpark()
        fiber.join()
        return "fine"

    views = []
    assert run(main) == "fine"


def test_switching_to_a_greenlet_that_runs_a_loop_is_refused():
    main = getcurrent()

    def scheduled():
        with pytest.raises(error, match="loop"):
            main.switch()
        return "fine"

    assert run(scheduled) == "fine"


def test_run_inside_of_a_greenlet():
    def body():
        return run(lambda: [f.result() for f in [spawn(lambda n=n: n) for n in range(3)]])

    g = greenlet(body)
    assert g.switch() == [0, 1, 2]
    assert g.dead


def test_last_reference_to_a_greenlet_that_runs_a_loop():
    def body():
        return run(inside)

    def inside():
        del held[0]
        gc.collect()
        yield_now()
        return "survived"

    held = [greenlet(body)]
    assert held[0].switch() == "survived"


def test_result_of_a_greenlet_whose_parents_are_over_goes_to_the_main_greenlet():
    def body():
        return greenlet(lambda: "late")

    g = Fiber(body).switch()  # its parent is the view of a fiber that is over
    assert g.parent.dead
    assert g.switch() == "late"


def test_switch_to_the_view_of_a_finished_fiber_goes_to_its_parent():
    view = Fiber(getcurrent).switch()
    assert view.dead
    assert view.switch("to main") == "to main"


def test_no_greenlet_switch_in_a_done_callback():
    caught = []

    def callback(fiber):
        try:
            greenlet(lambda: None).switch()
        except error as e:
            caught.append(str(e))

    def main():
        fiber = spawn(lambda: None)
        fiber.add_done_callback(callback)
        fiber.join()

    run(main)
    assert len(caught) == 1
    assert "done-callback" in caught[0]


def test_a_dropped_fiber_with_a_view_is_unwound_by_the_collector():
    ended = []

    def body():
        getcurrent()
        try:
            back.switch()
        finally:
            ended.append(True)

    back = current()
    fiber = Fiber(body)
    fiber.switch()
    del fiber
    gc.collect()  # the fiber and its view refer to each other
    assert ended == [True]


def test_fibers_switch_while_another_is_left_inside_the_collector():
    log = []

    class Garbage:
        def __init__(self):
            self.me = self

        def __del__(self):
            log.append(getcurrent().parent.switch("from the collector"))
            with pytest.raises(FiberError, match="garbage collector"):
                Fiber(int).switch()

    def body():
        Garbage()
        gc.collect()
        return "collected"

    collecting = Fiber(body, own_stack=True)  # or it has to stay where others are at home, too
    other = Fiber(lambda: current().parent.switch("fiber"))
    assert collecting.switch() == "from the collector"
    assert other.switch() == "fiber"
    assert other.switch("ended") == "ended"
    assert run(lambda: spawn(sleep, 0).join())
    assert collecting.switch("back") == "collected"
    assert log == ["back"]
    assert Fiber(int).switch() == 0


def test_dropping_a_greenlet_inside_of_a_fiber():
    def body():
        g = greenlet(inner)
        g.switch()
        del g
        return seen

    def inner():
        try:
            getcurrent().parent.switch()
        except GreenletExit:
            seen.append(getcurrent().parent)
            raise

    seen = []
    Fiber(body).switch()
    assert len(seen) == 1


def test_cancelled_fiber_with_a_suspended_greenlet():
    def work():
        g = greenlet(lambda: getcurrent().parent.switch())
        g.switch()
        try:
            sleep(10)
        finally:
            g.switch()
            assert g.dead

    def main():
        fiber = spawn(work)
        yield_now()
        fiber.cancel()
        fiber.join()
        return fiber.cancelled()

    assert run(main)


def test_cancelling_a_fiber_while_its_greenlet_runs():
    def work():
        fiber = current()

        def body():
            fiber.cancel("from its greenlet")
            return "went on"

        assert greenlet(body).switch() == "went on"
        sleep(10)

    def main():
        fiber = spawn(work)
        fiber.join()
        return fiber.cancelled()

    assert run(main)


def test_locals_are_each_greenlets_own_and_go_with_it():
    class Thing:
        pass

    def body():
        own.thing = thing = Thing()
        return weakref.ref(thing)

    own = pyfiber.local()
    own.thing = "main's"
    assert greenlet(body).switch()() is None
    assert own.thing == "main's"


def test_done_callback_of_a_greenlets_fiber():
    done = []

    def body():
        current().add_done_callback(done.append)
        return "result"

    assert greenlet(body).switch() == "result"
    assert [fiber.done() for fiber in done] == [True]


def test_a_scope_inside_of_a_greenlet():
    def main():
        def body():
            with pyfiber.move_on_after(0.001) as scope:
                sleep(10)
            return scope.cancelled()

        return greenlet(body).switch()

    assert run(main)


def test_many_greenlets_and_fibers_mixed():
    def layer(n):
        if n == 0:
            return 0
        if n % 2:
            return greenlet(layer).switch(n - 1) + 1
        return Fiber(layer, (n - 1,)).switch() + 1

    assert layer(60) == 60


def test_frame_of_a_fiber_that_is_just_ending_is_none() -> None:
    """It still runs, on its stack, but it is over: there is no place where it is suspended."""
    views: list[Any] = []
    frames: list[Any] = []
    fiber = Fiber(lambda: views.append(getcurrent()))
    fiber.add_done_callback(lambda _: frames.append(views[0].gr_frame))
    fiber.switch()
    assert frames == [None]


class WithDel(Fiber[Any]):
    def __del__(self):  # in place of what would unwind it
        pass


@pytest.mark.parametrize(
    ("sort", "collect"),
    [
        (Fiber, lambda collect: collect()),
        (WithDel, lambda collect: collect()),
        (Fiber, in_thread),
        (WithDel, in_thread),
    ],
)
def test_fiber_that_asked_for_its_view_is_unwound_when_it_is_garbage(sort, collect):
    def body():
        getcurrent()
        try:
            back.switch()
        finally:
            log.append("unwound")

    log = []
    back = current()
    fiber = sort(body)
    fiber.switch()
    del fiber
    collect(gc.collect)
    Fiber(int).switch()  # ends what another thread has dropped
    gc.collect()
    assert log == ["unwound"]


def test_keyword_arguments_of_a_greenlet_that_waits_are_dropped():
    class Kept:
        pass

    def body(*, kept):
        sleep(0)
        sleep(0.001)

    def main():
        kept = Kept()
        gone = weakref.ref(kept)
        greenlet(body).switch(kept=kept)
        del kept
        return gone()

    assert run(main) is None
