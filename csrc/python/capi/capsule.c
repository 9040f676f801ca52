/* The C API: one table, found through a capsule.
 *
 * There is no second code path: every entry checks its arguments and then
 * calls the function behind the Python method of the same name.  The header
 * csrc/include/pyfiber.h says what each entry promises.
 */
#include "python/cancel/cancel.h"
#include "python/capi/capi.h"
#include "python/core/arguments.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/fiber/fiber_type.h"
#include "python/io/io.h"
#include "python/switch/switch.h"
#include "python/task/cancelling.h"
#include "python/task/deadline.h"
#include "python/task/fiber.h"
#include "python/task/life.h"
#include "python/task/outcome.h"
#include "python/task/post.h"
#include "python/task/scheduler.h"
#include "python/wait/wait.h"

#include "engine/core/ccontext.h"
#include "include/pyfiber.h"

#include <errno.h>

/* Functions that exist only in the Python module; never released. */
static PyObject *run_function;        /* constant after import */
static PyObject *spawn_function;      /* constant after import */
static PyObject *sleep_function;      /* constant after import */
static PyObject *stack_size_function; /* constant after import */
static PyTypeObject *body_type;       /* constant after import */
static PyObject *body_name;           /* constant after import */

/* -------------------------------------------------------------- arguments */

static PyObject *
none_for_null(PyObject *object)
{
    return object == NULL ? Py_None : object;
}

/* Converts a timeout in seconds; a negative one means that there is no
 * deadline. NaN and other values that park() refuses are refused here as well.
 * Returns 0, or -1 with an exception. */
static int
deadline_of(double timeout, int64_t *deadline)
{
    if (timeout < 0) {
        *deadline = PF_NEVER;
        return 0;
    }
    PyObject *number = PyFloat_FromDouble(timeout);
    int rc = number == NULL ? -1 : pf_deadline(number, deadline);
    Py_XDECREF(number);
    return rc;
}

static int
check_call(PyObject *callable, PyObject *args, PyObject *kwargs)
{
    const char *what = NULL;
    if (callable == NULL) {
        what = "the function to call is NULL";
    } else if (args != NULL && !PyTuple_Check(args)) {
        what = "args must be a tuple or NULL";
    } else if (kwargs != NULL && !PyDict_Check(kwargs)) {
        what = "kwargs must be a dict or NULL";
    }
    if (what != NULL) {
        PyErr_SetString(PyExc_TypeError, what);
        return -1;
    }
    return 0;
}

/* function(callable, *args, **kwargs) */
static PyObject *
call_with(PyObject *function, PyObject *callable, PyObject *args,
          PyObject *kwargs)
{
    if (check_call(callable, args, kwargs) < 0) {
        return NULL;
    }
    Py_ssize_t n = args == NULL ? 0 : PyTuple_GET_SIZE(args);
    PyObject *all = PyTuple_New(n + 1);
    if (all == NULL) {
        return NULL;
    }
    PyTuple_SET_ITEM(all, 0, Py_NewRef(callable));
    for (Py_ssize_t i = 0; i < n; i++) {
        PyTuple_SET_ITEM(all, i + 1, Py_NewRef(PyTuple_GET_ITEM(args, i)));
    }
    PyObject *result = PyObject_Call(function, all, kwargs);
    Py_DECREF(all);
    return result;
}

/* ------------------------------------------------------ a C function's fiber */

/* The target of a fiber that runs a C function: a callable that calls it. */
typedef struct BodyObject {
    PyObject_HEAD
    PyFiber_Body body;
    void *arg;
    PyFiber_Destroy destroy;
} BodyObject;

static PyObject *
body_call(PyObject *op, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    BodyObject *self = (BodyObject *)op;
    return self->body(self->arg);
}

