/* Tests packed fibers: how many slots fibers share, how that number changes,
 * and what happens without memory. */
#include "check.h"

#include "engine/base/memory.h"
#include "fakes.h"
#include "sleepers.h"

#if defined(__linux__)
#include <errno.h>
#include <sys/mman.h>
#endif

#define SECOND INT64_C(1000000000)

/* ------------------------------------------------------ time and slots --- */

static void
sleep_until_value(worker *w)
{
    int own = (int)w->value, *pointer = &own;
    REMEMBER(pointer);
    CHECK_EQUAL(pf_scheduler_park(&w->world->scheduler, w->value),
                PF_WAKE_TIMEOUT);
    CHECK(pointer == &own && own == w->value && w->world->time == own);
    trace(w->world, own);
    sleepers_finished++;
}

static void
timers_wake_packed_fibers(void)
{
    SKIP_WHERE_STACKS_STAY();
    world *w = sleepers_open(FEW);
    world_use_fake_clock(w);
    for (long i = 0; i < 100; i++) {
        sleeper_spawn(sleep_until_value, i * 7 % 100 + 1);
    }
    while (pf_scheduler_expects(&w->scheduler)) {
        if (w->scheduler.ready.head == NULL) {
            CHECK(w->time > 0 || sleepers_stats().packed == 100 - FEW);
            w->time++;
            pf_scheduler_poll(&w->scheduler);
        } else {
            pf_fiber_switch(&w->thread, pf_scheduler_next(&w->scheduler));
        }
    }
    CHECK_EQUAL(w->traced, 100);
    for (int i = 0; i < w->traced; i++) {
        CHECK_EQUAL(w->trace[i], i + 1);
    }
    sleepers_close(100);
}

static void
take_turns(worker *w)
{
    for (int i = 0; i <= 400; i++) {
        if (i % 200 == 0) {
            sleeper_wait((sleeper *)w);
        } else {
            pf_scheduler_yield(&w->world->scheduler);
        }
    }
    sleepers_finished++;
}

static void
yield_often(worker *w)
{
    for (int i = 0; i < 100; i++) {
        pf_scheduler_yield(&w->world->scheduler);
    }
    sleepers_finished++;
}

/* With ENOUGH slots asked for, so many fibers still have a stack each. */
#define ROOM (4 * ENOUGH)
#define MANY (ROOM + 36)

/* Opens a world in which MANY fibers have waited, and have then had 200 turns
 * each. */
static world *
open_after_turns(size_t slots)
{
    world *w = sleepers_open(slots);
    sleepers_spawn(take_turns, MANY);
    sleepers_run();
    CHECK(sleepers_stats().packed > MANY - 2 * ENOUGH);
    sleepers_wake();
    sleepers_run();
    return w;
}

static void
fibers_that_take_turns_get_a_stack_each(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(ENOUGH);
    sleepers_spawn(yield_often, MANY);
    sleepers_run();
    CHECK(sleepers_stats().slots > MANY * 9 / 10 &&
          sleepers_stats().slots <= MANY * 5 / 4);
    CHECK_EQUAL(sleepers_stats().packings, 0);
    sleepers_close(MANY);
}

/* Fibers that have waited share homes, and keep these homes. */
static void
fibers_that_waited_first_move_at_each_turn(void)
{
    SKIP_WHERE_STACKS_STAY();
    open_after_turns(ENOUGH);
    CHECK_EQUAL(sleepers_stats().slots, ENOUGH);
    CHECK(sleepers_stats().packings > MANY * 100);
    sleepers_close(MANY);
}

static void
few_slots_stay_as_few(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(ENOUGH - 1);
    sleepers_spawn(yield_often, 40);
    sleepers_run();
    CHECK_EQUAL(sleepers_stats().slots, ENOUGH - 1);
    CHECK(sleepers_stats().packings > 40 * 50);
    sleepers_close(40);
}

/* Calls pf_pack_decay as an idle thread would at `now`, after so many more
 * turns. */
