/* The C API as functions of cffi's `lib`.  The module that cffi generates
 * includes this file.
 *
 * The GIL.  cffi calls these functions with the GIL released: it calls
 * PyEval_SaveThread before and PyEval_RestoreThread after, both on the stack
 * of the calling fiber.  Each function here that touches Python takes the GIL
 * on entry and releases it on exit, so everything in between, switches
 * included, happens with the GIL held, exactly as in a native method.  A fiber
 * may be left inside lib.pyfiber_switch() and resumed by a native switch, or
 * the other way round, because:
 * - What a frame has to undo is stored in that frame (`gil` below, cffi's
 *   saved thread state), on the fiber's own stack; it does not matter which
 *   fibers run in between or in which order they are resumed.
 * - A fiber never changes threads, and all fibers of a thread share one
 *   PyThreadState: the state released on exit is the one taken on entry.
 * - A call that resumes here returns from a switch, and all switches are made
 *   with the GIL held: on exit there is a GIL to release.
 * - Nothing here counts.  PyGILState_Ensure counts per thread (when the count
 *   reaches 0 the thread state is destroyed), and a fiber that never comes
 *   back would leave the count wrong for good.  So PyGILState_Ensure is used
 *   only on threads without any state, where no fiber can run.
 * C code may also call these functions with the GIL held (through a function
 * pointer): they notice that and keep the GIL.
 *
 * Errors.  The interpreter would not tolerate an exception left set by a cffi
 * call, so the exception is stored in a context variable.  Every fiber has a
 * separate context: another fiber's error cannot get in between the call and
 * the check.
 */
#define PYFIBER_SHARED_API pyfiber_capi_table
#include "pyfiber.h"

#include "python/core/tstate.h"

#if defined(__GNUC__)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define UNLIKELY(x) (x)
#endif

const PyFiber_CAPI *pyfiber_capi_table;
static PyObject *last_error; /* a ContextVar */

/* ---------------------------------------------------------------- the GIL */

typedef enum { HELD, RELEASED, NO_STATE } took;

typedef struct gil {
    took was;
    PyGILState_STATE state; /* for NO_STATE */
} gil;

static inline gil
take_gil(void)
{
    gil taken = {HELD, PyGILState_LOCKED};
    PyThreadState *mine = PyGILState_GetThisThreadState();
    if (UNLIKELY(mine == NULL)) {
        taken.was = NO_STATE;
        taken.state = PyGILState_Ensure();
    } else if (mine != pystate_attached()) {
        taken.was = RELEASED;
        PyEval_RestoreThread(mine);
    }
    return taken;
}

static inline void
give_gil(gil taken)
{
    if (taken.was == RELEASED) {
        (void)PyEval_SaveThread();
    } else if (UNLIKELY(taken.was == NO_STATE)) {
        PyGILState_Release(taken.state);
    }
}

/* ----------------------------------------------------------------- errors */

/* Stores `exc` as the last error of this context; NULL stores that there is
 * none.  Needs the GIL; borrows `exc`. */
static void
store_error(PyObject *exc)
{
    PyObject *token =
        PyContextVar_Set(last_error, exc == NULL ? Py_None : exc);
    if (token == NULL) {
        PyErr_WriteUnraisable(last_error);
    }
    Py_XDECREF(token);
}

/* Takes the stored error out of this context.  Needs the GIL; returns a new
 * reference, or NULL if there is none. */
static PyObject *
take_stored_error(void)
{
    PyObject *exc = NULL;
    if (PyContextVar_Get(last_error, Py_None, &exc) < 0) {
        PyErr_Clear();
    }
    if (exc == Py_None) {
        Py_CLEAR(exc);
    } else if (exc != NULL) {
        store_error(NULL);
    }
    return exc;
}

/* Stores the exception that is set, and clears it. */
static void
store_raised(void)
{
    PyObject *exc = pystate_take_exception();
    store_error(exc);
    Py_XDECREF(exc);
}

/* Finds the table and makes the context variable, at the first call.  Needs
 * the GIL; 0, or -1 with an exception. */
static int
set_up(void)
{
    if (last_error == NULL) {
        last_error = PyContextVar_New("pyfiber.capi.last_error", NULL);
    }
    return last_error == NULL ? -1 : PyFiber_Import();
}

