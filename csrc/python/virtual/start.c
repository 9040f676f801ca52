/* Starting a thread of the program as a fiber, and its end: see virtual.h. */
#include "python/virtual/virtual.h"

#include "python/core/arguments.h"
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/fiber/fiber_type.h"
#include "python/run/run.h"
#include "python/switch/switch.h"
#include "python/switch/unwind.h"
#include "python/task/explore.h"
#include "python/task/scheduler.h"
#include "python/waitq/owner.h"

/* ------------------------------------------------------------ kind of fiber */

/* The handle of a virtual thread that is not done. */
static PfHandle *
handle_of(FiberObject *fiber)
{
    return (PfHandle *)fiber->target;
}

static void
ended(FiberObject *fiber)
{
    pf_handle_ended(handle_of(fiber));
}

const PfTaskOps pf_virtual_ops = {
    .core = PF_FIBER_CORE_OPS(pf_switch_run, pf_switch_reap),
    PF_FIBER_OPS,
    .is_thread = true,
    .ended = ended,
};

/* -------------------------------------------------------------------- start */

/* The arguments of _start_thread(). */
typedef struct Start {
    SchedulerObject *s;
    PfHandle *handle;
    PyObject *function, *args, *kwargs;
    bool daemon;
    size_t stack_size;
    PyObject *context; /* NULL: an empty one */
    PyObject *name;    /* of the fiber, a str */
} Start;

static int
read_arguments(PyObject *args, Start *start)
{
    PyObject *kwargs = Py_None, *context = Py_None;
    int daemon = 0;
    Py_ssize_t size = 0;
    if (!PyArg_ParseTuple(
            args, "O!O!OO!OpnOU:_start_thread", pf_scheduler_type, &start->s,
            pf_handle_type, &start->handle, &start->function, &PyTuple_Type,
            &start->args, &kwargs, &daemon, &size, &context, &start->name)) {
        return -1;
    }
    if (!PyCallable_Check(start->function) || size < 0 ||
        (kwargs != Py_None && !PyDict_Check(kwargs)) ||
        (context != Py_None && !PyContext_CheckExact(context))) {
        PyErr_SetString(PyExc_TypeError,
                        "_start_thread() takes a function, a tuple, a dict or "
                        "None, a size, and a context or None");
        return -1;
    }
    start->kwargs = kwargs == Py_None ? NULL : kwargs;
    start->daemon = daemon != 0;
    start->stack_size = (size_t)size;
    start->context = context == Py_None ? NULL : context;
    return 0;
}

/* The run does not wait for the fiber: the block of virtual threads does
 * that. */
static FiberObject *
make_fiber(PfThread *t, const Start *start)
{
    FiberObject *fiber = pf_fiber_alloc(t);
    if (fiber != NULL) {
        pf_task_set_kind(&fiber->core, &pf_virtual_ops);
        (void)pf_owner_number(fiber); /* so that ended() is called */
        fiber->daemon = true;
        fiber->stack_size = start->stack_size;
        fiber->target = Py_NewRef((PyObject *)start->handle);
        fiber->name = Py_NewRef(start->name);
        fiber->context = Py_XNewRef(start->context);
    }
    return fiber;
}

/* The system's numbers of threads are smaller. */
#define FIRST_NATIVE_ID ((uint64_t)1 << 32)

/* Shared, behind the GIL: how many threads have been started. */
static uint64_t started;

static void
prepare(const Start *start, FiberObject *fiber)
{
    PfHandle *handle = start->handle;
    handle->function = Py_NewRef(start->function);
    handle->args = Py_NewRef(start->args);
    handle->kwargs = Py_XNewRef(start->kwargs);
    handle->daemon = start->daemon;
    handle->fiber = fiber;
    handle->ident = pf_virtual_ident(fiber);
    handle->native_id = FIRST_NATIVE_ID + started++;
    handle->state = PF_HANDLE_STARTING;
}

static int
refuse_second_start(void)
{
    PyErr_SetString(PyExc_RuntimeError, "thread already started");
    return -1;
}

static bool
is_here(const PfThread *t, const SchedulerObject *s)
{
    return s->thread == t && t->scheduler == s;
}

/* Lets the new fiber run next, as a wait for a fiber that has not begun
 * does. */
static int
begin_here(PfThread *t, SchedulerObject *s, FiberObject *fiber)
{
    if (pf_fiber_start(s, fiber) < 0) {
        return -1;
    }
    if (t->pending == 0) {
        (void)pf_scheduler_prefer(&s->core, &fiber->core);
    }
    return pf_explore_preempt();
}

static int
begin(PfThread *t, const Start *start, FiberObject *fiber)
{
    prepare(start, fiber);
    int rc = is_here(t, start->s) ? begin_here(t, start->s, fiber)
                                  : pf_run_start_soon(start->s, fiber);
    if (rc < 0 && start->handle->state == PF_HANDLE_STARTING &&
        fiber->core.state == PF_NEW && !fiber->scheduled) {
        pf_handle_ended(start->handle);
    }
    return rc;
}

