/* Queue and LifoQueue.
 *
 * An item goes straight to a waiting get(), a freed place straight to a
 * waiting put().  As with queue.Queue, a subclass may override _init, _put,
 * _get and _qsize to store its items in its own way.  For such a subclass a
 * Python object, a HookedQueue, does the work and calls these methods: see
 * pyfiber._queues.
 *
 * This is one long file because the functions that hand an item over, wait for
 * one and give one back obey the same rule and have to be read together.
 */
#include "python/core/pyinclude.h"

#include "engine/base/atomics.h"
#include "python/queue/queue.h"

#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/facade.h"
#include "python/core/import.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/queue/ring.h"
#include "python/sync/select.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/wait/in_line.h"
#include "python/waitq/waitq.h"

#include <structmember.h>

static PyTypeObject *queue_type, *lifo_type; /* constant after import */

/* --------------------------------------------------------------- exceptions */

typedef PF_ATOMIC(PyObject *) Cached;

/* queue.Empty, queue.Full and ShutDown.  Each is imported at its first use,
 * because the module queue takes longer to import than all of pyfiber.  The
 * first thread to store one wins.  (shared, one word each) */
static Cached empty, full, shut_down;

/* Imports the exception into *cached, unless another thread has done so. */
static int
find(Cached *cached, const char *module, const char *name)
{
    PyObject *type = pf_import_from(module, name);
    if (type == NULL) {
        return -1;
    }
    PyObject *before = NULL;
    while (before == NULL && !pf_cas_weak(cached, &before, type)) {
    }
    if (before != NULL) {
        Py_DECREF(type);
    }
    return 0;
}

static int
raise_named(Cached *cached, const char *module, const char *name)
{
    if (pf_load_acquire(cached) == NULL && find(cached, module, name) < 0) {
        return -1;
    }
    PyErr_SetNone((PyObject *)pf_load_acquire(cached));
    return -1;
}

static int
raise_empty(void)
{
    return raise_named(&empty, "queue", "Empty");
}

static int
raise_full(void)
{
    return raise_named(&full, "queue", "Full");
}

static int
raise_shut_down(void)
{
    return raise_named(&shut_down, "pyfiber._queues", "ShutDown");
}

/* -------------------------------------------------------------------- items */

static bool
is_full(const QueueObject *self)
{
    return self->maxsize > 0 && self->items.count >= (size_t)self->maxsize;
}

/* Serve the first waiting put(), if there is a place for it. */
static inline void
let_one_put(QueueObject *self)
{
    PfNode *putter = is_full(self) || self->items.count == self->items.size
                         ? NULL
                         : pf_waitq_choose(&self->putters);
    if (putter == NULL) {
        return;
    }
    pf_ring_push(&self->items, putter->item);
    putter->item = NULL;
    self->unfinished++;
    pf_waitq_grant(putter);
}

/* Takes the next item; the queue must not be empty. */
static inline PyObject *
take(QueueObject *self)
{
    PyObject *item = self->lifo ? pf_ring_pop_last(&self->items)
                                : pf_ring_pop(&self->items);
    let_one_put(self);
    return item;
}

/* Gives the item (stolen) to the next waiting get().  Returns false, and
 * steals nothing, if there is none. */
static bool
hand_to_getter(QueueObject *self, PyObject *item)
{
    PfNode *getter = pf_waitq_choose(&self->getters);
    if (getter == NULL) {
        return false;
    }
    getter->item = item;
    pf_waitq_grant(getter);
    return true;
}

/* Puts an item (stolen) back where get() took it.  Returns false, and steals
 * nothing, if there is no memory.  The caller holds the mutex. */
static bool
put_back(QueueObject *self, PyObject *item)
{
    if (hand_to_getter(self, item)) {
        return true;
    }
    if (pf_ring_reserve(&self->items) < 0) {
        return false;
    }
    (self->lifo ? pf_ring_push : pf_ring_push_front)(&self->items, item);
    return true;
}

/* Undoes a get() whose item (stolen) cannot be used.  If there is no memory
 * for that, the item is lost, and this function can only report it. */
