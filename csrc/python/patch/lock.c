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
/* constant after import, of pyfiber._patch, which finds it */
static PfMethods methods;

/* ------------------------------------------------------------------ acquire */

/* Any fiber or thread may release a lock, and unseen while nothing is patched.
 * So the holder that is noted is one that has taken it, and may be out of date
 * until it is taken again. */
static int
look(PyObject *self, PfThread *t, void *data)
{
    (void)data;
    PyObject *taken = pf_call_try(acquire, self);
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

/* What the functions below return: 1: taken; 0: not in time; 2: the
 * interpreter's own acquire() has to be called; -1 with an exception. */
static int
acquire_in_fiber(PyObject *self, PfThread *t, int64_t deadline)
{
    if (pf_preempt() < 0 || pf_lot_may_hold(CURRENT(t)) < 0) {
        return -1;
    }
    int rc = pf_lot_until(self, t, deadline, false, look, NULL);
    return rc < 0 ? -1 : rc == 0;
}

/* A fiber or its thread may have to wait. */
static inline bool
is_for_fibers(void)
{
    return PF_UNLIKELY(pf_stays() != NULL && methods.wanted);
}

/* The arguments have been converted, which may have run code that left the
 * run. */
static int
acquire_until(PyObject *self, int64_t deadline)
{
    if (!is_for_fibers()) {
        return 2;
    }
    PfThread *t = pf_tls_thread;
    return pf_lot_parks() != NULL
               ? acquire_in_fiber(self, t, deadline)
               : pf_stay_acquire(acquire, self, t, deadline);
}

static PyObject *
acquire_packed(PyObject *self, PyObject *args, PyObject *kwargs)
{
    int64_t deadline;
    int rc = !is_for_fibers() ? 2
             : pf_packed_deadline(args, kwargs, &deadline) < 0
                 ? -1
                 : acquire_until(self, deadline);
    return rc == 2  ? PF_CALL_PACKED(acquire, self, args, kwargs)
           : rc < 0 ? NULL
                    : PyBool_FromLong(rc);
}

static PyObject *
acquire_unpacked(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames)
{
    int64_t deadline;
    int rc = !is_for_fibers() ? 2
             : pf_acquire_arguments(args, nargs, kwnames, &deadline) < 0
                 ? -1
                 : acquire_until(self, deadline);
    return rc == 2  ? PF_CALL_UNPACKED(acquire, self, args, nargs, kwnames)
           : rc < 0 ? NULL
                    : PyBool_FromLong(rc);
}

static PyObject *
acquire_bare(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return acquire_unpacked(self, NULL, 0, NULL);
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

static PyObject *
release_bare(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return pf_lot_is_busy() ? release_seen(self)
                            : release->original(self, NULL);
}

static PyObject *
release_positional(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)args;
    (void)nargs;
    return release_bare(self, NULL);
}

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
/* constant after import, but for `wanted` and what follows from it */
static PfMethods methods = PF_METHODS(list);

/* -------------------------------------------------------- for Condition.wait */

static PyObject *
without_lock(PyObject *self, FiberObject *fiber)
{
    pf_lot_lose(self, fiber);
    Py_RETURN_NONE;
}

/* A dying fiber must not wait: either the lock is free, or it is lost. */
static PyObject *
retake_dying(PyObject *self, PfThread *t)
{
    int rc = pf_lot_may_hold(CURRENT(t)) < 0 ? -1 : look(self, t, NULL);
    return rc < 0    ? NULL
           : rc == 0 ? without_lock(self, CURRENT(t))
                     : Py_NewRef(Py_None);
}

static PyObject *
retake(PyObject *self, PfThread *t)
{
    if (pf_lot_may_hold(CURRENT(t)) == 0 &&
        pf_lot_until(self, t, PF_NEVER, true, look, NULL) == 0) {
        Py_RETURN_NONE;
    }
    PyObject *raised = pf_take_exception();
    pf_lot_lose(self, CURRENT(t));
    pf_restore_exception(raised);
    return NULL;
}

/* _retake(lock): acquire() for who has released it for a while and needs it to
 * go on: no cancellation point. */
static PyObject *
lock_retake(PyObject *module, PyObject *self)
{
    (void)module;
    PfThread *t = pf_tls_thread;
    if (!methods.wanted || Py_TYPE(self) != standard || t == NULL) {
        return PyObject_CallMethod(self, "acquire", NULL);
    }
    if (CURRENT(t)->dying) {
        return retake_dying(self, t);
    }
    t = pf_lot_parks();
    return t == NULL ? PyObject_CallMethod(self, "acquire", NULL)
                     : retake(self, t);
}

/* _lock_patch(wanted): whether fibers wait for Locks. */
static PyObject *
lock_patch(PyObject *module, PyObject *wanted)
{
    (void)module;
    if (standard == NULL) {
        PyObject *type = pf_import_from("_thread", "LockType");
        if (type == NULL ||
            pf_methods_find(&methods, "_thread", "LockType") < 0) {
            Py_XDECREF(type);
            return NULL;
        }
        acquire = pf_method_named(&methods, "acquire");
        release = pf_method_named(&methods, "release");
        reinit = pf_method_named(&methods, "_at_fork_reinit");
        standard = (PyTypeObject *)type;
        die = standard->tp_dealloc;
        standard->tp_dealloc = lock_dies;
    }
    pf_methods_set(&methods, wanted == Py_True);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_lock_patch", lock_patch, METH_O,
     "_lock_patch(wanted, /)\n--\n\n"
     "Whether the interpreter's Locks park fibers."},
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
