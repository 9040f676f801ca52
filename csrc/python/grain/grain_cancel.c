/* Cancelling a grain: by itself, or with the scope that it was born in.
 *
 * A grain enters no scopes of its own across its yields, so two things can
 * cancel it: cancel(), which sets PF_F_CANCELLED, and its base, the TaskGroup
 * that spawned it.  PF_F_CANCEL says that either did, as for a fiber.  A grain
 * that was called by one with a base has the same base, so that cancelling
 * that scope reaches both; the callee ends first.
 *
 * What waits within a step is the runner.  For that time it is a child of the
 * same scope, and cancelled if the grain is.
 */
#include "python/cancel/cancel.h"
#include "python/cancel/scope.h"
#include "python/core/thread.h"
#include "python/fiber/fiber.h"
#include "python/fiber/hub.h"
#include "python/grain/grain.h"

/* --------------------------------------------------- its place in a scope */

/* The head's `prev` is the tail, as in the list of the fibers. */
static void
link_member(ScopeObject *scope, GrainMember *member)
{
    member->base = (ScopeObject *)Py_NewRef((PyObject *)scope);
    member->next = NULL;
    if (scope->grains == NULL) {
        scope->grains = member->prev = member;
    } else {
        GrainMember *tail = scope->grains->prev;
        tail->next = member;
        member->prev = tail;
        scope->grains->prev = member;
    }
}

static void
unlink_member(GrainMember *member)
{
    ScopeObject *base = member->base;
    if (member == base->grains) {
        base->grains = member->next;
    } else {
        member->prev->next = member->next;
    }
    if (member->next != NULL) {
        member->next->prev = member->prev;
    } else if (base->grains != NULL) {
        base->grains->prev = member->prev; /* it was the tail */
    }
    member->base = NULL;
    Py_DECREF(base);
}

static int
adopt(ScopeObject *scope, GrainObject *g)
{
    g->member = PyMem_Malloc(sizeof(*g->member));
    if (g->member == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    g->member->grain = g;
    link_member(scope, g->member);
    return 0;
}

static void
disown(GrainObject *g)
{
    if (g->member != NULL) {
        unlink_member(g->member);
        PyMem_Free(g->member);
        g->member = NULL;
    }
}

/* What cancels it from outside: a scope, a fiber, or NULL. */
static PyObject *
outer_source(const GrainObject *g)
{
    return g->member != NULL ? g->member->base->source : NULL;
}

/* The scope around it, or its own PF_F_CANCELLED, has changed.  No Python
 * code runs in here. */
static void
refresh(GrainObject *g)
{
    bool cancelled =
        (g->core.host_bits & PF_F_CANCELLED) != 0 || outer_source(g) != NULL;
    if (cancelled == ((g->core.host_bits & PF_F_CANCEL) != 0)) {
        return;
    }
    if (!cancelled) { /* and what was swallowed no longer counts */
        g->core.host_bits &= ((uint32_t)1 << PF_F_DELIVERIES_SHIFT) - 1;
        g->core.host_bits &= ~(uint32_t)PF_F_CANCEL;
        return;
    }
    g->core.host_bits |= PF_F_CANCEL;
    if (!(g->core.host_word & GRAIN_CALLS)) { /* else its callee wakes it */
        pf_grain_wake(g, PF_WAKE_CANCEL);
    }
}

void
pf_scope_refresh_grains(ScopeObject *scope)
{
    for (GrainMember *m = scope->grains; m != NULL; m = m->next) {
        refresh(m->grain);
    }
}

/* See move_children in cancel.c. */
void
pf_scope_move_grains(ScopeObject *from, ScopeObject *to)
{
    while (from->grains != NULL) {
        GrainObject *g = from->grains->grain;
        bool cancel =
            from->source != NULL || (g->core.host_bits & PF_F_GROUPED) != 0;
        g->core.host_bits &= ~(uint32_t)PF_F_GROUPED;
        if (to != NULL) {
            unlink_member(g->member);
            link_member(to, g->member);
        } else {
            disown(g);
        }
        if (cancel) {
            pf_grain_cancel_now(g, from->why);
        }
        refresh(g);
    }
}

/* The run cancels it, not somebody whom the run cancels. */
bool
pf_grain_is_top(const GrainObject *g)
{
    return g->member == NULL ||
           !(g->member->base->fiber->core.host_bits & PF_F_SCHEDULED);
}

/* Start a new grain in `base`, which may be NULL: the run.  0 or -1. */
int
pf_grain_start_in(SchedulerObject *s, ScopeObject *base, GrainObject *g)
{
    if (base != NULL && adopt(base, g) < 0) {
        return -1;
    }
    if (pf_grain_attach(s, g) < 0) {
        disown(g);
        return -1;
    }
    refresh(g);
    return 0;
}

/* It is done. */
void
pf_grain_leave_scope(GrainObject *g)
{
    if (g->member == NULL) {
        return;
    }
    ScopeObject *base = (ScopeObject *)Py_NewRef((PyObject *)g->member->base);
    disown(g);
    pf_scope_member_done(base, &g->core, g->value);
    Py_DECREF(base);
}

/* ----------------------------------------------------------- within a step */

/* Its runner stands in for it. */
void
pf_grain_enter_step(FiberObject *runner, GrainObject *g)
{
    if (g->member != NULL) {
        pf_scope_adopt(g->member->base, runner);
    }
    if (g->core.host_bits & PF_F_CANCELLED) {
        pf_set_cancel(runner, g->cancel);
        runner->core.host_bits |= PF_F_CANCELLED; /* never idle again */
    }
    pf_fiber_refresh(runner);
}

void
pf_grain_leave_step(FiberObject *runner)
{
    pf_scope_disown(runner);
    pf_fiber_refresh(runner);
    runner->core.host_bits &= ((uint32_t)1 << PF_F_DELIVERIES_SHIFT) - 1;
}

/* ---------------------------------------------------------------- cancelling */

/* The first cancellation's reason stays.  False: it was cancelled before. */
static bool
mark_cancelled(GrainObject *g, PyObject *why)
{
    if (g->core.state == PF_DONE || (g->core.host_bits & PF_F_CANCELLED)) {
        return false;
    }
    g->core.host_bits |= PF_F_CANCELLED;
    g->cancel = Py_XNewRef(why);
    return true;
}

/* Owner thread; no Python code runs in here.  A grain that waits for one it has
 * called is woken by the end of that one. */
void
pf_grain_cancel_now(GrainObject *g, PyObject *why)
{
    while (mark_cancelled(g, why)) {
        refresh(g);
        if (g->core.state == PF_RUNNING && g->runner != NULL) {
            /* Its step waits somewhere; this runner is given up after it. */
            pf_cancel_now(g->runner, why);
            return;
        }
        if (g->core.state != PF_PARKED || !(g->core.host_word & GRAIN_CALLS)) {
            return;
        }
        g = (GrainObject *)g->yielded;
    }
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
pf_grain_cancel(GrainObject *g, PyObject *reason)
{
    PfThread *t = pf_this_thread();
    if (t == NULL) {
        return -1;
    }
    GrainObject *grain = pf_grain_current(t);
    PyObject *why = pf_reason_and_author(
        reason, grain != NULL ? (PyObject *)grain : (PyObject *)CURRENT(t));
    int rc = cancel(t, g, why);
    Py_XDECREF(why);
    return rc;
}

int
pf_grain_raise_cancelled(GrainObject *g)
{
    PyObject *source = outer_source(g);
    return source != NULL ? pf_raise_cancelled_by(source)
                          : pf_raise_cancelled_with(g->cancel, NULL);
}
