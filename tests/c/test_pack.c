/* Tests fibers that share stacks: each fiber finds its bytes exactly as it
 * left them, at the same addresses. */
#include "check.h"

#include <errno.h>

#include "sleepers.h"

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
    CHECK_EQUAL(sleepers_occupied(), FEW);
    CHECK_EQUAL(s.packed, n - FEW);
    CHECK_EQUAL(s.packings - s.unpackings, n - FEW);
    CHECK(s.packed_bytes / s.packed < 400);
    CHECK_EQUAL(sleepers_wake(), n);
    sleepers_run();
    CHECK(sleepers_stats().unpackings >= (uint64_t)(n - FEW));
    sleepers_close(n);
}

/* ----------------------------------------------------- kinds of stacks --- */

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
stacks_of_several_depths_are_packed(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    for (int i = 0; i < 300; i++) {
        sleeper_spawn(i % 3 == 0 ? sleeper_keep_locals : wait_at_depths, i);
    }
    sleepers_run();
    CHECK_EQUAL(sleepers_occupied(), FEW);
    CHECK_EQUAL(sleepers_stats().packed, 300 - FEW);
    sleepers_close(300);
}

/* Has more bytes on its stack than a small image holds. */
static void
wait_above_much(worker *w)
{
    char much[40000], *where = much;
    REMEMBER(where);
    for (size_t i = 0; i < sizeof much; i++) {
        much[i] = (char)(w->value * 7 + (long)i % 101);
    }
    sleeper_wait((sleeper *)w);
    CHECK(where == much);
    for (size_t i = 0; i < sizeof much; i++) {
        CHECK_EQUAL(much[i], (char)(w->value * 7 + (long)i % 101));
    }
    sleepers_finished++;
}

static void
stack_with_much_on_it_is_packed_whole(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    sleepers_spawn(wait_above_much, 20);
    sleepers_spawn(sleeper_keep_locals, 20);
    sleepers_run();
    CHECK_EQUAL(sleepers_stats().packed, 40 - FEW);
    CHECK(sleepers_stats().packed_bytes > 16 * 40000);
    sleepers_close(40);
}

/* Fills its stack with words that no other stack has. */
static void
wait_with_random_words(worker *w)
{
    uint64_t words[300], random = (uint64_t)w->value + 1;
    uint64_t before = random;
    for (size_t i = 0; i < 300; i++) {
        words[i] = random_next(&random);
    }
    for (int turn = 0; turn < 3; turn++) {
        sleeper_wait((sleeper *)w);
        random = before;
        for (size_t i = 0; i < 300; i++) {
            CHECK_EQUAL(words[i], random_next(&random));
        }
    }
    sleepers_finished++;
}

static void
strange_stacks_only_take_more_bytes(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    sleepers_spawn(wait_with_random_words, 100);
    sleepers_spawn(sleeper_keep_locals, 100);
    sleepers_run();
    CHECK_EQUAL(sleepers_stats().packed, 200 - FEW);
    sleepers_close(200);
}

/* Has numbers on its stack that look like addresses in a slot, of any fiber,
 * or in a fiber's object.  Packing must not change them. */
static void
wait_with_numbers_like_addresses(worker *w)
{
    sleeper *self = (sleeper *)w;
    uint64_t here = (uintptr_t)w->fiber.stack;
    uint64_t numbers[96];
    for (uint64_t i = 0; i < 96; i += 6) {
        numbers[i] = here - i * 8;
        numbers[i + 1] = here + i * 64;
        numbers[i + 2] = (uintptr_t)self + i;
        numbers[i + 3] = (uintptr_t)numbers + i;
        numbers[i + 4] = here - STACK_SIZE * i;
        numbers[i + 5] = ~here;
    }
    for (int turn = 0; turn < 4; turn++) {
        sleeper_wait(self);
        for (uint64_t i = 0; i < 96; i += 6) {
            CHECK_EQUAL(numbers[i], here - i * 8);
            CHECK_EQUAL(numbers[i + 1], here + i * 64);
            CHECK_EQUAL(numbers[i + 2], (uintptr_t)self + i);
            CHECK_EQUAL(numbers[i + 3], (uintptr_t)numbers + i);
            CHECK_EQUAL(numbers[i + 4], here - STACK_SIZE * i);
            CHECK_EQUAL(numbers[i + 5], ~here);
        }
    }
    sleepers_finished++;
}

static void
numbers_that_look_like_addresses_come_back(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(2);
    sleepers_spawn(wait_with_numbers_like_addresses, 50);
    sleepers_run();
    CHECK_EQUAL(sleepers_stats().packed, 48);
    sleepers_close(50);
}

