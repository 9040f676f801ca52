/* select(): does exactly one of several operations, the first that is
 * possible.
 *
 * First each case is tried in order.  If none is possible, the waiter joins
 * the queues of all objects, and the code that serves one of its places
 * removes the others.  From the first attempt to the last place in line no
 * Python code runs: all conversions of arguments come before.  Once a case is
 * done, the others have no effect.  References are dropped last.
 *
 * Without a GIL other threads act between these steps: see do_or_join().
 */
#include "python/sync/select.h"

#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/sync/sync.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/wait/in_line.h"
#include "python/wait/wait.h"
#include "python/waitq/owner.h"
#include "python/waitq/waitq.h"

/* ----------------------------------------------------------------- one case */

static int
check_case(PfThread *t, PyObject *object)
{
    if (PF_UNLIKELY(!Py_IS_TYPE(object, pf_select_case_type))) {
        PyErr_Format(PyExc_TypeError,
                     "select() takes cases (channel.receiving(), "
                     "channel.sending(value), queue.getting(), "
                     "queue.putting(item), semaphore.acquiring(), "
                     "event.waiting(), fiber.joining()), not '%.200s'",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    CaseObject *c = (CaseObject *)object;
    return PF_LIKELY(c->ops->check == NULL) ? 0 : c->ops->check(t, c->op);
}

static inline void
lock(CaseObject *c)
{
    PfMutex *mutex = PF_FREE_THREADED ? c->ops->mutex(c->op) : NULL;
    if (PF_FREE_THREADED && mutex != NULL) {
        PF_LOCK_MUTEX(mutex);
    }
}

static inline void
unlock(CaseObject *c)
{
    PfMutex *mutex = PF_FREE_THREADED ? c->ops->mutex(c->op) : NULL;
    if (PF_FREE_THREADED && mutex != NULL) {
        PF_UNLOCK_MUTEX(mutex);
    }
}

static int
raise_reason(CaseObject *c, int rc)
{
    if (rc == PF_REFUSED) {
        c->ops->raise_refused(c->op);
    } else {
        PyErr_NoMemory();
    }
    return -1;
}

static void
stand_in_line(CaseObject *c, PfNode *node)
{
    PF_SET_NODE_MUTEX(node, c->ops->mutex(c->op));
    node->item = Py_XNewRef(c->value);
    pf_waitq_push(c->ops->line(c->op), node);
}

/* Undoes a case that was done, because its result cannot be used.  Steals
 * `got`. */
static void
take_back(CaseObject *c, PyObject *got)
{
    if (c->ops->take_back != NULL) {
        c->ops->take_back(c->op, got);
    }
}

/* ------------------------------------------------------------------ results */

/* Returns (index, got), or NULL with an exception.  `got`, where NULL means
 * None, is stolen unless this fails. */
static PyObject *
pair(Py_ssize_t index, PyObject *got)
{
    PyObject *number = PyLong_FromSsize_t(index);
    PyObject *result = number == NULL ? NULL : PyTuple_New(2);
    if (result == NULL) {
        Py_XDECREF(number);
        return NULL;
    }
    PyTuple_SET_ITEM(result, 0, number);
    PyTuple_SET_ITEM(result, 1, got != NULL ? got : Py_NewRef(Py_None));
    return result;
}

/* Gets or puts the item of a queue that stores its items in its own way, once
 * the permit for it is taken.  `result`, (index, None), is stolen and gets the
 * item; no other code has seen it.  The collector, if it runs meanwhile, stops
 * tracking a tuple of such contents, so it may have to be tracked again. */
static PyObject *
finish_in_python(CaseObject *c, PyObject *result)
{
    PyObject *got = PyObject_CallNoArgs(c->finish);
    if (got == NULL) {
        Py_DECREF(result);
        return NULL;
    }
    Py_DECREF(PyTuple_GET_ITEM(result, 1)); /* None */
    PyTuple_SET_ITEM(result, 1, got);
    if (!PyObject_GC_IsTracked(result)) {
        PyObject_GC_Track(result);
    }
    return result;
}

/* Returns the result of select() for the case `c`, which was done, or NULL
 * with an exception.  `got` is stolen; it is NULL if the case gets nothing. */
static PyObject *
answer(CaseObject *c, PyObject *got, Py_ssize_t index)
{
    PyObject *result = pair(index, got);
    if (result == NULL) {
        take_back(c, got);
        return NULL;
    }
    return PF_UNLIKELY(c->finish != NULL) ? finish_in_python(c, result)
                                          : result;
}

/* Returns the result of select() after a wait that pf_wait_in_line() ended
 * with `rc`.  The caller drops the items of all places: that of the granted
 * place is taken out here unless the case was refused. */
static PyObject *
finish(CaseObject *const *cases, PfWaiter *waiter, int rc)
{
    PfNode *taken = PF_SHARED_GET(&waiter->taken);
    if (taken == NULL) {
        return rc < 0 ? NULL : Py_NewRef(Py_None);
    }
    Py_ssize_t index = taken - waiter->nodes;
    CaseObject *c = cases[index];
    if (taken->refused) {
        if (rc >= 0) {
            c->ops->raise_refused(c->op);
        }
        return NULL;
    }
    PyObject *got = taken->item;
    taken->item = NULL;
    if (rc >= 0) {
        return answer(c, got, index);
    }
    take_back(c, got);
    return NULL;
}

/* ------------------------------------------------------------------- waiting */

static void
drop_items(PfNode *nodes, Py_ssize_t count)
{
    PyObject *pending = pystate_take_exception();
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_CLEAR(nodes[i].item);
    }
    pystate_restore_exception(pending);
}

/* Without a GIL other threads act while the waiter goes from queue to queue.
 * So this function looks at a case again, with the mutex held, and joins its
 * queue only if the case is still not possible.  The results are:
 *
 * - JOINED: the waiter stands in the queue;
 * - SERVED: another thread has granted one of the waiter's other places;
 * - DONE: the waiter has done this case itself, or was refused; *rc is what
 *   `attempt` returned.
 *
 * To try a case the waiter claims itself, and until it gives up that claim
 * other threads pass over its places.  If the attempt failed, *again is set to
 * true: one of the other cases may have become possible in that moment, so the
 * caller must look at all of them once more. */
enum { JOINED, SERVED, DONE };

static int
do_or_join(PfWaiter *waiter, CaseObject *c, PfNode *node, PyObject **got,
           int *rc, bool *again)
{
    int result = JOINED;
    lock(c);
    if (c->ops->possible(c->op, waiter)) {
        *rc = 0;
        if (!pf_waitq_claim_self(waiter)) {
            result = SERVED;
        } else if ((*rc = c->ops->attempt(c->op, c->value, got)) != 0) {
            result = DONE;
        } else {
            pf_waitq_unclaim(waiter);
            *again = true;
        }
    }
    if (result == JOINED && node->queue == NULL) {
        if (node->item == NULL) {
            stand_in_line(c, node);
        } else {
            pf_waitq_push(c->ops->line(c->op), node);
        }
    }
    unlock(c);
    return result;
}

/* Calls do_or_join() for each case until one is SERVED or DONE, with its
 * number in *index, or the waiter stands in all queues. */
static int
join_lines(PfWaiter *waiter, CaseObject *const *cases, Py_ssize_t count,
           Py_ssize_t *index, PyObject **got, int *rc)
{
    bool again = true;
    while (again) {
        again = false;
        for (Py_ssize_t i = 0; i < count; i++) {
            int result = do_or_join(waiter, cases[i], &waiter->nodes[i], got,
                                    rc, &again);
            if (result != JOINED) {
                *index = i;
                return result;
            }
        }
    }
    return JOINED;
}

/* Joins all queues and waits, without a GIL.  `waiter` is initialized.  The
 * fiber must have an owner number before it waits, because only the fiber's
 * own thread may assign it. */
static PyObject *
wait_in_parallel(PfThread *t, PfWaiter *waiter, CaseObject *const *cases,
                 Py_ssize_t count, int64_t deadline, PyObject *what)
{
    Py_ssize_t index = 0;
    PyObject *got = NULL;
    int rc = 0;
    (void)pf_owner(CURRENT(t));
    pf_wait_begin(waiter, t);
    if (join_lines(waiter, cases, count, &index, &got, &rc) == DONE) {
        pf_wait_give_up(waiter);
        return rc == 1 ? answer(cases[index], got, index)
                       : (raise_reason(cases[index], rc), NULL);
    }
    return finish(cases, waiter, pf_wait_in_line(waiter, t, deadline, what));
}

/* A waiter with several places in line; PfWait has one. */
typedef struct Places {
    PfWaiter waiter;
    PfNode nodes[];
} Places;

static Places *
new_places(Py_ssize_t count)
{
    size_t most = ((size_t)PY_SSIZE_T_MAX - sizeof(Places)) / sizeof(PfNode);
    return (size_t)count > most
               ? NULL
               : PyMem_Malloc(sizeof(Places) + (size_t)count * sizeof(PfNode));
}

static PyObject *
wait_for_one(PfThread *t, CaseObject *const *cases, Py_ssize_t count,
             int64_t deadline, PyObject *what)
{
    Places *places = new_places(count);
    if (places == NULL) {
        return PyErr_NoMemory();
    }
    PfWaiter *waiter = &places->waiter;
    pf_waitq_init_waiter(waiter, t, places->nodes, (int)count);
    PyObject *result;
    if (PF_FREE_THREADED) {
        result = wait_in_parallel(t, waiter, cases, count, deadline, what);
    } else {
        for (Py_ssize_t i = 0; i < count; i++) {
            stand_in_line(cases[i], &places->nodes[i]);
        }
        int rc = pf_wait_in_line(waiter, t, deadline, what);
        result = finish(cases, waiter, rc);
    }
    drop_items(places->nodes, count);
    PyMem_Free(places);
    return result;
}

/* Tries all cases, then waits.  The caller has made `what`, the object for
 * reports: no object may be allocated between an attempt and a place in line,
 * because that could run the collector and with it Python code. */
static PyObject *
choose(PfThread *t, CaseObject *const *cases, Py_ssize_t count,
       int64_t deadline, PyObject *what)
{
    Py_ssize_t first = 0;
    if (PF_UNLIKELY(pf_load_relaxed(&pf_explore_runs) != 0) &&
        t->scheduler != NULL) {
        first =
            pf_explore_choose(t->scheduler, (uint32_t)count, PF_CHOOSE_SELECT);
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        Py_ssize_t i = first + n < count ? first + n : first + n - count;
        CaseObject *c = cases[i];
        PyObject *got = NULL;
        lock(c);
        int rc = c->ops->attempt(c->op, c->value, &got);
        unlock(c);
        if (rc > 0) {
            return answer(c, got, i);
        }
        if (rc < 0) {
            raise_reason(c, rc);
            return NULL;
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
    *deadline = PF_NEVER;
    if (kwnames != NULL && (pf_arguments("select", names, 0, args + nargs, 0,
                                         kwnames, &timeout) < 0 ||
                            pf_deadline_timeout(timeout, deadline) < 0)) {
        return -1;
    }
    if (nargs == 0 || nargs > INT_MAX) {
        PyErr_SetString(PyExc_TypeError,
                        "select() needs at least one case to wait for");
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
    PfThread *t = pf_thread_this();
    if (t == NULL || select_timeout(args, nargs, kwnames, &deadline) < 0) {
        return NULL;
    }
    PyObject *what = pf_arguments_tuple(args, nargs);
    if (what == NULL) {
        return NULL;
    }
    PyObject *result = NULL;
    int rc = pf_explore_preempt();
    for (Py_ssize_t i = 0; rc == 0 && i < nargs; i++) {
        rc = check_case(t, args[i]);
    }
    if (rc == 0) {
        result = choose(t, (CaseObject **)PySequence_Fast_ITEMS(what), nargs,
                        deadline, what);
    }
    Py_DECREF(what);
    return result;
}

PyDoc_STRVAR(select_doc, "select(*cases, timeout=None)\n--\n\n\
Do exactly one of several operations: the first that is possible.\n\
\n\
Each argument is a case, which the -ing form of a waiting method makes:\n\
channel.receiving(), channel.sending(value), queue.getting(),\n\
queue.putting(item), semaphore.acquiring(), event.waiting(), fiber.joining().\n\
If several cases are possible at once, the first of these arguments is done.\n\
\n\
Returns (index, value): the position of the case that was done, and the value\n\
or item that it got, None for a case that gets none. Returns None after\n\
`timeout` seconds; no limit if `timeout` is None.\n\
\n\
ChannelClosed, with its `channel`, or ShutDown if the operation itself would\n\
raise it. A cancellation point if it has to wait: Cancelled means that no case\n\
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
