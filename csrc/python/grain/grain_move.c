/* How a grain comes to a scheduler and leaves it; see grain.h. */
#include "python/core/list.h"
#include "python/core/tstate.h"
#include "python/grain/grain.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

/* Gives the grain to the scheduler, which belongs to this thread.  A grain
 * that was taken out of a pool continues its wait.  Returns 0, or -1 with an
 * exception and nothing changed. */
int
pf_grain_attach(SchedulerObject *s, GrainObject *g)
{
    PfGrains *grains = pf_grains_at(s);
    if (pf_grains_begin(s) < 0) {
        return -1;
    }
    int kind = g->waits_for;
    g->core.scheduler = &s->core;
    Py_INCREF(s);
    Py_INCREF(g); /* until it has ended */
    PF_LIST_PUSH(grains->live, g);
    s->alive++;
    s->foreground++;
    if (s->ending && pf_grain_is_top(g)) {
        g->under_cancel = true;
        g->cancel_called = true;
    }
    g->core.state = PF_RUNNING;
    g->waits_for = PF_WAIT_NOTHING;
    if (kind == PF_WAIT_NOTHING) {
        pf_grain_ready(g);
    } else if (pf_grain_dispatch(s->thread, g, g->yielded) < 0) {
        g->value = pystate_take_exception();
        g->throws = true;
        pf_grain_ready(g);
    }
    if (g->core.state == PF_READY && g->pool != NULL &&
        g->pool->policy != NULL) {
        pf_grain_pool_add(g->pool, g);
    }
    pf_scheduler_notify_host(s);
    /* Take the grain out of its pool now, unless it has left while its
     * policy's code let others run, or leaves after its present step. */
    if (g->leaves && g->core.scheduler == &s->core &&
        g->core.state != PF_RUNNING) {
        pf_grain_leave(g);
    }
    return 0;
}

/* Takes the grain away from its scheduler, whether it has ended or not.  Drops
 * the references. */
void
pf_grain_detach(GrainObject *g)
{
    SchedulerObject *s = pf_grain_scheduler(g);
    PF_LIST_REMOVE(pf_grains_at(s)->live, g);
    g->core.scheduler = NULL;
    s->alive--;
    s->foreground--;
    if (s->foreground == 0 || s->fatal != NULL) {
        pf_scheduler_wake_hub(s);
    }
    Py_DECREF(s);
    Py_DECREF(g);
}

/* Takes a grain that is not running out of its pool and scheduler.  When it is
 * queued again, it begins its wait anew. */
void
pf_grain_leave(GrainObject *g)
{
    int kind = g->waits_for;
    assert(g->pool != NULL);
    if (g->core.state == PF_READY) {
        pf_queue_remove(&g->core.scheduler->ready, &g->core);
    }
    bool over = g->core.state != PF_PARKED &&
                (kind == PF_WAIT_TIME || kind == PF_WAIT_ANSWER);
    if (over || (pf_grain_was_granted(g) && !pf_grain_receives(g))) {
        kind = PF_WAIT_NOTHING; /* the wait is over: do not repeat it */
    }
    Py_INCREF(g);
    g->core.state = PF_RUNNING; /* for code that runs meanwhile */
    pf_grain_unwait(g);
    g->waits_for = (uint8_t)kind;
    g->core.wake = PF_WAKE_NONE;
    g->core.state = PF_SUSPENDED;
    g->leaves = false;
    g->calls = false;
    g->on_hold = false;
    pf_grain_pool_leave(g);
    Py_DECREF(g);
}
