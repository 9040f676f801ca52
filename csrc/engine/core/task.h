/* Tasks: the entries of the ready queue, and their operations.
 *
 * The queue, the inbox, the timers and all code that wakes something handle
 * tasks of any kind.  A fiber is a task with a stack (fiber.h); a host may
 * have other kinds, which its fibers run (the binding's grains).  Kinds differ
 * only by their operations.
 *
 * A task is also a message: it is posted to its own scheduler when another
 * thread has a request for the task.  So the message's pointer to its
 * operations is, in a task, the pointer to the task's operations.
 *
 * Operations that only a host needs (to cancel a task, say, or to end it) are
 * not here, because nothing in the engine calls them: a host extends
 * pf_task_ops by a struct whose first field is a pf_task_ops.
 */
#ifndef PF_TASK_H
#define PF_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/atomics.h"
#include "engine/core/inbox.h"
#include "engine/core/timers.h"

typedef struct pf_task pf_task;
typedef struct pf_fiber pf_fiber;
typedef struct pf_thread pf_thread;
typedef struct pf_scheduler pf_scheduler;

typedef enum pf_state {
    PF_NEW,   /* has never run */
    PF_READY, /* in the ready queue */
    PF_RUNNING,
    PF_PARKED,    /* waits in its scheduler for a wake-up or a timer */
    PF_SUSPENDED, /* left by a direct switch: waits for a direct switch back */
    PF_DONE,
} pf_state;

/* Why pf_scheduler_park returned, and two values for tasks that are not in
 * it. */
typedef enum pf_wake {
    PF_WAKE_NONE,
    PF_WAKE_NORMAL,
    PF_WAKE_TIMEOUT,
    PF_WAKE_CANCEL,
    PF_WAKE_FRESH, /* the task has never run */
    PF_WAKE_OVER,  /* the fiber will never run again: see pf_fiber_over */
} pf_wake;

/* The operations of a kind of task. */
typedef struct pf_task_ops {
    /* `message.run` is pf_task_arrived for every kind. */
    pf_message_ops message;
    /* Called when a task without a stack comes out of the ready queue.
     * Returns the fiber that runs in the task's turn; for a new fiber that is
     * the fiber itself, which gets its stack only now, so fibers that never
     * wait share a few stacks.  NULL: no fiber runs, because the task could
     * not begin and was ended, for instance. */
    pf_fiber *(*first)(pf_scheduler *s, pf_task *task);
    /* Runs the body of a fiber and returns the fiber that runs next. */
    pf_fiber *(*run)(pf_thread *thread, pf_fiber *self);
    /* Called after the fiber is done and its stack is released, on the fiber
     * that runs next.  May free the done fiber.  NULL: nothing to do. */
    void (*reap)(pf_thread *thread, pf_fiber *self);
    /* Called on the owner thread with bits that pf_task_post has set. */
    void (*posted)(pf_scheduler *s, pf_task *task, unsigned bits);
    /* For pf_queue_prefetch, of tasks without a stack: offsets from the task
     * to two pointers.  The first points to memory that the task's turn will
     * read, the second to an object that the turn releases.  0: none. */
    size_t reads, releases;
} pf_task_ops;

/* A task, embedded in the host's object.  Invariants:
 * - `next` links the ready queue exactly while state is PF_READY; a fiber that
 *   is PF_PARKED has `parked_at` in the same place.
 * - the timer is armed only while the task is parked, or has been made ready
 *   and has not run since.
 * - `has_stack`: the task is a fiber that can be switched to, because it is a
 *   thread's own or its bytes are on its stack (not packed: pack.h).  So
 *   pf_scheduler_next calls no operation in the usual case.
 * - all fields except `message` and `posted` belong to the owner thread (in
 *   the binding: while it holds the GIL).
 */
struct pf_task {
    pf_message message; /* for wake-ups from other threads; pf_task_ops_of */
    pf_scheduler *scheduler; /* NULL: none, direct switches run the task */
    union {
        pf_task *next;
        int64_t parked_at; /* pf_scheduler.looked_at then; for reports */
    };
    PF_ATOMIC(uint8_t) posted; /* bits not yet delivered; see pf_task_post */
    uint8_t wake;              /* pf_wake */
    uint8_t state;             /* pf_state ... */
    bool has_stack; /* ... which pf_task_is_suspended reads together */
    pf_timer timer;
};

static inline const pf_task_ops *
pf_task_ops_of(const pf_task *task)
{
    return (const pf_task_ops *)(const void *)task->message.ops;
}

static inline void
pf_task_set_ops(pf_task *task, const pf_task_ops *ops)
{
    task->message.ops = &ops->message;
}

/* Has a direct switch left the fiber, and is it not packed?  Compares both
 * bytes at once. */
static inline bool
pf_task_is_suspended(const pf_task *task)
{
    static const uint8_t wanted[2] = {PF_SUSPENDED, true};
    return memcmp(&task->state, wanted, sizeof wanted) == 0;
}
_Static_assert(offsetof(pf_task, has_stack) == offsetof(pf_task, state) + 1,
               "pf_task_is_suspended compares both");

/* Is the task in a ready queue for the first time?  True only of fibers, which
 * then use pf_fiber.before. */
static inline bool
pf_task_is_fresh(const pf_task *task)
{
    return task->wake == PF_WAKE_FRESH && task->state == PF_READY;
}

/* From any thread: set `bits` on a task of `s`, or on one that waits there.
 * The task's `posted` operation gets the bits on the scheduler's thread:
 * perhaps those of several posts in one call, and perhaps when the task waits
 * for something else, or is done.  The task and the scheduler must stay alive
 * until then.  Does nothing if the scheduler is closed. */
void pf_task_post(pf_scheduler *s, pf_task *task, unsigned bits);

/* Two bits that hosts do not post themselves.  LEFT: see pf_task_leave.  BUSY:
 * `posted` runs for this task. */
enum { PF_POST_LEFT = 1 << 6, PF_POST_BUSY = 1 << 7 };

/* Called on any thread when the last reference to the task is gone.  True: no
 * posted bits are pending either, and the task's memory may be freed.  False:
 * the `posted` operation gets PF_POST_LEFT on the task's own thread; that call
 * is the last to use the task and may free it. */
bool pf_task_leave(pf_task *task);

/* The `run` of a task's message. */
void pf_task_arrived(pf_message *message, pf_scheduler *s);

#endif