static int64_t
idle_after(uint64_t turns, int64_t now)
{
    world *w = &sleepers_world;
    w->scheduler.switches += turns;
    return pf_pack_decay(&w->thread, now, w->scheduler.switches);
}

static void
yield_and_wait(worker *w)
{
    int own = (int)w->value, *pointer = &own;
    REMEMBER(pointer);
    for (int i = 0; i < 10; i++) {
        pf_scheduler_yield(&w->world->scheduler);
    }
    sleeper_wait((sleeper *)w);
    CHECK(pointer == &own && own == w->value);
    sleepers_finished++;
}

/* Opens a world in which `count` fibers were busy, now wait, and have a stack
 * each. */
static world *
open_with_stacks(int count)
{
    world *w = sleepers_open(ENOUGH);
    sleepers_spawn(yield_and_wait, count);
    sleepers_run();
    CHECK_EQUAL(sleepers_occupied(), count);
    return w;
}

static void
wait_at_once(worker *w)
{
    sleeper_wait((sleeper *)w);
    sleepers_finished++;
}

/* An idle thread does not pack any of these fibers either. */
static void
fibers_that_there_is_room_for_have_a_stack_each(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(ENOUGH);
    sleepers_spawn(wait_at_once, ROOM);
    sleepers_run();
    CHECK_EQUAL(sleepers_occupied(), ROOM);
    CHECK_EQUAL(idle_after(0, pf_clock_monotonic() + SECOND), PF_NEVER);
    CHECK_EQUAL(sleepers_occupied(), ROOM);
    CHECK_EQUAL(sleepers_stats().packings, 0);
    sleepers_close(ROOM);
}

static void
one_more_and_those_asleep_share_few_stacks(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(ENOUGH);
    sleepers_spawn(wait_at_once, ROOM + 1);
    sleepers_run();
    CHECK_EQUAL(sleepers_stats().packed, ROOM + 1 - ENOUGH);
    CHECK_EQUAL(sleepers_occupied(), ENOUGH);
    CHECK_EQUAL(sleepers_stats().slots, ENOUGH);
    sleepers_close(ROOM + 1);
}

/* No ready fiber is packed to save memory, so there are more slots instead. */
static void
one_more_than_there_is_room_for_and_nobody_asleep(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(ENOUGH);
    sleepers_spawn(yield_and_wait, ROOM + 1);
    sleepers_run();
    CHECK_EQUAL(sleepers_stats().packings, 0);
    CHECK_EQUAL(sleepers_occupied(), ROOM + 1);
    sleepers_close(ROOM + 1);
}

static void
wait_so_often(worker *w)
{
    for (long i = 0; i < w->value; i++) {
        sleeper_wait((sleeper *)w);
    }
    sleepers_finished++;
}

/* Returns the number of slots after ROOM + 1 fibers shared stacks, all but
 * `left` of them ended, and a new one began. */
static size_t
slots_after(int left)
{
    sleepers_open(ENOUGH);
    for (int i = 0; i <= ROOM; i++) {
        sleeper_spawn(wait_so_often, i < left ? 2 : 1);
    }
    sleepers_run();
    CHECK_EQUAL(sleepers_stats().slots, ENOUGH);
    sleepers_wake();
    sleepers_run();
    CHECK_EQUAL(sleepers_finished, ROOM + 1 - left);
    sleeper_spawn(wait_so_often, 0);
    sleepers_run();
    size_t slots = sleepers_stats().slots;
    sleepers_close(ROOM + 2);
    return slots;
}

static void
new_fibers_have_room_again_once_half_are_gone(void)
{
    SKIP_WHERE_STACKS_STAY();
    CHECK_EQUAL(slots_after(ROOM / 2), ENOUGH);
    CHECK_EQUAL(slots_after(ROOM / 2 - 1), ROOM);
}

