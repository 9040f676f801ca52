/* Fibers that wait without a stack: what they go on with, and who stays. */
#include "check.h"

#include "engine/base/calls.h"
#include "engine/core/shapes.h"
#include "sleepers.h"

#if PF_CONTEXT_MOVES

static void
waiting_fibers_share_stacks_and_keep_their_variables(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    int n = many() / 4;
    for (int i = 0; i < n; i++) {
        sleeper_spawn(sleeper_keep_locals, i);
    }
    sleepers_run();
    pf_pack_stats s = sleepers_stats();
    CHECK_EQUAL(s.slots, FEW);
    CHECK_EQUAL(sleepers_live(), FEW);
    CHECK_EQUAL(s.packed, n - FEW);
    CHECK_EQUAL(s.packings - s.unpackings, n - FEW);
    CHECK(s.packed_bytes / s.packed < 400);
    CHECK_EQUAL(sleepers_wake(), n);
    sleepers_run();
    CHECK(sleepers_stats().unpackings >= (uint64_t)(n - FEW));
    sleepers_close(n);
}

/* ------------------------------------------------------------- shapes --- */

typedef struct level {
    struct level *outer;
    uint64_t number;
} level;

static OUT_OF_LINE uint64_t
descend(sleeper *self, int depth, level *outer)
{
    level here = {outer, (uint64_t)(self->worker.value + depth)};
    uint64_t sum = 0;
    if (depth > 0) {
        sum = descend(self, depth - 1, &here);
    } else {
        sleeper_wait(self);
    }
    for (const level *l = &here; l != NULL; l = l->outer) {
        sum += l->number;
    }
    return sum;
}

static uint64_t
sum_of_levels(uint64_t value, uint64_t depth)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i <= depth; i++) {
        sum += (i + 1) * (value + i);
    }
    return sum;
}

static void
wait_at_depths(worker *w)
{
    for (int i = 0; i < 3; i++) {
        int depth = (int)(w->value + i * 2) % 7;
        uint64_t sum = descend((sleeper *)w, depth, NULL);
        CHECK_EQUAL(sum, sum_of_levels((uint64_t)w->value, (uint64_t)depth));
    }
    sleepers_finished++;
}

static void
stacks_of_several_shapes_are_packed(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    for (int i = 0; i < 300; i++) {
        sleeper_spawn(i % 3 == 0 ? sleeper_keep_locals : wait_at_depths, i);
    }
    sleepers_run();
    CHECK_EQUAL(sleepers_live(), FEW);
    CHECK_EQUAL(sleepers_stats().packed, 300 - FEW);
    sleepers_close(300);
}

/* Too many calls to know them all. */
static void
wait_at_the_bottom(worker *w)
{
    int here;
    ((sleeper *)w)->at = &here;
    uint64_t sum = descend((sleeper *)w, 120, NULL);
    CHECK_EQUAL(sum, sum_of_levels((uint64_t)w->value, 120));
    CHECK(((sleeper *)w)->at == &here);
    sleepers_finished++;
}

static void
wait_above_much(worker *w)
{
    char much[20000];
    ((sleeper *)w)->at = much;
    memset(much, (int)w->value, sizeof much);
    sleeper_wait((sleeper *)w);
    CHECK(((sleeper *)w)->at == much);
    CHECK_EQUAL(much[sizeof much / 2], w->value);
    sleepers_finished++;
}

typedef struct item {
    sleeper *self;
    int number;
} item;

static uintptr_t searcher; /* the code that called the last comparison */

static int
compare_and_wait(const void *a, const void *b)
{
    searcher = (uintptr_t)__builtin_return_address(0);
    sleeper_wait(((const item *)a)->self);
    return ((const item *)a)->number - ((const item *)b)->number;
}

static void
wait_in_a_sort(worker *w)
{
    sleeper *self = (sleeper *)w;
    item items[] = {{self, 2}, {self, 1}};
    self->at = items;
    qsort(items, 2, sizeof *items, compare_and_wait);
    CHECK(self->at == items);
    CHECK(items[0].number == 1 && items[1].number == 2);
    sleepers_finished++;
}

static void *(*volatile search)(const void *, const void *, size_t, size_t,
                                int (*)(const void *, const void *)) = bsearch;

