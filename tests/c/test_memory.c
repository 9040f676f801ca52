/* Tests lack of memory: allocation number 1, 2, 3, ... fails, and nothing is
 * lost. */
#include "check.h"

#include "engine/base/memory.h"
#include "world.h"

#if defined(PYFIBER_HARDTEST)

static world the_world;
static int ran;

static void
sleep_a_little(worker *w)
{
    pf_scheduler *s = &w->world->scheduler;
    int why = pf_scheduler_park(s, pf_scheduler_now(s) + w->value * 100);
    CHECK(why == PF_WAKE_TIMEOUT || why == -1);
    pf_scheduler_yield(s);
    ran++;
}

/* Uses a thread, a scheduler, fibers and timers.  Returns how many fibers
 * there were; -1: not even a scheduler. */
static int
live_a_life(void)
{
    int spawned = 0, prepared = 0;
    if (!world_open(&the_world)) {
        return -1;
    }
    for (int i = 0; i < 40; i++) {
        prepared += world_spawn(&the_world, sleep_a_little, i % 5) != NULL;
        spawned += world_spawn_lazily(&the_world, sleep_a_little, 1) != NULL;
    }
    pf_scheduler_run(&the_world.scheduler);
    CHECK_EQUAL(the_world.reaped, spawned + prepared);
    CHECK(ran >= prepared); /* a lazy fiber may have got no stack */
    world_close(&the_world);
    return spawned + prepared;
}

/* Calls live_a_life() with the n-th request for memory refused.  False: there
 * were fewer requests. */
static bool
live_with_refusal(long n)
{
    ran = 0;
    pf_memory_fail = n;
    int fibers = live_a_life();
    bool refused = pf_memory_fail == 0;
    pf_memory_fail = 0;
    CHECK(fibers >= (refused ? -1 : 80));
    if (fibers > 0) {
        CHECK(fibers - ran <= 1);
    }
    return refused;
}

static void
each_allocation_may_fail(void)
{
    long n = 1;
    CHECK_EQUAL(live_a_life(), 80);
    while (live_with_refusal(n) && n < 10000) {
        n++;
    }
    CHECK(n > 20);
    CHECK(n < 10000);
}

/* A pool can be used again after a failure. */
static void
stack_pool_recovers(void)
{
    pf_stack *stack;
    pf_stack_pool *pool = pf_stack_pool_new(65536, 0);
    for (int i = 1; i <= 2; i++) {
        pf_memory_fail = i;
        int error = pf_stack_acquire(pool, &stack);
        if (error != 0) {
            CHECK(stack == NULL);
            CHECK(pf_stack_pool_limit(pool) != PF_LIMIT_NONE);
        } else {
            pf_stack_release(stack);
        }
        pf_stack_pool_trim(pool);
    }
    pf_memory_fail = 0;
    CHECK_EQUAL(pf_stack_acquire(pool, &stack), 0);
    pf_stack_release(stack);
    pf_stack_pool_free(pool);
}

const test memory_tests[] = {
    TEST(each_allocation_may_fail),
    TEST(stack_pool_recovers),
    END_OF_TESTS,
};

#else

const test memory_tests[] = {END_OF_TESTS};

#endif
