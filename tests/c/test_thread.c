/* Tests pf_thread: its beginning, its pools of stacks, and lack of memory. */
#include "check.h"

#include <errno.h>

#include "engine/base/memory.h"
#include "engine/stack/testing.h"
#include "world.h"

static world the_world;

static void
thread_and_scheduler_begin_clean(void)
{
    world *w = &the_world;
    const pf_host *host;
    CHECK(world_open(w));
    host = w->thread.host;
    world_close(w);
    memset(w, 0xff, sizeof *w);
    CHECK_EQUAL(pf_thread_init(&w->thread, host, 2048), 0);
    CHECK(w->thread.current == &w->thread.root);
    CHECK(w->thread.zombie == NULL);
    CHECK(w->thread.root.task.scheduler == NULL);
    CHECK(w->thread.pools == NULL);
    CHECK_EQUAL(w->thread.pool_count, 0);
    CHECK_EQUAL(pf_scheduler_init(&w->scheduler, &w->thread), 0);
    CHECK(w->scheduler.ready.head == NULL && w->scheduler.pick == NULL);
    CHECK(w->scheduler.clock == NULL && w->scheduler.probe == NULL);
    CHECK_EQUAL(w->scheduler.timers.count, 0);
    CHECK_EQUAL(pf_load(&w->scheduler.holds), 0);
    CHECK(!pf_scheduler_expects(&w->scheduler));
    world_close(w);
}

/* Each request for a pool moves the pool one place to the front. */
static void
thread_has_a_pool_for_each_size(void)
{
    pf_thread *t = &the_world.thread;
    pf_stack_pool *pools[3];
    CHECK(world_open(&the_world));
    for (size_t i = 0; i < 3; i++) {
        pools[i] = pf_thread_pool(t, (size_t)65536 << i);
        CHECK(pools[i] != NULL);
    }
    CHECK_EQUAL(t->pool_count, 3);
    CHECK(pf_thread_pool(t, 65536) == pools[0]);
    CHECK(t->pools[0] == pools[0] && t->pools[1] == pools[1]);
    CHECK(pf_thread_pool(t, (size_t)65536 << 2) == pools[2]);
    CHECK(t->pools[1] == pools[2] && t->pools[2] == pools[1]);
    CHECK(pf_thread_pool(t, (size_t)65536 << 2) == pools[2]);
    CHECK(t->pools[0] == pools[2] && t->pools[1] == pools[0]);
    CHECK(pf_thread_pool(t, (size_t)65536 << 1) == pools[1]);
    CHECK(pf_thread_pool(t, 65535) == pools[0]); /* the size is rounded up */
    CHECK_EQUAL(t->pool_count, 3);
    world_close(&the_world);
}

static void
pools_go_from_thread_to_thread(void)
{
    static world other;
    pf_thread *t = &the_world.thread;
    CHECK(world_open(&the_world) && world_open(&other));
    pf_stack_pool *first = pf_thread_pool(t, 65536);
    pf_stack_pool *second = pf_thread_pool(t, 131072);
    CHECK(pf_thread_take_pool(t) == first);
    CHECK_EQUAL(pf_thread_add_pool(&other.thread, first), 0);
    CHECK(pf_thread_pool(&other.thread, 65536) == first);
    CHECK(pf_thread_take_pool(t) == second);
    CHECK(pf_thread_take_pool(t) == NULL);
    pf_stack_pool_free(second);
    world_close(&other);
    world_close(&the_world);
}

static int64_t asked;

static int
note_timeout(pf_poller *poller, int64_t timeout)
{
    (void)poller;
    asked = timeout;
    return 0;
}

static void
nothing(pf_poller *poller)
{
    (void)poller;
}

static void
use_stacks(pf_stack_pool *pool)
{
    enum { CROWD = 64 };
    pf_stack *stacks[CROWD];
    for (int i = 0; i < CROWD; i++) {
        CHECK_EQUAL(pf_stack_acquire(pool, &stacks[i]), 0);
    }
    for (int i = 0; i < CROWD; i++) {
        pf_stack_release(stacks[i]);
    }
}

