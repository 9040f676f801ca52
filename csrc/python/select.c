/* select(): exactly one of several operations, the first that is possible.
 *
 * First every case is tried in order; if none is possible the waiter stands in
 * all lines at once, and whoever serves one of its places takes it out of the
 * others.  From the first look at a case to the last place in line no Python
 * code runs: what has to be converted or allocated was before.  After that
 * nothing is relied on but what was done, and what is dropped is dropped last.
 */
#include "python/select.h"

#include "python/schedule.h"

/* ---------------------------------------------- cases that are no CaseObject */

static int
attempt_to_join(PyObject *op, PyObject *value, PyObject **got)
{
    (void)value;
    (void)got;
    return ((FiberObject *)op)->core.state == PF_DONE;
}

static PfWaitq *
line_of_fiber(PyObject *op)
{
    return &((FiberObject *)op)->waiters;
}

static const PfCaseOps joining_ops = {attempt_to_join, line_of_fiber, NULL,
                                      NULL};

static int
attempt_to_await(PyObject *op, PyObject *value, PyObject **got)
{
    (void)value;
    (void)got;
    return pf_event_queue(op) == NULL;
}

static const PfCaseOps happening_ops = {attempt_to_await, pf_event_queue, NULL,
                                        NULL};

/* A case that has been looked at: everything borrowed. */
typedef struct Choice {
    const PfCaseOps *ops;
    PfCaseKind kind;
    PyObject *source; /* what the answer tells */
    PyObject *op;     /* what the operation is done on */
    PyObject *value;
    PyObject *finish;
} Choice;

static Choice
look_at(PyObject *one)
{
    PfCaseKind kind = (PfCaseKind)pf_case_kind(one);
    if (kind == PF_JOINING || kind == PF_HAPPENING) {
        return (Choice){kind == PF_JOINING ? &joining_ops : &happening_ops,
                        kind,
                        one,
                        one,
                        NULL,
                        NULL};
    }
    CaseObject *c = (CaseObject *)one;
    return (Choice){c->ops, kind, c->source, c->via, c->value, c->finish};
}

static int
check_case(PfThread *t, PyObject *one)
{
    int kind = pf_case_kind(one);
    if (kind == PF_JOINING) {
        FiberObject *fiber = (FiberObject *)one;
        return fiber->core.state == PF_DONE ? 0 : pf_refuse_join(t, fiber);
    }
    if (kind >= 0) {
        return 0;
    }
    PyErr_Format(
        PyExc_TypeError,
        "select() takes cases (channel.receiving(), channel.sending(value), "
        "queue.getting(), queue.putting(item), semaphore.acquiring()), events "
        "and fibers, not '%.200s'",
        Py_TYPE(one)->tp_name);
    return -1;
}

/* ------------------------------------------------------------------ answers */

/* A queue that keeps its items its own way gets or puts one, now that it is
 * sure that it may.  What it gets, or NULL: also for none, without exception. */
static PyObject *
finish_in_python(const Choice *choice)
{
    if (choice->kind == PF_GETTING) {
        return PyObject_CallNoArgs(choice->finish);
    }
    PyObject *none = PyObject_CallOneArg(choice->finish, choice->value);
    Py_XDECREF(none);
    return NULL;
}

/* It was done; `got`, NULL for most kinds, is stolen. */
static PyObject *
answer(const Choice *choice, PyObject *got, Py_ssize_t index)
{
    PyObject *result = pf_case_result(choice->kind, choice->source, index);
    if (result == NULL) {
        if (choice->ops->take_back != NULL) {
            choice->ops->take_back(choice->op, got);
        }
        return NULL;
    }
    if (choice->finish != NULL) {
        got = finish_in_python(choice);
        if (got == NULL && PyErr_Occurred()) {
            Py_DECREF(result);
            return NULL;
        }
    }
    pf_case_set_value(result, got);
    return result;
}

static void
stand_in_line(const Choice *choice, PfNode *node)
{
    node->item = choice->finish == NULL ? Py_XNewRef(choice->value) : NULL;
    pf_waitq_push(choice->ops->line(choice->op), node);
}

/* The wait is over with `rc`; what a place other than the one that was taken
 * still has, or that one if it was refused, is the caller's to drop. */
static PyObject *
finish(PyObject *const *cases, PfWaiter *waiter, int rc)
{
    PfNode *taken = waiter->taken;
    if (taken == NULL) {
        return rc < 0 ? NULL : Py_NewRef(Py_None);
    }
    Py_ssize_t index = taken - waiter->nodes;
    Choice choice = look_at(cases[index]);
    if (taken->refused) {
        if (rc >= 0) {
            choice.ops->raise_refused(choice.op);
        }
        return NULL;
    }
    PyObject *got = taken->item;
    taken->item = NULL;
    if (rc >= 0) {
        return answer(&choice, got, index);
    }
    if (choice.ops->take_back != NULL) {
        choice.ops->take_back(choice.op, got);
    }
    return NULL;
}

