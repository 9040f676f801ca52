/* pyfiber.h - the C API of pyfiber, for C, C++ and Cython.
 *
 * Fibers are Python objects.  C code reaches them through one table of
 * functions, which the module pyfiber._engine publishes as a capsule, so there
 * is nothing to link.  In a module's init function:
 *
 *     #include <pyfiber.h>            // -I$(python -c "import pyfiber;
 *                                     //      print(pyfiber.get_include())")
 *     if (PyFiber_Import() < 0) {
 *         return NULL;                // with an ImportError
 *     }
 *
 * and from then on call PyFiber_Switch(fiber, value) and so on.  Before the
 * import these functions raise RuntimeError; those that cannot raise end the
 * process with a message.
 *
 * Each .c file has its own pointer to the table and needs its own
 * PyFiber_Import().  To share one between several files, define
 * PYFIBER_SHARED_API to the name of a variable before including this header,
 * define it in one of them with `const PyFiber_CAPI *NAME;`, and import once.
 *
 * Rules for all functions:
 * - "With the GIL": the calling thread has a Python thread state and holds
 *   the GIL, as for every function of Python's own C API, and no exception
 *   may be set.
 * - Arguments are borrowed; a `PyObject *` that is returned is a new
 *   reference.  NULL or -1 means that an exception is set.
 * - Misuse raises the same exceptions as in the Python methods: FiberError
 *   (wrong thread, finished fiber, fiber of a scheduler, a region that must
 *   not be left), TypeError, ValueError.
 * - Any function that may switch runs other Python code, as any call into
 *   Python may.  Such a function returns on the same thread and the same C
 *   stack.  If the fiber's last reference goes away while the fiber is
 *   suspended in the function, the function fails with FiberExit: release what
 *   you hold on errors as on success.
 * - While a fiber is suspended, the memory of its C stack may hold the bytes
 *   of another fiber's stack; its own bytes are back, at their addresses,
 *   before the fiber continues.  Meanwhile nothing (another thread, the
 *   kernel, another fiber) may use the address of a variable on that stack,
 *   unless the fiber has an OwnStack.
 * - Neither longjmp nor a C++ exception may leave the body of a fiber or of a
 *   context.
 *
 * Compatibility: functions are only ever appended to the table.  A module
 * compiled against an older header runs with a newer pyfiber; with an older
 * pyfiber PyFiber_Import() fails with a message.
 */
#ifndef PYFIBER_H
#define PYFIBER_H

#include <Python.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PYFIBER_ABI_VERSION 1u
#define PYFIBER_CAPSULE_NAME "pyfiber._engine._C_API"

/* No timeout.  Any other negative number means the same, but not NaN. */
#define PYFIBER_FOREVER (-1.0)

/* A function that is the body of a fiber.  Runs with the GIL, on the fiber's
 * own stack.  Returns a new reference, or NULL with an exception set. */
typedef PyObject *(*PyFiber_Body)(void *arg);

/* Releases a body's `arg`.  Runs with the GIL and must not switch. */
typedef void (*PyFiber_Destroy)(void *arg);

/* Counters of the scheduler that runs on the calling thread. */
typedef struct PyFiber_SchedulerStats {
    size_t size; /* in: sizeof(PyFiber_SchedulerStats) */
    size_t fibers;
    size_t foreground; /* fibers that are not daemons */
    size_t ready;      /* now */
    size_t timers;     /* now */
    uint64_t switches; /* so far, as all counters below */
    uint64_t wakeups;
    uint64_t messages; /* from other threads */
    uint64_t timeouts;
    uint64_t waits;
} PyFiber_SchedulerStats;

/* Counters for the stacks of the calling thread's fibers, summed over all
 * stack sizes. */
typedef struct PyFiber_StackStats {
    size_t size;       /* in: sizeof(PyFiber_StackStats) */
    size_t stack_size; /* the default for new fibers, in bytes */
    size_t mapped;     /* bytes of address space */
    size_t slots;      /* places for a stack */
    size_t live;       /* slots in use now */
    size_t peak;       /* highest `live`; each size counts its own peak */
    uint64_t acquired; /* stacks given out so far */
    uint64_t trims;    /* times memory was returned */
} PyFiber_StackStats;

