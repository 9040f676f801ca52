"""pyfiber.greenlet: last references, the collector, threads and interpreters that end."""

import contextlib
import gc
import sys
import threading
import weakref

import pytest

from pyfiber import FiberError
from pyfiber.greenlet import GreenletExit, _greenlet, error, getcurrent, greenlet, settrace
from tests.support.gil import DROPS_ARE_QUEUED, needs_gil
from tests.support.threads import in_thread


class Witness:
    """Says that it is gone."""

    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("gone")


def waiting(log):
    """Waits in a greenlet; says how it was ended."""
    try:
        getcurrent().parent.switch()
    except BaseException as e:
        log.append(type(e))
        raise


# the last reference -------------------------------------------------------------------------


def test_dropping_a_suspended_greenlet_ends_it():
    log = []
    g = greenlet(waiting)
    g.switch(log)
    del g
    assert log == [GreenletExit]


def test_whoever_drops_it_is_its_parent_meanwhile():
    seen = []

    def body():
        try:
            main.switch()
        finally:
            seen.append(getcurrent().parent)

    def dropper():
        nonlocal g
        del g
        return getcurrent()

    main = getcurrent()
    g = greenlet(body)
    g.switch()
    assert greenlet(dropper).switch() is seen[0]


def test_dropping_does_not_disturb_the_exception_in_flight():
    def body():
        g = greenlet(waiting)
        g.switch([])
        raise KeyError("kept")

    with pytest.raises(KeyError, match="kept"):
        body()


def test_dropping_a_new_or_dead_greenlet_runs_nothing():
    ran = []
    g = greenlet(ran.append)
    del g
    g = greenlet(ran.append)
    g.switch(1)
    del g
    assert ran == [1]


def test_an_exception_of_a_dropped_greenlet_is_unraisable(monkeypatch):
    def body():
        try:
            getcurrent().parent.switch()
        except GreenletExit:
            raise KeyError("while ending") from None

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: seen.append(info.exc_value))
    g = greenlet(body)
    g.switch()
    del g
    assert [type(e) for e in seen] == [KeyError]


def test_a_greenlet_may_keep_itself_alive():
    kept = []

    def body():
        try:
            getcurrent().parent.switch()
        except GreenletExit:
            kept.append(getcurrent())
        return getcurrent().parent.switch("alive")

    g = greenlet(body)
    g.switch()
    del g
    assert len(kept) == 1
    assert kept[0]
    assert kept[0].switch("end") == "end"


def test_a_dropped_greenlet_may_become_the_parent_of_its_parent():
    kept = []

    def body(_):
        try:
            main.switch()
        except GreenletExit:
            parent.parent = getcurrent()  # whose parent is the one that dropped it
            kept.append(getcurrent())
            raise

    main = getcurrent()
    parent = greenlet(lambda value: value)
    g = greenlet(body, parent)
    g.switch(1)
    del g
    assert kept[0].dead
    assert kept[0].parent is main
    assert parent.switch(2) == 2


def test_a_greenlet_that_refuses_to_die_is_reported_and_kept(capsys):
    log = []

    def body():
        while not log:
            with contextlib.suppress(GreenletExit):
                getcurrent().parent.switch()

    main = getcurrent()
    g = greenlet(body)
    g.switch()
    ident = id(g)
    del g
    assert "GreenletExit did not kill <greenlet.greenlet object at" in capsys.readouterr().err
    left = [o for o in gc.get_objects() if id(o) == ident]
    log.append("stop")
    assert left[0].switch() is None
    assert getcurrent() is main


def test_subclass_with_del():
    log = []

    class Sub(greenlet):
        def __del__(self):
            log.append(bool(self))

    g = Sub(waiting)
    g.switch(log)
    del g
    assert log == [True, GreenletExit]  # as greenlet: __del__ comes first


def test_a_running_greenlet_that_nobody_refers_to_lives_on():
    def body():
        child.pop().parent = getcurrent().parent
        gc.collect()
        return getcurrent().parent.switch(weakref.ref(getcurrent()))

    child = []
    child.append(greenlet(lambda: None, greenlet(lambda _: body())))
    ref = child[0].switch()
    assert ref() is None  # ended once it was left


