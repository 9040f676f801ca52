/* switch/: leaving one fiber for another.
 *
 *   switch.h    which fiber may be entered, the switch, a first call, an end
 *   pending.h   what has to be done before the running one is left
 *   home.h      a packed stack comes home first
 *   unwind.h    ending one that nobody needs any more
 *   overflow.h  what the handler of faults asks
 *   tracing.h, profiled.h, locals.h   what goes along: trace functions, locals
 *
 * The switch itself is inline for the two that make it, Fiber.switch and
 * greenlet.switch. */
#ifndef PF_PYTHON_SWITCH_H
#define PF_PYTHON_SWITCH_H

#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"

/* Faster than PyObject_CallNoArgs(), which reads a thread-local and checks a
 * function's result twice; the function itself does both. */
static inline PyObject *
pf_switch_call(PyObject *callable)
{
    return PyFunction_Check(callable)
               ? ((PyFunctionObject *)callable)
                     ->vectorcall(callable, NULL, 0, NULL)
               : PyObject_CallNoArgs(callable);
}

extern const pf_host pf_switch_host;
/* Operations of every kind of fiber. */
pf_fiber *pf_switch_first(pf_scheduler *s, pf_task *core);
pf_fiber *pf_switch_run(pf_thread *thread, pf_fiber *fiber);
void pf_switch_reap(pf_thread *thread, pf_fiber *fiber);
/* `value` is borrowed. */
PyObject *pf_switch_to(FiberObject *target, PyObject *value);
PyObject *pf_switch_throw(FiberObject *target, PyObject *exc);
/* `target` may be entered now, by this way (pf_home_way_to), and nothing needs
 * attention. */
PyObject *pf_switch_give(PfThread *t, FiberObject *target, pf_fiber *way,
                         PyObject *value);
/* A fiber ends without having run. `exc` stolen or NULL. */
void pf_switch_end(PfThread *t, FiberObject *fiber, PyObject *result);
/* From now on the fiber belongs to this thread. 0, or -1 with MemoryError; or
 * PF_LOOK_AGAIN, once, after a garbage collection for lack of a stack: code
 * has run, so the caller must check the fiber again.  `*collected` is false at
 * the first call. */
int pf_switch_give_stack(PfThread *t, FiberObject *fiber, bool *collected);
#define PF_LOOK_AGAIN 2
/* The same for a fiber that no other code has seen: 0 or -1. */
static inline int
pf_switch_give_stack_fresh(PfThread *t, FiberObject *fiber)
{
    bool collected = false;
    int rc;
    do {
        rc = pf_switch_give_stack(t, fiber, &collected);
    } while (PF_UNLIKELY(rc == PF_LOOK_AGAIN));
    return rc;
}
void pf_switch_take_stack(FiberObject *fiber);
PyObject *pf_switch_leave_nothing(PfThread *t, FiberObject *self,
                                  PyObject *result);
void pf_unwind_forget_schedule(FiberObject *fiber);
void pf_switch_on(pf_thread *thread, pf_fiber *from, pf_fiber *to);
PyObject *pf_switch_landed(PfThread *t);
/* An instance of an exception class, or the instance itself; new reference. */
PyObject *pf_switch_exception(PyObject *exc);

/* The part of a switch that is needed where somebody traces or profiles. */
void pf_switch_watched(PfThread *t, FiberObject *from, FiberObject *to);

/* For a fiber that waits here until the other one has ended, as when it
 * unwinds it: the thread keeps holding it, if it did. */
static inline void
pf_switch_state_and_hold(pf_thread *thread, pf_fiber *from, pf_fiber *to)
{
    PfThread *t = (PfThread *)thread;
    PyThreadState *ts = t->tstate;
    FiberObject *f = FIBER_OF(from);
    FiberObject *g = FIBER_OF(to);
    assert(ts == PyThreadState_Get());
    assert(!PyErr_Occurred());
    pystate_save(ts, f->saved, &f->context);
    pystate_load(ts, g->saved, &g->context);
    if (PF_UNLIKELY(pystate_watched(ts, f->saved))) {
        pf_switch_watched(t, f, g);
    }
}

static inline void
pf_switch_state(pf_thread *thread, pf_fiber *from, pf_fiber *to)
{
    if (PF_UNLIKELY(FIBER_OF(from)->held)) {
        thread->zombie = from; /* its `reap` drops the reference */
    }
    pf_switch_state_and_hold(thread, from, to);
}

/* `transfer` is set; `way` leads to `target` (see pf_home_way_to).  Returns
 * when something switches back here, with `transfer` for us. */
static inline void
pf_switch_leave_for(PfThread *t, FiberObject *target, pf_fiber *way)
{
    CURRENT(t)->core.state = PF_SUSPENDED;
    target->core.state = PF_RUNNING;
    pf_fiber_switch_with(&t->engine, way, pf_switch_state);
}

#endif