static void
body_dealloc(PyObject *op)
{
    BodyObject *self = (BodyObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    if (self->destroy != NULL) {
        PyObject *pending = pystate_take_exception();
        self->destroy(self->arg);
        if (PyErr_Occurred()) {
            PyErr_WriteUnraisable(NULL);
        }
        pystate_restore_exception(pending);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

static PyType_Slot body_slots[] = {
    {Py_tp_doc, (void *)"The C function that a fiber of the C API runs."},
    {Py_tp_call, body_call},
    {Py_tp_dealloc, body_dealloc},
    {0, NULL},
};

static PyType_Spec body_spec = {
    .name = "pyfiber._engine._CFunction",
    .basicsize = sizeof(BodyObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = body_slots,
};

static PyObject *
api_new_c(PyFiber_Body body, void *arg, PyFiber_Destroy destroy)
{
    if (body == NULL) {
        PyErr_SetString(PyExc_TypeError, "the fiber's C function is NULL");
        return NULL;
    }
    BodyObject *target = PyObject_New(BodyObject, body_type);
    if (target == NULL) {
        return NULL;
    }
    target->body = body;
    target->arg = arg;
    target->destroy = NULL;
    PyObject *fiber = PyObject_CallOneArg((PyObject *)pf_task_fiber_type,
                                          (PyObject *)target);
    if (fiber != NULL) {
        target->destroy = destroy; /* `arg` now belongs to the fiber */
        ((FiberObject *)fiber)->name = Py_NewRef(body_name);
    }
    Py_DECREF(target);
    return fiber;
}

/* --------------------------------------------------------------------- raw */

static PyObject *
api_new(PyObject *target, PyObject *args, PyObject *kwargs)
{
    if (check_call(target, args, kwargs) < 0) {
        return NULL;
    }
    PyObject *empty = args == NULL ? PyTuple_New(0) : Py_NewRef(args);
    if (empty == NULL) {
        return NULL;
    }
    PyObject *fiber =
        PyObject_CallFunctionObjArgs((PyObject *)pf_task_fiber_type, target,
                                     empty, none_for_null(kwargs), NULL);
    Py_DECREF(empty);
    return fiber;
}

static PyObject *
api_current(void)
{
    PfThread *t = pf_thread_this();
    return t == NULL ? NULL : Py_NewRef((PyObject *)CURRENT(t));
}

/* Notes that foreign C code is on the stack of the running fiber, which is
 * about to wait: see pf_packing.foreign_waits.  Returns what end_foreign_wait() takes,
 * or NULL with an exception. */
static PfRare *
begin_foreign_wait(void)
{
    /* For a thread's own stack, which is never packed. */
    static PfRare of_a_thread; /* constant after import */
    PfThread *t = pf_thread_this();
    if (t == NULL || CURRENT(t)->fiber.stack == NULL) {
        return t == NULL ? NULL : &of_a_thread;
    }
    PfRare *rare = pf_fiber_rare_of(CURRENT(t));
    if (rare != NULL) {
        rare->foreign_waits++;
    }
    return rare;
}

static void
end_foreign_wait(PfRare *rare)
{
    if (rare->foreign_waits != 0) {
        rare->foreign_waits--;
    }
}

static PyObject *
api_switch(PyObject *object, PyObject *value)
{
    FiberObject *fiber = pf_fiber_expect(object);
    PfRare *rare = fiber == NULL ? NULL : begin_foreign_wait();
    if (rare == NULL) {
        return NULL;
    }
    PyObject *got = pf_switch_to(fiber, none_for_null(value));
    end_foreign_wait(rare);
    return got;
}

static PyObject *
api_throw(PyObject *object, PyObject *exc)
{
    FiberObject *fiber = pf_fiber_expect(object);
    PfRare *rare = fiber == NULL ? NULL : begin_foreign_wait();
    if (rare == NULL) {
        return NULL;
    }
    PyObject *got = pf_switch_throw(fiber, none_for_null(exc));
    end_foreign_wait(rare);
    return got;
}

/* Fiber(own_stack=True). */
static int
api_own_stack(PyObject *object)
{
    FiberObject *fiber = pf_fiber_expect(object);
    return fiber == NULL ? -1 : pf_fiber_own_stack(fiber);
}

static int
api_is_done(PyObject *object)
{
    FiberObject *fiber = pf_fiber_expect(object);
    return fiber == NULL ? -1 : fiber->core.state == PF_DONE;
}

/* --------------------------------------------------------------- scheduled */

static PyObject *
api_run(PyObject *callable, PyObject *args, PyObject *kwargs)
{
    return call_with(run_function, callable, args, kwargs);
}

static PyObject *
api_spawn(PyObject *callable, PyObject *args, PyObject *kwargs)
{
    return call_with(spawn_function, callable, args, kwargs);
}

static int
api_start(PyObject *object)
{
    FiberObject *fiber = pf_fiber_expect(object);
    PfThread *t = fiber == NULL ? NULL : pf_thread_this();
    if (t == NULL || pf_scheduler_active(t, "start()") == NULL) {
        return -1;
    }
    return pf_fiber_start(t->scheduler, fiber);
}

static int
api_yield(void)
{
    PfThread *t = pf_thread_this();
    PfRare *rare = t == NULL || pf_scheduler_active(t, "yield_now()") == NULL
                       ? NULL
                       : begin_foreign_wait();
    if (rare == NULL) {
        return -1;
    }
    int rc = pf_wait_yield(t);
    end_foreign_wait(rare);
    return rc;
}

static int
api_sleep(double seconds)
{
    PfRare *rare = begin_foreign_wait();
    PyObject *number = rare == NULL ? NULL : PyFloat_FromDouble(seconds);
    PyObject *none =
        number == NULL ? NULL : PyObject_CallOneArg(sleep_function, number);
    if (rare != NULL) {
        end_foreign_wait(rare);
    }
    Py_XDECREF(number);
    Py_XDECREF(none);
    return none == NULL ? -1 : 0;
}

static PyObject *
api_park(double timeout)
{
    PfThread *t = pf_thread_this();
    int64_t deadline;
    if (t == NULL || pf_scheduler_active(t, "park()") == NULL ||
        deadline_of(timeout, &deadline) < 0) {
        return NULL;
    }
    PfRare *rare = begin_foreign_wait();
    PyObject *value = rare == NULL ? NULL : pf_wait_park(t, deadline);
    if (rare != NULL) {
        end_foreign_wait(rare);
    }
    return value;
}

static int
api_join(PyObject *object, double timeout)
{
    FiberObject *fiber = pf_fiber_expect(object);
    PfThread *t = fiber == NULL ? NULL : pf_thread_this();
    int64_t deadline;
    if (t == NULL || deadline_of(timeout, &deadline) < 0) {
        return -1;
    }
    PfRare *rare = begin_foreign_wait();
    int rc = rare == NULL ? -1 : pf_wait_join(t, fiber, deadline);
    if (rare != NULL) {
        end_foreign_wait(rare);
    }
    return rc;
}

static PyObject *
api_result(PyObject *object, double timeout)
{
    int rc = api_join(object, timeout);
    if (rc == 1) {
        PyErr_SetString(PyExc_TimeoutError, "the fiber has not finished yet");
    }
    return rc != 0 ? NULL : pf_task_value(PF_TASK(object));
}

static int
wait_for(int fd, pf_direction direction, double timeout)
{
    int64_t length = PF_NEVER;
    if (!(timeout < 0)) { /* NaN as well: it is refused */
        PyObject *seconds = PyFloat_FromDouble(timeout);
        int rc = seconds == NULL ? -1 : pf_arguments_length(seconds, &length);
        Py_XDECREF(seconds);
        if (rc < 0) {
            return -1;
        }
    }
    PyObject *number = PyLong_FromLong(fd);
    if (number == NULL) {
        return -1;
    }
    PfRare *rare = begin_foreign_wait();
    int rc = rare == NULL
                 ? -1
                 : pf_readiness_wait_for_number(fd, direction, length, number);
    if (rare != NULL) {
        end_foreign_wait(rare);
    }
    Py_DECREF(number);
    return rc;
}

static int
api_wait_readable(int fd, double timeout)
{
    return wait_for(fd, PF_READING, timeout);
}

static int
api_wait_writable(int fd, double timeout)
{
    return wait_for(fd, PF_WRITING, timeout);
}

static int
api_check_cancelled(void)
{
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_scheduler_active(t, "check_cancelled()") == NULL) {
        return -1;
    }
    return pf_cancelling_check(CURRENT(t));
}

static int
api_cancel(PyObject *object, PyObject *reason)
{
    FiberObject *fiber = pf_fiber_expect(object);
    return fiber == NULL ? -1 : pf_cancel_fiber(fiber, none_for_null(reason));
}

static int
api_unpark(PyObject *object, PyObject *value)
{
    FiberObject *fiber = pf_fiber_expect(object);
    return fiber == NULL
               ? -1
               : pf_wait_unpark(PF_TASK(fiber), none_for_null(value));
}

/* ------------------------------------------------------------- without the GIL */

/* Returns the scheduler of a fiber that has been started, or NULL.  Needs no
 * GIL: start() sets both fields once, and they do not change afterwards. */
static pf_scheduler *
scheduler_of(PyObject *object)
{
    if (object == NULL || !PyObject_TypeCheck(object, pf_task_fiber_type)) {
        return NULL;
    }
    FiberObject *fiber = (FiberObject *)object;
    return fiber->scheduled ? fiber->core.scheduler : NULL;
}

static int
api_unpark_no_gil(PyObject *object)
{
    pf_scheduler *s = scheduler_of(object);
    if (s == NULL) {
        return -EINVAL;
    }
    /* The fiber's thread checks whether the fiber has ended.  After the run
     * the scheduler takes no messages. */
    pf_task_post(s, &((FiberObject *)object)->core, PF_POST_UNPARK);
    return 0;
}

static int
api_hold(PyObject *object)
{
    pf_scheduler *s = scheduler_of(object);
    if (s == NULL) {
        return -EINVAL;
    }
    pf_scheduler_hold(s);
    return 0;
}

static int
api_release(PyObject *object)
{
    pf_scheduler *s = scheduler_of(object);
    if (s == NULL || pf_load(&s->holds) == 0) {
        return -EINVAL;
    }
    pf_scheduler_release(s);
    return 0;
}

/* ----------------------------------------------------------------- numbers */

/* Copies the fields that both the caller's version of the struct and this one
 * have.  Each version begins with a size_t, its own size.  Returns 0, or -1
 * with ValueError. */
static int
give_stats(void *to, const void *whole, size_t size)
{
    size_t wanted = to == NULL ? 0 : *(const size_t *)to;
    if (wanted < sizeof(size_t)) {
        PyErr_SetString(PyExc_ValueError,
                        "set the struct's size field to its sizeof first");
        return -1;
    }
    size_t given = wanted < size ? wanted : size;
    memcpy(to, whole, given);
    *(size_t *)to = given;
    return 0;
}

static int
api_scheduler_stats(PyFiber_SchedulerStats *stats)
{
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_scheduler_active(t, "GetSchedulerStats") == NULL) {
        return -1;
    }
    SchedulerObject *s = t->scheduler;
    pf_scheduler_stats counted;
    pf_scheduler_stats_get(&s->core, &counted);
    PyFiber_SchedulerStats whole = {
        .size = sizeof whole,
        .fibers = (size_t)pf_scheduler_unfinished(s),
        .foreground = (size_t)pf_scheduler_foreground(s),
        .ready = counted.ready,
        .timers = counted.timers,
        .switches = counted.switches,
        .wakeups = counted.wakeups,
        .messages = counted.messages,
        .timeouts = counted.timeouts,
        .waits = counted.waits,
    };
    return give_stats(stats, &whole, sizeof whole);
}

static int
api_stack_stats(PyFiber_StackStats *stats)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return -1;
    }
    PyFiber_StackStats whole = {
        .size = sizeof whole,
        .stack_size = pf_load_relaxed(&pf_fiber_default_stack_size),
    };
    for (unsigned i = 0; i < t->engine.pool_count; i++) {
        pf_stack_stats pool;
        pf_stack_pool_stats(t->engine.pools[i], &pool);
        whole.mapped += pool.mapped;
        whole.slots += pool.slots;
        whole.live += pool.live;
        whole.peak += pool.peak;
        whole.acquired += pool.acquired;
        whole.trims += pool.trims;
    }
    return give_stats(stats, &whole, sizeof whole);
}

