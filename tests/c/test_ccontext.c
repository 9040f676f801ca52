/* Tests the contexts for C programs (pf_ccontext). */
#include "check.h"

#include <errno.h>
#include <fenv.h>

#include "engine/core/ccontext.h"
#include "engine/base/memory.h"
#include "engine/stack/stack.h"
#include "fakes.h"
#include "threads.h"

static void *
give_back(void *arg, void *value)
{
    (void)arg;
    return value;
}

/* Adds the numbers that main passes, and passes each sum to main. */
static void *
count(void *arg, void *value)
{
    long *total = arg;
    for (;;) {
        *total += *(long *)value;
        value = total;
        if (pf_ccontext_switch(pf_ccontext_main(), &value) != 0) {
            return NULL;
        }
        if (value == NULL) {
            return total;
        }
    }
}

static void
ccontext_passes_values(void)
{
    long total = 0, expected = 0;
    pf_ccontext *c;
    CHECK_EQUAL(pf_ccontext_create(&c, count, &total, 0), 0);
    for (long i = 1; i <= 1000; i++) {
        void *value = &i;
        expected += i;
        CHECK_EQUAL(pf_ccontext_switch(c, &value), 0);
        CHECK(value == &total);
        CHECK_EQUAL(total, expected);
    }
    void *end = NULL;
    CHECK_EQUAL(pf_ccontext_done(c), 0);
    CHECK_EQUAL(pf_ccontext_switch(c, &end), 0);
    CHECK(end == &total);
    CHECK_EQUAL(pf_ccontext_done(c), 1);
    CHECK_EQUAL(pf_ccontext_switch(c, NULL), -ESRCH);
    CHECK_EQUAL(pf_ccontext_destroy(c), 0);
}

static void
ccontext_refuses_misuse(void)
{
    pf_ccontext *c = NULL;
    CHECK_EQUAL(pf_ccontext_create(&c, NULL, NULL, 0), -EINVAL);
    CHECK_EQUAL(pf_ccontext_create(NULL, give_back, NULL, 0), -EINVAL);
    CHECK_EQUAL(pf_ccontext_create(&c, give_back, NULL, 100), -EINVAL);
    CHECK(c == NULL);
    CHECK_EQUAL(pf_ccontext_switch(NULL, NULL), -EINVAL);
    CHECK_EQUAL(pf_ccontext_done(NULL), -EINVAL);
    CHECK_EQUAL(pf_ccontext_destroy(NULL), 0);
    CHECK_EQUAL(pf_ccontext_destroy(pf_ccontext_main()), -EINVAL);
    void *same = &c;
    CHECK_EQUAL(pf_ccontext_switch(pf_ccontext_main(), &same), 0);
    CHECK(same == &c);
    CHECK(pf_ccontext_current() == pf_ccontext_main());
}

/* ----------------------------------------------- the order of resuming --- */

typedef struct ring {
    pf_ccontext *members[8];
    int trace[64];
    int length;
} ring;

static ring the_ring;

/* Enters the next context, then ends: each goes back to the one that entered
 * it. */
static void *
enter_next(void *arg, void *value)
{
    intptr_t number = (intptr_t)arg;
    CHECK(pf_ccontext_current() == the_ring.members[number]);
    the_ring.trace[the_ring.length++] = (int)number;
    if (number + 1 < 8) {
        CHECK_EQUAL(pf_ccontext_switch(the_ring.members[number + 1], &value),
                    0);
    }
    the_ring.trace[the_ring.length++] = (int)-number;
    return value;
}

static void
ccontext_returns_to_its_resumer(void)
{
    the_ring.length = 0;
    for (intptr_t i = 0; i < 8; i++) {
        CHECK_EQUAL(pf_ccontext_create(&the_ring.members[i], enter_next,
                                       (void *)i, 64 << 10),
                    0);
    }
    void *value = &the_ring;
    CHECK_EQUAL(pf_ccontext_switch(the_ring.members[0], &value), 0);
    CHECK(value == &the_ring);
    CHECK_EQUAL(the_ring.length, 16);
    for (int i = 0; i < 8; i++) {
        CHECK_EQUAL(the_ring.trace[i], i);
        CHECK_EQUAL(the_ring.trace[15 - i], -i);
        CHECK_EQUAL(pf_ccontext_destroy(the_ring.members[i]), 0);
    }
}

