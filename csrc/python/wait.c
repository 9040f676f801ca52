/* Waiting: the one function that parks, and what is made of it.
 *
 * Every park point goes through pf_wait.  Cancellation is looked at there:
 * before the fiber waits, and when it was woken because of it.  A wake-up
 * that came first wins: the value is delivered, the cancellation raised at
 * the next park point.
 */
#include "python/waitq.h"

#include <math.h>

/* ------------------------------------------------------------- numbers, checks */

#define NS_PER_SECOND 1e9

/* 0 or -1.  +inf gives PF_NEVER. */
int
pf_seconds(PyObject *number, const char *what, int64_t *ns)
{
    double seconds;
    if (PyFloat_CheckExact(number)) {
        seconds = PyFloat_AS_DOUBLE(number);
    } else {
        if (!PyNumber_Check(number) || PyComplex_Check(number)) {
            PyErr_Format(PyExc_TypeError, "%s must be a number, not '%.200s'",
                         what, Py_TYPE(number)->tp_name);
            return -1;
        }
        seconds = PyFloat_AsDouble(number);
        if (seconds == -1.0 && PyErr_Occurred()) {
            return -1;
        }
    }
    if (isnan(seconds)) {
        PyErr_Format(PyExc_ValueError, "%s must not be NaN", what);
        return -1;
    }
    double scaled = seconds * NS_PER_SECOND;
    if (scaled >= 9.2e18) {
        *ns = PF_NEVER;
    } else if (scaled <= -9.2e18) {
        *ns = INT64_MIN;
    } else {
        *ns = (int64_t)ceil(scaled);
    }
    return 0;
}

static int64_t
deadline_after(PfThread *t, int64_t ns)
{
    int64_t now =
        t->scheduler == NULL ? pf_monotonic() : pf_now(&t->scheduler->core);
    return ns >= PF_NEVER - now ? PF_NEVER : now + ns;
}

int
pf_deadline(PyObject *timeout, int64_t *deadline)
{
    *deadline = PF_NEVER;
    if (timeout == NULL || timeout == Py_None) {
        return 0;
    }
    int64_t ns;
    if (pf_seconds(timeout, "timeout", &ns) < 0) {
        return -1;
    }
    if (ns < 0) {
        PyErr_SetString(PyExc_ValueError, "timeout must not be negative");
        return -1;
    }
    PfThread *t = pf_this_thread();
    if (t == NULL) {
        return -1;
    }
    *deadline = deadline_after(t, ns);
    return 0;
}

pf_scheduler *
pf_active(PfThread *t, const char *what)
{
    if (PF_LIKELY(t->scheduler != NULL)) {
        return &t->scheduler->core;
    }
    PyErr_Format(pf.fiber_error,
                 "%s needs a running scheduler: call it from a function that "
                 "pyfiber.run() runs",
                 what);
    return NULL;
}

/* ---------------------------------------------------------------- cancellation */

/* Raise Cancelled with the reason and who asked. */
static void
raise_cancelled(FiberObject *self)
{
    PyObject *reason = Py_None, *by = Py_None;
    if (self->cancel != NULL) {
        reason = PyTuple_GET_ITEM(self->cancel, 0);
        by = PyTuple_GET_ITEM(self->cancel, 1);
    }
    PyObject *exc = reason == Py_None
                        ? PyObject_CallNoArgs(pf.cancelled)
                        : PyObject_CallOneArg(pf.cancelled, reason);
    if (exc == NULL) {
        return;
    }
    if (PyObject_SetAttrString(exc, "reason", reason) == 0 &&
        PyObject_SetAttrString(exc, "by", by) == 0) {
        PyErr_SetObject(pf.cancelled, exc);
    }
    Py_DECREF(exc);
}

int
pf_check_cancelled(FiberObject *fiber)
{
    if (PF_LIKELY(!(fiber->core.host_bits & PF_F_CANCEL))) {
        return 0;
    }
    raise_cancelled(fiber);
    return -1;
}

