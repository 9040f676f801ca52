/* The interpreter's RLock.  In a fiber of a run the owner of the lock is that
 * fiber.  The lock itself does not know fibers: to it, the owner is the
 * thread. So the entry in the parking lot says which fiber holds the lock and
 * how often. The lock's own count is the sum of that and of what other code of
 * the thread had taken before.
 *
 * - A fiber that holds the lock can take it once more.  Other fibers wait for
 *   it, as other threads do: these wait for the lock itself.
 * - A lock that the thread has taken outside of fibers is open to the fibers
 *   of that thread.  Otherwise a run that the thread begins meanwhile could
 *   not go on.
 * - Code of the thread outside of a run can take a lock that a fiber holds
 *   once more, as it could without fibers: to wait would mean to wait for
 *   itself.  In a run, code that cannot park (a finalizer that the collector
 *   runs) gets FiberError instead; only the loop's logging takes the lock
 *   (stay.h).
 * - A lock that a thread of the program holds at its end can be had by no fiber
 *   any more, even if that thread was a fiber.
 */
#include "python/patch/patch.h"

#include "python/core/compiler.h"
#include "python/core/import.h"
#include "python/core/tstate.h"
#include "python/patch/lot.h"
#include "python/patch/methods.h"
#include "python/patch/stay.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"

/* constant after import of pyfiber._patch, which finds them */
static const PfMethod *acquire, *release, *reinit, *is_owned, *save, *restore,
    *recursion_count;

static bool
is_mine(const PfLotEntry *entry)
{
    PfThread *t = entry == NULL ? NULL : pf_thread_current;
    return t != NULL && pf_lot_is_held_by(entry, CURRENT(t));
}

/* Does another fiber hold the lock, and can the running code park?  (Code that
 * cannot is treated as code of the thread.) */
static bool
is_anothers(const PfLotEntry *entry)
{
    return entry != NULL && pf_lot_parks() != NULL && !is_mine(entry);
}

/* Does a fiber of a run wait for the lock by parking?  After patch() has been
 * undone it does so as long as a fiber holds the lock. */
static inline bool
parks_fibers(PyObject *self)
{
    return pf_rlock_methods.wanted || pf_lot_held(self) != NULL;
}

static PyObject *
refuse(void)
{
    PyErr_SetString(PyExc_RuntimeError, "cannot release un-acquired lock");
    return NULL;
}

/* ------------------------------------------------------------------ acquire */

/* Tries to take the lock for the running fiber.  `data` points to the depth
 * with which the fiber holds it then. */
static int
look(PyObject *self, PfThread *t, void *data)
{
    PfLotEntry *entry = pf_lot_entry(self);
    if (entry == NULL || entry->depth > 0) {
        return entry == NULL ? -1 : 0;
    }
    PyObject *taken = pf_methods_call_try(acquire, self);
    int rc = taken == NULL ? -1 : taken == Py_True;
    Py_XDECREF(taken);
    if (rc == 1) {
        pf_lot_hold(entry, CURRENT(t), *(Py_ssize_t *)data, true);
    }
    return rc;
}

/* The running fiber holds the lock already: takes it once more, without
 * waiting. */
static int
once_more(PyObject *self, PfLotEntry *entry)
{
    PyObject *taken = pf_methods_call_try(acquire, self);
    int rc = taken == NULL ? -1 : taken == Py_True;
    Py_XDECREF(taken);
    entry->depth += rc == 1;
    return rc;
}

/* acquire() by code that cannot park.  If another fiber of this thread holds
 * the lock, the interpreter's own acquire() would succeed, so it must not be
 * called. */
static int
acquire_staying(PyObject *self, const PfLotEntry *entry, PfThread *t,
                int64_t deadline)
{
    if (*pf_stay_logs(t) || (entry != NULL && entry->ended)) {
        return PF_CALL_ORIGINAL;
    }
    FiberObject *holder = pf_lot_holder(entry);
    if (holder == NULL || holder->thread != t) {
        return pf_stay_acquire(acquire, self, t, deadline);
    }
    return deadline == PF_NOW ? 0 : pf_stay_check(self, t);
}

/* Is there a run on this thread, so that its code may have to wait in a way of
 * ours, or does the running fiber hold the lock? */
static inline bool
is_for_fibers(PyObject *self)
{
    return PF_UNLIKELY(pf_stay_thread() != NULL && parks_fibers(self)) ||
           PF_UNLIKELY(is_mine(pf_lot_held(self)));
}

