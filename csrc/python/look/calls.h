/* Lists the calls of a fiber, also of one that runs on another thread. */
#ifndef PF_LOOK_CALLS_H
#define PF_LOOK_CALLS_H

#include "python/task/fiber.h"

/* Returns a list of (code, line) for each call of a fiber that is suspended or
 * runs on another thread, innermost first; an empty list if it has no frames;
 * NULL with an exception. */
PyObject *pf_calls_of(FiberObject *fiber);

int pf_calls_init(PyObject *module);

#endif
