/* Tests pools whose slots are shared (pf_stack_pool_share_from), and the
 * visits to all their stacks (pf_stack_pool_next). */
#include "check.h"

#include "engine/stack/stack.h"
#include "engine/stack/testing.h"

#if !defined(_WIN32)

#define KIB ((size_t)1 << 10)
#define MOST 600

/* The stacks in use.  The user of each one is the address of its entry
 * here. */
static pf_stack *stacks[MOST];
static int count;
static bool visited[MOST];

/* Returns the user of the next stack, or NULL. */
static pf_stack **
next_user(pf_stack_pool *pool, unsigned steps)
{
    pf_stack *stack = pf_stack_pool_next(pool, steps, false);
    return stack == NULL ? NULL : stack->user;
}

static pf_stack_pool *
new_pool(void)
{
    count = 0;
    return pf_stack_pool_new(64 * KIB, 500);
}

static void
take(pf_stack_pool *pool)
{
    pf_stack *stack; /* not in `stacks` before it has a user */
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
    CHECK(next_user(pool, 10000) == NULL);
    pf_stack_pool_free(pool);
}

/* Checks that `count` visits reach each stack once. */
static void
visit_all(pf_stack_pool *pool)
{
    memset(visited, 0, sizeof visited);
    CHECK_EQUAL(pf_stack_pool_live(pool), count);
    for (int i = 0; i < count; i++) {
        pf_stack **user = next_user(pool, 100000);
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
    CHECK(next_user(pool, 10) == NULL);
    for (int step = 0; step < 20000; step++) {
        bool grow = random_next(&random) % 100 < (step / 4000 % 2 ? 25 : 75);
        if (grow && count < MOST) {
            take(pool);
        } else if (count > 0) {
            give((int)(random_next(&random) % (uint64_t)count));
        }
        if (random_next(&random) % 64 == 0) {
            visit_all(pool);
        } else if (count > 0) { /* moves the hand on */
            pf_stack **user = next_user(pool, 100000);
            CHECK(user >= stacks && user < stacks + count);
        }
        if (step % 500 == 0) {
            pf_stack_pool_trim(pool);
        }
    }
    end(pool);
}

/* The hand may point to any slab that is freed: the newest, the oldest, the
 * last one. */
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
            (void)next_user(pool, 100000);
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
        found += next_user(pool, 1) != NULL;
    }
#if defined(PYFIBER_HARDTEST)
    CHECK(found >= 1000 / (2 * 100)); /* each slot is a slab: two steps */
#else
    CHECK(found >= 1000 / 150 && found <= 1000 / 50);
#endif
    end(pool);
}

/* ------------------------------------------------------------ lending --- */

static int asked;
static bool shares;

static pf_stack *
share_the_first(pf_stack_pool *pool, void *owner, bool must)
{
    CHECK(owner == &asked && !must);
    CHECK(pf_stack_pool_live(pool) >= 3);
    asked++;
    if (!shares) {
        return NULL;
    }
    pf_stack_leave(stacks[0]);
    CHECK_EQUAL(pf_stack_pool_occupied(pool), pf_stack_pool_live(pool) - 1);
    pf_stack_share(stacks[0], NULL);
    return stacks[0];
}

static void
pool_that_lends_asks_before_each_further_stack(void)
{
    pf_stack_pool *pool = new_pool();
    pf_stack *stack;
    pf_stack_pool_own(pool, &asked);
    pf_stack_pool_share_from(pool, 3, share_the_first);
    asked = 0;
    for (int i = 0; i < 3; i++) {
        take(pool);
    }
    shares = true;
    for (int i = 1; i <= 5; i++) {
        CHECK_EQUAL(pf_stack_acquire(pool, &stack), 0);
        CHECK(stack == stacks[0] && pf_stack_is_shared(stack));
        CHECK_EQUAL(asked, i);
        CHECK_EQUAL(pf_stack_pool_live(pool), 3);
        CHECK(pf_stack_owner(stacks[0]) == &asked);
    }
    shares = false; /* so the pool adds slots */
    take(pool);
    CHECK_EQUAL(asked, 6);
    CHECK_EQUAL(pf_stack_pool_live(pool), 4);
    pf_stack_pool_share_from(pool, 0, NULL);
    take(pool);
    CHECK_EQUAL(asked, 6);
    for (int i = 0; i < 5; i++) {
        CHECK(pf_stack_is_shared(stacks[0]));
        pf_stack_release_home(pool, stacks[0]);
    }
    CHECK(!pf_stack_is_shared(stacks[0]));
    end(pool);
}