/* Converting the arguments may have run code that took or released the lock,
 * or that left the run, so this looks again. */
static int
acquire_until(PyObject *self, int64_t deadline)
{
    PfLotEntry *entry = pf_lot_held(self);
    if (is_mine(entry)) {
        return once_more(self, entry);
    }
    PfThread *t = parks_fibers(self) ? pf_stay_thread() : NULL;
    Py_ssize_t once = 1;
    if (t == NULL) {
        return PF_CALL_ORIGINAL;
    }
    return pf_lot_parks() != NULL
               ? pf_lot_acquire(self, t, deadline, look, &once)
               : acquire_staying(self, entry, t, deadline);
}

/* ------------------------------------------------------------------ release */

/* The lock itself refuses if other code of the thread has already released
 * what the fiber held: then the fiber does not hold the lock any more. */
static PyObject *
release_mine(PyObject *self, PfLotEntry *entry)
{
    PyObject *done = release->original(self, NULL);
    if (done == NULL || --entry->depth == 0) {
        pf_lot_let_go(entry);
        pf_lot_wake(self);
    }
    return done;
}

/* Code outside of fibers may release what an ended thread has held, as the lock
 * itself sees the same thread of the system. */
static void
forget_if_free(PyObject *self, PfLotEntry *entry)
{
    PyObject *owned = is_owned->original(self, NULL);
    if (owned == Py_False) {
        pf_lot_let_go(entry);
    }
    Py_XDECREF(owned);
}

