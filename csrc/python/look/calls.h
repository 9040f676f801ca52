/* Lists the call stack of a fiber, also of one that runs on another thread. */
#ifndef PF_LOOK_CALLS_H
#define PF_LOOK_CALLS_H

#include "python/task/fiber.h"

/* Returns a list of (code, line) for each call on the stack of a fiber that is
 * suspended or runs on any thread, innermost call first; an empty list if it
 * has no frames; NULL with an exception.  The caller is attached to the
 * interpreter and holds no mutex. */
PyObject *pf_calls_of(FiberObject *fiber);

int pf_calls_init(PyObject *module);

#endif