static size_t
api_get_stack_size(void)
{
    return pf_load_relaxed(&pf_fiber_default_stack_size);
}

static int
api_set_stack_size(size_t bytes)
{
    PyObject *number = PyLong_FromSize_t(bytes);
    PyObject *before = number == NULL
                           ? NULL
                           : PyObject_CallOneArg(stack_size_function, number);
    Py_XDECREF(number);
    Py_XDECREF(before);
    return before == NULL ? -1 : 0;
}

/* ---------------------------------------------------------------- contexts */

/* A context's body may call back into Python, which then runs on a stack that
 * the interpreter does not know.  This works if that call returns before the
 * context is left, and if the interpreter's stack limits change with each
 * switch.  The functions need no GIL, because they use only the thread's own
 * state. */

/* Records what Python code runs on this thread, so that the engine can compare
 * two records.  Each call of a Python function changes the top of the data
 * stack, and each generator that runs changes the chain of handled
 * exceptions. */
static void
python_nesting(pf_nesting *now)
{
    memset(now, 0, sizeof *now);
    PfThread *t = pf_thread_current;
    PyThreadState *ts = PyGILState_GetThisThreadState();
    if (ts == NULL) {
        return;
    }
    PyState state;
    PyObject *context;
    pystate_save(ts, &state, &context);
    now->marks[0] = t == NULL || CURRENT(t) == t->root ? NULL : CURRENT(t);
    now->marks[1] = state.top;
    now->marks[2] = state.exc_info;
}