static void
wait_in_a_search(worker *w)
{
    sleeper *self = (sleeper *)w;
    item wanted = {self, (int)w->value}, items[] = {wanted};
    self->at = items;
    void *found = search(&wanted, items, 1, sizeof wanted, compare_and_wait);
    CHECK(found == items); /* wherever they are now */
    sleepers_finished++;
}

/* Those that do `work` among others, which are packed. */
static void
stays_among_others(work_fn work)
{
    enum { COUNT = 10 };
    sleeper *one[COUNT];
    for (int i = 0; i < COUNT; i++) {
        one[i] = sleeper_spawn(work, i);
        sleeper_spawn(sleeper_keep_locals, i);
    }
    for (int i = 0; i < 8 * COUNT; i++) {
        sleeper_spawn(sleeper_keep_locals, i);
    }
    sleepers_run();
    CHECK(sleepers_stats().refusals > 0);
    CHECK(sleepers_stats().packed > 6 * COUNT);
    CHECK_EQUAL(sleepers_stats().packed + sleepers_live(), 10 * COUNT);
    for (int i = 0; i < COUNT; i++) {
        CHECK(!pf_is_packed(&one[i]->worker.fiber));
        CHECK(one[i]->kept == 0);
    }
    sleepers_close(10 * COUNT);
}

static void
stack_with_too_much_on_it_stays(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    stays_among_others(wait_at_the_bottom);
    sleepers_open(FEW);
    stays_among_others(wait_above_much);
}

/* The C library could have told anybody where its variables are. */
static void
stack_with_a_foreign_call_on_it_stays(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    sleeper_spawn(wait_in_a_sort, 0);
    sleepers_run_to_the_end();
    if (pf_calls_own(searcher)) {
        sleepers_close(1);
        SKIP("the C library is part of the program");
    }
    sleepers_close(1);
    sleepers_open(FEW);
    stays_among_others(wait_in_a_sort);
}

static void
stack_with_an_allowed_call_on_it_is_packed(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    sleeper_spawn(wait_in_a_search, 0);
    sleepers_run_to_the_end();
    CHECK_EQUAL(pf_shapes_allow(pf_calls_function(searcher)), 0);
    for (int i = 0; i < 100; i++) {
        sleeper_spawn(wait_in_a_search, i);
    }
    sleepers_run();
    CHECK_EQUAL(sleepers_stats().packed, 100 - FEW);
    sleepers_close(101);
}

static void
fiber_that_the_host_holds_stays(void)
{
    enum { COUNT = 60 };
    sleeper *some[COUNT];
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    for (int i = 0; i < COUNT; i++) {
        some[i] = sleeper_spawn(sleeper_keep_locals, i);
        some[i]->stays = i % 10 == 0;
    }
    sleepers_run();
    for (int i = 0; i < COUNT; i += 10) {
        CHECK(!pf_is_packed(&some[i]->worker.fiber));
        CHECK(some[i]->kept == 0 && some[i]->left == 0);
    }
    CHECK(sleepers_stats().packed > COUNT / 2);
    CHECK(sleepers_stats().refusals > 0);
    sleepers_close(COUNT);
}

/* ----------------------------------------------------- looked at, dropped --- */

static void
fiber_that_is_looked_at_waits_on(void)
{
    SKIP_WHERE_STACKS_STAY();
    world *w = sleepers_open(ENOUGH);
    sleepers_spawn(sleeper_keep_locals, 100);
    sleepers_run();
    sleeper *one = sleepers_packed_one();
    pf_fiber *fiber = &one->worker.fiber;
    pf_pack_stats before = sleepers_stats();
    int switches = w->switches;
    CHECK_EQUAL(pf_unpack(&w->thread, fiber, false), 0);
    CHECK(!pf_is_packed(fiber) && fiber->task.has_stack);
    CHECK_EQUAL(fiber->task.state, PF_PARKED);
    CHECK_EQUAL(w->switches, switches);
    CHECK(*(long *)(void *)fiber->stack->room == one->worker.value);
    CHECK_EQUAL(sleepers_stats().slots,
                before.slots); /* nobody has missed it */
    CHECK_EQUAL(sleepers_stats().unpackings, before.unpackings + 1);
    sleepers_spawn(sleeper_keep_locals, 100);
    sleepers_run();
    CHECK(pf_is_packed(fiber));
    sleepers_close(200);
}

