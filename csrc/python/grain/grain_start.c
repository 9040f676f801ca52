/* Prepares a grain for its start.  A grain is a task without a stack: the loop
 * steps its iterator, which mostly is a generator or a coroutine; see grain.h.
 *
 * Grain() only stores what the program has passed.  Until the grain is
 * prepared, `iterator` holds this source (a function, an iterable, ...) and
 * `value` the arguments for the function.  pf_grain_prepare(), the main
 * function here, calls the function if the source is one, puts the iterator
 * that is to be stepped into `iterator`, and sets the flag `entered`. */
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
                 "a grain is made of a function, an iterable, an iterator, a "
                 "coroutine or another awaitable, not '%.200s'",
                 Py_TYPE(start)->tp_name);
    return -1;
}

/* Calls __await__().  Like `await`, this refuses a result that is no iterator;
 * unlike `await`, it accepts a coroutine, which can be stepped as well. */
static PyObject *
await_iterator(PyObject *awaitable)
{
    PyObject *result = Py_TYPE(awaitable)->tp_as_async->am_await(awaitable);
    if (result != NULL && !PyIter_Check(result) &&
        !PyCoro_CheckExact(result)) {
        PyErr_Format(PyExc_TypeError,
                     "__await__() of '%.200s' must return an iterator, not "
                     "'%.200s'",
                     Py_TYPE(awaitable)->tp_name, Py_TYPE(result)->tp_name);
        Py_CLEAR(result);
    }
    return result;
}

/* Returns what can be stepped for `made`: a new reference, or NULL with an
 * exception. */
static PyObject *
as_iterator(PyObject *made)
{
    if (PyIter_Check(made) || PyCoro_CheckExact(made)) {
        return Py_NewRef(made);
    }
    if (is_awaitable(made)) {
        return await_iterator(made);
    }
    if (is_iterable(made)) {
        return PyObject_GetIter(made);
    }
    PyErr_Format(PyExc_TypeError,
                 "a grain's function must return a generator, an iterator, an "
                 "iterable, a coroutine or another awaitable, not '%.200s'",
                 Py_TYPE(made)->tp_name);
    return NULL;
}

/* Makes the iterator from the source, which is called if it is a function.  An
 * object that can be called and iterated counts as an iterable.  `args` may be
 * NULL.  Returns a new reference, or NULL with an exception. */
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

/* Stores the iterator in place of the source, and the name (NULL: none) unless
 * the grain has one.  Steals both references.  Returns 0; -1 with FiberError
 * if the code that ran meanwhile has prepared or cancelled the grain. */
static int
put_iterator(GrainObject *g, PyObject *iterator, PyObject *name)
{
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
                        "the grain was started or cancelled while its "
                        "function was being called");
    }
    return fresh ? 0 : -1;
}

/* Puts the iterator that will be stepped into `g->iterator`, unless an earlier
 * call has done so.  Returns 0, or -1 with an exception.
 *
 * The caller checks pf_grain_may_start() again after a result of 0: the grain
 * may have been prepared and started before, and the destructors of the source
 * and the arguments may run code that starts the grain. */
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
    /* The grain's name is taken from its iterator when it is asked for.  The
     * generator of a Python function has the function's name.  Any other
     * iterator lacks the source's name, so that name is stored now.  If that
     * fails, the grain goes on without it. */
    PyObject *name = NULL;
    bool iterator_has_name = PyFunction_Check(start) || iterator == start;
    if (iterator != NULL && g->name == NULL && !iterator_has_name) {
        name = pf_grain_name(g);
        if (name == NULL) {
            PyErr_Clear();
        }
    }
    int rc = iterator == NULL ? -1 : put_iterator(g, iterator, name);
    Py_DECREF(start);
    Py_XDECREF(args);
    return rc;
}

/* Checks that the grain may be started outside of a pool.  Returns 0, or -1
 * with FiberError. */
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
