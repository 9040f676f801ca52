/* The switch itself, inline for the two that make it: Fiber.switch and
 * greenlet.switch. */
#ifndef PF_SWITCH_H
#define PF_SWITCH_H

#include "python/core/binding.h"

/* For who waits here until the other has ended, as a fiber that unwinds it
 * does: the thread goes on holding it, if it did. */
static inline void
pf_swap_state_and_hold(pf_thread *thread, pf_fiber *from, pf_fiber *to)
{
    PfThread *t = (PfThread *)thread;
    PyThreadState *ts = t->tstate;
    FiberObject *f = FIBER_OF(from);
    FiberObject *g = FIBER_OF(to);
    assert(ts == PyThreadState_Get());
    assert(!PyErr_Occurred());
    pystate_save(ts, f->saved, &f->context);
    pystate_load(ts, g->saved, &g->context);
}

static inline void
pf_swap_state(pf_thread *thread, pf_fiber *from, pf_fiber *to)
{
    pf_swap_state_and_hold(thread, from, to);
    if (PF_UNLIKELY(from->host_bits & PF_F_HELD)) {
        thread->zombie = from; /* on_reap drops the reference */
    }
}

/* `transfer` is set; `target` has a stack.  Comes back when somebody switches
 * here, with `transfer` for us. */
static inline void
pf_leave_for(PfThread *t, FiberObject *target)
{
    CURRENT(t)->core.state = PF_SUSPENDED;
    target->core.state = PF_RUNNING;
    pf_switch_with(&t->engine, &target->core, pf_swap_state);
}

#endif
