/* The Fiber type: its methods, and how its objects die.  fiber_init.c has
 * __init__, look/ the attributes. */
#include "python/fiber/fiber_type.h"

#include "python/core/arguments.h"
#include "python/core/chain.h"
#include "python/core/compiler.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/core/world.h"
#include "python/look/inspect.h"
#include "python/pack/pack.h"
#include "python/switch/home.h"
#include "python/switch/locals.h"
#include "python/switch/pending.h"
#include "python/switch/switch.h"
#include "python/switch/tracing.h"
#include "python/switch/unwind.h"
#include "python/task/call.h"
#include "python/task/cancelling.h"
#include "python/task/explore.h"
#include "python/task/life.h"
#include "python/task/outcome.h"
#include "python/task/scheduler.h"
#include "python/task/unhandled.h"
#include "python/wait/wait.h"

#include <structmember.h>

/* ---------------------------------------------------------------- creation */

static PyObject *
fiber_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    FiberObject *self = pf_fiber_make(type);
    if (self != NULL) {
        self->parent =
            (FiberObject *)Py_NewRef((PyObject *)CURRENT(pf_thread_current));
    }
    return (PyObject *)self;
}

/* Makes a Fiber(fn) without parsing arguments.  All other calls take the usual
 * way, by __new__ and __init__. */
static PyObject *
fiber_vectorcall(PyObject *type, PyObject *const *args, size_t nargsf,
                 PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs == 1 && kwnames == NULL && args[0] != Py_None) {
        FiberObject *self = pf_call_check("Fiber()", args[0]) < 0
                                ? NULL
                                : pf_fiber_make((PyTypeObject *)type);
        if (self != NULL) {
            self->parent = (FiberObject *)Py_NewRef(
                (PyObject *)CURRENT(pf_thread_current));
            self->target = Py_NewRef(args[0]);
        }
        return (PyObject *)self;
    }
    return pf_arguments_make(type, args, nargs, kwnames);
}

/* Returns the object that dies with this one in a long chain: see chain.h. */
static PyObject *
fiber_link(PyObject *op)
{
    FiberObject *self = (FiberObject *)op;
    return self->parent != NULL ? (PyObject *)self->parent : self->value;
}

/* tp_vectorcall is not inherited, so subclasses use __new__ and __init__. */
void
pf_fiber_type_ready(PyTypeObject *type)
{
    type->tp_vectorcall = fiber_vectorcall;
    pf_chain_register(type, fiber_link);
}

/* ------------------------------------------------------------- destruction */

/* Returns true if fiber_traverse must visit the fiber's frames.  The thread
 * state leads the collector to those of a running fiber.  With
 * PF_TRAVERSES_ALL it needs the frames of all other fibers, except of the root
 * of a thread that does not exist in the child of a fork, because that root's
 * stack is gone. */
static inline bool
has_frames_to_visit(const FiberObject *self)
{
    if (PF_TRAVERSES_ALL) {
        return self->core.has_stack && self->core.state != PF_NEW &&
               self->core.state != PF_DONE && self->thread != NULL &&
               self != CURRENT(self->thread) &&
               !(self->thread->lost && self == self->thread->root);
    }
    return self->fiber.stack != NULL && self->core.state == PF_SUSPENDED;
}

static void fiber_finalize(PyObject *op);

/* Returns true if this pass of the collector visits the fiber's frames.  A
 * subclass with __del__ has no fiber_finalize, so the collector does not
 * unwind such a fiber before it clears objects that the frames need.  So the
 * collector must not find the fiber to be garbage by its frames: these are
 * visited only in the passes that look for uncounted references. */
static inline bool
visits_frames(const FiberObject *self, const void *arg)
{
    return has_frames_to_visit(self) &&
           (Py_TYPE((PyObject *)self)->tp_finalize == fiber_finalize ||
            (PF_TRAVERSES_ALL && arg != NULL));
}

/* Visits the target, except one that is not counted when the interpreter has
 * shut down: the collector's last passes count all references again. */
static int
visit_target(FiberObject *self, visitproc visit, void *arg)
{
    if (!self->uncounted) {
        Py_VISIT(self->target);
        return 0;
    }
    return self->target == NULL || pf_state_is_shut_down()
               ? 0
               : pystate_visit_uncounted(self->target, visit, arg);
}

