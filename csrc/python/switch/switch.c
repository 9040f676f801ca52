/* The switch: which fiber may be entered, the switch itself, a fiber's first
 * run and its end.
 *
 * Order within a switch: check, save, load, switch, hand over. One value or
 * one exception travels with it in thread->transfer.
 */
#include "python/switch/switch.h"

#include "python/core/chain.h"
#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/switch/home.h"
#include "python/switch/locals.h"
#include "python/switch/pending.h"
#include "python/switch/profiled.h"
#include "python/switch/tracing.h"
#include "python/task/cancelling.h"
#include "python/task/fiber.h"
#include "python/task/life.h"
#include "python/task/migrate.h"
#include "python/task/name.h"
#include "python/task/outcome.h"
#include "python/task/scheduler.h"
#include "python/waitq/owner.h"
#include "python/waitq/waitq.h"

#include "engine/base/clock.h"
#include "engine/stack/overflow.h"

#define ENDS "while a fiber ends (in a done-callback, say)"

/* ------------------------------------------------------------ the switch */

void
pf_switch_watched(PfThread *t, FiberObject *from, FiberObject *to)
{
    pf_tracing_switch(t->tstate, from->saved->trace, to->saved->trace);
    if (pystate_profiled(t->tstate)) {
        pf_profiled_leave(t, from);
    }
}

void
pf_switch_on(pf_thread *thread, pf_fiber *from, pf_fiber *to)
{
    pf_switch_state(thread, from, to);
}

/* Raises `exc` (stolen) as a `raise` statement at this point would: the
 * exception being handled here becomes its context, unless it has one. */
static void
raise_here(PyObject *exc)
{
    PyObject *handled = PyErr_GetHandledException();
    PyObject *context = PyException_GetContext(exc);
    if (handled == NULL || context != NULL || handled == exc) {
        pystate_restore_exception(exc);
    } else {
        PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
        Py_DECREF(exc);
    }
    Py_XDECREF(handled);
    Py_XDECREF(context);
}

/* Returns what the switch back to this fiber brought: a new reference, or NULL
 * with the exception raised. */
static inline PyObject *
landed(PfThread *t)
{
    PyObject *value = t->transfer;
    t->transfer = NULL;
    if (PF_UNLIKELY(t->throwing)) {
        t->throwing = false;
        raise_here(value);
        return NULL;
    }
    return value;
}

PyObject *
pf_switch_landed(PfThread *t)
{
    return landed(t);
}

/* Switches to `target`, which has been admitted and has a stack: `value`
 * (stolen) is returned there, or raised. */
static inline PyObject *
transfer_to(PfThread *t, FiberObject *target, PyObject *value, bool throwing)
{
    pf_fiber *way = pf_home_way_to(t, target);
    if (PF_UNLIKELY(way == NULL)) {
        Py_DECREF(value);
        return NULL;
    }
    t->transfer = value;
    t->throwing = throwing;
    pf_switch_leave_for(t, target, way);
    return landed(t);
}

/* ---------------------------------------------- which fiber may be entered */

static int
refuse_parent(void)
{
    PyErr_SetString(pf.fiber_error,
                    "the fiber's parent belongs to another thread: start "
                    "the fiber there, or set its parent to a fiber of "
                    "this thread");
    return -1;
}

/* Can the result of a fiber that begins on this thread go to `parent`? Not if
 * that one belongs to another thread, is over, runs a scheduler's loop or
 * waits in one. */
static bool
can_inherit(PfThread *t, FiberObject *parent)
{
    return parent->core.state != PF_DONE &&
           (parent->thread == t || parent->thread == NULL) &&
           !parent->is_hub &&
           (parent->core.state == PF_SUSPENDED || !parent->scheduled);
}

/* Chooses the parent, which gets the result of a raw fiber: the fiber that was
 * current at its creation or, if that is unsuitable, the one that starts it,
 * even if that runs a loop. 0, or -1 with an exception. PF_LOOK_AGAIN: the
 * caller drops *replaced, which may run code. */
