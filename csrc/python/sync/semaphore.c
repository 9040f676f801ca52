/* Semaphore, and its subclass BoundedSemaphore, which also checks an upper
 * limit.
 *
 * release() hands a permit over to the longest waiter.  So nobody can take a
 * permit in between that others wait for.
 */
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/sync/select.h"
#include "python/sync/sync.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/wait/in_line.h"
#include "python/waitq/owner.h"
#include "python/waitq/waitq.h"

#include <structmember.h>

#define MOST_HOLDERS 8

/* Invariant: `waiters` is empty while value > 0.
 *
 * `holders`, for reports, are the fibers that have taken a permit and not
 * returned it.  The list is a guess, since any fiber may release, and has at
 * most one entry for each permit of the initial value that is taken.  So a
 * semaphore that began with 0, which serves as a signal, has no holders. */
typedef struct SemaphoreObject {
    PyObject_HEAD
    PyObject *weakrefs;
    PfWaitq waiters;
    Py_ssize_t value; /* permits that can be taken without a wait */
    Py_ssize_t initial;
    bool bounded;                  /* `value` may not exceed `initial` */
    int holding;                   /* the length of `holders` */
    PfOwner holders[MOST_HOLDERS]; /* the oldest first */
    PF_OBJECT_MUTEX
} SemaphoreObject;

static PyTypeObject *semaphore_type, *bounded_type; /* constant after import */

static int
semaphore_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"value", NULL};
    SemaphoreObject *self = (SemaphoreObject *)op;
    Py_ssize_t value = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|n:Semaphore", names,
                                     &value)) {
        return -1;
    }
    if (value < 0) {
        PyErr_SetString(PyExc_ValueError,
                        "semaphore initial value must be >= 0");
        return -1;
    }
    PF_LOCK(self);
    bool waited_for = !pf_waitq_empty(&self->waiters);
    bool used = self->value != self->initial;
    if (!waited_for && !used) {
        self->value = self->initial = value;
        self->bounded = PyObject_TypeCheck(op, bounded_type);
        self->holding = 0;
    }
    PF_UNLOCK(self);
    return waited_for ? pf_arguments_too_late("somebody waits")
           : used     ? pf_arguments_too_late("the semaphore is in use")
                      : 0;
}

/* ------------------------------------------------------------------ holders
 *
 * The caller of each of these functions holds the mutex. */

static void
forget_holder(SemaphoreObject *self, int place)
{
    self->holding--;
    memmove(&self->holders[place], &self->holders[place + 1],
            sizeof(PfOwner) * (size_t)(self->holding - place));
}

/* Adds `fiber`, which has taken a permit that `value` no longer counts. */
static void
add_holder(SemaphoreObject *self, FiberObject *fiber)
{
    if (self->holding < MOST_HOLDERS &&
        self->holding < self->initial - self->value) {
        self->holders[self->holding++] = pf_owner(fiber);
    }
}

/* Removes the newest entry of `fiber`, which returns a permit.  If there is
 * none, or `fiber` is NULL, the oldest holder goes, but only if the list would
 * otherwise have more entries than permits are taken. */
static void
remove_holder(SemaphoreObject *self, const FiberObject *fiber)
{
    int place = self->holding - 1;
    while (place >= 0 && !pf_owner_is(&self->holders[place], fiber)) {
        place--;
    }
    if (place >= 0) {
        forget_holder(self, place);
    } else if (self->holding > 0 &&
               self->holding >= self->initial - self->value) {
        forget_holder(self, 0);
    }
}

/* ------------------------------------------------------------------ acquire */

/* Returns one permit, which the next waiter gets.  The caller holds the
 * mutex. */
static void
release_one(SemaphoreObject *self, const FiberObject *by)
{
    remove_holder(self, by);
    PfNode *next = pf_waitq_choose(&self->waiters);
    if (next == NULL) {
        self->value += self->value < PY_SSIZE_T_MAX;
        return;
    }
    add_holder(self, pf_waitq_fiber(next->waiter));
    pf_waitq_grant(next);
}

/* Waits for a permit.  The caller holds the mutex; this function unlocks it.
 * Without a GIL the fiber must have an owner number before it waits, because
 * only the fiber's own thread may assign it. */
static int
wait_for_one(SemaphoreObject *self, PfThread *t, int64_t deadline)
{
    PfWait *wait = pf_wait_new(t, PF_MUTEX_OF(self));
    if (wait == NULL) {
        return -1;
    }
    if (PF_FREE_THREADED) {
        (void)pf_owner(CURRENT(t));
    }
    int rc = pf_wait_for(wait, &self->waiters, PF_MUTEX_OF(self), t, deadline,
                         (PyObject *)self);
    bool taken = PF_SHARED_GET(&wait->waiter.taken) != NULL;
    pf_wait_free(t, wait);
    if (rc < 0 && taken) {
        PF_LOCK(self);
        release_one(self, CURRENT(t));
        PF_UNLOCK(self);
    }
    return rc;
}