static void
slots_go_back_while_the_thread_is_idle(void)
{
    enum { COUNT = 100 };
    SKIP_WHERE_STACKS_STAY();
    open_with_stacks(COUNT);
    size_t most = sleepers_stats().slots;
    int64_t now = pf_clock_monotonic() + SECOND;
    CHECK_EQUAL(idle_after(1000, now), now + SECOND);
    CHECK_EQUAL(idle_after(1000, now + SECOND - 1), now + SECOND);
    CHECK_EQUAL(sleepers_stats().slots, most); /* needed until now */
    int steps = 0;
    while (sleepers_stats().slots > ENOUGH && steps < 20) {
        size_t slots = sleepers_stats().slots;
        idle_after(1000, now += SECOND);
        CHECK(sleepers_stats().slots < slots &&
              sleepers_stats().slots >= ENOUGH);
        CHECK(sleepers_occupied() <= sleepers_stats().slots);
        steps++;
    }
    CHECK(steps > 5 && steps < 20);
    CHECK_EQUAL(idle_after(1000, now += SECOND), PF_NEVER);
    CHECK_EQUAL(sleepers_stats().slots, ENOUGH);
    CHECK_EQUAL(sleepers_stats().packed, COUNT - ENOUGH);
    sleepers_close(COUNT);
}

/* There are more slots than a thread looks at in one go, so it pauses in
 * between. */
static void
quiet_thread_gives_all_stacks_back_but_what_it_lends(void)
{
    enum { COUNT = 700 };
    SKIP_WHERE_STACKS_STAY();
    open_with_stacks(COUNT);
    int64_t now = pf_clock_monotonic() + SECOND;
    CHECK_EQUAL(idle_after(1000, now), now + SECOND);
    int64_t again = idle_after(0, now += SECOND);
    CHECK(again > now && again < now + SECOND / 10);
    CHECK_EQUAL(sleepers_stats().slots, ENOUGH);
    size_t occupied = sleepers_occupied();
    CHECK(occupied > ENOUGH && occupied < COUNT - 200);
    CHECK_EQUAL(idle_after(0, again - 1), again); /* too early */
    CHECK_EQUAL(sleepers_occupied(), occupied);
    int times = 0;
    while (again != PF_NEVER && times < 10) {
        again = idle_after(0, again);
        times++;
    }
    CHECK_EQUAL(times, 2);
    CHECK_EQUAL(sleepers_occupied(), ENOUGH);
    CHECK_EQUAL(sleepers_stats().packed, COUNT - ENOUGH);
    CHECK_EQUAL(idle_after(0, now + 10 * SECOND), PF_NEVER);
    sleepers_close(COUNT); /* each fiber is unpacked */
}

/* The thread looks at each stack once; again only after fibers have run. */
static void
idle_thread_looks_once_at_who_keeps_his_stack(void)
{
    enum { COUNT = 100 };
    SKIP_WHERE_STACKS_STAY();
    open_with_stacks(COUNT);
    sleepers_all_lend = true;
    int64_t now = pf_clock_monotonic() + SECOND;
    int looks = sleepers_looks;
    CHECK_EQUAL(idle_after(1000, now), now + SECOND);
    CHECK_EQUAL(idle_after(0, now += SECOND), PF_NEVER);
    CHECK_EQUAL(sleepers_looks - looks, COUNT);
    looks = sleepers_looks;
    for (int i = 0; i < 10; i++) {
        CHECK_EQUAL(idle_after(0, now += SECOND), PF_NEVER);
    }
    CHECK_EQUAL(sleepers_occupied(), COUNT);
    CHECK_EQUAL(sleepers_looks, looks);
    sleepers_all_lend = false;
    CHECK_EQUAL(idle_after(1, now), PF_NEVER);
    CHECK_EQUAL(sleepers_occupied(), ENOUGH);
    sleepers_close(COUNT);
}

/* While fibers take turns, the thread looks once a second at first, and leaves
 * out more seconds after each round in vain. */
