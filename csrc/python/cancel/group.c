/* The TaskGroup type: a scope that waits for the fibers born in it.
 *
 * The group's fibers and grains count down `alive` as they end; the last one
 * wakes the owner, which is the fiber that waits in __exit__.  Nothing
 * interrupts that wait: a cancellation that reaches the owner also cancels the
 * group's fibers, and their end ends the wait.  group_remote.c has spawn()
 * from another thread.
 */
#include "python/cancel/cancel.h"
#include "python/cancel/scope.h"
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/facade.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/core/world.h"
#include "python/switch/pending.h"
#include "python/task/call.h"
#include "python/task/cancelling.h"
#include "python/task/fiber.h"
#include "python/task/outcome.h"
#include "python/wait/wait.h"

#define GROUP(op) ((GroupObject *)(op))

/* -------------------------------------------------------------------- children */

static int
may_spawn(PfThread *t, GroupObject *self)
{
    if (PF_LIKELY(self->scope.scheduler != NULL &&
                  self->scope.scheduler == t->scheduler)) {
        return 0;
    }
    const char *why;
    if (self->scope.left) {
        why = "%R has been left: it takes no more fibers";
    } else if (self->scope.fiber == NULL) {
        why = "%R has not been entered: spawn inside of its with statement";
    } else {
        why = "%R belongs to another run: spawn on its own thread, or through "
              "Scheduler.call_soon_threadsafe()";
    }
    PyErr_Format(pf.fiber_error, why, self);
    return -1;
}

/* Returns the fiber for the arguments of spawn(), which are a function and its
 * arguments or a fiber that is not started: a new reference, or NULL with an
 * exception. */
static FiberObject *
make_child(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    if (nargs < 1) {
        return pf_call_fiber("spawn()", args, nargs, kwnames);
    }
    if (!pf_task_check(args[0])) {
        return pf_call_fiber("spawn()", args, nargs, kwnames);
    }
    PfTaskObject *task = PF_TASK(args[0]);
    const char *noun = pf_task_kind(&task->core)->noun;
    if (nargs > 1 || kwnames != NULL) {
        PyErr_Format(PyExc_TypeError,
                     "a %s has its arguments already: spawn() takes it alone",
                     noun);
        return NULL;
    }
    if (pf_task_fiber(task) == NULL) { /* a grain in spawn_now() */
        PyErr_Format(PyExc_TypeError,
                     "a %s runs when its turn comes: use spawn()", noun);
        return NULL;
    }
    return (FiberObject *)Py_NewRef(args[0]);
}

/* Returns the list of errors: borrowed, or NULL with an exception.  The list
 * is looked for again after PyList_New(), during which another error may
 * come. */
static PyObject *
errors_of(GroupObject *self)
{
    if (self->errors == NULL) {
        PyObject *list = PyList_New(0);
        if (self->errors != NULL) {
            Py_XDECREF(list);
        } else {
            self->errors = list;
        }
    }
    return self->errors;
}

/* Keeps an exception for the group's end.  Returns false if there is no memory
 * for it. */
static bool
collect(GroupObject *self, PyObject *exc)
{
    if (pf_outcome_ends_programs(exc)) {
        if (self->fatal == NULL) {
            self->fatal = Py_NewRef(exc);
        }
        return true;
    }
    PyObject *errors = errors_of(self);
    if (errors == NULL || PyList_Append(errors, exc) < 0) {
        PyErr_Clear();
        return false;
    }
    return true;
}

/* Cancels the group because of the failure of a child. */
static void
cancel_after(GroupObject *self, PyObject *child)
{
    PyObject *why = pf_cancel_why(pf.s_failed, child);
    pf_scope_cancel_now(&self->scope, why);
    Py_XDECREF(why);
}

static void
child_failed(GroupObject *self, PfTaskObject *child)
{
    /* A failure that cannot be kept is reported as an unhandled one. */
    child->looked_at = collect(self, child->value);
    cancel_after(self, (PyObject *)child);
}