static void
python_moved(const pf_area *area)
{
    PfThread *t = pf_thread_current;
    PyThreadState *ts = PyGILState_GetThisThreadState();
    PyState unused;
    if (ts == NULL) {
        return;
    }
    if (area == NULL && t != NULL && CURRENT(t)->fiber.stack != NULL) {
        area = &CURRENT(t)->fiber.stack->area;
    }
    pystate_move(ts, t == NULL ? &unused : CURRENT(t)->saved,
                 area == NULL ? NULL : area->low,
                 area == NULL ? 0 : area->size);
}

static const pf_ccontext_host python_host = {
    .nesting = python_nesting,
    .moved = python_moved,
};

/* The next functions are the engine's, with the names that include/pyfiber.h
 * has for their types. */

static int
api_context_create(PyFiber_Context **context, PyFiber_ContextBody body,
                   void *arg, size_t stack_size)
{
    return pf_ccontext_create((pf_ccontext **)context, body, arg, stack_size);
}

static int
api_context_switch(PyFiber_Context *to, void **value)
{
    return pf_ccontext_switch((pf_ccontext *)to, value);
}

static PyFiber_Context *
api_context_current(void)
{
    return (PyFiber_Context *)pf_ccontext_current();
}

static PyFiber_Context *
api_context_main(void)
{
    return (PyFiber_Context *)pf_ccontext_main();
}

