/* Event: fibers and plain threads wait until it is set. */
#include "python/sync/event.h"

#include "python/core/arguments.h"
#include "python/core/thread.h"
#include "python/sync/select.h"
#include "python/sync/sync.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/wait/in_line.h"
#include "python/waitq/waitq.h"

#include <structmember.h>

/* Invariant: `waiters` is empty while the event is set. */
typedef struct EventObject {
    PyObject_HEAD
    PyObject *weakrefs;
    PfWaitq waiters;
    PF_SHARED(uint8_t) set;
    PF_OBJECT_MUTEX
} EventObject;

static PyTypeObject *event_type; /* constant after import */

bool
pf_event_is(PyObject *object)
{
    return PyObject_TypeCheck(object, event_type);
}

PfWaitq *
pf_event_queue(PyObject *event)
{
    EventObject *self = (EventObject *)event;
    return PF_SHARED_GET(&self->set) ? NULL : &self->waiters;
}

PfMutex *
pf_event_mutex(PyObject *event)
{
    return PF_MUTEX_OF((EventObject *)event);
}

static int
event_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    (void)op;
    static char *names[] = {NULL};
    return PyArg_ParseTupleAndKeywords(args, kwargs, ":Event", names) ? 0 : -1;
}

static PyObject *
event_is_set(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyBool_FromLong(PF_SHARED_GET(&((EventObject *)op)->set));
}

static PyObject *
event_set(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    EventObject *self = (EventObject *)op;
    if (pf_explore_preempt() < 0) {
        return NULL;
    }
    PF_LOCK(self);
    PF_SHARED_SET(&self->set, true);
    pf_waitq_grant_all(&self->waiters);
    PF_UNLOCK(self);
    Py_RETURN_NONE;
}

static PyObject *
event_clear(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    EventObject *self = (EventObject *)op;
    PF_LOCK(self);
    PF_SHARED_SET(&self->set, false);
    PF_UNLOCK(self);
    Py_RETURN_NONE;
}

static PyObject *
event_wait(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
           PyObject *kwnames)
{
    static const char *const names[] = {"timeout", NULL};
    EventObject *self = (EventObject *)op;
    PyObject *timeout = NULL;
    int64_t deadline;
    PfThread *t = pf_thread_this();
    if (t == NULL ||
        pf_arguments("wait", names, 0, args, nargs, kwnames, &timeout) < 0 ||
        pf_deadline_timeout(timeout, &deadline) < 0 ||
        pf_explore_preempt() < 0) {
        return NULL;
    }
    PF_LOCK(self);
    if (PF_SHARED_GET(&self->set)) {
        PF_UNLOCK(self);
        Py_RETURN_TRUE;
    }
    int rc = pf_wait_once(&self->waiters, PF_MUTEX_OF(self), t, deadline, op);
    return rc < 0 ? NULL : PyBool_FromLong(rc == 0);
}

/* -------------------------------------------------------------- for select() */

static int
attempt_to_wait(PyObject *op, PyObject *value, PyObject **got)
{
    (void)value;
    (void)got;
    return PF_SHARED_GET(&((EventObject *)op)->set);
}

static bool
need_not_wait(PyObject *op, const PfWaiter *asking)
{
    (void)asking;
    return PF_SHARED_GET(&((EventObject *)op)->set);
}

static PfWaitq *
line_of_waiters(PyObject *op)
{
    return &((EventObject *)op)->waiters;
}

static const PfCaseOps waiting_ops = {
    .attempt = attempt_to_wait,
    .possible = need_not_wait,
    .line = line_of_waiters,
    .mutex = pf_event_mutex,
};

static PyObject *
event_waiting(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return pf_case_new("waiting", &waiting_ops, op, NULL);
}

/* -------------------------------------------------------------- the type */

static PyObject *
event_waiters(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    EventObject *self = (EventObject *)op;
    return pf_waitq_list(&self->waiters, PF_MUTEX_OF(self));
}

/* Does nothing: in the child of fork the waits of other threads have already
 * been removed from every queue. */
static PyObject *
event_at_fork(PyObject *op, PyObject *ignored)
{
    (void)op;
    (void)ignored;
    Py_RETURN_NONE;
}

static PyObject *
event_repr(PyObject *op)
{
    bool set = PF_SHARED_GET(&((EventObject *)op)->set);
    return PyUnicode_FromFormat("<%s at %p: %s>", Py_TYPE(op)->tp_name, op,
                                set ? "set" : "unset");
}

PyDoc_STRVAR(event_doc, "Event()\n--\n\n\
A threading.Event for fibers, of any thread, and plain threads.");
PyDoc_STRVAR(is_set_doc, "is_set($self, /)\n--\n\n\
True if the event is set: after set(), until clear().");
PyDoc_STRVAR(set_doc, "set($self, /)\n--\n\n\
Wake all waiters, and let later calls of wait() return at once.");
PyDoc_STRVAR(clear_doc, "clear($self, /)\n--\n\n\
Let later calls of wait() wait. A wait() that set() has ended still returns\n\
True.");
PyDoc_STRVAR(wait_doc, "wait($self, /, timeout=None)\n--\n\n\
Wait for set(), at most `timeout` seconds (None: no limit).\n\
\n\
True if the event is set, False after `timeout` seconds. A cancellation point\n\
if it has to wait. ValueError for a negative timeout or NaN.");
PyDoc_STRVAR(waiting_doc, "waiting($self, /)\n--\n\n\
wait(), as a case for select().");
PyDoc_STRVAR(holders_doc, "_holders($self, /)\n--\n\n\
An empty list: any fiber or thread may set the event. For reports.");
PyDoc_STRVAR(waiters_doc, "_waiters($self, /)\n--\n\n\
The fibers that wait for the event, in queue order; for reports.");
PyDoc_STRVAR(fork_doc, "_at_fork_reinit($self, /)\n--\n\n\
Make the event usable in the child of fork.");

static PyMethodDef methods[] = {
    {"is_set", event_is_set, METH_NOARGS, is_set_doc},
    {"set", event_set, METH_NOARGS, set_doc},
    {"clear", event_clear, METH_NOARGS, clear_doc},
    PF_METHOD("wait", event_wait, wait_doc),
    {"waiting", event_waiting, METH_NOARGS, waiting_doc},
    {"_holders", pf_waitq_no_holders, METH_NOARGS, holders_doc},
    {"_waiters", event_waiters, METH_NOARGS, waiters_doc},
    {"_at_fork_reinit", event_at_fork, METH_NOARGS, fork_doc},
    PF_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    PF_WEAKREFS(EventObject),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)event_doc}, {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, event_init},       {Py_tp_dealloc, pf_arguments_dealloc},
    {Py_tp_repr, event_repr},       {Py_tp_methods, methods},
    {Py_tp_members, members},       {0, NULL},
};

static PyType_Spec spec = {
    .name = "pyfiber.Event",
    .basicsize = sizeof(EventObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

int
pf_event_init(PyObject *module)
{
    event_type = pf_arguments_add_type(module, &spec, NULL);
    return event_type == NULL ? -1 : 0;
}
