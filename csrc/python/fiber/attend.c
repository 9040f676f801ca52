/* What has to be done before the running fiber is left: see attend.h. */
#include "python/fiber/attend.h"

#include "python/core/import.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/fiber/fiber.h"
#include "python/fiber/overflow.h"
#include "python/fiber/owner.h"
#include "python/fiber/pack.h"
#include "python/fiber/unwind.h"

/* The collector reports its beginning and end through gc.callbacks.  If our
 * callback was removed in between, the end was not reported. */
static bool
collector_really_runs(void)
{
    PyObject *list = pf_import_from("gc", "callbacks");
    PyObject *ours = pf_import_from("pyfiber._engine", "_gc_callback");
    bool there = true;
    if (list != NULL && ours != NULL) {
        there = PySequence_Contains(list, ours) != 0;
    }
    PyErr_Clear(); /* unknown: assume it is there */
    Py_XDECREF(ours);
    Py_XDECREF(list);
    return there;
}

/* What it leaves is in a list of the owner's, as without a GIL no other thread
 * may write to a fiber.  If the thread has ended, or there is no memory, the
 * object stays for good. */
void
pf_leave_to_owner(PfThread *owner, PyObject *op)
{
    pf_mutex_lock(&pf_threads_lock);
    PfThread *t = pf_threads;
    while (t != NULL && t != owner) {
        t = t->next;
    }
    size_t bytes = t == NULL ? 0 : (t->left_count + 1) * sizeof(PyObject *);
    PyObject **left = t == NULL ? NULL : PyMem_RawRealloc(t->left, bytes);
    if (left != NULL) {
        t->left = left;
        left[t->left_count++] = op;
        pf_attend_to(t, PF_ATT_DROPPED);
    }
    pf_mutex_unlock(&pf_threads_lock);
}

/* The last that was left, or NULL. */
static PyObject *
take_left(PfThread *t)
{
    pf_mutex_lock(&pf_threads_lock);
    PyObject *op = t->left_count == 0 ? NULL : t->left[--t->left_count];
    if (op == NULL) {
        PyMem_RawFree(t->left);
        t->left = NULL;
    }
    pf_mutex_unlock(&pf_threads_lock);
    return op;
}

/* Fibers whose last reference another thread dropped, or a collection; it left
 * one to us.  (A greenlet sees to its own end.)  If this is not the time yet,
 * the next switching point does it. */
void
pf_unwind_dropped(PfThread *t)
{
    if (pf_must_stay(t)) {
        return;
    }
    pf_attended(t, PF_ATT_DROPPED);
    PyObject *op;
    while ((op = take_left(t)) != NULL) {
        if (PyObject_TypeCheck(op, pf_fiber_type) && Py_REFCNT(op) == 1 &&
            pf_fiber_can_unwind((FiberObject *)op)) {
            pf_fiber_unwind(t,
                            (FiberObject *)op); /* nothing else refers to it */
        }
        Py_DECREF(op);
    }
}

void
pf_unwind_left_here(void)
{
    PfThread *t = pf_tls_thread;
    if (t != NULL && (t->attention & PF_ATT_DROPPED)) {
        pf_unwind_dropped(t);
    }
}

/* A fiber may be left, and go on, while it runs in its reserve.  From then on
 * each fiber of the thread is looked at as it is left, until the one that runs
 * in its reserve is seen above that. */
void
pf_close_reserve(PfThread *t)
{
    FiberObject *self = CURRENT(t);
    pf_stack *stack = self->fiber.stack;
    char here = 0;
    bool open = false;
    pf_attended(t, PF_ATT_RESERVE);
    if (stack != NULL) {
        pf_end_watch(t, &here);
        pf_stack_close_reserve(stack, &here);
        open = pf_stack_reserve_is_open(stack);
        if (!open) {
            pystate_replenish(t->tstate, self->saved);
        }
    }
    t->in_reserve += (size_t)open - self->in_reserve;
    self->in_reserve = open;
    if (t->in_reserve != 0) {
        pf_attend_to(t, PF_ATT_RESERVE);
    }
}

bool
pf_collector_runs_here(PfThread *t)
{
    if (t->collecting == t->engine.current && !collector_really_runs()) {
        pf_mark_collector(t, false);
    }
    return t->collecting == t->engine.current;
}

int
pf_attend(PfThread *t)
{
    if (t->attention & PF_ATT_RESERVE) {
        pf_close_reserve(t);
    }
    if (pf_collector_runs_here(t)) {
        PyErr_SetString(pf.fiber_error,
                        "cannot leave this fiber while the garbage collector "
                        "runs (in __del__ or a weakref callback, say)");
        return -1;
    }
    if (t->attention & PF_ATT_NO_SWITCH) {
        PyErr_Format(pf.fiber_error, "cannot leave this fiber %s",
                     t->no_switch_why);
        return -1;
    }
    if (t->attention & PF_ATT_CALLS) {
        pf_run_thread_calls(t);
    }
    if (t->attention & PF_ATT_DROPPED) {
        pf_unwind_dropped(t);
    }
    return 0;
}
