/* What fibers ask of cancel/, which lies above and fills the table in; and the
 * part of a cancellation that is the fiber's own affair. */
#ifndef PF_TASK_CANCELLING_H
#define PF_TASK_CANCELLING_H

#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"

typedef struct PfCancelling {
    /* Raise what the fiber is cancelled by: -1. */
    int (*raise_in)(FiberObject *fiber);
    /* Has every cancellation that reaches the fiber been raised in it? */
    bool (*is_told)(const FiberObject *fiber);
    /* A Cancelled that raise_in() made is not raised after all. */
    void (*retract)(FiberObject *fiber);
    /* Fiber.cancel().  1, or 0 if it has ended; -1 with an exception. */
    int (*cancel)(FiberObject *fiber, PyObject *reason);
    /* The run ends: is it cancelled for itself, not with the scope around? */
    bool (*is_top)(const FiberObject *fiber);
    /* It ends inside of scopes; returns what its result is then. */
    PyObject *(*ends_inside)(FiberObject *fiber, PyObject *result);
    /* It has ended, and has a base. */
    void (*child_done)(PfTaskObject *child);
    /* For the collector: the scopes that it is in. */
    int (*traverse)(const FiberObject *fiber, visitproc visit, void *arg);
    /* Out of its base, for it will never end. */
    void (*disown)(PfTaskObject *child);
} PfCancelling;

static inline int
pf_cancelling_raise(FiberObject *fiber) /* -1 */
{
    return pf_parts_hooks.cancelling->raise_in(fiber);
}

/* Whether Cancelled is raised where the fiber is now. pyfiber's own waits raise
 * it each time. A call that patch() has changed was written for threads, whose
 * clean-up may wait: it raises each cancellation once. */
static inline bool
pf_cancelling_is_here(const FiberObject *fiber)
{
    return PF_UNLIKELY(fiber->under_cancel) &&
           !(fiber->patched && pf_parts_hooks.cancelling->is_told(fiber));
}

static inline int
pf_cancelling_check(FiberObject *fiber)
{
    return pf_cancelling_is_here(fiber) ? pf_cancelling_raise(fiber) : 0;
}

/* Nanoseconds to wait before the next delivery to a fiber or grain that goes
 * on swallowing it; nearly always 0.  -1: an exception is set. */
int64_t pf_cancelling_delay(PfThread *t, PfTaskObject *task);

#endif
