/* Cancels a grain: by itself, or with the scope that it was born in.
 *
 * A grain enters no scopes of its own across its yields, so two things can
 * cancel it: cancel(), which sets `cancel_called`, and its base, the TaskGroup
 * that spawned it.  `under_cancel` says that either did, as for a fiber.  A grain
 * that was called by one with a base has the same base, so that cancelling
 * that scope reaches both; the callee ends first.
 *
 * Within a step it is the runner that waits.  For that time it is a child of
 * the same scope, and is cancelled if the grain is.
 */
#include "python/cancel/cancel.h"
#include "python/cancel/scope.h"
#include "python/core/thread.h"
#include "python/grain/grain.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

/* --------------------------------------------------- its place in a scope */

/* What cancels it from outside: a scope, a fiber, or NULL. */
static PyObject *
outer_source(const GrainObject *g)
{
    return g->base != NULL ? g->base->source : NULL;
}

/* The scope around it, or its own `cancel_called`, has changed.  No Python
 * code runs in here. */
static void
refresh(GrainObject *g)
{
    bool cancelled = g->cancel_called || outer_source(g) != NULL;
    if (cancelled == g->under_cancel) {
        return;
    }
    if (!cancelled) { /* and swallowed ones no longer count */
        g->deliveries = 0;
        g->under_cancel = false;
        return;
    }
    g->under_cancel = true;
    if (!g->calls) { /* else its callee wakes it */
        pf_grain_wake(g, PF_WAKE_CANCEL);
    }
}

void
pf_grain_refresh(PfTaskObject *task)
{
    refresh((GrainObject *)(void *)task);
}

/* Does the run itself cancel it, and not a fiber or scope that the run
 * cancels? */
bool
pf_grain_is_top(const GrainObject *g)
{
    return g->base == NULL || !g->base->fiber->scheduled;
}

/* Without a GIL two threads may have found it new, and one of them queues it:
 * each looks at what the other one claims after its own claim.  False: another
 * one has it, or had it. */
static bool
claim(SchedulerObject *s, GrainObject *g, GrainPoolObject *pool)
{
    if (!PF_FREE_THREADED) {
        return true;
    }
    if (!pf_claim_pointer(&g->core.scheduler, &s->core)) {
        return false;
    }
    bool fresh = g->core.state == PF_NEW &&
                 pf_claimed_pointer(&g->pool) == (void *)pool;
    if (!fresh) {
        pf_unclaim_pointer(&g->core.scheduler);
    }
    return fresh;
}

/* Start a new grain in `base`, which may be NULL: the run; it is in `pool`, or
 * NULL: in none.  0 or -1. */
int
pf_grain_start_in(SchedulerObject *s, ScopeObject *base, GrainObject *g,
                  GrainPoolObject *pool)
{
    if (!claim(s, g, pool)) {
        PyErr_SetString(pf.fiber_error,
                        "the grain has been started already: make a new one");
        return -1;
    }
    if (base != NULL) {
        pf_scope_adopt(base, PF_TASK(g));
    }
    if (pf_grain_attach(s, g) < 0) {
        g->core.scheduler = NULL;
        if (base != NULL) {
            pf_scope_disown(PF_TASK(g));
        }
        return -1;
    }
    refresh(g);
    return 0;
}

/* ----------------------------------------------------------- within a step */

/* Its runner stands in for it. */
void
pf_grain_enter_step(FiberObject *runner, GrainObject *g)
{
    if (g->base != NULL) {
        pf_scope_adopt(g->base, PF_TASK(runner));
    }
    if (g->cancel_called) {
        pf_cancel_note(PF_TASK(runner), pf_task_rare(PF_TASK(g))->cancel);
        runner->cancel_called = true; /* never idle again */
    }
    pf_scope_refresh_fiber(runner);
}

void
pf_grain_leave_step(FiberObject *runner)
{
    pf_scope_disown(PF_TASK(runner));
    pf_scope_refresh_fiber(runner);
    runner->deliveries = 0;
}

/* ---------------------------------------------------------------- cancelling */

/* The first reason is kept.  False: it was already cancelled. */
static bool
mark_cancelled(GrainObject *g, PyObject *why)
{
    if (g->core.state == PF_DONE || g->cancel_called) {
        return false;
    }
    g->cancel_called = true;
    pf_cancel_note(PF_TASK(g), why);
    return true;
}

/* Owner thread; no Python code runs in here.  A grain that waits for a callee
 * is woken by the callee's end. */
void
pf_grain_cancel_now(GrainObject *g, PyObject *why)
{
    while (mark_cancelled(g, why)) {
        refresh(g);
        if (g->core.state == PF_RUNNING && g->runner != NULL) {
            /* Its step waits somewhere; the runner is not reused afterwards.
             */
            pf_cancel_now(g->runner, why);
            return;
        }
        if (g->core.state != PF_PARKED || !g->calls) {
            return;
        }
        g = (GrainObject *)g->yielded;
    }
}

void
pf_grain_cancel_task(PfTaskObject *task, PyObject *why)
{
    pf_grain_cancel_now((GrainObject *)(void *)task, why);
}

static int
cancel(PfThread *t, GrainObject *g, PyObject *why)
{
    if (g->core.state == PF_DONE) {
        return 0;
    }
    if (g->core.scheduler == NULL) {
        if (g->core.state == PF_NEW || g->core.state == PF_SUSPENDED) {
            pf_grain_cancel_now(g, why);
            pf_grain_abandon(t, g);
        }
    } else if (pf_grain_is_here(g)) {
        pf_grain_cancel_now(g, why);
    } else {
        return pf_grain_post_cancel(g, why);
    }
    return 1;
}

/* 1: asked; 0: it is done; -1: exception. */
int
pf_grain_cancel(PfTaskObject *task, PyObject *reason)
{
    GrainObject *g = (GrainObject *)(void *)task;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return -1;
    }
    GrainObject *grain = pf_grain_current(t);
    PyObject *why = pf_cancel_why(
        reason, grain != NULL ? (PyObject *)grain : (PyObject *)CURRENT(t));
    int rc = cancel(t, g, why);
    Py_XDECREF(why);
    return rc;
}

int
pf_grain_raise_cancelled(GrainObject *g)
{
    PyObject *source = outer_source(g);
    return source != NULL ? pf_cancelled_raise_by(source)
                          : pf_cancelled_raise_with(
                                pf_task_rare(PF_TASK(g))->cancel, NULL);
}
