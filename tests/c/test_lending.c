/* Pools that lend so many stacks, and whose stacks are visited one after the
 * other. */
#include "check.h"

#include "engine/stack/stack.h"
#include "engine/stack/testing.h"

#if !defined(_WIN32)

#define KIB ((size_t)1 << 10)
#define MOST 600

/* The stacks in use, each the user of itself by its place here. */
static pf_stack *stacks[MOST];
static int count;
static bool visited[MOST];

static pf_stack_pool *
new_pool(void)
{
    count = 0;
    return pf_stack_pool_new(64 * KIB, 500);
}

static void
take(pf_stack_pool *pool)
{
    pf_stack *stack; /* others may be given meanwhile */
    CHECK_EQUAL(pf_stack_acquire(pool, &stack), 0);
    CHECK(stack->user == NULL);
    stack->user = &stacks[count];
    stacks[count++] = stack;
}

static void
give(int i)
{
    pf_stack_release(stacks[i]);
    if (i != --count) {
        stacks[i] = stacks[count];
        stacks[i]->user = &stacks[i];
    }
}

static void
end(pf_stack_pool *pool)
{
    while (count > 0) {
        give(count - 1);
    }
    CHECK(pf_stack_pool_next_user(pool, 10000) == NULL);
    pf_stack_pool_free(pool);
}

/* Of so many visits as there are users each one gets one. */
static void
visit_all(pf_stack_pool *pool)
{
    memset(visited, 0, sizeof visited);
    CHECK_EQUAL(pf_stack_pool_live(pool), count);
    for (int i = 0; i < count; i++) {
        pf_stack **user = pf_stack_pool_next_user(pool, 100000);
        CHECK(user >= stacks && user < stacks + count);
        CHECK(!visited[user - stacks]);
        visited[user - stacks] = true;
    }
}

static void
each_live_stack_is_visited_and_no_free_one(void)
{
    uint64_t random = 4101842887655102017u;
    pf_stack_pool *pool = new_pool();
    CHECK(pf_stack_pool_next_user(pool, 10) == NULL);
    for (int step = 0; step < 20000; step++) {
        bool grow = random_next(&random) % 100 < (step / 4000 % 2 ? 25 : 75);
        if (grow && count < MOST) {
            take(pool);
        } else if (count > 0) {
            give((int)(random_next(&random) % (uint64_t)count));
        }
        if (random_next(&random) % 64 == 0) {
            visit_all(pool);
        } else if (count > 0) { /* the hand is anywhere */
            pf_stack **user = pf_stack_pool_next_user(pool, 100000);
            CHECK(user >= stacks && user < stacks + count);
        }
        if (step % 500 == 0) {
            pf_stack_pool_trim(pool);
        }
    }
    end(pool);
}

/* The hand points to a slab that goes: the newest, the oldest, the last. */
static void
visits_go_on_while_slabs_are_freed(void)
{
    for (int from = 0; from < 40; from++) {
        pf_stack_pool *pool = new_pool();
        for (int i = 0; i < 300; i++) {
            take(pool);
        }
        size_t slabs = pf_stack_pool_slabs(pool);
        for (int i = 0; i < from * 8; i++) {
            (void)pf_stack_pool_next_user(pool, 100000);
        }
        while (count > 10) {
            give(from % 2 == 0 ? 0 : count - 1);
        }
        pf_stack_pool_trim(pool);
        CHECK(pf_stack_pool_slabs(pool) < slabs);
        visit_all(pool);
        end(pool);
    }
}

static void
visits_end_after_so_many_slots(void)
{
    pf_stack_pool *pool = new_pool();
    for (int i = 0; i < 100; i++) {
        take(pool);
    }
    while (count > 1) {
        give(1);
    }
    int found = 0;
    for (int i = 0; i < 1000; i++) {
        found += pf_stack_pool_next_user(pool, 1) != NULL;
    }
#if defined(PYFIBER_HARDTEST)
    CHECK(found >= 1000 / (2 * 100)); /* a slab is a slot, and a step */
#else
    CHECK(found >= 1000 / 150 && found <= 1000 / 50);
#endif
    end(pool);
}

/* ------------------------------------------------------------ lending --- */

static int asked;
static bool gives;

static void
give_the_first(pf_stack_pool *pool, void *owner)
{
    CHECK(owner == &asked);
    CHECK(pf_stack_pool_live(pool) >= 3);
    asked++;
    if (gives) {
        give(0);
    }
}

static void
pool_that_lends_asks_before_each_further_stack(void)
{
    pf_stack_pool *pool = new_pool();
    pf_stack_pool_own(pool, &asked);
    pf_stack_pool_lend(pool, 3, give_the_first);
    asked = 0;
    gives = true;
    for (int i = 0; i < 10; i++) {
        take(pool);
        CHECK_EQUAL(pf_stack_pool_live(pool), i < 3 ? i + 1 : 3);
        CHECK_EQUAL(asked, i < 3 ? 0 : i - 2);
        CHECK(pf_stack_owner(stacks[0]) == &asked);
    }
    gives = false; /* then there are more */
    for (int i = 0; i < 10; i++) {
        take(pool);
    }
    CHECK_EQUAL(asked, 17);
    CHECK_EQUAL(pf_stack_pool_live(pool), 13);
    pf_stack_pool_lend(pool, 0, NULL);
    take(pool);
    CHECK_EQUAL(asked, 17);
    end(pool);
}

const test lending_tests[] = {
    TEST(each_live_stack_is_visited_and_no_free_one),
    TEST(visits_go_on_while_slabs_are_freed),
    TEST(visits_end_after_so_many_slots),
    TEST(pool_that_lends_asks_before_each_further_stack),
    END_OF_TESTS,
};

#else

const test lending_tests[] = {END_OF_TESTS};

#endif