static int
fiber_traverse(PyObject *op, visitproc visit, void *arg)
{
    FiberObject *self = (FiberObject *)op;
    int target = visit_target(self, visit, arg);
    if (target != 0) {
        return target;
    }
    Py_VISIT(self->args);
    Py_VISIT(self->kwargs);
    Py_VISIT(self->parent);
    Py_VISIT(self->context);
    if (self->scope != NULL) {
        int rc = pf_parts_hooks.cancelling->traverse(self, visit, arg);
        if (rc != 0) {
            return rc;
        }
    }
    if (!pf_fiber_kind(self)->is_part) {
        Py_VISIT(self->view);
    }
    if (self->scheduled) {
        Py_VISIT(SCHEDULER_OF(self->core.scheduler));
    }
    if (self->fiber.stack != NULL && self->saved != NULL) {
        int rc = pf_tracing_traverse(self->saved->trace, visit, arg);
        if (rc != 0) {
            return rc;
        }
    }
    if (visits_frames(self, arg)) {
        int rc = pystate_traverse(pf_pack_state_of(self), visit, arg);
        if (rc != 0) {
            return rc;
        }
    }
    return pf_task_traverse(PF_TASK(self), visit, arg);
}

static bool
is_alive(FiberObject *self)
{
    return self->fiber.stack != NULL && self->core.state != PF_DONE &&
           !pf_fiber_kind(self)->is_part;
}

/* Called when the last reference to a live fiber is gone (the caller holds one
 * for the time of the call).  Unwinds a suspended fiber.  If the fiber belongs
 * to another thread, or cannot be unwound now, passes a reference to its
 * thread, which does that later.  A fiber that runs, or that the running one
 * needs, holds itself (`held`) until it is left. */
static void
outlive(FiberObject *self)
{
    if (!pf_unwind_may(self)) {
        bool stopped = pf_world_stop(self->thread);
        bool runs = !pf_unwind_may(self);
        if (runs) {
            Py_INCREF(self);
            self->held = true;
        }
        pf_world_start(stopped);
        if (runs) {
            return;
        }
    }
    if (self->thread == pf_thread_current &&
        !pf_home_must_stay(self->thread)) {
        pf_unwind_fiber(self->thread, self);
    } else {
        pf_pending_leave(self->thread, Py_NewRef((PyObject *)self));
    }
}

static int
fiber_clear(PyObject *op)
{
    FiberObject *self = (FiberObject *)op;
    PfRare *rare = self->rare;
    if (rare != NULL) {
        Py_CLEAR(rare->callbacks);
    }
    if (self->view != NULL) {
        pf_parts_hooks.view_done(self); /* the view holds the fiber */
    }
    if (is_alive(self) && !pf_state_is_shut_down()) {
        outlive(self); /* a class with __del__ has no fiber_finalize */
    }
    if (self->fiber.stack != NULL) {
        return 0; /* to be unwound, which needs the other fields */
    }
    pf_fiber_drop_target(self);
    Py_CLEAR(self->args);
    Py_CLEAR(self->kwargs);
    pf_outcome_drop(PF_TASK(self), self->context);
    PF_CLEAR_LINK(self->parent);
    Py_CLEAR(self->context);
    if (rare != NULL) {
        Py_CLEAR(rare->cancel);
        Py_CLEAR(rare->puller);
        Py_CLEAR(rare->pulled);
        Py_CLEAR(rare->other);
        Py_CLEAR(rare->referents);
    }
    return 0;
}

static int
keep_one(PyObject *op, void *list)
{
    return PyList_Append(list, op);
}

/* Called when the collector has found the fiber to be garbage.  Objects that
 * the fiber's frames refer to without counting are garbage, too, and counted
 * from now on.  So the fiber holds them until it has ended, in a list that
 * fiber_traverse does not visit. */
static void
keep_referents(FiberObject *self)
{
    if (!PF_TRAVERSES_ALL || !pf_thread_collects ||
        !has_frames_to_visit(self)) {
        return;
    }
    PyObject *pending = pystate_take_exception();
    PyObject *list = PyList_New(0);
    if (list == NULL ||
        pystate_traverse(pf_pack_state_of(self), keep_one, list) < 0) {
        PyErr_Clear();
    }
    PfRare *rare = list == NULL ? NULL : pf_task_rare_of(PF_TASK(self));
    if (rare != NULL) {
        rare->referents = list;
    } else {
        PyErr_Clear(); /* no memory: better lost than freed too early */
    }
    pystate_restore_exception(pending);
}