/* The first or the second pool has stacks to give back. */
static void
idle_loop_looks_after_every_pool(void)
{
    static const pf_poller_ops ops = {.wait = note_timeout, .close = nothing};
    static pf_poller poller = {&ops, 0};
    for (size_t busy = 0; busy < 2; busy++) {
        CHECK(world_open(&the_world));
        pf_scheduler *s = &the_world.scheduler;
        pf_scheduler_set_poller(s, &poller);
        for (size_t i = 0; i < 2; i++) {
            CHECK(pf_thread_pool(s->thread, (size_t)65536 << i) != NULL);
        }
        use_stacks(s->thread->pools[busy]);
        pf_scheduler_wait(s, PF_NEVER);
#if !defined(_WIN32)
        CHECK(asked != PF_NEVER && asked >= 0 && asked <= 60000000000);
#endif
        pf_thread_load_over(s->thread);
        for (int i = 0; i < 10 && asked != PF_NEVER; i++) {
            pf_scheduler_wait(s, PF_NEVER);
        }
        CHECK_EQUAL(asked, PF_NEVER);
        world_close(&the_world);
    }
}

static uint64_t
trims_of(const pf_stack_pool *pool)
{
    pf_stack_stats stats;
    pf_stack_pool_stats(pool, &stats);
    return stats.trims;
}

/* A trim that returned no memory is not counted. */
static void
trims_are_counted(void)
{
    pf_stack *stack;
    pf_stack_pool *pool = pf_stack_pool_new(65536, 0);
    CHECK_EQUAL(pf_stack_acquire(pool, &stack), 0);
    CHECK(pf_stack_pool_slabs(pool) > 0);
    pf_stack_release(stack);
    uint64_t before = trims_of(pool);
    bool gave = pf_stack_pool_trim(pool) > 0;
    uint64_t after = trims_of(pool);
    CHECK_EQUAL(after > before, gave);
    CHECK_EQUAL(pf_stack_pool_trim(pool), 0);
    CHECK_EQUAL(trims_of(pool), after);
    CHECK_EQUAL(pf_stack_pool_slabs(pool), 0);
    pf_stack_pool_free(pool);
}

static void
prepared_fiber_hit_no_limit(void)
{
    pf_limit limit = PF_LIMIT_ADDRESS_SPACE;
    CHECK(world_open(&the_world));
    worker *w = world_worker(&the_world, NULL, 0);
    pf_fiber second = {.task.state = PF_NEW};
    CHECK_EQUAL(
        pf_fiber_prepare(&the_world.thread, &second, 65536, false, &limit), 0);
    CHECK_EQUAL(limit, PF_LIMIT_NONE);
    pf_fiber_release_stack(&the_world.thread, &second);
    CHECK(second.stack == NULL && !second.task.has_stack);
    pf_fiber_over(&w->fiber);
    pf_fiber_reap(&the_world.thread, &w->fiber);
    world_close(&the_world);
}

#if defined(PYFIBER_HARDTEST)

/* With mprotect, the system may refuse the guard instead of the memory. */
static bool
names_what_was_refused(pf_limit limit)
{
    return limit == PF_LIMIT_MEMORY ||
           (limit == PF_LIMIT_MAP_COUNT &&
            pf_stack_guard_kind() == PF_GUARD_MPROTECT);
}

/* A sanitizer checks that nothing leaks. */
static void
fiber_without_memory_is_refused_and_says_why(void)
{
    pf_limit limit;
    pf_fiber fiber = {.task.state = PF_NEW};
    long refused = 1;
    for (;; refused++) {
        CHECK(world_open(&the_world));
        limit = PF_LIMIT_NONE;
        pf_memory_fail = refused;
        int error =
            pf_fiber_prepare(&the_world.thread, &fiber, 65536, false, &limit);
        bool enough = pf_memory_fail != 0;
        pf_memory_fail = 0;
        if (enough) {
            CHECK_EQUAL(error, 0);
            break;
        }
        CHECK_EQUAL(error, -ENOMEM);
        CHECK(names_what_was_refused(limit));
        CHECK(fiber.stack == NULL);
        world_close(&the_world);
    }
    CHECK(refused > 2);
    pf_stack_release(fiber.stack);
    world_close(&the_world);
}

static void
poller_without_memory_is_refused(void)
{
    int error = 0;
    pf_memory_fail = 1;
    CHECK(pf_poller_new_default(&error) == NULL);
    CHECK_EQUAL(error, -ENOMEM);
    pf_memory_fail = 0;
}

#endif

const test pool_tests[] = {
    TEST(thread_and_scheduler_begin_clean),
    TEST(thread_has_a_pool_for_each_size),
    TEST(pools_go_from_thread_to_thread),
    TEST(idle_loop_looks_after_every_pool),
    TEST(trims_are_counted),
    TEST(prepared_fiber_hit_no_limit),
#if defined(PYFIBER_HARDTEST)
    TEST(fiber_without_memory_is_refused_and_says_why),
    TEST(poller_without_memory_is_refused),
#endif
    END_OF_TESTS,
};
