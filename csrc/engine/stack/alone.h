/* Windows' versions of the functions of stack.h that deal with shared slots,
 * with memory that is returned, and with reserves.  The system makes and
 * guards each stack there and knows its bounds, so most of these do nothing.
 */
#ifndef PF_ALONE_H
#define PF_ALONE_H

#define pf_stack_acquire_own(pool, stack) pf_stack_acquire(pool, stack)
#define pf_stack_release_home(pool, stack)                                    \
    ((void)(pool), pf_stack_release(stack))
#define pf_stack_pool_share_from(pool, from, share)                           \
    ((void)(pool), (void)(share))
#define pf_stack_pool_next(pool, steps, vacant)                               \
    ((void)(pool), (void)(steps), (void)(vacant), (pf_stack *)NULL)
#define pf_stack_bring_back(pool, stack) ((void)(stack), true)
#define pf_stack_pool_occupied(pool) pf_stack_pool_live(pool)
#define pf_stack_leave(stack) ((void)((stack)->user = NULL))
#define pf_stack_trim_below(stack, low) ((void)(stack))
#define pf_stack_enter(stack, who) ((void)((stack)->user = (who)))
#define pf_stack_share(stack, who) pf_stack_enter(stack, who)
#define pf_stack_is_shared(stack) ((void)(stack), false)
#define pf_stack_pool_discard(pool) ((void)(pool))
#define pf_stack_pool_decay(pool, now) ((void)(pool), INT64_MAX)
#define pf_stack_pool_load_over(pool) ((void)(pool))
#define pf_stack_open_reserve(stack, address) ((void)(stack), false)
#define pf_stack_runs_in_reserve(stack, sp) ((void)(stack), (void)(sp), false)
#define pf_stack_close_reserve(stack, sp) ((void)(stack), (void)(sp))

#endif
