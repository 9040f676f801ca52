/* Cancels a grain: by cancel(), or with the scope that it was born in.
 *
 * Across its yields a grain cannot stay in a scope that it has entered.  So
 * only two things can cancel it: cancel(), which sets `cancel_called`, and its
 * base, the TaskGroup that spawned it.  `under_cancel` says that either did,
 * as for a fiber. A grain that was called by a grain with a base has the same
 * base, so that cancelling that scope reaches both; the callee ends first.
 *
 * Within a step it is the runner that waits.  For that time the runner is a
 * child of the same scope, and is cancelled when the grain is.
 */
#include "python/cancel/cancel.h"
#include "python/cancel/scope.h"
#include "python/core/thread.h"
#include "python/grain/grain.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

/* ------------------------------------------------- the scope around a grain */

/* Returns what cancels the grain from outside: a scope, a fiber, or NULL. */
static PyObject *
outer_source(const GrainObject *g)
{
    return g->base != NULL ? g->base->source : NULL;
}

/* Updates `under_cancel` after the scope around the grain, or its
 * `cancel_called`, has changed.  Runs no Python code. */
static void
refresh(GrainObject *g)
{
    bool cancelled = g->cancel_called || outer_source(g) != NULL;
    if (cancelled == g->under_cancel) {
        return;
    }
    if (!cancelled) { /* and swallowed cancellations no longer count */
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

/* Is the grain cancelled by the run itself, and not by a fiber or scope that
 * the run cancels? */
bool
pf_grain_is_top(const GrainObject *g)
{
    return g->base == NULL || !g->base->fiber->scheduled;
}

/* Claims a new grain for this scheduler.  Returns false if another thread has
 * it, or had it.  Without a GIL two threads may have found it new, one to
 * start it and one to queue it in a pool: each makes its own claim first and
 * then looks for the other's. */
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

/* Starts a new grain in the scope `base`; NULL: in the run.  `pool` is the
 * pool that it is in, or NULL.  Returns 0 or -1. */
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

/* ------------------------------------------------------------ within a step */

/* Makes the runner a child of the grain's scope, as it is the runner that
 * waits. */
void
pf_grain_enter_step(FiberObject *runner, GrainObject *g)
{
    if (g->base != NULL) {
        pf_scope_adopt(g->base, PF_TASK(runner));
    }
    if (g->cancel_called) {
        pf_cancel_note(PF_TASK(runner), pf_task_rare(PF_TASK(g))->cancel);
        runner->cancel_called = true; /* not reused after this step */
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

/* Records the first reason.  Returns false if the grain was already cancelled,
 * or has ended. */
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

/* Cancels the grain, on its own thread.  Runs no Python code.  A grain that
 * waits for a callee is not woken: the callee is cancelled, and its end wakes
 * the caller. */
void
pf_grain_cancel_now(GrainObject *g, PyObject *why)
{
    while (mark_cancelled(g, why)) {
        refresh(g);
        if (g->core.state == PF_RUNNING && g->runner != NULL) {
            /* The grain's step is waiting somewhere; this runner is not reused
             * afterwards. */
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

/* Cancels the grain, from any thread.  Returns 1 if it has been asked to end,
 * 0 if it had ended, and -1 with an exception. */
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
