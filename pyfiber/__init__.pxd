# pyfiber's C API for Cython: `cimport pyfiber`, with pyfiber.get_include() among
# the include directories, and pyfiber.PyFiber_Import() once per module.  What
# each function promises is said in pyfiber.h.
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

cdef extern from "pyfiber.h":
    const double PYFIBER_FOREVER
    ctypedef object (*PyFiber_Body)(void *arg)
    ctypedef void (*PyFiber_Destroy)(void *arg)
    ctypedef struct PyFiber_Context
    ctypedef void *(*PyFiber_ContextBody)(void *arg, void *value) noexcept nogil

    ctypedef struct PyFiber_SchedulerStats:
        size_t size
        size_t fibers
        size_t foreground
        size_t ready
        size_t timers
        uint64_t switches
        uint64_t wakeups
        uint64_t messages
        uint64_t timeouts
        uint64_t waits

    ctypedef struct PyFiber_StackStats:
        size_t size
        size_t stack_size
        size_t mapped
        size_t slots
        size_t live
        size_t peak
        uint64_t acquired
        uint64_t trims

    int PyFiber_Import() except -1
    bint PyFiber_Check(object)

    object PyFiber_New(object target, object args, object kwargs)
    object PyFiber_NewC(PyFiber_Body body, void *arg, PyFiber_Destroy destroy)
    object PyFiber_Current()
    object PyFiber_Switch(object fiber, object value)
    object PyFiber_Throw(object fiber, object exc)
    int PyFiber_IsDone(object fiber) except -1
    int PyFiber_OwnStack(object fiber) except -1

    object PyFiber_Run(object callable, object args, object kwargs)
    object PyFiber_Spawn(object callable, object args, object kwargs)
    int PyFiber_Start(object fiber) except -1
    int PyFiber_Yield() except -1
    int PyFiber_Sleep(double seconds) except -1
    object PyFiber_Park(double timeout)
    int PyFiber_Join(object fiber, double timeout) except -1
    object PyFiber_Result(object fiber, double timeout)
    int PyFiber_CheckCancelled() except -1
    int PyFiber_WaitReadable(int fd, double timeout) except -1
    int PyFiber_WaitWritable(int fd, double timeout) except -1
    int PyFiber_Cancel(object fiber, object reason) except -1
    int PyFiber_Unpark(object fiber, object value) except -1

    int PyFiber_UnparkNoGIL(PyObject *fiber) noexcept nogil
    int PyFiber_Hold(PyObject *fiber) noexcept nogil
    int PyFiber_Release(PyObject *fiber) noexcept nogil

    int PyFiber_GetSchedulerStats(PyFiber_SchedulerStats *stats) except -1
    int PyFiber_GetStackStats(PyFiber_StackStats *stats) except -1
    size_t PyFiber_GetStackSize()
    int PyFiber_SetStackSize(size_t bytes) except -1

    int PyFiber_ContextCreate(
        PyFiber_Context **context, PyFiber_ContextBody body, void *arg, size_t stack_size
    ) noexcept nogil
    int PyFiber_ContextSwitch(PyFiber_Context *to, void **value) noexcept nogil
    PyFiber_Context *PyFiber_ContextCurrent() noexcept nogil
    PyFiber_Context *PyFiber_ContextMain() noexcept nogil
    int PyFiber_ContextIsDone(PyFiber_Context *context) noexcept nogil
    int PyFiber_ContextDestroy(PyFiber_Context *context) noexcept nogil
