/* look/: what fibers show about themselves; calls.h: their stacks. */
#ifndef PF_LOOK_INSPECT_H
#define PF_LOOK_INSPECT_H

#include "python/core/thread.h"
#include "python/task/fiber.h"

extern PyGetSetDef pf_look_getset[];
/* The frame where it is suspended; None if it is not.  New reference. */
PyObject *pf_look_frame(PfThread *t, FiberObject *fiber);
bool pf_look_has_frames(const FiberObject *fiber); /* is it suspended? */
/* The scheduler that a parked fiber waits on; NULL: it is not parked.  A raw
 * fiber may outlive the one that it waited on, so it is looked for among the
 * living. */
SchedulerObject *pf_look_waits_on(const FiberObject *fiber);
PyObject *pf_look_repr(PyObject *op);
PyObject *pf_look_stack(PyObject *op, PyObject *ignored);
int pf_inspect_init(PyObject *module);

#endif
