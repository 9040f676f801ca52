/* Fibers that wait without a stack: how many stacks are lent, and lack of
 * memory for them. */
#include "check.h"

#include "engine/base/memory.h"
#include "fakes.h"
#include "sleepers.h"

#if PF_CONTEXT_MOVES

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
    CHECK_EQUAL(pf_park(&w->world->scheduler, w->value), PF_WAKE_TIMEOUT);
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
            pf_poll(&w->scheduler);
        } else {
            pf_switch(&w->thread, pf_next(&w->scheduler));
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
            pf_yield(&w->world->scheduler);
        }
    }
    sleepers_finished++;
}

/* 40 fibers have had 200 turns each. */
static world *
open_after_turns(size_t slots)
{
    world *w = sleepers_open(slots);
    sleepers_spawn(take_turns, 40);
    sleepers_run();
    CHECK(sleepers_stats().packed > 40 - 2 * ENOUGH);
    sleepers_wake();
    sleepers_run();
    return w;
}

static void
fibers_that_take_turns_get_a_stack_each(void)
{
    SKIP_WHERE_STACKS_STAY();
    open_after_turns(ENOUGH);
    CHECK(sleepers_stats().slots > 36 && sleepers_stats().slots <= 41);
    CHECK(sleepers_stats().packings < 200);
    sleepers_close(40);
}

static void
few_slots_stay_as_few(void)
{
    SKIP_WHERE_STACKS_STAY();
    open_after_turns(ENOUGH - 1);
    CHECK_EQUAL(sleepers_stats().slots, ENOUGH - 1);
    CHECK_EQUAL(sleepers_live(), ENOUGH - 1);
    CHECK(sleepers_stats().packings > 40 * 100);
    sleepers_close(40);
}

/* As after so many turns, of which some were less than a second ago. */
static int64_t
idle_after(uint64_t turns, int64_t now)
{
    world *w = &sleepers_world;
    w->scheduler.switches += turns;
    return pf_pack_decay(&w->thread, now, w->scheduler.switches);
}

static void
slots_go_back_while_the_thread_is_idle(void)
{
    SKIP_WHERE_STACKS_STAY();
    open_after_turns(ENOUGH);
    size_t most = sleepers_stats().slots;
    int64_t now = pf_monotonic() + SECOND;
    CHECK_EQUAL(idle_after(1000, now), now + SECOND);
    CHECK_EQUAL(idle_after(1000, now + SECOND - 1), now + SECOND);
    CHECK_EQUAL(sleepers_stats().slots, most); /* there were more just now */
    int steps = 0;
    while (sleepers_stats().slots > ENOUGH && steps < 20) {
        size_t slots = sleepers_stats().slots;
        idle_after(1000, now += SECOND);
        CHECK(sleepers_stats().slots < slots &&
              sleepers_stats().slots >= ENOUGH);
        CHECK(sleepers_live() <= sleepers_stats().slots);
        steps++;
    }
    CHECK(steps > 5 && steps < 20);
    CHECK_EQUAL(idle_after(1000, now += SECOND), PF_NEVER);
    CHECK_EQUAL(sleepers_stats().slots, ENOUGH);
    sleepers_spawn(sleeper_keep_locals, 60); /* for each stack two are taken */
    sleepers_run();
    CHECK_EQUAL(sleepers_live(), ENOUGH);
    sleepers_close(100);
}

/* So many that were busy wait, and nearly each has a stack. */
static world *
open_with_stacks(int count)
{
    world *w = sleepers_open(ENOUGH);
    sleepers_spawn(take_turns, count);
    sleepers_run();
    sleepers_wake();
    sleepers_run();
    CHECK(sleepers_live() > (size_t)count - 2 * ENOUGH);
    return w;
}

