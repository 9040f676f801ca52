/* Signals during a run on the main thread: the first Ctrl-C cancels the run,
 * and any signal wakes the idle loop, which watches a descriptor for that
 * (wakeup.h).  On other threads nothing is set up.
 */
#include "python/core/facade.h"
#include "python/core/import.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/run/run.h"
#include "python/run/wakeup.h"
#include "python/task/scheduler.h"

#include <errno.h>
#include <signal.h>

/* The descriptor is ready, which has ended the wait.  The loop runs the
 * handlers, so here it is only reset. */
static void
signal_came(pf_registration *r, pf_scheduler *s, unsigned events)
{
    (void)r;
    (void)s;
    (void)events;
    pf_wakeup_drain();
}

/* Watches the descriptor.  No fiber waits for it, so it does not count as an
 * expected event when the loop looks for a deadlock. */
static int
watch(SchedulerObject *s, intptr_t descriptor)
{
    pf_poller *poller = s->core.poller;
    s->signals.ready = signal_came;
    int rc = poller->ops->add(poller, descriptor, PF_IO_READ, &s->signals);
    if (rc < 0) {
        errno = -rc;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return rc;
}

static void
unwatch(SchedulerObject *s)
{
    if (s->signals.added) {
        s->core.poller->ops->remove(s->core.poller, &s->signals);
    }
}

/* The main thread's identifier by the public function, which has to import
 * `threading`.  A new reference, or NULL with an exception. */
static PyObject *
ident_by_threading(void)
{
    PyObject *ident = NULL, *main = NULL;
    PyObject *threading = pf_import("threading");
    if (threading == NULL) {
        goto done;
    }
    main = PyObject_CallMethod(threading, "main_thread", NULL);
    if (main != NULL) {
        ident = PyObject_GetAttrString(main, "ident");
    }
done:
    Py_XDECREF(main);
    Py_XDECREF(threading);
    return ident;
}

/* signal.set_wakeup_fd and signal.signal are allowed on the main thread only.
 * The private function of `_thread` is the cheapest way to find out. */
static bool
on_main_thread(void)
{
    static const char ask[] = "_get_main_thread_ident";
    PyObject *ident = NULL;
    PyObject *thread = pf_import("_thread");
    if (thread != NULL) {
        ident = PyObject_HasAttrString(thread, ask)
                    ? PyObject_CallMethod(thread, ask, NULL)
                    : ident_by_threading();
    }
    bool yes = ident != NULL && ident != Py_None &&
               PyLong_AsUnsignedLong(ident) == PyThread_get_thread_ident();
    PyErr_Clear(); /* if it cannot be found out, leave signals alone */
    Py_XDECREF(ident);
    Py_XDECREF(thread);
    return yes;
}

static int
begin_wakeup(SchedulerObject *s, PyObject *signals, PfSignals *saved)
{
    intptr_t descriptor;
    if (pf_wakeup_begin(signals, &saved->old_wakeup, &descriptor) < 0) {
        return -1;
    }
    return descriptor == PF_NO_DESCRIPTOR ? 0 : watch(s, descriptor);
}

/* Replaces the default handler of SIGINT with ours.  A handler that the
 * program has set stays. */
static int
begin_sigint(PyObject *signals, PfSignals *saved)
{
    int rc = -1;
    PyObject *ours = NULL, *set = NULL;
    PyObject *standard = NULL;
    PyObject *current = PyObject_CallMethod(signals, "getsignal", "i", SIGINT);
    if (current == NULL) {
        goto done;
    }
    standard = PyObject_GetAttrString(signals, "default_int_handler");
    if (standard == NULL) {
        goto done;
    }
    rc = 0;
    if (current != standard) {
        goto done;
    }
    rc = -1;
    ours = pf_import_from("pyfiber._engine", "_on_sigint");
    if (ours == NULL) {
        goto done;
    }
    set = PyObject_CallMethod(signals, "signal", "iO", SIGINT, ours);
    if (set != NULL) {
        saved->old_handler = Py_NewRef(current);
        rc = 0;
    }
done:
    Py_XDECREF(set);
    Py_XDECREF(ours);
    Py_XDECREF(standard);
    Py_XDECREF(current);
    return rc;
}

/* Starts a thread that prints a hint about a second Ctrl-C unless the run ends
 * soon.  Returns 0; or -1 with KeyboardInterrupt if the second one has come
 * meanwhile.  The fiber that the signal interrupts must not park in here: it
 * is cancelled already, so its first wait would raise Cancelled. */
static int
watch_end(PfThread *t, SchedulerObject *s)
{
    pf_thread_no_switch_begin(t, "in the handler of Ctrl-C");
    PyObject *watch = PyObject_CallNoArgs(pf_facade.interrupted);
    pf_thread_no_switch_end(t);
    bool again =
        watch == NULL && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
    if (watch == NULL && !again) {
        PyErr_WriteUnraisable((PyObject *)s);
    }
    PyObject *raised = again ? pystate_take_exception() : NULL;
    Py_XSETREF(s->watch, watch);
    if (again) {
        pystate_restore_exception(raised);
    }
    return again ? -1 : 0;
}

static void
end_watch(SchedulerObject *s)
{
    PyObject *watch = s->watch;
    s->watch = NULL;
    if (watch != NULL) {
        PyObject *done = PyObject_CallNoArgs(watch);
        if (done == NULL) {
            PyErr_WriteUnraisable(watch);
        }
        Py_XDECREF(done);
        Py_DECREF(watch);
    }
}

int
pf_signals_begin(SchedulerObject *s, PfSignals *saved)
{
    saved->old_handler = NULL;
    saved->old_wakeup = PF_WAKEUP_UNTOUCHED;
    if (!on_main_thread()) {
        return 0;
    }
    PyObject *signals = pf_import("signal");
    int rc = signals == NULL || begin_wakeup(s, signals, saved) < 0 ||
                     begin_sigint(signals, saved) < 0
                 ? -1
                 : 0;
    Py_XDECREF(signals);
    if (rc < 0) {
        pf_signals_end(s, saved);
    }
    return rc;
}

static void
end_sigint(PyObject *signals, PfSignals *saved)
{
    PyObject *now = PyObject_CallMethod(signals, "getsignal", "i", SIGINT);
    if (now != NULL && PyCFunction_Check(now) &&
        PyCFunction_GET_FUNCTION(now) == pf_signals_on_sigint) {
        Py_XDECREF(PyObject_CallMethod(signals, "signal", "iO", SIGINT,
                                       saved->old_handler));
    }
    Py_XDECREF(now);
}

/* An exception that is set on entry stays set. */
void
pf_signals_end(SchedulerObject *s, PfSignals *saved)
{
    PyObject *pending = pystate_take_exception();
    PyObject *signals = NULL;
    if (saved->old_handler != NULL ||
        saved->old_wakeup != PF_WAKEUP_UNTOUCHED) {
        signals = pf_import("signal");
    }
    unwatch(s);
    end_watch(s);
    if (signals != NULL && saved->old_wakeup != PF_WAKEUP_UNTOUCHED) {
        pf_wakeup_end(signals, saved->old_wakeup);
    }
    if (signals != NULL && saved->old_handler != NULL) {
        end_sigint(signals, saved);
    }
    Py_CLEAR(saved->old_handler);
    Py_XDECREF(signals);
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(NULL);
    }
    pystate_restore_exception(pending);
}

/* Handles SIGINT.  The first Ctrl-C cancels every fiber, and run() raises
 * KeyboardInterrupt when all of them have ended.  The second one raises it in
 * the running code at once, and the loop does not wait for fibers. */
PyObject *
pf_signals_on_sigint(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    PfThread *t = pf_thread_current;
    SchedulerObject *s = t == NULL ? NULL : t->scheduler;
    if (s == NULL || ++s->interrupts > 1) {
        if (s != NULL) {
            pf_scheduler_wake_hub(s);
        }
        PyErr_SetNone(PyExc_KeyboardInterrupt);
        return NULL;
    }
    PyObject *exc = PyObject_CallNoArgs(PyExc_KeyboardInterrupt);
    if (exc == NULL) {
        return NULL;
    }
    pf_scheduler_fail(s, exc);
    pf_run_cancel_because(s, "KeyboardInterrupt");
    return watch_end(t, s) < 0 ? NULL : Py_NewRef(Py_None);
}