static pf_ccontext *victim;

static void *
destroy_resumer(void *arg, void *value)
{
    (void)arg;
    CHECK_EQUAL(pf_ccontext_destroy(pf_ccontext_current()), -EBUSY);
    CHECK_EQUAL(pf_ccontext_destroy(victim), 0);
    return value;
}

static void *
be_destroyed(void *arg, void *value)
{
    pf_ccontext_switch(arg, &value);
    CHECK(!"a destroyed context went on");
    return NULL;
}

static void
ccontext_whose_resumer_is_gone_returns_to_main(void)
{
    pf_ccontext *c;
    int something;
    void *value = &something;
    CHECK_EQUAL(pf_ccontext_create(&c, destroy_resumer, NULL, 0), 0);
    CHECK_EQUAL(pf_ccontext_create(&victim, be_destroyed, c, 0), 0);
    CHECK_EQUAL(pf_ccontext_switch(victim, &value), 0);
    CHECK(value == &something);
    CHECK_EQUAL(pf_ccontext_done(c), 1);
    CHECK_EQUAL(pf_ccontext_destroy(c), 0);
}

/* Runs on the stack of the only context there is. */
static void *
make_another(void *arg, void *value)
{
    pf_ccontext *c;
    (void)arg;
    CHECK_EQUAL(pf_ccontext_create(&c, give_back, NULL, 0), 0);
    CHECK_EQUAL(pf_ccontext_switch(c, &value), 0);
    CHECK_EQUAL(pf_ccontext_done(c), 1);
    CHECK_EQUAL(pf_ccontext_destroy(c), 0);
    return value;
}

static void
ccontext_makes_another(void)
{
    pf_ccontext *c;
    int something;
    void *value = &something;
    CHECK_EQUAL(pf_ccontext_create(&c, make_another, NULL, 0), 0);
    CHECK_EQUAL(pf_ccontext_switch(c, &value), 0);
    CHECK(value == &something);
    CHECK_EQUAL(pf_ccontext_destroy(c), 0);
}

/* ------------------------------------------------------ life and death --- */

static void
ccontext_many_alive_and_abandoned(void)
{
    enum { N = 500 };
    static pf_ccontext *contexts[N];
    static long totals[N];
    for (int i = 0; i < N; i++) {
        totals[i] = 0;
        CHECK_EQUAL(
            pf_ccontext_create(&contexts[i], count, &totals[i], 64 << 10), 0);
    }
    for (int round = 0; round < 3; round++) {
        for (long i = 0; i < N; i++) {
            void *value = &i;
            CHECK_EQUAL(pf_ccontext_switch(contexts[i], &value), 0);
        }
    }
    for (int i = 0; i < N; i++) {
        CHECK_EQUAL(totals[i], 3 * i);
        CHECK_EQUAL(pf_ccontext_destroy(contexts[i]), 0);
    }
}

static void *
round_upward(void *arg, void *value)
{
    (void)arg;
    fesetround(FE_UPWARD);
    pf_ccontext_switch(pf_ccontext_main(), NULL);
    CHECK_EQUAL(fegetround(), FE_UPWARD);
    return value;
}

static void
ccontext_keeps_its_rounding_mode(void)
{
    pf_ccontext *c;
#if defined(_WIN32)
    SKIP("Wine does not switch it; test_context.c looks at the real thing");
#endif
    CHECK_EQUAL(pf_ccontext_create(&c, round_upward, NULL, 0), 0);
    pf_ccontext_switch(c, NULL);
    CHECK_EQUAL(fegetround(), FE_TONEAREST);
    pf_ccontext_switch(c, NULL);
    CHECK_EQUAL(fegetround(), FE_TONEAREST);
    CHECK_EQUAL(pf_ccontext_destroy(c), 0);
}

/* ------------------------------------------------------------ threads --- */

static pf_ccontext *foreign;

THREAD_FN(misuse_from_elsewhere)
{
    (void)arg;
    CHECK_EQUAL(pf_ccontext_switch(foreign, NULL), -EPERM);
    CHECK_EQUAL(pf_ccontext_done(foreign), -EPERM);
    CHECK_EQUAL(pf_ccontext_destroy(foreign), -EPERM);
    ccontext_passes_values();
    THREAD_END;
}

