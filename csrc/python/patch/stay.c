/* Patched waits in places where no fiber may park: see stay.h. */
#include "python/patch/stay.h"

#include "python/core/facade.h"
#include "python/core/state.h"
#include "python/run/help.h"
#include "python/run/run.h"
#include "python/task/deadline.h"

static const char *
why_no_switch(const PfThread *t)
{
    if (t->collecting == t->engine.current) {
        return "while the garbage collector runs (in __del__ or a weakref "
               "callback, say)";
    }
    return t->pending & PF_PENDING_NO_SWITCH ? t->no_switch_why
                                             : "in the child of a fork";
}

/* Returns the holder if it is a fiber of this thread, which cannot go on while
 * the thread blocks; else NULL. */
static FiberObject *
holder_here(PyObject *object, const PfThread *t)
{
    FiberObject *holder = pf_lot_holder(pf_lot_held(object));
    return holder != NULL && holder->thread == t ? holder : NULL;
}

int
pf_stay_check(PyObject *object, PfThread *t)
{
    FiberObject *holder = holder_here(object, t);
    if (holder == NULL && pf_help_is_possible(t->scheduler)) {
        return 0;
    }
    PyObject *text = PyObject_CallFunction(
        pf_facade.cannot_wait, "OOs", object,
        holder == NULL ? Py_None : (PyObject *)holder, why_no_switch(t));
    if (text != NULL) {
        PyErr_SetObject(pf.fiber_error, text);
        Py_DECREF(text);
    }
    return -1;
}

/* constant after import */
PfKeeps pf_stay_of_thread = {.size = sizeof(bool)};

const PfPart pf_stay_part = {.of_thread = &pf_stay_of_thread};

PyObject *
pf_stay_loop_logs(PyObject *module, PyObject *yes)
{
    (void)module;
    PfThread *t = pf_thread_current;
    bool before = t != NULL && *pf_stay_logs(t);
    if (t != NULL) {
        *pf_stay_logs(t) = yes == Py_True;
    }
    return PyBool_FromLong(before);
}

/* Blocks for as long as a run may stall without a warning, then logs one.
 * Returns 1 if the lock has been taken, 2 if the wait goes on, and -1 with an
 * exception. */
static int
block_for_a_while(const PfMethod *acquire, PyObject *lock, const PfThread *t)
{
    int64_t limit = pf_load_relaxed(&pf_run_stall_limit);
    if (limit <= 0) {
        return 2;
    }
    PyObject *taken =
        pf_methods_call_timed(acquire, lock, (double)limit / 1e9);
    if (taken == NULL || taken == Py_True) {
        Py_XDECREF(taken);
        return taken == NULL ? -1 : 1;
    }
    Py_DECREF(taken);
    PyObject *logged = PyObject_CallFunction(pf_facade.log_blocked, "Os", lock,
                                             why_no_switch(t));
    Py_XDECREF(logged);
    return logged == NULL ? -1 : 2;
}

int
pf_stay_acquire(const PfMethod *acquire, PyObject *lock, PfThread *t,
                int64_t deadline)
{
    PyObject *taken = pf_methods_call_try(acquire, lock);
    if (taken == NULL || taken == Py_True || deadline == PF_NOW) {
        int rc = taken == NULL ? -1 : taken == Py_True;
        Py_XDECREF(taken);
        return rc;
    }
    Py_DECREF(taken);
    if (pf_stay_check(lock, t) < 0) {
        return -1;
    }
    return deadline == PF_NEVER ? block_for_a_while(acquire, lock, t) : 2;
}
