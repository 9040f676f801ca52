/* A C extension that uses pyfiber's C API: an example to copy from, and what
 * tests/capi/test_c_api_extension.py compiles and calls.
 *
 * The first part shows fibers in C that wait for C threads; the threads know
 * nothing of Python and never take the GIL.  The second part shows contexts:
 * C coroutines without Python.  The last part calls every function of the
 * table with what the test gives it.
 */
#include <pyfiber.h>

#include <fenv.h>
#include <pythread.h>
#include <string.h>

/* --------------------------------------------------------------- C threads */

/* Work for a C thread, and how to wait for its end.  (PyThread_... is the
 * system's own threads under a portable name: such a thread has no Python
 * thread state.) */
typedef struct Job {
    PyObject *fiber; /* a reference, for as long as the thread may use it */
    PyThread_type_lock done;
    PyThread_type_lock never; /* to sleep on */
    long microseconds;
    long times;
} Job;

static void
pause_thread(Job *job, long microseconds)
{
    if (microseconds > 0) {
        PyThread_acquire_lock_timed(job->never, microseconds, 0);
    }
}

static void
wake_many_times(void *arg)
{
    Job *job = (Job *)arg;
    pause_thread(job, job->microseconds);
    for (long i = 0; i < job->times; i++) {
        PyFiber_UnparkNoGIL(job->fiber);
    }
    PyThread_release_lock(job->done);
}

static void
free_job(Job *job)
{
    Py_CLEAR(job->fiber);
    if (job->done != NULL) {
        PyThread_free_lock(job->done);
    }
    if (job->never != NULL) {
        PyThread_free_lock(job->never);
    }
    PyMem_Free(job);
}

