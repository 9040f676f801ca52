/* Cancellation: finds which fibers a cancellation reaches, and wakes those
 * that are parked.  scope.h describes the tree of scopes and fibers;
 * cancelled.c raises the exception; pf_delivery_note notes in which fibers it has
 * been raised.
 */
#include "python/cancel/cancel.h"

#include "python/cancel/scope.h"
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/task/cancelling.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/task/post.h"
#include "python/task/scheduler.h"

/* -------------------------------------------------------- looking outward */

/* Returns the source outside of all scopes that the fiber has entered, or
 * NULL. A generator's body counts as being where its puller is, the fiber that
 * waits for its next value. */
static PyObject *
base_source(const FiberObject *fiber)
{
    while (fiber != NULL) {
        if (fiber->base != NULL && fiber->base->source != NULL) {
            return fiber->base->source;
        }
        if (fiber->cancel_called) {
            return (PyObject *)fiber;
        }
        fiber = pf_fiber_rare(fiber)->puller;
        if (fiber != NULL && fiber->scope != NULL) {
            return fiber->scope->source;
        }
    }
    return NULL;
}

/* Returns true if the run cancels the fiber directly.  A fiber in a group gets
 * the run's cancellation through the fiber that entered the group, unless that
 * one is raw, because raw fibers are not cancelled. */
static bool
is_top(const FiberObject *fiber)
{
    return fiber->base == NULL || !fiber->base->fiber->scheduled;
}

PyObject *
pf_scope_source_of(const FiberObject *fiber)
{
    return fiber->scope != NULL ? fiber->scope->source : base_source(fiber);
}

static PyObject *
scope_source(ScopeObject *scope)
{
    PyObject *around = NULL;
    if (!scope->shield) {
        around = scope->outer != NULL ? scope->outer->source
                                      : base_source(scope->fiber);
    }
    if (around != NULL) {
        return around;
    }
    return scope->cancelled ? (PyObject *)scope : NULL;
}

static ScopeObject *
outermost(const FiberObject *fiber)
{
    ScopeObject *scope = fiber->scope;
    while (scope != NULL && scope->outer != NULL) {
        scope = scope->outer;
    }
    return scope;
}

/* Returns the scope around all those that the fiber has entered; NULL: the
 * run. */
static ScopeObject *
base_of(const FiberObject *fiber)
{
    while (fiber->base == NULL && pf_fiber_rare(fiber)->puller != NULL) {
        fiber = fiber->rare->puller;
        if (fiber->scope != NULL) {
            return fiber->scope;
        }
    }
    return fiber->base;
}

static ScopeObject *
around(const ScopeObject *scope)
{
    return scope->outer != NULL ? scope->outer : base_of(scope->fiber);
}

int64_t
pf_scope_effective_deadline(const FiberObject *fiber)
{
    int64_t deadline = PF_NEVER;
    ScopeObject *scope = fiber->scope != NULL ? fiber->scope : base_of(fiber);
    while (scope != NULL) {
        if (scope->deadline < deadline) {
            deadline = scope->deadline;
        }
        scope = scope->shield ? NULL : around(scope);
    }
    return deadline;
}

/* ------------------------------------------------------- passing it inward */

/* Updates under_cancel.  Wakes a parked fiber if a cancellation reaches it for
 * the first time.  A call that patch() has changed may wait in a fiber that is
 * cancelled, because it raises each cancellation only once.  Such a fiber is
 * woken again if `anew` is true, which means that something that reaches it
 * has just been cancelled. */
static void
set_fiber(FiberObject *fiber, bool cancelled, bool anew)
{
    if (!cancelled) {
        fiber->under_cancel = false;
        return;
    }
    if (fiber->under_cancel &&
        !(anew && fiber->patched && !pf_delivery_all(fiber))) {
        return;
    }
    fiber->under_cancel = true;
    if (fiber->core.state == PF_PARKED && !fiber->is_hub) {
        pf_scheduler_wake(fiber->core.scheduler, &fiber->core, PF_WAKE_CANCEL);
        pf_scheduler_notify_host(SCHEDULER_OF(fiber->core.scheduler));
    }
}