/* Returns a new child that belongs to the group and is not ready yet, or NULL
 * with an exception. */
static FiberObject *
add_child(PfThread *t, GroupObject *self, PyObject *const *args,
          Py_ssize_t nargs, PyObject *kwnames)
{
    FiberObject *child = t == NULL ? NULL : make_child(args, nargs, kwnames);
    if (child == NULL || may_spawn(t, self) < 0 ||
        pf_scope_enlist(t->scheduler, &self->scope, child) < 0) {
        Py_XDECREF(child);
        return NULL;
    }
    child->grouped = true;
    self->alive++;
    return child;
}

static FiberObject *
spawn(GroupObject *self, PyObject *const *args, Py_ssize_t nargs,
      PyObject *kwnames)
{
    PfThread *t = pf_thread_this();
    bool shared =
        t != NULL && t->scheduler != NULL && t->scheduler->team != NULL;
    SchedulerObject *there =
        PF_UNLIKELY(shared) ? pf_group_is_remote(t, self) : NULL;
    if (PF_UNLIKELY(there != NULL)) {
        FiberObject *child = make_child(args, nargs, kwnames);
        child =
            child == NULL ? NULL : pf_group_remote_spawn(there, self, child);
        Py_DECREF(there);
        return child;
    }
    FiberObject *child = add_child(t, self, args, nargs, kwnames);
    if (child != NULL) {
        pf_fiber_make_ready(t->scheduler, child);
    }
    return child;
}

/* Starts a grain in the group.  Checks again after `prepare`, which calls the
 * grain's function, because that may leave the group. */
static PfTaskObject *
spawn_stackless(GroupObject *self, PfTaskObject *task)
{
    const PfTaskOps *kind = pf_task_kind(&task->core);
    PfThread *t = pf_thread_this();
    if (t == NULL || may_spawn(t, self) < 0 ||
        kind->prepare(task, t->scheduler) < 0 || may_spawn(t, self) < 0 ||
        kind->start_in(task, t->scheduler, &self->scope) < 0) {
        return NULL;
    }
    task->grouped = true;
    self->alive++;
    return PF_TASK(Py_NewRef((PyObject *)task));
}

static bool
is_lone_stackless(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return nargs == 1 && kwnames == NULL &&
           PyObject_TypeCheck(args[0], pf_task_stackless_type);
}

static PyObject *
group_spawn(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    return is_lone_stackless(args, nargs, kwnames)
               ? (PyObject *)spawn_stackless(GROUP(op), PF_TASK(args[0]))
               : (PyObject *)spawn(GROUP(op), args, nargs, kwnames);
}

static PyObject *
group_spawn_now(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
{
    PfThread *t = pf_thread_this();
    if (t == NULL || (t->pending != 0 && pf_pending_run(t) < 0)) {
        return NULL;
    }
    FiberObject *child = add_child(t, GROUP(op), args, nargs, kwnames);
    if (child != NULL && pf_wait_run_now(t, child) < 0) {
        Py_CLEAR(child);
    }
    return (PyObject *)child;
}

/* The done-callback of a watched child.  `pair` is (group, callback); calls
 * callback(child).  The group's user relies on the callback, so its failure is
 * a failure of the group. */
static PyObject *
call_watcher(PyObject *pair, PyObject *child)
{
    GroupObject *group = GROUP(PyTuple_GET_ITEM(pair, 0));
    PyObject *done = PyObject_CallOneArg(PyTuple_GET_ITEM(pair, 1), child);
    if (done != NULL || group->alive == 0) {
        return done; /* a failure that nobody waits for is logged */
    }
    PyObject *exc = pystate_take_exception();
    bool kept = collect(group, exc);
    cancel_after(group, child);
    if (!kept) {
        pystate_restore_exception(exc);
        return NULL;
    }
    Py_DECREF(exc);
    Py_RETURN_NONE;
}

static PyMethodDef watcher_method = {"call_watcher", call_watcher, METH_O,
                                     NULL};

static int
watch(PyObject *group, PyObject *child, PyObject *callback)
{
    int rc = -1;
    PyObject *watcher = NULL;
    PyObject *pair = PyTuple_Pack(2, group, callback);
    if (pair == NULL) {
        goto done;
    }
    watcher = PyCFunction_New(&watcher_method, pair);
    if (watcher == NULL) {
        goto done;
    }
    PyObject *none =
        PyObject_CallMethod(child, "add_done_callback", "O", watcher);
    rc = none == NULL ? -1 : 0;
    Py_XDECREF(none);
done:
    Py_XDECREF(watcher);
    Py_XDECREF(pair);
    return rc;
}

/* _spawn_watched(fn, on_done): for functions that use a group and handle the
 * failures of its fibers themselves. */
static PyObject *
group_spawn_watched(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError,
                        "_spawn_watched() takes a function and a "
                        "done-callback");
        return NULL;
    }
    PyObject *child = group_spawn(op, args, 1, NULL);
    if (child == NULL) {
        return NULL;
    }
    PF_TASK(child)->watched = true;
    if (watch(op, child, args[1]) < 0) {
        Py_CLEAR(child);
    }
    return child;
}