static void
give_back(QueueObject *self, PyObject *item)
{
    PF_LOCK(self);
    bool done = put_back(self, item);
    PF_UNLOCK(self);
    if (!done) {
        PyObject *pending = pystate_take_exception();
        PyErr_NoMemory();
        PyErr_WriteUnraisable((PyObject *)self);
        Py_DECREF(item);
        pystate_restore_exception(pending);
    }
}

static int
raise_reason(int rc)
{
    if (rc == PF_REFUSED) {
        return raise_shut_down();
    }
    PyErr_NoMemory();
    return -1;
}

/* ---------------------------------------------------------------------- put */

static int put(QueueObject *self, PyObject *item, int64_t deadline);

/* The caller holds the mutex; this function unlocks it. */
static int
wait_to_put(QueueObject *self, PyObject *item, int64_t deadline)
{
    PfThread *t = pf_thread_current;
    if (t == NULL) {
        /* To create the thread's record may run code that calls get(), so
         * start again. */
        PF_UNLOCK(self);
        return pf_thread_create() == NULL ? -1 : put(self, item, deadline);
    }
    PfWait *wait = pf_wait_new(t, PF_MUTEX_OF(self));
    if (wait == NULL) {
        return -1;
    }
    wait->node.item = Py_NewRef(item);
    int rc = pf_wait_for(wait, &self->putters, PF_MUTEX_OF(self), t, deadline,
                         (PyObject *)self);
    PyObject *kept = wait->node.item;
    bool refused = wait->node.refused;
    pf_wait_free(t, wait);
    Py_XDECREF(kept);
    if (rc == 1) {
        return raise_full();
    }
    return rc == 0 && refused ? raise_shut_down() : rc;
}

/* Puts without waiting.  Returns 1: done; 0: the queue is full; PF_REFUSED or
 * PF_NO_MEMORY, without an exception.  The caller holds the mutex. */
static inline int
try_put(QueueObject *self, PyObject *item)
{
    if (PF_SHARED_GET(&self->shut_down)) {
        return PF_REFUSED;
    }
    if (hand_to_getter(self, item)) {
        Py_INCREF(item);
        self->unfinished++;
        return 1;
    }
    if (is_full(self)) {
        return 0;
    }
    if (pf_ring_reserve(&self->items) < 0) {
        return PF_NO_MEMORY;
    }
    pf_ring_push(&self->items, Py_NewRef(item));
    self->unfinished++;
    return 1;
}

static int
put(QueueObject *self, PyObject *item, int64_t deadline)
{
    if (pf_explore_preempt() < 0) {
        return -1;
    }
    PF_LOCK(self);
    int rc = try_put(self, item);
    if (rc == 0 && deadline != PF_NOW) {
        return wait_to_put(self, item, deadline);
    }
    PF_UNLOCK(self);
    return PF_LIKELY(rc > 0) ? rc : rc == 0 ? raise_full() : raise_reason(rc);
}

/* ---------------------------------------------------------------------- get */

static PyObject *get(QueueObject *self, int64_t deadline);

/* The caller holds the mutex; this function unlocks it. */
static PyObject *
wait_to_get(QueueObject *self, int64_t deadline)
{
    PfThread *t = pf_thread_current;
    if (t == NULL) {
        /* To create the thread's record may run code that calls put(), so
         * start again. */
        PF_UNLOCK(self);
        return pf_thread_create() == NULL ? NULL : get(self, deadline);
    }
    PfWait *wait = pf_wait_new(t, PF_MUTEX_OF(self));
    if (wait == NULL) {
        return NULL;
    }
    int rc = pf_wait_for(wait, &self->getters, PF_MUTEX_OF(self), t, deadline,
                         (PyObject *)self);
    PyObject *item = wait->node.item;
    bool refused = wait->node.refused;
    pf_wait_free(t, wait);
    if (PF_LIKELY(rc == 0 && !refused)) {
        return item;
    }
    if (rc < 0 && item != NULL) {
        give_back(self, item);
    } else if (rc >= 0) {
        (void)(rc == 1 ? raise_empty() : raise_shut_down());
    }
    return NULL;
}

/* Gets without waiting.  Returns 1: done; 0: the queue is empty; PF_REFUSED,
 * without an exception.  The caller holds the mutex. */