/* A C stack with a flow of control, without Python; the functions named
 * Context... below use it. */
typedef struct PyFiber_Context PyFiber_Context;
typedef void *(*PyFiber_ContextBody)(void *arg, void *value);

typedef struct PyFiber_CAPI {
    unsigned abi_version; /* PYFIBER_ABI_VERSION */
    unsigned size;        /* of this struct as pyfiber was built, in bytes */

    /* --- objects; borrowed references, valid as long as the process --- */
    PyTypeObject *Fiber_Type;
    PyObject *FiberError;
    PyObject *FiberExit;
    PyObject *Cancelled;
    PyObject *DeadlockError;

    /* --- fibers; with the GIL ---------------------------------------- */

    /* Fiber(target, args, kwargs): return a new fiber, not started.  `args` is
     * a tuple or NULL, `kwargs` a dict or NULL. */
    PyObject *(*New)(PyObject *target, PyObject *args, PyObject *kwargs);

    /* Return a new fiber that runs body(arg).  `destroy`, if not NULL, is
     * called with `arg` exactly once: when the body has ended, or when the
     * fiber dies without having run.  If NewC itself fails, `destroy` is not
     * called and the caller keeps `arg`. */
    PyObject *(*NewC)(PyFiber_Body body, void *arg, PyFiber_Destroy destroy);

    /* Return the running fiber.  A thread's own stack has a fiber, too. */
    PyObject *(*Current)(void);

    /* fiber.switch(value): leave the running fiber for `fiber`.  `value` NULL
     * means None.  Return the value passed to the switch that comes back. */
    PyObject *(*Switch)(PyObject *fiber, PyObject *value);

    /* fiber.throw(exc): raise `exc`, an exception or an exception class,
     * where `fiber` is suspended.  Return what Switch would. */
    PyObject *(*Throw)(PyObject *fiber, PyObject *exc);

    /* fiber.done(): 1 if `fiber` has ended, 0 if not, -1 with TypeError. */
    int (*IsDone)(PyObject *fiber);

    /* --- scheduled fibers; with the GIL, inside a run, except for Run, Unpark
     * and Cancel, and for Join and Result of an ended fiber.  Timeouts are in
     * seconds; PYFIBER_FOREVER: none. */

    /* pyfiber.run(callable, *args, **kwargs). */
    PyObject *(*Run)(PyObject *callable, PyObject *args, PyObject *kwargs);

    /* pyfiber.spawn(callable, *args, **kwargs): return the new fiber. */
    PyObject *(*Spawn)(PyObject *callable, PyObject *args, PyObject *kwargs);

    /* fiber.start(): give `fiber` to the scheduler of this thread.  0 or -1.
     */
    int (*Start)(PyObject *fiber);

    /* yield_now(): let the other ready fibers run first.  0 or -1. */
    int (*Yield)(void);

    /* sleep(seconds).  0 or -1. */
    int (*Sleep)(double seconds);

    /* park(timeout): wait for Unpark and return its value.  TimeoutError after
     * `timeout` seconds. */
    PyObject *(*Park)(double timeout);

    /* fiber.join(timeout).  0 if the fiber has ended, 1 if the time is over,
     * or -1. */
    int (*Join)(PyObject *fiber, double timeout);

    /* fiber.result(timeout): return the fiber's result, or raise the exception
     * with which the fiber ended. */
    PyObject *(*Result)(PyObject *fiber, double timeout);

    /* check_cancelled().  0, or -1 with Cancelled. */
    int (*CheckCancelled)(void);

    /* fiber.cancel(reason), from any thread.  `reason` NULL means None.  1;
     * 0 if the fiber had ended; -1. */
    int (*Cancel)(PyObject *fiber, PyObject *reason);

    /* fiber.unpark(value), from any thread.  `value` NULL means None.  1; 0
     * if the fiber had a permit already; -1. */
    int (*Unpark)(PyObject *fiber, PyObject *value);

    /* --- from any thread, with the GIL or without ---------------------- */

    /* fiber.unpark(), without Python: takes no lock and calls no Python, so a
     * thread that Python does not know may call this function.  The caller
     * must own a reference to the fiber until the call has returned, taken
     * before, with the GIL.  The call leaves a permit, as Unpark does: several
     * before the fiber parks count as one, and none is lost.  0, also if the
     * fiber has ended; -EINVAL if the fiber was not started on a scheduler.
     * The scheduler does not know about threads without Python: Hold the
     * fiber, or its wait counts as a deadlock. */
    int (*UnparkNoGIL)(PyObject *fiber);

    /* Announce that something outside of Python will wake `fiber`: until
     * Release is called as often as Hold, the fiber's scheduler waits where
     * otherwise DeadlockError would be raised.  The caller must own a
     * reference to the fiber from Hold to Release.  0; -EINVAL if the fiber
     * was not started on a scheduler or (Release) if nothing is held. */
    int (*Hold)(PyObject *fiber);
    int (*Release)(PyObject *fiber);

    /* --- numbers; with the GIL ------------------------------------------ */

    /* Fill in at most stats->size bytes, and set stats->size to the number
     * filled in.  0 or -1 (GetSchedulerStats: also outside of a run). */
    int (*GetSchedulerStats)(PyFiber_SchedulerStats *stats);
    int (*GetStackStats)(PyFiber_StackStats *stats);

    /* stack_size() and stack_size(bytes): the default for new fibers, in
     * bytes.  SetStackSize returns 0, or -1 with ValueError. */
    size_t (*GetStackSize)(void);
    int (*SetStackSize)(size_t bytes);

    /* --- contexts: C stacks without Python ------------------------------
     *
     * Coroutines for C code.  None of these functions needs the GIL or a
     * Python thread state, and none raises an exception: errors are negative
     * errno values.
     * A context belongs to the thread that created it, and must be destroyed
     * there, before the thread ends.  Contexts and fibers may be mixed: a
     * fiber may enter a context and leave it again.  A context must not be
     * left while Python code is on its stack (-EBUSY).  Python code that
     * returns before that is fine if it does not recurse deeply: the stack is
     * small, and running off its end is a fault.
     * A thread's first context maps memory, and the destruction of the last
     * one unmaps it: keep one context if you make and destroy many.
     */

    /* Store a new context in *context, which will run body(arg, value) with
     * the value of the first switch to it.  `stack_size` in bytes; 0: 256 KiB.
     * 0; -ENOMEM; -EINVAL for no body or a stack too small. */
    int (*ContextCreate)(PyFiber_Context **context, PyFiber_ContextBody body,
                         void *arg, size_t stack_size);

    /* Leave the running context for `to` and pass *value; after the switch
     * back, *value is the value passed to this context.  `value` NULL: pass
     * NULL, and ignore the value that comes back.  A body that returns passes
     * its result to the context that last switched to it.
     * 0; -EINVAL: `to` is NULL; -EPERM: `to` belongs to another thread;
     * -ESRCH: `to` is finished; -EBUSY: the running context must not be left
     * now; -ENOMEM. */
    int (*ContextSwitch)(PyFiber_Context *to, void **value);

    /* Return the running context, and the main context, which is the thread's
     * (or fiber's) own stack.  Borrowed; the main context's pointer stays the
     * same as long as the thread lives. */
    PyFiber_Context *(*ContextCurrent)(void);
    PyFiber_Context *(*ContextMain)(void);

    /* 1 if the context's body has returned, 0 if not; -EINVAL, -EPERM. */
    int (*ContextIsDone)(PyFiber_Context *context);

    /* Free a context that is not running.  A suspended context is abandoned
     * where it is: nothing more runs on its stack.
     * 0, also for NULL; -EPERM: `context` belongs to another thread; -EBUSY:
     * `context` is running; -EINVAL: `context` is the main context. */
    int (*ContextDestroy)(PyFiber_Context *context);

    /* --- descriptors; with the GIL --------------------------------------
     *
     * Wait until `fd` can be read or written; an end of file or an error ends
     * the wait, too.  In a fiber of a run, that fiber parks; anywhere else the
     * thread blocks, with the GIL released.  The caller opens and closes `fd`,
     * which may belong to a client library; pyfiber keeps nothing about `fd`
     * after the wait.  `timeout` in seconds; below 0: no limit; 0: only check.
     * 0: `fd` is ready; 1: timed out; -1. */
    int (*WaitReadable)(int fd, double timeout);
    int (*WaitWritable)(int fd, double timeout);

    /* Fiber(own_stack=True), with the GIL: give a fiber that has not been
     * started a stack that no other fiber uses, so that what lies on the stack
     * stays where it is while the fiber is suspended.  Needed by code that
     * passes addresses of its variables to another thread, or to the kernel,
     * and then switches or waits.  0, or -1 with FiberError. */
    int (*OwnStack)(PyObject *fiber);
} PyFiber_CAPI;

