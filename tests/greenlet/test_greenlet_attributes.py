"""pyfiber.greenlet: the type and what a greenlet shows."""

import contextvars
import copy
import gc
import inspect
import pickle
import weakref

import pytest

import pyfiber.greenlet
from pyfiber.greenlet import GreenletExit, error, getcurrent, gettrace, greenlet, settrace
from tests.support.threads import in_thread

VAR = contextvars.ContextVar("VAR", default=None)


def suspended(*args):
    def body(*args):
        return getcurrent().parent.switch(*args)

    g = greenlet(body)
    g.switch(*args)
    return g


def test_layout_is_greenlets():
    word = tuple.__itemsize__
    assert greenlet.__basicsize__ == object.__basicsize__ + 3 * word
    assert greenlet.__weakrefoffset__ == object.__basicsize__
    assert greenlet.__dictoffset__ == object.__basicsize__ + word


def test_names():
    assert (greenlet.__module__, greenlet.__name__) == ("greenlet", "greenlet")
    assert error.__mro__[1] is Exception
    assert GreenletExit.__mro__[1] is BaseException
    for name in ("getcurrent", "error", "GreenletExit", "settrace", "gettrace"):
        assert getattr(greenlet, name) is getattr(pyfiber.greenlet, name)
    for name in pyfiber.greenlet.__all__:
        assert hasattr(pyfiber.greenlet, name)
    assert "install" not in pyfiber.greenlet.__all__  # `from greenlet import *` is a program's
    assert greenlet.getcurrent() is getcurrent()
    assert settrace is not gettrace


def test_optional_cleanup_is_switched_off_and_on():
    assert pyfiber.greenlet.get_clocks_used_doing_optional_cleanup() == 0
    pyfiber.greenlet.enable_optional_cleanup(False)
    assert pyfiber.greenlet.get_clocks_used_doing_optional_cleanup() is None
    pyfiber.greenlet.enable_optional_cleanup(True)
    assert pyfiber.greenlet.get_clocks_used_doing_optional_cleanup() == 0


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1, 2, 3), {}), ((), {"what": 1}), ((None, 5), {}), ((), {"parent": "p"})],
)
def test_constructor_refuses(args, kwargs):
    with pytest.raises(TypeError):
        greenlet(*args, **kwargs)


def test_constructor_takes_names():
    parent = greenlet()
    g = greenlet(run=len, parent=parent)
    assert g.run is len
    assert g.parent is parent
    assert greenlet(len, None).parent is getcurrent()
    assert greenlet(None).run is None


def test_subclass_with_an_init_of_its_own():
    class Sub(greenlet):
        def __init__(self, value):
            super().__init__(parent=getcurrent())
            self.value = value

        def run(self):
            return self.value

    assert Sub(5).switch() == 5


def test_subclass_with_slots():
    class Sub(greenlet):
        __slots__ = ("x",)

    g = Sub(lambda: g.x)
    g.x = 1
    assert g.switch() == 1


def test_state_as_truth_and_dead():
    g = greenlet(lambda: getcurrent().parent.switch())
    assert (bool(g), g.dead) == (False, False)
    g.switch()
    assert (bool(g), g.dead) == (True, False)
    g.switch()
    assert (bool(g), g.dead) == (False, True)
    assert getcurrent()


def test_repr_tells_the_state():
    assert repr(greenlet()).endswith(" pending>")
    assert repr(getcurrent()).endswith(" current active started main>")
    g = suspended()
    assert repr(g).endswith(" suspended active started>")
    g.switch()
    assert repr(g).endswith(") dead>")
    gone = in_thread(getcurrent)
    assert repr(gone).endswith(" (thread exited) dead>")
    assert repr(g).startswith("<greenlet.greenlet object at 0x")


def test_run_can_be_set_and_deleted_before_the_start_only():
    g = greenlet(len)
    del g.run
    with pytest.raises(AttributeError):
        _ = g.run
    g.run = lambda: getcurrent().parent.switch()
    g.switch()
    with pytest.raises(AttributeError):
        _ = g.run
    with pytest.raises(AttributeError, match="run cannot be set after the start of the greenlet"):
        g.run = len
    main = getcurrent()
    with pytest.raises(AttributeError):
        _ = main.run
    with pytest.raises(AttributeError):
        main.run = len
    g.switch()


def test_parent_is_checked():
    g, h = greenlet(), greenlet()
    with pytest.raises(TypeError, match="not int"):
        g.parent = 1
    with pytest.raises(ValueError, match="cyclic parent chain"):
        g.parent = g
    g.parent = h
    with pytest.raises(ValueError, match="cyclic parent chain"):
        h.parent = g
    with pytest.raises(AttributeError, match="can't delete attribute"):
        del g.parent
    with pytest.raises(AttributeError, match="cannot set the parent of a main greenlet"):
        getcurrent().parent = g
    assert getcurrent().parent is None


