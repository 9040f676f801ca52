/* Waiting for the end of a fiber of another thread: see remote.h.
 *
 * The waiting fiber makes an _End object and waits in its queue.  A message
 * makes the other thread add a method of the _End to the done-callbacks of the
 * fiber that is waited for.
 */
#include "python/wait/remote.h"

#include "python/core/arguments.h"
#include "python/core/objlock.h"
#include "python/core/tstate.h"
#include "python/task/life.h"
#include "python/task/post.h"
#include "python/wait/in_line.h"
#include "python/waitq/waitq.h"

typedef struct EndObject {
    PyObject_HEAD
    PfWaitq waiters;
    PF_SHARED(uint8_t) came;
    PF_OBJECT_MUTEX
} EndObject;

static PyTypeObject *end_type; /* constant after import */

/* ----------------------------------------------------------------------- join */

/* Wakes the waiting fiber.  A done-callback, called on the thread of the fiber
 * that has ended. */
static PyObject *
end_came(PyObject *op, PyObject *fiber)
{
    EndObject *self = (EndObject *)op;
    (void)fiber;
    PF_LOCK(self);
    PF_SHARED_SET(&self->came, 1);
    pf_waitq_grant_all(&self->waiters);
    PF_UNLOCK(self);
    Py_RETURN_NONE;
}

static PyMethodDef came_method = {"end_came", end_came, METH_O, NULL};

/* Adds the callback, on the fiber's thread.  If there is no memory, the
 * waiting fiber is woken all the same, and was_the_end() reports that. */
static void
watch_arrived(SchedulerObject *s, PyObject *fiber, PyObject *callback)
{
    (void)s;
    if (pf_task_add_callback(PF_TASK(fiber), callback) < 0) {
        PyErr_Clear();
        Py_DECREF(end_came(PyCFunction_GET_SELF(callback), fiber));
    }
}

/* Removes the callback, on the fiber's thread: nobody waits any more. */
static void
unwatch_arrived(SchedulerObject *s, PyObject *fiber, PyObject *callback)
{
    (void)s;
    PyObject *list = pf_task_rare(PF_TASK(fiber))->callbacks;
    Py_ssize_t i = list == NULL ? 0 : PyList_GET_SIZE(list);
    while (--i >= 0) {
        if (PyList_GET_ITEM(list, i) == callback) {
            (void)PyList_SetSlice(list, i, i + 1, NULL);
            return;
        }
    }
}

static void
unwatch(SchedulerObject *s, FiberObject *target, PyObject *callback)
{
    PyObject *pending = pystate_take_exception();
    if (pf_post_call(s, unwatch_arrived, (PyObject *)target, callback) < 0) {
        PyErr_Clear(); /* no memory: the callback stays until the fiber ends */
    }
    pystate_restore_exception(pending);
}

static int
await_end(PfThread *t, EndObject *end, int64_t deadline, FiberObject *target)
{
    PF_LOCK(end);
    if (PF_SHARED_GET(&end->came)) {
        PF_UNLOCK(end);
        return 0;
    }
    return pf_wait_once(&end->waiters, PF_MUTEX_OF(end), t, deadline,
                        (PyObject *)target);
}

/* Called when the wait is over.  Returns 0 if the target has ended, else -1
 * with MemoryError: see watch_arrived(). */
static int
was_the_end(const FiberObject *target)
{
    if (pf_task_is_done(PF_TASK(target))) {
        return 0;
    }
    PyErr_NoMemory();
    return -1;
}

static int
join_by(PfThread *t, FiberObject *target, EndObject *end, PyObject *callback,
        int64_t deadline)
{
    SchedulerObject *s = SCHEDULER_OF(target->core.scheduler);
    int rc = pf_post_call(s, watch_arrived, (PyObject *)target, callback);
    if (rc > 0) {
        rc = await_end(t, end, deadline, target);
        if (!PF_SHARED_GET(&end->came)) {
            unwatch(s, target, callback);
        }
    }
    return rc == 0 ? was_the_end(target) : rc;
}

int
pf_remote_join(PfThread *t, FiberObject *target, int64_t deadline)
{
    int rc = -1;
    EndObject *end = (EndObject *)end_type->tp_alloc(end_type, 0);
    PyObject *callback =
        end == NULL ? NULL : PyCFunction_New(&came_method, (PyObject *)end);
    if (callback != NULL) {
        rc = join_by(t, target, end, callback, deadline);
    }
    Py_XDECREF(callback);
    Py_XDECREF(end);
    return rc;
}

static PyType_Slot end_slots[] = {
    {Py_tp_doc, (void *)"The end of a fiber on another thread."},
    {Py_tp_dealloc, pf_arguments_dealloc},
    {0, NULL},
};

static PyType_Spec end_spec = {
    .name = "pyfiber._engine._End",
    .basicsize = sizeof(EndObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = end_slots,
};

int
pf_remote_init(PyObject *module)
{
    end_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &end_spec, NULL);
    return end_type == NULL ? -1 : 0;
}