static Job *
new_job(PyObject *fiber, long microseconds, long times)
{
    Job *job = (Job *)PyMem_Calloc(1, sizeof(Job));
    if (job == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    job->fiber = Py_NewRef(fiber);
    job->microseconds = microseconds;
    job->times = times;
    job->done = PyThread_allocate_lock();
    job->never = PyThread_allocate_lock();
    if (job->done == NULL || job->never == NULL) {
        free_job(job);
        PyErr_NoMemory();
        return NULL;
    }
    PyThread_acquire_lock(job->done, WAIT_LOCK);
    PyThread_acquire_lock(job->never, WAIT_LOCK);
    return job;
}

static Job *
start_job(PyObject *fiber, long microseconds, long times,
          void (*function)(void *))
{
    Job *job = new_job(fiber, microseconds, times);
    if (job != NULL && PyThread_start_new_thread(function, job) ==
                           PYTHREAD_INVALID_THREAD_ID) {
        free_job(job);
        PyErr_SetString(PyExc_RuntimeError, "no thread could be started");
        return NULL;
    }
    return job;
}

static void
join_job(Job *job)
{
    Py_BEGIN_ALLOW_THREADS PyThread_acquire_lock(job->done, WAIT_LOCK);
    Py_END_ALLOW_THREADS PyThread_release_lock(job->done);
    free_job(job);
}

/* -------------------------------------------------- a fiber woken by a thread */

/* The body of a fiber: start a C thread, wait until it wakes us.  Hold says
 * that there is something to wait for. */
static PyObject *
wait_for_thread(void *arg)
{
    long microseconds = *(long *)arg;
    PyObject *self = PyFiber_Current();
    if (self == NULL) {
        return NULL;
    }
    PyObject *woken = NULL;
    PyFiber_Hold(self);
    Job *job = start_job(self, microseconds, 1, wake_many_times);
    if (job != NULL) {
        woken = PyFiber_Park(PYFIBER_FOREVER);
        join_job(job); /* also when we were cancelled */
    }
    PyFiber_Release(self);
    Py_DECREF(self);
    return woken;
}

/* woken_by_thread(microseconds) -> a started fiber. */
static PyObject *
woken_by_thread(PyObject *module, PyObject *arg)
{
    (void)module;
    long microseconds = PyLong_AsLong(arg);
    if (microseconds == -1 && PyErr_Occurred()) {
        return NULL;
    }
    long *box = (long *)PyMem_Malloc(sizeof(long));
    if (box == NULL) {
        return PyErr_NoMemory();
    }
    *box = microseconds;
    PyObject *fiber = PyFiber_NewC(wait_for_thread, box, PyMem_Free);
    if (fiber == NULL) {
        PyMem_Free(box);
        return NULL;
    }
    if (PyFiber_Start(fiber) < 0) {
        Py_DECREF(fiber);
        return NULL;
    }
    return fiber;
}

/* ------------------------------------------------------- a storm of wake-ups */

/* Items that threads produce for one fiber. */
typedef struct Mailbox {
    PyThread_type_lock lock;
    long items;
    PyObject *fiber;
} Mailbox;

static Mailbox mailbox; /* the test uses it once at a time */

static void
put_items(void *arg)
{
    Job *job = (Job *)arg;
    for (long i = 0; i < job->times; i++) {
        PyThread_acquire_lock(mailbox.lock, WAIT_LOCK);
        mailbox.items++;
        PyThread_release_lock(mailbox.lock);
        PyFiber_UnparkNoGIL(job->fiber);
    }
    PyThread_release_lock(job->done);
}

static long
take_items(void)
{
    PyThread_acquire_lock(mailbox.lock, WAIT_LOCK);
    long items = mailbox.items;
    mailbox.items = 0;
    PyThread_release_lock(mailbox.lock);
    return items;
}

/* Take `expected` items; every batch after a wake-up.  One lost wake-up and
 * this would wait for ever. */
static int
receive(long expected)
{
    while (expected > 0) {
        PyObject *woken = PyFiber_Park(PYFIBER_FOREVER);
        if (woken == NULL) {
            return -1;
        }
        Py_DECREF(woken);
        expected -= take_items();
    }
    return 0;
}

#define MOST_THREADS 16

/* storm(threads, times) -> items received; called by a scheduled fiber. */
static PyObject *
storm(PyObject *module, PyObject *args)
{
    (void)module;
    int threads;
    long times;
    Job *jobs[MOST_THREADS];
    if (!PyArg_ParseTuple(args, "il", &threads, &times)) {
        return NULL;
    }
    PyObject *self = PyFiber_Current();
    if (self == NULL || threads > MOST_THREADS) {
        Py_XDECREF(self);
        return NULL;
    }
    mailbox.lock = PyThread_allocate_lock();
    mailbox.items = 0;
    PyFiber_Hold(self);
    int started = 0;
    while (started < threads &&
           (jobs[started] = start_job(self, 0, times, put_items)) != NULL) {
        started++;
    }
    int rc = started == threads ? receive(threads * times) : -1;
    while (started > 0) {
        join_job(jobs[--started]);
    }
    PyFiber_Release(self);
    PyThread_free_lock(mailbox.lock);
    Py_DECREF(self);
    return rc < 0 ? NULL : PyLong_FromLong(threads * times);
}

/* --------------------------------------------------- a variable that is lent */

static long *lent; /* where others write to, while the fiber waits */

/* lend_variable() -> what write_to_lent() has written; called by a scheduled
 * fiber with a stack of its own. */
static PyObject *
lend_variable(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    long variable = 0;
    lent = &variable;
    PyObject *woken = PyFiber_Park(PYFIBER_FOREVER);
    lent = NULL;
    Py_XDECREF(woken);
    return woken == NULL ? NULL : PyLong_FromLong(variable);
}

static PyObject *
write_to_lent(PyObject *module, PyObject *number)
{
    (void)module;
    *lent = PyLong_AsLong(number);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* ------------------------------------------------------------------- contexts */

static void *
count_up(void *arg, void *value)
{
    long *limit = (long *)arg;
    long sum = 0;
    (void)value;
    for (long i = 0; i < *limit; i++) {
        void *gift = (void *)&i;
        sum += i;
        if (PyFiber_ContextSwitch(PyFiber_ContextMain(), &gift) != 0) {
            return NULL;
        }
    }
    *limit = sum;
    return NULL;
}

/* context_generate(n) -> [0, 1, ... n-1], made by a C coroutine. */
static PyObject *
context_generate(PyObject *module, PyObject *arg)
{
    (void)module;
    long n = PyLong_AsLong(arg), limit = n;
    PyFiber_Context *context;
    PyObject *list = PyList_New(0);
    int error = PyFiber_ContextCreate(&context, count_up, &limit, 64 << 10);
    while (list != NULL && error == 0) {
        void *value = NULL;
        error = PyFiber_ContextSwitch(context, &value);
        if (error != 0 || PyFiber_ContextIsDone(context)) {
            break;
        }
        PyObject *number = PyLong_FromLong(*(long *)value);
        if (number == NULL || PyList_Append(list, number) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(number);
    }
    if (error == 0) {
        error = PyFiber_ContextDestroy(context);
    }
    if (list != NULL && (error != 0 || limit != n * (n - 1) / 2)) {
        Py_CLEAR(list);
        PyErr_Format(PyExc_AssertionError, "error %d, sum %ld", error, limit);
    }
    return list;
}

/* A context's rounding mode is its own. */
static void *
round_up(void *arg, void *value)
{
    (void)value;
    fesetround(FE_UPWARD);
    *(int *)arg = fegetround();
    PyFiber_ContextSwitch(PyFiber_ContextMain(), NULL);
    *(int *)arg = fegetround();
    return NULL;
}

/* context_rounding() -> does each side keep its rounding mode? */
static PyObject *
context_rounding(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    int before = fegetround(), there = -1;
    PyFiber_Context *context;
    if (PyFiber_ContextCreate(&context, round_up, &there, 0) != 0) {
        return PyErr_NoMemory();
    }
    PyFiber_ContextSwitch(context, NULL);
    int kept = fegetround() == before && there == FE_UPWARD;
    there = -1;
    PyFiber_ContextSwitch(context, NULL);
    kept = kept && fegetround() == before && there == FE_UPWARD;
    PyFiber_ContextDestroy(context);
    return PyBool_FromLong(kept);
}

static void *
give_back(void *arg, void *value)
{
    (void)arg;
    return value;
}

/* a -> b -> c; each finished one goes back to whoever resumed it. */
typedef struct Chain {
    PyFiber_Context *next;
    int *trace;
    int number;
} Chain;

static int trace_length;

static void *
link_of_chain(void *arg, void *value)
{
    Chain *self = (Chain *)arg;
    self->trace[trace_length++] = self->number;
    if (self->next != NULL) {
        PyFiber_ContextSwitch(self->next, &value);
    }
    self->trace[trace_length++] = -self->number;
    return value;
}

/* context_chain() -> the order in which three of them begin and end. */
static PyObject *
context_chain(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    int trace[6] = {0};
    Chain links[3];
    PyFiber_Context *contexts[3];
    trace_length = 0;
    for (int i = 2; i >= 0; i--) {
        links[i].next = i == 2 ? NULL : contexts[i + 1];
        links[i].trace = trace;
        links[i].number = i + 1;
        if (PyFiber_ContextCreate(&contexts[i], link_of_chain, &links[i], 0) !=
            0) {
            return PyErr_NoMemory();
        }
    }
    void *value = trace;
    PyFiber_ContextSwitch(contexts[0], &value);
    if (value != trace) {
        trace[0] = 1000;
    }
    for (int i = 0; i < 3; i++) {
        PyFiber_ContextDestroy(contexts[i]);
    }
    return Py_BuildValue("[iiiiii]", trace[0], trace[1], trace[2], trace[3],
                         trace[4], trace[5]);
}

static PyFiber_Context *foreign;
static int from_elsewhere[4];

static void
misuse_elsewhere(void *arg)
{
    Job *job = (Job *)arg;
    from_elsewhere[0] = PyFiber_ContextSwitch(foreign, NULL);
    from_elsewhere[1] = PyFiber_ContextDestroy(foreign);
    from_elsewhere[2] = PyFiber_ContextIsDone(foreign);
    from_elsewhere[3] = PyFiber_ContextCurrent() == PyFiber_ContextMain();
    PyThread_release_lock(job->done);
}

static void *
destroy_oneself(void *arg, void *value)
{
    (void)arg, (void)value;
    *(int *)arg = PyFiber_ContextDestroy(PyFiber_ContextCurrent());
    return NULL;
}

/* context_errors() -> {what: answer} */
static PyObject *
context_errors(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    PyFiber_Context *c = NULL, *d = NULL;
    int own = 0;
    int no_body = PyFiber_ContextCreate(&c, NULL, NULL, 0);
    int small = PyFiber_ContextCreate(&c, give_back, NULL, 100);
    int huge = PyFiber_ContextCreate(&c, give_back, NULL, (size_t)-1 / 2);
    int made = PyFiber_ContextCreate(&c, give_back, NULL, 0);
    made += PyFiber_ContextCreate(&d, destroy_oneself, &own, 0);
    if (made != 0) {
        return PyErr_NoMemory();
    }
    foreign = c;
    Job *job = start_job(Py_None, 0, 0, misuse_elsewhere);
    if (job == NULL) {
        return NULL;
    }
    join_job(job);
    PyFiber_ContextSwitch(c, NULL);
    PyFiber_ContextSwitch(d, NULL);
    int finished = PyFiber_ContextSwitch(c, NULL);
    int to_null = PyFiber_ContextSwitch(NULL, NULL);
    int main = PyFiber_ContextDestroy(PyFiber_ContextMain());
    int null = PyFiber_ContextDestroy(NULL);
    int to_itself = PyFiber_ContextSwitch(PyFiber_ContextMain(), NULL);
    PyFiber_ContextDestroy(c);
    PyFiber_ContextDestroy(d);
    return Py_BuildValue(
        "{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "no body",
        no_body, "small stack", small, "huge stack", huge, "finished",
        finished, "to NULL", to_null, "destroy main", main, "destroy NULL",
        null, "destroy running", own, "to itself", to_itself, "foreign switch",
        from_elsewhere[0], "foreign destroy", from_elsewhere[1],
        "foreign is_done", from_elsewhere[2], "foreign main",
        from_elsewhere[3]);
}

/* context_abandon(n): n contexts, destroyed while suspended. */
static PyObject *
context_abandon(PyObject *module, PyObject *arg)
{
    (void)module;
    long n = PyLong_AsLong(arg);
    for (long i = 0; i < n; i++) {
        long limit = 10;
        PyFiber_Context *context;
        int error = PyFiber_ContextCreate(&context, count_up, &limit, 0);
        if (error == 0) {
            error = PyFiber_ContextSwitch(context, NULL);
        }
        if (error == 0) {
            error = PyFiber_ContextDestroy(context);
        }
        if (error != 0) {
            return PyErr_Format(PyExc_OSError, "error %d", error);
        }
    }
    Py_RETURN_NONE;
}

/* A context that calls a Python function, again and again. */
static void *
call_python(void *arg, void *value)
{
    PyObject *function = (PyObject *)arg;
    (void)value;
    for (;;) {
        void *result = PyObject_CallNoArgs(function);
        if (PyFiber_ContextSwitch(PyFiber_ContextMain(), &result) != 0) {
            return NULL;
        }
    }
}

/* context_call(function, times) -> [function() on another stack, ...] */
static PyObject *
context_call(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *function;
    int times;
    PyFiber_Context *context;
    if (!PyArg_ParseTuple(args, "Oi", &function, &times)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    if (list == NULL ||
        PyFiber_ContextCreate(&context, call_python, function, 1 << 20) != 0) {
        Py_XDECREF(list);
        return PyErr_NoMemory();
    }
    for (int i = 0; list != NULL && i < times; i++) {
        void *result = NULL;
        int error = PyFiber_ContextSwitch(context, &result);
        if (error != 0) {
            PyErr_Format(PyExc_OSError, "error %d", error);
        }
        if (result == NULL || PyList_Append(list, (PyObject *)result) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF((PyObject *)result);
    }
    PyFiber_ContextDestroy(context);
    return list;
}

/* leave_context(): what a context's Python function must not do. */
static PyObject *
leave_context(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    return PyLong_FromLong(PyFiber_ContextSwitch(PyFiber_ContextMain(), NULL));
}

/* ------------------------------------------------- a C function's arguments */

static long destroyed;

static void
count_destroyed(void *arg)
{
    destroyed++;
    Py_DECREF((PyObject *)arg);
}

static PyObject *
call_object(void *arg)
{
    return PyObject_CallNoArgs((PyObject *)arg);
}

static PyObject *
return_null(void *arg)
{
    (void)arg;
    return NULL;
}

static PyObject *
return_both(void *arg)
{
    PyErr_SetString(PyExc_ValueError, "a result and an exception");
    return Py_NewRef((PyObject *)arg);
}

static PyObject *
new_with(PyFiber_Body body, PyObject *arg)
{
    PyObject *fiber = PyFiber_NewC(body, Py_NewRef(arg), count_destroyed);
    if (fiber == NULL) {
        Py_DECREF(arg);
    }
    return fiber;
}

/* new_c(function) -> a fiber whose C function calls it. */
static PyObject *
new_c(PyObject *module, PyObject *function)
{
    (void)module;
    return new_with(call_object, function);
}

static PyObject *
new_c_null(PyObject *module, PyObject *arg)
{
    (void)module;
    return new_with(return_null, arg);
}

static PyObject *
new_c_both(PyObject *module, PyObject *arg)
{
    (void)module;
    return new_with(return_both, arg);
}

static PyObject *
new_c_nothing(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    return PyFiber_NewC(NULL, NULL, NULL);
}

static PyObject *
count_of_destroyed(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    return PyLong_FromLong(destroyed);
}

/* ------------------------------------------------- every function, once over */

static PyObject *
number_or_error(int rc)
{
    return rc < 0 ? NULL : PyLong_FromLong(rc);
}

/* None stands for NULL, since NULL is what C code passes by mistake. */
static PyObject *
null_for_none(PyObject *object)
{
    return object == Py_None ? NULL : object;
}

#define ONE_OBJECT(name, expression)                                          \
    static PyObject *name(PyObject *module, PyObject *a)                      \
    {                                                                         \
        (void)module;                                                         \
        return expression;                                                    \
    }
#define TWO_OBJECTS(name, expression)                                         \
    static PyObject *name(PyObject *module, PyObject *args)                   \
    {                                                                         \
        PyObject *a = NULL, *b = NULL;                                        \
        (void)module;                                                         \
        if (!PyArg_ParseTuple(args, "O|O", &a, &b)) {                         \
            return NULL;                                                      \
        }                                                                     \
        return expression;                                                    \
    }
#define CALL(name, function)                                                  \
    static PyObject *name(PyObject *module, PyObject *args)                   \
    {                                                                         \
        PyObject *a = NULL, *b = NULL, *c = NULL;                             \
        (void)module;                                                         \
        if (!PyArg_ParseTuple(args, "O|OO", &a, &b, &c)) {                    \
            return NULL;                                                      \
        }                                                                     \
        return function(null_for_none(a), b, c);                              \
    }
#define OBJECT_AND_SECONDS(name, expression)                                  \
    static PyObject *name(PyObject *module, PyObject *args)                   \
    {                                                                         \
        PyObject *a;                                                          \
        double seconds = PYFIBER_FOREVER;                                     \
        (void)module;                                                         \
        if (!PyArg_ParseTuple(args, "O|d", &a, &seconds)) {                   \
            return NULL;                                                      \
        }                                                                     \
        return expression;                                                    \
    }

CALL(call_new, PyFiber_New)
CALL(call_run, PyFiber_Run)
CALL(call_spawn, PyFiber_Spawn)
ONE_OBJECT(call_check, PyBool_FromLong(PyFiber_Check(a)))
ONE_OBJECT(call_is_done, number_or_error(PyFiber_IsDone(null_for_none(a))))
ONE_OBJECT(call_own_stack, number_or_error(PyFiber_OwnStack(null_for_none(a))))
ONE_OBJECT(call_start, number_or_error(PyFiber_Start(null_for_none(a))))
ONE_OBJECT(call_unpark_no_gil, PyLong_FromLong(PyFiber_UnparkNoGIL(a)))
ONE_OBJECT(call_hold, PyLong_FromLong(PyFiber_Hold(a)))
ONE_OBJECT(call_release, PyLong_FromLong(PyFiber_Release(a)))
ONE_OBJECT(call_sleep, number_or_error(PyFiber_Sleep(PyFloat_AsDouble(a))))
ONE_OBJECT(call_park, PyFiber_Park(PyFloat_AsDouble(a)))
ONE_OBJECT(call_set_stack_size,
           number_or_error(PyFiber_SetStackSize(PyLong_AsSize_t(a))))
TWO_OBJECTS(call_switch, PyFiber_Switch(null_for_none(a), b))
TWO_OBJECTS(call_throw, PyFiber_Throw(null_for_none(a), b))
TWO_OBJECTS(call_cancel, number_or_error(PyFiber_Cancel(null_for_none(a), b)))
TWO_OBJECTS(call_unpark, number_or_error(PyFiber_Unpark(null_for_none(a), b)))
OBJECT_AND_SECONDS(call_join, number_or_error(PyFiber_Join(a, seconds)))
OBJECT_AND_SECONDS(call_result, PyFiber_Result(a, seconds))

static PyObject *
call_current(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    return PyFiber_Current();
}

static PyObject *
call_yield(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    return number_or_error(PyFiber_Yield());
}

static PyObject *
call_check_cancelled(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    return number_or_error(PyFiber_CheckCancelled());
}

static PyObject *
call_get_stack_size(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    return PyLong_FromSize_t(PyFiber_GetStackSize());
}

/* scheduler_stats(size=...) -> (size filled in, fibers, ready, switches) */
static PyObject *
call_scheduler_stats(PyObject *module, PyObject *args)
{
    (void)module;
    Py_ssize_t size = sizeof(PyFiber_SchedulerStats);
    if (!PyArg_ParseTuple(args, "|n", &size)) {
        return NULL;
    }
    PyFiber_SchedulerStats stats;
    memset(&stats, 0xff, sizeof stats);
    stats.size = (size_t)size;
    if (PyFiber_GetSchedulerStats(&stats) < 0) {
        return NULL;
    }
    return Py_BuildValue("nnnL", (Py_ssize_t)stats.size,
                         (Py_ssize_t)stats.fibers, (Py_ssize_t)stats.ready,
                         (long long)stats.switches);
}

static PyObject *
call_stack_stats(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    PyFiber_StackStats stats;
    stats.size = sizeof stats;
    if (PyFiber_GetStackStats(&stats) < 0) {
        return NULL;
    }
    return Py_BuildValue(
        "{s:n,s:n,s:n,s:n}", "stack_size", (Py_ssize_t)stats.stack_size,
        "live", (Py_ssize_t)stats.live, "slots", (Py_ssize_t)stats.slots,
        "acquired", (Py_ssize_t)stats.acquired);
}

static PyMethodDef methods[] = {
    {"woken_by_thread", woken_by_thread, METH_O, NULL},
    {"storm", storm, METH_VARARGS, NULL},
    {"context_generate", context_generate, METH_O, NULL},
    {"context_rounding", context_rounding, METH_NOARGS, NULL},
    {"context_chain", context_chain, METH_NOARGS, NULL},
    {"context_errors", context_errors, METH_NOARGS, NULL},
    {"context_abandon", context_abandon, METH_O, NULL},
    {"context_call", context_call, METH_VARARGS, NULL},
    {"leave_context", leave_context, METH_NOARGS, NULL},
    {"new_c", new_c, METH_O, NULL},
    {"new_c_null", new_c_null, METH_O, NULL},
    {"new_c_both", new_c_both, METH_O, NULL},
    {"new_c_nothing", new_c_nothing, METH_NOARGS, NULL},
    {"destroyed", count_of_destroyed, METH_NOARGS, NULL},
    {"new", call_new, METH_VARARGS, NULL},
    {"run", call_run, METH_VARARGS, NULL},
    {"spawn", call_spawn, METH_VARARGS, NULL},
    {"check", call_check, METH_O, NULL},
    {"is_done", call_is_done, METH_O, NULL},
    {"own_stack", call_own_stack, METH_O, NULL},
    {"lend_variable", lend_variable, METH_NOARGS, NULL},
    {"write_to_lent", write_to_lent, METH_O, NULL},
    {"start", call_start, METH_O, NULL},
    {"unpark_no_gil", call_unpark_no_gil, METH_O, NULL},
    {"hold", call_hold, METH_O, NULL},
    {"release", call_release, METH_O, NULL},
    {"sleep", call_sleep, METH_O, NULL},
    {"park", call_park, METH_O, NULL},
    {"set_stack_size", call_set_stack_size, METH_O, NULL},
    {"switch", call_switch, METH_VARARGS, NULL},
    {"throw", call_throw, METH_VARARGS, NULL},
    {"cancel", call_cancel, METH_VARARGS, NULL},
    {"unpark", call_unpark, METH_VARARGS, NULL},
    {"join", call_join, METH_VARARGS, NULL},
    {"result", call_result, METH_VARARGS, NULL},
    {"current", call_current, METH_NOARGS, NULL},
    {"yield_now", call_yield, METH_NOARGS, NULL},
    {"check_cancelled", call_check_cancelled, METH_NOARGS, NULL},
    {"get_stack_size", call_get_stack_size, METH_NOARGS, NULL},
    {"scheduler_stats", call_scheduler_stats, METH_VARARGS, NULL},
    {"stack_stats", call_stack_stats, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "c_api_example",
    "An example of pyfiber's C API.",
    -1,
    methods,
    NULL,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC
PyInit_c_api_example(void)
{
    if (PyFiber_Import() < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
#ifdef Py_GIL_DISABLED
    /* The tests use what it keeps from one thread at a time. */
    if (module != NULL) {
        PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
    }
#endif
    return module;
}