static inline int
try_get(QueueObject *self, PyObject **item)
{
    if (self->items.count > 0) {
        *item = take(self);
        return 1;
    }
    return PF_SHARED_GET(&self->shut_down) ? PF_REFUSED : 0;
}

static PyObject *
get(QueueObject *self, int64_t deadline)
{
    PyObject *item = NULL;
    if (pf_explore_preempt() < 0) {
        return NULL;
    }
    PF_LOCK(self);
    int rc = try_get(self, &item);
    if (rc == 0 && deadline != PF_NOW) {
        return wait_to_get(self, deadline);
    }
    PF_UNLOCK(self);
    if (PF_UNLIKELY(rc <= 0)) {
        (void)(rc == 0 ? raise_empty() : raise_reason(rc));
    }
    return item;
}

/* -------------------------------------------------------------- for select() */

static int
attempt_to_get(PyObject *op, PyObject *ignored, PyObject **item)
{
    (void)ignored;
    return try_get((QueueObject *)op, item);
}

static int
attempt_to_put(PyObject *op, PyObject *item, PyObject **got)
{
    (void)got;
    return try_put((QueueObject *)op, item);
}

/* A waiting put() need not be considered, unlike a channel's sender: put()
 * waits only while the queue is full, that is while it has items. */
static bool
may_get(PyObject *op, const PfWaiter *asking)
{
    (void)asking;
    QueueObject *self = (QueueObject *)op;
    return self->items.count > 0 || PF_SHARED_GET(&self->shut_down);
}

static bool
may_put(PyObject *op, const PfWaiter *asking)
{
    QueueObject *self = (QueueObject *)op;
    return !is_full(self) || PF_SHARED_GET(&self->shut_down) ||
           pf_waitq_has(&self->getters, asking);
}

static PfMutex *
mutex_of(PyObject *op)
{
    return PF_MUTEX_OF((QueueObject *)op);
}

static PfWaitq *
line_of_getters(PyObject *op)
{
    return &((QueueObject *)op)->getters;
}

static PfWaitq *
line_of_putters(PyObject *op)
{
    return &((QueueObject *)op)->putters;
}

static void
take_back(PyObject *op, PyObject *item)
{
    give_back((QueueObject *)op, item);
}

static void
raise_refused(PyObject *op)
{
    (void)op;
    raise_shut_down();
}

static const PfCaseOps getting_ops = {
    .attempt = attempt_to_get,
    .possible = may_get,
    .line = line_of_getters,
    .mutex = mutex_of,
    .take_back = take_back,
    .raise_refused = raise_refused,
};
static const PfCaseOps putting_ops = {
    .attempt = attempt_to_put,
    .possible = may_put,
    .line = line_of_putters,
    .mutex = mutex_of,
    .raise_refused = raise_refused,
};

/* -------------------------------------------------------------- the methods */

/* Calls the method of the same name of the HookedQueue.  While `inside` is not
 * 0, __init__ does not replace `hooked`. */
static PyObject *
hooked(QueueObject *self, const char *name, PyObject *const *args,
       Py_ssize_t nargs, PyObject *kwnames)
{
    PF_LOCK(self);
    self->inside++;
    PF_UNLOCK(self);
    PyObject *method = PyObject_GetAttrString(self->hooked, name);
    PyObject *result =
        method == NULL
            ? NULL
            : PyObject_Vectorcall(method, args, (size_t)nargs, kwnames);
    PF_LOCK(self);
    self->inside--;
    PF_UNLOCK(self);
    Py_XDECREF(method);
    return result;
}

static int
block_or_timeout(PyObject *block, PyObject *timeout, int64_t *deadline)
{
    int blocking = block == NULL ? 1 : PyObject_IsTrue(block);
    *deadline = PF_NOW;
    if (blocking < 0) {
        return -1;
    }
    return blocking ? pf_deadline_timeout(timeout, deadline) : 0;
}

