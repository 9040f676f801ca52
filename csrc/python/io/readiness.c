/* Waiting for a descriptor.
 *
 * A waiting fiber registers the descriptor with its scheduler's poller, and
 * only while it waits: afterwards other code may close the number and reuse
 * it.
 */
#include "python/fiber/deadline.h"
#include "python/fiber/wait.h"
#include "python/io/io.h"

#include <errno.h>

/* One wait of one fiber; on its C stack. */
typedef struct Readiness {
    pf_registration registration; /* first */
    pf_poller *poller;
    FiberObject *fiber;
} Readiness;

static void
leave_poller(Readiness *wait)
{
    if (wait->registration.added) {
        wait->poller->ops->remove(wait->poller, &wait->registration);
        wait->poller->awaited--;
    }
}

/* Reported once: a level-triggered event would be repeated until the fiber has
 * run. */
static void
is_ready(pf_registration *r, pf_scheduler *s, unsigned events)
{
    Readiness *wait = (Readiness *)r;
    (void)events;
    leave_poller(wait);
    pf_wake_task(s, &wait->fiber->core, PF_WAKE_NORMAL);
}

/* 0: ready; 1: the deadline passed; -1: an exception is set. */
static int
wait_ready(PfThread *t, intptr_t descriptor, unsigned interest,
           int64_t deadline, PyObject *what)
{
    Readiness wait = {
        .registration.ready = is_ready,
        .poller = t->scheduler->core.poller,
        .fiber = CURRENT(t),
    };
    int rc = wait.poller->ops->add(wait.poller, descriptor, interest,
                                   &wait.registration);
    if (rc < 0) {
        errno = -rc;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    wait.poller->awaited++;
    rc = pf_wait(t, deadline, what);
    leave_poller(&wait);
    return rc;
}

static PyObject *
io_wait_ready(PyObject *module, PyObject *args)
{
    (void)module;
    Py_ssize_t descriptor;
    int writable;
    PyObject *timeout = Py_None;
    int64_t deadline;
    if (!PyArg_ParseTuple(args, "np|O", &descriptor, &writable, &timeout) ||
        pf_deadline(timeout, &deadline) < 0) {
        return NULL;
    }
    PyObject *what =
        PyUnicode_FromFormat("descriptor %zd to be %s", descriptor,
                             writable ? "writable" : "readable");
    PfThread *t = what == NULL ? NULL : pf_this_thread();
    if (t == NULL || pf_active(t, "waiting for a descriptor") == NULL) {
        Py_XDECREF(what);
        return NULL;
    }
    int rc = wait_ready(t, descriptor, writable ? PF_IO_WRITE : PF_IO_READ,
                        deadline, what);
    Py_DECREF(what);
    return rc < 0 ? NULL : PyBool_FromLong(rc == 0);
}

static PyMethodDef functions[] = {
    {"_wait_ready", io_wait_ready, METH_VARARGS,
     "_wait_ready(descriptor, writable, timeout=None): False: it timed out."},
    {NULL, NULL, 0, NULL},
};

int
pf_readiness_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