static int
choose_parent(PfThread *t, FiberObject *fiber, FiberObject **replaced)
{
    FiberObject *parent = fiber->parent;
    if (parent != NULL && (parent == CURRENT(t) || can_inherit(t, parent))) {
        return 0;
    }
    if (parent != NULL && fiber->parent_set) {
        return parent->thread == NULL || parent->thread == t ? 0
                                                             : refuse_parent();
    }
    if (pf_name_descends(CURRENT(t), fiber)) {
        PyErr_SetString(
            PyExc_ValueError,
            "a fiber cannot be its own ancestor: its parent has ended, and "
            "the fiber that starts it, and would become its parent, descends "
            "from it; set the parent of one of them");
        return -1;
    }
    fiber->parent = (FiberObject *)Py_NewRef((PyObject *)CURRENT(t));
    *replaced = parent;
    return parent == NULL ? 0 : PF_LOOK_AGAIN;
}

static int
refuse_state(FiberObject *target)
{
    const char *why;
    if (target->core.state == PF_DONE) {
        why = "the fiber has finished: a finished fiber cannot be entered";
    } else if (target->is_hub) {
        why = "the fiber runs a scheduler's loop: it goes on when the loop "
              "has nothing else to run";
    } else {
        why = "the fiber belongs to a scheduler: use unpark(), cancel() or "
              "join() instead of switching to it";
    }
    PyErr_SetString(pf.fiber_error, why);
    return -1;
}

static int
refuse_thread(void)
{
    PyErr_SetString(pf.fiber_error,
                    "the fiber belongs to another thread: a fiber runs only "
                    "on the thread that started it");
    return -1;
}

/* Refuses a fiber of a scheduler that is not running here. Such a fiber, left
 * by a direct switch, can be resumed only in the run it belongs to, because
 * its end needs the loop. 0 or -1. */
static int
refuse_idle_scheduler(PfThread *t, FiberObject *target)
{
    if (target->core.scheduler == NULL ||
        (t->scheduler != NULL &&
         target->core.scheduler == &t->scheduler->core)) {
        return 0;
    }
    PyErr_SetString(pf.fiber_error,
                    "the fiber belongs to a scheduler that is not running: it "
                    "can be entered in that scheduler's run only");
    return -1;
}

static int
check_new(PfThread *t, FiberObject *target, bool with_value, bool *collected)
{
    if (with_value) {
        PyErr_SetString(PyExc_TypeError,
                        "can't send a value other than None to a fiber that "
                        "has not started: pass args instead");
        return -1;
    }
    if (!pf_fiber_claim(target, t)) {
        return refuse_thread();
    }
    FiberObject *replaced = NULL;
    int rc = choose_parent(t, target, &replaced);
    rc = rc != 0 ? rc : pf_switch_give_stack(t, target, collected);
    if (rc < 0 || replaced != NULL) {
        pf_fiber_unclaim(target);
    }
    Py_XDECREF(replaced);
    return rc;
}

enum { RUNS_ALREADY = 1 };

static int
check(PfThread *t, FiberObject *target, bool with_value, bool *collected)
{
    if (target->thread != NULL && target->thread != t) {
        return target->core.state == PF_DONE ? refuse_state(target)
                                             : refuse_thread();
    }
    if (target->core.state == PF_NEW && !target->scheduled) {
        return check_new(t, target, with_value, collected);
    }
    if (target->core.state == PF_RUNNING && target == CURRENT(t)) {
        return RUNS_ALREADY;
    }
    return target->core.state == PF_SUSPENDED
               ? refuse_idle_scheduler(t, target)
               : refuse_state(target);
}

/* Decides whether `target` may be entered, in all cases but the plain one
 * (suspended, on this thread, nothing pending). 0: switch; RUNS_ALREADY: it is
 * the running fiber itself; -1: refused. Between the check that returns 0 and
 * the switch no code runs: after anything that has to run code, this checks
 * again. */
static int
admit(PfThread *t, FiberObject *target, bool with_value)
{
    bool collected = false;
    int verdict;
    do {
        if (t->pending != 0 && pf_pending_run(t) < 0) {
            return -1;
        }
        verdict = check(t, target, with_value, &collected);
    } while (verdict == PF_LOOK_AGAIN);
    return verdict;
}

/* Switches to `target`, which was admitted. */
static inline PyObject *
give(PfThread *t, FiberObject *target, pf_fiber *way, PyObject *value)
{
    t->transfer = Py_NewRef(value);
    pf_switch_leave_for(t, target, way);
    return landed(t);
}

PyObject *
pf_switch_give(PfThread *t, FiberObject *target, pf_fiber *way,
               PyObject *value)
{
    return give(t, target, way, value);
}

