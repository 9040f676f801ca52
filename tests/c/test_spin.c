/* Tests a scheduler that spins for a moment before it sleeps. */
#include "check.h"

#include "engine/base/testpoints.h"
#include "world.h"

static int counted;

static void
count_message(pf_message *message, pf_scheduler *s)
{
    (void)message;
    (void)s;
    counted++;
}

static const pf_message_ops count_ops = {count_message};

/* Makes the scheduler spin before its next sleep: it is allowed to, its last
 * wait was short, and it has spun in vain once. */
static void
make_eager(world *w)
{
    pf_spin eager = {.allowed = true, .soon = true, .misses = 1};
    w->scheduler.spin = eager;
}

/* What another thread does at the first test point of the spinning.  Spinning
 * ends by the real clock, so a later point may be too late on a busy
 * machine. */
static struct {
    world *w;
    void (*act)(pf_scheduler *s);
    bool woke; /* the loop slept and had to be woken */
} other;

static void
step(void)
{
    pf_test_point = NULL;
    other.woke = pf_load(&other.w->scheduler.sleeping) != 0;
    other.act(&other.w->scheduler);
}

static void
post_message(pf_scheduler *s)
{
    static pf_message message = {NULL, &count_ops};
    pf_scheduler_post(s, &message);
}

static void
take_without_sleep(world *w, void (*act)(pf_scheduler *s))
{
    make_eager(w);
    other.w = w;
    other.act = act;
    pf_test_point = step;
    CHECK_EQUAL(pf_scheduler_block(&w->scheduler, INT64_C(10000000000)), 0);
    CHECK(!other.woke);
    CHECK_EQUAL(w->scheduler.waits, 0);
    CHECK_EQUAL(pf_load(&w->scheduler.nudged), 0);
    CHECK_EQUAL(w->scheduler.spin.misses, 0); /* the loop spun successfully */
    CHECK(pf_spin_pays(&w->scheduler.spin));
}

static void
message_is_taken_without_sleep(void)
{
    world w;
    counted = 0;
    CHECK(world_open(&w));
    take_without_sleep(&w, post_message);
    CHECK_EQUAL(counted, 1);
    world_close(&w);
}

static void
release_is_seen_without_sleep(void)
{
    world w;
    CHECK(world_open(&w));
    pf_scheduler_hold(&w.scheduler);
    take_without_sleep(&w, pf_scheduler_release);
    world_close(&w);
}

static void
nothing_comes_and_it_sleeps(void)
{
    world w;
    CHECK(world_open(&w));
    make_eager(&w);
    CHECK_EQUAL(pf_scheduler_block(&w.scheduler, PF_SPIN_NS + 1), 0);
    CHECK_EQUAL(w.scheduler.waits, 1);
    CHECK(!pf_spin_pays(&w.scheduler.spin));
    world_close(&w);
}

/* The scheduler does not spin without permission, nor for a wait that is
 * shorter than the spinning. */
static void
scheduler_that_does_not_look_on_sleeps_at_once(void)
{
    world w;
    CHECK(world_open(&w));
    w.scheduler.spin.soon = true;
    CHECK(!pf_spin_pays(&w.scheduler.spin));
    make_eager(&w);
    CHECK_EQUAL(pf_scheduler_block(&w.scheduler, 1), 0);
    CHECK_EQUAL(w.scheduler.waits, 1);
    CHECK_EQUAL(w.scheduler.spin.misses, 1); /* unchanged: it did not spin */
    world_close(&w);
}

static void
each_vain_look_lets_twice_as_many_short_waits_pass(void)
{
    pf_spin spin = {.allowed = true};
    CHECK(!pf_spin_pays(&spin)); /* there was no short wait yet */
    for (int misses = 1; misses <= PF_SPIN_MOST_MISSES + 2; misses++) {
        pf_spin_tried(&spin, false);
        int waits = 0;
        while (!pf_spin_pays(&spin)) {
            pf_spin_slept(&spin, PF_SPIN_SOON_NS - 1, true);
            waits++;
        }
        int most = 1 << PF_SPIN_MOST_MISSES;
        CHECK_EQUAL(waits, misses > PF_SPIN_MOST_MISSES ? most : 1 << misses);
    }
    pf_spin_tried(&spin, true); /* a success */
    pf_spin_tried(&spin, false);
    CHECK_EQUAL(spin.passing, 2);
}

static void
long_wait_or_one_without_message_is_no_reason_to_look_on(void)
{
    pf_spin spin = {.allowed = true};
    pf_spin_slept(&spin, 1, true);
    CHECK(pf_spin_pays(&spin));
    pf_spin_slept(&spin, PF_SPIN_SOON_NS, true);
    CHECK(!pf_spin_pays(&spin));
    pf_spin_slept(&spin, 1, true);
    pf_spin_slept(&spin, 1, false);
    CHECK(!pf_spin_pays(&spin));
}

const test spin_tests[] = {
    TEST(message_is_taken_without_sleep),
    TEST(release_is_seen_without_sleep),
    TEST(nothing_comes_and_it_sleeps),
    TEST(scheduler_that_does_not_look_on_sleeps_at_once),
    TEST(each_vain_look_lets_twice_as_many_short_waits_pass),
    TEST(long_wait_or_one_without_message_is_no_reason_to_look_on),
    END_OF_TESTS,
};