/* Finalizes the fiber's scheduler first.  If the collector has found the fiber
 * to be garbage, its scheduler, which refers to it, is garbage as well.  The
 * scheduler's finalizer reports its fibers and then unwinds them all.  (With a
 * GIL objects are finalized in the order in which they were made.) */
static void
finalize_scheduler(FiberObject *self)
{
    pf_scheduler *s = self->core.scheduler;
    if (PF_FREE_THREADED && pf_thread_collects && self->scheduled &&
        s != NULL && is_alive(self)) {
        PyObject_CallFinalizer((PyObject *)SCHEDULER_OF(s));
    }
}

/* Unwinds a live fiber, or reports a failure that nobody has looked at.
 * Called when the last reference is gone, or by the collector. */
static void
fiber_finalize(PyObject *op)
{
    FiberObject *self = (FiberObject *)op;
    self->finalized = true;
    if (pf_state_is_shut_down()) {
        return;
    }
    finalize_scheduler(self);
    if (self->core.state == PF_DONE || self->core.state == PF_NEW) {
        if (pf_unhandled_has(op)) {
            pf_unhandled_lost(op);
        }
    } else if (is_alive(self)) {
        keep_referents(self);
        outlive(self);
    }
}

static void
outlive_object(PyObject *op)
{
    outlive((FiberObject *)op);
}

static void
keep_for_good(PyObject *op)
{
    Py_INCREF(op);
}

/* Returns true if the object may be freed while the interpreter exits.
 * Without a GIL, a live fiber of another thread that still runs is in that
 * thread's lists, and stays there. */
static bool
dies_at_exit(FiberObject *self)
{
    return !PF_FREE_THREADED || !is_alive(self) ||
           self->thread == pf_thread_current ||
           pf_task_revived_for((PyObject *)self, keep_for_good);
}

/* Does what fiber_finalize does, for an object whose class has replaced that
 * by __del__: unwinds a live fiber, reports an unhandled failure.  Returns
 * false if the object stays alive. */
static bool
finalize_again(FiberObject *self)
{
    PyObject *op = (PyObject *)self;
    bool failed = self->outcome == PF_OUTCOME_FAILED && pf_unhandled_has(op);
    if (pf_state_is_shut_down()) {
        return dies_at_exit(self);
    }
    if (!failed && !is_alive(self)) {
        return true;
    }
    return pf_task_revived_for(op,
                               failed ? pf_unhandled_lost : outlive_object);
}

static inline pf_thread *
thread_of(const FiberObject *self)
{
    return self->thread == NULL ? NULL : &self->thread->engine;
}

/* Frees what few dead fibers hold: one that was never entered, is in a scope,
 * belongs to a greenlet, has a PfRare, or is freed at the interpreter's
 * exit. */
static void
let_go(FiberObject *self)
{
    if (self->fiber.stack != NULL && self->thread != NULL) {
        pf_fiber_unlink(self); /* shutting down: the stack is not touched */
        if (self->base != NULL) {
            pf_parts_hooks.cancelling->disown(PF_TASK(self));
        }
    }
    /* The fiber may have entered a scope after its end, in code that its end
     * ran. */
    if (self->scope != NULL) {
        pf_parts_hooks.cancelling->ends_inside(self, Py_None);
    }
    if (pf_fiber_rare(self)->slots != NULL) {
        pf_locals_clear(self);
    }
    pf_fiber_leave_stack(thread_of(self), &self->fiber);
    fiber_clear((PyObject *)self);
    pf_task_free_rare(PF_TASK(self));
}

/* Returns true if the fiber holds more than most finished fibers do, which is
 * a result, a name and a scheduler.  One test covers all fields. */
static inline bool
holds_more(const FiberObject *self)
{
#define BITS(pointer) ((uintptr_t)(pointer))
    return (BITS(self->fiber.stack) | BITS(self->target) | BITS(self->args) |
            BITS(self->kwargs) | BITS(self->parent) | BITS(self->context) |
            BITS(self->view) | BITS(self->rare) | BITS(self->scope)) != 0;
#undef BITS
}

