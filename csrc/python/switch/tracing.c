/* Trace functions that belong to fibers: see tracing.h.
 *
 * A fiber's trace function is in the thread state only while the thread's
 * trace function is the one under which the fiber began. So sys.settrace() on
 * the thread's own stack, or in a fiber without a separate trace function,
 * still reaches all fibers of the thread, and sys.settrace(None) anywhere ends
 * tracing for all.
 */
#include "python/switch/tracing.h"

#include "python/core/facade.h"
#include "python/core/tstate.h"
#include "python/task/explore.h"

struct PfTrace {
    /* The trace function that is not in the thread state: the thread's while
     * the fiber runs and uses its own, otherwise the fiber's. Owns a reference
     * to the object. */
    Py_tracefunc function;
    PyObject *object;
    bool in_use;     /* the fiber's is in the thread state */
    bool over;       /* tracing ended while `in_use`: `object` is the
                        thread's */
    PyObject *under; /* the thread's object when the fiber began */
    PyObject *hook;  /* of threading.settrace(): it made the fiber's */
    PfTrace *next;   /* links spare ones */
    /* pf_tracing_own(): only this, which is the thread's while the fiber runs,
     * and otherwise the fiber's, is used. */
    bool own;
    PyTracing tracing;
    PyObject *thrown; /* pf_tracing_throw(): raised soon; or NULL */
};

PyObject *pf_tracing_settrace;   /* constant after import */
PyObject *pf_tracing_setprofile; /* constant after import */

int
pf_tracing_init(void)
{
    pf_tracing_settrace = Py_XNewRef(PySys_GetObject("settrace"));
    pf_tracing_setprofile = Py_XNewRef(PySys_GetObject("setprofile"));
    if (pf_tracing_settrace == NULL || pf_tracing_setprofile == NULL) {
        PyErr_SetString(PyExc_ImportError, "sys.settrace() is missing");
        return -1;
    }
    return 0;
}

static inline void
leave(PyThreadState *ts, PfTrace *trace)
{
    if (PF_UNLIKELY(trace->own)) {
        pystate_exchange_tracing(ts, &trace->tracing);
        return;
    }
    if (trace->in_use && pystate_traced(ts)) {
        pystate_exchange_trace(ts, &trace->function, &trace->object);
    } else if (trace->in_use) {
        trace->over = true;
    }
    trace->in_use = false;
}

/* The interpreter's pending call.  If another fiber runs by now, the next
 * switch to the target asks for another call.  In a no-switch region the
 * exception would end pyfiber's own code, or a finalizer, where it is only
 * reported: so the call comes again. */
static int
raise_thrown(void *ignored)
{
    (void)ignored;
    PfThread *t = pf_thread_current;
    PfTrace *trace = t == NULL ? NULL : CURRENT(t)->saved->trace;
    PyObject *exc = trace == NULL ? NULL : trace->thrown;
    if (exc == NULL) {
        return 0;
    }
    if (t->no_switch != 0) {
        (void)Py_AddPendingCall(raise_thrown, NULL);
        return 0;
    }
    trace->thrown = NULL;
    PyErr_SetNone(exc);
    Py_DECREF(exc);
    return -1;
}

static inline void
enter(PyThreadState *ts, PfTrace *trace)
{
    if (PF_UNLIKELY(trace->thrown != NULL)) {
        (void)Py_AddPendingCall(raise_thrown, NULL);
    }
    if (PF_UNLIKELY(trace->own)) {
        pystate_exchange_tracing(ts, &trace->tracing);
        return;
    }
    if (pystate_traced(ts) && pystate_trace_object(ts) == trace->under &&
        !trace->over) {
        pystate_exchange_trace(ts, &trace->function, &trace->object);
        trace->in_use = true;
    }
}

void
pf_tracing_switch(PyThreadState *ts, PfTrace *from, PfTrace *to)
{
    if (from != NULL) {
        leave(ts, from);
    }
    if (to != NULL) {
        enter(ts, to);
    }
}

static void
trace_free(PfTrace *trace)
{
    PyObject *object = trace->object, *under = trace->under;
    PyObject *hook = trace->hook, *thrown = trace->thrown;
    PyMem_Free(trace);
    Py_XDECREF(object);
    Py_XDECREF(under);
    Py_XDECREF(hook);
    Py_XDECREF(thrown);
}

