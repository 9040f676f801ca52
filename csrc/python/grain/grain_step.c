/* One turn of a grain: resumes the innermost generator, does what it has
 * yielded or passes what it has returned to the generator that called it, and
 * ends the grain. See grain.h.
 */
#include "python/cancel/cancel.h"
#include "python/core/compiler.h"
#include "python/core/facade.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/grain/grain.h"
#include "python/switch/switch.h"
#include "python/queue/channel.h"
#include "python/sync/event.h"
#include "python/task/cancelling.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/task/life.h"
#include "python/task/outcome.h"
#include "python/task/scheduler.h"
#include "python/task/unhandled.h"
#include "python/wait/wait.h"
#include "python/waitq/waitq.h"

/* The most calls and returns in one turn.  Then other tasks get theirs. */
#define CALLS_IN_A_TURN 100

/* --------------------------------------------------------- resuming generators */

static bool
takes_values(PyObject *iterator)
{
    PyTypeObject *type = Py_TYPE(iterator);
    return type->tp_as_async != NULL && type->tp_as_async->am_send != NULL;
}

/* Returns 1 with a new reference, 0 if there is no such attribute, and -1 if
 * __getattr__ has failed. */
static int
look_up(PyObject *object, const char *name, PyObject **attribute)
{
    *attribute = PyObject_GetAttrString(object, name);
    if (*attribute != NULL) {
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

static int
has(PyObject *object, const char *name)
{
    PyObject *attribute;
    int rc = look_up(object, name, &attribute);
    Py_XDECREF(attribute);
    return rc;
}

/* If the exception that is set is StopIteration, the iterator has returned:
 * clears the exception and returns the value.  Otherwise returns NULL and
 * leaves the exception set. */
static PyObject *
returned_value(void)
{
    if (!PyErr_ExceptionMatches(PyExc_StopIteration)) {
        return NULL;
    }
    PyObject *stop = pystate_take_exception();
    PyObject *value = PyObject_GetAttrString(stop, "value");
    Py_DECREF(stop);
    return value;
}

/* Throws the exception that is set into the iterator.  An iterator without
 * throw() ends with it. */
static PySendResult
throw_into(PyObject *iterator, PyObject **got)
{
    PyObject *exc = pystate_take_exception();
    PyObject *throw;
    *got = NULL;
    switch (look_up(iterator, "throw", &throw)) {
    case 0:
        pystate_restore_exception(exc);
        return PYGEN_ERROR;
    case -1:
        Py_DECREF(exc);
        return PYGEN_ERROR;
    }
    PF_BEGIN_ALONE(iterator);
    *got = PyObject_CallOneArg(throw, exc);
    PF_END_ALONE();
    Py_DECREF(throw);
    Py_DECREF(exc);
    if (*got != NULL) {
        return PYGEN_NEXT;
    }
    *got = returned_value();
    return *got != NULL ? PYGEN_RETURN : PYGEN_ERROR;
}

/* Sends a value into the iterator, or throws the exception that is set if
 * `sent` is NULL.  Without a GIL, generators (of 3.14) do not notice if two
 * threads enter them at once.  So only one thread enters at a time, and the
 * other one gets the error that the generator is executing. */
static inline PySendResult
resume(PyObject *iterator, PyObject *sent, PyObject **got)
{
    if (PF_UNLIKELY(sent == NULL)) {
        return throw_into(iterator, got);
    }
    if (PF_UNLIKELY(sent != Py_None) && !takes_values(iterator)) {
        int rc = has(iterator, "send");
        if (rc < 0) {
            *got = NULL;
            return PYGEN_ERROR;
        }
        if (rc == 0) {
            sent = Py_None; /* a plain iterator cannot receive a value */
        }
    }
    PySendResult how;
    PF_BEGIN_ALONE(iterator);
    how = PyIter_Send(iterator, sent, got);
    PF_END_ALONE();
    return how;
}

/* ----------------------------------------------------- the stack of generators */

static int
push(GrainObject *g, PyObject *iterator)
{
    if (iterator == g->iterator) {
        PyErr_SetString(PyExc_ValueError,
                        "a generator cannot call itself: yield READY to go on "
                        "later");
        return -1;
    }
    GrainCaller *caller = PyMem_Malloc(sizeof(*caller));
    if (caller == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    caller->iterator = g->iterator;
    caller->below = g->callers;
    g->callers = caller;
    g->iterator = Py_NewRef(iterator);
    return 0;
}

/* The innermost generator has ended: removes it. */
static void
pop(GrainObject *g)
{
    PyObject *over = g->iterator;
    GrainCaller *caller = g->callers;
    if (caller == NULL) {
        if (g->name == NULL) {
            g->name = pf_grain_name(g); /* only the generator has the name */
            PyErr_Clear(); /* no memory: the grain goes on without a name */
        }
        g->iterator = NULL;
    } else {
        g->iterator = caller->iterator;
        g->callers = caller->below;
        PyMem_Free(caller);
    }
    Py_XDECREF(over);
}

/* Closes the generators, the innermost first.  If one raises, that is the
 * grain's outcome, as if it had been raised in the outer ones. */
static void
close_all(GrainObject *g)
{
    while (g->iterator != NULL) {
        PyObject *close = NULL;
        if (!PyErr_Occurred()) {
            (void)look_up(g->iterator, "close", &close);
        }
        PyObject *closed = NULL;
        PF_BEGIN_ALONE(g->iterator);
        closed = close == NULL ? NULL : PyObject_CallNoArgs(close);
        PF_END_ALONE();
        Py_XDECREF(close);
        Py_XDECREF(closed);
        PyObject *pending = pystate_take_exception();
        pop(g);
        pystate_restore_exception(pending);
    }
}

/* ------------------------------------------------------ what a grain yields */

static int
refuse_yielded(PyObject *what)
{
    PyErr_Format(PyExc_TypeError,
                 "a grain yields READY, STOPPED, SLEEPING, a number of "
                 "seconds, a predicate, a generator or coroutine to call, a "
                 "Grain, a Fiber, a future, an Event or an operation of a "
                 "Channel, not '%.200s'",
                 Py_TYPE(what)->tp_name);
    return -1;
}

/* Starts a grain that another one has called by yielding it.  The callee joins
 * the same pool or scope, and is cancelled with its caller. */
static int
start_callee(PfThread *t, GrainObject *g, GrainObject *other)
{
    if (pf_grain_prepare(other) < 0 || pf_grain_may_start(other) < 0 ||
        (g->pool != NULL && pf_grain_pool_enter(g->pool, other) < 0)) {
        return -1;
    }
    if (pf_grain_start_in(t->scheduler, g->base, other, g->pool) < 0) {
        pf_grain_pool_leave(other);
        return -1;
    }
    return 0;
}

static bool
is_to_be_called(PyObject *what)
{
    GrainObject *other = (GrainObject *)what;
    return PyObject_TypeCheck(what, pf_grain_type) &&
           other->core.state == PF_NEW && other->pool == NULL;
}

static int
dispatch_grain(PfThread *t, GrainObject *g, GrainObject *other)
{
    if (other == g) {
        PyErr_SetString(pf.fiber_error, "a grain cannot wait for its own end");
        return -1;
    }
    bool calls = is_to_be_called((PyObject *)other);
    if (calls && start_callee(t, g, other) < 0) {
        return -1;
    }
    bool done = other->core.state == PF_DONE;
    if (!done && (other->core.scheduler == NULL ||
                  pf_grain_scheduler(other)->thread != t)) {
        PyErr_SetString(pf.fiber_error,
                        other->core.scheduler == NULL
                            ? "the grain was taken out of its pool: queue() "
                              "it before waiting for it"
                            : "the grain belongs to another thread: wait for "
                              "it there, or use add_done_callback()");
        return -1;
    }
    if (pf_grain_wait_end(g, &other->waiters, done) < 0) {
        return -1;
    }
    g->calls |= calls;
    return 0;
}

static int
dispatch_fiber(PfThread *t, GrainObject *g, FiberObject *other)
{
    bool done = other->core.state == PF_DONE;
    if (!done && pf_wait_refuse_join(t, other) < 0) {
        return -1;
    }
    return pf_grain_wait_end(g, &other->waiters, done);
}

static bool
is_number(PyObject *what)
{
    PyNumberMethods *number = Py_TYPE(what)->tp_as_number;
    return !PyBool_Check(what) && number != NULL && number->nb_float != NULL;
}

/* Makes the grain wait for what was yielded.  Returns 0, or -1 with an
 * exception to throw into the grain. */
static int
dispatch_wait(PfThread *t, GrainObject *g, PyObject *what)
{
    if (PyFloat_CheckExact(what)) {
        return pf_grain_sleep(g, what);
    }
    if (PyObject_TypeCheck(what, pf_grain_type)) {
        return dispatch_grain(t, g, (GrainObject *)what);
    }
    if (PyObject_TypeCheck(what, pf_task_fiber_type)) {
        return dispatch_fiber(t, g, (FiberObject *)what);
    }
    if (what == pf_facade.sleeping) {
        return pf_grain_wait_unpark(g);
    }
    if (is_number(what)) {
        return pf_grain_sleep(g, what);
    }
    if (pf_event_is(what)) {
        return pf_grain_wait_event(g, what);
    }
    if (pf_channel_is_case(what)) {
        return pf_grain_wait_case(g, what);
    }
    int future = has(what, "add_done_callback");
    if (future != 0) {
        return future < 0 ? -1 : pf_grain_wait_future(g, what);
    }
    if (PyCallable_Check(what)) {
        return pf_grain_wait_answer(g);
    }
    return refuse_yielded(what);
}

static bool
is_a_turn(PyObject *what)
{
    return what == Py_None || what == pf_facade.ready;
}

/* Deals with what a cancelled grain has yielded.  The grain's next turn raises
 * Cancelled, and comes at once unless the grain has swallowed that too often.
 * Then the grain waits for a while, to let others run, and even gets what it
 * waits for if that arrives meanwhile.  (As park_cancelled() in wait.c.)
 */
static int
dispatch_cancelled(PfThread *t, GrainObject *g, PyObject *what)
{
    int64_t delay = pf_cancelling_delay(t, PF_TASK(g));
    if (PF_LIKELY(delay == 0)) {
        pf_grain_ready(g);
        return 0;
    }
    bool waits =
        !is_a_turn(what) && !is_number(what) && !is_to_be_called(what);
    if (delay < 0 || (waits && dispatch_wait(t, g, what) < 0)) {
        return -1;
    }
    return waits && g->core.state != PF_PARKED
               ? 0
               : pf_grain_wait_slowly(g, delay);
}

/* The grain has been cancelled by code that ran on the way to its wait, when
 * the grain could not be woken: wakes it now. */
static void
cancelled_meanwhile(GrainObject *g)
{
    if (g->core.state != PF_PARKED) {
        return;
    }
    if (!g->calls) {
        pf_grain_wake(g, PF_WAKE_CANCEL);
    } else if (g->cancel_called) {
        pf_grain_cancel_now((GrainObject *)g->yielded,
                            pf_task_rare(PF_TASK(g))->cancel);
    }
}

/* Does what was yielded.  Returns 0, or -1 with an exception to throw into the
 * grain. */
int
pf_grain_dispatch(PfThread *t, GrainObject *g, PyObject *what)
{
    if (PF_UNLIKELY(g->under_cancel)) {
        return dispatch_cancelled(t, g, what);
    }
    if (PF_LIKELY(is_a_turn(what))) {
        pf_grain_ready(g);
        return 0;
    }
    int rc = dispatch_wait(t, g, what);
    if (PF_UNLIKELY(g->under_cancel)) {
        cancelled_meanwhile(g);
    }
    return rc;
}

/* ------------------------------------------------------------------- the end */

/* Drops what the grain no longer needs once its outcome has been recorded. */
static void
let_go(GrainObject *g)
{
    Py_CLEAR(g->yielded);
    Py_CLEAR(g->permit_value);
    if (g->rare != NULL) {
        Py_CLEAR(g->rare->cancel);
    }
    if (g->outcome == PF_OUTCOME_OK) {
        Py_CLEAR(g->context); /* else pf_outcome_drop() needs it */
    }
}

/* Ends the grain with `result` (stolen), or if that is NULL with the exception
 * that is set.  The generators are gone, and the wait is dismantled. */
void
pf_grain_finish(PfThread *t, GrainObject *g, PyObject *result)
{
    pf_thread_no_switch_begin(t,
                              "while a grain ends (in a done-callback, say)");
    Py_INCREF(g);
    pf_task_record_outcome(PF_TASK(g), result);
    let_go(g);
    pf_task_run_callbacks(PF_TASK(g));
    if (g->base != NULL) {
        pf_scope_child_done(PF_TASK(g));
    }
    pf_waitq_grant_all(&g->waiters);
    SchedulerObject *s =
        g->core.scheduler != NULL ? pf_grain_scheduler(g) : t->scheduler;
    if (g->outcome == PF_OUTCOME_FAILED && s != NULL) {
        pf_task_failed(s, PF_TASK(g));
    }
    if (g->core.scheduler != NULL) {
        pf_grain_detach(g);
    }
    if (g->pool != NULL) {
        GrainPoolObject *pool = g->pool;
        g->pool = NULL;
        pf_grain_pool_ended(pool, g);
        Py_DECREF(pool);
    }
    Py_DECREF(g);
    pf_thread_no_switch_end(t);
}

/* Closes the generators in the grain's context, while that of other code is
 * current. */
static void
close_outside(PfThread *t, GrainObject *g)
{
    pystate_swap_context(t->tstate, &g->context);
    close_all(g);
    pystate_swap_context(t->tstate, &g->context);
}

/* Ends a grain that is suspended: closes its generators; the outcome is a
 * cancellation. */
void
pf_grain_abandon(PfThread *t, GrainObject *g)
{
    PyObject *pending = pystate_take_exception();
    pf_thread_no_switch_begin(t, "while an abandoned grain is closed");
    bool queued = g->core.state == PF_READY;
    g->core.state = PF_RUNNING; /* for code that runs meanwhile */
    if (g->core.scheduler != NULL) {
        if (queued) {
            pf_queue_remove(&g->core.scheduler->ready, &g->core);
        }
        pf_grain_unwait(g);
    }
    g->runner = NULL;
    g->on_hold = false;
    pf_grain_pool_forget(g);
    if (!g->entered) {
        pop(g); /* not even the function has been called */
    }
    close_outside(t, g);
    if (!PyErr_Occurred()) {
        if (g->under_cancel) {
            pf_grain_raise_cancelled(g);
        } else {
            PyErr_SetNone(pf.fiber_exit);
        }
    }
    pf_grain_finish(t, g, NULL);
    pf_thread_no_switch_end(t);
    pystate_restore_exception(pending);
}

/* Ends a grain that cannot continue, with the exception that is set. */
void
pf_grain_fail(PfThread *t, GrainObject *g)
{
    PyObject *exc = pystate_take_exception();
    g->core.state = PF_RUNNING;
    pf_grain_unwait(g);
    pystate_restore_exception(exc);
    close_outside(t, g);
    pf_grain_finish(t, g, NULL);
}

void
pf_grain_no_turn(SchedulerObject *s, pf_task *task)
{
    pf_grain_fail(s->thread, pf_grain_of(task));
}

/* ------------------------------------------------------------------- one turn */

static void
keep_yielded(GrainObject *g, PyObject *what)
{
    if (g->yielded == what) {
        Py_DECREF(what);
    } else {
        Py_XSETREF(g->yielded, what);
    }
}

/* Lets the grain's next turn begin with `value` (stolen), or with the
 * exception that is set. */
static void
go_on_later(GrainObject *g, PyObject *value)
{
    if (value == NULL) {
        value = pystate_take_exception();
        g->throws = true;
    }
    Py_XSETREF(g->value, value);
    pf_grain_ready(g);
}

/* Returns the generator to call when `what` is yielded: a new reference.
 * NULL, without an exception, if it is something else. */
static PyObject *
callee(PyObject **what)
{
    PyObject *asked = *what;
    if (Py_TYPE(asked) == pf_grain_until_type) {
        asked = pf_until_what(asked);
        Py_SETREF(*what, Py_NewRef(asked));
    }
    if (PyGen_CheckExact(asked) || PyCoro_CheckExact(asked)) {
        return Py_NewRef(asked);
    }
    return NULL;
}

typedef enum { TURN_OVER, TURN_CALLS, GRAIN_STOPS, GRAIN_OVER } Turn;

/* Does what the innermost generator has yielded (stolen). */
static Turn
yielded(PfThread *t, GrainObject *g, PyObject *what)
{
    if (PF_LIKELY(what == pf_facade.ready && !g->under_cancel)) {
        keep_yielded(g, what);
        pf_grain_ready(g);
        return TURN_OVER;
    }
    PyObject *called = callee(&what);
    int rc = called != NULL ? push(g, called) : 0;
    Py_XDECREF(called);
    keep_yielded(g, what);
    if (called != NULL && rc == 0) {
        return TURN_CALLS;
    }
    if (what == pf_facade.stopped) {
        return GRAIN_STOPS;
    }
    if (rc < 0 || pf_grain_dispatch(t, g, what) < 0) {
        go_on_later(g, NULL);
    }
    return TURN_OVER;
}

/* The innermost generator has returned, or an exception has left it.  Returns
 * false if it was the outermost. */
static bool
back_in_caller(GrainObject *g)
{
    PyObject *pending = pystate_take_exception();
    pop(g);
    pystate_restore_exception(pending);
    return g->iterator != NULL;
}

/* A scope belongs to the fiber that entered it.  Here that is the runner,
 * which goes on to step other grains. */
static void
refuse_open_scope(void)
{
    PyErr_SetString(pf.fiber_error,
                    "a grain cannot yield inside of a CancelScope, TaskGroup "
                    "or timeout(): enter it around calls that wait, or use a "
                    "fiber");
}

/* Steps until the turn is over.  First sends *value, or throws the exception
 * that is set if that is NULL.  In the end *value is what the grain has
 * returned. */
static Turn
run_turn(PfThread *t, GrainObject *g, PyObject **value)
{
    FiberObject *runner = g->runner;
    for (int calls = 0; calls < CALLS_IN_A_TURN; calls++) {
        PyObject *got;
        g->runner = runner;
        PySendResult how = resume(g->iterator, *value, &got);
        Py_XDECREF(*value);
        *value = got;
        if (PF_LIKELY(how == PYGEN_NEXT)) {
            *value = NULL;
            if (PF_UNLIKELY(runner->scope != NULL)) {
                Py_DECREF(got);
                refuse_open_scope();
                continue;
            }
            Turn turn = yielded(t, g, got);
            if (PF_LIKELY(turn != TURN_CALLS)) {
                return turn;
            }
            *value = Py_NewRef(Py_None);
        } else if (!back_in_caller(g)) {
            return GRAIN_OVER;
        }
    }
    go_on_later(g, *value);
    return TURN_OVER;
}

void
pf_grain_step(PfThread *t, GrainObject *g)
{
    FiberObject *runner = CURRENT(t);
    runner->args = Py_NewRef((PyObject *)g); /* for grains.current() */
    pystate_swap_context(t->tstate, &g->context);
    g->core.state = PF_RUNNING;
    PyObject *value = pf_grain_take_value(g);
    g->runner = runner;
    if (PF_UNLIKELY(g->base != NULL || g->under_cancel)) {
        pf_grain_enter_step(runner, g);
    }
    if (PF_UNLIKELY(value == NULL) && !PyErr_Occurred()) {
        value = PyObject_CallMethodNoArgs(g->yielded, pf_grain.s_result);
    }
    Turn turn = GRAIN_STOPS;
    if (PF_LIKELY(value != pf_facade.stopped)) { /* a predicate's answer? */
        turn = run_turn(t, g, &value);
    }
    if (PF_UNLIKELY(turn == GRAIN_STOPS)) {
        Py_XDECREF(value);
        close_all(g);
        value = PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    if (PF_UNLIKELY(turn > TURN_CALLS) && value == NULL) {
        pf_outcome_close_frames();
    }
    pystate_swap_context(t->tstate, &g->context);
    if (PF_UNLIKELY(runner->base != NULL)) {
        pf_grain_leave_step(runner);
    }
    if (PF_UNLIKELY(turn > TURN_CALLS)) {
        g->runner = NULL;
        pf_grain_finish(t, g, value);
    } else if (PF_UNLIKELY(g->leaves)) {
        pf_grain_leave(g);
    }
    runner->args = NULL;
    Py_DECREF(g);
}