#ifndef PYFIBER_NO_IMPORT

#ifdef PYFIBER_SHARED_API
extern const PyFiber_CAPI *PYFIBER_SHARED_API;
#define PyFiber_API PYFIBER_SHARED_API
#else
static const PyFiber_CAPI *PyFiber_API = NULL;
#endif

/* Find the table; needs the GIL.  0, or -1 with ImportError.  May be called
 * again. */
static inline int
PyFiber_Import(void)
{
    const PyFiber_CAPI *api;
    if (PyFiber_API != NULL) {
        return 0;
    }
    /* PyCapsule_Import alone would not set up the package pyfiber. */
    PyObject *module = PyImport_ImportModule("pyfiber");
    if (module == NULL) {
        return -1;
    }
    Py_DECREF(module);
    api = (const PyFiber_CAPI *)PyCapsule_Import(PYFIBER_CAPSULE_NAME, 0);
    if (api == NULL) {
        return -1;
    }
    if (api->abi_version != PYFIBER_ABI_VERSION ||
        api->size < sizeof(PyFiber_CAPI)) {
        PyErr_Format(PyExc_ImportError,
                     "this module was compiled for version %u of pyfiber's C "
                     "API (%u bytes), the pyfiber installed has version %u "
                     "(%u bytes): %s",
                     PYFIBER_ABI_VERSION, (unsigned)sizeof(PyFiber_CAPI),
                     api->abi_version, api->size,
                     api->abi_version > PYFIBER_ABI_VERSION
                         ? "compile the module again"
                         : "install a newer pyfiber");
        return -1;
    }
    PyFiber_API = api;
    return 0;
}