/* More than it looks at in one go: so it pauses in between. */
static void
quiet_thread_gives_all_stacks_back_but_what_it_lends(void)
{
    enum { COUNT = 700 };
    SKIP_WHERE_STACKS_STAY();
    open_with_stacks(COUNT);
    int64_t now = pf_monotonic() + SECOND;
    CHECK_EQUAL(idle_after(1000, now), now + SECOND);
    int64_t again = idle_after(0, now += SECOND);
    CHECK(again > now && again < now + SECOND / 10);
    CHECK_EQUAL(sleepers_stats().slots, ENOUGH);
    size_t live = sleepers_live();
    CHECK(live > ENOUGH && live < COUNT - 200);
    CHECK_EQUAL(idle_after(0, again - 1), again); /* too early */
    CHECK_EQUAL(sleepers_live(), live);
    int times = 0;
    while (again != PF_NEVER && times < 10) {
        again = idle_after(0, again);
        times++;
    }
    CHECK_EQUAL(times, 2);
    CHECK_EQUAL(sleepers_live(), ENOUGH);
    CHECK_EQUAL(sleepers_stats().packed, COUNT - ENOUGH);
    CHECK_EQUAL(idle_after(0, now + 10 * SECOND), PF_NEVER);
    sleepers_close(COUNT);
}

/* Neither busily nor for ever; and when fibers have run, it looks again. */
static void
idle_thread_looks_once_at_who_keeps_his_stack(void)
{
    enum { COUNT = 100 };
    SKIP_WHERE_STACKS_STAY();
    open_with_stacks(COUNT);
    sleepers_all_stay = true;
    int64_t now = pf_monotonic() + SECOND;
    size_t live = sleepers_live();
    uint64_t refusals = sleepers_stats().refusals;
    CHECK_EQUAL(idle_after(1000, now), now + SECOND);
    CHECK_EQUAL(idle_after(0, now += SECOND), PF_NEVER);
    uint64_t looks = sleepers_stats().refusals - refusals;
    CHECK(looks >= live && looks < live + 10);
    refusals += looks;
    for (int i = 0; i < 10; i++) {
        CHECK_EQUAL(idle_after(0, now += SECOND), PF_NEVER);
    }
    CHECK_EQUAL(sleepers_live(), live);
    CHECK_EQUAL(sleepers_stats().refusals, refusals);
    sleepers_all_stay = false;
    CHECK_EQUAL(idle_after(1, now), PF_NEVER);
    CHECK_EQUAL(sleepers_live(), ENOUGH);
    sleepers_close(COUNT);
}

/* Each time in vain it leaves out more seconds, while fibers take turns. */
static void
busy_thread_looks_ever_more_rarely_at_who_keeps_his_stack(void)
{
    enum { COUNT = 100, SECONDS = 200 };
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(ENOUGH);
    sleepers_all_stay = true;
    sleepers_spawn(take_turns, COUNT);
    sleepers_run();
    CHECK_EQUAL(sleepers_live(), COUNT);
    int64_t now = pf_monotonic() + SECOND;
    uint64_t refusals = sleepers_stats().refusals;
    for (int i = 0; i < SECONDS; i++) {
        CHECK_EQUAL(idle_after(1000, now += SECOND), now + SECOND);
    }
    uint64_t rounds = (sleepers_stats().refusals - refusals) / COUNT;
    CHECK(rounds >= 5 && rounds <= 10);
    sleepers_all_stay = false;
    CHECK_EQUAL(idle_after(1, now += SECOND), PF_NEVER); /* quiet */
    CHECK_EQUAL(sleepers_live(), ENOUGH);
    sleepers_close(COUNT);
}

/* A loop that nobody wakes, on the real clock: some seconds are too long for a
 * test, so the last step was long ago. */
