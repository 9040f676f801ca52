"""pyfiber.greenlet._C_API: the twelve pointers that compiled users of greenlet.h call."""

import ctypes
import sys

import pytest

from pyfiber.greenlet import _C_API, GreenletExit, error, getcurrent, greenlet
from tests.support.threads import in_thread

OBJECT = ctypes.py_object
POINTER = ctypes.c_void_p


@pytest.fixture(scope="module")
def table():
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype = POINTER
    get.argtypes = [OBJECT, ctypes.c_char_p]
    address = get(_C_API, b"greenlet._C_API")
    return (POINTER * 12).from_address(address)


def function(table, index, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)(table[index])


def test_objects(table):
    assert table[0] == id(greenlet)
    assert table[1] == id(error)
    assert table[2] == id(GreenletExit)


def test_capsule_is_found_by_name(child):
    child(
        """
        import ctypes, pyfiber.greenlet
        pyfiber.greenlet.install()
        get = ctypes.pythonapi.PyCapsule_Import
        get.restype = ctypes.c_void_p
        get.argtypes = [ctypes.c_char_p, ctypes.c_int]
        assert get(b"greenlet._C_API", 0)
        """
    )


def test_new(table):
    new = function(table, 3, OBJECT, OBJECT, POINTER)
    parent = greenlet()
    assert new(len, None).parent is getcurrent()
    assert new(len, id(parent)).parent is parent
    bare = function(table, 3, OBJECT, POINTER, POINTER)(None, None)
    with pytest.raises(AttributeError):
        _ = bare.run


def test_getcurrent(table):
    get = function(table, 4, OBJECT)
    assert get() is getcurrent()
    assert greenlet(lambda: get() is getcurrent()).switch()
    before = sys.getrefcount(getcurrent())
    for _ in range(10):
        get()
    after = sys.getrefcount(getcurrent())
    assert after == before


def test_throw(table):
    throw = function(table, 5, OBJECT, OBJECT, OBJECT, POINTER, POINTER)
    with pytest.raises(KeyError, match="k"):
        throw(greenlet(len), KeyError, id("k"), None)
    with pytest.raises(TypeError):
        throw(5, KeyError, None, None)


def test_switch(table):
    switch = function(table, 6, OBJECT, OBJECT, POINTER, POINTER)
    args, kwargs = (1, 2), {"k": 3}
    assert switch(greenlet(lambda *a, **k: (a, k)), id(args), id(kwargs)) == (args, kwargs)
    assert switch(greenlet(lambda: "none"), None, None) == "none"
    g = greenlet(lambda: getcurrent().parent.switch())
    g.switch()
    assert switch(g, id(args), None) == args
    with pytest.raises(TypeError):
        switch(5, None, None)


def test_switch_to_another_thread(table):
    switch = function(table, 6, OBJECT, OBJECT, POINTER, POINTER)
    main = getcurrent()
    with pytest.raises(error, match="different thread"):
        in_thread(lambda: switch(main, None, None))


def test_set_parent(table):
    set_parent = function(table, 7, ctypes.c_int, OBJECT, POINTER)
    g, parent = greenlet(), greenlet()
    assert set_parent(g, id(parent)) == 0
    assert g.parent is parent
    with pytest.raises(ValueError, match="cyclic"):
        set_parent(g, id(g))
    with pytest.raises(AttributeError):
        set_parent(g, None)


def test_predicates(table):
    main, started, active = (function(table, i, ctypes.c_int, OBJECT) for i in (8, 9, 10))

    def state(g):
        return main(g), started(g), active(g)

    g = greenlet(lambda: getcurrent().parent.switch())
    assert state(g) == (0, 0, 0)
    g.switch()
    assert state(g) == (0, 1, 1)
    g.switch()
    assert state(g) == (0, 1, 0)
    assert state(getcurrent()) == (1, 1, 1)
    for predicate in (main, started, active):
        with pytest.raises(TypeError):
            predicate("no greenlet")


def test_get_parent(table):
    get = function(table, 11, POINTER, OBJECT)
    g = greenlet()
    main = getcurrent()
    before = sys.getrefcount(main)
    assert get(g) == id(main)
    assert sys.getrefcount(main) == before + 1
    ctypes.pythonapi.Py_DecRef(OBJECT(main))
    assert get(main) is None
