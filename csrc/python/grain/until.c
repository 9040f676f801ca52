/* until(what): an awaitable that passes a request from a coroutine to the loop
 * that steps it.
 *
 * When awaited, it yields `what` once and returns the value that is sent back.
 * `await fiber` and `await grain` use it.
 */
#include "python/core/arguments.h"
#include "python/core/thread.h"
#include "python/grain/grain.h"

typedef struct UntilObject {
    PyObject_HEAD
    PyObject *what;
    enum { FRESH, ASKED, ANSWERED } state;
} UntilObject;

PyObject *
pf_until_new(PyObject *what)
{
    UntilObject *self =
        (UntilObject *)pf_grain_until_type->tp_alloc(pf_grain_until_type, 0);
    if (self != NULL) {
        self->what = Py_NewRef(what);
    }
    return (PyObject *)self;
}

PyObject *
pf_until_what(PyObject *until)
{
    PyObject *what = ((UntilObject *)until)->what;
    return what != NULL ? what : Py_None;
}

/* Only the loop of the grains can deal with a fiber that a coroutine yields;
 * asyncio would report "Task got bad yield". */
PyObject *
pf_until_await(PyObject *op)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    if (pf_grain_current(t) == NULL) {
        PyErr_Format(
            PyExc_TypeError,
            "only a grain can await %R: in a fiber call its result(); in "
            "asyncio give the function to a pyfiber.threads.FiberExecutor and "
            "await asyncio.wrap_future(executor.submit(function))",
            op);
        return NULL;
    }
    return pf_until_new(op);
}

static PyObject *
until_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)type;
    static char *names[] = {"", NULL};
    PyObject *what;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:until", names, &what)) {
        return NULL;
    }
    return pf_until_new(what);
}

static PyObject *
until_await(PyObject *op)
{
    return Py_NewRef(op);
}

static PySendResult
until_send(PyObject *op, PyObject *value, PyObject **result)
{
    UntilObject *self = (UntilObject *)op;
    switch (self->state) {
    case FRESH:
        self->state = ASKED;
        *result = Py_NewRef(pf_until_what(op));
        return PYGEN_NEXT;
    case ASKED:
        self->state = ANSWERED;
        *result = Py_NewRef(value);
        return PYGEN_RETURN;
    default:
        *result = NULL;
        PyErr_SetString(PyExc_RuntimeError,
                        "until() was awaited already: make a new one");
        return PYGEN_ERROR;
    }
}

/* The bytecode of `await` calls send() when it has a value, else
 * __next__(). */
static PyObject *
until_send_method(PyObject *op, PyObject *value)
{
    PyObject *result;
    if (until_send(op, value, &result) == PYGEN_RETURN) {
        PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
        Py_CLEAR(result);
        if (stop != NULL) {
            PyErr_SetObject(PyExc_StopIteration, stop);
            Py_DECREF(stop);
        }
    }
    return result;
}

static PyObject *
until_next(PyObject *op)
{
    PyObject *what;
    if (until_send(op, Py_None, &what) == PYGEN_RETURN) {
        Py_CLEAR(what); /* StopIteration, with None */
    }
    return what;
}

static int
until_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((UntilObject *)op)->what);
    return 0;
}

static int
until_clear(PyObject *op)
{
    Py_CLEAR(((UntilObject *)op)->what);
    return 0;
}

static void
until_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, until_clear);
}

static PyMethodDef until_methods[] = {
    {"send", until_send_method, METH_O, "As a generator's send()."},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(until_doc, "until(what, /)\n--\n\n\
Pass `what` to the loop: to be awaited in a coroutine that runs as a grain.\n\
\n\
`await until(what)` does in a coroutine what `yield what` does in a\n\
generator; `what` is READY, SLEEPING, STOPPED, a number of seconds, a\n\
predicate, a Grain, a Fiber or a future. Await each until() only once.");

static PyType_Slot until_slots[] = {
    {Py_tp_doc, (void *)until_doc},
    {Py_tp_new, until_new},
    {Py_tp_dealloc, until_dealloc},
    {Py_tp_traverse, until_traverse},
    {Py_tp_clear, until_clear},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, until_next},
    {Py_am_await, until_await},
    {Py_am_send, (void *)until_send},
    {Py_tp_methods, until_methods},
    {0, NULL},
};

PyType_Spec pf_until_spec = {
    .name = "pyfiber.grains.until",
    .basicsize = sizeof(UntilObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = until_slots,
};