/* The caller holds the mutex. */
static inline bool
try_acquire(SemaphoreObject *self, FiberObject *fiber)
{
    if (self->value == 0) {
        return false;
    }
    self->value--;
    add_holder(self, fiber);
    return true;
}

static PyObject *
acquire_until(SemaphoreObject *self, int64_t deadline)
{
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_explore_preempt() < 0) {
        return NULL;
    }
    PF_LOCK(self);
    bool taken = try_acquire(self, CURRENT(t));
    if (PF_LIKELY(taken) || deadline == PF_NOW) {
        PF_UNLOCK(self);
        return PyBool_FromLong(taken);
    }
    int rc = wait_for_one(self, t, deadline);
    return rc < 0 ? NULL : PyBool_FromLong(rc == 0);
}

static PyObject *
semaphore_acquire(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    static const char *const names[] = {"blocking", "timeout", NULL};
    PyObject *out[2] = {NULL, NULL};
    int64_t deadline = PF_NEVER;
    if (nargs > 0 || kwnames != NULL) {
        if (pf_arguments("acquire", names, 0, args, nargs, kwnames, out) < 0) {
            return NULL;
        }
        int blocking = out[0] == NULL ? 1 : PyObject_IsTrue(out[0]);
        if (blocking < 0 || pf_deadline_timeout(out[1], &deadline) < 0) {
            return NULL;
        }
        if (!blocking && out[1] != NULL && out[1] != Py_None) {
            PyErr_SetString(PyExc_ValueError,
                            "can't specify timeout for non-blocking acquire");
            return NULL;
        }
        deadline = blocking ? deadline : PF_NOW;
    }
    return acquire_until((SemaphoreObject *)op, deadline);
}

static PyObject *
semaphore_enter(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return acquire_until((SemaphoreObject *)op, PF_NEVER);
}

/* ------------------------------------------------------------------ release */

/* Returns n permits.  Returns NULL; or, if that is impossible, the message of
 * the exception to raise, with its type in *type.  The caller holds the
 * mutex. */
static const char *
return_permits(SemaphoreObject *self, Py_ssize_t n, const FiberObject *by,
               PyObject **type)
{
    if (self->bounded && n > self->initial - self->value) {
        *type = PyExc_ValueError;
        return "Semaphore released too many times";
    }
    for (; n > 0 && (self->holding > 0 || pf_waitq_has(&self->waiters, NULL));
         n--) {
        release_one(self, by);
    }
    if (n > PY_SSIZE_T_MAX - self->value) {
        *type = PyExc_OverflowError;
        return "the semaphore's value would be too large";
    }
    self->value += n;
    return NULL;
}