static void
must_be_set_up(void)
{
    if (UNLIKELY(pyfiber_capi_table == NULL) && set_up() < 0) {
        Py_FatalError("pyfiber._capi cannot find pyfiber's C API");
    }
}

static gil
enter(void)
{
    gil taken = take_gil();
    must_be_set_up();
    return taken;
}

static PyObject *
leave_object(gil taken, PyObject *result)
{
    if (result == NULL) {
        store_raised();
    }
    give_gil(taken);
    return result;
}

static int
leave_int(gil taken, int result)
{
    if (result < 0) {
        store_raised();
    }
    give_gil(taken);
    return result;
}

/* Bodies of functions: evaluate `call` with the GIL held, and store the
 * exception if it fails. */
#define OBJECT(call)                                                          \
    gil taken = enter();                                                      \
    return leave_object(taken, call)
#define INT(call)                                                             \
    gil taken = enter();                                                      \
    return leave_int(taken, call)

/* -------------------------------------------------- references and errors */

static const void *
pyfiber_table(void)
{
    give_gil(enter());
    return PyFiber_API;
}

static PyObject *
pyfiber_incref(PyObject *object)
{
    gil taken = take_gil();
    Py_XINCREF(object);
    give_gil(taken);
    return object;
}

static void
pyfiber_decref(PyObject *object)
{
    gil taken = take_gil();
    Py_XDECREF(object);
    give_gil(taken);
}

static PyObject *
pyfiber_take_error(void)
{
    gil taken = enter();
    PyObject *exc = take_stored_error();
    give_gil(taken);
    return exc;
}

static void
pyfiber_set_error(PyObject *exc)
{
    gil taken = enter();
    store_error(exc);
    give_gil(taken);
}

/* ------------------------------------------------------------------ fibers */

/* A body that came through cffi.  Where C code would return with an exception
 * set, this body has stored one with pyfiber_set_error(). */
typedef struct Body {
    PyFiber_Body body;
    void *arg;
    PyFiber_Destroy destroy;
} Body;

static PyObject *
run_body(void *arg)
{
    const Body *self = arg;
    PyObject *result = self->body(self->arg);
    if (result == NULL && !PyErr_Occurred()) {
        PyObject *exc = take_stored_error();
        if (exc != NULL && PyExceptionInstance_Check(exc)) {
            PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
        } else {
            PyErr_SetString(PyExc_SystemError,
                            "the fiber's C function returned NULL without "
                            "setting an error");
        }
        Py_XDECREF(exc);
    }
    return result;
}

static void
destroy_body(void *arg)
{
    Body *self = arg;
    if (self->destroy != NULL) {
        self->destroy(self->arg);
    }
    PyMem_Free(self);
}

static PyObject *
new_c(PyFiber_Body body, void *arg, PyFiber_Destroy destroy)
{
    if (body == NULL) {
        return PyFiber_NewC(NULL, NULL, NULL); /* raises the error */
    }
    Body *self = PyMem_Malloc(sizeof *self);
    if (self == NULL) {
        return PyErr_NoMemory();
    }
    self->body = body;
    self->arg = arg;
    self->destroy = destroy;
    PyObject *fiber = PyFiber_NewC(run_body, self, destroy_body);
    if (fiber == NULL) {
        PyMem_Free(self);
    }
    return fiber;
}

static int
pyfiber_check(PyObject *object)
{
    gil taken = enter();
    int is_fiber = object != NULL && PyFiber_Check(object);
    give_gil(taken);
    return is_fiber;
}

static PyObject *
pyfiber_new(PyObject *target, PyObject *args, PyObject *kwargs)
{
    OBJECT(PyFiber_New(target, args, kwargs));
}

static PyObject *
pyfiber_new_c(PyFiber_Body body, void *arg, PyFiber_Destroy destroy)
{
    OBJECT(new_c(body, arg, destroy));
}

static PyObject *
pyfiber_current(void)
{
    OBJECT(PyFiber_Current());
}

static PyObject *
pyfiber_switch(PyObject *fiber, PyObject *value)
{
    OBJECT(PyFiber_Switch(fiber, value));
}