/* Waits until the thread has begun, so that a lack of memory for it is an
 * error of the start.  Where the fiber must not be left, that is not waited
 * for. */
static int
await_begin(PfThread *t, const Start *start)
{
    if (is_here(t, start->s) && t->pending != 0) {
        return 0;
    }
    if (pf_handle_await_begin(start->handle, t) < 0) {
        return -1;
    }
    if (start->handle->state == PF_HANDLE_REFUSED) {
        PyErr_SetString(PyExc_RuntimeError, "can't start new thread");
        return -1;
    }
    return 0;
}

static PyObject *
start_thread(PyObject *module, PyObject *args)
{
    (void)module;
    Start start;
    PfThread *t = pf_thread_this();
    FiberObject *fiber = t == NULL || read_arguments(args, &start) < 0
                             ? NULL
                             : make_fiber(t, &start);
    if (fiber == NULL) {
        return NULL;
    }
    int rc = start.handle->state != PF_HANDLE_NEW ? refuse_second_start()
             : begin(t, &start, fiber) < 0        ? -1
                                                  : await_begin(t, &start);
    Py_DECREF(fiber);
    return rc < 0 ? NULL : PyLong_FromSize_t(start.handle->ident);
}

/* ---------------------------------------------------------------------- end */

/* Returns the handles of the scheduler's virtual threads that are not done. */
static PyObject *
threads_of(PyObject *module, PyObject *op)
{
    (void)module;
    if (!PyObject_TypeCheck(op, pf_scheduler_type)) {
        PyErr_SetString(PyExc_TypeError, "_threads_of() takes a Scheduler");
        return NULL;
    }
    SchedulerObject *s = (SchedulerObject *)op;
    PyObject *list = PyList_New(0);
    FiberObject *f = s->thread == NULL ? NULL : s->thread->live;
    for (; list != NULL && f != NULL; f = f->next) {
        if (pf_virtual_is(f) && f->core.scheduler == &s->core &&
            f->target != NULL && PyList_Append(list, f->target) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* In the child of a fork the program has no other thread than the running one.
 * The others' fibers are copies, and never go on, not even to be unwound: so
 * they leave the list of fibers, and their memory is lost. */
int
pf_virtual_after_fork(PfThread *t)
{
    FiberObject *self = t == NULL ? NULL : pf_virtual_here(t), *next;
    for (FiberObject *f = t == NULL ? NULL : t->live; f != NULL; f = next) {
        next = f->next;
        if (f != self && pf_virtual_is(f)) {
            pf_fiber_unlink(f);
            pf_handle_lost(handle_of(f));
        }
    }
    return 0;
}

/* Ends a fiber that is not running. */
static void
end_fiber(PfThread *t, FiberObject *fiber)
{
    if (fiber->fiber.stack != NULL) {
        pf_unwind_fiber(t, fiber);
        return;
    }
    pf_unwind_forget_schedule(fiber);
    PyErr_SetNone(pf.fiber_exit);
    pf_switch_end(t, fiber, NULL);
}

/* _cut_off(handle): ends the thread as the end of a run does: FiberExit is
 * raised where it waits.  If it waits again, it is abandoned there. */
static PyObject *
cut_off(PyObject *module, PyObject *op)
{
    (void)module;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    FiberObject *fiber =
        Py_IS_TYPE(op, pf_handle_type) ? ((PfHandle *)op)->fiber : NULL;
    if (fiber == NULL) {
        Py_RETURN_NONE;
    }
    if (fiber->thread != t || fiber->core.state == PF_RUNNING) {
        PyErr_SetString(pf.fiber_error,
                        "a thread is cut off from outside of it, and on the "
                        "thread that runs its fiber");
        return NULL;
    }
    Py_INCREF(fiber);
    end_fiber(t, fiber);
    Py_DECREF(fiber);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_start_thread", start_thread, METH_VARARGS,
     "_start_thread(scheduler, handle, function, args, kwargs, daemon, "
     "stack_size, context, name, /)\n--\n\n"
     "Start a thread as a fiber of the scheduler; return its number when it "
     "has begun."},
    {"_threads_of", threads_of, METH_O,
     "_threads_of(scheduler, /)\n--\n\n"
     "The handles of its virtual threads that have not ended."},
    {"_cut_off", cut_off, METH_O,
     "_cut_off(handle, /)\n--\n\n"
     "End a thread where it waits: FiberExit is raised there."},
    {NULL, NULL, 0, NULL},
};

int
pf_virtual_start_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

int
pf_virtual_init(PyObject *module)
{
    return pf_handle_init(module) < 0 || pf_virtual_start_init(module) < 0 ||
                   pf_virtual_ident_init(module) < 0 ||
                   pf_virtual_others_init(module) < 0
               ? -1
               : pf_virtual_main_init(module);
}
