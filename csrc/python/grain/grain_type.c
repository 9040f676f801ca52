/* The Grain type: making one, starting it, its death, its methods; see
 * grain.h. */
#include "python/grain/grain.h"

#include "python/core/arguments.h"
#include "python/core/chain.h"
#include "python/core/compiler.h"
#include "python/core/facade.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/grain/loop.h"
#include "python/task/life.h"
#include "python/task/outcome.h"
#include "python/task/scheduler.h"
#include "python/task/unhandled.h"

#include <structmember.h>

/* ------------------------------------------------------------------ making one */

static PyObject *
grain_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", NULL};
    PyObject *name = Py_None;
    if (PyTuple_GET_SIZE(args) == 0) {
        PyErr_SetString(PyExc_TypeError,
                        "Grain() needs a function, an iterable, an iterator "
                        "or a coroutine");
        return NULL;
    }
    PyObject *none = PyTuple_New(0);
    bool parsed = none != NULL && PyArg_ParseTupleAndKeywords(
                                      none, kwargs, "|$O:Grain", names, &name);
    Py_XDECREF(none);
    PfThread *t = pf_thread_this();
    PyObject *start = PyTuple_GET_ITEM(args, 0);
    if (!parsed || t == NULL || pf_grain_check_start(start) < 0) {
        return NULL;
    }
    GrainObject *g = (GrainObject *)type->tp_alloc(type, 0);
    if (g == NULL) {
        return NULL;
    }
    pf_task_set_kind(&g->core, &pf_grain_ops);
    g->scheduled = true;
    g->iterator = Py_NewRef(start);
    bool made = true;
    if (PyTuple_GET_SIZE(args) > 1) {
        g->value = PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args));
        made = g->value != NULL;
    }
    if (made && *pystate_context(t->tstate) != NULL) {
        g->context = PyContext_CopyCurrent();
        made = g->context != NULL;
    }
    if (made && name != Py_None) {
        made = pf_task_set_name((PyObject *)g, name, NULL) == 0;
    }
    if (!made) {
        Py_CLEAR(g);
    }
    return (PyObject *)g;
}

/* ------------------------------------------------------------------- starting */

static int
may_start_here(PfThread *t, GrainObject *g)
{
    return pf_scheduler_active(t, "start()") == NULL ? -1
                                                     : pf_grain_may_start(g);
}

static int
give_args(GrainObject *g, PyObject *args)
{
    if (PyTuple_GET_SIZE(args) == 0) {
        return 0;
    }
    bool given = false;
    PF_BEGIN_ALONE(g);
    given = g->value != NULL || g->entered;
    if (!given) {
        g->value = Py_NewRef(args);
    }
    PF_END_ALONE();
    if (given) {
        PyErr_SetString(PyExc_TypeError,
                        "the arguments were given to Grain() already");
    }
    return given ? -1 : 0;
}

static PyObject *
grain_start(PyObject *op, PyObject *args)
{
    GrainObject *g = (GrainObject *)op;
    PfThread *t = pf_thread_this();
    if (t == NULL || may_start_here(t, g) < 0 || give_args(g, args) < 0 ||
        pf_grain_prepare(g) < 0 || pf_scheduler_active(t, "start()") == NULL ||
        pf_grains_begin(t->scheduler) < 0 || may_start_here(t, g) < 0 ||
        pf_grain_start_in(t->scheduler, NULL, g, NULL) < 0) {
        return NULL;
    }
    return Py_NewRef(op);
}

/* -------------------------------------------------------------- a grain's death */

static int
grain_traverse(PyObject *op, visitproc visit, void *arg)
{
    GrainObject *g = (GrainObject *)op;
    Py_VISIT(g->iterator);
    Py_VISIT(g->permit_value);
    Py_VISIT(g->yielded);
    Py_VISIT(g->context);
    Py_VISIT(g->pool);
    for (GrainCaller *c = g->callers; c != NULL; c = c->below) {
        Py_VISIT(c->iterator);
    }
    if (g->core.scheduler != NULL) {
        Py_VISIT(pf_grain_scheduler(g));
        if (g->core.state != PF_RUNNING && g->wait != NULL) {
            Py_VISIT(g->wait->notice);
            Py_VISIT(g->wait->line.node.item);
        }
    }
    return pf_task_traverse(PF_TASK(g), visit, arg);
}

