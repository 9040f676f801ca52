/* pyfiber.h - the C API of pyfiber, for C, C++ and Cython.
 *
 * Fibers are Python objects; you reach everything about them through one table
 * of functions that the module pyfiber._engine publishes as a capsule.  There
 * is nothing to link.  In a module's init function:
 *
 *     #include <pyfiber.h>            // -I$(python -c "import pyfiber;
 *                                     //      print(pyfiber.get_include())")
 *     if (PyFiber_Import() < 0) {
 *         return NULL;                // with an ImportError
 *     }
 *
 * and from then on call PyFiber_Switch(fiber, value) and so on.  Before that,
 * they raise RuntimeError; those that cannot raise end the process with a
 * message.
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
 *   Python may.  It returns on the same thread and the same C stack.  It may
 *   never return normally to the C frame that called it: when the fiber's last
 *   reference goes away, it raises FiberExit, so release what you hold on
 *   errors as on success.
 * - While a fiber is suspended, the memory of its C stack may hold the bytes of
 *   another one; its own are back, at their addresses, before it goes on.  So
 *   nobody else (another thread, the kernel, another fiber) may use the address
 *   of a variable on that stack meanwhile, unless the fiber has an OwnStack.
 * - longjmp and C++ exceptions must not leave a fiber's or a context's body.
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

/* No timeout: any negative number, but not NaN. */
#define PYFIBER_FOREVER (-1.0)

/* The body of a fiber.  Runs with the GIL, on the fiber's own stack; returns
 * a new reference, or NULL with an exception set. */
typedef PyObject *(*PyFiber_Body)(void *arg);

/* Releases a body's `arg`.  Runs with the GIL and must not switch. */
typedef void (*PyFiber_Destroy)(void *arg);

/* Counters of the scheduler that runs on the calling thread. */
typedef struct PyFiber_SchedulerStats {
    size_t size; /* in: sizeof(PyFiber_SchedulerStats) */
    size_t fibers;
    size_t foreground; /* of them, not daemon */
    size_t ready;      /* now */
    size_t timers;     /* now */
    uint64_t switches; /* so far, as all those below */
    uint64_t wakeups;
    uint64_t messages; /* from other threads */
    uint64_t timeouts;
    uint64_t waits;
} PyFiber_SchedulerStats;

/* The stacks of the calling thread's fibers, of all sizes together. */
typedef struct PyFiber_StackStats {
    size_t size;       /* in: sizeof(PyFiber_StackStats) */
    size_t stack_size; /* the default for new fibers, in bytes */
    size_t mapped;     /* bytes of address space */
    size_t slots;
    size_t live;       /* in use now */
    size_t peak;       /* at most; added up over the sizes */
    uint64_t acquired; /* so far */
    uint64_t trims;    /* times memory was returned */
} PyFiber_StackStats;

/* A C stack with a flow of control, without Python: see the functions
 * Context... below. */
typedef struct PyFiber_Context PyFiber_Context;
typedef void *(*PyFiber_ContextBody)(void *arg, void *value);