static void
ccontext_belongs_to_its_thread(void)
{
    CHECK_EQUAL(pf_ccontext_create(&foreign, give_back, NULL, 0), 0);
    for (int i = 0; i < 3; i++) {
        test_thread thread;
        thread_start(&thread, misuse_from_elsewhere, NULL);
        thread_join(thread);
    }
    CHECK_EQUAL(pf_ccontext_destroy(foreign), 0);
}

/* --------------------------------------------------------------- host --- */

static int nested, moves;

static void
nesting(pf_nesting *now)
{
    memset(now, 0, sizeof *now);
    now->marks[0] = nested == 0 ? NULL : &nested;
}

static void
moved(const pf_area *area)
{
    moves += area == NULL ? -1 : 1;
}

static void *
nest(void *arg, void *value)
{
    (void)arg;
    nested++;
    CHECK_EQUAL(pf_ccontext_switch(pf_ccontext_main(), NULL), -EBUSY);
    nested--;
    CHECK_EQUAL(pf_ccontext_switch(pf_ccontext_main(), NULL), 0);
    return value;
}

static void
ccontext_is_not_left_below_the_host_s_code(void)
{
    static const pf_ccontext_host host = {nesting, moved};
    pf_ccontext *c;
    pf_ccontext_set_host(&host);
    moves = 0;
    CHECK_EQUAL(pf_ccontext_create(&c, nest, NULL, 0), 0);
    CHECK_EQUAL(pf_ccontext_switch(c, NULL), 0);
    nested++; /* main itself may be left at another depth of nesting */
    CHECK_EQUAL(pf_ccontext_switch(c, NULL), 0);
    nested--;
    CHECK_EQUAL(moves, 0);
    CHECK_EQUAL(pf_ccontext_done(c), 1);
    CHECK_EQUAL(pf_ccontext_destroy(c), 0);
    pf_ccontext_set_host(NULL);
}

#if !defined(_WIN32) /* there only the system knows the stack */
static pf_area told;

static void
remember_area(const pf_area *area)
{
    if (area != NULL) {
        told = *area;
    }
}

static void *
look_at_area(void *arg, void *value)
{
    char *frame = __builtin_frame_address(0);
    size_t size = *(size_t *)arg;
    CHECK_EQUAL((uintptr_t)told.low % pf_stack_page_size(), 0);
    CHECK(frame > told.low && frame < told.low + told.size);
    CHECK((size_t)(told.low + told.size - frame) < pf_stack_page_size());
    CHECK(told.size > size - 2 * pf_stack_page_size());
    *(volatile char *)told.low = 1; /* the whole area can be used */
    return value;
}

static void
host_is_told_what_can_be_used(void)
{
    static const pf_ccontext_host host = {nesting, remember_area};
    pf_ccontext *c;
    pf_ccontext_set_host(&host);
    for (size_t size = 65536; size <= 65536 << 4; size *= 2) {
        CHECK_EQUAL(pf_ccontext_create(&c, look_at_area, &size, size), 0);
        CHECK_EQUAL(pf_ccontext_switch(c, NULL), 0);
        CHECK_EQUAL(pf_ccontext_destroy(c), 0);
    }
    pf_ccontext_set_host(NULL);
}
#endif

/* ------------------------------------------------------------- memory --- */

static void
ccontext_without_memory_is_refused(void)
{
#if defined(PYFIBER_HARDTEST)
    int error = -ENOMEM;
    for (long n = 1; error != 0; n++) {
        pf_ccontext *c = NULL;
        pf_memory_fail = n;
        error = pf_ccontext_create(&c, give_back, NULL, 0);
        pf_memory_fail = 0;
        CHECK(error == 0 || error == -ENOMEM);
        if (error == 0) {
            CHECK_EQUAL(pf_ccontext_switch(c, NULL), 0);
            CHECK_EQUAL(pf_ccontext_destroy(c), 0);
        }
    }
#else
    SKIP("memory fails on request in HARDTEST builds only");
#endif
}

