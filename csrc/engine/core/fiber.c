/* Threads, fibers and their stacks; see fiber.h. */
#include "engine/core/fiber.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/atomics.h"
#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/core/pack.h"
#include "engine/core/queue.h"

/* --------------------------------------------------------- threads --- */

int
pf_thread_init(pf_thread *thread, const pf_host *host, size_t room_size)
{
    memset(thread, 0, sizeof *thread);
    thread->host = host;
    thread->room_size = room_size;
    thread->root.task.state = PF_RUNNING;
    thread->root.task.has_stack = true;
    thread->current = &thread->root;
    return pf_context_adopt(&thread->root.context);
}

void
pf_thread_finish(pf_thread *thread)
{
    for (unsigned i = 0; i < thread->pool_count; i++) {
        pf_pack_remove_pool(thread, thread->pools[i]);
        pf_stack_pool_free(thread->pools[i]);
    }
    pf_pack_finish(thread);
    free(thread->pools);
    thread->pools = NULL;
    thread->pool_count = 0;
    pf_context_forget(&thread->root.context);
}

/* Finds the pool with slots of this size.  There are few sizes, and one is
 * used most, so each pool that is found moves one place forward. */
static pf_stack_pool *
find_pool(pf_thread *thread, size_t slot_size)
{
    pf_stack_pool **pools = thread->pools;
    for (unsigned i = 0; i < thread->pool_count; i++) {
        pf_stack_pool *pool = pools[i];
        if (pf_stack_pool_slot_size(pool) == slot_size) {
            if (i > 0) {
                pools[i] = pools[i - 1];
                pools[i - 1] = pool;
            }
            return pool;
        }
    }
    return NULL;
}

int
pf_thread_add_pool(pf_thread *thread, pf_stack_pool *pool)
{
    size_t bytes = (thread->pool_count + 1) * sizeof(pf_stack_pool *);
    pf_stack_pool **pools = pf_memory_realloc(thread->pools, bytes);
    if (pools == NULL) {
        return -ENOMEM;
    }
    thread->pools = pools;
    pools[thread->pool_count++] = pool;
    pf_stack_pool_own(pool, thread);
    pf_pack_add_pool(thread, pool);
    return 0;
}

pf_stack_pool *
pf_thread_take_pool(pf_thread *thread)
{
    if (thread->pool_count == 0) {
        return NULL;
    }
    pf_stack_pool *pool = thread->pools[0];
    thread->pools[0] = thread->pools[--thread->pool_count];
    pf_pack_remove_pool(thread, pool);
    return pool;
}

void
pf_thread_load_over(pf_thread *thread)
{
    for (unsigned i = 0; i < thread->pool_count; i++) {
        pf_stack_pool_load_over(thread->pools[i]);
    }
}

int64_t
pf_thread_let_stacks_decay(pf_thread *thread, uint64_t turns)
{
    int64_t now = pf_clock_monotonic();
    int64_t again = pf_pack_decay(thread, now, turns);
    for (unsigned i = 0; i < thread->pool_count; i++) {
        int64_t next = pf_stack_pool_decay(thread->pools[i], now);
        again = next < again ? next : again;
    }
    return again == PF_NEVER ? PF_NEVER : again > now ? again - now : 0;
}

static pf_stack_pool *
new_pool(pf_thread *thread, size_t slot_size)
{
    pf_stack_pool *pool = pf_stack_pool_new(slot_size, thread->room_size);
    if (pool != NULL && pf_thread_add_pool(thread, pool) != 0) {
        pf_stack_pool_free(pool);
        pool = NULL;
    }
    return pool;
}

pf_stack_pool *
pf_thread_pool(pf_thread *thread, size_t stack_size)
{
    /* Nearly always the first pool fits, and the size needs no rounding. */
    if (thread->pool_count > 0 &&
        pf_stack_pool_slot_size(thread->pools[0]) == stack_size) {
        return thread->pools[0];
    }
    size_t slot_size = pf_stack_slot_size(stack_size, thread->room_size);
    pf_stack_pool *pool = find_pool(thread, slot_size);
    return pool != NULL ? pool : new_pool(thread, slot_size);
}

