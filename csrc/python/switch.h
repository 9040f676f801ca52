/* The switch itself, inline for the two that make it: Fiber.switch and
 * greenlet.switch. */
#ifndef PF_SWITCH_H
#define PF_SWITCH_H

#include "python/binding.h"

static inline void
pf_swap_state(pf_thread *thread, pf_fiber *from, pf_fiber *to)
{
    PfThread *t = (PfThread *)thread;
    PyThreadState *ts = t->tstate;
    FiberObject *f = FIBER_OF(from);
    FiberObject *g = FIBER_OF(to);
    assert(ts == PyThreadState_Get());
    assert(!PyErr_Occurred());
    pystate_save(ts, f->saved, &f->context);
    pystate_load(ts, g->saved, &g->context);
    if (PF_UNLIKELY(f->core.host_bits & PF_F_HELD)) {
        t->engine.zombie = from; /* on_reap drops the reference */
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