static void
slot_stays_until_its_last_home_is_left(void)
{
    pf_stack_pool *pool = new_pool();
    take(pool);
    pf_stack *stack = stacks[0];
    pf_stack_leave(stack);
    pf_stack_share(stack, &stack);
    CHECK(stack->user == &stack);
    pf_stack_release(stack); /* by the occupant */
    CHECK(stack->user == NULL);
    CHECK_EQUAL(pf_stack_pool_live(pool), 1);
    CHECK_EQUAL(pf_stack_pool_occupied(pool), 0);
    CHECK(pf_stack_pool_next(pool, 10000, false) == NULL);
    CHECK(pf_stack_pool_next(pool, 10000, true) == stack);
    pf_stack_release_home(pool, stack);
    CHECK_EQUAL(pf_stack_pool_live(pool), 0);
    count = 0;
    end(pool);
}

static void
stack_of_its_own_is_not_visited(void)
{
    pf_stack_pool *pool = new_pool();
    pf_stack *own;
    take(pool);
    CHECK_EQUAL(pf_stack_acquire_own(pool, &own), 0);
    own->user = &own;
    for (int i = 0; i < 10; i++) {
        CHECK(pf_stack_pool_next(pool, 10000, true) == stacks[0]);
    }
    pf_stack_release(own);
    CHECK_EQUAL(pf_stack_pool_live(pool), 1);
    end(pool);
}

/* A slab has slots with and without an occupant. */
static void
vacant_slots_return_their_memory_and_come_back(void)
{
    enum { COUNT = 300 };
    pf_stack_pool *pool = new_pool();
    static pf_stack *homes[COUNT];
    for (int i = 0; i < COUNT; i++) {
        take(pool);
        homes[i] = stacks[i];
    }
    for (int i = 1; i < COUNT; i++) {
        memset(homes[i]->room, 'r', 100);
        pf_stack_leave(homes[i]);
    }
    CHECK(pf_stack_pool_discard(pool) > 0);
    CHECK_EQUAL(pf_stack_pool_discard(pool), 0);
    CHECK_EQUAL(pf_stack_pool_live(pool), COUNT);
    CHECK_EQUAL(pf_stack_pool_occupied(pool), 1);
    for (int i = 1; i < COUNT; i++) {
        CHECK(pf_stack_bring_back(pool, homes[i]));
        CHECK(homes[i]->user == NULL && homes[i]->room[50] == 0);
        pf_stack_enter(homes[i], &stacks[i]);
        homes[i]->area.low[homes[i]->area.size - 8000] = 1;
    }
    pf_stack_leave(homes[7]);
    CHECK(pf_stack_pool_discard(pool) > 0);
    pf_stack_release_home(pool, homes[7]);
    CHECK_EQUAL(pf_stack_pool_live(pool), COUNT - 1);
    stacks[7] = stacks[--count];
    stacks[7]->user = &stacks[7];
    visit_all(pool);
    end(pool);
}

#if !defined(PYFIBER_HARDTEST) /* each slot is a slab there: mapped anew */
/* After MADV_FREE, as on macOS, the header survives until the system needs the
 * memory.  The slot's flags must be those of an occupied slot nevertheless. */
static void
slot_whose_header_outlives_its_memory_is_released(void)
{
    pf_stack_pool *pool = new_pool();
    pf_stack *own;
    take(pool);
    take(pool); /* an occupant, so that the slab is not mapped anew */
    pf_stack_leave(stacks[0]);
    pf_stack_share(stacks[0], NULL); /* a home of two users */
    pf_stack_leave(stacks[0]);
    pf_stack header = *stacks[0];
    CHECK(pf_stack_pool_discard(pool) > 0);
    *stacks[0] = header;
    CHECK(pf_stack_bring_back(pool, stacks[0]));
    pf_stack_enter(stacks[0], &stacks[0]);
    CHECK(pf_stack_pool_next(pool, 10000, false) != NULL);
    pf_stack_release_home(pool, stacks[0]); /* the other user's */
    CHECK(!pf_stack_is_shared(stacks[0]));
    CHECK_EQUAL(pf_stack_pool_live(pool), 2);
    CHECK_EQUAL(pf_stack_acquire_own(pool, &own), 0);
    pf_stack_release(stacks[0]); /* asks whether it is shared */
    CHECK_EQUAL(pf_stack_pool_live(pool), 2);
    CHECK_EQUAL(pf_stack_pool_occupied(pool), 2);
    pf_stack_release(own);
    stacks[0] = stacks[--count];
    end(pool);
}
#endif

const test lending_tests[] = {
    TEST(each_live_stack_is_visited_and_no_free_one),
    TEST(visits_go_on_while_slabs_are_freed),
    TEST(visits_end_after_so_many_slots),
    TEST(pool_that_lends_asks_before_each_further_stack),
    TEST(slot_stays_until_its_last_home_is_left),
    TEST(stack_of_its_own_is_not_visited),
    TEST(vacant_slots_return_their_memory_and_come_back),
#if !defined(PYFIBER_HARDTEST)
    TEST(slot_whose_header_outlives_its_memory_is_released),
#endif
    END_OF_TESTS,
};

#else

const test lending_tests[] = {END_OF_TESTS};

#endif
