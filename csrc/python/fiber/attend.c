/* What has to be done before the running fiber is left: see attend.h. */
#include "python/fiber/attend.h"

#include "python/core/import.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/fiber/fiber.h"
#include "python/fiber/overflow.h"
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

static FiberObject *
find_dropped(PfThread *t)
{
    for (FiberObject *f = t->live; f != NULL; f = f->next) {
        if (f->dropped) {
            return f;
        }
    }
    return NULL;
}

/* Fibers whose last reference another thread dropped; it left one to us. */
void
pf_unwind_dropped(PfThread *t)
{
    t->attention &= ~(uint32_t)PF_ATT_DROPPED;
    FiberObject *fiber;
    while ((fiber = find_dropped(t)) != NULL) {
        fiber->dropped = false;
        if (pf_fiber_kind(fiber)->is_part) {
            Py_DECREF(fiber->greenlet); /* a greenlet sees to its own end */
            continue;
        }
        if (Py_REFCNT(fiber) == 1) { /* nothing else refers to it since */
            pf_fiber_unwind(t, fiber);
        }
        Py_DECREF(fiber);
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

void
pf_close_reserve(PfThread *t)
{
    FiberObject *self = CURRENT(t);
    char here = 0;
    t->attention &= ~(uint32_t)PF_ATT_RESERVE;
    if (self->fiber.stack == NULL) {
        return;
    }
    pf_end_watch(t, &here);
    pf_stack_close_reserve(self->fiber.stack, &here);
    if (!pf_stack_reserve_is_open(self->fiber.stack)) {
        pystate_replenish(t->tstate, self->saved);
    } else {
        t->attention |= PF_ATT_RESERVE;
    }
}

int
pf_attend(PfThread *t)
{
    if (t->attention & PF_ATT_RESERVE) {
        pf_close_reserve(t);
    }
    if (t->collecting == t->engine.current && !collector_really_runs()) {
        pf_mark_collector(t, false);
    }
    if (t->collecting == t->engine.current) {
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
    if (t->attention & PF_ATT_DROPPED) {
        pf_unwind_dropped(t);
    }
    return 0;
}