static void
sleeping_loop_wakes_for_its_stacks_and_no_more(void)
{
    enum { COUNT = 300 };
    SKIP_WHERE_STACKS_STAY();
    world *w = open_with_stacks(COUNT);
    idle_after(0, pf_monotonic() - 2 * SECOND);
    int64_t deadline = pf_monotonic() + SECOND / 5;
    uint64_t waits = w->scheduler.waits;
    while (pf_monotonic() < deadline) {
        CHECK_EQUAL(pf_scheduler_wait(&w->scheduler, deadline), 0);
    }
    CHECK_EQUAL(sleepers_live(), ENOUGH);
    CHECK(w->scheduler.waits - waits <= 6);
    sleepers_close(COUNT);
}

static void
packing_can_be_switched_off_and_on(void)
{
    SKIP_WHERE_STACKS_STAY();
    world *w = sleepers_open(FEW);
    sleepers_spawn(sleeper_keep_locals, 50);
    sleepers_run();
    uint64_t packings = sleepers_stats().packings;
    CHECK_EQUAL(pf_pack_set(&w->thread, &sleepers_host, 0), 0);
    CHECK_EQUAL(sleepers_stats().slots, 0);
    CHECK_EQUAL(sleepers_stats().packed, 50 - FEW);
    for (int i = 1; i < 5; i++) {
        sleepers_spawn(sleeper_keep_locals, 20);
        sleepers_run();
        idle_after(1000, pf_monotonic() + 2 * i * SECOND);
    }
    CHECK_EQUAL(sleepers_live(), 80 + FEW);
    sleepers_wake();
    sleepers_run();
    CHECK_EQUAL(sleepers_stats().packings, packings);
    CHECK_EQUAL(sleepers_live(), 130);
    CHECK_EQUAL(pf_pack_set(&w->thread, &sleepers_host, FEW), 0);
    sleepers_spawn(sleeper_keep_locals, 150);
    sleepers_run();
    CHECK(sleepers_live() <= FEW + 2);
    sleepers_close(280);
}

/* Of each size so many stacks are lent; of more sizes than it knows, all. */
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
        CHECK_EQUAL(pf_stack_pool_live(pool) + s.packed, 20);
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

static void
let_map(errand *e)
{
    trace(e->world, e->value);
    fake_mmap = NULL;
}

static void
let_map_at_last(pf_scheduler *s, void *data)
{
    (void)data;
    if (s->ready.count == 0) {
        return;
    }
    trace(&sleepers_world, 'p');
    if (sleepers_world.traced == 5) {
        fake_mmap = NULL;
    }
}

static void
note_turn(worker *w)
{
    int own = 1, *pointer = &own;
    REMEMBER(pointer);
    sleeper_wait((sleeper *)w);
    CHECK(pointer == &own);
    trace(w->world, w->value);
    sleepers_finished++;
}

/* No stack is free, none can be had, nobody gives one. */
static int
use_up_stacks(pf_stack *stacks[], int most)
{
    pf_stack_stats s;
    int count = 0;
    sleepers_all_stay = true;
    pf_stack_pool_trim(sleepers_pool(STACK_SIZE));
    pf_stack_pool_stats(sleepers_pool(STACK_SIZE), &s);
    for (; count < most && s.live + (size_t)count < s.slots; count++) {
        CHECK_EQUAL(
            pf_stack_acquire(sleepers_pool(STACK_SIZE), &stacks[count]), 0);
    }
    fake_mmap = no_mapping;
    return count;
}

static void
fiber_without_memory_for_a_stack_runs_later(void)
{
    SKIP_WHERE_STACKS_STAY();
    world *w = sleepers_open(FEW);
    pf_stack *stacks[300];
    errand e;
    errand_init(&e, w, let_map, 'e');
    sleepers_spawn(note_turn, 100);
    sleepers_run();
    sleeper *one = sleepers_packed_one();
    int used = use_up_stacks(stacks, 300);
    CHECK_EQUAL(pf_unpack(&w->thread, &one->worker.fiber, false), -ENOMEM);
    CHECK(pf_is_packed(&one->worker.fiber));
    pf_wake_task(&w->scheduler, &one->worker.task, PF_WAKE_NORMAL);
    pf_make_ready(&w->scheduler, &e.task);
    sleepers_run();
    CHECK_EQUAL(w->traced, 2);
    CHECK_EQUAL(w->trace[0], 'e');
    CHECK_EQUAL(w->trace[1], one->worker.value);
    while (used > 0) {
        pf_stack_release(stacks[--used]);
    }
    sleepers_close(100);
}