/* Only a grain without a scheduler can be garbage by itself.  A scheduler that
 * is garbage closes its grains. */
static int
grain_clear(PyObject *op)
{
    GrainObject *g = (GrainObject *)op;
    if (g->rare != NULL) {
        Py_CLEAR(g->rare->callbacks);
    }
    if (g->core.scheduler != NULL) {
        return 0;
    }
    while (g->callers != NULL) {
        GrainCaller *caller = g->callers;
        g->callers = caller->below;
        Py_DECREF(caller->iterator);
        PyMem_Free(caller);
    }
    PyObject *iterator = g->iterator;
    g->iterator = NULL;
    Py_XDECREF(iterator);
    pf_outcome_drop(PF_TASK(g), g->context);
    Py_CLEAR(g->permit_value);
    Py_CLEAR(g->yielded);
    Py_CLEAR(g->context);
    Py_CLEAR(g->pool);
    if (g->rare != NULL) {
        Py_CLEAR(g->rare->cancel);
    }
    return 0;
}

static void
grain_finalize(PyObject *op)
{
    if (pf_unhandled_has(op) && !pf_state_is_shut_down()) {
        pf_unhandled_lost(op);
    }
}

static void
grain_dealloc(PyObject *op)
{
    GrainObject *g = (GrainObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    if (g->outcome == PF_OUTCOME_FAILED && pf_unhandled_has(op) &&
        !pf_task_revived_for(op, grain_finalize)) {
        return;
    }
    if (PF_UNLIKELY(pf_task_awaits_post(PF_TASK(g)))) {
        return;
    }
    pf_unhandled_leave(op);
    PyObject_GC_UnTrack(op);
    if (g->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    assert(g->core.scheduler == NULL);
    grain_clear(op);
    pf_task_free_rare(PF_TASK(g));
    Py_CLEAR(g->name);
    type->tp_free(op);
    Py_DECREF(type);
}

/* -------------------------------------------------------------------- waiting */

static int
refuse_unstarted(GrainObject *g)
{
    if (g->core.scheduler != NULL || g->pool != NULL) {
        return 0;
    }
    PyErr_SetString(pf.fiber_error,
                    g->core.state == PF_NEW
                        ? "the grain was not started: start() or queue() it "
                          "before waiting for it"
                        : "the grain was taken out of its pool: queue() it "
                          "before waiting for it");
    return -1;
}

/* Waits on a thread that has no fibers, or other ones. */
static int
wait_elsewhere(GrainObject *g, PyObject *timeout)
{
    PyObject *answer = PyObject_CallFunctionObjArgs(pf_facade.join_elsewhere,
                                                    g, timeout, NULL);
    int done = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return done < 0 ? -1 : !done;
}

static int
join_grain(PfTaskObject *task, PfThread *t, PyObject *timeout,
           int64_t deadline)
{
    GrainObject *g = (GrainObject *)(void *)task;
    if (g->core.state == PF_DONE) {
        return 0;
    }
    if (refuse_unstarted(g) < 0) {
        return -1;
    }
    if (!pf_grain_is_here(g)) {
        return wait_elsewhere(g, timeout);
    }
    if (pf_scheduler_active(t, "waiting for a grain") == NULL) {
        return -1;
    }
    return pf_grain_join(t, g, deadline);
}

/* ------------------------------------------------------------------ the type */

/* The grain's turn, on a runner. */
static void
grain_turn(PfThread *t, pf_task *task)
{
    GrainObject *g = pf_grain_of(task);
    if (PF_UNLIKELY(g->pool != NULL) && g->pool->policy != NULL) {
        pf_grain_pool_add(g->pool, g); /* woken: notify its policy */
    } else {
        pf_grain_step(t, g);
    }
}

static int
prepare_to_start(PfTaskObject *task, SchedulerObject *s)
{
    GrainObject *g = (GrainObject *)(void *)task;
    return pf_grain_may_start(g) < 0 || pf_grain_prepare(g) < 0 ||
                   pf_grains_begin(s) < 0
               ? -1
               : 0;
}

static int
start_in(PfTaskObject *task, SchedulerObject *s, ScopeObject *base)
{
    GrainObject *g = (GrainObject *)(void *)task;
    return pf_grain_may_start(g) < 0 ? -1
                                     : pf_grain_start_in(s, base, g, NULL);
}

const PfTaskOps pf_grain_ops = {
    .core =
        {
            .message = {pf_task_arrived},
            .first = pf_grains_first,
            .posted = pf_grain_posted,
            .reads =
                offsetof(GrainObject, iterator) - offsetof(GrainObject, core),
        },
    .noun = "grain",
    .nature = "a running generator",
    .name_of = pf_grain_name_of,
    .join = join_grain,
    .cancel = pf_grain_cancel,
    .unpark = pf_grain_unpark,
    .permit_value = offsetof(GrainObject, permit_value),
    .turn = grain_turn,
    .no_turn = pf_grain_no_turn,
    .prepare = prepare_to_start,
    .start_in = start_in,
    .refresh = pf_grain_refresh,
    .cancel_now = pf_grain_cancel_task,
};

PyDoc_STRVAR(start_doc, "start($self, /, *args)\n--\n\n\
Give the grain to the scheduler that runs on this thread; return the grain.\n\
\n\
`args` are for its function, unless Grain() was given some. Raises\n\
FiberError outside of a run, if the grain has been started, or if it is\n\
queued in a pool.");
PyDoc_STRVAR(join_doc, "join($self, /, timeout=None)\n--\n\n\
Wait until the grain has ended; False if `timeout` seconds passed first.\n\
\n\
In a fiber this is a cancellation point; a grain yields the other grain\n\
instead. Any thread may join. FiberError if the grain was not started.");
PyDoc_STRVAR(result_doc, "result($self, /, timeout=None)\n--\n\n\
Wait for the grain's end; return its result or raise its exception.\n\
\n\
FiberCancelled if it was cancelled, TimeoutError after `timeout` seconds.");
PyDoc_STRVAR(exception_doc, "exception($self, /, timeout=None)\n--\n\n\
Wait for the grain's end; return its exception, None if it succeeded.\n\
\n\
FiberCancelled if it was cancelled, TimeoutError after `timeout` seconds.");
PyDoc_STRVAR(done_doc, "done($self, /)\n--\n\n\
Return True if the grain has ended: it has returned, failed or been cancelled.");
PyDoc_STRVAR(cancelled_doc, "cancelled($self, /)\n--\n\n\
Return True if the grain has ended by cancellation.");
PyDoc_STRVAR(cancel_doc, "cancel($self, /, reason=None)\n--\n\n\
Ask the grain to end: Cancelled is raised at each of its yields.\n\
\n\
A grain that has not begun will never run. If the grain has called another\n\
one, by yielding it, that one is cancelled first. Any thread may call this.\n\
False if the grain had ended already.");
PyDoc_STRVAR(unpark_doc, "unpark($self, /, value=None)\n--\n\n\
Wake the grain from `yield SLEEPING`, which returns `value`; or let its next\n\
one return at once.\n\
\n\
There is one permit, as for a fiber's unpark(): False if there was one\n\
already, and a RuntimeWarning if that loses a value. Any thread may call\n\
this, also before the grain is started. FiberError if the grain has ended.");
PyDoc_STRVAR(callback_doc, "add_done_callback($self, fn, /)\n--\n\n\
Call fn(grain) on the grain's thread when it ends; at once if it has ended.\n\
\n\
The callback must not switch or wait (FiberError). An exception is logged.");
PyDoc_STRVAR(stack_doc, "stack($self, /)\n--\n\n\
Return the frames of the grain's generators as a traceback.StackSummary,\n\
outermost first.");

static PyMethodDef grain_methods[] = {
    {"start", grain_start, METH_VARARGS, start_doc},
    PF_METHOD("join", pf_task_join, join_doc),
    PF_METHOD("result", pf_task_result, result_doc),
    PF_METHOD("exception", pf_task_exception, exception_doc),
    {"done", pf_task_done, METH_NOARGS, done_doc},
    {"cancelled", pf_task_cancelled, METH_NOARGS, cancelled_doc},
    PF_METHOD("cancel", pf_task_cancel, cancel_doc),
    PF_METHOD("unpark", pf_task_unpark, unpark_doc),
    {"add_done_callback", pf_task_add_done_callback, METH_O, callback_doc},
    {"stack", pf_grain_stack, METH_NOARGS, stack_doc},
    {"__reduce__", pf_task_reduce, METH_NOARGS, "Raise TypeError."},
    {"__reduce_ex__", pf_task_reduce, METH_O, "Raise TypeError."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "Grain[R]: a grain whose result is an R."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef grain_members[] = {
    PF_WEAKREFS(GrainObject),
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(grain_doc, "Grain(start, /, *args, name=None)\n--\n\n\
A generator, or a coroutine, that the scheduler steps: a task without a stack.\n\
\n\
`start` is a function that returns one (called with `args` when the grain is\n\
started), an iterable, an iterator or a coroutine. Each `yield` says what\n\
to do next: READY or None (a turn of the others), SLEEPING (until unpark()),\n\
STOPPED, a number of seconds, a predicate (until it is true), a generator or\n\
coroutine to call, a Grain to call or to wait for, a Fiber or a future. The\n\
result of the wait is the value of the `yield`; an error is raised there.");

static PyType_Slot grain_slots[] = {
    {Py_tp_doc, (void *)grain_doc},   {Py_tp_new, grain_new},
    {Py_tp_dealloc, grain_dealloc},   {Py_tp_finalize, grain_finalize},
    {Py_tp_traverse, grain_traverse}, {Py_tp_clear, grain_clear},
    {Py_tp_repr, pf_grain_repr},      {Py_tp_methods, grain_methods},
    {Py_tp_getset, pf_grain_getset},  {Py_tp_members, grain_members},
    {Py_am_await, pf_task_await},     {0, NULL},
};

PyType_Spec pf_grain_spec = {
    .name = "pyfiber.grains.Grain",
    .basicsize = sizeof(GrainObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = grain_slots,
};

/* ---------------------------------------------------------------- module part */

static PyObject *
current_grain(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    GrainObject *g = pf_grain_current(t);
    return Py_NewRef(g == NULL ? Py_None : (PyObject *)g);
}

static PyMethodDef functions[] = {
    {"current_grain", current_grain, METH_NOARGS,
     "current_grain()\n--\n\nReturn the grain whose step runs, or None."},
    {NULL, NULL, 0, NULL},
};

/* Returns the next link of a chain of grains; see chain.h. */
static PyObject *
grain_link(PyObject *op)
{
    return ((GrainObject *)op)->value;
}

int
pf_grain_module_init(PyObject *module)
{
    pf_grain_type = pf_arguments_add_type(module, &pf_grain_spec, NULL);
    if (pf_grain_type == NULL) {
        return -1;
    }
    pf_chain_register(pf_grain_type, grain_link);
    pf_task_stackless_type = pf_grain_type;
    pf_grain_pool_type =
        pf_arguments_add_type(module, &pf_grain_pool_spec, NULL);
    pf_grain_until_type = pf_arguments_add_type(module, &pf_until_spec, NULL);
    pf_grain_notice_type = (PyTypeObject *)PyType_FromModuleAndSpec(
        module, &pf_grain_notice_spec, NULL);
    pf_grain.runner_main = PyCFunction_New(&pf_grain_runner_method, NULL);
    pf_grain.s_result = PyUnicode_InternFromString("result");
    return pf_grain_pool_type && pf_grain_until_type && pf_grain_notice_type &&
                   pf_grain.runner_main && pf_grain.s_result
               ? PyModule_AddFunctions(module, functions)
               : -1;
}
