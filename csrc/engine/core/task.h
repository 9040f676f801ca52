/* A task: an entry of the ready queue, and its operations.
 *
 * The queue, the inbox, the timers and all code that wakes something know only
 * tasks, of any kind.  A fiber is a task with a stack (fiber.h); a host may
 * have others, which its fibers run (the binding's grains).  Kinds differ only
 * by their operations.
 *
 * A task is also a message: it is posted to its own scheduler when another
 * thread has a request for it.  So the message's pointer to its operations is,
 * in a task, the pointer to the task's operations.
 *
 * Operations that only a host needs (to cancel a task, say, or to end it) are
 * not here, because nothing in the engine calls them: a host extends
 * pf_task_ops by a struct that begins with one.
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

/* Why pf_scheduler_park returned. */
typedef enum pf_wake {
    PF_WAKE_NONE,
    PF_WAKE_NORMAL,
    PF_WAKE_TIMEOUT,
    PF_WAKE_CANCEL,
    PF_WAKE_FRESH, /* not at all: it has never run */
    PF_WAKE_OVER,  /* never more: see pf_fiber_over */
} pf_wake;

/* The operations of every kind of task. */
typedef struct pf_task_ops {
    /* Its `run` is pf_task_arrived. */
    pf_message_ops message;
    /* A task without a stack comes out of the ready queue: returns the fiber
     * that runs in its turn.  For a new fiber that is the fiber itself, which
     * gets its stack only now, so fibers that never wait share a few stacks.
     * NULL: none does, as when it could not begin and was ended. */
    pf_fiber *(*first)(pf_scheduler *s, pf_task *task);
    /* The body of a fiber; returns who runs when it is over. */
    pf_fiber *(*run)(pf_thread *thread, pf_fiber *self);
    /* The fiber is done, its stack released; runs on the fiber that came next.
     * May free the fiber.  NULL: nothing to do. */
    void (*reap)(pf_thread *thread, pf_fiber *self);
    /* Bits posted by pf_task_post arrive, on the owner thread. */
    void (*posted)(pf_scheduler *s, pf_task *task, unsigned bits);
    /* For pf_queue_prefetch, where a task has no stack: the offsets, after the
     * task, of pointers to what its turn will read, and to an object that it
     * then lets go of; 0: none. */
    size_t reads, releases;
} pf_task_ops;

/* Embedded in the host's object.  Invariants:
 * - `next` links the ready queue exactly while state is PF_READY; a fiber that
 *   is PF_PARKED keeps its time in the same place.
 * - the timer is armed only while the task is parked or made ready by it.
 * - `has_stack`: it is a fiber that can be switched to, because it is a
 *   thread's own or its bytes are on its stack (not packed: pack.h).  So pf_scheduler_next
 *   calls no operation in the usual case.
 * - all fields except `message` and `posted` belong to the owner thread (in
 *   the binding: while it holds the GIL).
 */
struct pf_task {
    pf_message message; /* for wake-ups from other threads; pf_task_ops_of */
    pf_scheduler *scheduler; /* NULL: raw, its user switches it */
    union {
        pf_task *next;
        int64_t parked_at; /* pf_scheduler.looked_at then; for reports */
    };
    PF_ATOMIC(uint8_t) posted; /* bits on their way; see pf_task_post */
    uint8_t wake;              /* pf_wake */
    uint8_t state;             /* pf_state ... */
    bool has_stack; /* ... which pf_task_is_suspended reads with it */
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

/* Left by a direct switch, and not packed: with one comparison. */
static inline bool
pf_task_is_suspended(const pf_task *task)
{
    static const uint8_t wanted[2] = {PF_SUSPENDED, true};
    return memcmp(&task->state, wanted, sizeof wanted) == 0;
}
_Static_assert(offsetof(pf_task, has_stack) == offsetof(pf_task, state) + 1,
               "pf_task_is_suspended compares both");

/* In a ready queue for the first time; only fibers are (see fiber.h). */
static inline bool
pf_task_is_fresh(const pf_task *task)
{
    return task->wake == PF_WAKE_FRESH && task->state == PF_READY;
}

/* From any thread: set `bits` on a task of `s`, or one that waits there; its
 * `posted` gets them on that thread, perhaps those of several posts in one
 * call, and perhaps when the task waits for something else, or is done.  The
 * task and the scheduler must stay alive until then.  Does nothing if the
 * scheduler is closed. */
void pf_task_post(pf_scheduler *s, pf_task *task, unsigned bits);

/* Two bits that hosts do not post themselves.  LEFT: see pf_task_leave.  BUSY:
 * `posted` runs for this task. */
enum { PF_POST_LEFT = 1 << 6, PF_POST_BUSY = 1 << 7 };

/* Nobody has the task any more, on whatever thread that is found.  True: nothing
 * is on its way to it either, and its memory may be freed.  False: its `posted`
 * gets PF_POST_LEFT, on its own thread, and is the last to use it; it may free
 * it. */
bool pf_task_leave(pf_task *task);

/* The `run` of a task's message. */
void pf_task_arrived(pf_message *message, pf_scheduler *s);

#endif