static void
busy_thread_looks_ever_more_rarely_at_who_keeps_his_stack(void)
{
    enum { COUNT = 100, SECONDS = 200 };
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(ENOUGH);
    sleepers_all_lend = true;
    sleepers_spawn(yield_and_wait, COUNT);
    sleepers_run();
    CHECK_EQUAL(sleepers_occupied(), COUNT);
    int64_t now = pf_clock_monotonic() + SECOND;
    int looks = sleepers_looks;
    for (int i = 0; i < SECONDS; i++) {
        CHECK_EQUAL(idle_after(1000, now += SECOND), now + SECOND);
    }
    int rounds = (sleepers_looks - looks) / COUNT;
    CHECK(rounds >= 5 && rounds <= 10);
    sleepers_all_lend = false;
    CHECK_EQUAL(idle_after(1, now += SECOND), PF_NEVER); /* quiet */
    CHECK_EQUAL(sleepers_occupied(), ENOUGH);
    sleepers_close(COUNT);
}

/* Runs on the real clock, with a loop that nothing wakes.  A test must not
 * take seconds, so the last step is made to lie two seconds back. */
static void
sleeping_loop_wakes_for_its_stacks_and_no_more(void)
{
    enum { COUNT = 300 };
    SKIP_WHERE_STACKS_STAY();
    world *w = open_with_stacks(COUNT);
    idle_after(0, pf_clock_monotonic() - 2 * SECOND);
    int64_t deadline = pf_clock_monotonic() + SECOND / 5;
    uint64_t waits = w->scheduler.waits;
    while (pf_clock_monotonic() < deadline) {
        CHECK_EQUAL(pf_scheduler_wait(&w->scheduler, deadline), 0);
    }
    CHECK_EQUAL(sleepers_occupied(), ENOUGH);
    CHECK(w->scheduler.waits - waits <= 6);
    sleepers_close(COUNT);
}

static void
packing_can_be_switched_off_and_on(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    sleepers_spawn(sleeper_keep_locals, 50);
    sleepers_run();
    CHECK_EQUAL(sleepers_set(0), 0);
    CHECK_EQUAL(sleepers_stats().slots, 0);
    CHECK_EQUAL(sleepers_stats().packed, 50 - FEW);
    for (int i = 1; i < 5; i++) {
        sleepers_spawn(sleeper_keep_locals, 20);
        sleepers_run();
        idle_after(1000, pf_clock_monotonic() + 2 * i * SECOND);
    }
    CHECK_EQUAL(sleepers_occupied(), 80 + FEW);
    sleepers_wake(); /* packed fibers keep the home that they share */
    sleepers_run();
    CHECK_EQUAL(sleepers_occupied(), 80 + FEW);
    CHECK_EQUAL(sleepers_set(FEW), 0);
    sleepers_spawn(sleeper_keep_locals, 150);
    sleepers_run();
    CHECK_EQUAL(sleepers_occupied(), 80 + FEW);
    sleepers_close(280);
}

/* Each size of stacks has its own count of slots, up to KNOWN sizes.  Fibers
 * of any other size have a stack each. */
static void
each_size_of_stacks_has_its_slots(void)
{
    enum { SIZES = 10, KNOWN = 8 };
    SKIP_WHERE_STACKS_STAY();
    world *w = sleepers_open(FEW);
    for (size_t i = 0; i < 20 * SIZES; i++) {
        sleeper_spawn_sized(sleeper_keep_locals, (long)i,
                            STACK_SIZE * (1 + i % SIZES));
    }
    sleepers_run();
    for (size_t size = 1; size <= SIZES; size++) {
        pf_pack_stats s;
        pf_stack_pool *pool = sleepers_pool(STACK_SIZE * size);
        pf_pack_stats_get(&w->thread, pool, &s);
        CHECK_EQUAL(s.slots, size <= KNOWN ? FEW : 0);
        CHECK_EQUAL(s.packed, size <= KNOWN ? 20 - FEW : 0);
        CHECK_EQUAL(pf_stack_pool_occupied(pool) + s.packed, 20);
    }
    sleepers_close(20 * SIZES);
}

