/* Whose turns are recorded: see turns.c.
 *
 * With a GIL those of all threads.  Without one a record is made on one thread,
 * which alone begins, ends and reads it, and the runs of the others know
 * nothing of it.
 */
#ifndef PF_RECORDED_H
#define PF_RECORDED_H

#include "python/task/scheduler.h"

bool pf_is_recorded(const SchedulerObject *s);
/* Recorded is what this thread runs: 0, or -1 with FiberError. */
int pf_claim_record(void);
void pf_unclaim_record(void); /* nothing is, any more */

#endif