static void
image_of_a_fiber_that_will_not_run_is_dropped(void)
{
    SKIP_WHERE_STACKS_STAY();
    world *w = sleepers_open(FEW);
    sleepers_spawn(sleeper_keep_locals, 20);
    sleepers_run();
    sleeper *one = sleepers_packed_one();
    pf_pack_stats before = sleepers_stats();
    one->place->previous->next = one->place->next;
    one->place->next->previous = one->place->previous;
    pf_drop_image(&w->thread, &one->worker.fiber);
    CHECK(one->worker.fiber.stack == NULL);
    CHECK_EQUAL(sleepers_stats().packed, before.packed - 1);
    CHECK(sleepers_stats().packed_bytes < before.packed_bytes);
    free(one);
    sleepers_run_to_the_end();
    CHECK_EQUAL(w->reaped, 19);
    CHECK_EQUAL(sleepers_stats().packed_bytes, 0);
    CHECK_EQUAL(sleepers_stats().packings, sleepers_stats().unpackings + 1);
    world_close(w);
}

/* It has just been left and is to be learned, when a stack is needed to look
 * at another one. */
static void
look_at_another_and_wait(worker *w)
{
    sleeper *other = sleepers_packed_one();
    if (other != NULL) {
        pf_fiber *fiber = &other->worker.fiber;
        const pf_fiber *learning = w->world->thread.learning;
        CHECK_EQUAL(pf_unpack(&w->world->thread, fiber, false), 0);
        if (learning != NULL && pf_is_packed(learning)) {
            CHECK(w->world->thread.learning == NULL);
            trace(w->world, w->value);
        }
    }
    sleeper_keep_locals(w);
}

static void
fiber_that_is_packed_is_not_learned(void)
{
    SKIP_WHERE_STACKS_STAY();
    world *w = sleepers_open(2);
    sleeper_spawn(wait_at_the_bottom, 0);
    for (int i = 0; i < 200; i++) {
        sleeper_spawn(look_at_another_and_wait, i);
    }
    sleepers_run();
    CHECK(w->traced > 0);
    sleepers_close(201);
}

const test pack_tests[] = {
    TEST(waiting_fibers_share_stacks_and_keep_their_variables),
    TEST(stacks_of_several_shapes_are_packed),
    TEST(stack_with_too_much_on_it_stays),
    TEST(stack_with_a_foreign_call_on_it_stays),
    TEST(stack_with_an_allowed_call_on_it_is_packed),
    TEST(fiber_that_the_host_holds_stays),
    TEST(fiber_that_is_looked_at_waits_on),
    TEST(image_of_a_fiber_that_will_not_run_is_dropped),
    TEST(fiber_that_is_packed_is_not_learned),
    END_OF_TESTS,
};

#else

/* ------------------------------------------------------ it stays off --- */

static world the_world;

static void
park(worker *w)
{
    pf_park(&w->world->scheduler, PF_NEVER);
}

static void
packing_is_off_where_stacks_stay(void)
{
    enum { COUNT = 20 };
    pf_pack_stats s;
    worker *workers[COUNT];
    CHECK(!pf_can_pack());
    CHECK(world_open(&the_world));
    CHECK_EQUAL(pf_pack_set(&the_world.thread, NULL, 2), 0);
    for (int i = 0; i < COUNT; i++) {
        workers[i] = world_spawn(&the_world, park, i);
    }
    pf_scheduler_run(&the_world.scheduler);
    pf_pack_stats_get(&the_world.thread, the_world.thread.pools[0], &s);
    CHECK_EQUAL(s.slots, 0);
    CHECK_EQUAL(s.packed, 0);
    for (int i = 0; i < COUNT; i++) {
        CHECK(!pf_is_packed(&workers[i]->fiber) && workers[i]->task.has_stack);
        pf_wake_task(&the_world.scheduler, &workers[i]->task, PF_WAKE_NORMAL);
    }
    pf_scheduler_run(&the_world.scheduler);
    CHECK_EQUAL(the_world.reaped, COUNT);
    world_close(&the_world);
}

const test pack_tests[] = {
    TEST(packing_is_off_where_stacks_stay),
    END_OF_TESTS,
};

#endif
