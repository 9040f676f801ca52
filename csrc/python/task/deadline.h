/* Time-outs as arguments, and the deadlines they mean. */
#ifndef PF_TASK_DEADLINE_H
#define PF_TASK_DEADLINE_H

#include "python/task/scheduler.h"

/* A deadline that is over: do not wait at all. */
#define PF_NOW INT64_MIN

/* A timeout argument in seconds to a deadline; None: PF_NEVER. 0 or -1. */
int pf_deadline(PyObject *timeout, int64_t *deadline);
int pf_deadline_by(SchedulerObject *s, PyObject *timeout, int64_t *deadline);

/* `ns` from now, by the clock of `s`; NULL: of this thread's run, if any. */
int64_t pf_deadline_in(SchedulerObject *s, int64_t ns);

/* A timeout in seconds: None is PF_NEVER, 0 is PF_NOW.  0 or -1. */
int pf_deadline_timeout(PyObject *timeout, int64_t *deadline);
/* acquire(blocking=True, timeout=-1), as threading.Lock has it. */
int pf_deadline_acquire(PyObject *const *args, Py_ssize_t nargs,
                        PyObject *kwnames, int64_t *deadline);

#endif
