/* The interpreter's Lock: its methods park a fiber of a run, and do what they
 * did elsewhere. */
#include "python/patch/patch.h"

#include "python/core/compiler.h"
#include "python/core/import.h"
#include "python/core/tstate.h"
#include "python/patch/lot.h"
#include "python/patch/methods.h"
#include "python/patch/stay.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"

/* constant after import, of pyfiber._patch._threading, which finds them */
static const PfMethod *acquire, *release, *reinit;
/* constant after import, of pyfiber._patch, which finds it */
static PyTypeObject *standard;

/* ------------------------------------------------------------------ acquire */

/* Any fiber or thread may release a lock, and unseen while nothing is patched.
 * So the holder that is noted is one that has taken it, and may be out of date
 * until it is taken again. */
static int
look(PyObject *self, PfThread *t, void *data)
{
    (void)data;
    PyObject *taken = pf_methods_call_try(acquire, self);
    int rc = taken == NULL ? -1 : taken == Py_True;
    Py_XDECREF(taken);
    if (rc == 1) {
        pf_lot_gone(self);
        PfLotEntry *entry = pf_lot_entry(self);
        if (entry == NULL) {
            PyErr_Clear(); /* no memory: nobody knows who holds it */
        } else if (entry->depth == 0) { /* else its holder is just ending */
            pf_lot_hold_weakly(entry, CURRENT(t));
        }
    }
    return rc;
}

/* constant after import, of pyfiber._patch, which finds it */
static destructor die;

/* A lock may die while it is locked. */
static void
lock_dies(PyObject *self)
{
    if (pf_lot_is_busy()) {
        pf_lot_gone(self);
    }
    die(self);
}

/* A fiber or its thread may have to wait. */
static inline bool
is_for_fibers(PyObject *self)
{
    (void)self;
    return PF_UNLIKELY(pf_stay_thread() != NULL && pf_lock_methods.wanted);
}

/* The arguments have been converted, which may have run code that left the
 * run. */
static int
acquire_until(PyObject *self, int64_t deadline)
{
    if (!is_for_fibers(self)) {
        return PF_CALL_ORIGINAL;
    }
    PfThread *t = pf_thread_current;
    return pf_lot_parks() != NULL
               ? pf_lot_acquire(self, t, deadline, look, NULL)
               : pf_stay_acquire(acquire, self, t, deadline);
}

/* ------------------------------------------------------------------ release */

static PyObject *
release_seen(PyObject *self)
{
    if (pf_lot_lost(self)) {
        Py_RETURN_NONE;
    }
    PyObject *done = release->original(self, NULL);
    if (done != NULL) {
        pf_lot_gone(self);
        pf_lot_wake(self);
    }
    return done;
}

PF_LOCK_ENTRIES

/* In the child of fork: the lock is free. */
static PyObject *
reinit_bare(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *done = reinit->original(self, NULL);
    if (done != NULL) {
        pf_lot_gone(self);
        pf_lot_wake_all(self);
    }
    return done;
}

/* constant after import, too */
static PfMethod list[] = {
    {"acquire", PF_PACKED(acquire_packed)},
    {"acquire", PF_UNPACKED(acquire_unpacked)},
    {"acquire_lock", PF_PACKED(acquire_packed)},
    {"acquire_lock", PF_UNPACKED(acquire_unpacked)},
    {"__enter__", PF_PACKED(acquire_packed)},
    {"__enter__", PF_BARE(acquire_bare)},
    {"release", PF_BARE(release_bare)},
    {"release_lock", PF_BARE(release_bare)},
    {"__exit__", PF_TUPLE(release_bare)},
    {"__exit__", PF_POSITIONAL(release_positional)},
    {"_at_fork_reinit", PF_BARE(reinit_bare)},
};
static void
found(PyTypeObject *type)
{
    acquire = pf_method_named(&pf_lock_methods, "acquire");
    release = pf_method_named(&pf_lock_methods, "release");
    reinit = pf_method_named(&pf_lock_methods, "_at_fork_reinit");
    standard = type;
    die = type->tp_dealloc;
    type->tp_dealloc = lock_dies;
}

/* constant after import, but for `wanted` and what follows from it */
PfMethods pf_lock_methods = PF_METHODS("_thread", "LockType", list, found);

/* -------------------------------------------------------- for Condition.wait */

/* _retake(lock): acquire() for who has released it for a while and needs it to
 * go on: no cancellation point. */
static PyObject *
lock_retake(PyObject *module, PyObject *self)
{
    (void)module;
    PfThread *t = pf_thread_current;
    if (!pf_lock_methods.wanted || Py_TYPE(self) != standard || t == NULL ||
        (!CURRENT(t)->dying && pf_lot_parks() == NULL)) {
        return PyObject_CallMethod(self, "acquire", NULL);
    }
    return pf_lot_retake(self, t, look, NULL) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"_loop_logs", pf_stay_loop_logs, METH_O,
     "_loop_logs(yes, /)\n--\n\n"
     "Whether the loop logs, as its thread; returns what was said before."},
    {"_lock_retake", lock_retake, METH_O,
     "_lock_retake(lock, /)\n--\n\n"
     "acquire() that a cancellation does not end."},
    {NULL, NULL, 0, NULL},
};

int
pf_patch_lock_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
