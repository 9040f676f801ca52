/* _Latch: fibers wait until any thread sets it, once and for all, or rings it.
 * Rings are counted: a fiber reads the count, then checks whether it must
 * wait, and does not wait if the count has changed, as other code has run in
 * between.
 *
 * The façade's futures and streams wait on it.  Unlike park(), such a wait can
 * be ended by this latch only, not by an unrelated wake-up.
 *
 * One that is rung from outside of the process, by a signal's handler, says so:
 * a run that has nothing left but such waits is no deadlock.
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

/* Nothing waits while it is set. */
typedef struct LatchObject {
    PyObject_HEAD
    PfWaitq waiters;
    unsigned long rings;
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

/* Entered with the mutex, which it frees. */
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

/* `seen`: NULL, or the count of rings that the caller knows. */
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
        PyErr_SetString(PyExc_TypeError, "wait() takes a timeout, what is "
                                         "waited for and a count of rings");
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
     "From any thread: let the fibers that wait go on, now or when they "
     "come.\n"
     "Arguments are ignored, so that it can be a done-callback."},
    {"ring", PF_FAST(latch_ring), METH_FASTCALL,
     "ring($self, /, *ignored)\n--\n\n"
     "From any thread: let the fibers that wait just now go on.  Arguments\n"
     "are ignored, so that it can be a done-callback."},
    {"wait", PF_FAST(latch_wait), METH_FASTCALL,
     "wait($self, timeout, what, seen=None, /)\n--\n\n"
     "Park until set() or ring(); False after `timeout` seconds (None: no\n"
     "limit).\n\n"
     "Not at all if `rings` is not `seen` any more.  `what` is what reports\n"
     "call it.  With a count only one fiber may wait.  A cancellation point."},
    {"is_set", latch_is_set, METH_NOARGS, "is_set($self, /)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef latch_members[] = {
    {"rings", T_ULONG, offsetof(LatchObject, rings), READONLY,
     "How often it was rung or set."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot latch_slots[] = {
    {Py_tp_doc,
     (void *)"_Latch(outside=False)\n--\n\n"
             "Set once, by any thread; fibers wait for it.  With\n"
             "`outside` by what comes from outside of the process:\n"
             "a run that only waits for it is no deadlock."},
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