/* Not inline, so that the common case saves no registers. */
static PF_NEVER_INLINE PyObject *
switch_slowly(FiberObject *target, PyObject *value)
{
    PfThread *t = pf_thread_this();
    int admitted = t == NULL ? -1 : admit(t, target, value != Py_None);
    if (admitted != 0) {
        return admitted < 0 ? NULL : Py_NewRef(value);
    }
    return transfer_to(t, target, Py_NewRef(value), false);
}

PyObject *
pf_switch_to(FiberObject *target, PyObject *value)
{
    PfThread *t = pf_thread_current;
    if (PF_UNLIKELY(t == NULL || t->pending != 0 ||
                    !pf_task_is_suspended(&target->core) ||
                    target->thread != t || target->core.scheduler != NULL)) {
        return switch_slowly(target, value);
    }
    return give(t, target, &target->fiber, value);
}

PyObject *
pf_switch_exception(PyObject *exc)
{
    if (PyExceptionInstance_Check(exc)) {
        return Py_NewRef(exc);
    }
    if (!PyExceptionClass_Check(exc)) {
        PyErr_Format(PyExc_TypeError,
                     "throw() takes an exception or an exception class, not "
                     "'%.200s'",
                     Py_TYPE(exc)->tp_name);
        return NULL;
    }
    PyObject *made = PyObject_CallNoArgs(exc);
    if (made != NULL && !PyExceptionInstance_Check(made)) {
        PyErr_Format(PyExc_TypeError,
                     "calling %R should have made an exception, not '%.200s'",
                     exc, Py_TYPE(made)->tp_name);
        Py_CLEAR(made);
    }
    return made;
}

PyObject *
pf_switch_throw(FiberObject *target, PyObject *exc)
{
    PfThread *t = pf_thread_this();
    PyObject *instance = t == NULL ? NULL : pf_switch_exception(exc);
    if (instance == NULL) {
        return NULL;
    }
    int admitted = admit(t, target, false);
    if (admitted != 0) {
        if (admitted < 0) {
            Py_DECREF(instance);
        } else {
            raise_here(instance);
        }
        return NULL;
    }
    return transfer_to(t, target, instance, true);
}

/* ------------------------------------------------------------- a new stack */

/* Collects garbage when the system has refused a stack, because some garbage
 * may hold stacks. */
static void
collect_stacks(PfThread *t)
{
    int64_t begun = pf_clock_monotonic();
    pf_thread_no_switch_begin(t, "while garbage is collected to free stacks");
    PyGC_Collect();
    pf_thread_no_switch_end(t);
    pf_thread_load_over(&t->engine); /* free stacks of other sizes */
    t->collection = pf_clock_monotonic() - begun;
}

/* Limits collections that free no stack to a tenth of the time: a hundred
 * thousand fibers may ask for one in vain. */
static void
put_off_collections(PfThread *t)
{
    t->collect_after = pf_clock_monotonic() + 10 * t->collection;
}

int
pf_switch_give_stack(PfThread *t, FiberObject *fiber, bool *collected)
{
    size_t size = fiber->stack_size & ~PF_OWN_STACK;
    bool own = (fiber->stack_size & PF_OWN_STACK) != 0;
    pf_limit limit = PF_LIMIT_NONE;
    if (size == 0) {
        size = pf_load_relaxed(&pf_fiber_default_stack_size);
    }
    if (pf_fiber_prepare(&t->engine, &fiber->fiber, size, own, &limit) < 0) {
        if (!*collected && pf_clock_monotonic() >= t->collect_after) {
            *collected = true;
            if (!fiber->scheduled) {
                pf_fiber_unclaim(fiber); /* code that runs may start it */
            }
            collect_stacks(t);
            return PF_LOOK_AGAIN;
        }
        if (*collected) {
            put_off_collections(t);
        }
        PyErr_Format(PyExc_MemoryError,
                     "no stack of %zu bytes for a fiber: %s was reached", size,
                     pf_limit_name(limit));
        return -1;
    }
    pf_stack *stack = fiber->fiber.stack;
    if (PF_UNLIKELY(t->given++ % 32 == 0)) {
        pf_overflow_keep(); /* reads a clock */
    }
    fiber->saved = pystate_init(t->tstate, stack->room, stack->room_size,
                                stack->area.low + stack->reserve,
                                stack->area.size - stack->reserve);
    if (fiber->thread == NULL || !fiber->scheduled) { /* not enrolled */
        fiber->thread = t;
        pf_fiber_link(t, fiber);
    }
    return 0;
}