typedef struct Work {
    ScopeObject *head, *tail; /* linked by `work` */
    /* With `anew`: the scope that has just been cancelled; NULL: everything
     * below a fiber. */
    ScopeObject *target;
    bool anew;
} Work;

/* Puts the outermost scope of a fiber on the list, because the scopes around
 * the fiber have changed.  If the fiber has no scope, updates the fiber itself
 * and goes on with the generator's body that it pulls from.  `fiber` may be
 * NULL. */
static void
queue_fiber(FiberObject *fiber, Work *work)
{
    ScopeObject *first = NULL;
    while (fiber != NULL && (first = outermost(fiber)) == NULL) {
        set_fiber(fiber, base_source(fiber) != NULL, work->anew);
        fiber = pf_fiber_rare(fiber)->pulled;
    }
    if (first == NULL) {
        return;
    }
    if (work->head == NULL) {
        work->head = first;
    } else {
        work->tail->work = first;
    }
    work->tail = first;
}

static void
queue_child(PfTaskObject *child, Work *work)
{
    FiberObject *fiber = pf_task_fiber(child);
    if (fiber != NULL) {
        queue_fiber(fiber, work);
    } else {
        pf_task_kind(&child->core)->refresh(child);
    }
}

/* Returns true if nothing has changed for what is inside the scope. */
static bool
is_settled(const ScopeObject *scope, PyObject *source, const Work *work)
{
    bool reached = work->anew && (scope == work->target || !scope->shield);
    return source == scope->source && !reached;
}

/* Updates one scope and those inside it on the same fiber, as far as
 * needed. */
static void
refresh_stack(ScopeObject *scope, Work *work)
{
    for (; scope != NULL; scope = scope->inner) {
        PyObject *source = scope_source(scope);
        if (is_settled(scope, source, work)) {
            return;
        }
        scope->source = source;
        for (PfTaskObject *c = scope->children; c != NULL; c = c->base_next) {
            queue_child(c, work);
        }
        if (scope->inner == NULL) {
            set_fiber(scope->fiber, source != NULL, work->anew);
            queue_fiber(pf_fiber_rare(scope->fiber)->pulled, work);
        }
    }
}

/* Works through a list and does not recurse, because groups may be nested as
 * deeply as fibers can spawn each other.  A scope is in the list at most once,
 * because its base changes at most once.  Runs no Python code. */
static void
refresh_all(Work work)
{
    ScopeObject *scope;
    while ((scope = work.head) != NULL) {
        refresh_stack(scope, &work);
        work.head = scope->work;
        scope->work = NULL;
    }
}

void
pf_scope_refresh(ScopeObject *scope)
{
    if (scope->fiber != NULL) {
        refresh_all((Work){scope, scope, NULL, false});
    }
}

void
pf_scope_entered(ScopeObject *scope)
{
    scope->source = scope_source(scope);
    if (scope->cancelled) { /* earlier, but it reaches the fiber only now */
        scope->cancelled_at = pf_delivery_next_number();
    }
    set_fiber(scope->fiber, scope->source != NULL, false);
}

void
pf_scope_refresh_fiber(FiberObject *fiber)
{
    Work work = {0};
    queue_fiber(fiber, &work);
    refresh_all(work);
}

/* -------------------------------------------------- tasks born in a scope */

void
pf_scope_adopt(ScopeObject *scope, PfTaskObject *child)
{
    child->base = (ScopeObject *)Py_NewRef((PyObject *)scope);
    child->base_next = NULL;
    if (scope->children == NULL) {
        scope->children = child->base_prev = child;
    } else { /* the head's base_prev is the tail */
        PfTaskObject *tail = scope->children->base_prev;
        tail->base_next = child;
        child->base_prev = tail;
        scope->children->base_prev = child;
    }
}

