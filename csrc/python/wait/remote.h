/* What a thread asks of a task of another thread, whose line of waiters,
 * callbacks and bits are that thread's alone: it posts. */
#ifndef PF_WAIT_REMOTE_H
#define PF_WAIT_REMOTE_H

#include "python/task/fiber.h"

/* As pf_wait_join, for a fiber of another member of the run. */
int pf_remote_join(PfThread *t, FiberObject *target, int64_t deadline);

int pf_remote_init(PyObject *module);

#endif
