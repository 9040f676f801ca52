/* Notifies profilers of switches. A profiler that follows a thread's calls
 * keeps a separate stack of calls, which no longer matches after a switch.
 * While the thread has a profile function set from C, the profiler is notified
 * right after each switch, before any other code runs there. This uses
 * thread->zombie, the fiber that was left: the fiber that was switched to
 * always looks there first. */
#ifndef PF_SWITCH_PROFILED_H
#define PF_SWITCH_PROFILED_H

#include "python/core/thread.h"
#include "python/task/fiber.h"

/* Notes the fiber that a switch is about to leave. */
void pf_profiled_leave(PfThread *t, FiberObject *from);
/* For an operation `reap`: notifies the profiler. True: the fiber that was
 * left has not ended, and was only for this made the zombie, so leave it
 * alone. */
bool pf_profiled_land(PfThread *t);

#endif