static PyObject *
release_seen(PyObject *self)
{
    PfLotEntry *entry = pf_lot_held(self);
    if (is_mine(entry)) {
        return release_mine(self, entry);
    }
    if (pf_lot_lost(self)) {
        Py_RETURN_NONE;
    }
    if (is_anothers(entry)) {
        return refuse();
    }
    PyObject *done = release->original(self, NULL);
    if (done != NULL) {
        if (entry != NULL && entry->ended) {
            forget_if_free(self, entry);
        }
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
    PfLotEntry *entry = pf_lot_held(self);
    if (entry != NULL) {
        pf_lot_let_go(entry);
    }
    if (done != NULL) {
        pf_lot_wake_all(self);
    }
    return done;
}

/* ------------------------------------------------------------ for Condition */

static PyObject *
is_owned_bare(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return is_anothers(pf_lot_held(self)) ? Py_NewRef(Py_False)
                                          : is_owned->original(self, NULL);
}

static PyObject *
recursion_count_bare(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PfLotEntry *entry = pf_lot_held(self);
    return is_mine(entry)       ? PyLong_FromSsize_t(entry->depth)
           : is_anothers(entry) ? PyLong_FromLong(0)
                                : recursion_count->original(self, NULL);
}

/* Appends to the lock's state (count, owner) how much of the count is the
 * fiber's. The state remains a pair if that is all of it. */
static PyObject *
with_depth(PyObject *state, Py_ssize_t depth)
{
    if (state == NULL || !PyTuple_Check(state) ||
        PyTuple_GET_SIZE(state) != 2 ||
        PyLong_AsSsize_t(PyTuple_GET_ITEM(state, 0)) == depth) {
        return state;
    }
    PyObject *all = Py_BuildValue("OOn", PyTuple_GET_ITEM(state, 0),
                                  PyTuple_GET_ITEM(state, 1), depth);
    if (all == NULL) {
        PyErr_Clear();
        return state;
    }
    Py_DECREF(state);
    return all;
}

static PyObject *
save_bare(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PfLotEntry *entry = pf_lot_held(self);
    if (is_anothers(entry)) {
        return refuse();
    }
    Py_ssize_t depth = is_mine(entry) ? entry->depth : 0;
    PyObject *state = save->original(self, NULL);
    if (depth > 0) {
        state = with_depth(state, depth);
        entry =
            pf_lot_held(self); /* with_depth() may have run the collector */
        if (is_mine(entry)) {
            pf_lot_let_go(entry);
        }
    }
    if (state != NULL) {
        pf_lot_wake(self);
    }
    return state;
}

/* Reads how often the lock was held, and how much of that by the fiber. */
static int
counts_of(PyObject *state, Py_ssize_t *count, Py_ssize_t *depth)
{
    if (!PyTuple_Check(state) || PyTuple_GET_SIZE(state) < 2) {
        PyErr_SetString(PyExc_TypeError,
                        "_acquire_restore() takes what _release_save() gave");
        return -1;
    }
    *count = PyLong_AsSsize_t(PyTuple_GET_ITEM(state, 0));
    *depth = PyTuple_GET_SIZE(state) == 2
                 ? *count
                 : PyLong_AsSsize_t(PyTuple_GET_ITEM(state, 2));
    return PyErr_Occurred() ? -1 : 0;
}

/* The lock has been taken once: takes it again until its count is as
 * before. */
static PyObject *
take_again(PyObject *self, Py_ssize_t count)
{
    for (; count > 1; count--) {
        PyObject *taken = pf_methods_call_try(acquire, self);
        if (taken == NULL) {
            return NULL;
        }
        Py_DECREF(taken);
    }
    Py_RETURN_NONE;
}

static PyObject *
restore_in_fiber(PyObject *self, PfThread *t, PyObject *state)
{
    Py_ssize_t count, depth;
    int rc = counts_of(state, &count, &depth) < 0
                 ? -1
                 : pf_lot_retake(self, t, look, &depth);
    return rc < 0    ? NULL
           : rc == 1 ? take_again(self, count)
                     : Py_NewRef(Py_None);
}

/* Restores a state for the thread.  The lock itself knows no depth. */
static PyObject *
restore_outside(PyObject *self, PyObject *packed, PyObject *state)
{
    PyObject *two = PyTuple_Check(state) && PyTuple_GET_SIZE(state) == 3
                        ? PyTuple_GetSlice(state, 0, 2)
                        : Py_NewRef(state);
    PyObject *args = two == NULL      ? NULL
                     : packed != NULL ? PyTuple_Pack(1, two)
                                      : Py_NewRef(two);
    PyObject *done = args == NULL ? NULL : restore->original(self, args);
    Py_XDECREF(args);
    Py_XDECREF(two);
    return done;
}

static PyObject *
restored(PyObject *self, PyObject *packed, PyObject *state)
{
    PfThread *t = pf_thread_current;
    bool dies = t != NULL && CURRENT(t)->dying && pf_lot_is_ours();
    return dies || (parks_fibers(self) && pf_lot_parks() != NULL)
               ? restore_in_fiber(self, t, state)
               : restore_outside(self, packed, state);
}

static PyObject *
restore_tuple(PyObject *self, PyObject *args)
{
    return PyTuple_GET_SIZE(args) == 1
               ? restored(self, args, PyTuple_GET_ITEM(args, 0))
               : restore->original(self, args);
}

static PyObject *
restore_one(PyObject *self, PyObject *state)
{
    return restored(self, NULL, state);
}

/* constant after import of pyfiber._patch, which finds it */
static destructor die;

static void
rlock_dies(PyObject *self)
{
    if (pf_lot_is_busy()) {
        pf_lot_gone(self);
    }
    die(self);
}

/* constant after import, too */
static PfMethod list[] = {
    {"acquire", PF_PACKED(acquire_packed)},
    {"acquire", PF_UNPACKED(acquire_unpacked)},
    {"__enter__", PF_PACKED(acquire_packed)},
    {"__enter__", PF_BARE(acquire_bare)},
    {"release", PF_BARE(release_bare)},
    {"__exit__", PF_TUPLE(release_bare)},
    {"__exit__", PF_POSITIONAL(release_positional)},
    {"_at_fork_reinit", PF_BARE(reinit_bare)},
    {"_is_owned", PF_BARE(is_owned_bare)},
    {"_recursion_count", PF_BARE(recursion_count_bare)},
    {"_release_save", PF_BARE(save_bare)},
    {"_acquire_restore", PF_TUPLE(restore_tuple)},
    {"_acquire_restore", PF_ONE(restore_one)},
};
static void
found(PyTypeObject *type)
{
    release = pf_method_named(&pf_rlock_methods, "release");
    reinit = pf_method_named(&pf_rlock_methods, "_at_fork_reinit");
    is_owned = pf_method_named(&pf_rlock_methods, "_is_owned");
    recursion_count = pf_method_named(&pf_rlock_methods, "_recursion_count");
    save = pf_method_named(&pf_rlock_methods, "_release_save");
    restore = pf_method_named(&pf_rlock_methods, "_acquire_restore");
    acquire = pf_method_named(&pf_rlock_methods, "acquire");
    die = type->tp_dealloc;
    type->tp_dealloc = rlock_dies;
}

/* constant after import, but for `wanted` and `in_place` */
PfMethods pf_rlock_methods = PF_METHODS("_thread", "RLock", list, found);
