/* Exceptions and signals for the main program: see core/parts.h.
 *
 * While the main program waits, an exception is thrown into it by ending its
 * wait as a cancellation does, which every wait can take.  While it is about
 * to continue, the exception is raised at its next bytecodes, by a pending call
 * of the interpreter, and so is the handler of a signal, by the interpreter's
 * own flag for the signal.
 */
#include "python/virtual/virtual.h"

#include "python/core/tstate.h"
#include "python/switch/tracing.h"
#include "python/task/scheduler.h"

#define MOST_SIGNALS 64

/* of a thread: the main program's, which alone uses these */
static FiberObject *main_fiber; /* during a block, else NULL */
/* of a thread: raised in the main program as soon as it runs, or NULL */
static PyObject *thrown;
/* of a thread: numbers of signals, as bits, whose handlers wait for the main
 * program to run */
static uint64_t signals;

/* Is this fiber, or one that was entered from it, the main program? */
static bool
is_main(const FiberObject *fiber)
{
    while (fiber != NULL && fiber != main_fiber && !fiber->scheduled &&
           !fiber->is_hub) {
        fiber = fiber->parent;
    }
    return fiber != NULL && fiber == main_fiber;
}

bool
pf_virtual_in_main(const PfThread *t)
{
    return main_fiber != NULL && is_main(CURRENT(t));
}

FiberObject *
pf_virtual_main(void)
{
    return main_fiber;
}

static int
raise_thrown(FiberObject *fiber)
{
    PyObject *exc = thrown;
    if (PF_LIKELY(exc == NULL) || !is_main(fiber)) {
        return 0;
    }
    thrown = NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
    Py_DECREF(exc);
    return -1;
}

/* The pending call.  If another fiber runs by now, the main program's next
 * wait ends with another one. */
static int
raise_soon(void *ignored)
{
    (void)ignored;
    PfThread *t = pf_thread_current;
    return t == NULL ? 0 : raise_thrown(CURRENT(t));
}

static void
resumed(PfThread *t, FiberObject *fiber)
{
    (void)t;
    if (PF_LIKELY(thrown == NULL && signals == 0) || !is_main(fiber)) {
        return;
    }
    if (thrown != NULL) {
        (void)Py_AddPendingCall(raise_soon, NULL);
    }
    for (int number = 0; signals != 0 && number < MOST_SIGNALS; number++) {
        if (signals & ((uint64_t)1 << number)) {
            signals &= ~((uint64_t)1 << number);
            (void)PyErr_SetInterruptEx(number);
        }
    }
}

/* A fiber that was entered from the main program does not count here. */
static bool
is_main_itself(const FiberObject *fiber)
{
    return fiber == main_fiber;
}

static const PfMainOps main_ops = {
    .is_main = is_main_itself,
    .raise_thrown = raise_thrown,
    .resumed = resumed,
};

/* A signal may always come, as to a program with threads: such a run is never
 * a deadlock. */
static bool
has_helpers(const SchedulerObject *s)
{
    return main_fiber != NULL && main_fiber->thread == s->thread;
}

const PfPart pf_virtual_part = {
    .hooks = {.main_program = &main_ops},
    .has_helpers = has_helpers,
    .after_fork = pf_virtual_after_fork,
};

/* --------------------------------------------------------------- from Python */

static PyObject *
set_main(PyObject *module, PyObject *op)
{
    (void)module;
    FiberObject *fiber = op == Py_None ? NULL : pf_fiber_expect(op);
    if (fiber == NULL && PyErr_Occurred()) {
        return NULL;
    }
    FiberObject *before = main_fiber;
    PyObject *left = thrown;
    if (fiber == NULL && pf_thread_current != NULL) {
        pf_tracing_disown(pf_thread_current);
    }
    main_fiber = (FiberObject *)Py_XNewRef((PyObject *)fiber);
    thrown = NULL;
    signals = 0;
    if (fiber != NULL) {
        Py_CLEAR(left);
    }
    Py_XDECREF(before);
    return left != NULL ? left : Py_NewRef(Py_None);
}

static PyObject *
in_main(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_current;
    return PyBool_FromLong(t != NULL && pf_virtual_in_main(t));
}

static bool
waits(const FiberObject *fiber)
{
    return fiber != NULL && fiber->core.state == PF_PARKED;
}

static PyObject *
main_waits(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyBool_FromLong(waits(main_fiber));
}

/* An exception that was thrown before and has not been raised is the new
 * one's context. */
static PyObject *
throw_into_main(PyObject *module, PyObject *exc)
{
    (void)module;
    if (!PyExceptionInstance_Check(exc)) {
        PyErr_SetString(PyExc_TypeError, "expected an exception");
        return NULL;
    }
    if (thrown != NULL && thrown != exc) {
        PyException_SetContext(exc, thrown);
        thrown = NULL;
    }
    Py_XSETREF(thrown, Py_NewRef(exc));
    if (waits(main_fiber)) {
        pf_scheduler_wake(main_fiber->core.scheduler, &main_fiber->core,
                          PF_WAKE_CANCEL);
    }
    Py_RETURN_NONE;
}

static PyObject *
signal_main(PyObject *module, PyObject *number)
{
    (void)module;
    long value = PyLong_AsLong(number);
    if (value < 0 || value >= MOST_SIGNALS) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "no such signal");
        }
        return NULL;
    }
    signals |= (uint64_t)1 << value;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_set_main", set_main, METH_O,
     "_set_main(fiber, /)\n--\n\n"
     "The fiber is the main program from now on; None: there is none.\n"
     "Returns an exception that was thrown and has not been raised, or None."},
    {"_in_main", in_main, METH_NOARGS,
     "_in_main()\n--\n\nDoes the running code belong to the main program?"},
    {"_main_waits", main_waits, METH_NOARGS,
     "_main_waits()\n--\n\nIs the main program parked?"},
    {"_throw_into_main", throw_into_main, METH_O,
     "_throw_into_main(exc, /)\n--\n\n"
     "Raise it in the main program, where it waits or will run next."},
    {"_signal_main", signal_main, METH_O,
     "_signal_main(number, /)\n--\n\n"
     "Call the signal's handler again when the main program runs."},
    {NULL, NULL, 0, NULL},
};

int
pf_virtual_main_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