/* Ends a fiber with a stack that will never run (again). */
void
pf_switch_take_stack(FiberObject *fiber)
{
    pf_fiber_unlink(fiber);
    pf_fiber_release_stack(
        fiber->thread == NULL ? NULL : &fiber->thread->engine, &fiber->fiber);
    pf_publish_byte(&fiber->core.state, PF_DONE);
    fiber->stack_size = 0; /* `saved` was in the stack's room */
}

/* ------------------------------------------------------------ running, ending */

static PyObject *
call_target(FiberObject *self)
{
    PyObject *args = self->args; /* kept in `args` for the collector */
    PyObject *kwargs = self->kwargs;
    self->kwargs = NULL;
    self->entered = true;
    PyObject *result;
    if (self->target == NULL) {
        result = PyObject_CallMethodNoArgs((PyObject *)self, pf.s_run);
    } else if (args == NULL && kwargs == NULL) {
        result = pf_switch_call(self->target);
    } else if (args == NULL) {
        args = self->args = PyTuple_New(0);
        result =
            args == NULL ? NULL : PyObject_Call(self->target, args, kwargs);
    } else {
        if (PyVectorcall_Function(self->target) == NULL) {
            pf_fiber_show_args(self); /* the target may keep the tuple */
        }
        result = PyObject_Call(self->target, args, kwargs);
    }
    Py_XDECREF(kwargs);
    return result;
}

/* Sets the name of a fiber whose target is about to be dropped, as reports
 * must still name it: if the target is no Python function, only for a failed
 * or cancelled fiber. Finding that name may run code, which may set one. */
static void
keep_name(FiberObject *self)
{
    if (self->name != NULL || self->target == NULL) {
        return;
    }
    if (PyFunction_Check(self->target)) {
        self->name =
            Py_NewRef(((PyFunctionObject *)self->target)->func_qualname);
    } else if (PF_UNLIKELY(self->outcome != PF_OUTCOME_OK)) {
        PyObject *name = pf_name_after(self->target);
        if (name == NULL) {
            PyErr_Clear(); /* no memory: reports show the type */
        } else if (self->name == NULL) {
            self->name = name;
        } else {
            Py_DECREF(name);
        }
    }
}

/* Drops what few fibers have. */
static void
close_special(FiberObject *self)
{
    Py_CLEAR(self->kwargs);
    if (self->rare != NULL) {
        Py_CLEAR(self->rare->cancel);
        Py_CLEAR(self->rare->referents);
        if (self->fiber.stack == NULL || self == CURRENT(self->thread)) {
            pf_locals_clear(self);
        } /* else abandoned: the locals note the locks that it holds */
    }
    if (self->number != 0) {
        pf_owner_ends(self);
        if (pf_fiber_kind(self)->ended != NULL) {
            pf_fiber_kind(self)->ended(self);
        }
    }
}

/* Drops what the fiber needed while it ran. */
static void
close_fiber(FiberObject *self)
{
    keep_name(self);
    Py_CLEAR(self->args);
    if (PF_UNLIKELY(((uintptr_t)self->kwargs | (uintptr_t)self->rare |
                     self->number) != 0)) {
        close_special(self);
    }
    pf_fiber_drop_target(self);
}

/* Can a fiber's end continue in `p`? The hub can take results, see
 * back_in_hub() in run/loop.c. */
static bool
takes_results(PfThread *t, FiberObject *p)
{
    if (p->thread != t) {
        return false;
    }
    if (p->is_hub) {
        return t->scheduler != NULL && t->scheduler->core.hub == &p->fiber;
    }
    return p->core.state == PF_SUSPENDED &&
           (p->core.scheduler == NULL ||
            (t->scheduler != NULL &&
             p->core.scheduler == &t->scheduler->core));
}

/* The fiber that gets a raw fiber's result: the one that unwinds it, or the
 * first ancestor that can take a result. */
static FiberObject *
heir(PfThread *t, FiberObject *self)
{
    FiberObject *p = self->parent;
    if (self->dying) {
        return t->unwinder;
    }
    if (PF_UNLIKELY(self->rare != NULL && self->rare->puller != NULL)) {
        p = self->rare->puller;
    }
    while (p != NULL && !takes_results(t, p)) {
        p = p->parent;
    }
    if (p != NULL) {
        return p;
    }
    return t->scheduler != NULL ? FIBER_OF(t->scheduler->core.hub) : t->root;
}