static void
wake_owner(GroupObject *self)
{
    if (self->owner != NULL) {
        pf_scheduler_wake(self->owner->core.scheduler, &self->owner->core,
                          PF_WAKE_NORMAL);
    }
}

static void
member_done(GroupObject *group, PfTaskObject *child)
{
    child->grouped = false;
    bool last = --group->alive == 0;
    if (PF_UNLIKELY(child->outcome == PF_OUTCOME_FAILED) && !child->watched) {
        child_failed(group, child);
    }
    if (last) {
        wake_owner(group);
    }
}

void
pf_scope_child_done(PfTaskObject *child)
{
    ScopeObject *base = (ScopeObject *)Py_NewRef((PyObject *)child->base);
    pf_scope_disown(child);
    if (child->grouped) {
        member_done(GROUP(base), child);
    }
    Py_DECREF(base);
}

/* The group was left without waiting.  pf_scope_remove has cancelled its
 * fibers and moved them to the scope around the group. */
void
pf_group_abandoned(ScopeObject *scope)
{
    GROUP(scope)->alive = 0;
    wake_owner(GROUP(scope));
}

/* --------------------------------------------------------------------- leaving */

/* Waits until all children have ended.  Returns 0, with *hit true if a
 * cancellation reached the owner before that; or -1 with an exception, if the
 * owner is being unwound or must not wait here. */
static int
join_children(PfThread *t, GroupObject *self, bool *hit)
{
    FiberObject *owner = CURRENT(t);
    FiberObject *before = self->owner; /* the same, if it waits already */
    *hit = false;
    while (self->alive > 0) {
        *hit |= owner->under_cancel;
        self->owner = owner;
        int why = pf_wait_anyhow(t, PF_NEVER, (PyObject *)self);
        self->owner = before;
        if (why < 0) {
            return -1;
        }
        *hit |= why == PF_WAKE_CANCEL;
    }
    return 0;
}

/* Returns true if `exc` only passes through the body and is not an error of
 * it: a Cancelled of an outer scope, or the end of a generator or fiber. */
static bool
is_passing(PyObject *exc)
{
    return pf_scope_is_cancelled(exc) ||
           PyErr_GivenExceptionMatches(exc, pf.fiber_exit) ||
           PyErr_GivenExceptionMatches(exc, PyExc_GeneratorExit);
}

/* Adds the body's error to the errors, unless it is a fiber's error that the
 * body got from result().  Returns 0, or -1 with an exception. */
static int
add_body_error(GroupObject *self, PyObject *exc)
{
    PyObject *errors = errors_of(self);
    if (errors == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(errors); i++) {
        if (PyList_GET_ITEM(errors, i) == exc) {
            return 0;
        }
    }
    return PyList_Insert(errors, 0, exc);
}

