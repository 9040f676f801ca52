/* Converts timeouts, given as arguments in seconds, to deadlines, in
 * nanoseconds of a monotonic clock (or of a test's virtual one). */
#ifndef PF_TASK_DEADLINE_H
#define PF_TASK_DEADLINE_H

#include "python/task/scheduler.h"

/* A deadline in the past: do not wait at all. */
#define PF_NOW INT64_MIN

/* Converts a timeout in seconds; None: PF_NEVER. 0 or -1. The second function
 * uses the clock of `s` (see below). */
int pf_deadline(PyObject *timeout, int64_t *deadline);
int pf_deadline_by(SchedulerObject *s, PyObject *timeout, int64_t *deadline);

/* The deadline in `ns` nanoseconds, by the clock of `s`. NULL: of the
 * scheduler that runs on this thread, if any. */
int64_t pf_deadline_in(SchedulerObject *s, int64_t ns);

/* The timeout of a thread's join(): None and negative ones give PF_NEVER, 0
 * gives PF_NOW.  0, or -1 with TypeError, ValueError or OverflowError. */
int pf_deadline_join(PyObject *timeout, int64_t *deadline);
/* As pf_deadline, but a timeout of 0 gives PF_NOW. 0 or -1. */
int pf_deadline_timeout(PyObject *timeout, int64_t *deadline);
/* Converts the arguments of acquire(blocking=True, timeout=-1), as of
 * threading.Lock. 0 or -1. */
int pf_deadline_acquire(PyObject *const *args, Py_ssize_t nargs,
                        PyObject *kwnames, int64_t *deadline);

#endif
