/* wait_readable() and wait_writable(): for descriptors that other code opens
 * and closes.  The operations of pyfiber's own sockets wait in socket.c. */
#include "python/core/pyinclude.h"

#include "engine/base/clock.h"
#include "python/core/arguments.h"
#include "python/core/state.h"
#include "python/core/world.h"
#include "python/io/io.h"
#include "python/io/socket.h"
#include "python/io/waiting.h"
#include "python/look/inspect.h"
#include "python/task/deadline.h"

#include <errno.h>

int
pf_readiness_wait_for_number(intptr_t number, pf_direction direction,
                             int64_t length, PyObject *what)
{
    PfThread *t = pf_thread_this();
    if (t == NULL || number < 0) {
        return t == NULL ? -1 : pf_io_error(-EBADF);
    }
    pf_scheduler *s = pf_io_scheduler(t);
    if (s == NULL || length == 0) {
        int64_t deadline =
            length == PF_NEVER ? PF_NEVER : pf_clock_monotonic() + length;
        return pf_io_block(number, direction, deadline);
    }
    return pf_io_park_foreign(t, number, direction,
                              pf_deadline_in(t->scheduler, length), what);
}

static bool
is_in_memory(PyObject *op)
{
    return pf_socket_type != NULL && PyObject_TypeCheck(op, pf_socket_type) &&
           pf_socket_of(op)->end != NULL;
}

static int
wait_for_object(PyObject *op, pf_direction direction, int64_t length)
{
    PfThread *t = pf_thread_this();
    if (t != NULL && is_in_memory(op)) {
        return pf_inmemory_wait(t, op, direction, length);
    }
    int number = t == NULL ? -1 : PyObject_AsFileDescriptor(op);
    return number < 0 || pf_socket_claim(t, op) < 0
               ? -1
               : pf_readiness_wait_for_number(number, direction, length, op);
}

static PyObject *
wait_for(const char *name, pf_direction direction, PyObject *const *args,
         Py_ssize_t nargs, PyObject *kwnames)
{
    static const char *const names[] = {"fd", "timeout", NULL};
    PyObject *given[] = {NULL, Py_None};
    int64_t length;
    if (pf_arguments(name, names, 1, args, nargs, kwnames, given) < 0 ||
        pf_arguments_length(given[1], &length) < 0) {
        return NULL;
    }
    int rc = wait_for_object(given[0], direction, length);
    if (rc == 1) {
        PyErr_Format(PyExc_TimeoutError, "%s timed out", name);
    }
    return rc == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
io_wait_readable(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames)
{
    (void)module;
    return wait_for("wait_readable()", PF_READING, args, nargs, kwnames);
}

static PyObject *
io_wait_writable(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames)
{
    (void)module;
    return wait_for("wait_writable()", PF_WRITING, args, nargs, kwnames);
}

PyDoc_STRVAR(readable_doc,
             "wait_readable($module, /, fd, timeout=None)\n--\n\n\
Wait until `fd` can be read, is at its end, or has an error.\n\
\n\
`fd` is a descriptor that other code opens and closes: an int, or an object\n\
with fileno(). In a fiber of a run the fiber parks; anywhere else the thread\n\
blocks. Regular files are always ready. `timeout` is in seconds, None waits\n\
for ever. Raises TimeoutError when the timeout has passed, and OSError\n\
(EBADF) if the descriptor is not open. A cancellation point.");
PyDoc_STRVAR(writable_doc,
             "wait_writable($module, /, fd, timeout=None)\n--\n\n\
Wait until `fd` can be written, or has an error.\n\
\n\
The parameters and errors are those of wait_readable().");

/* Returns the record of the descriptor that the fiber waits for, if it is that
 * of `what`; else NULL.  The fiber may be another thread's: a table of
 * descriptors changes only while its thread has the GIL. */
static const pf_descriptor *
place_of(const FiberObject *fiber, PyObject *what, intptr_t number)
{
    const SchedulerObject *s = pf_look_waits_on(fiber);
    if (s == NULL) {
        return NULL;
    }
    return is_in_memory(what)
               ? &pf_socket_of(what)->end->at
               : pf_descriptor_known(&s->core.descriptors, number);
}

/* Asking `what` for its descriptor may run code, so the fiber is looked at
 * afterwards. */
static PyObject *
io_wait_of(PyObject *module, PyObject *op)
{
    (void)module;
    FiberObject *fiber = (FiberObject *)op;
    if (!PyObject_TypeCheck(op, pf_task_fiber_type)) {
        PyErr_SetString(PyExc_TypeError, "_io_wait_of() takes a fiber");
        return NULL;
    }
    PyObject *what = pf_world_ref(fiber->thread, &fiber->waiting_on);
    int number = PyObject_AsFileDescriptor(what);
    if (number < 0) {
        PyErr_Clear();
    }
    pf_direction direction = PF_READING;
    bool stopped = pf_world_stop(fiber->thread);
    const pf_descriptor *at = place_of(fiber, what, number);
    bool stands = at != NULL && pf_io_stands(fiber, at, &direction);
    pf_world_start(stopped);
    Py_DECREF(what);
    if (!stands) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("iN", number,
                         PyBool_FromLong(direction == PF_WRITING));
}

static PyObject *
io_may_park(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_current;
    return PyBool_FromLong(t != NULL && pf_io_scheduler(t) != NULL);
}

static int
read_number(PyObject *number, PfAwaited *to)
{
    if (!PyLong_Check(number)) {
        PyErr_SetString(PyExc_TypeError,
                        "_wait_any() takes numbers and ends in memory");
        return -1;
    }
    to->number = (intptr_t)PyLong_AsSsize_t(number);
    return to->number == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Adds what is in a list to an array, with a reference to each end in memory.
 * Returns 0, or -1 with an exception. */
static int
read_awaited(PyObject *list, pf_direction direction, PfThread *t,
             PfAwaited *to)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        pf_end *end = pf_inmemory_end(item);
        to[i].direction = direction;
        if (end == NULL) {
            if (read_number(item, &to[i]) < 0) {
                return -1;
            }
        } else if (pf_inmemory_run(end, t) == NULL) {
            return -1;
        } else {
            pf_end_keep(end);
            to[i].end = end;
        }
    }
    return 0;
}