/* ---------------------------------------------------------- fibers --- */

static void
reap_zombie(pf_thread *thread)
{
    if (thread->zombie != NULL) {
        pf_fiber_reap(thread, thread->zombie);
    }
}

/* The first and the last code of a fiber on its own stack.  At the beginning
 * it does what pf_fiber_switch does after a switch.  At the end the fiber
 * makes itself the thread's zombie; otherwise the last switch is like any
 * other. */
static pf_context *
fiber_main(void *arg)
{
    pf_fiber *self = arg;
    pf_thread *thread = pf_stack_owner(self->stack);
    reap_zombie(thread);
    self->task.state = PF_RUNNING;
    pf_fiber *to = pf_task_ops_of(&self->task)->run(thread, self);
    assert(thread->zombie == NULL && thread->current == self && to != self);
    pf_fiber_over(self);
    thread->zombie = self;
    thread->current = to;
    if (thread->host->on_switch != NULL) {
        thread->host->on_switch(thread, self, to);
    }
    return &to->context;
}

int
pf_fiber_prepare(pf_thread *thread, pf_fiber *fiber, size_t stack_size,
                 bool own, pf_limit *limit)
{
    *limit = PF_LIMIT_MEMORY;
    pf_stack_pool *pool = pf_thread_pool(thread, stack_size);
    if (pool == NULL) {
        return -ENOMEM;
    }
    pf_stack *stack;
    int error = own ? pf_stack_acquire_own(pool, &stack)
                    : pf_stack_acquire(pool, &stack);
    if (error != 0) {
        *limit = pf_stack_pool_limit(pool);
        return error;
    }
    stack->user = fiber;
    error = pf_context_init(&fiber->context, &stack->area, fiber_main, fiber);
    if (error != 0) {
        pf_stack_release(stack);
        return error;
    }
    fiber->stack = stack;
    fiber->task.has_stack = true;
    *limit = PF_LIMIT_NONE;
    return 0;
}

/* Releases the home of a fiber that is not the occupant. */
static PF_NEVER_INLINE void
release_home(pf_thread *thread, pf_fiber *fiber)
{
    pf_stack *stack = fiber->stack;
    pf_stack_pool *pool = pf_pack_is_packed(fiber)
                              ? pf_pack_drop_image(thread, fiber)
                              : pf_stack_pool_of(stack);
    fiber->stack = NULL;
    fiber->task.has_stack = false;
    if (pool != NULL) {
        pf_stack_release_home(pool, stack);
    }
}

void
pf_fiber_release_stack(pf_thread *thread, pf_fiber *fiber)
{
    pf_stack *stack = fiber->stack;
    if (!fiber->task.has_stack || stack->user != fiber) {
        release_home(thread, fiber);
        pf_context_finish(&fiber->context);
        return;
    }
    fiber->stack = NULL;
    fiber->task.has_stack = false;
    pf_context_finish(&fiber->context);
    pf_stack_release(stack);
}

void
pf_fiber_leave_stack(pf_thread *thread, pf_fiber *fiber)
{
    if (pf_pack_is_packed(fiber)) {
        (void)pf_pack_drop_image(thread, fiber);
    } else if (fiber->stack != NULL) {
        fiber->stack->user = NULL;
    }
    fiber->stack = NULL;
    fiber->task.has_stack = false;
}

/* A host may make a zombie of a fiber that has merely been left, to learn when
 * the thread is off its stack.  So only a fiber that is over loses its stack.
 */
void
pf_fiber_reap(pf_thread *thread, pf_fiber *zombie)
{
    const pf_task_ops *ops = pf_task_ops_of(&zombie->task);
    thread->zombie = NULL;
    if (zombie->stack != NULL && pf_fiber_is_over(zombie)) {
        pf_fiber_release_stack(thread, zombie);
    }
    if (ops->reap != NULL) {
        ops->reap(thread, zombie);
    }
}
