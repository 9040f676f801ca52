/* Profilers that follow a thread's calls keep a stack of their own, which a
 * switch replaces behind their back.  While the thread has a profile function
 * of C's kind, each switch is told where it lands, before any other code runs
 * there: whoever lands looks for thread->zombie, which is the fiber that was
 * left. */
#ifndef PF_SWITCH_PROFILED_H
#define PF_SWITCH_PROFILED_H

#include "python/core/thread.h"
#include "python/task/fiber.h"

/* Just before the switch. */
void pf_profiled_leave(PfThread *t, FiberObject *from);
/* For an operation `reap`: true if the fiber that was left is to be left
 * alone, as it is no zombie but for this. */
bool pf_profiled_land(PfThread *t);

#endif