static FiberObject *
next_after_raw(PfThread *t, FiberObject *self)
{
    FiberObject *p = heir(t, self);
    t->throwing = self->outcome == PF_OUTCOME_FAILED;
    if (self->outcome == PF_OUTCOME_CANCELLED &&
        !PyObject_TypeCheck(self->value, (PyTypeObject *)pf.fiber_exit)) {
        t->throwing = true;
    }
    bool quiet = self->outcome == PF_OUTCOME_CANCELLED && !t->throwing;
    t->transfer = Py_NewRef(quiet ? Py_None : self->value);
    self->looked_at = true;
    /* `self` may hold the only reference to the parent: then the thread holds
     * that reference while the parent runs. */
    if (p == self->parent && p != t->root && !p->held &&
        !pf_fiber_kind(p)->is_part) {
        p->held = true;
        self->parent = NULL;
    }
    p->core.state = PF_RUNNING;
    return p;
}

/* Wakes the waiters, and takes the fiber out of the scheduler's counts. */
static void
retire(FiberObject *self)
{
    SchedulerObject *s = SCHEDULER_OF(self->core.scheduler);
    if (self->preferred) {
        pf_waitq_grant_first(&self->waiters);
    }
    pf_waitq_grant_all(&self->waiters);
    if (pf_fiber_kind(self)->serves) {
        return; /* the run does not count it */
    }
    s->alive--;
    if (!self->daemon) {
        s->foreground--;
    }
    pf_fiber_track(self);
    if (self->outcome == PF_OUTCOME_FAILED && !self->migrated) {
        pf_task_failed(s, PF_TASK(self));
    }
    if (self == s->main || s->foreground == 0 || s->fatal != NULL) {
        pf_scheduler_wake_hub(s);
    }
}

/* The common part of all ends of fibers, whether the fiber ran or not. */
static void
finish(FiberObject *self, PyObject *result)
{
    if (PF_UNLIKELY(self->scope != NULL)) {
        result = pf_parts_hooks.cancelling->ends_inside(self, result);
    }
    pf_task_record_outcome(PF_TASK(self), result);
    close_fiber(self);
    if (PF_UNLIKELY(self->rare != NULL)) {
        pf_task_run_callbacks(PF_TASK(self));
    }
    if (self->base != NULL) {
        pf_parts_hooks.cancelling->child_done(PF_TASK(self));
    }
    if (self->scheduled) {
        retire(self);
    }
}

/* Reports what was raised while a fiber ended, as no caller can get it. */
static inline void
report_raised(PfThread *t, FiberObject *self)
{
    if (PF_UNLIKELY(pystate_raised(t->tstate))) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
}

/* What finish() does, for a greenlet's fiber: closes what the code left open.
 * The greenlet handles the outcome. `result` is stolen; returns it, or NULL
 * with an exception. */
PyObject *
pf_switch_leave_nothing(PfThread *t, FiberObject *self, PyObject *result)
{
    if (PF_UNLIKELY(self->scope != NULL)) {
        result = pf_parts_hooks.cancelling->ends_inside(self, result);
    }
    if (PF_UNLIKELY(self->rare != NULL)) {
        PyObject *exc = result == NULL ? pystate_take_exception() : NULL;
        pf_thread_no_switch_begin(t, ENDS);
        pf_locals_clear(self);
        pf_task_run_callbacks(PF_TASK(self));
        pf_thread_no_switch_end(t);
        pystate_restore_exception(exc);
    }
    return result;
}

static PyObject *
first_act(PfThread *t, FiberObject *self)
{
    PyObject *sent = t->transfer;
    t->transfer = NULL;
    if (t->throwing) {
        t->throwing = false;
        pystate_restore_exception(sent);
        return NULL;
    }
    Py_XDECREF(sent);
    pf_tracing_begin(t, self);
    return call_target(self);
}

/* Drops the thread's references, which are no longer needed: the one to the
 * running fiber, and the one that another thread left here, if the fiber has
 * ended before that was seen. */
static void
drop_held(FiberObject *self)
{
    bool held = self->held, dropped = self->dropped;
    self->held = self->dropped = false;
    if (held) {
        Py_DECREF(self);
    }
    if (dropped) {
        Py_DECREF(self);
    }
}

