/* In a run on several threads, a fiber that has not begun may be given to
 * another of the run's schedulers (run/team.c). The object stays where it was
 * spawned, parked and `migrated`; a proxy runs its function on the other
 * thread.
 *
 *   rare->other   of the fiber: its proxy; of the proxy: the fiber
 *   migrated      set in both, until the fiber has ended
 */
#ifndef PF_TASK_MIGRATE_H
#define PF_TASK_MIGRATE_H

#include "python/task/fiber.h"

typedef struct PfMigrateOps {
    /* The fiber was woken while its proxy runs, which only a cancellation
     * does: pass that on to the proxy. */
    void (*woken)(FiberObject *fiber);
    /* Do both schedulers belong to the same run? */
    bool (*together)(SchedulerObject *a, SchedulerObject *b);
    /* A fiber has been made ready here: give it away if another member has no
     * work. */
    void (*spawned)(SchedulerObject *s);
    /* A fiber has come from another member: this one is no longer idle. */
    void (*came)(SchedulerObject *s);
} PfMigrateOps;

/* Does a proxy run in this fiber's place? */
static inline bool
pf_migrate_is_away(const FiberObject *fiber)
{
    return fiber->migrated && !fiber->entered && fiber->fiber.stack == NULL &&
           fiber->core.state != PF_DONE && fiber->target == NULL;
}

#endif
