/* switch/: leaving one fiber for another.
 *
 *   switch.h    which fiber may be entered, the switch, a first call, an end
 *   pending.h   what must be done before the running fiber is left
 *   home.h      bringing a packed stack home first
 *   unwind.h    ending a fiber that is no longer needed
 *   overflow.h  what the fault handler calls
 *   tracing.h, profiled.h, locals.h   what else is switched: trace functions,
 *               the stacks of profilers, locals
 *
 * The switch itself is inline for its two users, Fiber.switch and
 * greenlet.switch.
 */
#ifndef PF_PYTHON_SWITCH_H
#define PF_PYTHON_SWITCH_H

#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"

/* Calls without arguments. Faster than PyObject_CallNoArgs(), which reads a
 * thread-local and checks a function's result twice; the function itself does
 * both. */
static inline PyObject *
pf_switch_call(PyObject *callable)
{
    return PyFunction_Check(callable)
               ? ((PyFunctionObject *)callable)
                     ->vectorcall(callable, NULL, 0, NULL)
               : PyObject_CallNoArgs(callable);
}

extern const pf_host pf_switch_host;
/* The pf_task_ops that all kinds of fibers share. */
pf_fiber *pf_switch_first(pf_scheduler *s, pf_task *core);
pf_fiber *pf_switch_run(pf_thread *thread, pf_fiber *fiber);
void pf_switch_reap(pf_thread *thread, pf_fiber *fiber);
/* Switch to `target`, where `value` (borrowed) is returned, or `exc` is
 * raised. What the switch back brings, or NULL with an exception. */
PyObject *pf_switch_to(FiberObject *target, PyObject *value);
PyObject *pf_switch_throw(FiberObject *target, PyObject *exc);
/* The same, for a caller that has checked that `target` may be entered now by
 * this `way` (pf_home_way_to), and that nothing is pending. */
PyObject *pf_switch_give(PfThread *t, FiberObject *target, pf_fiber *way,
                         PyObject *value);
/* End a fiber that has not run, with `result` (stolen) or, if NULL, the
 * exception that is set. */
void pf_switch_end(PfThread *t, FiberObject *fiber, PyObject *result);
/* Give the fiber a stack; from now on it belongs to this thread. 0, or -1 with
 * MemoryError; or PF_LOOK_AGAIN, once, after a garbage collection for lack of
 * a stack: code has run, so the caller must check the fiber again.
 * `*collected` is false at the first call. */
int pf_switch_give_stack(PfThread *t, FiberObject *fiber, bool *collected);
#define PF_LOOK_AGAIN 2
/* The same for a fiber that no other code has seen. 0 or -1. */
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
/* An instance of an exception class, or the instance itself: a new reference.
 * NULL with TypeError. */
PyObject *pf_switch_exception(PyObject *exc);

/* The part of a switch that is needed only for tracers and profilers. */
void pf_switch_watched(PfThread *t, FiberObject *from, FiberObject *to);

/* Switches the thread state when `from` waits here until `to` has ended, as
 * when it unwinds that: if the thread holds `from`, it keeps doing so. */
static inline void
pf_switch_state_and_hold(pf_thread *thread, pf_fiber *from, pf_fiber *to)
{
    PfThread *t = (PfThread *)thread;
    PyThreadState *ts = t->tstate;
    FiberObject *f = FIBER_OF(from);
    FiberObject *g = FIBER_OF(to);
    assert(ts == PyThreadState_Get());
    assert(!PyErr_Occurred());
    PyState *left = f->saved, *entered = g->saved;
    pystate_save(ts, left, &f->context);
    pystate_load(ts, entered, &g->context);
    if (PF_UNLIKELY(pystate_watched(ts, left, entered))) {
        pf_switch_watched(t, f, g);
    }
}

static inline void
pf_switch_state(pf_thread *thread, pf_fiber *from, pf_fiber *to)
{
    if (PF_UNLIKELY(FIBER_OF(from)->held)) {
        thread->zombie = from; /* `reap` drops the thread's reference */
    }
    pf_switch_state_and_hold(thread, from, to);
}

/* Switches to `target` by `way` (see pf_home_way_to); the caller has set
 * `transfer`. Returns when another fiber switches back here, with a new
 * `transfer`. */
static inline void
pf_switch_leave_for(PfThread *t, FiberObject *target, pf_fiber *way)
{
    CURRENT(t)->core.state = PF_SUSPENDED;
    target->core.state = PF_RUNNING;
    pf_fiber_switch_with(&t->engine, way, pf_switch_state);
}

#endif
