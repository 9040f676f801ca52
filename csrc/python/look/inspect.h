/* look/: looking at fibers, for programs and for reports.
 *
 *   inspect.h  a fiber's attributes, its frame, repr(); lists of all fibers
 *   calls.h    a fiber's calls, also without a frame object
 */
#ifndef PF_LOOK_INSPECT_H
#define PF_LOOK_INSPECT_H

#include "python/core/thread.h"
#include "python/task/fiber.h"

extern PyGetSetDef pf_look_getset[];
/* Returns the frame where the fiber is suspended, or None if it is not: a new
 * reference, or NULL with an exception. */
PyObject *pf_look_frame(PfThread *t, FiberObject *fiber);
/* Returns true if the fiber is suspended, with frames on its stack. */
bool pf_look_has_frames(const FiberObject *fiber);
/* Returns the scheduler on which the fiber is parked, or NULL if it is not
 * parked: borrowed.  A raw fiber may outlive the scheduler on which it waited.
 * So this searches the schedulers of the fiber's thread, and does not follow
 * core.scheduler. */
SchedulerObject *pf_look_waits_on(const FiberObject *fiber);
PyObject *pf_look_repr(PyObject *op);
PyObject *pf_look_stack(PyObject *op, PyObject *ignored);
int pf_inspect_init(PyObject *module);

#endif