void
pf_scope_disown(PfTaskObject *child)
{
    ScopeObject *base = child->base;
    PfTaskObject *prev = child->base_prev, *next = child->base_next;
    if (child == base->children) {
        base->children = next;
    } else {
        prev->base_next = next;
    }
    if (next != NULL) {
        next->base_prev = prev;
    } else if (base->children != NULL) {
        base->children->base_prev = prev; /* the child was the tail */
    }
    child->base = NULL;
    child->base_prev = child->base_next = NULL;
    Py_DECREF(base);
}

int
pf_scope_enlist(SchedulerObject *s, ScopeObject *base, FiberObject *fiber)
{
    if (base != NULL && fiber->base == NULL) {
        pf_scope_adopt(base, PF_TASK(fiber));
    } else {
        base = NULL; /* started before: pf_fiber_enlist will refuse */
    }
    if (pf_fiber_enlist(s, fiber) < 0) {
        if (base != NULL) {
            pf_scope_disown(PF_TASK(fiber));
        }
        return -1;
    }
    if (base != NULL && base->source != NULL) {
        pf_scope_refresh_fiber(fiber);
    }
    return 0;
}

/* Passes a new cancellation of the fiber on to everything below it. */
static void
pass_on_from_fiber(FiberObject *fiber, size_t number)
{
    PfRare *rare = pf_fiber_rare_of(fiber);
    if (rare != NULL) {
        rare->cancelled_at = number;
    } else {
        PyErr_Clear();
    }
    Work work = {.anew = true};
    queue_fiber(fiber, &work);
    refresh_all(work);
}

static void
cancel_as(FiberObject *fiber, PyObject *why, size_t number)
{
    if (fiber->core.state == PF_DONE || fiber->cancel_called) {
        return;
    }
    pf_cancel_note(PF_TASK(fiber), why);
    fiber->cancel_called = true;
    pass_on_from_fiber(fiber, number);
}

/* Returns the number of the cancellation of `source`, which is a cancelled
 * scope or fiber; a new number if `source` is NULL. */
static size_t
number_of(PyObject *source)
{
    if (source == NULL) {
        return pf_delivery_next_number();
    }
    return PyObject_TypeCheck(source, pf_scope_type)
               ? ((ScopeObject *)source)->cancelled_at
               : pf_fiber_rare((FiberObject *)source)->cancelled_at;
}

/* Cancels a child of the scope `from`, which is left.  A child that was
 * cancelled through the scope keeps the number of that cancellation, so that
 * it does not count as a new one (see pf_delivery_note). */
static void
cancel_child(PfTaskObject *child, const ScopeObject *from, PyObject *why)
{
    FiberObject *fiber = pf_task_fiber(child);
    if (fiber != NULL) {
        cancel_as(fiber, why, number_of(from->source));
    } else {
        pf_task_kind(&child->core)->cancel_now(child, why);
    }
}

static void
refresh_child(PfTaskObject *child)
{
    Work work = {0};
    queue_child(child, &work);
    refresh_all(work);
}

/* Moves the tasks that were born in a scope, and outlive it, to the scope
 * around it; NULL: to the run.  A task that was cancelled through the scope
 * stays cancelled.  The tasks of a group, which should have waited for them,
 * are cancelled. */
static void
move_children(ScopeObject *from, ScopeObject *to)
{
    PfTaskObject *child;
    while ((child = from->children) != NULL) {
        bool cancel = from->source != NULL || child->grouped;
        child->grouped = false;
        pf_scope_disown(child); /* the caller keeps `from` alive */
        if (to != NULL) {
            pf_scope_adopt(to, child);
        }
        if (cancel) {
            cancel_child(child, from, from->why);
        }
        refresh_child(child);
    }
}