/* It waits a moment each time. */
static void
only_fiber_waits_for_memory(void)
{
    SKIP_WHERE_STACKS_STAY();
    world *w = sleepers_open(FEW);
    pf_stack *stacks[300];
    sleepers_spawn(note_turn, 100);
    sleepers_run();
    sleeper *one = sleepers_packed_one();
    int used = use_up_stacks(stacks, 300);
    pf_wake_task(&w->scheduler, &one->worker.task, PF_WAKE_NORMAL);
    w->scheduler.probe = let_map_at_last;
    int64_t before = pf_monotonic();
    sleepers_run();
    CHECK(pf_monotonic() - before > 2 * SECOND / 1000);
    w->scheduler.probe = NULL;
    CHECK(fake_mmap == NULL);
    CHECK_EQUAL(w->trace[w->traced - 1], one->worker.value);
    while (used > 0) {
        pf_stack_release(stacks[--used]);
    }
    sleepers_close(100);
}

#endif

#if defined(PYFIBER_HARDTEST)

/* The n-th request is refused; false: there were fewer. */
static bool
live_with_refusal(long n, int *left)
{
    enum { COUNT = 12 };
    pf_fail_allocation = n;
    if (!sleepers_try_to_open()) {
        return pf_fail_allocation == 0;
    }
    int error = pf_pack_set(&sleepers_world.thread, &sleepers_host, 2);
    sleepers_spawn(sleeper_keep_locals, COUNT / 2);
    sleepers_spawn(take_turns, COUNT / 2);
    sleepers_run();
    for (place *p = sleepers_line.next; p != &sleepers_line; p = p->next) {
        *left += p->sleeper->left;
    }
    sleepers_run_to_the_end();
    bool refused = pf_fail_allocation == 0;
    pf_fail_allocation = 0;
    CHECK(refused || error == 0);
    CHECK(sleepers_lost <= 1);
    sleepers_close(COUNT);
    return refused;
}

static void
each_allocation_of_packing_may_fail(void)
{
    SKIP_WHERE_STACKS_STAY();
    int left = 0;
    long n = 1;
    while (live_with_refusal(n, &left) && n < 10000) {
        n++;
    }
    CHECK(n > 60 && n < 10000);
    CHECK(left > 0); /* for lack of an image, and none came to harm */
}

#endif

const test slot_tests[] = {
    TEST(timers_wake_packed_fibers),
    TEST(fibers_that_take_turns_get_a_stack_each),
    TEST(few_slots_stay_as_few),
    TEST(slots_go_back_while_the_thread_is_idle),
    TEST(quiet_thread_gives_all_stacks_back_but_what_it_lends),
    TEST(idle_thread_looks_once_at_who_keeps_his_stack),
    TEST(busy_thread_looks_ever_more_rarely_at_who_keeps_his_stack),
    TEST(sleeping_loop_wakes_for_its_stacks_and_no_more),
    TEST(packing_can_be_switched_off_and_on),
    TEST(each_size_of_stacks_has_its_slots),
    TEST(pool_that_is_taken_away_lends_no_longer),
#if defined(__linux__)
    TEST(fiber_without_memory_for_a_stack_runs_later),
    TEST(only_fiber_waits_for_memory),
#endif
#if defined(PYFIBER_HARDTEST)
    TEST(each_allocation_of_packing_may_fail),
#endif
    END_OF_TESTS,
};

#else

const test slot_tests[] = {END_OF_TESTS};

#endif