static void
fiber_dealloc(PyObject *op)
{
    FiberObject *self = (FiberObject *)op;
    /* In the common case there is nothing to finalize: a plain fiber that ran
     * to its end. */
    bool plain = self->core.state == PF_DONE &&
                 self->outcome != PF_OUTCOME_FAILED &&
                 Py_TYPE(op) == pf_task_fiber_type;
    if (!plain &&
        (PyObject_CallFinalizerFromDealloc(op) < 0 || !finalize_again(self))) {
        return;
    }
    if (PF_UNLIKELY(pf_task_awaits_post(PF_TASK(self)))) {
        return;
    }
    if (!plain) {
        pf_unhandled_leave(op);
    }
    PyObject_GC_UnTrack(op);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    if (PF_UNLIKELY(holds_more(self))) {
        let_go(self);
    }
    PF_CLEAR_LINK(self->value);
    Py_CLEAR(self->name);
    if (self->scheduled && self->core.scheduler != NULL) {
        SchedulerObject *s = SCHEDULER_OF(self->core.scheduler);
        self->core.scheduler = NULL;
        Py_DECREF(s);
    }
    pf_fiber_free(self);
}

/* ------------------------------------------------------------------ switching */

static PyObject *
fiber_switch(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
             PyObject *kwnames)
{
    PyObject *value = Py_None;
    if (pf_arguments_optional("switch", "value", args, nargs, kwnames,
                              &value) < 0) {
        return NULL;
    }
    return pf_switch_to((FiberObject *)self, value);
}

static PyObject *
fiber_throw(PyObject *self, PyObject *exc)
{
    return pf_switch_throw((FiberObject *)self, exc);
}

/* ------------------------------------------------------------------ scheduling */

static PyObject *
fiber_start(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_scheduler_active(t, "start()") == NULL ||
        pf_fiber_start(t->scheduler, (FiberObject *)op) < 0 ||
        pf_explore_preempt() < 0) {
        return NULL;
    }
    return Py_NewRef(op);
}

/* --------------------------------------------------------------- as a task */

int
pf_fiber_type_join(PfTaskObject *task, PfThread *t, PyObject *timeout,
                   int64_t deadline)
{
    (void)timeout;
    return pf_wait_join(t, (FiberObject *)(void *)task, deadline);
}

int
pf_fiber_type_cancel(PfTaskObject *task, PyObject *reason)
{
    return pf_parts_hooks.cancelling->cancel((FiberObject *)(void *)task,
                                             reason);
}

const PfTaskOps pf_fiber_ops = {
    .core = PF_FIBER_CORE_OPS(pf_switch_run, pf_switch_reap),
    PF_FIBER_OPS,
};

/* ------------------------------------------------------------------ the type */

PyDoc_STRVAR(switch_doc, "switch($self, /, value=None)\n--\n\n\
Leave the running fiber for this one and give it `value`.\n\
\n\
Returns the value of the switch that comes back. A fresh fiber takes only\n\
None (TypeError). FiberError if the fiber has finished, belongs to another\n\
thread or to a scheduler, or if the running fiber must not be left.");
PyDoc_STRVAR(throw_doc, "throw($self, exc, /)\n--\n\n\
Raise `exc`, an exception or an exception class, where the fiber is suspended.\n\
\n\
A fiber that has not started ends without running, and its parent gets the\n\
exception. Errors as switch().");
PyDoc_STRVAR(start_doc, "start($self, /)\n--\n\n\
Give the fiber to the scheduler that runs on this thread; returns the fiber.\n\
\n\
FiberError outside of a run, or if it has been started or switched to before.");
PyDoc_STRVAR(join_doc, "join($self, /, timeout=None)\n--\n\n\
Wait until the fiber has ended; False if `timeout` seconds passed first.\n\
\n\
If it has not begun, it begins next, before others that are ready. A\n\
cancellation point. FiberError if it is the running fiber, if it was not started\n\
on a scheduler, or if it has not ended and belongs to the run of another thread.");
PyDoc_STRVAR(result_doc, "result($self, /, timeout=None)\n--\n\n\
Wait for the fiber's end; return its result or raise its exception.\n\
\n\
FiberCancelled if it was cancelled, TimeoutError after `timeout` seconds.");
PyDoc_STRVAR(exception_doc, "exception($self, /, timeout=None)\n--\n\n\
Wait for the fiber's end; return its exception, None if it succeeded.\n\
\n\
FiberCancelled if it was cancelled, TimeoutError after `timeout` seconds.");
PyDoc_STRVAR(done_doc, "done($self, /)\n--\n\n\
True if the fiber has ended: returned, failed or cancelled.");
PyDoc_STRVAR(cancelled_doc, "cancelled($self, /)\n--\n\n\
True if the fiber has ended by cancellation.");
PyDoc_STRVAR(cancel_doc, "cancel($self, /, reason=None)\n--\n\n\
Ask the fiber to end: Cancelled is raised at each of its park points.\n\
\n\
A fiber that has not begun will never run. Any thread may call it. False if the\n\
fiber had ended already. FiberError on a raw fiber: use throw() there.");
PyDoc_STRVAR(unpark_doc, "unpark($self, /, value=None)\n--\n\n\
Wake the fiber from park(), or let its next park() return at once.\n\
\n\
There is one permit: a second unpark() before the park() changes nothing and\n\
returns False; if a value is lost, there is a RuntimeWarning. Any thread may\n\
call it; from another thread it returns True when the request was sent.\n\
FiberError if the fiber has finished.");
PyDoc_STRVAR(callback_doc, "add_done_callback($self, fn, /)\n--\n\n\
Call fn(fiber) on the fiber's thread when it ends; at once if it has ended.\n\
\n\
The callback must not switch or wait (FiberError). What it raises is logged.");
PyDoc_STRVAR(stack_doc, "stack($self, /)\n--\n\n\
The suspended fiber's stack as a traceback.StackSummary, outermost first.");