static PyObject *
release_many(SemaphoreObject *self, Py_ssize_t n)
{
    if (n < 1) {
        PyErr_SetString(PyExc_ValueError, "n must be one or more");
        return NULL;
    }
    /* A release must not fail because there is no memory for a PfThread. */
    PfThread *t = pf_thread_current;
    PyObject *type = NULL;
    PF_LOCK(self);
    const char *wrong =
        return_permits(self, n, t == NULL ? NULL : CURRENT(t), &type);
    PF_UNLOCK(self);
    if (wrong != NULL) {
        PyErr_SetString(type, wrong);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
semaphore_release(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    static const char *const names[] = {"n", NULL};
    PyObject *n = NULL;
    Py_ssize_t count = 1;
    if (pf_arguments("release", names, 0, args, nargs, kwnames, &n) < 0) {
        return NULL;
    }
    if (n != NULL) {
        count = PyNumber_AsSsize_t(n, PyExc_OverflowError);
        if (count == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    return release_many((SemaphoreObject *)op, count);
}

static PyObject *
semaphore_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    (void)args;
    (void)nargs;
    return release_many((SemaphoreObject *)op, 1);
}

/* -------------------------------------------------------------- for select() */

static int
attempt_to_acquire(PyObject *op, PyObject *value, PyObject **got)
{
    (void)value;
    (void)got;
    return try_acquire((SemaphoreObject *)op, CURRENT(pf_thread_current));
}

static bool
may_acquire(PyObject *op, const PfWaiter *asking)
{
    (void)asking;
    return ((SemaphoreObject *)op)->value > 0;
}

static PfMutex *
mutex_of(PyObject *op)
{
    return PF_MUTEX_OF((SemaphoreObject *)op);
}

static PfWaitq *
line(PyObject *op)
{
    return &((SemaphoreObject *)op)->waiters;
}

static void
take_back(PyObject *op, PyObject *got)
{
    (void)got;
    SemaphoreObject *self = (SemaphoreObject *)op;
    PF_LOCK(self);
    release_one(self, CURRENT(pf_thread_current));
    PF_UNLOCK(self);
}

const PfCaseOps pf_select_acquiring_ops = {
    .attempt = attempt_to_acquire,
    .possible = may_acquire,
    .line = line,
    .mutex = mutex_of,
    .take_back = take_back,
};

bool
pf_semaphore_is(PyObject *object)
{
    return PyObject_TypeCheck(object, semaphore_type);
}

static PyObject *
semaphore_acquiring(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return pf_case_new("acquiring", &pf_select_acquiring_ops, op, NULL);
}

/* ------------------------------------------------------------------ reports */

static PyObject *
semaphore_holders(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SemaphoreObject *self = (SemaphoreObject *)op;
    PfOwner holders[MOST_HOLDERS];
    PF_LOCK(self);
    int holding = self->holding;
    memcpy(holders, self->holders, sizeof holders);
    PF_UNLOCK(self);
    return pf_owner_list(holders, holding);
}

static PyObject *
semaphore_waiters(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SemaphoreObject *self = (SemaphoreObject *)op;
    return pf_waitq_list(&self->waiters, PF_MUTEX_OF(self));
}

static PyObject *
semaphore_repr(PyObject *op)
{
    SemaphoreObject *self = (SemaphoreObject *)op;
    PF_LOCK(self);
    Py_ssize_t value = self->value;
    PF_UNLOCK(self);
    if (!self->bounded) {
        return PyUnicode_FromFormat("<%s at %p: value=%zd>",
                                    Py_TYPE(op)->tp_name, op, value);
    }
    return PyUnicode_FromFormat("<%s at %p: value=%zd/%zd>",
                                Py_TYPE(op)->tp_name, op, value,
                                self->initial);
}

PyDoc_STRVAR(semaphore_doc, "Semaphore(value=1)\n--\n\n\
A threading.Semaphore for fibers, of any thread, and plain threads.\n\
\n\
`value` is the number of permits. The longest waiter is served next.\n\
ValueError for a negative value.");
PyDoc_STRVAR(bounded_doc, "BoundedSemaphore(value=1)\n--\n\n\
A Semaphore that raises ValueError if released more often than acquired.");
PyDoc_STRVAR(acquire_doc,
             "acquire($self, /, blocking=True, timeout=None)\n--\n\n\
Take a permit; wait for one at most `timeout` seconds (None: no limit).\n\
\n\
True if a permit was taken. A cancellation point if it has to wait. ValueError\n\
for a negative timeout or NaN, or for a timeout with blocking=False.");
PyDoc_STRVAR(acquiring_doc, "acquiring($self, /)\n--\n\n\
acquire(), as a case for select().");
PyDoc_STRVAR(release_doc, "release($self, /, n=1)\n--\n\n\
Return n permits, which go to the first waiters. ValueError if n < 1.");
PyDoc_STRVAR(holders_doc, "_holders($self, /)\n--\n\n\
A list of fibers that have taken a permit and not returned it; for reports.\n\
\n\
Not all of them if there are many; none if the initial value was 0.");
PyDoc_STRVAR(waiters_doc, "_waiters($self, /)\n--\n\n\
The fibers that wait for a permit, in queue order; for reports.");

static PyMethodDef methods[] = {
    PF_METHOD("acquire", semaphore_acquire, acquire_doc),
    PF_METHOD("release", semaphore_release, release_doc),
    {"acquiring", semaphore_acquiring, METH_NOARGS, acquiring_doc},
    {"__enter__", semaphore_enter, METH_NOARGS, acquire_doc},
    {"__exit__", PF_FAST(semaphore_exit), METH_FASTCALL, release_doc},
    {"_holders", semaphore_holders, METH_NOARGS, holders_doc},
    {"_waiters", semaphore_waiters, METH_NOARGS, waiters_doc},
    PF_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    PF_WEAKREFS(SemaphoreObject),
    {"_value", T_PYSSIZET, offsetof(SemaphoreObject, value), READONLY,
     "The number of permits that can be taken without a wait."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot semaphore_slots[] = {
    {Py_tp_doc, (void *)semaphore_doc}, {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, semaphore_init},       {Py_tp_dealloc, pf_arguments_dealloc},
    {Py_tp_repr, semaphore_repr},       {Py_tp_methods, methods},
    {Py_tp_members, members},           {0, NULL},
};

static PyType_Spec semaphore_spec = {
    .name = "pyfiber.Semaphore",
    .basicsize = sizeof(SemaphoreObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = semaphore_slots,
};

static PyType_Slot bounded_slots[] = {
    {Py_tp_doc, (void *)bounded_doc},
    {0, NULL},
};

static PyType_Spec bounded_spec = {
    .name = "pyfiber.BoundedSemaphore",
    .basicsize = sizeof(SemaphoreObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = bounded_slots,
};

int
pf_semaphore_init(PyObject *module)
{
    semaphore_type = pf_arguments_add_type(module, &semaphore_spec, NULL);
    if (semaphore_type == NULL) {
        return -1;
    }
    bounded_type =
        pf_arguments_add_type(module, &bounded_spec, semaphore_type);
    return bounded_type == NULL ? -1 : 0;
}