static PyObject *
none_or_error(int rc)
{
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
queue_put(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
          PyObject *kwnames)
{
    static const char *const names[] = {"item", "block", "timeout", NULL};
    QueueObject *self = (QueueObject *)op;
    if (PF_UNLIKELY(self->hooked != NULL)) {
        return hooked(self, "put", args, nargs, kwnames);
    }
    if (PF_LIKELY(nargs == 1 && kwnames == NULL)) {
        return none_or_error(put(self, args[0], PF_NEVER));
    }
    PyObject *out[3] = {NULL, NULL, NULL};
    int64_t deadline;
    if (pf_arguments("put", names, 1, args, nargs, kwnames, out) < 0 ||
        block_or_timeout(out[1], out[2], &deadline) < 0) {
        return NULL;
    }
    return none_or_error(put(self, out[0], deadline));
}

static PyObject *
queue_put_nowait(PyObject *op, PyObject *item)
{
    QueueObject *self = (QueueObject *)op;
    if (PF_UNLIKELY(self->hooked != NULL)) {
        return hooked(self, "put_nowait", &item, 1, NULL);
    }
    return none_or_error(put(self, item, PF_NOW));
}

static PyObject *
queue_get(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
          PyObject *kwnames)
{
    static const char *const names[] = {"block", "timeout", NULL};
    QueueObject *self = (QueueObject *)op;
    if (PF_UNLIKELY(self->hooked != NULL)) {
        return hooked(self, "get", args, nargs, kwnames);
    }
    if (PF_LIKELY(nargs == 0 && kwnames == NULL)) {
        return get(self, PF_NEVER);
    }
    PyObject *out[2] = {NULL, NULL};
    int64_t deadline;
    if (pf_arguments("get", names, 0, args, nargs, kwnames, out) < 0 ||
        block_or_timeout(out[0], out[1], &deadline) < 0) {
        return NULL;
    }
    return get(self, deadline);
}

static PyObject *
queue_get_nowait(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    QueueObject *self = (QueueObject *)op;
    if (PF_UNLIKELY(self->hooked != NULL)) {
        return hooked(self, "get_nowait", NULL, 0, NULL);
    }
    return get(self, PF_NOW);
}

static PyObject *
queue_getting(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    QueueObject *self = (QueueObject *)op;
    return self->hooked != NULL
               ? hooked(self, "getting", NULL, 0, NULL)
               : pf_case_new("getting", &getting_ops, op, NULL);
}

static PyObject *
queue_putting(PyObject *op, PyObject *item)
{
    QueueObject *self = (QueueObject *)op;
    return self->hooked != NULL
               ? hooked(self, "putting", &item, 1, NULL)
               : pf_case_new("putting", &putting_ops, op, item);
}

static size_t
count_items(QueueObject *self, bool *full)
{
    PF_LOCK(self);
    size_t count = self->items.count;
    *full = is_full(self);
    PF_UNLOCK(self);
    return count;
}

static PyObject *
queue_qsize(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    QueueObject *self = (QueueObject *)op;
    if (self->hooked != NULL) {
        return hooked(self, "qsize", NULL, 0, NULL);
    }
    bool full;
    return PyLong_FromSize_t(count_items(self, &full));
}

static PyObject *
queue_empty(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    QueueObject *self = (QueueObject *)op;
    if (self->hooked != NULL) {
        return hooked(self, "empty", NULL, 0, NULL);
    }
    bool full;
    return PyBool_FromLong(count_items(self, &full) == 0);
}

static PyObject *
queue_full(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    QueueObject *self = (QueueObject *)op;
    if (self->hooked != NULL) {
        return hooked(self, "full", NULL, 0, NULL);
    }
    bool full;
    (void)count_items(self, &full);
    return PyBool_FromLong(full);
}

static PyObject *
queue_task_done(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    QueueObject *self = (QueueObject *)op;
    PF_LOCK(self);
    bool once_too_often = self->unfinished <= 0;
    if (!once_too_often && --self->unfinished == 0) {
        pf_waitq_grant_all(&self->joiners);
    }
    PF_UNLOCK(self);
    if (once_too_often) {
        PyErr_SetString(PyExc_ValueError, "task_done() called too many times");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
queue_join(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    QueueObject *self = (QueueObject *)op;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    PF_LOCK(self);
    if (self->unfinished == 0) {
        PF_UNLOCK(self);
        Py_RETURN_NONE;
    }
    return none_or_error(
        pf_wait_once(&self->joiners, PF_MUTEX_OF(self), t, PF_NEVER, op));
}

void
pf_queue_forget_tasks(QueueObject *self, Py_ssize_t n)
{
    self->unfinished = n < self->unfinished ? self->unfinished - n : 0;
    if (self->unfinished == 0) {
        pf_waitq_grant_all(&self->joiners);
    }
}

static PyObject *
queue_shutdown(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    static const char *const names[] = {"immediate", NULL};
    QueueObject *self = (QueueObject *)op;
    PyObject *immediate = Py_False;
    if (self->hooked != NULL) {
        return hooked(self, "shutdown", args, nargs, kwnames);
    }
    if (pf_arguments("shutdown", names, 0, args, nargs, kwnames, &immediate) <
        0) {
        return NULL;
    }
    int now = PyObject_IsTrue(immediate);
    if (now < 0) {
        return NULL;
    }
    PfRing dropped = {NULL, 0, 0, 0};
    PF_LOCK(self);
    PF_SHARED_SET(&self->shut_down, true);
    pf_waitq_refuse_all(&self->getters);
    pf_waitq_refuse_all(&self->putters);
    if (now) {
        pf_queue_forget_tasks(self, (Py_ssize_t)self->items.count);
        dropped = self->items;
        self->items = (PfRing){NULL, 0, 0, 0};
    }
    PF_UNLOCK(self);
    pf_ring_drop(&dropped); /* last, because this may run other code */
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- reporting */

static int
extend(PyObject *list, QueueObject *self, const PfWaitq *queue)
{
    PyObject *more = pf_waitq_list(queue, PF_MUTEX_OF(self));
    int rc = more == NULL ? -1
                          : PyList_SetSlice(list, PyList_GET_SIZE(list),
                                            PyList_GET_SIZE(list), more);
    Py_XDECREF(more);
    return rc;
}

static PyObject *
queue_waiters(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    QueueObject *self = (QueueObject *)op;
    PyObject *list = PyList_New(0);
    if (list != NULL && (extend(list, self, &self->getters) < 0 ||
                         extend(list, self, &self->putters) < 0 ||
                         extend(list, self, &self->joiners) < 0)) {
        Py_CLEAR(list);
    }
    return list;
}

static PyObject *
queue_repr(PyObject *op)
{
    QueueObject *self = (QueueObject *)op;
    PyObject *size = queue_qsize(op, NULL);
    PyObject *repr =
        size == NULL
            ? NULL
            : PyUnicode_FromFormat(
                  "<%s at %p: %S items, maxsize %zd%s>", Py_TYPE(op)->tp_name,
                  op, size, self->maxsize,
                  PF_SHARED_GET(&self->shut_down) ? ", shut down" : "");
    Py_XDECREF(size);
    return repr;
}

/* ----------------------------------------------------------- birth and death */

/* Returns true if the class has another attribute of that name than Queue. */
static bool
overrides(PyTypeObject *type, const char *name)
{
    PyObject *theirs = PyObject_GetAttrString((PyObject *)type, name);
    PyObject *ours = PyObject_GetAttrString((PyObject *)queue_type, name);
    bool differ = theirs != ours;
    PyErr_Clear(); /* a class without that attribute differs, too */
    Py_XDECREF(theirs);
    Py_XDECREF(ours);
    return differ;
}

/* Returns true if the class stores its items in its own way. */
static bool
needs_hooks(PyTypeObject *type)
{
    return type != queue_type && type != lifo_type &&
           (overrides(type, "_init") || overrides(type, "_qsize") ||
            overrides(type, "_put") || overrides(type, "_get"));
}

static PyObject *
make_hooked(QueueObject *self, Py_ssize_t maxsize)
{
    return PyObject_CallFunction(pf_facade.hooked_queue, "On", self, maxsize);
}

/* Returns NULL if __init__ may set the queue up again, or the reason why not.
 * The caller holds the mutex. */
static const char *
in_use(const QueueObject *self)
{
    if (!pf_waitq_empty(&self->getters) || !pf_waitq_empty(&self->putters) ||
        !pf_waitq_empty(&self->joiners)) {
        return "somebody waits";
    }
    return self->inside > 0 || self->items.count > 0 || self->unfinished > 0 ||
                   PF_SHARED_GET(&self->shut_down)
               ? "the queue is in use"
               : NULL;
}

/* Sets the queue up, unless it is in use.  `made`, a new HookedQueue or NULL,
 * is stolen.  Returns 0, or -1 with FiberError. */
static int
set_up(QueueObject *self, Py_ssize_t maxsize, PyObject *made)
{
    PF_LOCK(self);
    const char *why_not = in_use(self);
    PyObject *drop = made;
    if (why_not == NULL) {
        self->maxsize = maxsize;
        self->lifo = PyObject_TypeCheck((PyObject *)self, lifo_type);
        drop = self->hooked;
        self->hooked = made;
    }
    PF_UNLOCK(self);
    Py_XDECREF(drop);
    return why_not == NULL ? 0 : pf_arguments_too_late(why_not);
}

static int
queue_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"maxsize", NULL};
    QueueObject *self = (QueueObject *)op;
    Py_ssize_t maxsize = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|n:Queue", names,
                                     &maxsize)) {
        return -1;
    }
    bool hooks = needs_hooks(Py_TYPE(op));
    PyObject *made = hooks ? make_hooked(self, maxsize) : NULL;
    if ((hooks && made == NULL) || set_up(self, maxsize, made) < 0) {
        return -1;
    }
    if (!hooks) {
        return 0;
    }
    PyObject *done = PyObject_CallMethod(op, "_init", "n", maxsize);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int
queue_traverse(PyObject *op, visitproc visit, void *arg)
{
    QueueObject *self = (QueueObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->hooked);
    return pf_ring_traverse(&self->items, visit, arg);
}

static int
queue_clear(PyObject *op)
{
    QueueObject *self = (QueueObject *)op;
    Py_CLEAR(self->hooked);
    pf_ring_clear(&self->items);
    return 0;
}

static void
queue_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, queue_clear);
}

