/* Fibers, which are tasks with a stack, and the thread that runs them.
 *
 * The main functions:
 *   pf_fiber_prepare        gives a fiber its stack
 *   pf_fiber_switch         leaves one fiber for another
 *   pf_fiber_reap           takes the stack back
 *
 * There is no Python here: a host (the binding, or a C test) provides hooks.
 */
#ifndef PF_ENGINE_FIBER_H
#define PF_ENGINE_FIBER_H

#include <assert.h>

#include "context/context.h"
#include "engine/core/task.h"
#include "engine/stack/stack.h"

/* A fiber.  Invariants beside those of a task:
 * - `stack` is non-NULL from pf_fiber_prepare until the fiber is reaped; NULL
 *   for a thread's own fiber.
 * - `before` is the task in front of this one in the ready queue, while this
 *   fiber is fresh (pf_task_is_fresh) and not the first in the queue.
 */
struct pf_fiber {
    pf_task task; /* first */
    /* Every switch reads the next two fields and what the host puts right
     * after them. */
    union {
        pf_context context;
        pf_task *before; /* while the fiber has no context yet */
    };
    pf_stack *stack;
};

/* Converts a task that is known to be a fiber: it has a stack, or is fresh. */
static inline pf_fiber *
pf_fiber_of(pf_task *task)
{
    return (pf_fiber *)(void *)task;
}

/* The number of room lines that a host may name for pf_queue_prefetch. */
#define PF_HOT_LINES 3

/* The host's hooks for a thread.  Hooks for a kind of task are in pf_task_ops.
 */
typedef struct pf_host {
    /* Runs just before every switch, on the stack of `from`; thread->current
     * is already `to`.  Saves and loads what belongs to a fiber.  May be NULL.
     */
    void (*on_switch)(pf_thread *thread, pf_fiber *from, pf_fiber *to);
    /* Run before and after a blocking wait (the binding releases the GIL);
     * between them only the poller's wait() runs on this thread. */
    void (*wait_begin)(pf_scheduler *s);
    void (*wait_end)(pf_scheduler *s);
    /* Offsets into a stack's room of the cache lines that every switch and
     * what follows it touch; all may be 0. */
    uint16_t hot_lines[PF_HOT_LINES];
} pf_host;

/* A thread: the running fiber, the thread's own fiber, and its stacks. */
struct pf_thread {
    pf_fiber *current;
    pf_fiber *zombie; /* the fiber that was left; reaped after the switch */
    const pf_host *host;
    pf_fiber root;         /* the thread's own stack */
    pf_stack_pool **pools; /* one per stack size, most used first */
    unsigned pool_count;
    size_t room_size;         /* of every stack of this thread */
    struct pf_packer *packer; /* see pack.h; NULL: never needed so far */
};

/* Make `root` the current fiber.  `root` has no operations: a host that lets
 * it wait must provide some.  0 or -errno. */
int pf_thread_init(pf_thread *thread, const pf_host *host, size_t room_size);
void pf_thread_finish(pf_thread *thread);
/* Use a pool without live stacks on this thread: 0 or -ENOMEM. */
int pf_thread_add_pool(pf_thread *thread, pf_stack_pool *pool);
/* Remove the pool used last and return it, to be freed or added elsewhere by
 * the caller; NULL: the thread has no pool. */
pf_stack_pool *pf_thread_take_pool(pf_thread *thread);
/* Return the pool for stacks of this size, in bytes; NULL: no memory. */
pf_stack_pool *pf_thread_pool(pf_thread *thread, size_t stack_size);
/* Call pf_stack_pool_load_over for all pools. */
void pf_thread_load_over(pf_thread *thread);
/* Return the memory of stacks that an earlier load needed.  `turns` is the
 * scheduler's count of turns.  Returns the nanoseconds until the next call, or
 * PF_NEVER. */
int64_t pf_thread_let_stacks_decay(pf_thread *thread, uint64_t turns);

/* Give a PF_NEW fiber a stack, so that it can be switched to.  `own`: no other
 * fiber ever shares the stack.  0, or -errno; then *limit is the limit that
 * was hit. */
int pf_fiber_prepare(pf_thread *thread, pf_fiber *fiber, size_t stack_size,
                     bool own, pf_limit *limit);
/* Release the stack of a fiber that does not run and never will.  `thread` is
 * NULL if the fiber's thread has ended. */
void pf_fiber_release_stack(pf_thread *thread, pf_fiber *fiber);
/* Detach a fiber whose memory is about to be freed from its stack, if it has
 * one.  The stack stays as it is for good, and nothing finds the fiber there.
 * `thread` is NULL if the fiber's thread has ended. */
void pf_fiber_leave_stack(pf_thread *thread, pf_fiber *fiber);

/* Mark a fiber as done, with nothing more to run on its stack.  (A host may
 * count a fiber as done earlier, while it still runs the code of its end.) */
static inline void
pf_fiber_over(pf_fiber *fiber)
{
    fiber->task.wake = PF_WAKE_OVER;
    pf_publish_byte(&fiber->task.state,
                    PF_DONE); /* and everything the fiber has written */
}
static inline bool
pf_fiber_is_over(const pf_fiber *fiber)
{
    return fiber->task.wake == PF_WAKE_OVER;
}

/* Release the stack of the zombie if it is over, and call its `reap`
 * operation. */
void pf_fiber_reap(pf_thread *thread, pf_fiber *zombie);

/* Leave the current fiber for `to`, which must be prepared and not done.  The
 * caller sets the states.  `on_switch` is a parameter so that a hot caller can
 * inline the hook. */
static inline void
pf_fiber_switch_with(pf_thread *thread, pf_fiber *to,
                     void (*on_switch)(pf_thread *, pf_fiber *, pf_fiber *))
{
    pf_fiber *from = thread->current;
    assert(to->task.has_stack && (to->stack == NULL || to->stack->user == to));
    thread->current = to;
    if (on_switch != NULL) {
        on_switch(thread, from, to);
    }
    pf_context_switch(&from->context, &to->context);
    if (thread->zombie != NULL) {
        pf_fiber_reap(thread, thread->zombie);
    }
}

static inline void
pf_fiber_switch(pf_thread *thread, pf_fiber *to)
{
    pf_fiber_switch_with(thread, to, thread->host->on_switch);
}

#endif
