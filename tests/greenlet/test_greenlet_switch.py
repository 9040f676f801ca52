"""pyfiber.greenlet: what a switch carries, where it leads, how greenlets end."""

import gc
import sys

import pytest

from pyfiber.greenlet import GreenletExit, error, getcurrent, gettrace, greenlet, settrace
from tests.support.threads import in_thread


def echo(first=()):
    """A greenlet that gives back what it gets, until it gets "stop"."""
    value = first
    while value != "stop":
        value = getcurrent().parent.switch(value)
    return "stopped"


def suspended():
    g = greenlet(echo)
    g.switch()
    return g


# what is carried ------------------------------------------------------------------------------


def test_no_argument_arrives_as_the_empty_tuple():
    assert suspended().switch() == ()


def test_one_argument_arrives_as_it_is():
    value = object()
    assert suspended().switch(value) is value


@pytest.mark.parametrize("value", [(1, 2), (1,), (), {}, None])
def test_one_argument_that_is_a_container_is_not_taken_apart(value):
    assert suspended().switch(value) == value


def test_several_arguments_arrive_as_a_tuple():
    assert suspended().switch(1, 2, 3) == (1, 2, 3)


def test_keywords_arrive_as_a_dict():
    assert suspended().switch(a=1) == {"a": 1}


def test_arguments_and_keywords_arrive_as_a_pair():
    assert suspended().switch(1, a=2) == ((1,), {"a": 2})


def test_empty_keywords_are_none():
    nothing = {}
    assert suspended().switch(1, **nothing) == 1


def test_a_new_greenlet_is_called_with_them():
    assert greenlet(lambda *args, **kw: (args, kw)).switch(1, 2, a=3) == ((1, 2), {"a": 3})
    assert greenlet(lambda *args: args).switch() == ()
    assert greenlet(lambda *args: args).switch(None) == (None,)


def test_switching_to_oneself_returns_the_argument():
    g = getcurrent()
    assert g.switch(5) == 5
    assert g.switch() == ()
    with pytest.raises(ValueError, match="mine"):
        g.throw(ValueError("mine"))


def test_arguments_are_dropped_while_the_sender_is_suspended():
    class Thing:
        pass

    def receiver(x):
        here.append(sys.getrefcount(x))
        del x
        getcurrent().parent.switch()

    here = []
    thing = Thing()
    before = sys.getrefcount(thing)
    g = greenlet(receiver)
    g.switch(thing)
    g.switch()
    assert sys.getrefcount(thing) == before


# where it leads -------------------------------------------------------------------------------


def test_a_dead_greenlet_passes_on_to_its_parent():
    g = greenlet(lambda: None)
    g.switch()
    assert g.switch("back") == "back"
    assert g.switch() == ()


def test_a_dead_greenlet_starts_a_parent_that_is_new():
    parent = greenlet(lambda x, y=0: x + y)
    child = greenlet(lambda: None)
    child.switch()
    child.parent = parent
    assert child.switch(1, y=2) == 3
    assert parent.dead


def test_the_result_starts_a_parent_that_is_new():
    assert greenlet(lambda: 20, greenlet(lambda x: x + 1)).switch() == 21


def test_a_greenlet_exit_starts_a_parent_that_is_new_with_it():
    exit = GreenletExit("x")
    child = greenlet(lambda: None, greenlet(lambda *args: args))
    assert child.throw(exit) == (exit,)
    assert child.dead
    child.parent = greenlet(lambda *args: args)
    assert child.throw(exit) == (exit,)


def test_an_exception_goes_past_a_parent_that_is_new():
    ran = []
    parent = greenlet(ran.append)
    with pytest.raises(ZeroDivisionError):
        greenlet(lambda: 1 / 0, parent).switch()
    assert ran == []
    assert parent.dead


def test_a_parent_without_run_raises_in_its_own_parent():
    with pytest.raises(AttributeError, match="run"):
        greenlet(lambda: 1, greenlet()).switch()


def test_parent_changed_while_running():
    def body():
        getcurrent().parent = other
        return "result"

    def take():
        return ("other", getcurrent().parent.switch("ready"))

    other = greenlet(take)
    assert other.switch() == "ready"
    assert greenlet(body).switch() == ("other", "result")