/* ------------------------------------------------------------------ the type */

PyDoc_STRVAR(queue_doc, "Queue(maxsize=0)\n--\n\n\
A queue.Queue for fibers, of any thread, and plain threads.\n\
\n\
First in, first out; the longest waiter is served next. The queue holds at most\n\
`maxsize` items; 0 or less means no limit.");
PyDoc_STRVAR(lifo_doc, "LifoQueue(maxsize=0)\n--\n\n\
A Queue that returns the newest item first.");
PyDoc_STRVAR(put_doc, "put($self, /, item, block=True, timeout=None)\n--\n\n\
Add an item; wait for a free place.\n\
\n\
queue.Full if no place is free after `timeout` seconds (None: no limit), or at\n\
once with block=False. ShutDown after shutdown(). A cancellation point if it\n\
has to wait. ValueError for a negative timeout or NaN.");
PyDoc_STRVAR(get_doc, "get($self, /, block=True, timeout=None)\n--\n\n\
Take an item out and return it; wait for one.\n\
\n\
queue.Empty if there is no item after `timeout` seconds (None: no limit), or\n\
at once with block=False. ShutDown if the queue is empty after shutdown(). A\n\
cancellation point if it has to wait. ValueError for a negative timeout or\n\
NaN.");
PyDoc_STRVAR(put_nowait_doc, "put_nowait($self, item, /)\n--\n\n\
put(item, block=False)");
PyDoc_STRVAR(get_nowait_doc, "get_nowait($self, /)\n--\n\nget(block=False)");
PyDoc_STRVAR(getting_doc, "getting($self, /)\n--\n\n\
get(), as a case for select().");
PyDoc_STRVAR(putting_doc, "putting($self, item, /)\n--\n\n\
put(item), as a case for select().");
PyDoc_STRVAR(qsize_doc,
             "qsize($self, /)\n--\n\nThe number of items in the queue.");