/* Removes the errors from the group and returns them as a BaseExceptionGroup.
 * Returns NULL if its text could not be made; then the exception that is set
 * has the BaseExceptionGroup as its context. */
static PyObject *
take_errors(GroupObject *self)
{
    PyObject *errors = self->errors;
    self->errors = NULL;
    PyObject *text = PyObject_CallOneArg(pf_facade.group_text, errors);
    PyObject *failure = text == NULL ? pystate_take_exception() : NULL;
    PyObject *group =
        text == NULL ? PyObject_CallFunction(PyExc_BaseExceptionGroup, "sO",
                                             "errors in a TaskGroup", errors)
                     : PyObject_CallFunctionObjArgs(PyExc_BaseExceptionGroup,
                                                    text, errors, NULL);
    Py_XDECREF(text);
    Py_DECREF(errors);
    if (failure != NULL && group != NULL) {
        pystate_restore_exception(failure);
        pf_outcome_raised_instead_of(group);
        Py_CLEAR(group);
    } else {
        Py_XDECREF(failure);
    }
    return group;
}

static PyObject *
raise_errors(GroupObject *self)
{
    PyObject *group = take_errors(self);
    if (group != NULL) {
        PyException_SetCause(group, NULL); /* "from None": the errors are in
                                              the group */
        pystate_restore_exception(group);
    }
    return NULL;
}

/* Makes the other errors the context of a KeyboardInterrupt or SystemExit,
 * which is raised without a group. */
static void
add_context(GroupObject *self, PyObject *fatal)
{
    if (self->errors == NULL) {
        return;
    }
    PyObject *errors = take_errors(self);
    if (errors == NULL) {
        PyErr_WriteUnraisable((PyObject *)self);
        return;
    }
    pf_outcome_add_context(fatal, errors);
    Py_DECREF(errors);
}

/* Returns the result of __exit__, or NULL with an exception.  `exc` is the
 * body's exception, NULL if the body ran to its end.  `hit` is from
 * join_children(); `own`: the group itself is what was cancelled. */
static PyObject *
verdict(PfThread *t, GroupObject *self, PyObject *exc, bool hit, bool own)
{
    if (exc != NULL && pf_outcome_ends_programs(exc)) {
        add_context(self, exc);
        Py_RETURN_FALSE;
    }
    if (self->fatal != NULL) {
        PyObject *fatal = self->fatal;
        self->fatal = NULL;
        add_context(self, fatal);
        pystate_restore_exception(fatal);
        return NULL;
    }
    if (exc != NULL && !is_passing(exc) && add_body_error(self, exc) < 0) {
        return NULL;
    }
    if (self->errors != NULL) {
        return raise_errors(self);
    }
    bool absorbs = exc != NULL && pf_scope_owns(&self->scope, exc);
    if (exc != NULL && !absorbs) {
        Py_RETURN_FALSE;
    }
    self->scope.caught = absorbs || (hit && own);
    if (hit && pf_cancelling_check(CURRENT(t)) < 0) {
        return NULL; /* cancelled from outside while it waited */
    }
    return PyBool_FromLong(absorbs);
}

/* Gives up the group's fibers, which are cancelled, because the group cannot
 * wait for them; an exception that says why is set.  Returns the result of
 * __exit__: NULL with that exception, or False if `exc`, the body's, is a
 * FiberExit. */
static PyObject *
give_up_children(GroupObject *self, PyObject *exc)
{
    PyObject *why = pystate_take_exception();
    if (self->scope.fiber != NULL) {
        pf_scope_remove(&self->scope);
    }
    if (exc != NULL && PyErr_GivenExceptionMatches(exc, pf.fiber_exit)) {
        Py_DECREF(why);
        Py_RETURN_FALSE;
    }
    pystate_restore_exception(why);
    return NULL;
}