#define PYFIBER_NOT_IMPORTED                                                  \
    "pyfiber's C API is used before PyFiber_Import(): call that first, in "   \
    "the init function of your module, for each .c file that includes "       \
    "pyfiber.h"

/* 1 if PyFiber_Import() has succeeded, or 0 with RuntimeError.  For functions
 * that can raise. */
static inline int
PyFiber_IsReady(void)
{
    if (PyFiber_API == NULL) {
        PyErr_SetString(PyExc_RuntimeError, PYFIBER_NOT_IMPORTED);
        return 0;
    }
    return 1;
}

/* The table, for functions that cannot raise.  Ends the process with a message
 * if PyFiber_Import() has not succeeded. */
static inline const PyFiber_CAPI *
PyFiber_Table(void)
{
    if (PyFiber_API == NULL) {
        Py_FatalError(PYFIBER_NOT_IMPORTED);
    }
    return PyFiber_API;
}

/* 1 if `object` is a Fiber, or 0; needs the GIL. */
static inline int
PyFiber_Check(PyObject *object)
{
    return PyObject_TypeCheck(object, PyFiber_Table()->Fiber_Type);
}

/* clang-format off */
#define PyFiber_New(target, args, kwargs) (!PyFiber_IsReady() ? NULL : PyFiber_API->New((target), (args), (kwargs)))
#define PyFiber_NewC(body, arg, destroy) (!PyFiber_IsReady() ? NULL : PyFiber_API->NewC((body), (arg), (destroy)))
#define PyFiber_Current() (!PyFiber_IsReady() ? NULL : PyFiber_API->Current())
#define PyFiber_Switch(fiber, value) (!PyFiber_IsReady() ? NULL : PyFiber_API->Switch((fiber), (value)))
#define PyFiber_Throw(fiber, exc) (!PyFiber_IsReady() ? NULL : PyFiber_API->Throw((fiber), (exc)))
#define PyFiber_IsDone(fiber) (!PyFiber_IsReady() ? -1 : PyFiber_API->IsDone((fiber)))
#define PyFiber_Run(callable, args, kwargs) (!PyFiber_IsReady() ? NULL : PyFiber_API->Run((callable), (args), (kwargs)))
#define PyFiber_Spawn(callable, args, kwargs) (!PyFiber_IsReady() ? NULL : PyFiber_API->Spawn((callable), (args), (kwargs)))
#define PyFiber_Start(fiber) (!PyFiber_IsReady() ? -1 : PyFiber_API->Start((fiber)))
#define PyFiber_Yield() (!PyFiber_IsReady() ? -1 : PyFiber_API->Yield())
#define PyFiber_Sleep(seconds) (!PyFiber_IsReady() ? -1 : PyFiber_API->Sleep((seconds)))
#define PyFiber_Park(timeout) (!PyFiber_IsReady() ? NULL : PyFiber_API->Park((timeout)))
#define PyFiber_Join(fiber, timeout) (!PyFiber_IsReady() ? -1 : PyFiber_API->Join((fiber), (timeout)))
#define PyFiber_Result(fiber, timeout) (!PyFiber_IsReady() ? NULL : PyFiber_API->Result((fiber), (timeout)))
#define PyFiber_CheckCancelled() (!PyFiber_IsReady() ? -1 : PyFiber_API->CheckCancelled())
#define PyFiber_Cancel(fiber, reason) (!PyFiber_IsReady() ? -1 : PyFiber_API->Cancel((fiber), (reason)))
#define PyFiber_Unpark(fiber, value) (!PyFiber_IsReady() ? -1 : PyFiber_API->Unpark((fiber), (value)))
#define PyFiber_UnparkNoGIL(fiber) (PyFiber_Table()->UnparkNoGIL((fiber)))
#define PyFiber_Hold(fiber) (PyFiber_Table()->Hold((fiber)))
#define PyFiber_Release(fiber) (PyFiber_Table()->Release((fiber)))
#define PyFiber_GetSchedulerStats(stats) (!PyFiber_IsReady() ? -1 : PyFiber_API->GetSchedulerStats((stats)))
#define PyFiber_GetStackStats(stats) (!PyFiber_IsReady() ? -1 : PyFiber_API->GetStackStats((stats)))
#define PyFiber_GetStackSize() (PyFiber_Table()->GetStackSize())
#define PyFiber_SetStackSize(bytes) (!PyFiber_IsReady() ? -1 : PyFiber_API->SetStackSize((bytes)))
#define PyFiber_ContextCreate(context, body, arg, stack_size) (PyFiber_Table()->ContextCreate((context), (body), (arg), (stack_size)))
#define PyFiber_ContextSwitch(to, value) (PyFiber_Table()->ContextSwitch((to), (value)))
#define PyFiber_ContextCurrent() (PyFiber_Table()->ContextCurrent())
#define PyFiber_ContextMain() (PyFiber_Table()->ContextMain())
#define PyFiber_ContextIsDone(context) (PyFiber_Table()->ContextIsDone((context)))
#define PyFiber_ContextDestroy(context) (PyFiber_Table()->ContextDestroy((context)))
#define PyFiber_WaitReadable(fd, timeout) (!PyFiber_IsReady() ? -1 : PyFiber_API->WaitReadable((fd), (timeout)))
#define PyFiber_WaitWritable(fd, timeout) (!PyFiber_IsReady() ? -1 : PyFiber_API->WaitWritable((fd), (timeout)))
#define PyFiber_OwnStack(fiber) (!PyFiber_IsReady() ? -1 : PyFiber_API->OwnStack((fiber)))
/* clang-format on */

#endif /* PYFIBER_NO_IMPORT */

#ifdef __cplusplus
}
#endif

#endif
