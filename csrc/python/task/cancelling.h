/* The operations of cancel/ that rooms below call through a table, and
 * delivering a cancellation to a fiber. */
#ifndef PF_TASK_CANCELLING_H
#define PF_TASK_CANCELLING_H

#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"

typedef struct PfCancelling {
    /* Raise the Cancelled that is due in the fiber. -1. */
    int (*raise_in)(FiberObject *fiber);
    /* Has every cancellation that reaches the fiber been raised in it? */
    bool (*is_delivered)(const FiberObject *fiber);
    /* A Cancelled that raise_in() made is not raised after all. */
    void (*retract)(FiberObject *fiber);
    /* Fiber.cancel(). 1, or 0 if it has ended; -1 with an exception. */
    int (*cancel)(FiberObject *fiber, PyObject *reason);
    /* The run ends: is this fiber cancelled directly, and not with the scope
     * around it? */
    bool (*is_top)(const FiberObject *fiber);
    /* The fiber ends inside of scopes: close them, and return the new result
     * (NULL: with an exception). */
    PyObject *(*ends_inside)(FiberObject *fiber, PyObject *result);
    /* A child of a scope has ended. */
    void (*child_done)(PfTaskObject *child);
    /* For the collector: visit the scopes that the fiber is in. */
    int (*traverse)(const FiberObject *fiber, visitproc visit, void *arg);
    /* Remove from its scope a child that will never end. */
    void (*disown)(PfTaskObject *child);
} PfCancelling;

static inline int
pf_cancelling_raise(FiberObject *fiber) /* -1 */
{
    return pf_parts_hooks.cancelling->raise_in(fiber);
}

/* Is Cancelled raised at the fiber's present wait? pyfiber's own waits raise
 * it each time. A call that patch() has changed was written for threads, whose
 * clean-up may wait, so it raises each cancellation only once. */
static inline bool
pf_cancelling_is_here(const FiberObject *fiber)
{
    return PF_UNLIKELY(fiber->under_cancel) &&
           !(fiber->patched && pf_parts_hooks.cancelling->is_delivered(fiber));
}

static inline int
pf_cancelling_check(FiberObject *fiber)
{
    return pf_cancelling_is_here(fiber) ? pf_cancelling_raise(fiber) : 0;
}

/* How many nanoseconds to wait before Cancelled is raised again in a fiber or
 * grain that keeps swallowing it; nearly always 0. -1: an exception is set. */
int64_t pf_cancelling_delay(PfThread *t, PfTaskObject *task);

#endif