def test_run_of_a_subclass_wins_over_the_argument():
    class Sub(greenlet):
        def run(self, x):
            return ("method", x)

    assert Sub(lambda x: x).switch(1) == ("method", 1)


def test_run_is_looked_up_at_the_start():
    g = greenlet()
    with pytest.raises(AttributeError):
        g.switch()
    assert not g.dead
    g.run = lambda: "late"
    assert g.switch() == "late"


def test_a_computed_run_that_starts_the_greenlet_first():
    class Sub(greenlet):
        started = False

        @property
        def run(self):
            if not self.started:
                self.started = True
                assert self.switch("first") == "from first"
            return body

    def body(value):
        return getcurrent().parent.switch("from " + value)

    # The inner switch started it, so the outer one is what its own switch returns.
    assert Sub().switch("second") == "second"


def test_run_that_raises_leaves_the_greenlet_new():
    class Sub(greenlet):
        @property
        def run(self):
            raise LookupError("not now")

    g = Sub()
    with pytest.raises(LookupError):
        g.switch(1)
    with pytest.raises(LookupError):
        g.throw(ValueError)
    assert not g.dead
    assert not g


def test_a_chain_of_ends():
    def body(n):
        return n if n == 0 else greenlet(body).switch(n - 1) + 1

    assert greenlet(body).switch(200) == 200


def test_a_ring_of_greenlets():
    ring = [greenlet(lambda i=i: hop(i)) for i in range(50)]
    count = 0

    def hop(i):
        nonlocal count
        while count < 5000:
            count += 1
            ring[(i + 1) % 50].switch()
        return "done"

    assert ring[0].switch() == "done"
    assert count == 5000


# throw ----------------------------------------------------------------------------------------


def catching():
    while True:
        try:
            getcurrent().parent.switch()
        except Exception as e:
            getcurrent().parent.switch(e)


def test_throw_takes_a_class_a_value_or_an_instance():
    g = greenlet(catching)
    g.switch()
    for arguments in [(KeyError,), (KeyError, "k"), (KeyError, ("a", "b")), (KeyError("k"),)]:
        e = g.throw(*arguments)
        assert type(e) is KeyError
        g.switch()
    assert g.throw(KeyError, ("a", "b")).args == ("a", "b")


def test_throw_with_a_traceback():
    try:
        raise KeyError
    except KeyError as e:
        tb = e.__traceback__
    with pytest.raises(ValueError, match="v") as info:
        greenlet(lambda: None).throw(ValueError, "v", tb)
    frames = []
    at = info.value.__traceback__
    while at is not None:
        frames.append(at)
        at = at.tb_next
    assert frames[-1].tb_lineno == tb.tb_lineno


@pytest.mark.parametrize("pack", [lambda e: (e,), lambda e: (KeyError, e)])
def test_thrown_instance_begins_a_new_traceback(pack):
    def names(tb):
        while tb is not None:
            yield tb.tb_frame.f_code.co_name
            tb = tb.tb_next

    def raise_it():
        raise exc

    exc = KeyError()
    with pytest.raises(KeyError):
        raise_it()
    for _ in range(3):
        with pytest.raises(KeyError) as info:
            suspended().throw(*pack(exc))
        found = list(names(info.value.__traceback__))
        assert found[-1] == "echo"
        assert "raise_it" not in found
        assert found.count("echo") == 1


@pytest.mark.parametrize(
    "arguments",
    [(1,), ("text",), (KeyError(), "value"), (KeyError, None, "no traceback"), (int,)],
)
def test_throw_checks_its_arguments_first(arguments):
    g = suspended()
    with pytest.raises(TypeError):
        g.throw(*arguments)
    assert g.switch("still there") == "still there"


def test_throw_into_a_new_greenlet_goes_to_its_parent():
    g = greenlet(lambda: None)
    with pytest.raises(KeyError):
        g.throw(KeyError)
    assert g.dead