/* Owner thread.  The first cancellation's reason stays. */
void
pf_cancel_now(FiberObject *fiber, PyObject *reason, PyObject *by)
{
    if (fiber->core.state == PF_DONE ||
        (fiber->core.host_bits & PF_F_CANCEL)) {
        return;
    }
    fiber->core.host_bits |= PF_F_CANCEL;
    if (reason != Py_None || by != Py_None) {
        fiber->cancel = PyTuple_Pack(2, reason, by);
        if (fiber->cancel == NULL) {
            PyErr_Clear(); /* cancelled all the same, without the reason */
        }
    }
    if (fiber->core.state == PF_PARKED) {
        pf_wake_fiber(fiber->core.scheduler, &fiber->core, PF_WAKE_CANCEL);
        pf_tell_host(SCHEDULER_OF(fiber->core.scheduler));
    }
}

/* ------------------------------------------------- requests from other threads */

typedef enum { CALL_CANCEL, CALL_UNPARK } CallKind;

/* Holds references; freed on the owner thread. */
typedef struct Call {
    pf_message message;
    CallKind kind;
    FiberObject *fiber;
    PyObject *object;
    PyObject *by;
} Call;

static int unpark_here(FiberObject *fiber, PyObject *value);

static void
call_arrived(pf_message *message, pf_scheduler *s)
{
    Call *call = (Call *)message;
    pf_no_switch_begin((PfThread *)s->thread, "inside the scheduler");
    if (call->kind == CALL_CANCEL) {
        pf_cancel_now(call->fiber, call->object, call->by);
    } else if (call->fiber->core.state != PF_DONE) {
        unpark_here(call->fiber, call->object);
    }
    Py_DECREF(call->fiber);
    Py_DECREF(call->object);
    Py_DECREF(call->by);
    PyMem_RawFree(call);
    pf_no_switch_end((PfThread *)s->thread);
}

