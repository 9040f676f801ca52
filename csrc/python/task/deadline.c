/* Timeouts in seconds, and the deadlines they become: see deadline.h. */
#include "python/task/deadline.h"

#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/task/scheduler.h"

int64_t
pf_deadline_in(SchedulerObject *s, int64_t ns)
{
    if (ns == PF_NEVER) {
        return PF_NEVER;
    }
    if (s == NULL && pf_thread_current != NULL) {
        s = pf_thread_current->scheduler;
    }
    int64_t now =
        s == NULL ? pf_clock_monotonic() : pf_scheduler_now(&s->core);
    return pf_timers_later(now, ns);
}

int
pf_deadline_by(SchedulerObject *s, PyObject *timeout, int64_t *deadline)
{
    int64_t ns;
    int rc = pf_arguments_length(timeout, &ns);
    *deadline = pf_deadline_in(s, ns);
    return rc;
}

int
pf_deadline(PyObject *timeout, int64_t *deadline)
{
    if (timeout == NULL || timeout == Py_None) { /* the usual case */
        *deadline = PF_NEVER;
        return 0;
    }
    return pf_deadline_by(NULL, timeout, deadline);
}

int
pf_deadline_timeout(PyObject *timeout, int64_t *deadline)
{
    int64_t ns;
    int rc = pf_arguments_length(timeout, &ns);
    *deadline = ns == 0 ? PF_NOW : pf_deadline_in(NULL, ns);
    return rc;
}

/* Converts seconds that are not negative, and that the interpreter's waits can
 * represent: 0, or -1 with OverflowError. */
static int
wait_of(double seconds, int64_t *deadline)
{
    if (seconds > (double)PY_TIMEOUT_MAX * 1e-6) {
        PyErr_SetString(PyExc_OverflowError, "timeout value is too large");
        return -1;
    }
    *deadline = seconds == 0
                    ? PF_NOW
                    : pf_deadline_in(NULL, pf_arguments_nanoseconds(seconds));
    return 0;
}

int
pf_deadline_join(PyObject *timeout, int64_t *deadline)
{
    double seconds = -1;
    *deadline = PF_NEVER;
    if (timeout != Py_None &&
        pf_arguments_real(timeout, "timeout", &seconds) < 0) {
        return -1;
    }
    return seconds < 0 ? 0 : wait_of(seconds, deadline);
}

/* Converts a lock's timeout in seconds; -1 leaves *deadline as it is. */
static int
lock_timeout(PyObject *timeout, bool blocking, int64_t *deadline)
{
    double seconds;
    if (pf_arguments_real(timeout, "timeout", &seconds) < 0) {
        return -1;
    }
    if (seconds == -1) {
        return 0;
    }
    if (!blocking) {
        PyErr_SetString(PyExc_ValueError,
                        "can't specify a timeout for a non-blocking call");
        return -1;
    }
    if (seconds < 0) {
        PyErr_SetString(PyExc_ValueError,
                        "timeout value must be a non-negative number");
        return -1;
    }
    return wait_of(seconds, deadline);
}

int
pf_deadline_acquire(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                    int64_t *deadline)
{
    static const char *const names[] = {"blocking", "timeout", NULL};
    PyObject *out[2] = {NULL, NULL};
    *deadline = PF_NEVER;
    if (PF_LIKELY(nargs == 0 && kwnames == NULL)) {
        return 0;
    }
    if (pf_arguments("acquire", names, 0, args, nargs, kwnames, out) < 0) {
        return -1;
    }
    int blocking = out[0] == NULL ? 1 : PyObject_IsTrue(out[0]);
    if (blocking < 0) {
        return -1;
    }
    if (!blocking) {
        *deadline = PF_NOW;
    }
    return out[1] == NULL ? 0 : lock_timeout(out[1], blocking, deadline);
}