PyDoc_STRVAR(empty_doc,
             "empty($self, /)\n--\n\nTrue if the queue has no item.");
PyDoc_STRVAR(full_doc,
             "full($self, /)\n--\n\nTrue if the queue has no free place.");
PyDoc_STRVAR(task_done_doc, "task_done($self, /)\n--\n\n\
Report that the work on one item is done, for join().\n\
\n\
ValueError if the work on all items has been reported.");
PyDoc_STRVAR(join_doc, "join($self, /)\n--\n\n\
Wait until task_done() has been called for every item.\n\
\n\
A cancellation point if it has to wait.");
PyDoc_STRVAR(shutdown_doc, "shutdown($self, /, immediate=False)\n--\n\n\
Shut the queue down: from now on put() raises ShutDown.\n\
\n\
So does get() when the queue is empty. Fibers and threads that wait in either\n\
get ShutDown at once. immediate=True drops all items and counts them as done.");
PyDoc_STRVAR(holders_doc, "_holders($self, /)\n--\n\n\
An empty list: any fiber or thread may put or get. For reports.");
PyDoc_STRVAR(waiters_doc, "_waiters($self, /)\n--\n\n\
The fibers that wait in get(), then put(), then join(), each in queue order;\n\
for reports.");

static PyMethodDef methods[] = {
    PF_METHOD("put", queue_put, put_doc),
    PF_METHOD("get", queue_get, get_doc),
    {"put_nowait", queue_put_nowait, METH_O, put_nowait_doc},
    {"get_nowait", queue_get_nowait, METH_NOARGS, get_nowait_doc},
    {"getting", queue_getting, METH_NOARGS, getting_doc},
    {"putting", queue_putting, METH_O, putting_doc},
    {"qsize", queue_qsize, METH_NOARGS, qsize_doc},
    {"empty", queue_empty, METH_NOARGS, empty_doc},
    {"full", queue_full, METH_NOARGS, full_doc},
    {"task_done", queue_task_done, METH_NOARGS, task_done_doc},
    {"join", queue_join, METH_NOARGS, join_doc},
    PF_METHOD("shutdown", queue_shutdown, shutdown_doc),
    {"_init", pf_queue_hook_init, METH_O,
     "For subclasses: make an empty store for at most `maxsize` items."},
    {"_qsize", pf_queue_hook_qsize, METH_NOARGS,
     "For subclasses: return the number of items."},
    {"_put", pf_queue_hook_put, METH_O, "For subclasses: add an item."},
    {"_get", pf_queue_hook_get, METH_NOARGS,
     "For subclasses: take an item out and return it."},
    {"_add_tasks", pf_queue_hook_tasks, METH_O,
     "Change the number of unfinished tasks by n."},
    {"_mark_shut_down", pf_queue_hook_shut, METH_NOARGS, "Set is_shutdown."},
    {"_holders", pf_waitq_no_holders, METH_NOARGS, holders_doc},
    {"_waiters", queue_waiters, METH_NOARGS, waiters_doc},
    PF_NO_PICKLE,
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "Queue[T]: a queue of T's."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    PF_WEAKREFS(QueueObject),
    {"maxsize", T_PYSSIZET, offsetof(QueueObject, maxsize), READONLY,
     "The greatest number of items; 0 or less means no limit."},
    {"unfinished_tasks", T_PYSSIZET, offsetof(QueueObject, unfinished),
     READONLY, "The number of items for which task_done() was not called."},
    {"is_shutdown", T_BOOL, offsetof(QueueObject, shut_down), READONLY,
     "True after shutdown()."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot queue_slots[] = {
    {Py_tp_doc, (void *)queue_doc},   {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, queue_init},         {Py_tp_dealloc, queue_dealloc},
    {Py_tp_traverse, queue_traverse}, {Py_tp_clear, queue_clear},
    {Py_tp_repr, queue_repr},         {Py_tp_methods, methods},
    {Py_tp_members, members},         {0, NULL},
};

static PyType_Spec queue_spec = {
    .name = "pyfiber.Queue",
    .basicsize = sizeof(QueueObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = queue_slots,
};

static PyType_Slot lifo_slots[] = {
    {Py_tp_doc, (void *)lifo_doc},
    {0, NULL},
};

static PyType_Spec lifo_spec = {
    .name = "pyfiber.LifoQueue",
    .basicsize = sizeof(QueueObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = lifo_slots,
};

int
pf_queue_init(PyObject *module)
{
    queue_type = pf_arguments_add_type(module, &queue_spec, NULL);
    if (queue_type == NULL) {
        return -1;
    }
    lifo_type = pf_arguments_add_type(module, &lifo_spec, queue_type);
    return lifo_type == NULL ? -1 : 0;
}
