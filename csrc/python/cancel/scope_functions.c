/* timeout(), move_on_after() and shield(), which make scopes; and functions
 * that look at scopes and at the tasks in them. */
#include "python/cancel/cancel.h"
#include "python/cancel/scope.h"
#include "python/core/arguments.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"
#include "python/task/life.h"
#include "python/task/migrate.h"
#include "python/task/scheduler.h"

static ScopeObject *
scope_for(PyObject *length, const char *what)
{
    int64_t ns = -1;
    if (length != Py_None &&
        pf_arguments_seconds(length, "timeout", &ns) < 0) {
        return NULL;
    }
    if (length != Py_None && ns < 0) {
        PyErr_SetString(PyExc_ValueError, "timeout must not be negative");
        return NULL;
    }
    ScopeObject *self = pf_scope_new(pf_scope_type);
    if (self != NULL) {
        self->what = what;
        self->length = ns == PF_NEVER ? -1 : ns;
    }
    return self;
}

static PyObject *
mod_timeout(PyObject *module, PyObject *length)
{
    (void)module;
    ScopeObject *self = scope_for(length, "timeout");
    if (self != NULL) {
        self->times_out = true;
    }
    return (PyObject *)self;
}

static PyObject *
mod_move_on_after(PyObject *module, PyObject *length)
{
    (void)module;
    return (PyObject *)scope_for(length, "move_on_after");
}

ScopeObject *
pf_scope_shield_enter(void)
{
    ScopeObject *self = scope_for(Py_None, "shield");
    if (self != NULL) {
        self->shield = true;
        PyObject *entered = pf_scope_enter((PyObject *)self, NULL);
        if (entered == NULL) {
            Py_CLEAR(self);
        }
        Py_XDECREF(entered);
    }
    return self;
}

void
pf_scope_shield_leave(ScopeObject *self)
{
    if (self->fiber != NULL) {
        pf_scope_remove(self);
    }
    Py_DECREF(self);
}

static PyObject *
mod_shield(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs > 1) {
        PyErr_Format(PyExc_TypeError,
                     "shield() takes at most 1 argument (%zd given)", nargs);
        return NULL;
    }
    ScopeObject *self = scope_for(nargs == 0 ? Py_None : args[0], "shield");
    if (self != NULL) {
        self->shield = true;
    }
    return (PyObject *)self;
}

static PyObject *
mod_current_deadline(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_scheduler_active(t, "current_deadline()") == NULL) {
        return NULL;
    }
    int64_t deadline = pf_scope_effective_deadline(CURRENT(t));
    if (deadline == PF_NEVER) {
        Py_RETURN_NONE;
    }
    return pf_scope_seconds(deadline);
}

/* Returns true if `op` is a fiber of another thread of the same run. */
static bool
is_fiber_of_another_member(SchedulerObject *s, PyObject *op)
{
    return s->team != NULL && PyObject_TypeCheck(op, pf_task_fiber_type) &&
           pf_parts_hooks.migrate->together(
               s, SCHEDULER_OF(PF_TASK(op)->core.scheduler));
}

static PyObject *
mod_is_ours(PyObject *module, PyObject *op)
{
    (void)module;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    return PyBool_FromLong(
        pf_task_check(op) && PF_TASK(op)->scheduled && t->scheduler != NULL &&
        (PF_TASK(op)->core.scheduler == &t->scheduler->core ||
         is_fiber_of_another_member(t->scheduler, op)));
}

static bool
has_ended(PyObject *op, int outcome)
{
    return pf_task_check(op) && PF_TASK(op)->core.state == PF_DONE &&
           PF_TASK(op)->outcome == outcome;
}

static PyObject *
mod_succeeded(PyObject *module, PyObject *op)
{
    (void)module;
    return PyBool_FromLong(has_ended(op, PF_OUTCOME_OK));
}