int
pf_tracing_traverse(const PfTrace *trace, visitproc visit, void *arg)
{
    if (trace != NULL) {
        Py_VISIT(trace->object);
        Py_VISIT(trace->under);
        Py_VISIT(trace->hook);
        Py_VISIT(trace->tracing.trace_object);
        Py_VISIT(trace->tracing.profile_object);
        Py_VISIT(trace->thrown);
    }
    return 0;
}

void
pf_tracing_free_spares(PfThread *t)
{
    PfTrace *trace;
    while ((trace = t->spare_traces) != NULL) {
        t->spare_traces = trace->next;
        trace_free(trace);
    }
}

/* ------------------------------------------------- as a thread has it */

int
pf_tracing_own(PfThread *t)
{
    PyState *state = CURRENT(t)->saved;
    if (state->trace != NULL && state->trace->own) {
        return 0;
    }
    PfTrace *trace = PyMem_Calloc(1, sizeof *trace);
    if (trace == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    PfTrace *before = state->trace;
    if (before != NULL) {
        leave(t->tstate, before);
        trace->thrown = before->thrown;
        before->thrown = NULL;
    }
    trace->own = true;
    state->trace = trace;
    pystate_exchange_tracing(t->tstate, &trace->tracing);
    if (before != NULL) {
        trace_free(before);
    }
    return 0;
}

/* Ends the tracing that is in force, by the interpreter's functions, which
 * count.  An audit hook may refuse: then the count is too high, and code stays
 * instrumented. */
static void
stop(void)
{
    PyObject *const functions[] = {pf_tracing_settrace, pf_tracing_setprofile};
    for (int i = 0; i < 2; i++) {
        Py_XDECREF(PyObject_CallOneArg(functions[i], Py_None));
        PyErr_Clear();
    }
}

/* Forgets `tracing` of a fiber or thread. */
static void
forget(PyThreadState *ts, PyTracing *tracing)
{
    if (tracing->trace != NULL || tracing->profile != NULL) {
        pystate_exchange_tracing(ts, tracing);
        stop();
        pystate_exchange_tracing(ts, tracing);
    }
    Py_CLEAR(tracing->trace_object);
    Py_CLEAR(tracing->profile_object);
}

void
pf_tracing_disown(PfThread *t)
{
    PyState *state = CURRENT(t)->saved;
    PfTrace *trace = state->trace;
    if (trace == NULL) {
        return;
    }
    if (trace->own) {
        forget(t->tstate, &trace->tracing);
    }
    if (trace->thrown != NULL) {
        (void)PyThreadState_SetAsyncExc(PyThread_get_thread_ident(),
                                        trace->thrown);
    }
    state->trace = NULL;
    trace_free(trace);
}

bool
pf_tracing_is_own(const PfTrace *trace)
{
    return trace != NULL && trace->own;
}

int
pf_tracing_set(PfThread *t, PfTrace *trace, PyObject *setter,
               PyObject *function)
{
    pystate_exchange_tracing(t->tstate, &trace->tracing);
    PyObject *done = PyObject_CallOneArg(setter, function);
    pystate_exchange_tracing(t->tstate, &trace->tracing);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* A record that changes no trace function. */
static PfTrace *
trace_new_plain(void)
{
    PfTrace *trace = PyMem_Calloc(1, sizeof *trace);
    if (trace == NULL) {
        return (PfTrace *)PyErr_NoMemory();
    }
    trace->over = true;
    return trace;
}

int
pf_tracing_throw(PfThread *t, FiberObject *fiber, PyObject *exc)
{
    PyState *state = fiber->saved;
    if (state->trace == NULL && (state->trace = trace_new_plain()) == NULL) {
        return -1;
    }
    PyObject *before = state->trace->thrown;
    state->trace->thrown = Py_XNewRef(exc);
    if (CURRENT(t) == fiber) {
        (void)Py_AddPendingCall(raise_thrown, NULL);
    }
    Py_XDECREF(before);
    return 0;
}

/* The fiber has ended. */
static void
end_own(PfThread *t, PfTrace *trace)
{
    PyObject *exc = pystate_take_exception();
    pf_thread_no_switch_begin(t, "while a thread stops tracing");
    pystate_exchange_tracing(t->tstate, &trace->tracing);
    forget(t->tstate, &trace->tracing);
    trace_free(trace);
    pf_thread_no_switch_end(t);
    pystate_restore_exception(exc);
}

/* ------------------------------------------------- by threading.settrace() */

/* Returns what threading.settrace() was given, or None: a new reference; or
 * NULL with an exception. The call is hidden from the thread's trace function.
 */
static PyObject *
thread_hook(PyThreadState *ts)
{
    PyThreadState_EnterTracing(ts);
    PyObject *hook = PyObject_CallNoArgs(pf_facade.trace_hook);
    PyThreadState_LeaveTracing(ts);
    return hook;
}

/* Lets `hook` trace this fiber instead of the thread's trace function. `hook`
 * is stolen. NULL with an exception. */
static PfTrace *
trace_new(PyThreadState *ts, PyObject *hook)
{
    PfTrace *trace = PyMem_Calloc(1, sizeof *trace);
    if (trace == NULL) {
        Py_DECREF(hook);
        return (PfTrace *)PyErr_NoMemory();
    }
    trace->function = pystate_trace_function(ts);
    trace->object = Py_XNewRef(pystate_trace_object(ts));
    trace->under = Py_XNewRef(pystate_trace_object(ts));
    trace->hook = hook;
    trace->in_use = true;
    PyObject *done = PyObject_CallOneArg(pf_tracing_settrace, hook);
    if (done == NULL) {
        trace_free(trace);
        return NULL;
    }
    Py_DECREF(done);
    if (pf_explore_traced() < 0) {
        PyErr_WriteUnraisable(hook);
    }
    return trace;
}

/* Takes the trace function of a fiber that has ended, if it was made by the
 * same hook under the same trace function of the thread. Tools keep what they
 * make for each thread, so without reuse that would grow with each fiber. */
static PfTrace *
take_spare(PfThread *t, PyObject *hook)
{
    PfTrace *trace = t->spare_traces;
    if (trace != NULL && trace->hook == hook &&
        trace->under == pystate_trace_object(t->tstate)) {
        t->spare_traces = trace->next;
        enter(t->tstate, trace);
        return trace;
    }
    pf_tracing_free_spares(t);
    return NULL;
}

void
pf_tracing_begin_slow(PfThread *t, FiberObject *self)
{
    PyThreadState *ts = t->tstate;
    if (pf_fiber_kind(self)->is_thread) {
        pf_thread_no_switch_begin(t, "while a thread gets a trace function");
        if (pf_tracing_own(t) < 0 || pf_explore_traced() < 0) {
            PyErr_WriteUnraisable((PyObject *)self);
        }
        pf_thread_no_switch_end(t);
        return;
    }
    if (pystate_in_tracer(ts) || pf_facade.trace_hook == NULL) {
        return;
    }
    pf_thread_no_switch_begin(t, "while a fiber gets its trace function");
    PyObject *hook = thread_hook(ts);
    if (hook == Py_None || !pystate_traced(ts)) {
        Py_XDECREF(hook);
    } else if (hook != NULL) {
        PfTrace *trace = take_spare(t, hook);
        if (trace != NULL) {
            Py_DECREF(hook);
        } else if (pystate_traced(ts)) {
            trace = trace_new(ts, hook);
        } else {
            Py_DECREF(hook);
        }
        self->saved->trace = trace;
    }
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    pf_thread_no_switch_end(t);
}

void
pf_tracing_end_slow(PfThread *t, FiberObject *self)
{
    PfTrace *trace = self->saved->trace;
    self->saved->trace = NULL;
    if (trace->own) {
        end_own(t, trace);
        return;
    }
    bool spare = trace->in_use && trace->thrown == NULL;
    leave(t->tstate, trace);
    if (spare && !trace->over && trace->object != NULL) {
        trace->next = t->spare_traces;
        t->spare_traces = trace;
        return;
    }
    PyObject *exc = pystate_take_exception();
    pf_thread_no_switch_begin(t,
                              "while a fiber ends (in a done-callback, say)");
    trace_free(trace);
    pf_thread_no_switch_end(t);
    pystate_restore_exception(exc);
}