static PyObject *
pyfiber_throw(PyObject *fiber, PyObject *exc)
{
    OBJECT(PyFiber_Throw(fiber, exc));
}

static int
pyfiber_is_done(PyObject *fiber)
{
    INT(PyFiber_IsDone(fiber));
}

static int
pyfiber_own_stack(PyObject *fiber)
{
    INT(PyFiber_OwnStack(fiber));
}

/* --------------------------------------------------------------- scheduled */

static PyObject *
pyfiber_run(PyObject *callable, PyObject *args, PyObject *kwargs)
{
    OBJECT(PyFiber_Run(callable, args, kwargs));
}

static PyObject *
pyfiber_spawn(PyObject *callable, PyObject *args, PyObject *kwargs)
{
    OBJECT(PyFiber_Spawn(callable, args, kwargs));
}

static int
pyfiber_start(PyObject *fiber)
{
    INT(PyFiber_Start(fiber));
}

static int
pyfiber_yield(void)
{
    INT(PyFiber_Yield());
}

static int
pyfiber_sleep(double seconds)
{
    INT(PyFiber_Sleep(seconds));
}

static int
pyfiber_wait_readable(int fd, double timeout)
{
    INT(PyFiber_WaitReadable(fd, timeout));
}

static int
pyfiber_wait_writable(int fd, double timeout)
{
    INT(PyFiber_WaitWritable(fd, timeout));
}

static PyObject *
pyfiber_park(double timeout)
{
    OBJECT(PyFiber_Park(timeout));
}

static int
pyfiber_join(PyObject *fiber, double timeout)
{
    INT(PyFiber_Join(fiber, timeout));
}

static PyObject *
pyfiber_result(PyObject *fiber, double timeout)
{
    OBJECT(PyFiber_Result(fiber, timeout));
}

static int
pyfiber_check_cancelled(void)
{
    INT(PyFiber_CheckCancelled());
}

static int
pyfiber_cancel(PyObject *fiber, PyObject *reason)
{
    INT(PyFiber_Cancel(fiber, reason));
}

static int
pyfiber_unpark(PyObject *fiber, PyObject *value)
{
    INT(PyFiber_Unpark(fiber, value));
}

/* ------------------------------------ functions that do not need the GIL */

static inline const PyFiber_CAPI *
table(void)
{
    if (UNLIKELY(pyfiber_capi_table == NULL)) {
        give_gil(enter());
    }
    return pyfiber_capi_table;
}

static int
pyfiber_unpark_no_gil(PyObject *fiber)
{
    return table()->UnparkNoGIL(fiber);
}

static int
pyfiber_hold(PyObject *fiber)
{
    return table()->Hold(fiber);
}

static int
pyfiber_release(PyObject *fiber)
{
    return table()->Release(fiber);
}

static int
pyfiber_context_create(PyFiber_Context **context, PyFiber_ContextBody body,
                       void *arg, size_t stack_size)
{
    return table()->ContextCreate(context, body, arg, stack_size);
}

static int
pyfiber_context_switch(PyFiber_Context *to, void **value)
{
    return table()->ContextSwitch(to, value);
}

static PyFiber_Context *
pyfiber_context_current(void)
{
    return table()->ContextCurrent();
}

static PyFiber_Context *
pyfiber_context_main(void)
{
    return table()->ContextMain();
}

static int
pyfiber_context_is_done(PyFiber_Context *context)
{
    return table()->ContextIsDone(context);
}

static int
pyfiber_context_destroy(PyFiber_Context *context)
{
    return table()->ContextDestroy(context);
}

/* ----------------------------------------------------------------- numbers */

static int
pyfiber_scheduler_stats(PyFiber_SchedulerStats *stats)
{
    INT(PyFiber_GetSchedulerStats(stats));
}

static int
pyfiber_stack_stats(PyFiber_StackStats *stats)
{
    INT(PyFiber_GetStackStats(stats));
}

static size_t
pyfiber_get_stack_size(void)
{
    gil taken = enter();
    size_t size = PyFiber_GetStackSize();
    give_gil(taken);
    return size;
}

static int
pyfiber_set_stack_size(size_t bytes)
{
    INT(PyFiber_SetStackSize(bytes));
}
