/* The interpreter's Lock: acquire() parks a fiber of a run, and a release
 * wakes it.  Outside of a run the methods do what the originals do. */
#include "python/patch/patch.h"

#include "python/core/compiler.h"
#include "python/core/import.h"
#include "python/core/tstate.h"
#include "python/patch/lot.h"
#include "python/patch/methods.h"
#include "python/patch/stay.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"

/* constant after import of pyfiber._patch._threading, which finds them */
static const PfMethod *acquire, *release, *reinit;
/* constant after import of pyfiber._patch, which finds it */
static PyTypeObject *standard;

/* ------------------------------------------------------------------ acquire */

/* Tries to take the lock and notes the fiber as its holder.  Any fiber or
 * thread may release the lock, and does so unnoticed while nothing is patched.
 * So the noted holder has once taken the lock, but may have lost it since. */
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
            PyErr_Clear(); /* no memory: the holder is not noted */
        } else if (entry->depth == 0) { /* else the noted holder is ending */
            pf_lot_hold(entry, CURRENT(t), 1, false);
        }
    }
    return rc;
}

/* constant after import of pyfiber._patch, which finds it */
static destructor die;

/* The lock's deallocator.  A lock may die while a fiber is noted as its
 * holder. */
static void
lock_dies(PyObject *self)
{
    if (pf_lot_is_busy()) {
        pf_lot_gone(self);
    }
    die(self);
}

/* Does a fiber of a run wait for the lock by parking?  After patch() has been
 * undone it does so as long as a fiber holds the lock. */
static inline bool
parks_fibers(PyObject *self)
{
    return pf_lock_methods.wanted || pf_lot_held(self) != NULL;
}

/* Is there a run on this thread, so that its code may have to wait in a way of
 * ours? */
static inline bool
is_for_fibers(PyObject *self)
{
    return PF_UNLIKELY(pf_stay_thread() != NULL && parks_fibers(self));
}

/* Converting the arguments may have run code that left the run, so this looks
 * again. */
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

/* Called in the child of a fork: the lock is free from now on. */
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

/* constant after import, but for `wanted` and `in_place` */
PfMethods pf_lock_methods = PF_METHODS("_thread", "LockType", list, found);

/* -------------------------------------------------------- for Condition.wait */

/* _lock_retake(lock): acquire() by a fiber that has released the lock for a
 * while and needs it in order to go on; no cancellation point. */
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
     "Whether the loop itself logs; returns the setting before."},
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
