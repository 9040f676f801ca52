/* Queue's methods _init, _put, _get and _qsize, for subclasses that extend
 * them, and two methods for HookedQueue, the caller of these (see
 * pyfiber._queues).  A plain Queue does its work without them.
 */
#include "python/core/state.h"
#include "python/queue/queue.h"
#include "python/queue/ring.h"

PyObject *
pf_queue_hook_init(PyObject *op, PyObject *maxsize)
{
    (void)op;
    (void)maxsize;
    Py_RETURN_NONE;
}

PyObject *
pf_queue_hook_qsize(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    QueueObject *self = (QueueObject *)op;
    PF_LOCK(self);
    size_t count = self->items.count;
    PF_UNLOCK(self);
    return PyLong_FromSize_t(count);
}

static int
check_hooked(QueueObject *self, const char *name)
{
    if (self->hooked == NULL) {
        PyErr_Format(pf.fiber_error,
                     "%s() is for subclasses that override it: call the "
                     "method without the underscore",
                     name);
        return -1;
    }
    return 0;
}

PyObject *
pf_queue_hook_put(PyObject *op, PyObject *item)
{
    QueueObject *self = (QueueObject *)op;
    if (check_hooked(self, "_put") < 0) {
        return NULL;
    }
    PF_LOCK(self);
    bool room = pf_ring_reserve(&self->items) == 0;
    if (room) {
        pf_ring_push(&self->items, Py_NewRef(item));
    }
    PF_UNLOCK(self);
    return room ? Py_NewRef(Py_None) : PyErr_NoMemory();
}

PyObject *
pf_queue_hook_get(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    QueueObject *self = (QueueObject *)op;
    if (check_hooked(self, "_get") < 0) {
        return NULL;
    }
    PF_LOCK(self);
    PyObject *item = self->items.count == 0 ? NULL
                     : self->lifo           ? pf_ring_pop_last(&self->items)
                                            : pf_ring_pop(&self->items);
    PF_UNLOCK(self);
    if (item == NULL) {
        PyErr_SetString(PyExc_IndexError, "_get() of an empty queue");
    }
    return item;
}

/* _add_tasks(n), for HookedQueue: counts n more unfinished tasks, or -n fewer
 * if n is negative. */
PyObject *
pf_queue_hook_tasks(PyObject *op, PyObject *n)
{
    QueueObject *self = (QueueObject *)op;
    Py_ssize_t count = PyLong_AsSsize_t(n);
    if (count == -1 && PyErr_Occurred()) {
        return NULL;
    }
    PF_LOCK(self);
    if (count > 0) {
        self->unfinished += count;
    } else {
        pf_queue_forget_tasks(self, -count);
    }
    PF_UNLOCK(self);
    Py_RETURN_NONE;
}

PyObject *
pf_queue_hook_shut(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PF_SHARED_SET(&((QueueObject *)op)->shut_down, true);
    Py_RETURN_NONE;
}
