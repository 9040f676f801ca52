/* Tests a loop that goes to sleep and a thread that wakes it, in every order
 * of their steps.
 *
 * A step ends at a test point of the engine (engine/base/testpoints.h).  There
 * a bit of `turns.order` decides which thread takes the next step, and the
 * tests try all orders.  The poller is a fake, `bed`.  The fake notices when
 * the loop sleeps and no thread is left to wake it, so a lost wake-up fails at
 * once instead of hanging.
 */
#include "check.h"

#include "engine/base/testpoints.h"
#include "threads.h"
#include "world.h"

enum { LOOP, PRODUCER, SIDES };

#define MOST_STEPS 20

void (*pf_test_point)(void);

static _Thread_local int side;

static struct {
    unsigned order; /* bit i: which side takes step i */
    PF_ATOMIC(size_t) taken;
    PF_ATOMIC(uint8_t) out[SIDES]; /* the side takes no steps now */
} turns;

static struct {
    pf_poller base; /* first */
    PF_ATOMIC(uint8_t) woken;
    bool lost; /* the loop slept when no thread was left to wake it */
} bed;

static int
whose_turn(void)
{
    size_t step = pf_load(&turns.taken);
    int who = step < MOST_STEPS && (turns.order >> step & 1) ? PRODUCER : LOOP;
    return pf_load(&turns.out[who]) ? !who : who;
}

static void
wait_for_turn(void)
{
    while (whose_turn() != side) {
        thread_yield();
    }
}

static void
end_of_step(void)
{
    pf_fetch_add(&turns.taken, 1);
    wait_for_turn();
}

/* --------------------------------------------------------- the bed --- */

static int
bed_wait(pf_poller *poller, int64_t timeout)
{
    (void)poller;
    if (timeout != 0 && !pf_load(&bed.woken)) {
        pf_store(&turns.out[LOOP], 1);
        while (!pf_load(&bed.woken) && !pf_load(&turns.out[PRODUCER])) {
            thread_yield();
        }
        bed.lost = !pf_load(&bed.woken);
        pf_store(&turns.out[LOOP], 0);
        wait_for_turn();
    }
    pf_store(&bed.woken, 0);
    return 0;
}

static void
bed_wake(pf_poller *poller)
{
    (void)poller;
    pf_store(&bed.woken, 1);
}

static void
bed_close(pf_poller *poller)
{
    (void)poller;
}

static const pf_poller_ops bed_ops = {
    .wait = bed_wait,
    .wake = bed_wake,
    .close = bed_close,
};

/* ----------------------------------------------------- every order --- */

typedef void (*step_fn)(world *w);

typedef struct play {
    int steps;    /* of both, whose order varies; more may follow */
    int produced; /* how many of them are the producer's */
    step_fn begin;
    step_fn loop;
    step_fn producer;
    step_fn end;
} play;

static world the_world;
static int counted;

static void
count(pf_message *message, pf_scheduler *s)
{
    (void)message;
    (void)s;
    counted++;
}

static const pf_message_ops count_ops = {count};

static void
nothing(world *w)
{
    (void)w;
}

THREAD_FN(be_producer)
{
    const play *p = arg;
    side = PRODUCER;
    wait_for_turn();
    p->producer(&the_world);
    pf_store(&turns.out[PRODUCER], 1);
    THREAD_END;
}

static void
play_once(play *p, unsigned order)
{
    test_thread thread;
    turns.order = order;
    pf_store(&turns.taken, 0);
    pf_store(&turns.out[LOOP], 0);
    pf_store(&turns.out[PRODUCER], 0);
    pf_store(&bed.woken, 0);
    bed.lost = false;
    counted = 0;
    p->begin(&the_world);
    pf_test_point = end_of_step;
    thread_start(&thread, be_producer, p);
    wait_for_turn();
    p->loop(&the_world);
    pf_store(&turns.out[LOOP], 1);
    thread_join(thread);
    pf_test_point = NULL;
    CHECK(!bed.lost);
    p->end(&the_world);
}

static int
ones(unsigned word)
{
    int n = 0;
    for (; word != 0; word &= word - 1) {
        n++;
    }
    return n;
}