static int
call_owner(FiberObject *fiber, CallKind kind, PyObject *object, PyObject *by)
{
    Call *call = PyMem_RawMalloc(sizeof(*call));
    if (call == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    call->message.run = call_arrived;
    call->kind = kind;
    call->fiber = (FiberObject *)Py_NewRef((PyObject *)fiber);
    call->object = Py_NewRef(object);
    call->by = Py_NewRef(by);
    pf_post(fiber->core.scheduler, &call->message);
    return 0;
}

static void
dropped_elsewhere(FiberObject *fiber)
{
    if (fiber->core.host_bits & PF_F_DROPPED) {
        fiber->core.host_bits &= ~(uint32_t)PF_F_DROPPED;
        Py_DECREF(fiber);
    }
}

void
pf_on_posted(pf_scheduler *s, pf_fiber *core, unsigned bits)
{
    FiberObject *fiber = FIBER_OF(core);
    pf_no_switch_begin((PfThread *)s->thread, "inside the scheduler");
    if ((bits & PF_POST_UNPARK) && core->state != PF_DONE) {
        unpark_here(fiber, Py_None);
    }
    if (bits & PF_POST_WAKE) {
        pf_waiter_arrived(fiber);
    }
    if (core->state == PF_DONE) {
        dropped_elsewhere(fiber);
    }
    pf_no_switch_end((PfThread *)s->thread);
}

int
pf_fiber_cancel(FiberObject *fiber, PyObject *reason)
{
    if (fiber->core.state == PF_DONE) {
        return 0;
    }
    if (!(fiber->core.host_bits & PF_F_SCHEDULED)) {
        PyErr_SetString(pf.fiber_error,
                        "only a fiber of a scheduler can be cancelled: use "
                        "throw() on a raw fiber, or start() it");
        return -1;
    }
    PfThread *t = pf_this_thread();
    if (t == NULL) {
        return -1;
    }
    PyObject *by = (PyObject *)CURRENT(t);
    if (fiber->thread == t) {
        pf_cancel_now(fiber, reason, by);
    } else if (call_owner(fiber, CALL_CANCEL, reason, by) < 0) {
        return -1;
    }
    return 1;
}

/* ------------------------------------------------------------------- parking */

/* Something other than our wake-up brought us back: a fiber being unwound. */
static int
resumed_by_transfer(PfThread *t)
{
    PyObject *value = pf_value_in_parent(t);
    if (value != NULL) {
        Py_DECREF(value);
        PyErr_SetString(pf.fiber_error, "a waiting fiber was switched to");
    }
    return -1;
}

/* The wait itself: a pf_wake, or -1 with an exception. */
static int
park(PfThread *t, FiberObject *self, int64_t deadline, PyObject *what)
{
    SchedulerObject *s = t->scheduler;
    /* A raw fiber may wait as well; it is the scheduler's while it does. */
    bool raw = self->core.scheduler == NULL;
    self->core.scheduler = &s->core;
    self->waiting_on = Py_NewRef(what);
    int why = pf_park(&s->core, deadline);
    Py_CLEAR(self->waiting_on);
    if (raw) {
        self->core.scheduler = NULL;
    }
    if (PF_UNLIKELY(t->transfer != NULL)) {
        return resumed_by_transfer(t);
    }
    if (why == -1) {
        PyErr_NoMemory();
    }
    return why;
}

/* 0, 1 or -1: what a wait answers that ended because of `why`. */
static int
answer(FiberObject *self, int why)
{
    switch (why) {
    case PF_WAKE_TIMEOUT:
        return 1;
    case PF_WAKE_CANCEL:
        raise_cancelled(self);
        return -1;
    default:
        return why < 0 ? -1 : 0;
    }
}

int
pf_wait(PfThread *t, int64_t deadline, PyObject *what)
{
    if (PF_UNLIKELY(t->attention != 0) && pf_attend(t) < 0) {
        return -1;
    }
    FiberObject *self = CURRENT(t);
    if (PF_UNLIKELY(pf_check_cancelled(self) < 0)) {
        return -1;
    }
    return answer(self, park(t, self, deadline, what));
}

/* pf_attend runs code that may grant us what we are about to wait for. */
int
pf_wait_granted(PfThread *t, PfNode *const *granted, int64_t deadline,
                PyObject *what)
{
    if (PF_UNLIKELY(t->attention != 0) && pf_attend(t) < 0) {
        return -1;
    }
    if (PF_UNLIKELY(*granted != NULL)) {
        return 0;
    }
    FiberObject *self = CURRENT(t);
    if (PF_UNLIKELY(pf_check_cancelled(self) < 0)) {
        return -1;
    }
    int why = park(t, self, deadline, what);
    return *granted != NULL && why >= 0 ? 0 : answer(self, why);
}

int
pf_wait_shielded(PfThread *t, PfNode *const *granted, PyObject *what)
{
    if (PF_UNLIKELY(t->attention != 0) && pf_attend(t) < 0) {
        return -1;
    }
    int why = PF_WAKE_NORMAL;
    while (*granted == NULL && why >= 0) {
        why = park(t, CURRENT(t), PF_NEVER, what);
    }
    return why < 0 ? -1 : 0;
}

static PyObject *
take_permit(FiberObject *self)
{
    PyObject *value = self->value;
    self->value = NULL;
    self->core.host_bits &= ~(uint32_t)PF_F_PERMIT;
    return value;
}

/* park(): the value of unpark(), or NULL with TimeoutError or Cancelled. */
PyObject *
pf_park_value(PfThread *t, int64_t deadline)
{
    FiberObject *self = CURRENT(t);
    if (PF_UNLIKELY(t->attention != 0) && pf_attend(t) < 0) {
        return NULL; /* code that runs in passing must not take the permit */
    }
    if (!(self->core.host_bits & PF_F_PERMIT)) {
        self->core.host_bits |= PF_F_IN_PARK;
        int rc = pf_wait(t, deadline, pf.s_park);
        self->core.host_bits &= ~(uint32_t)PF_F_IN_PARK;
        if (rc < 0) {
            return NULL;
        }
    }
    if (!(self->core.host_bits & PF_F_PERMIT)) {
        PyErr_SetString(PyExc_TimeoutError, "park() timed out");
        return NULL;
    }
    return take_permit(self);
}

/* Owner thread. 1, or 0 if there was a permit already. */
static int
unpark_here(FiberObject *fiber, PyObject *value)
{
    if (fiber->core.host_bits & PF_F_PERMIT) {
        return 0;
    }
    fiber->core.host_bits |= PF_F_PERMIT;
    Py_XSETREF(fiber->value, Py_NewRef(value));
    if (fiber->core.host_bits & PF_F_IN_PARK) {
        pf_wake_fiber(fiber->core.scheduler, &fiber->core, PF_WAKE_NORMAL);
        pf_tell_host(SCHEDULER_OF(fiber->core.scheduler));
    }
    return 1;
}

int
pf_fiber_unpark(FiberObject *fiber, PyObject *value)
{
    if (fiber->core.state == PF_DONE) {
        PyErr_SetString(pf.fiber_error,
                        "the fiber has finished: there is nothing to unpark");
        return -1;
    }
    PfThread *t = pf_this_thread();
    if (t == NULL) {
        return -1;
    }
    if (fiber->thread == t || fiber->core.scheduler == NULL) {
        return unpark_here(fiber, value);
    }
    if (value == Py_None && (fiber->core.host_bits & PF_F_SCHEDULED)) {
        pf_fiber_post(&fiber->core, PF_POST_UNPARK);
        return 1;
    }
    return call_owner(fiber, CALL_UNPARK, value, Py_None) < 0 ? -1 : 1;
}

/* -------------------------------------------------------------- yield, sleep */

int
pf_yield_now(PfThread *t)
{
    SchedulerObject *s = t->scheduler;
    if (PF_UNLIKELY(t->attention != 0) && pf_attend(t) < 0) {
        return -1;
    }
    FiberObject *self = CURRENT(t);
    if (PF_UNLIKELY(pf_check_cancelled(self) < 0)) {
        return -1;
    }
    bool raw = self->core.scheduler == NULL;
    self->core.scheduler = &s->core;
    pf_yield(&s->core);
    if (raw) {
        self->core.scheduler = NULL;
    }
    if (PF_UNLIKELY(t->transfer != NULL)) {
        return resumed_by_transfer(t);
    }
    return pf_check_cancelled(self);
}

int
pf_sleep_until(PfThread *t, int64_t deadline)
{
    if (deadline <= pf_now(&t->scheduler->core)) {
        return pf_yield_now(t);
    }
    return pf_wait(t, deadline, pf.s_sleep) < 0 ? -1 : 0;
}

/* ----------------------------------------------------------------------- join */

int
pf_refuse_join(PfThread *t, FiberObject *target)
{
    if (target == CURRENT(t)) {
        PyErr_SetString(pf.fiber_error, "a fiber cannot wait for its own end");
        return -1;
    }
    if (!(target->core.host_bits & PF_F_SCHEDULED)) {
        PyErr_SetString(pf.fiber_error,
                        "the fiber was not started on a scheduler: start() it "
                        "before waiting for it");
        return -1;
    }
    if (target->thread != t) {
        PyErr_SetString(pf.fiber_error,
                        "the fiber belongs to another thread: wait for it "
                        "there, or use add_done_callback()");
        return -1;
    }
    return pf_active(t, "waiting for a fiber") == NULL ? -1 : 0;
}

/* 0: done; 1: timed out; -1: exception. */
int
pf_join(PfThread *t, FiberObject *target, int64_t deadline)
{
    if (target->core.state == PF_DONE) {
        return 0;
    }
    if (pf_refuse_join(t, target) < 0) {
        return -1;
    }
    PfWait wait;
    pf_wait_init(&wait, t);
    return pf_wait_for(&wait, &target->waiters, t, deadline,
                       (PyObject *)target);
}