typedef struct PyFiber_CAPI {
    unsigned abi_version; /* PYFIBER_ABI_VERSION */
    unsigned size;        /* of this struct as pyfiber was built, in bytes */

    /* --- objects; borrowed, they live as long as the process --- */
    PyTypeObject *Fiber_Type;
    PyObject *FiberError;
    PyObject *FiberExit;
    PyObject *Cancelled;
    PyObject *DeadlockError;

    /* --- fibers; with the GIL ---------------------------------------- */

    /* Fiber(target, args, kwargs): a new fiber, not started.  `args` is a
     * tuple or NULL, `kwargs` a dict or NULL. */
    PyObject *(*New)(PyObject *target, PyObject *args, PyObject *kwargs);

    /* A fiber around a C function.  `destroy`, if not NULL, is called with
     * `arg` exactly once: when the body has ended, or when the fiber dies
     * without having run.  If NewC itself fails, it is not called and the
     * caller keeps `arg`. */
    PyObject *(*NewC)(PyFiber_Body body, void *arg, PyFiber_Destroy destroy);

    /* The running fiber, also on a thread's own stack. */
    PyObject *(*Current)(void);

    /* fiber.switch(value): leave the running fiber for `fiber`.  `value` NULL
     * means None.  Returns the value passed to the switch that comes back. */
    PyObject *(*Switch)(PyObject *fiber, PyObject *value);

    /* fiber.throw(exc): raise `exc`, an exception or an exception class,
     * where `fiber` is suspended.  Returns as Switch. */
    PyObject *(*Throw)(PyObject *fiber, PyObject *exc);

    /* 1 if it has ended, 0 if not, -1 with TypeError. */
    int (*IsDone)(PyObject *fiber);

    /* --- scheduled fibers; with the GIL, inside a run, except for Run, Unpark
     * and Cancel, and for Join and Result of an ended fiber */

    /* pyfiber.run(callable, *args, **kwargs). */
    PyObject *(*Run)(PyObject *callable, PyObject *args, PyObject *kwargs);

    /* pyfiber.spawn(callable, *args, **kwargs): the new fiber. */
    PyObject *(*Spawn)(PyObject *callable, PyObject *args, PyObject *kwargs);

    /* fiber.start(): give it to the scheduler of this thread. 0 or -1. */
    int (*Start)(PyObject *fiber);

    /* yield_now(). 0 or -1. */
    int (*Yield)(void);

    /* sleep(seconds). 0 or -1. */
    int (*Sleep)(double seconds);

    /* park(timeout): wait for Unpark and return its value.  TimeoutError after
     * `timeout` seconds. */
    PyObject *(*Park)(double timeout);

    /* fiber.join(timeout). 0: it has ended; 1: timed out; -1. */
    int (*Join)(PyObject *fiber, double timeout);

    /* fiber.result(timeout): return the fiber's result, or raise the exception
     * it ended with. */
    PyObject *(*Result)(PyObject *fiber, double timeout);

    /* check_cancelled(). 0, or -1 with Cancelled. */
    int (*CheckCancelled)(void);

    /* fiber.cancel(reason), from any thread.  `reason` NULL means None.  1;
     * 0 if the fiber had ended; -1. */
    int (*Cancel)(PyObject *fiber, PyObject *reason);

    /* fiber.unpark(value), from any thread.  `value` NULL means None.  1; 0
     * if a permit was there already; -1. */
    int (*Unpark)(PyObject *fiber, PyObject *value);

    /* --- from any thread, with the GIL or without ---------------------- */

    /* fiber.unpark(): takes no lock and calls no Python, so a thread that
     * Python does not know may call it.  The caller owns a reference to the
     * fiber that lasts until the call has returned (take it before,
     * with the GIL).  A permit, as with Unpark: several before the fiber
     * parks count as one, none is lost.  0, also if the fiber has ended;
     * -EINVAL if it was not started on a scheduler.
     * The scheduler does not know about threads without Python: Hold the
     * fiber, or its wait counts as a deadlock. */
    int (*UnparkNoGIL)(PyObject *fiber);

    /* "Something outside will wake this fiber": until Release is called as
     * often as Hold, the fiber's scheduler waits where it would raise
     * DeadlockError.  The caller owns a reference to the fiber from Hold to
     * Release. 0; -EINVAL if the fiber was not started on a scheduler or
     * (Release) if nothing is held. */
    int (*Hold)(PyObject *fiber);
    int (*Release)(PyObject *fiber);

    /* --- numbers; with the GIL ------------------------------------------ */

    /* Fill in at most stats->size bytes, and set stats->size to the number
     * filled in. 0 or -1 (GetSchedulerStats: also outside of a run). */
    int (*GetSchedulerStats)(PyFiber_SchedulerStats *stats);
    int (*GetStackStats)(PyFiber_StackStats *stats);

    /* stack_size(), stack_size(bytes): 0 or -1 with ValueError. */
    size_t (*GetStackSize)(void);
    int (*SetStackSize)(size_t bytes);

    /* --- contexts: C stacks without Python ------------------------------
     *
     * Coroutines for C code.  None of these needs the GIL or a Python thread
     * state, none raises an exception: errors are negative errno values.
     * A context belongs to the thread that created it, and is destroyed
     * there, before the thread ends.  Contexts and fibers may be mixed: a
     * fiber may enter a context and leave it again.  A context must not be
     * left while Python code is on its stack (-EBUSY).  Python code that
     * returns before that is fine if it does not recurse deeply: the stack is
     * small, and running off its end is a fault.
     * A thread's first context maps memory, and destroying its last one unmaps
     * it: keep one if you make and destroy many.
     */

    /* A new context that will run body(arg, value) with the value of the
     * first switch to it.  `stack_size` in bytes; 0: 256 KiB.
     * 0; -ENOMEM; -EINVAL for no body or a stack too small. */
    int (*ContextCreate)(PyFiber_Context **context, PyFiber_ContextBody body,
                         void *arg, size_t stack_size);

    /* Leave the running context for `to` and pass *value; after the switch
     * back, *value is the value passed to this context.  `value` NULL: pass
     * NULL, ignore what comes.  A body that returns hands its result to the
     * context that last switched to it.
     * 0; -EINVAL: no context; -EPERM: of another thread; -ESRCH: finished;
     * -EBUSY: the running context must not be left now; -ENOMEM. */
    int (*ContextSwitch)(PyFiber_Context *to, void **value);

    /* The running context, and the one that is the thread's (or fiber's) own
     * stack.  Borrowed; the same pointer as long as the thread lives. */
    PyFiber_Context *(*ContextCurrent)(void);
    PyFiber_Context *(*ContextMain)(void);

    /* 1 if its body has returned, 0 if not; -EINVAL, -EPERM. */
    int (*ContextIsDone)(PyFiber_Context *context);

    /* Free a context that is not running.  One that is suspended is abandoned
     * where it is: nothing more runs on its stack.
     * 0, also for NULL; -EPERM; -EBUSY: it is running; -EINVAL: it is the
     * thread's own. */
    int (*ContextDestroy)(PyFiber_Context *context);

    /* --- descriptors; with the GIL --------------------------------------
     *
     * Wait until `fd` can be read or written, at its end or with an error as
     * well: in a fiber of a run that fiber parks, anywhere else the thread
     * blocks, with the GIL released.  `fd` is one that its caller opens and
     * closes, such as that of a client library; nothing of it is kept after
     * the wait.  `timeout` in seconds; below 0: no limit; 0: only look.
     * 0: it is ready; 1: timed out; -1. */
    int (*WaitReadable)(int fd, double timeout);
    int (*WaitWritable)(int fd, double timeout);

    /* Fiber(own_stack=True), with the GIL: a fiber that has not been started
     * gets a stack that no other fiber uses, so what lies on it stays where it
     * is while the fiber is suspended.  For code that tells another thread, or
     * the kernel, where its variables are, and then switches or waits.  0, or
     * -1 with FiberError. */
    int (*OwnStack)(PyObject *fiber);
} PyFiber_CAPI;