static void
free_awaited(PfAwaited *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (list[i].end != NULL) {
            pf_end_drop(list[i].end);
        }
    }
    PyMem_Free(list);
}

static int
wait_for_any(PyObject *reading, PyObject *writing, int64_t length)
{
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_io_scheduler(t) == NULL) {
        if (t != NULL) {
            PyErr_SetString(pf.fiber_error, "_wait_any() outside of a run");
        }
        return -1;
    }
    size_t read = (size_t)PyList_GET_SIZE(reading);
    size_t count = read + (size_t)PyList_GET_SIZE(writing);
    PfAwaited *list = PyMem_Calloc(count, sizeof *list);
    if (list == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int rc = read_awaited(reading, PF_READING, t, list) < 0 ||
                     read_awaited(writing, PF_WRITING, t, list + read) < 0
                 ? -1
                 : pf_io_park_any(t, list, count,
                                  pf_deadline_in(t->scheduler, length),
                                  pf.s_select);
    free_awaited(list, count);
    return rc;
}

static PyObject *
io_wait_any(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *reading, *writing, *timeout;
    int64_t length;
    if (!PyArg_ParseTuple(args, "O!O!O", &PyList_Type, &reading, &PyList_Type,
                          &writing, &timeout) ||
        pf_arguments_length(timeout, &length) < 0) {
        return NULL;
    }
    int rc = wait_for_any(reading, writing, length);
    if (rc == 1) {
        PyErr_SetString(PyExc_TimeoutError, "_wait_any() timed out");
    }
    return rc == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef functions[] = {
    {"_wait_any", io_wait_any, METH_VARARGS,
     "_wait_any(reading, writing, timeout): park until one of these\n"
     "descriptors, or ends in memory, is ready or has been closed;\n"
     "TimeoutError."},
    {"_may_park", io_may_park, METH_NOARGS,
     "_may_park(): does a wait made here park a fiber of a run?"},
    {"_io_wait_of", io_wait_of, METH_O,
     "_io_wait_of(fiber): (descriptor, whether to write), or None."},
    PF_METHOD("wait_readable", io_wait_readable, readable_doc),
    PF_METHOD("wait_writable", io_wait_writable, writable_doc),
    {NULL, NULL, 0, NULL},
};

int
pf_readiness_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

int
pf_io_init(PyObject *module)
{
    return pf_readiness_init(module) < 0 || pf_socket_init(module) < 0 ||
                   pf_inmemory_init(module) < 0 || pf_tls_init(module) < 0
               ? -1
               : pf_reader_init(module);
}