pf_fiber *
pf_switch_run(pf_thread *thread, pf_fiber *fiber)
{
    PfThread *t = (PfThread *)thread;
    FiberObject *self = FIBER_OF(fiber);
    PyObject *result = first_act(t, self);
    pf_tracing_end(t, self);
    if (PF_UNLIKELY(result == NULL)) {
        pf_outcome_close_frames();
    }

    /* From here on no code that runs may leave this fiber. */
    pf_thread_no_switch_begin(t, ENDS);
    Py_INCREF(self); /* for pf_switch_reap */
    pystate_drop_handled(self->saved);
    finish(self, result);
    report_raised(t, self);
    bool scheduled = self->scheduled;
    pf_fiber_unlink(self);
    pf_fiber *next;
    if (scheduled && !self->dying) {
        next = pf_scheduler_next(self->core.scheduler);
    } else {
        next = pf_home_sure_way_to(t, next_after_raw(t, self));
    }
    if (scheduled) {
        Py_DECREF(self); /* the scheduler's reference */
    }
    if (PF_UNLIKELY(self->held || self->dropped)) {
        drop_held(self);
    }
    pystate_finish(t->tstate, self->saved);
    pf_thread_no_switch_end(t);
    return next;
}

void
pf_switch_reap(pf_thread *thread, pf_fiber *fiber)
{
    PfThread *t = (PfThread *)thread;
    FiberObject *self = FIBER_OF(fiber);
    if (PF_UNLIKELY(t->left_profiled != NULL) && pf_profiled_land(t)) {
        return;
    }
    self->held = false;
    /* The fiber that was switched to has not yet taken what the switch
     * brought: code that runs now because an object dies must not wait. */
    pf_thread_no_switch_begin(t, "while a finished fiber is cleared away");
    if (self->core.state == PF_DONE) {
        self->stack_size = 0; /* `saved` was in the stack's room */
        if (PF_LIKELY(self->outcome == PF_OUTCOME_OK)) {
            Py_CLEAR(self->context); /* otherwise pf_outcome_drop needs it */
        }
        PF_CLEAR_LINK(self->parent);
        if (PF_UNLIKELY(self->view != NULL)) {
            pf_parts_hooks.view_done(self);
        }
    }
    Py_DECREF(self);
    pf_thread_no_switch_end(t);
}

/* Ends a scheduled fiber that has no stack, because it was cancelled or there
 * was no memory. The caller may be about to park, so code that runs as objects
 * die must not wait. */
void
pf_switch_end(PfThread *t, FiberObject *fiber, PyObject *result)
{
    pf_thread_no_switch_begin(t, ENDS);
    finish(fiber, result);
    report_raised(t, fiber);
    pf_fiber_unlink(fiber);
    Py_CLEAR(fiber->context);
    Py_DECREF(fiber); /* the scheduler's reference */
    pf_thread_no_switch_end(t);
}

pf_fiber *
pf_switch_first(pf_scheduler *s, pf_task *core)
{
    PfThread *t = (PfThread *)s->thread;
    FiberObject *fiber = (FiberObject *)(void *)pf_task_object(core);
    if (pf_pack_is_packed(&fiber->fiber)) {
        return pf_pack_next(s, &fiber->fiber);
    }
    if (PF_UNLIKELY(pf_migrate_is_away(fiber))) {
        pf_parts_hooks.migrate->woken(fiber);
        return NULL;
    }
    bool collected = false;
    int rc = PF_LOOK_AGAIN;
    while (rc == PF_LOOK_AGAIN && !fiber->under_cancel) {
        rc = pf_switch_give_stack(t, fiber, &collected);
    }
    if (rc == 0) {
        return &fiber->fiber;
    }
    if (rc == PF_LOOK_AGAIN) {
        pf_cancelling_raise(fiber);
    }
    pf_switch_end(t, fiber, NULL);
    return NULL;
}

/* ------------------------------------------------------------------- the host */

static void
python_wait_begin(pf_scheduler *s)
{
    SchedulerObject *self = SCHEDULER_OF(s);
    if (PF_UNLIKELY(self->in_turn_record)) {
        pf_parts_hooks.turns->end(self);
    }
    self->blocked = PyEval_SaveThread();
}

static void
python_wait_end(pf_scheduler *s)
{
    SchedulerObject *self = SCHEDULER_OF(s);
    pf_store(&self->lacks_gil, 1);
    PyEval_RestoreThread(self->blocked);
    pf_store(&self->lacks_gil, 0);
}

const pf_host pf_switch_host = {
    .on_switch = pf_switch_on,
    .hot_lines = {0, PF_SECOND_LINE, PF_FIRST_FRAME + PF_FRAME_LEAD},
    .wait_begin = python_wait_begin,
    .wait_end = python_wait_end,
};