static void
play_in_all_orders(play p)
{
    CHECK(world_open(&the_world));
    bed.base.ops = &bed_ops;
    pf_scheduler_set_poller(&the_world.scheduler, &bed.base);
    for (unsigned order = 0; order < 1u << p.steps; order++) {
        if (ones(order) == p.produced) {
            play_once(&p, order);
        }
    }
    world_close(&the_world);
}

/* ----------------------------------------------------------- tests --- */

static void
wait_for_two(world *w)
{
    while (counted < 2 && !bed.lost) {
        CHECK_EQUAL(pf_scheduler_wait(&w->scheduler, PF_NEVER), 0);
    }
}

static void
post_two(world *w)
{
    static pf_message messages[2];
    for (int i = 0; i < 2; i++) {
        messages[i].ops = &count_ops;
        CHECK(pf_scheduler_post(&w->scheduler, &messages[i]));
    }
}

static void
message_is_slept_over_in_no_order(void)
{
    play_in_all_orders(
        (play){14, 5, nothing, wait_for_two, post_two, nothing});
}

static void
hold(world *w)
{
    pf_scheduler_hold(&w->scheduler);
}

static void
run_while_held(world *w)
{
    pf_scheduler_run(&w->scheduler);
}

static void
release(world *w)
{
    pf_scheduler_release(&w->scheduler);
}

static void
release_is_slept_over_in_no_order(void)
{
    play_in_all_orders((play){12, 3, hold, run_while_held, release, nothing});
}

/* Puts the loop to rest.  bed.woken then plays the part of the descriptor that
 * a host would watch. */
static void
rest(world *w)
{
    pf_scheduler_rest(&w->scheduler);
}

static void
post_one(world *w)
{
    static pf_message message = {NULL, &count_ops};
    CHECK(pf_scheduler_post(&w->scheduler, &message));
}

static void
resume_if_woken(world *w)
{
    CHECK_EQUAL(pf_load(&bed.woken), 1);
    pf_scheduler_resume(&w->scheduler);
    CHECK_EQUAL(pf_load(&bed.woken), 0);
    pf_scheduler_poll(&w->scheduler);
    CHECK_EQUAL(counted, 1);
}

static void
resting_scheduler_is_told_in_every_order(void)
{
    play_in_all_orders((play){5, 3, nothing, rest, post_one, resume_if_woken});
}

static worker *the_worker;

static void
forget_bits(world *w)
{
    w->posted = 0;
}

static void
wait_for_bits(world *w)
{
    while (w->posted != 3 && !bed.lost) {
        CHECK_EQUAL(pf_scheduler_wait(&w->scheduler, PF_NEVER), 0);
    }
}

static void
post_bits(world *w)
{
    (void)w;
    pf_task_post(the_worker->task.scheduler, &the_worker->task, 1);
    pf_task_post(the_worker->task.scheduler, &the_worker->task, 2);
}

static void
bits_for_a_fiber_are_lost_in_no_order(void)
{
    worker w = {.task.scheduler = &the_world.scheduler};
    pf_task_set_ops(&w.task, &worker_ops);
    the_worker = &w;
    play_in_all_orders(
        (play){14, 7, forget_bits, wait_for_bits, post_bits, nothing});
}

static bool accepted;

static void
open_anew(world *w)
{
    pf_inbox fresh = {NULL};
    w->scheduler.inbox = fresh;
}

static void
close_scheduler(world *w)
{
    pf_scheduler_close(&w->scheduler);
}

static void
post_or_not(world *w)
{
    static pf_message message = {NULL, &count_ops};
    accepted = pf_scheduler_post(&w->scheduler, &message);
}

static void
ran_if_accepted(world *w)
{
    (void)w;
    CHECK_EQUAL(counted, accepted);
}

static void
closing_scheduler_runs_what_it_accepted_in_every_order(void)
{
    play_in_all_orders((play){4, 3, open_anew, close_scheduler, post_or_not,
                              ran_if_accepted});
}

const test wakeup_tests[] = {
    TEST(message_is_slept_over_in_no_order),
    TEST(release_is_slept_over_in_no_order),
    TEST(resting_scheduler_is_told_in_every_order),
    TEST(bits_for_a_fiber_are_lost_in_no_order),
    TEST(closing_scheduler_runs_what_it_accepted_in_every_order),
    END_OF_TESTS,
};