/* A cancellation has taken effect once the fiber continues outside of what was
 * cancelled: then the count of vain deliveries begins anew. */
static void
forget_deliveries(FiberObject *fiber)
{
    if (!fiber->under_cancel) {
        fiber->deliveries = 0;
    }
}

/* The scope may be anywhere in its fiber's stack of scopes.  No Python code
 * runs before the scope has been removed. */
void
pf_scope_remove(ScopeObject *scope)
{
    FiberObject *fiber = scope->fiber;
    ScopeObject *inner = scope->inner, *outer = scope->outer;
    SchedulerObject *s = scope->scheduler;
    pf_timers_remove(&s->core.timers, &scope->timer.timer);
    if (PF_UNLIKELY(scope->children != NULL)) {
        move_children(scope, around(scope));
        if (PyObject_TypeCheck(scope, pf_cancel_group_type)) {
            pf_group_abandoned(scope);
        }
    }
    if (outer != NULL) {
        outer->inner = inner;
    }
    PF_LOCK(scope);
    scope->fiber = NULL;
    scope->scheduler = NULL;
    scope->left = true;
    PF_UNLOCK(scope);
    scope->inner = scope->outer = NULL;
    if (PF_UNLIKELY(inner != NULL)) {
        inner->outer = outer;
        pf_scope_refresh(inner);
    } else {
        fiber->scope = outer;
        if (PF_UNLIKELY(scope->source != NULL || scope->shield)) {
            set_fiber(fiber, pf_scope_source_of(fiber) != NULL, false);
            forget_deliveries(fiber);
            /* Another fiber or thread may remove the scope while this fiber
             * waits for a generator's value. */
            if (pf_fiber_rare(fiber)->pulled != NULL) {
                pf_scope_refresh_fiber(fiber->rare->pulled);
            }
        }
    }
    scope->source = NULL;
    Py_CLEAR(scope->why);
    Py_DECREF(s);
    Py_DECREF(scope);
}

/* Removes the scopes that a fiber is still in when its code has ended, because
 * the code called __enter__() itself, or in a generator that is still
 * suspended in them.  If one of these scopes should have absorbed the fiber's
 * Cancelled, nothing absorbs it, and the fiber has failed.  Returns the
 * fiber's result, or NULL with an exception. */
static PyObject *
ends_inside(FiberObject *fiber, PyObject *result)
{
    PyObject *exc = result == NULL ? pystate_take_exception() : NULL;
    PyObject *error = NULL;
    while (fiber->scope != NULL) {
        ScopeObject *scope =
            (ScopeObject *)Py_NewRef((PyObject *)fiber->scope);
        if (exc != NULL && pf_scope_owns(scope, exc)) {
            PyErr_Format(pf.fiber_error,
                         "%R was ended by the cancellation of %R, which it "
                         "entered and never left: is a generator suspended "
                         "inside of a with statement?",
                         fiber, scope);
            Py_XSETREF(error, pystate_take_exception());
        }
        if (scope->fiber == fiber) { /* a repr() may have left the scope */
            pf_scope_remove(scope);
        }
        Py_DECREF(scope);
    }
    if (error != NULL) {
        PyException_SetCause(error, exc); /* steals */
        exc = error;
    }
    pystate_restore_exception(exc);
    return result;
}

/* ---------------------------------------------------------------- cancelling */

PyObject *
pf_cancel_text(const char *text)
{
    PyObject *reason = PyUnicode_FromString(text);
    if (reason == NULL) {
        PyErr_Clear(); /* no memory: cancel without a reason */
        reason = Py_NewRef(Py_None);
    }
    return reason;
}

PyObject *
pf_cancel_why(PyObject *reason, PyObject *by)
{
    if (reason == Py_None && by == Py_None) {
        return NULL;
    }
    PyObject *why = PyTuple_Pack(2, reason, by);
    if (why == NULL) {
        PyErr_Clear(); /* cancel without the reason */
    }
    return why;
}

