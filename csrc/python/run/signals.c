/* Ctrl-C, and waking the idle loop for any signal.
 *
 * A signal that arrives just before the loop blocks would not interrupt it,
 * and the system may deliver it to another thread; so on the main thread the
 * interpreter is told (signal.set_wakeup_fd) to write to a pipe that the loop
 * watches.  If the program uses the wakeup descriptor itself it is left alone.
 * On Windows the loop watches the event that the interpreter sets for Ctrl-C.
 */
#include "python/core/facade.h"
#include "python/core/import.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/fiber/hub.h"
#include "python/run/run.h"

#include <errno.h>
#include <signal.h>
#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
/* Exported by every version, declared by 3.11's and 3.12's headers only. */
PyAPI_FUNC(void *) _PyOS_SigintEvent(void);
#else
#include <fcntl.h>
#include <unistd.h>
#endif

#define NOT_SET (-2)

#ifndef _WIN32

static int wake_pipe[2] = {-1, -1};

static int
set_up_end(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
                   fcntl(fd, F_SETFD, FD_CLOEXEC) < 0
               ? -1
               : 0;
}

static int
open_pipe(void)
{
    if (wake_pipe[0] >= 0) {
        return 0;
    }
    if (pipe(wake_pipe) < 0 || set_up_end(wake_pipe[0]) < 0 ||
        set_up_end(wake_pipe[1]) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return 0;
}

/* The child has a pipe of its own: what the parent reads must not be ours. */
static int
after_fork(PfThread *t)
{
    (void)t;
    if (wake_pipe[0] < 0) {
        return 0;
    }
    int fresh[2];
    if (pipe(fresh) < 0 || set_up_end(fresh[0]) < 0 ||
        set_up_end(fresh[1]) < 0 || dup2(fresh[0], wake_pipe[0]) < 0 ||
        dup2(fresh[1], wake_pipe[1]) < 0 || set_up_end(wake_pipe[0]) < 0 ||
        set_up_end(wake_pipe[1]) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    close(fresh[0]);
    close(fresh[1]);
    return 0;
}

const PfPart pf_signals_part = {
    .after_fork = after_fork,
};

static void
drain(void)
{
    char sink[64];
    while (read(wake_pipe[0], sink, sizeof(sink)) == (ssize_t)sizeof(sink)) {
    }
}

#else

const PfPart pf_signals_part = {0}; /* no fork there */

/* The event stays set until somebody resets it: the loop would spin. */
static void
drain(void)
{
    ResetEvent((HANDLE)_PyOS_SigintEvent());
}

#endif

/* It has ended the wait; the loop runs the handlers. */
static void
signal_came(pf_registration *r, pf_scheduler *s, unsigned events)
{
    (void)r;
    (void)s;
    (void)events;
    drain();
}

/* Nobody awaits it: a run is as idle with it as without. */
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

static bool
on_main_thread(void)
{
    PyObject *threading = pf_import("_thread");
    PyObject *main_ident = NULL;
    bool yes = false;
    /* signal.set_wakeup_fd and signal.signal are refused elsewhere; ask the
     * cheapest question that tells. */
    if (threading != NULL &&
        PyObject_HasAttrString(threading, "_get_main_thread_ident")) {
        main_ident =
            PyObject_CallMethod(threading, "_get_main_thread_ident", NULL);
    } else if (threading != NULL) {
        PyObject *mod = pf_import("threading");
        PyObject *main =
            mod == NULL ? NULL : PyObject_CallMethod(mod, "main_thread", NULL);
        main_ident =
            main == NULL ? NULL : PyObject_GetAttrString(main, "ident");
        Py_XDECREF(main);
        Py_XDECREF(mod);
    }
    if (main_ident != NULL && main_ident != Py_None) {
        yes = PyLong_AsUnsignedLong(main_ident) == PyThread_get_thread_ident();
    }
    PyErr_Clear(); /* nobody can tell: then signals are left alone */
    Py_XDECREF(main_ident);
    Py_XDECREF(threading);
    return yes;
}

static int
begin_wakeup(SchedulerObject *s, PyObject *signals, PfSignals *saved)
{
#ifdef _WIN32
    (void)signals;
    (void)saved;
    void *event = _PyOS_SigintEvent();
    return event == NULL ? 0 : watch(s, (intptr_t)event);
#else
    if (open_pipe() < 0) {
        return -1;
    }
    PyObject *set = PyObject_GetAttrString(signals, "set_wakeup_fd");
    PyObject *args = Py_BuildValue("(i)", wake_pipe[1]);
    PyObject *kwargs = Py_BuildValue("{sO}", "warn_on_full_buffer", Py_False);
    PyObject *old = NULL;
    if (set != NULL && args != NULL && kwargs != NULL) {
        old = PyObject_Call(set, args, kwargs);
    }
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    Py_XDECREF(set);
    if (old == NULL) {
        return -1;
    }
    saved->old_wakeup = PyLong_AsLong(old);
    Py_DECREF(old);
    if (PyErr_Occurred()) {
        return -1; /* not the function that we know */
    }
    if (saved->old_wakeup >= 0 && saved->old_wakeup != wake_pipe[1]) {
        /* the program's own: put it back */
        PyObject *back = PyObject_CallMethod(signals, "set_wakeup_fd", "l",
                                             saved->old_wakeup);
        saved->old_wakeup = NOT_SET;
        Py_XDECREF(back);
        return back == NULL ? -1 : 0;
    }
    return watch(s, wake_pipe[0]);
#endif
}

/* Ours in place of the default one; a handler of the program's stays. */
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

/* If the run does not end soon, that is told, and what a second Ctrl-C does. */
static void
watch_end(SchedulerObject *s)
{
    PyObject *watch = PyObject_CallNoArgs(pf_facade.interrupted);
    if (watch == NULL) {
        PyErr_WriteUnraisable((PyObject *)s);
    }
    Py_XSETREF(s->watch, watch);
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
    saved->old_wakeup = NOT_SET;
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

#ifndef _WIN32
/* Only if it is still ours; a descriptor set during the run stays. */
static void
end_wakeup(PyObject *signals, PfSignals *saved)
{
    PyObject *now =
        PyObject_CallMethod(signals, "set_wakeup_fd", "l", saved->old_wakeup);
    if (now == NULL) {
        return;
    }
    long found = PyLong_AsLong(now);
    Py_DECREF(now);
    if (found != wake_pipe[1] && found != -1) {
        Py_XDECREF(PyObject_CallMethod(signals, "set_wakeup_fd", "l", found));
    }
}
#endif

static void
end_sigint(PyObject *signals, PfSignals *saved)
{
    PyObject *now = PyObject_CallMethod(signals, "getsignal", "i", SIGINT);
    if (now != NULL && PyCFunction_Check(now) &&
        PyCFunction_GET_FUNCTION(now) == pf_on_sigint) {
        Py_XDECREF(PyObject_CallMethod(signals, "signal", "iO", SIGINT,
                                       saved->old_handler));
    }
    Py_XDECREF(now);
}

/* Keeps the exception that is set, if one is. */
void
pf_signals_end(SchedulerObject *s, PfSignals *saved)
{
    PyObject *pending = pf_take_exception();
    PyObject *signals = NULL;
    if (saved->old_handler != NULL || saved->old_wakeup != NOT_SET) {
        signals = pf_import("signal");
    }
    unwatch(s);
    end_watch(s);
#ifndef _WIN32
    if (signals != NULL && saved->old_wakeup != NOT_SET) {
        end_wakeup(signals, saved);
    }
#endif
    if (signals != NULL && saved->old_handler != NULL) {
        end_sigint(signals, saved);
    }
    Py_CLEAR(saved->old_handler);
    Py_XDECREF(signals);
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(NULL);
    }
    if (pending != NULL) {
        pf_restore_exception(pending);
    }
}

/* Ctrl-C: the first cancels everything and run() raises KeyboardInterrupt
 * when that is done; the second does not wait. */
PyObject *
pf_on_sigint(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    PfThread *t = pf_tls_thread;
    SchedulerObject *s = t == NULL ? NULL : t->scheduler;
    if (s == NULL || ++s->interrupts > 1) {
        if (s != NULL) {
            pf_wake_hub(s);
        }
        PyErr_SetNone(PyExc_KeyboardInterrupt);
        return NULL;
    }
    PyObject *exc = PyObject_CallNoArgs(PyExc_KeyboardInterrupt);
    if (exc == NULL) {
        return NULL;
    }
    pf_scheduler_fail(s, exc);
    pf_scheduler_cancel_because(s, "KeyboardInterrupt");
    watch_end(s);
    Py_RETURN_NONE;
}
