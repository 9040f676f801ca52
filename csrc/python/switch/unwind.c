/* Unwinds suspended fibers that are no longer needed: see unwind.h. */
#include "python/switch/unwind.h"

#include "python/core/parts.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/switch/home.h"
#include "python/switch/switch.h"
#include "python/task/fiber.h"
#include "python/task/outcome.h"
#include "python/waitq/waitq.h"

/* Removes the fiber from the ready queue and the timers. */
void
pf_unwind_forget_schedule(FiberObject *fiber)
{
    pf_scheduler *s = fiber->core.scheduler;
    if (s == NULL) {
        return;
    }
    if (fiber->core.state == PF_READY) {
        pf_queue_remove(&s->ready, &fiber->core);
    }
    pf_timers_remove(&s->timers, &fiber->core.timer);
}

/* Is the loop that `hub` runs in use? The end of a fiber of the loop needs the
 * loop; so the loop is in use while such a fiber runs, or waits here for the
 * end of a fiber that it unwinds. */
static bool
loop_is_needed(PfThread *t, FiberObject *hub)
{
    if (t->scheduler == NULL || t->scheduler->core.hub != &hub->fiber) {
        return false;
    }
    FiberObject *f = t->live;
    while (f != NULL &&
           (f == hub || f->core.scheduler != &t->scheduler->core ||
            (f->core.state != PF_RUNNING && f != CURRENT(t)))) {
        f = f->next;
    }
    return f != NULL;
}

bool
pf_unwind_may(FiberObject *fiber)
{
    return fiber->fiber.stack != NULL && fiber->core.state != PF_RUNNING &&
           fiber->core.state != PF_DONE && fiber != CURRENT(fiber->thread) &&
           !(fiber->is_hub && loop_is_needed(fiber->thread, fiber));
}

/* The collector clears the objects that die with a fiber in any order: perhaps
 * before the fiber's end, if a subclass has replaced the fiber's finalizer by
 * __del__ or the fiber was dropped on another thread. A look-up of a variable
 * in a cleared context crashes, so the fiber gets a new context for its end.
 */
void
pf_unwind_renew_context(FiberObject *fiber)
{
    if (pf_outcome_context_is_cleared(fiber->context)) {
        Py_CLEAR(fiber->context);
    }
}

static PyObject *
fiber_exit(void)
{
    PyObject *exit = pf_switch_exception(pf.fiber_exit);
    return exit != NULL ? exit : pystate_take_exception();
}

/* Ends a packed fiber without unwinding it, because there is no memory for its
 * stack, and never will be: what the stack holds is lost. */
static PyObject *
end_without_stack(PfThread *t, FiberObject *fiber)
{
    pf_waitq_forget_fiber(fiber);
    pf_fiber_release_stack(&t->engine, &fiber->fiber);
    fiber->stack_size = 0; /* `saved` was in the stack's room */
    PyErr_WriteUnraisable((PyObject *)fiber);
    PyErr_SetNone(pf.fiber_exit);
    pf_unwind_forget_schedule(fiber);
    if (!fiber->scheduled) {
        Py_INCREF(fiber); /* pf_switch_end drops a scheduler's */
    }
    pf_switch_end(t, fiber, NULL);
    return Py_NewRef(Py_None);
}

bool
pf_unwind_cuts_off(const PfThread *t)
{
    const FiberObject *self = CURRENT(t);
    return self->dying && pf_fiber_kind(self)->is_thread &&
           t->no_switch == t->unwind_depth && t->collecting != &self->fiber;
}

int
pf_unwind_abandon(PfThread *t)
{
    pf_fiber *way = pf_home_way_to(t, t->unwinder);
    if (way == NULL) {
        return -1;
    }
    pf_fiber_switch_with(&t->engine, way, pf_switch_state_and_hold);
    Py_FatalError("an abandoned thread was resumed");
}

/* Ends an abandoned thread for all others. Other objects may refer to the
 * frames of the thread; so the fiber keeps its stack and its locals, and a
 * reference that is never dropped keeps the fiber. */
static PyObject *
end_abandoned(PfThread *t, FiberObject *fiber)
{
    fiber->core.state = PF_SUSPENDED;
    pf_waitq_forget_fiber(fiber);
    if (fiber->view != NULL) {
        pf_parts_hooks.view_done(fiber);
    }
    Py_INCREF(fiber);
    PyErr_SetNone(pf.fiber_exit);
    pf_switch_end(t, fiber, NULL);
    return Py_NewRef(Py_None);
}

/* Raises `exit` (stolen) in `fiber` and lets it run to its end, which leads
 * back here (see heir() in switch.c). Returns its result, or NULL with an
 * exception. The fiber that waits here stays "running": nothing else may enter
 * or unwind it meanwhile. */
static PyObject *
run_to_its_end(PfThread *t, FiberObject *fiber, PyObject *exit)
{
    FiberObject *self = CURRENT(t), *outer = t->unwinder;
    uint32_t outer_depth = t->unwind_depth;
    uint8_t state = self->core.state;
    pf_fiber *way = pf_home_way_to(t, fiber);
    if (way == NULL) {
        Py_DECREF(exit);
        return end_without_stack(t, fiber);
    }
    pf_unwind_forget_schedule(fiber);
    fiber->dying = true;
    fiber->core.state = PF_RUNNING;
    if (state != PF_DONE) {
        self->core.state = PF_RUNNING;
    }
    t->unwinder = self;
    t->unwind_depth = t->no_switch;
    t->transfer = exit;
    t->throwing = true;
    pf_fiber_switch_with(&t->engine, way, pf_switch_state_and_hold);
    t->unwinder = outer;
    t->unwind_depth = outer_depth;
    self->core.state = state;
    return fiber->core.state == PF_DONE ? pf_switch_landed(t)
                                        : end_abandoned(t, fiber);
}

/* The running fiber may be in the middle of anything, and a switch to it may
 * just have landed; so this saves the exception and `transfer`. */
static void
unwind(PfThread *t, FiberObject *fiber, bool silently)
{
    if (pf_fiber_kind(fiber)->unwind != NULL) {
        pf_fiber_kind(fiber)->unwind(t, fiber);
        return;
    }
    PyObject *pending = pystate_take_exception();
    PyObject *transfer = t->transfer;
    bool throwing = t->throwing;
    t->transfer = NULL;
    t->throwing = false;
    pf_thread_no_switch_begin(t, "while a dropped fiber is unwound");
    PyObject *left = fiber_exit();
    pf_unwind_renew_context(fiber);
    if (pf_unwind_may(fiber)) {
        left = run_to_its_end(t, fiber, left);
    }
    pf_thread_no_switch_end(t);
    t->transfer = transfer;
    t->throwing = throwing;
    if (left == NULL && silently) {
        PyErr_Clear();
    } else if (left == NULL) {
        PyErr_WriteUnraisable((PyObject *)fiber);
    }
    Py_XDECREF(left);
    pystate_restore_exception(pending);
}

void
pf_unwind_fiber(PfThread *t, FiberObject *fiber)
{
    unwind(t, fiber, false);
}

void
pf_unwind_silently(PfThread *t, FiberObject *fiber)
{
    unwind(t, fiber, true);
}