static PyObject *
group_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    GroupObject *self = GROUP(op);
    PfThread *t = pf_scope_may_leave(&self->scope, nargs);
    if (t == NULL) {
        return NULL;
    }
    PyObject *exc = PyExceptionInstance_Check(args[1]) ? args[1] : NULL;
    if (exc != NULL) {
        pf_scope_cancel_now(&self->scope, pf_cancel_why_body_ended);
    }
    bool hit;
    if (join_children(t, self, &hit) < 0) {
        return give_up_children(self, exc);
    }
    bool own = self->scope.source == op;
    if (self->scope.fiber != NULL) {
        pf_scope_remove(&self->scope);
    }
    return verdict(t, self, exc, hit, own);
}

/* -------------------------------------------------------------------- the type */

/* _holders(), for reports: a list of the tasks for whose end the group
 * waits. */
static PyObject *
group_holders(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PyObject *list = PyList_New(0);
    bool stopped = pf_world_stop(NULL);
    PfTaskObject *child = GROUP(op)->scope.children;
    for (; list != NULL && child != NULL; child = child->base_next) {
        if (child->grouped && PyList_Append(list, (PyObject *)child) < 0) {
            break;
        }
    }
    pf_world_start(stopped);
    if (PyErr_Occurred()) {
        Py_CLEAR(list);
    }
    return list;
}

static int
group_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(GROUP(op)->errors);
    Py_VISIT(GROUP(op)->fatal);
    return pf_scope_traverse(op, visit, arg);
}

static int
group_clear(PyObject *op)
{
    Py_CLEAR(GROUP(op)->errors);
    Py_CLEAR(GROUP(op)->fatal);
    return pf_scope_clear(op);
}

static void
group_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    group_clear(op);
    pf_scope_dealloc(op);
}

PyDoc_STRVAR(spawn_doc, "spawn($self, fn, /, *args, **kwargs)\n--\n\n\
Start fn(*args, **kwargs) in a new fiber of the group; returns the fiber.\n\
\n\
`fn` may also be a Fiber or Grain that has not been started, without arguments.\n\
Any fiber of the run may call it until the group is left. FiberError before the\n\
group is entered and after it is left. In a cancelled group the fiber never runs.");

PyDoc_STRVAR(spawn_now_doc, "spawn_now($self, fn, /, *args, **kwargs)\n--\n\n\
Like spawn(), but the new fiber runs first, as with pyfiber.spawn_now().");

static PyMethodDef group_methods[] = {
    {"__exit__", PF_FAST(group_exit), METH_FASTCALL,
     "Wait for the fibers of the group, then leave its scope.\n\n"
     "Raises an ExceptionGroup of the errors in them and in the block."},
    PF_METHOD("spawn", group_spawn, spawn_doc),
    PF_METHOD("spawn_now", group_spawn_now, spawn_now_doc),
    {"_spawn_watched", PF_FAST(group_spawn_watched), METH_FASTCALL,
     "_spawn_watched($self, fn, on_done, /)\n--\n\n"
     "Start a function or fiber whose failure only on_done(fiber) handles."},
    {"_holders", group_holders, METH_NOARGS,
     "A list of the fibers for which the group waits; for reports."},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(group_doc, "TaskGroup(deadline=None, shield=False)\n--\n\n\
A with block that ends when all the fibers spawned in it are done.\n\
\n\
When the block or a fiber fails, the block and the other fibers are cancelled;\n\
when all are done, the errors are raised in an ExceptionGroup. It is a\n\
CancelScope: cancel() ends the fibers and the block without an error.");

static PyType_Slot group_slots[] = {
    {Py_tp_doc, (void *)group_doc},   {Py_tp_dealloc, group_dealloc},
    {Py_tp_traverse, group_traverse}, {Py_tp_clear, group_clear},
    {Py_tp_methods, group_methods},   {0, NULL},
};

PyType_Spec pf_group_spec = {
    .name = "pyfiber.TaskGroup",
    .basicsize = sizeof(GroupObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = group_slots,
};
