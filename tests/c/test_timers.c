/* Compares the timers with a model that is obviously right. */
#include "check.h"

#include <errno.h>

#include "engine/core/timers.h"

#define COUNT 300

/* The timers and the model: when each timer is due, and when it was armed. */
typedef struct model {
    pf_timers timers;
    pf_timer timer[COUNT];
    bool armed[COUNT];
    int64_t when[COUNT];
    uint64_t order[COUNT];
    uint64_t next_order;
} model;

static int
model_first(const model *m)
{
    int first = -1;
    for (int i = 0; i < COUNT; i++) {
        if (m->armed[i] && (first < 0 || m->when[i] < m->when[first] ||
                            (m->when[i] == m->when[first] &&
                             m->order[i] < m->order[first]))) {
            first = i;
        }
    }
    return first;
}

static void
model_add(model *m, int i, int64_t when)
{
    CHECK_EQUAL(pf_timers_add(&m->timers, &m->timer[i], when), 0);
    m->armed[i] = true;
    m->when[i] = when;
    m->order[i] = m->next_order++;
}

static void
model_pop(model *m, int64_t now)
{
    int first = model_first(m);
    pf_timer *timer = pf_timers_pop_due(&m->timers, now);
    if (first < 0 || m->when[first] > now) {
        CHECK(timer == NULL);
        return;
    }
    CHECK(timer == &m->timer[first]);
    m->armed[first] = false;
}

static void
model_compare(const model *m)
{
    int first = model_first(m);
    int64_t next = first < 0 ? PF_NEVER : m->when[first];
    uint32_t armed = 0;
    CHECK_EQUAL(pf_timers_next(&m->timers), next);
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQUAL(pf_timer_armed(&m->timer[i]), m->armed[i]);
        armed += m->armed[i];
    }
    CHECK_EQUAL(m->timers.count, armed);
}

static void
timers_agree_with_a_model(void)
{
    static model m;
    uint64_t random = 88172645463325252u;
    memset(&m, 0, sizeof m);
    for (int step = 0; step < 20000; step++) {
        int i = (int)(random_next(&random) % COUNT);
        int64_t when = (int64_t)(random_next(&random) % 200);
        switch (random_next(&random) % 4) {
        case 0:
        case 1:
            model_add(&m, i, when);
            break;
        case 2:
            pf_timers_remove(&m.timers, &m.timer[i]);
            m.armed[i] = false;
            break;
        default:
            model_pop(&m, when / 2);
            break;
        }
        if (step % 16 == 0) {
            model_compare(&m);
        }
    }
    while (m.timers.count > 0) {
        model_pop(&m, PF_NEVER);
    }
    model_compare(&m);
    pf_timers_clear(&m.timers);
}

static void
timers_due_together_keep_their_order(void)
{
    pf_timers timers;
    pf_timer timer[50];
    memset(timer, 0, sizeof timer);
    pf_timers_init(&timers);
    for (int i = 0; i < 50; i++) {
        CHECK_EQUAL(pf_timers_add(&timers, &timer[i], 5), 0);
    }
    for (int i = 0; i < 50; i++) {
        CHECK(pf_timers_pop_due(&timers, 5) == &timer[i]);
    }
    CHECK(pf_timers_pop_due(&timers, PF_NEVER) == NULL);
    pf_timers_clear(&timers);
}

static void
timers_give_memory_back(void)
{
    const uint32_t n = 100000;
    pf_timers timers;
    pf_timer *timer = calloc(n, sizeof *timer);
    pf_timers_init(&timers);
    for (uint32_t i = 0; i < n; i++) {
        pf_timers_add(&timers, &timer[i], (int64_t)(i * 7919u % n));
    }
    uint32_t most = timers.capacity;
    for (int64_t i = 0; i < (int64_t)n; i++) {
        pf_timer *t = pf_timers_pop_due(&timers, i);
        CHECK(t != NULL && (t - timer) * 7919 % n == i);
    }
    CHECK(timers.capacity < most / 8);
    pf_timers_clear(&timers);
    free(timer);
}

static void
cleared_timers_are_not_armed(void)
{
    pf_timers timers;
    pf_timer timer = {0, PF_TIMER_CALL};
    pf_timers_init(&timers);
    pf_timers_remove(&timers, &timer); /* has no effect */
    CHECK_EQUAL(pf_timers_add(&timers, &timer, 1), 0);
    pf_timers_clear(&timers);
    CHECK(!pf_timer_armed(&timer));
    CHECK_EQUAL(pf_timers_next(&timers), PF_NEVER);
}

static void
timers_cleared_together_are_not_armed(void)
{
    pf_timers timers;
    pf_timer timer[3];
    memset(timer, 0, sizeof timer);
    pf_timers_init(&timers);
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(pf_timers_add(&timers, &timer[i], 3 - i), 0);
    }
    pf_timers_clear(&timers);
    for (int i = 0; i < 3; i++) {
        CHECK(!pf_timer_armed(&timer[i]));
    }
}

/* The memory of the removed timer lies right behind the others. */
static void
removed_timer_is_not_looked_at(void)
{
    pf_timers timers;
    pf_timer first = {0, PF_TIMER_CALL}, second = first, removed = first;
    pf_timers_init(&timers);
    CHECK_EQUAL(pf_timers_add(&timers, &first, 10), 0);
    CHECK_EQUAL(pf_timers_add(&timers, &second, 20), 0);
    CHECK_EQUAL(pf_timers_add(&timers, &removed, 15), 0);
    pf_timers_remove(&timers, &removed);
    CHECK_EQUAL(pf_timers_add(&timers, &first, 30), 0); /* a second time */
    CHECK_EQUAL(pf_timers_next(&timers), 20);
    pf_timers_clear(&timers);
}

const test timer_tests[] = {
    TEST(timers_cleared_together_are_not_armed),
    TEST(removed_timer_is_not_looked_at),
    TEST(timers_agree_with_a_model),
    TEST(timers_due_together_keep_their_order),
    TEST(timers_give_memory_back),
    TEST(cleared_timers_are_not_armed),
    END_OF_TESTS,
};