static void
pool_that_is_taken_away_lends_no_longer(void)
{
    SKIP_WHERE_STACKS_STAY();
    world *w = sleepers_open(2);
    sleepers_spawn(sleeper_keep_locals, 10);
    sleepers_run_to_the_end();
    pf_stack_pool *pool = pf_thread_take_pool(&w->thread);
    pf_stack *stacks[5];
    for (int i = 0; i < 5; i++) {
        CHECK_EQUAL(pf_stack_acquire(pool, &stacks[i]), 0);
    }
    for (int i = 0; i < 5; i++) {
        pf_stack_release(stacks[i]);
    }
    CHECK_EQUAL(pf_thread_add_pool(&w->thread, pool), 0);
    CHECK_EQUAL(sleepers_stats().slots, 2);
    sleepers_spawn(sleeper_keep_locals, 10);
    sleepers_run();
    CHECK_EQUAL(sleepers_stats().packed, 8);
    sleepers_close(20);
}

/* ------------------------------------------------------ lack of memory --- */

#if defined(__linux__)

static void *
no_mapping(void *low, size_t size, int protection, int flags, int fd,
           off_t offset)
{
    (void)low, (void)size, (void)protection, (void)flags, (void)fd;
    (void)offset;
    errno = ENOMEM;
    return MAP_FAILED;
}

/* All other fibers are ready, so with memory the new fiber would not share. */
static void
fiber_shares_a_stack_where_no_other_can_be_had(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(ENOUGH);
    sleepers_spawn(sleeper_keep_locals, 3); /* these map the first slabs */
    sleepers_run();
    fake_mmap = no_mapping;
    sleepers_spawn(yield_often, 40);
    sleepers_run();
    fake_mmap = NULL;
    CHECK_EQUAL(sleepers_lost, 0);
    CHECK(sleepers_stats().packings > 0);
    sleepers_close(43);
}

#endif

#if defined(PYFIBER_HARDTEST)

/* Packs fibers with the n-th request for memory refused.  False: there were
 * fewer requests. */
static bool
live_with_refusal(long n)
{
    enum { COUNT = 12 };
    pf_memory_fail = n;
    if (!sleepers_try_to_open()) {
        return pf_memory_fail == 0;
    }
    int error = sleepers_set(2);
    sleepers_spawn(sleeper_keep_locals, COUNT / 2);
    sleepers_spawn(take_turns, COUNT / 2);
    sleepers_run_to_the_end();
    bool refused = pf_memory_fail == 0;
    pf_memory_fail = 0;
    CHECK(refused || error == 0);
    CHECK(sleepers_lost <= 1);
    sleepers_close(COUNT);
    return refused;
}

static void
each_allocation_of_packing_may_fail(void)
{
    SKIP_WHERE_STACKS_STAY();
    long n = 1;
    while (live_with_refusal(n) && n < 10000) {
        n++;
    }
    CHECK(n > 60 && n < 10000);
}

#endif

const test slot_tests[] = {
    TEST(timers_wake_packed_fibers),
    TEST(fibers_that_take_turns_get_a_stack_each),
    TEST(fibers_that_waited_first_move_at_each_turn),
    TEST(few_slots_stay_as_few),
    TEST(fibers_that_there_is_room_for_have_a_stack_each),
    TEST(one_more_and_those_asleep_share_few_stacks),
    TEST(one_more_than_there_is_room_for_and_nobody_asleep),
    TEST(new_fibers_have_room_again_once_half_are_gone),
    TEST(slots_go_back_while_the_thread_is_idle),
    TEST(quiet_thread_gives_all_stacks_back_but_what_it_lends),
    TEST(idle_thread_looks_once_at_who_keeps_his_stack),
    TEST(busy_thread_looks_ever_more_rarely_at_who_keeps_his_stack),
    TEST(sleeping_loop_wakes_for_its_stacks_and_no_more),
    TEST(packing_can_be_switched_off_and_on),
    TEST(each_size_of_stacks_has_its_slots),
    TEST(pool_that_is_taken_away_lends_no_longer),
#if defined(__linux__)
    TEST(fiber_shares_a_stack_where_no_other_can_be_had),
#endif
#if defined(PYFIBER_HARDTEST)
    TEST(each_allocation_of_packing_may_fail),
#endif
    END_OF_TESTS,
};