void
pf_cancel_note(PfTaskObject *task, PyObject *why)
{
    PfRare *rare = why == NULL ? task->rare : pf_task_rare_of(task);
    if (rare != NULL) {
        Py_XSETREF(rare->cancel, Py_XNewRef(why));
    } else if (why != NULL) {
        PyErr_Clear(); /* no memory: cancel without the reason, too */
    }
}

void
pf_cancel_now(FiberObject *fiber, PyObject *why)
{
    cancel_as(fiber, why, pf_delivery_next_number());
}

void
pf_cancel_again(FiberObject *fiber, PyObject *why)
{
    if (!fiber->cancel_called) {
        pf_cancel_now(fiber, why);
    } else if (fiber->core.state != PF_DONE) {
        pass_on_from_fiber(fiber, pf_delivery_next_number());
    }
}

SchedulerObject *
pf_scope_is_remote(ScopeObject *scope)
{
    PF_LOCK(scope);
    SchedulerObject *s = scope->scheduler;
    s = s != NULL && s->thread != pf_thread_current
            ? (SchedulerObject *)Py_NewRef((PyObject *)s)
            : NULL;
    PF_UNLOCK(scope);
    return s;
}

/* Marks the scope as cancelled, unless it is already, or has been left.
 * Returns true if it has done so.  Locks, because any thread may cancel a
 * scope that has not been entered. */
static bool
mark_cancelled(ScopeObject *scope, PyObject *why)
{
    PF_LOCK(scope);
    bool first = !scope->cancelled && !scope->left;
    if (first) {
        scope->cancelled = true;
        scope->cancelled_at = pf_delivery_next_number();
        scope->why = Py_XNewRef(why);
        scope->reason =
            why == NULL ? NULL : Py_NewRef(pf_scope_reason_in(why));
    }
    PF_UNLOCK(scope);
    return first;
}

/* Passes a new cancellation of the scope on to everything below it. */
static void
pass_on_from_scope(ScopeObject *scope)
{
    if (scope->fiber != NULL) {
        refresh_all((Work){scope, scope, scope, true});
    }
}

void
pf_scope_cancel_now(ScopeObject *scope, PyObject *why)
{
    if (mark_cancelled(scope, why)) {
        pass_on_from_scope(scope);
    }
}

void
pf_scope_cancel_again(ScopeObject *scope, PyObject *why)
{
    if (!mark_cancelled(scope, why)) {
        scope->cancelled_at = pf_delivery_next_number();
    }
    pass_on_from_scope(scope);
}

/* Cancels a fiber for another thread. */
static void
cancel_arrived(SchedulerObject *s, PyObject *fiber, PyObject *why)
{
    (void)s;
    pf_cancel_again((FiberObject *)fiber, why);
}

/* Cancels a scope for another thread. */
static void
scope_cancel_arrived(SchedulerObject *s, PyObject *scope, PyObject *why)
{
    (void)s;
    pf_scope_cancel_again((ScopeObject *)scope, why);
}

/* Removes a scope that was left on another thread. */
static void
scope_remove_arrived(SchedulerObject *s, PyObject *op, PyObject *ignored)
{
    ScopeObject *scope = (ScopeObject *)op;
    (void)s;
    (void)ignored;
    if (scope->fiber != NULL) {
        pf_scope_remove(scope);
    }
}

/* Returns 0 also if the run is over and takes no message, because then it has
 * no fiber that could be cancelled. */
int
pf_scope_remove_there(ScopeObject *scope)
{
    int rc = pf_post_call(scope->scheduler, scope_remove_arrived,
                          (PyObject *)scope, NULL);
    return rc < 0 ? -1 : 0;
}

