/* Fibers: tasks with a stack; and the thread that they run on.
 *
 * One function for each hard thing:
 *   pf_fiber_prepare  gives a fiber its stack
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

/* Invariants beside those of its task:
 * - `stack` is non-NULL from pf_fiber_prepare until the fiber is reaped; NULL
 *   for a thread's own fiber.
 * - `before` is the task before it in the queue, while it is fresh
 *   (pf_task_is_fresh) and not the first.
 */
struct pf_fiber {
    pf_task task; /* first */
    /* Every switch reads these two and what the host puts right after them.
     */
    union {
        pf_context context;
        pf_task *before; /* while it has no context yet */
    };
    pf_stack *stack;
};

/* A task that is known to be a fiber: it has a stack, or is fresh. */
static inline pf_fiber *
pf_fiber_of(pf_task *task)
{
    return (pf_fiber *)(void *)task;
}

/* The number of room lines that a host may name for pf_queue_prefetch. */
#define PF_HOT_LINES 3

/* The host's hooks for a thread.  Those for a kind of task are in its
 * operations. */
typedef struct pf_host {
    /* Just before every switch, on the stack of `from`; thread->current is
     * already `to`.  Saves and loads what belongs to a fiber.  May be NULL. */
    void (*on_switch)(pf_thread *thread, pf_fiber *from, pf_fiber *to);
    /* Around a blocking wait (the binding releases the GIL); between them only
     * the poller's wait() runs here. */
    void (*wait_begin)(pf_scheduler *s);
    void (*wait_end)(pf_scheduler *s);
    /* Offsets into a stack's room of the cache lines that every switch and
     * what follows it touch; all may be 0. */
    uint16_t hot_lines[PF_HOT_LINES];
} pf_host;

/* A thread: the running fiber, its own fiber, its stacks. */
struct pf_thread {
    pf_fiber *current;
    pf_fiber *zombie; /* it was left; the next to land reaps it */
    const pf_host *host;
    pf_fiber root;         /* the thread's own stack */
    pf_stack_pool **pools; /* one per stack size, most used first */
    unsigned pool_count;
    size_t room_size;         /* of every stack of this thread */
    struct pf_packer *packer; /* see pack.h; NULL: it has never been used */
};

/* `root` becomes current.  It has no operations: a host that lets it wait must
 * provide some. 0 or -errno. */
int pf_thread_init(pf_thread *thread, const pf_host *host, size_t room_size);
void pf_thread_finish(pf_thread *thread);
/* Use a pool without live stacks on this thread: 0 or -ENOMEM. */
int pf_thread_add_pool(pf_thread *thread, pf_stack_pool *pool);
/* The pool used last, which the caller frees or adds elsewhere; NULL: none. */
pf_stack_pool *pf_thread_take_pool(pf_thread *thread);
pf_stack_pool *pf_thread_pool(pf_thread *thread, size_t stack_size);
void
pf_thread_load_over(pf_thread *thread); /* pf_stack_pool_load_over for all */
/* Return the stacks of an earlier load, when the scheduler has counted so
 * many turns; nanoseconds until the next call, or PF_NEVER. */
int64_t pf_thread_let_stacks_decay(pf_thread *thread, uint64_t turns);

/* Give a PF_NEW fiber a stack, which it shares with no other if it is to be its
 * own; then it can be switched to. 0, or -errno with *limit saying which limit
 * was hit. */
int pf_fiber_prepare(pf_thread *thread, pf_fiber *fiber, size_t stack_size,
                     bool own, pf_limit *limit);
/* Release the stack of a fiber that does not and will not run.  `thread` is NULL
 * if it has ended. */
void pf_fiber_release_stack(pf_thread *thread, pf_fiber *fiber);
/* The memory of a fiber goes, and what is on its stack, if it has one, stays as
 * it is for good: nobody must look for the fiber there any more.  `thread` is
 * NULL if it has ended. */
void pf_fiber_leave_stack(pf_thread *thread, pf_fiber *fiber);

/* The fiber is done, and nothing more runs on its stack.  (A host may call a
 * fiber done before that, while the fiber still runs code of its end.) */
static inline void
pf_fiber_over(pf_fiber *fiber)
{
    fiber->task.wake = PF_WAKE_OVER;
    pf_publish_byte(&fiber->task.state,
                    PF_DONE); /* what it has written, too */
}
static inline bool
pf_fiber_is_over(const pf_fiber *fiber)
{
    return fiber->task.wake == PF_WAKE_OVER;
}

/* Release the stack of the fiber that is over, and tell its kind. */
void pf_fiber_reap(pf_thread *thread, pf_fiber *zombie);

/* Leave the current fiber for `to`, which must be prepared and not done.  The
 * caller sets the states.  `on_switch` is a parameter, which lets a hot caller
 * inline it. */
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