/* ------------------------------------------------------------------- waiting */

static void
drop_items(PfNode *nodes, Py_ssize_t count)
{
    PyObject *pending = PyErr_Occurred() ? pf_take_exception() : NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_CLEAR(nodes[i].item);
    }
    if (pending != NULL) {
        pf_restore_exception(pending);
    }
}

#define FEW_CASES 8

static PyObject *
wait_for_one(PfThread *t, PyObject *const *cases, Py_ssize_t count,
             int64_t deadline, PyObject *what)
{
    PfWaiter waiter;
    PfNode few[FEW_CASES];
    PfNode *nodes = few;
    if (count > FEW_CASES) {
        nodes = PyMem_New(PfNode, count);
        if (nodes == NULL) {
            return PyErr_NoMemory();
        }
    }
    pf_waiter_init(&waiter, t, nodes, (int)count);
    for (Py_ssize_t i = 0; i < count; i++) {
        Choice choice = look_at(cases[i]);
        stand_in_line(&choice, &nodes[i]);
    }
    int rc = pf_wait_in_line(&waiter, t, deadline, what);
    PyObject *result = finish(cases, &waiter, rc);
    drop_items(nodes, count);
    if (nodes != few) {
        PyMem_Free(nodes);
    }
    return result;
}

/* `what`, made before, is all that allocates. */
static PyObject *
choose(PfThread *t, PyObject *const *cases, Py_ssize_t count, int64_t deadline,
       PyObject *what)
{
    Py_ssize_t first = 0;
    if (PF_UNLIKELY(pf.exploring != 0) && t->scheduler != NULL) {
        first = pf_choose(t->scheduler, (uint32_t)count, PF_CHOOSE_SELECT);
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        Py_ssize_t i = first + n < count ? first + n : first + n - count;
        Choice choice = look_at(cases[i]);
        PyObject *got = NULL;
        int rc = choice.ops->attempt(choice.op, choice.value, &got);
        if (rc != 0) {
            return rc < 0 ? NULL : answer(&choice, got, i);
        }
    }
    if (deadline == PF_NOW) {
        Py_RETURN_NONE;
    }
    return wait_for_one(t, cases, count, deadline, what);
}

/* ------------------------------------------------------------------ select() */

static int
select_timeout(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
               int64_t *deadline)
{
    static const char *const names[] = {"timeout", NULL};
    PyObject *timeout = NULL;
    if (pf_arguments("select", names, 0, args + nargs, 0, kwnames, &timeout) <
            0 ||
        pf_timeout(timeout, deadline) < 0) {
        return -1;
    }
    if (nargs == 0 || nargs > INT_MAX) {
        PyErr_SetString(PyExc_TypeError, "select() needs a case to wait for");
        return -1;
    }
    return 0;
}

static PyObject *
mod_select(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
           PyObject *kwnames)
{
    (void)module;
    int64_t deadline;
    PfThread *t = pf_this_thread();
    if (t == NULL || select_timeout(args, nargs, kwnames, &deadline) < 0) {
        return NULL;
    }
    PyObject *what = pf_tuple(args, nargs);
    if (what == NULL) {
        return NULL;
    }
    PyObject *result = NULL;
    int rc = pf_preempt();
    for (Py_ssize_t i = 0; rc == 0 && i < nargs; i++) {
        rc = check_case(t, args[i]);
    }
    if (rc == 0) {
        result = choose(t, PySequence_Fast_ITEMS(what), nargs, deadline, what);
    }
    Py_DECREF(what);
    return result;
}

PyDoc_STRVAR(select_doc, "select(*cases, timeout=None)\n--\n\n\
Do exactly one of several operations: the first that is possible.\n\
\n\
A case is channel.receiving() or channel.sending(value); queue.getting() or\n\
queue.putting(item); semaphore.acquiring(); an Event, until it is set; a fiber,\n\
until it has ended. Returns Received(channel, value, index), Sent(channel,\n\
index), Got(queue, item, index), Put(queue, index), Acquired(semaphore, index),\n\
Happened(event, index) or Joined(fiber, index); None after `timeout` seconds.\n\
If several are possible at once the first in order of the arguments is done.\n\
\n\
ChannelClosed, with its `channel`, or ShutDown if the operation would have\n\
raised it. A cancellation point if it has to wait: Cancelled means that none\n\
was done. ValueError for a negative timeout or NaN, TypeError without a case\n\
or for other objects, FiberError for a fiber that cannot be joined.");

static PyMethodDef functions[] = {
    PF_METHOD("select", mod_select, select_doc),
    {NULL, NULL, 0, NULL},
};

int
pf_select_init(PyObject *module)
{
    return pf_case_init(module) < 0 ? -1
                                    : PyModule_AddFunctions(module, functions);
}