def test_parent_of_another_thread():
    other = in_thread(getcurrent)
    g = suspended()
    with pytest.raises(ValueError, match="parent cannot be on a different thread"):
        g.parent = other
    fresh = greenlet(lambda: None)
    fresh.parent = other  # allowed, and found out at the start
    with pytest.raises(error, match="exited"):
        fresh.switch()


def test_a_class_attribute_may_shadow_the_parent():
    class Sub(greenlet):
        parent = None

    assert Sub(lambda: 5).switch() == 5


def test_dict():
    g = greenlet()
    assert g.__dict__ == {}
    g.a = 1
    assert g.__dict__ == {"a": 1}
    g.__dict__ = {"b": 2}
    assert g.b == 2
    with pytest.raises(TypeError):
        g.__dict__ = 5
    with pytest.raises(TypeError):
        del g.__dict__


def test_weak_references():
    g = greenlet()
    ref = weakref.ref(g)
    assert ref() is g
    del g
    assert ref() is None


@pytest.mark.parametrize("fn", [copy.copy, copy.deepcopy, pickle.dumps])
def test_neither_copied_nor_pickled(fn):
    with pytest.raises(TypeError, match="greenlet"):
        fn(greenlet())


def test_exceptions_are_pickled(child):
    child(
        """
        import pickle, pyfiber.greenlet
        pyfiber.greenlet.install()
        from greenlet import GreenletExit, error
        for e in (GreenletExit("x"), error("y")):
            copy = pickle.loads(pickle.dumps(e))
            assert (type(copy), copy.args) == (type(e), e.args)
        """
    )


def test_frame_is_where_it_is_suspended():
    def body():
        inner()

    def inner():
        getcurrent().parent.switch()

    g = greenlet(body)
    assert g.gr_frame is None
    g.switch()
    frame = g.gr_frame
    assert [f.f_code.co_name for f in (frame, frame.f_back)] == ["inner", "body"]
    assert frame.f_back.f_back is None
    assert inspect.getframeinfo(frame).function == "inner"
    g.switch()
    assert g.gr_frame is None
    assert getcurrent().gr_frame is None


def test_frame_of_a_suspended_main_greenlet():
    main = getcurrent()
    assert greenlet(lambda: main.gr_frame.f_code.co_name).switch() == (
        "test_frame_of_a_suspended_main_greenlet"
    )


def test_stack_saved_is_nothing():
    assert suspended()._stack_saved == 0


# context --------------------------------------------------------------------------------------


def test_a_greenlet_starts_with_an_empty_context():
    VAR.set("creator's")
    g = greenlet(VAR.get)
    assert g.gr_context is None
    assert g.switch() is None


def test_context_can_be_set_in_any_state():
    def body():
        got = [VAR.get()]
        getcurrent().gr_context = None
        got.append(VAR.get())
        got.append(getcurrent().parent.switch() or VAR.get())
        return got

    def with_value(value):
        context = contextvars.copy_context()
        context.run(VAR.set, value)
        return context

    g = greenlet(body)
    g.gr_context = first = with_value(1)
    assert g.gr_context is first
    g.switch()
    g.gr_context = second = with_value(2)
    assert g.gr_context is second
    assert g.switch() == [1, None, 2]
    assert g.gr_context is second  # the last one stays
    g.gr_context = None
    assert g.gr_context is None


def test_context_is_made_at_first_use():
    def body():
        assert getcurrent().gr_context is None
        VAR.set(1)
        return getcurrent().gr_context[VAR]

    assert greenlet(body).switch() == 1


def test_context_refuses():
    g = greenlet()
    with pytest.raises(TypeError):
        g.gr_context = 5
    with pytest.raises(AttributeError, match="can't delete context attribute"):
        del g.gr_context
    main = getcurrent()
    with pytest.raises(ValueError, match="running in a different thread"):
        in_thread(lambda: main.gr_context)
    with pytest.raises(ValueError, match="running in a different thread"):
        in_thread(lambda: setattr(main, "gr_context", None))


def test_a_subclass_with_an_abstract_run():
    import abc

    class Base(greenlet, metaclass=abc.ABCMeta):
        @abc.abstractmethod
        def run(self):
            pass

    class Full(Base):
        def run(self):
            return 1

    with pytest.raises(TypeError):
        Base()
    assert Full().switch() == 1


def test_a_cycle_through_a_new_greenlet_is_collected():
    g = greenlet()
    g.me = g
    ref = weakref.ref(g)
    del g
    gc.collect()
    assert ref() is None
