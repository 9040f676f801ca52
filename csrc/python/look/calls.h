/* The calls of fibers, also of those that run on another thread. */
#ifndef PF_LOOK_CALLS_H
#define PF_LOOK_CALLS_H

#include "python/task/fiber.h"

/* (code, line) of each call, innermost first: of a fiber that is suspended or
 * runs on another thread.  Empty if it has none. */
PyObject *pf_calls_of(FiberObject *fiber);

int pf_calls_init(PyObject *module);

#endif
