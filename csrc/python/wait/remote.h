/* Requests to a fiber of another thread.  The fiber's waiters, callbacks and
 * flags belong to its own thread alone, so a request is posted there. */
#ifndef PF_WAIT_REMOTE_H
#define PF_WAIT_REMOTE_H

#include "python/task/fiber.h"

/* As pf_wait_join, for a fiber of another thread of the same run. */
int pf_remote_join(PfThread *t, FiberObject *target, int64_t deadline);

int pf_remote_init(PyObject *module);

#endif