static int
api_context_is_done(PyFiber_Context *context)
{
    return pf_ccontext_done((pf_ccontext *)context);
}

static int
api_context_destroy(PyFiber_Context *context)
{
    return pf_ccontext_destroy((pf_ccontext *)context);
}

/* --------------------------------------------------------------- the table */

/* constant after import */
static PyFiber_CAPI api = {
    .abi_version = PYFIBER_ABI_VERSION,
    .size = sizeof(PyFiber_CAPI),
    .New = api_new,
    .NewC = api_new_c,
    .Current = api_current,
    .Switch = api_switch,
    .Throw = api_throw,
    .IsDone = api_is_done,
    .Run = api_run,
    .Spawn = api_spawn,
    .Start = api_start,
    .Yield = api_yield,
    .Sleep = api_sleep,
    .Park = api_park,
    .Join = api_join,
    .Result = api_result,
    .CheckCancelled = api_check_cancelled,
    .Cancel = api_cancel,
    .Unpark = api_unpark,
    .UnparkNoGIL = api_unpark_no_gil,
    .Hold = api_hold,
    .Release = api_release,
    .GetSchedulerStats = api_scheduler_stats,
    .GetStackStats = api_stack_stats,
    .GetStackSize = api_get_stack_size,
    .SetStackSize = api_set_stack_size,
    .ContextCreate = api_context_create,
    .ContextSwitch = api_context_switch,
    .ContextCurrent = api_context_current,
    .ContextMain = api_context_main,
    .ContextIsDone = api_context_is_done,
    .ContextDestroy = api_context_destroy,
    .WaitReadable = api_wait_readable,
    .WaitWritable = api_wait_writable,
    .OwnStack = api_own_stack,
};

/* _object_at(address), for pyfiber.capi: cffi can pass a pointer to Python,
 * but not the object that it points to. */
static PyObject *
object_at(PyObject *module, PyObject *address)
{
    (void)module;
    PyObject *object = PyLong_AsVoidPtr(address);
    if (object == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "there is no object at NULL");
        }
        return NULL;
    }
    return Py_NewRef(object);
}

static PyMethodDef capsule_methods[] = {
    {"_object_at", object_at, METH_O,
     "_object_at(address, /)\n--\n\n"
     "The object whose id() is `address`; it must be alive."},
    {NULL, NULL, 0, NULL},
};

static int
find_functions(PyObject *module)
{
    run_function = PyObject_GetAttrString(module, "run");
    spawn_function = PyObject_GetAttrString(module, "spawn");
    sleep_function = PyObject_GetAttrString(module, "sleep");
    stack_size_function = PyObject_GetAttrString(module, "stack_size");
    body_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &body_spec, NULL);
    body_name = PyUnicode_InternFromString("C function");
    return run_function != NULL && spawn_function != NULL &&
                   sleep_function != NULL && stack_size_function != NULL &&
                   body_type != NULL && body_name != NULL
               ? 0
               : -1;
}

int
pf_capi_init(PyObject *module)
{
    if (find_functions(module) < 0 ||
        PyModule_AddFunctions(module, capsule_methods) < 0) {
        return -1;
    }
    api.Fiber_Type = pf_task_fiber_type;
    api.FiberError = pf.fiber_error;
    api.FiberExit = pf.fiber_exit;
    api.Cancelled = pf.cancelled;
    api.DeadlockError = pf.deadlock_error;
    pf_ccontext_set_host(&python_host);
    PyObject *capsule = PyCapsule_New(&api, PYFIBER_CAPSULE_NAME, NULL);
    if (capsule == NULL) {
        return -1;
    }
    int rc = PyModule_AddObjectRef(module, "_C_API", capsule);
    Py_DECREF(capsule);
    return rc;
}