/* An element of an array that qsort() is sorting while the fiber waits. */
typedef struct item {
    sleeper *self;
    int number;
} item;

static int
compare_and_wait(const void *a, const void *b)
{
    sleeper_wait(((const item *)a)->self);
    return ((const item *)a)->number - ((const item *)b)->number;
}

static void
wait_in_a_sort(worker *w)
{
    sleeper *self = (sleeper *)w;
    item items[] = {{self, 2}, {self, 3}, {self, 1}};
    qsort(items, 3, sizeof *items, compare_and_wait);
    CHECK(items[0].number == 1 && items[1].number == 2);
    sleepers_finished++;
}

static void
stack_with_a_foreign_call_on_it_is_packed(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    sleepers_spawn(wait_in_a_sort, 50);
    sleepers_run();
    CHECK_EQUAL(sleepers_stats().packed, 50 - FEW);
    sleepers_close(50);
}

/* -------------------------------------------------------- shared homes --- */

static void
take_turns(worker *w)
{
    int own = (int)w->value, *pointer = &own;
    REMEMBER(pointer);
    for (int i = 0; i < 50; i++) {
        pf_scheduler_yield(&w->world->scheduler);
        CHECK(pointer == &own && own == w->value);
        CHECK(w->fiber.stack->user == w);
    }
    sleepers_finished++;
}

/* The fiber that is left is in the home of the one that runs next. */
static void
mover_changes_the_fibers_of_one_home(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(2);
    sleepers_spawn(take_turns, 9);
    sleepers_run();
    CHECK(sleepers_arrivals > 40);
    CHECK(sleepers_stats().packings > 100);
    sleepers_close(9);
}

static void
end_in_the_home_of_the_next(worker *w)
{
    pf_scheduler_yield(&w->world->scheduler);
    sleepers_finished++;
}

static void
fiber_that_ends_leaves_its_home_to_the_next(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(2);
    sleepers_spawn(end_in_the_home_of_the_next, 61);
    sleepers_run();
    CHECK_EQUAL(sleepers_finished, 61);
    CHECK(sleepers_arrivals > 0);
    sleepers_close(61);
}

/* A fiber that lends is not packed to save memory, as long as others can
 * be. */
static void
fiber_that_lends_is_packed_for_its_home_only(void)
{
    enum { COUNT = 6 };
    sleeper *lender[COUNT];
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(ENOUGH);
    sleepers_spawn(sleeper_keep_locals, 20 * ENOUGH);
    sleepers_run();
    for (int i = 0; i < COUNT; i++) {
        lender[i] = sleeper_spawn(sleeper_keep_locals, i);
        lender[i]->lends = true;
    }
    sleepers_run();
    sleepers_spawn(sleeper_keep_locals, 40 * ENOUGH);
    sleepers_run();
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQUAL(lender[i]->packed, 0);
    }
    sleepers_wake(); /* also fibers that share a home with a lender */
    sleepers_run();
    int packed = 0;
    for (int i = 0; i < COUNT; i++) {
        packed += lender[i]->packed;
    }
    CHECK(packed > 0);
    sleepers_close(60 * ENOUGH + COUNT);
}

static void
stack_of_its_own_is_shared_by_nobody(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    sleeper *one = sleeper_spawn(sleeper_keep_locals, 0);
    one->own_stack = true;
    one->worker.keep = true;
    sleepers_spawn(sleeper_keep_locals, 100);
    sleepers_run();
    const pf_stack *stack = one->worker.fiber.stack;
    for (sleeper *s = one->next; s != &sleepers_line; s = s->next) {
        CHECK(s->worker.fiber.stack != stack);
    }
    sleepers_run_to_the_end();
    CHECK_EQUAL(one->packed + one->moved, 0);
    sleepers_spawn(sleeper_keep_locals, 100); /* the slot may be shared now */
    sleepers_close(201);
    free(one);
}

/* --------------------------------------- images: looked at, or dropped --- */

static void
wait_with_an_x(worker *w)
{
    sleeper *self = (sleeper *)w;
    char x = 'x', *where = &x;
    REMEMBER(where);
    for (int i = 0; i < 3; i++) {
        self->seen = &x;
        sleeper_wait(self);
        CHECK(self->seen == &x && where == &x && x == 'x');
    }
    self->seen = NULL;
    sleepers_finished++;
}