/* Only the object and the list of pools are allocated, no slab or mapping. */
static void
ccontext_made_one_at_a_time_reuses_its_slab(void)
{
#if defined(PYFIBER_HARDTEST)
    for (int i = 0; i < 3; i++) {
        pf_ccontext *c = NULL;
        pf_memory_fail = i == 0 ? 0 : 3;
        CHECK_EQUAL(pf_ccontext_create(&c, give_back, NULL, 0), 0);
        pf_memory_fail = 0;
        CHECK_EQUAL(pf_ccontext_switch(c, NULL), 0);
        CHECK_EQUAL(pf_ccontext_destroy(c), 0);
    }
#else
    SKIP("allocations are counted in HARDTEST builds only");
#endif
}

#if defined(PYFIBER_HARDTEST)
/* Allows the allocation of the object and of the list of pools, no more. */
THREAD_FN(find_no_spare_pool)
{
    pf_ccontext *c = NULL;
    (void)arg;
    pf_memory_fail = 3;
    CHECK_EQUAL(pf_ccontext_create(&c, give_back, NULL, 0), -ENOMEM);
    pf_memory_fail = 0;
    THREAD_END;
}
#endif

/* A thread leaves its pool to others only with its last context. */
static void
ccontext_pool_in_use_is_not_spare(void)
{
#if defined(PYFIBER_HARDTEST)
    pf_ccontext *first, *second;
    test_thread thread;
    CHECK_EQUAL(pf_ccontext_create(&first, give_back, NULL, 0), 0);
    thread_start(&thread, find_no_spare_pool, NULL);
    thread_join(thread);
    CHECK_EQUAL(pf_ccontext_create(&second, give_back, NULL, 0), 0);
    CHECK_EQUAL(pf_ccontext_destroy(second), 0);
    thread_start(&thread, find_no_spare_pool, NULL);
    thread_join(thread);
    CHECK_EQUAL(pf_ccontext_switch(first, NULL), 0);
    CHECK_EQUAL(pf_ccontext_destroy(first), 0);
#else
    SKIP("allocations are counted in HARDTEST builds only");
#endif
}

/* A spare pool that cannot be recorded must be freed. */
static void
ccontext_spare_pool_is_not_lost(void)
{
#if defined(PYFIBER_HARDTEST) && defined(__linux__)
    pf_ccontext *c;
    CHECK_EQUAL(pf_ccontext_create(&c, give_back, NULL, 0), 0);
    CHECK_EQUAL(pf_ccontext_destroy(c), 0);
    count_unmapped();
    pf_memory_fail = 2;
    CHECK_EQUAL(pf_ccontext_create(&c, give_back, NULL, 0), 0);
    pf_memory_fail = 0;
    CHECK(unmapped() > PF_CCONTEXT_STACK);
    CHECK_EQUAL(pf_ccontext_destroy(c), 0);
#else
    SKIP("memory fails on request in HARDTEST builds only");
#endif
}

THREAD_FN(make_contexts)
{
    for (int i = 0; i < 200; i++) {
        pf_ccontext *c = NULL;
        CHECK_EQUAL(pf_ccontext_create(&c, give_back, arg, 0), 0);
        CHECK_EQUAL(pf_ccontext_switch(c, NULL), 0);
        CHECK_EQUAL(pf_ccontext_destroy(c), 0);
    }
    THREAD_END;
}

static void
ccontext_slabs_go_from_thread_to_thread(void)
{
    test_thread threads[4];
    for (int i = 0; i < 4; i++) {
        thread_start(&threads[i], make_contexts, NULL);
    }
    for (int i = 0; i < 4; i++) {
        thread_join(threads[i]);
    }
}

const test ccontext_tests[] = {
    TEST(ccontext_passes_values),
    TEST(ccontext_refuses_misuse),
    TEST(ccontext_returns_to_its_resumer),
    TEST(ccontext_whose_resumer_is_gone_returns_to_main),
    TEST(ccontext_makes_another),
    TEST(ccontext_many_alive_and_abandoned),
    TEST(ccontext_keeps_its_rounding_mode),
    TEST(ccontext_belongs_to_its_thread),
    TEST(ccontext_is_not_left_below_the_host_s_code),
#if !defined(_WIN32)
    TEST(host_is_told_what_can_be_used),
#endif
    TEST(ccontext_without_memory_is_refused),
    TEST(ccontext_made_one_at_a_time_reuses_its_slab),
    TEST(ccontext_pool_in_use_is_not_spare),
    TEST(ccontext_spare_pool_is_not_lost),
    TEST(ccontext_slabs_go_from_thread_to_thread),
    END_OF_TESTS,
};