static PyMethodDef fiber_methods[] = {
    PF_METHOD("switch", fiber_switch, switch_doc),
    {"throw", fiber_throw, METH_O, throw_doc},
    {"start", fiber_start, METH_NOARGS, start_doc},
    PF_METHOD("join", pf_task_join, join_doc),
    PF_METHOD("result", pf_task_result, result_doc),
    PF_METHOD("exception", pf_task_exception, exception_doc),
    {"done", pf_task_done, METH_NOARGS, done_doc},
    {"cancelled", pf_task_cancelled, METH_NOARGS, cancelled_doc},
    PF_METHOD("cancel", pf_task_cancel, cancel_doc),
    PF_METHOD("unpark", pf_task_unpark, unpark_doc),
    {"add_done_callback", pf_task_add_done_callback, METH_O, callback_doc},
    {"stack", pf_look_stack, METH_NOARGS, stack_doc},
    {"__reduce__", pf_task_reduce, METH_NOARGS, "Raises TypeError."},
    {"__reduce_ex__", pf_task_reduce, METH_O, "Raises TypeError."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "Fiber[R]: a fiber whose result is an R."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef fiber_members[] = {
    PF_WEAKREFS(FiberObject),
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(
    fiber_doc,
    "Fiber(target=None, args=(), kwargs=None, *, name=None, "
    "daemon=False, stack_size=None, context=None, own_stack=False)\n--\n\n\
A function with a stack of its own: it can be suspended anywhere, and resumed.\n\
\n\
Raw: switch() to it; you decide which fiber runs. Scheduled: start() it inside\n\
run(); the loop decides. With no target a subclass defines run(). `stack_size`\n\
is in bytes (default: pyfiber.stack_size()). `context` is the\n\
contextvars.Context to run in (default: a copy of the creator's). With\n\
`own_stack` no other fiber ever uses its stack, for C code that lets a thread\n\
or the kernel write to its variables while the fiber waits.");

static PyType_Slot fiber_slots[] = {
    {Py_tp_doc, (void *)fiber_doc},
    {Py_tp_new, fiber_new},
    {Py_tp_init, pf_fiber_init},
    {Py_tp_dealloc, fiber_dealloc},
    {Py_tp_finalize, fiber_finalize},
    {Py_tp_traverse, fiber_traverse},
    {Py_tp_clear, fiber_clear},
    {Py_tp_repr, pf_look_repr},
    {Py_tp_methods, fiber_methods},
    {Py_tp_getset, pf_look_getset},
    {Py_tp_members, fiber_members},
    {Py_am_await, pf_task_await},
    {0, NULL},
};

PyType_Spec pf_fiber_spec = {
    .name = "pyfiber.Fiber",
    .basicsize = sizeof(FiberObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = fiber_slots,
};