static void
exposed_fiber_is_found_in_its_image(void)
{
    SKIP_WHERE_STACKS_STAY();
    sleepers_open(FEW);
    for (int i = 0; i < 40; i++) {
        sleeper_spawn(wait_with_an_x, i)->exposed = true;
    }
    sleepers_run();
    for (sleeper *s = sleepers_line.next; s != &sleepers_line; s = s->next) {
        const char *top = (char *)s->worker.fiber.stack;
        bool at_home = s->seen < top && s->seen > top - STACK_SIZE;
        CHECK_EQUAL(*s->seen, 'x');
        CHECK(at_home != pf_pack_is_packed(&s->worker.fiber));
        CHECK_EQUAL(s->packed, 0);
    }
    sleepers_close(40);
}

static void
fiber_that_is_looked_at_gets_a_whole_image(void)
{
    SKIP_WHERE_STACKS_STAY();
    world *w = sleepers_open(FEW);
    sleepers_spawn(wait_with_an_x, 40);
    sleepers_run();
    sleeper *one = sleepers_packed_one();
    const char *home = one->seen;
    size_t bytes = sleepers_stats().packed_bytes;
    CHECK(one->packed == 1 && one->moved == 0);
    CHECK_EQUAL(pf_pack_show(&w->thread, &one->worker.fiber), 0);
    CHECK(pf_pack_is_packed(&one->worker.fiber));
    CHECK(one->moved == 1 && one->seen != home);
    CHECK_EQUAL(*one->seen, 'x');
    CHECK(sleepers_stats().packed_bytes > bytes);
    CHECK_EQUAL(pf_pack_show(&w->thread, &one->worker.fiber), 0);
    CHECK_EQUAL(one->moved, 1);
    sleepers_close(40);
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
    one->previous->next = one->next;
    one->next->previous = one->previous;
    pf_fiber_release_stack(&w->thread, &one->worker.fiber);
    CHECK(one->worker.fiber.stack == NULL);
    CHECK_EQUAL(sleepers_stats().packed, before.packed - 1);
    CHECK(sleepers_stats().packed_bytes < before.packed_bytes);
    free(one);
    sleepers_run_to_the_end();
    CHECK_EQUAL(w->reaped, 19);
    CHECK_EQUAL(sleepers_stats().packed_bytes, 0);
    CHECK_EQUAL(sleepers_stats().packings, sleepers_stats().unpackings + 1);
    CHECK_EQUAL(pf_stack_pool_live(sleepers_pool(STACK_SIZE)), 0);
    world_close(w);
}

static void
pinned_fiber_is_packed_for_nobody(void)
{
    SKIP_WHERE_STACKS_STAY();
    world *w = sleepers_open(2);
    sleepers_spawn(sleeper_keep_locals, 20);
    sleepers_run();
    sleeper *one = sleepers_packed_one();
    sleeper *in = one->worker.fiber.stack->user;
    int error = 0;
    in->pinned = true;
    CHECK(pf_pack_bring_home(&w->thread, &one->worker.fiber, &error) == NULL);
    CHECK_EQUAL(error, -EBUSY);
    CHECK(one->worker.fiber.stack->user == in && in->packed == 0);
    in->pinned = false;
    CHECK(pf_pack_bring_home(&w->thread, &one->worker.fiber, &error) ==
          &one->worker.fiber);
    CHECK(one->worker.fiber.stack->user == one && in->packed == 1);
    sleepers_close(20);
}

/* --------------------------------------------------- packing stays off --- */

static void
packing_is_off_where_stacks_stay(void)
{
    if (pf_pack_is_possible()) {
        SKIP("stacks can be packed here");
    }
    sleepers_open(2);
    sleepers_spawn(sleeper_keep_locals, 20);
    sleepers_run();
    CHECK_EQUAL(sleepers_stats().slots, 0);
    CHECK_EQUAL(sleepers_stats().packed, 0);
    CHECK(sleepers_packed_one() == NULL);
    sleepers_close(20);
}

const test pack_tests[] = {
    TEST(waiting_fibers_share_stacks_and_keep_their_variables),
    TEST(stacks_of_several_depths_are_packed),
    TEST(stack_with_much_on_it_is_packed_whole),
    TEST(strange_stacks_only_take_more_bytes),
    TEST(numbers_that_look_like_addresses_come_back),
    TEST(stack_with_a_foreign_call_on_it_is_packed),
    TEST(mover_changes_the_fibers_of_one_home),
    TEST(fiber_that_ends_leaves_its_home_to_the_next),
    TEST(fiber_that_lends_is_packed_for_its_home_only),
    TEST(stack_of_its_own_is_shared_by_nobody),
    TEST(exposed_fiber_is_found_in_its_image),
    TEST(fiber_that_is_looked_at_gets_a_whole_image),
    TEST(image_of_a_fiber_that_will_not_run_is_dropped),
    TEST(pinned_fiber_is_packed_for_nobody),
    TEST(packing_is_off_where_stacks_stay),
    END_OF_TESTS,
};