def test_the_class_of_dropped_greenlets_keeps_its_references():
    class Sub(greenlet):
        pass

    def body():
        try:
            getcurrent().parent.switch()
        except GreenletExit:
            kept.append(getcurrent())

    kept = []
    before = sys.getrefcount(Sub)
    for _ in range(10):
        Sub(body).switch()
    assert len(kept) == 10
    kept.clear()
    assert sys.getrefcount(Sub) == before


def test_a_value_on_its_way_survives_the_end_of_the_sender():
    def body():
        child.pop().parent = main
        try:
            main.switch("value")
        finally:
            log.append("ended")

    log, child, main = [], [], getcurrent()
    child.append(greenlet(lambda: None, greenlet(lambda _: body())))
    assert child[0].switch() == "value"
    assert log == ["ended"]


def test_locals_are_dropped_at_the_end():
    log = []

    def body():
        witness = Witness(log)
        getcurrent().parent.switch()
        return witness.log

    g = greenlet(body)
    g.switch()
    assert log == []
    del g
    assert log == ["gone"]


def test_arguments_and_result_are_dropped():
    log = []
    greenlet(lambda w: w).switch(Witness(log))
    assert log == ["gone"]
    greenlet(lambda *, w: w).switch(w=Witness(log))
    assert log == ["gone"] * 2


def test_dropping_thousands():
    log = []
    held = [greenlet(waiting) for _ in range(3000)]
    for g in held:
        g.switch(log)
    del g
    held.clear()
    assert log == [GreenletExit] * 3000


# the collector ------------------------------------------------------------------------------


def test_a_cycle_through_a_suspended_greenlets_dict_is_collected():
    log = []
    g = greenlet(waiting)
    g.me = [g]
    g.switch(log)
    del g
    gc.collect()
    assert log == [GreenletExit]


def test_switching_while_the_collector_runs():
    """A finalizer may switch: gevent's programs print and lock in them."""
    log = []

    class Garbage:
        def __init__(self):
            self.me = self

        def __del__(self):
            log.append(greenlet(lambda: getcurrent().parent.switch(1)).switch())

    Garbage()
    gc.collect()
    assert log == [1]


def test_leaving_the_collector_and_coming_back():
    log = []

    def work():
        main = getcurrent()

        class Garbage:
            def __init__(self):
                self.me = self

            def __del__(self):
                log.append(main.switch("from the collector"))

        def body():
            Garbage()
            gc.collect()
            return "collected"

        g = greenlet(body)
        assert g.switch() == "from the collector"
        trash = [[] for _ in range(5000)]
        for t in trash:
            t.append(t)
        del trash, t
        assert g.switch("back") == "collected"
        assert log == ["back"]

    in_thread(work)  # where nobody else is at home on the stack of `g`


# threads ------------------------------------------------------------------------------------


@needs_gil(DROPS_ARE_QUEUED)
def test_dropped_on_another_thread_it_is_ended_by_its_own():
    log = []
    g = greenlet(waiting)
    g.switch(log)
    holder = [g]
    del g
    in_thread(holder.clear)
    assert log == []
    getcurrent()
    assert log == [GreenletExit]


@pytest.mark.parametrize("act", [greenlet, lambda: greenlet(int).switch()])
def test_other_calls_end_what_other_threads_dropped(act):
    log = []
    holder = [greenlet(waiting)]
    holder[0].switch(log)
    in_thread(holder.clear)
    act()
    assert log == [GreenletExit]


def test_dropped_for_a_thread_that_ends_before_its_next_switch():
    log = []
    dropped, ready = threading.Event(), threading.Event()
    holder = []

    def body():
        holder.append(greenlet(waiting))
        holder[0].switch(log)
        ready.set()
        dropped.wait(10)

    thread = threading.Thread(target=body)
    thread.start()
    ready.wait(10)
    holder.clear()
    dropped.set()
    thread.join()
    assert log == [GreenletExit]