static PyObject *
mod_failed_with(PyObject *module, PyObject *op)
{
    (void)module;
    bool failed =
        has_ended(op, PF_OUTCOME_FAILED) && PF_TASK(op)->value != NULL;
    return Py_NewRef(failed ? PF_TASK(op)->value : Py_None);
}

/* _spawn_inside(fn, on_done): starts a fiber that the scopes around the caller
 * cancel, but that nothing waits for, not even the run.  Iterators need this,
 * which work between the calls of their user.  The done-callback is added here
 * and not by another call, because a trace function could raise between the
 * two. */
static PyObject *
mod_spawn_inside(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    PfThread *t = pf_thread_this();
    if (nargs != 2 || !PyCallable_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "_spawn_inside() takes a function "
                                         "and a done-callback");
        return NULL;
    }
    FiberObject *fiber =
        t == NULL ? NULL : pf_fiber_new(args[0], NULL, 0, NULL);
    if (fiber == NULL || pf_task_add_callback(PF_TASK(fiber), args[1]) < 0) {
        Py_XDECREF(fiber);
        return NULL;
    }
    fiber->daemon = true;
    FiberObject *self = CURRENT(t);
    ScopeObject *base = self->scope != NULL ? self->scope : self->base;
    if (pf_scheduler_active(t, "spawning") == NULL ||
        pf_scope_enlist(t->scheduler, base, fiber) < 0) {
        Py_CLEAR(fiber);
    } else {
        pf_fiber_make_ready(t->scheduler, fiber);
    }
    return (PyObject *)fiber;
}

PyDoc_STRVAR(timeout_doc, "timeout(seconds, /)\n--\n\n\
A scope whose block must be done within `seconds`; None: no limit.\n\
\n\
A block that takes longer is cancelled, and TimeoutError is raised at its end.\n\
0 ends the block at its first park point. ValueError for a negative number or\n\
NaN.");
PyDoc_STRVAR(move_on_doc, "move_on_after(seconds, /)\n--\n\n\
A scope whose block is cancelled after `seconds`; None: no limit.\n\
\n\
The program continues after the block; cancelled() is then True. 0 ends the\n\
block at its first park point. ValueError for a negative number or NaN.");
PyDoc_STRVAR(shield_doc, "shield(seconds=None, /)\n--\n\n\
A scope that keeps out cancellation from outside, for clean-up.\n\
\n\
With `seconds` the block itself is cancelled after that time, as by\n\
move_on_after(). ValueError for a negative number or NaN.");
PyDoc_STRVAR(deadline_doc, "current_deadline()\n--\n\n\
When the running fiber will be cancelled: the earliest deadline around it, up\n\
to a shield, on the clock of now(); None if there is none.");

PyMethodDef pf_scope_functions[] = {
    {"timeout", mod_timeout, METH_O, timeout_doc},
    {"move_on_after", mod_move_on_after, METH_O, move_on_doc},
    {"shield", PF_FAST(mod_shield), METH_FASTCALL, shield_doc},
    {"current_deadline", mod_current_deadline, METH_NOARGS, deadline_doc},
    {"_spawn_inside", PF_FAST(mod_spawn_inside), METH_FASTCALL,
     "_spawn_inside(fn, on_done, /)\n--\n\n"
     "Start fn() in a daemon fiber that the scopes around the caller cancel.\n"
     "When the fiber ends, on_done(fiber) is called."},
    {"_is_ours", mod_is_ours, METH_O,
     "_is_ours(task, /)\n--\n\n"
     "True if the fiber or grain belongs to the run that this thread runs."},
    {"_succeeded", mod_succeeded, METH_O,
     "_succeeded(task, /)\n--\n\n"
     "True if the fiber or grain has returned. Unlike `outcome`, this does\n"
     "not count as looking at a failure."},
    {"_failed_with", mod_failed_with, METH_O,
     "_failed_with(task, /)\n--\n\n"
     "The exception with which the fiber or grain failed, or None. Does not\n"
     "count as looking at it."},
    {NULL, NULL, 0, NULL},
};
