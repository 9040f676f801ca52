/* What a grain is made of, and whether it may be started; see grain.h. */
#include "python/grain/grain.h"

#include "python/core/state.h"

/* Constant after import. */
PyTypeObject *pf_grain_type, *pf_grain_pool_type, *pf_grain_notice_type,
    *pf_grain_until_type;
PfGrainConstants pf_grain; /* constant after import */

static bool
is_iterable(PyObject *object)
{
    return Py_TYPE(object)->tp_iter != NULL || PySequence_Check(object);
}

static bool
is_awaitable(PyObject *object)
{
    PyAsyncMethods *async = Py_TYPE(object)->tp_as_async;
    return async != NULL && async->am_await != NULL;
}

int
pf_grain_check_start(PyObject *start)
{
    if (PyCallable_Check(start) || is_iterable(start) || PyIter_Check(start) ||
        is_awaitable(start)) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError,
                 "a grain is made of a function, an iterable, an iterator or "
                 "a coroutine, not '%.200s'",
                 Py_TYPE(start)->tp_name);
    return -1;
}

static PyObject *
as_iterator(PyObject *made)
{
    if (PyIter_Check(made) || PyCoro_CheckExact(made)) {
        return Py_NewRef(made);
    }
    if (is_awaitable(made)) {
        return Py_TYPE(made)->tp_as_async->am_await(made);
    }
    if (is_iterable(made)) {
        return PyObject_GetIter(made);
    }
    PyErr_Format(PyExc_TypeError,
                 "a grain's function must return a generator, a coroutine, an "
                 "iterator or an iterable, not '%.200s'",
                 Py_TYPE(made)->tp_name);
    return NULL;
}

static PyObject *
make_iterator(PyObject *start, PyObject *args)
{
    if (!PyCallable_Check(start) || is_iterable(start) ||
        PyIter_Check(start)) {
        if (args != NULL) {
            PyErr_Format(PyExc_TypeError,
                         "arguments are for functions: this grain is made of "
                         "'%.200s'",
                         Py_TYPE(start)->tp_name);
            return NULL;
        }
        return as_iterator(start);
    }
    PyObject *made = args == NULL ? PyObject_CallNoArgs(start)
                                  : PyObject_Call(start, args, NULL);
    if (made == NULL) {
        return NULL;
    }
    PyObject *iterator = as_iterator(made);
    Py_DECREF(made);
    return iterator;
}

/* Replaces what the grain was made of by the iterator.  Steals both
 * references; the name may be NULL. */
static int
put_iterator(GrainObject *g, PyObject *iterator, PyObject *name)
{
    PyErr_Clear(); /* no memory: it continues without a name */
    PyObject *start = iterator, *args = NULL;
    bool fresh = false;
    PF_BEGIN_ALONE(g);
    fresh = g->core.state == PF_NEW && !g->entered;
    if (fresh) {
        start = g->iterator;
        args = g->value;
        g->entered = true;
        g->value = NULL;
        g->iterator = iterator;
        if (g->name == NULL) {
            g->name = Py_XNewRef(name);
        }
    }
    PF_END_ALONE();
    Py_XDECREF(name);
    Py_DECREF(start);
    Py_XDECREF(args);
    if (!fresh) {
        PyErr_SetString(pf.fiber_error,
                        "the function that makes the grain has started or "
                        "cancelled it meanwhile");
    }
    return fresh ? 0 : -1;
}

/* Turns what the grain was made of into the iterator that is stepped.  Returns
 * 0 or -1.  This runs code, which may start the grain, so the caller checks
 * afterwards whether it may still start it. */
int
pf_grain_prepare(GrainObject *g)
{
    PyObject *start = NULL, *args = NULL;
    PF_BEGIN_ALONE(g);
    if (!g->entered) {
        start = Py_NewRef(g->iterator);
        args = Py_XNewRef(g->value);
    }
    PF_END_ALONE();
    if (start == NULL) {
        return 0; /* has been prepared already */
    }
    PyObject *iterator = make_iterator(start, args);
    PyObject *name = NULL;
    bool known = PyFunction_Check(start) || iterator == start;
    if (iterator != NULL && g->name == NULL && !known) {
        name = pf_grain_name(g); /* the iterator will not have this name */
    }
    int rc = iterator == NULL ? -1 : put_iterator(g, iterator, name);
    Py_DECREF(start);
    Py_XDECREF(args);
    return rc;
}

/* May the grain be started outside of a pool?  Returns 0, or -1 with
 * FiberError. */
int
pf_grain_may_start(GrainObject *g)
{
    if (g->core.state == PF_NEW && g->pool == NULL) {
        return 0;
    }
    PyErr_SetString(pf.fiber_error,
                    g->core.state == PF_NEW
                        ? "the grain is queued in a pool, which starts it"
                        : "the grain has been started already: make a new "
                          "one");
    return -1;
}