static int
cancel_fiber(PfThread *t, FiberObject *fiber, PyObject *why)
{
    if (pf_task_is_done(PF_TASK(fiber))) {
        return 0;
    }
    if (!fiber->scheduled) {
        PyErr_SetString(pf.fiber_error,
                        "only a fiber of a scheduler can be cancelled: use "
                        "throw() on a raw fiber, or start() it");
        return -1;
    }
    if (fiber->thread == t) {
        pf_cancel_again(fiber, why);
        return pf_explore_preempt() < 0 ? -1 : 1;
    }
    SchedulerObject *s = SCHEDULER_OF(fiber->core.scheduler);
    int rc = pf_post_call(s, cancel_arrived, (PyObject *)fiber, why);
    return rc < 0 ? -1 : 1;
}

int
pf_cancel_fiber(FiberObject *fiber, PyObject *reason)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return -1;
    }
    PyObject *why = pf_cancel_why(reason, (PyObject *)CURRENT(t));
    int rc = cancel_fiber(t, fiber, why);
    Py_XDECREF(why);
    return rc;
}

static int
cancel_scope(ScopeObject *scope, PyObject *why)
{
    if (scope->left) {
        return 0;
    }
    SchedulerObject *there = pf_scope_is_remote(scope);
    if (there == NULL) {
        pf_scope_cancel_again(scope, why);
        return 1;
    }
    int rc = pf_post_call(there, scope_cancel_arrived, (PyObject *)scope, why);
    if (rc > 0 && !PF_FREE_THREADED) {
        mark_cancelled(scope, why); /* before this thread releases the GIL */
    }
    Py_DECREF(there);
    return rc < 0 ? -1 : 1;
}

int
pf_scope_cancel(ScopeObject *scope, PyObject *reason)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return -1;
    }
    PyObject *why = pf_cancel_why(reason, (PyObject *)CURRENT(t));
    int rc = cancel_scope(scope, why);
    Py_XDECREF(why);
    return rc;
}

/* --------------------------------------------------- the table for lower rooms */

static int
traverse(const FiberObject *fiber, visitproc visit, void *arg)
{
    for (ScopeObject *scope = fiber->scope; scope != NULL;
         scope = scope->outer) {
        Py_VISIT(scope);
    }
    return 0;
}

const PfCancelling pf_cancel_table = {
    .raise_in = pf_cancelled_raise_in,
    .is_delivered = pf_delivery_all,
    .retract = pf_cancelled_retract,
    .cancel = pf_cancel_fiber,
    .is_top = is_top,
    .ends_inside = ends_inside,
    .child_done = pf_scope_child_done,
    .traverse = traverse,
    .disown = pf_scope_disown,
};

PyTypeObject *pf_scope_type, *pf_cancel_group_type; /* constant after import */
/* constant after import */
PyObject *pf_cancel_why_deadline, *pf_cancel_why_body_ended;

static int
make_reasons(void)
{
    pf_cancel_why_deadline =
        Py_BuildValue("(sO)", "the deadline has passed", Py_None);
    pf_cancel_why_body_ended =
        Py_BuildValue("(sO)", "the block of the group ended early", Py_None);
    return pf_cancel_why_deadline && pf_cancel_why_body_ended ? 0 : -1;
}

int
pf_cancel_init(PyObject *module)
{
    pf.cancelled = (PyObject *)pf_arguments_add_type(
        module, &pf_cancelled_spec, (PyTypeObject *)PyExc_BaseException);
    pf_scope_type = pf_arguments_add_type(module, &pf_scope_spec, NULL);
    if (pf.cancelled == NULL || pf_scope_type == NULL || make_reasons() < 0) {
        return -1;
    }
    pf_cancel_group_type =
        pf_arguments_add_type(module, &pf_group_spec, pf_scope_type);
    if (pf_cancel_group_type == NULL) {
        return -1;
    }
    pf_scope_type_ready(pf_scope_type);
    pf_scope_type_ready(pf_cancel_group_type);
    return PyModule_AddFunctions(module, pf_scope_functions);
}