#ifndef PYFIBER_NO_IMPORT

#ifdef PYFIBER_SHARED_API
extern const PyFiber_CAPI *PYFIBER_SHARED_API;
#define PyFiber_API PYFIBER_SHARED_API
#else
static const PyFiber_CAPI *PyFiber_API = NULL;
#endif

/* Find the table.  With the GIL. 0, or -1 with ImportError.  May be repeated.
 */
static inline int
PyFiber_Import(void)
{
    const PyFiber_CAPI *api;
    if (PyFiber_API != NULL) {
        return 0;
    }
    /* Not PyCapsule_Import alone: pyfiber has to be set up, too. */
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

/* Used too early?  For functions that can say so: 1, or 0 with RuntimeError. */
static inline int
PyFiber_IsReady(void)
{
    if (PyFiber_API == NULL) {
        PyErr_SetString(PyExc_RuntimeError, PYFIBER_NOT_IMPORTED);
        return 0;
    }
    return 1;
}

/* The table, for those that cannot raise: they end the process with it. */
static inline const PyFiber_CAPI *
PyFiber_Table(void)
{
    if (PyFiber_API == NULL) {
        Py_FatalError(PYFIBER_NOT_IMPORTED);
    }
    return PyFiber_API;
}

/* Is it a Fiber?  1 or 0; with the GIL. */
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
#define PyFiber_IsDone(fiber) (PyFiber_Table()->IsDone((fiber)))
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
#define PyFiber_OwnStack(fiber) (PyFiber_Table()->OwnStack((fiber)))
/* clang-format on */

#endif /* PYFIBER_NO_IMPORT */

#ifdef __cplusplus
}
#endif

#endif