def test_a_greenlet_whose_thread_has_ended_is_dead_and_its_frames_are_there():
    log = []

    def body():
        g = greenlet(waiting)
        g.switch(log)
        return g

    g = in_thread(body)
    assert g.dead
    assert not g
    assert log == []  # nobody raised anything in it
    assert g.gr_frame.f_code is waiting.__code__
    assert g.gr_frame.f_back is None
    with pytest.raises(error, match="exited"):
        g.throw(KeyError)
    frame = g.gr_frame
    del g
    assert frame.f_code is waiting.__code__  # its memory stays as long as the frame
    assert log == []


def test_a_trace_function_set_by_the_finalizer_of_another_goes_with_its_thread():
    class Tracer:
        def __init__(self, heir=None):
            self.heir = heir

        def __call__(self, event, pair):
            pass

        def __del__(self):
            if self.heir is not None:
                with contextlib.suppress(FiberError):  # too late
                    settrace(self.heir())

    made = []

    def heir():
        tracer = Tracer()
        made.append(weakref.ref(tracer))
        return tracer

    in_thread(lambda: settrace(Tracer(heir)))
    assert [ref() for ref in made] == [None]


def test_main_greenlets_go_with_their_threads():
    before = _greenlet.get_total_main_greenlets()
    refs = [in_thread(lambda: weakref.ref(getcurrent())) for _ in range(5)]
    assert [ref() for ref in refs] == [None] * 5
    assert _greenlet.get_total_main_greenlets() == before
    assert _greenlet.get_pending_cleanup_count() == 0


def test_stacks_of_ended_threads_are_given_back():
    def body():
        held = [greenlet(waiting) for _ in range(200)]
        for g in held:
            g.switch([])
        return held

    for _ in range(50):  # 10,000 stacks of a MiB of addresses each
        in_thread(body)


def test_many_threads_drop_each_others_greenlets():
    log = []
    held = []
    lock = threading.Lock()

    def body():
        for _ in range(200):
            g = greenlet(waiting)
            g.switch(log)
            with lock:
                held.append(g)
                del g
                other = held.pop(0) if len(held) > 8 else None
            del other
            getcurrent()

    threads = [threading.Thread(target=body) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    held.clear()
    assert set(log) <= {GreenletExit}


# the end of the interpreter -----------------------------------------------------------------


def test_exit_with_suspended_greenlets_is_quiet(child):
    done = child(
        """
        from pyfiber.greenlet import greenlet, getcurrent
        import threading, sys
        def body():
            try:
                getcurrent().parent.switch()
            finally:
                print("ended")
        held = [greenlet(body) for _ in range(5)]
        for g in held: g.switch()
        def thread():
            g = greenlet(body); g.switch(); held.append(g)
        t = threading.Thread(target=thread); t.start(); t.join()
        print("exit")
        """
    )
    assert done.stdout.splitlines()[0] == "exit"


def test_getcurrent_at_exit_and_after(child):
    done = child(
        """
        import atexit
        def late():
            from pyfiber.greenlet import greenlet, getcurrent
            print(type(getcurrent()).__name__, greenlet(lambda: 5).switch())
        atexit.register(late)
        import pyfiber.greenlet
        class Last:
            def __del__(self, getcurrent=pyfiber.greenlet.getcurrent, print=print):
                try:
                    getcurrent()
                except RuntimeError as e:
                    print(e)
        import sys
        sys.modules["kept"] = Last()
        """
    )
    assert done.stdout.splitlines() == ["greenlet 5", "greenlet is being finalized"]


def test_exit_while_a_greenlet_runs(child):
    done = child(
        """
        import sys
        from pyfiber.greenlet import greenlet
        greenlet(sys.exit).switch(7)
        """,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, "")


def test_fork_inside_of_a_greenlet(child):
    if not hasattr(__import__("os"), "fork"):
        pytest.skip("no fork")
    done = child(
        """
        import os
        from pyfiber.greenlet import greenlet, getcurrent
        def body():
            pid = os.fork()
            if pid == 0:
                getcurrent().parent.switch("child")
                os._exit(3)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        g = greenlet(body)
        got = g.switch()
        if got == "child":
            g.switch()
        print(got)
        """
    )
    assert done.stdout.split() == ["3"]