def test_throw_into_a_dead_greenlet():
    g = greenlet(lambda: None)
    g.switch()
    with pytest.raises(KeyError):
        g.throw(KeyError)
    assert isinstance(g.throw(), GreenletExit)
    exit = GreenletExit("x")
    assert g.throw(exit) is exit


def test_greenlet_exit_becomes_the_result():
    class Own(GreenletExit):
        pass

    def body():
        raise Own("bye")

    result = greenlet(body).switch()
    assert type(result) is Own
    assert result.args == ("bye",)
    g = suspended()
    assert isinstance(g.throw(), GreenletExit)
    assert g.dead


def test_no_exception_is_being_handled_in_a_new_greenlet():
    def body():
        return sys.exc_info()[0], sys.exception()

    try:
        raise KeyError
    except KeyError:
        assert greenlet(body).switch() == (None, None)
        assert sys.exc_info()[0] is KeyError


def test_a_switch_keeps_the_exception_being_handled():
    def body():
        try:
            raise ValueError
        except ValueError:
            getcurrent().parent.switch()
            return sys.exc_info()[0]

    g = greenlet(body)
    g.switch()
    assert sys.exc_info()[0] is None
    try:
        raise KeyError
    except KeyError:
        assert g.switch() is ValueError
        assert sys.exc_info()[0] is KeyError


# threads --------------------------------------------------------------------------------------


def test_switch_on_another_thread_is_refused():
    g = suspended()
    new = greenlet(echo)
    for target in (g, new, getcurrent()):
        with pytest.raises(error, match=r"different thread\n\tCurrent:  <.*>\n\tExpected: <.*>"):
            in_thread(target.switch)
        with pytest.raises(error, match="different thread"):
            in_thread(lambda target=target: target.throw(KeyError))
    assert g.switch(1) == 1
    assert new.switch() == ()


def test_switch_to_a_greenlet_of_a_thread_that_has_exited():
    g = in_thread(suspended)
    for target in (g, in_thread(lambda: greenlet(echo)), in_thread(getcurrent)):
        with pytest.raises(error, match="which happens to have exited"):
            target.switch()


def test_each_thread_has_a_main_greenlet():
    assert in_thread(getcurrent) is not getcurrent()
    assert in_thread(lambda: greenlet(getcurrent).switch().parent) is not getcurrent()


# tracing --------------------------------------------------------------------------------------


def test_trace_tells_of_every_switch():
    gc.collect()  # what other tests left ends without being told of here
    events = []
    main = getcurrent()
    assert settrace(lambda event, pair: events.append((event, *pair))) is None
    try:
        g = greenlet(echo)
        g.switch()
        g.switch("stop")
        bad = greenlet(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bad.switch()
        with pytest.raises(KeyError):
            main.throw(KeyError)
    finally:
        settrace(None)
    assert events == [
        ("switch", main, g),
        ("switch", g, main),
        ("switch", main, g),
        ("switch", g, main),
        ("switch", main, bad),
        ("throw", bad, main),
        ("throw", main, main),
    ]


def test_trace_function_is_the_threads():
    def callback(event, pair):
        pass

    settrace(callback)
    try:
        assert gettrace() is callback
        assert in_thread(gettrace) is None
    finally:
        assert settrace(None) is callback
    assert gettrace() is None


def test_trace_function_that_raises_is_removed():
    def callback(event, pair):
        raise LookupError("in trace")

    g = suspended()
    settrace(callback)
    with pytest.raises(LookupError):
        g.switch()  # raised in the greenlet, which ends by it
    assert g.dead
    assert gettrace() is None


def test_trace_function_may_switch():
    order = []

    def callback(event, pair):
        settrace(None)
        order.append(greenlet(lambda: "inside").switch())

    settrace(callback)
    g = greenlet(lambda: "outside")
    order.append(g.switch())
    assert order == ["inside", "outside"]


def test_sys_settrace_hears_nothing_of_the_trace_function():
    def callback(event, pair):
        pass

    calls = []
    settrace(callback)
    sys.setprofile(lambda frame, event, arg: calls.append(frame.f_code.co_name))
    try:
        greenlet(lambda: None).switch()
    finally:
        sys.setprofile(None)
        settrace(None)
    assert "callback" not in calls
