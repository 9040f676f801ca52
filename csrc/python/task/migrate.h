/* A fiber of a run on several threads that has not begun may be given to
 * another of its schedulers (run/team.c).  The object stays where it was
 * spawned, parked and `lent`; a double runs in its place there.
 *
 *   rare->other   of the one, its proxy; of the proxy, the one
 *   migrated      both have it, until the one has ended */
#ifndef PF_TASK_MIGRATE_H
#define PF_TASK_MIGRATE_H

#include "python/task/fiber.h"

typedef struct PfMigrateOps {
    /* It was woken while it is away, which only a cancellation does: pass that
     * on. */
    void (*woken)(FiberObject *fiber);
    /* Members of the same run? */
    bool (*together)(SchedulerObject *a, SchedulerObject *b);
    /* A fiber has been made ready here: is somebody out of work? */
    void (*spawned)(SchedulerObject *s);
    /* One has come from another member: this one idles no longer. */
    void (*came)(SchedulerObject *s);
} PfMigrateOps;

/* It is the one, and away. */
static inline bool
pf_migrate_is_away(const FiberObject *fiber)
{
    return fiber->migrated && !fiber->entered && fiber->fiber.stack == NULL &&
           fiber->core.state != PF_DONE && fiber->target == NULL;
}

#endif
