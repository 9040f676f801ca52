/* _Latch: a fiber waits until any thread sets the latch, for good, or rings
 * it, which wakes only the fibers that wait at that moment.
 *
 * The latch counts its rings, so that a fiber misses none: the fiber reads the
 * count, checks whether it has to wait, and passes the count to wait(), which
 * returns at once if the count has changed because other code ran in between.
 *
 * The façade's futures and streams wait on latches.  Only its latch ends such
 * a wait, whereas an unrelated unpark() may end a park().
 *
 * A latch that a signal's handler rings, that is something outside of the
 * process, is made with outside=True.  A run in which all remaining waits are
 * for such latches is not a deadlock.
 */
#include "python/core/arguments.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/sync/sync.h"
#include "python/task/deadline.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/wait/in_line.h"
#include "python/waitq/waitq.h"

#include <structmember.h>

/* Invariant: `waiters` is empty while the latch is set. */
typedef struct LatchObject {
    PyObject_HEAD
    PfWaitq waiters;
    unsigned long rings; /* how often the latch was rung or set */
    PF_SHARED(uint8_t) set;
    bool outside;
    PF_OBJECT_MUTEX
} LatchObject;

static PyObject *
ring(LatchObject *self, bool for_good)
{
    PF_LOCK(self);
    if (for_good) {
        PF_SHARED_SET(&self->set, true);
    }
    self->rings++;
    pf_waitq_grant_all(&self->waiters);
    PF_UNLOCK(self);
    Py_RETURN_NONE;
}

static PyObject *
latch_ring(PyObject *op, PyObject *const *ignored, Py_ssize_t nargs)
{
    (void)ignored;
    (void)nargs;
    return ring((LatchObject *)op, false);
}

static PyObject *
latch_set(PyObject *op, PyObject *const *ignored, Py_ssize_t nargs)
{
    (void)ignored;
    (void)nargs;
    return ring((LatchObject *)op, true);
}

/* Waits in the queue.  The caller holds the mutex; this function unlocks it.
 * While the poller's `awaited` is not 0, the run is not a deadlock. */
static int
park(LatchObject *self, PfThread *t, int64_t deadline, PyObject *what)
{
    pf_poller *poller = t->scheduler->core.poller;
    poller->awaited += self->outside;
    int rc =
        pf_wait_once(&self->waiters, PF_MUTEX_OF(self), t, deadline, what);
    poller->awaited -= self->outside;
    return rc;
}

/* `seen` points to the count of rings that the caller has read, or is NULL. */
static PyObject *
wait_for_ring(LatchObject *self, PfThread *t, int64_t deadline, PyObject *what,
              const unsigned long *seen)
{
    PF_LOCK(self);
    bool over =
        PF_SHARED_GET(&self->set) || (seen != NULL && self->rings != *seen);
    bool second = seen != NULL && pf_waitq_has(&self->waiters, NULL);
    if (!over && !second && t->scheduler != NULL) {
        int rc = park(self, t, deadline, what);
        return rc < 0 ? NULL : PyBool_FromLong(rc == 0);
    }
    PF_UNLOCK(self);
    if (over) {
        Py_RETURN_TRUE;
    }
    if (pf_scheduler_active(t, "waiting") == NULL) {
        return NULL;
    }
    PyErr_Format(pf.fiber_error, "another fiber waits for %S already", what);
    return NULL;
}

static PyObject *
latch_wait(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    LatchObject *self = (LatchObject *)op;
    int64_t deadline;
    if (nargs != 2 && nargs != 3) {
        PyErr_SetString(PyExc_TypeError,
                        "wait() takes a timeout, an object that names the "
                        "wait in reports, and optionally a count of rings");
        return NULL;
    }
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_deadline(args[0], &deadline) < 0) {
        return NULL;
    }
    bool counted = nargs == 3 && args[2] != Py_None;
    unsigned long seen = counted ? PyLong_AsUnsignedLongMask(args[2]) : 0;
    if (PyErr_Occurred()) {
        return NULL;
    }
    return wait_for_ring(self, t, deadline, args[1], counted ? &seen : NULL);
}

static PyObject *
latch_is_set(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyBool_FromLong(PF_SHARED_GET(&((LatchObject *)op)->set));
}

static PyObject *
latch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"outside", NULL};
    int outside = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|p:_Latch", names,
                                     &outside)) {
        return NULL;
    }
    PyObject *op = type->tp_alloc(type, 0);
    if (op != NULL) {
        ((LatchObject *)op)->outside = outside != 0;
    }
    return op;
}

static PyMethodDef latch_methods[] = {
    {"set", PF_FAST(latch_set), METH_FASTCALL,
     "set($self, /, *ignored)\n--\n\n"
     "Wake the fibers that wait, and let later calls of wait() return at\n"
     "once.  Any thread may call this.  Arguments are ignored, so that the\n"
     "method can be a done-callback."},
    {"ring", PF_FAST(latch_ring), METH_FASTCALL,
     "ring($self, /, *ignored)\n--\n\n"
     "Wake the fibers that wait now.  Any thread may call this.  Arguments\n"
     "are ignored, so that the method can be a done-callback."},
    {"wait", PF_FAST(latch_wait), METH_FASTCALL,
     "wait($self, timeout, what, seen=None, /)\n--\n\n"
     "Wait for set() or ring(), at most `timeout` seconds (None: no limit).\n"
     "\n"
     "True if the latch was set or rung, at once if `seen` is given and\n"
     "differs from `rings`; False after `timeout` seconds.  `what` is the\n"
     "object that reports show as the reason for the wait.  FiberError\n"
     "outside of a run, or if `seen` is given and another fiber waits.  A\n"
     "cancellation point."},
    {"is_set", latch_is_set, METH_NOARGS,
     "is_set($self, /)\n--\n\nTrue after set()."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef latch_members[] = {
    {"rings", T_ULONG, offsetof(LatchObject, rings), READONLY,
     "How often the latch was rung or set."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot latch_slots[] = {
    {Py_tp_doc,
     (void *)"_Latch(outside=False)\n--\n\n"
             "A flag that any thread sets or rings and fibers wait for.\n"
             "\n"
             "`outside`: something outside of the process rings it, so a\n"
             "run in which all fibers wait for it is not a deadlock."},
    {Py_tp_new, latch_new},
    {Py_tp_dealloc, pf_arguments_dealloc},
    {Py_tp_methods, latch_methods},
    {Py_tp_members, latch_members},
    {0, NULL},
};

PyType_Spec pf_latch_spec = {
    .name = "pyfiber._engine._Latch",
    .basicsize = sizeof(LatchObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = latch_slots,
};
