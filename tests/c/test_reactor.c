/* Tests events, wake-ups and time-outs in every order in which they can come.
 *
 * The poller is a fake, `bed`, with a simulated system: two descriptors, a
 * clock, and a list of what will happen.  Each happening has a place among the
 * steps of the loop (the engine's test points, and the steps of the poller);
 * the tests try all places for all happenings.  While the loop sleeps, the
 * remaining happenings come one after the other.  If none is left and nothing
 * would end the wait, a wake-up was lost.
 */
#include "check.h"

#include <errno.h>

#include "engine/base/testpoints.h"
#include "world.h"

enum { FIRST, SECOND, DESCRIPTORS };
/* The happenings: a descriptor is ready, a message comes, the time is over. */
enum { MESSAGE = DESCRIPTORS, TIME, HAPPENINGS };

#define DEADLINE 1000

static world the_world;

static struct {
    pf_poller base; /* first */
    pf_registration *registered[DESCRIPTORS];
    bool ready[DESCRIPTORS]; /* in the simulated system */
    bool found[DESCRIPTORS]; /* the poller's buffer */
    bool woken;
    bool away; /* the host has released its lock */
    bool lost;
    int waits, looks;
    int steps;
    int when[HAPPENINGS]; /* at which step; -1: never, or it has happened */
    bool happening;
    pf_message message;
} bed;

/* ---------------------------------------------------- what happens --- */

static void
happen(int what)
{
    bed.when[what] = -1;
    if (what < DESCRIPTORS) {
        bed.ready[what] = true;
    } else if (what == MESSAGE) {
        CHECK(pf_scheduler_post(&the_world.scheduler, &bed.message));
    } else {
        the_world.time = DEADLINE;
    }
}

static void
end_of_step(void)
{
    if (bed.happening || pf_test_point == NULL) {
        return; /* a step of a happening, or before all fibers wait */
    }
    bed.happening = true;
    for (int i = 0; i < HAPPENINGS; i++) {
        if (bed.when[i] == bed.steps) {
            happen(i);
        }
    }
    bed.steps++;
    bed.happening = false;
}

static bool
something_is_left(void)
{
    for (int i = 0; i < HAPPENINGS; i++) {
        if (bed.when[i] >= 0) {
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------ the poller --- */

static int
bed_add(pf_poller *poller, intptr_t descriptor, unsigned interest,
        pf_registration *r)
{
    (void)poller;
    CHECK(!bed.away && bed.registered[descriptor] == NULL);
    CHECK_EQUAL(interest, PF_IO_READ);
    bed.registered[descriptor] = r;
    r->descriptor = descriptor;
    r->added = true;
    return 0;
}

static int
bed_remove(pf_poller *poller, pf_registration *r)
{
    (void)poller;
    CHECK(!bed.away);
    bed.registered[r->descriptor] = NULL;
    bed.found[r->descriptor] = false;
    r->added = false;
    return 0;
}

static int
find(void)
{
    int found = 0;
    for (int i = 0; i < DESCRIPTORS; i++) {
        bed.found[i] = bed.ready[i] && bed.registered[i] != NULL;
        found += bed.found[i];
    }
    return found;
}

/* Sleeps until something ends the wait.  The clock moves to `over` when
 * nothing else is left to happen. */
static int
sleep_until(int64_t over)
{
    int found;
    while ((found = find()) == 0 && !bed.woken && the_world.time < over) {
        if (something_is_left()) {
            end_of_step();
        } else if (over != PF_NEVER) {
            the_world.time = over;
        } else {
            bed.lost = true;
            return -EDEADLK;
        }
    }
    return found;
}

static int
bed_wait(pf_poller *poller, int64_t timeout)
{
    (void)poller;
    CHECK_EQUAL(bed.away, timeout > 0);
    end_of_step();
    if (timeout == 0) {
        bed.looks++;
    } else {
        bed.waits++;
    }
    int found = timeout == 0
                    ? find()
                    : sleep_until(pf_timers_later(the_world.time, timeout));
    bed.woken = false;
    end_of_step();
    return found;
}

static void
bed_deliver(pf_poller *poller, pf_scheduler *s)
{
    (void)poller;
    CHECK(!bed.away);
    for (int i = 0; i < DESCRIPTORS; i++) {
        end_of_step();
        if (bed.found[i]) {
            bed.found[i] = false;
            bed.registered[i]->ready(bed.registered[i], s, PF_IO_READ);
        }
    }
}

static void
bed_wake(pf_poller *poller)
{
    (void)poller;
    bed.woken = true;
}

static void
bed_close(pf_poller *poller)
{
    (void)poller;
}

static const pf_poller_ops bed_ops = {
    .add = bed_add,
    .remove = bed_remove,
    .wait = bed_wait,
    .deliver = bed_deliver,
    .wake = bed_wake,
    .close = bed_close,
};

/* -------------------------------------------------------- the loop --- */

static void
let_go(pf_scheduler *s)
{
    (void)s;
    bed.away = true;
}

static void
take_again(pf_scheduler *s)
{
    (void)s;
    bed.away = false;
}

static pf_host the_host;

static pf_scheduler *
open_bed(void)
{
    memset(&bed, 0, sizeof bed);
    bed.base.ops = &bed_ops;
    for (int i = 0; i < HAPPENINGS; i++) {
        bed.when[i] = -1;
    }
    CHECK(world_open(&the_world));
    pf_scheduler_set_poller(&the_world.scheduler, &bed.base);
    world_use_fake_clock(&the_world);
    the_host = *the_world.thread.host;
    the_host.wait_begin = let_go;
    the_host.wait_end = take_again;
    the_world.thread.host = &the_host;
    return &the_world.scheduler;
}

/* One wait for a descriptor, like that of a socket. */
typedef struct descriptor_wait {
    pf_registration registration; /* first */
    worker *waiter;
} descriptor_wait;

static void
leave(descriptor_wait *wait)
{
    if (wait->registration.added) {
        bed_remove(&bed.base, &wait->registration);
        bed.base.awaited--;
    }
}

static void
tell(pf_registration *r, pf_scheduler *s, unsigned events)
{
    descriptor_wait *wait = (descriptor_wait *)r;
    CHECK_EQUAL(events, PF_IO_READ);
    leave(wait);
    pf_scheduler_wake(s, &wait->waiter->task, PF_WAKE_NORMAL);
}

static int
wait_for(worker *w, intptr_t descriptor, int64_t deadline)
{
    descriptor_wait wait = {.registration.ready = tell, .waiter = w};
    bed_add(&bed.base, descriptor, PF_IO_READ, &wait.registration);
    bed.base.awaited++;
    int why = pf_scheduler_park(&w->world->scheduler, deadline);
    leave(&wait);
    return why;
}

/* ---------------------------------------- which fiber waits for what --- */

static int why[HAPPENINGS];
static worker *messaged;

static void
wait_for_descriptor(worker *w)
{
    why[w->value] = wait_for(w, w->value, PF_NEVER);
}

static void
wait_for_message(worker *w)
{
    messaged = w;
    why[MESSAGE] = pf_scheduler_park(&w->world->scheduler, PF_NEVER);
}

static void
wait_for_time(worker *w)
{
    why[TIME] = pf_scheduler_park(&w->world->scheduler, DEADLINE);
}

static void
message_arrives(pf_message *message, pf_scheduler *s)
{
    (void)message;
    pf_scheduler_wake(s, &messaged->task, PF_WAKE_NORMAL);
    pf_scheduler_release(s);
}

static const pf_message_ops arrives_ops = {message_arrives};

/* Runs the fibers until all wait, before the first step counts. */
static void
let_all_wait(pf_scheduler *s)
{
    s->hub = s->thread->current;
    while (s->ready.head != NULL) {
        pf_fiber_switch(s->thread, pf_scheduler_next(s));
    }
}

static void
play(pf_scheduler *s)
{
    bed.steps = 0;
    pf_test_point = end_of_step;
    pf_scheduler_run(s);
    pf_test_point = NULL;
    CHECK(!bed.lost);
    CHECK_EQUAL(bed.base.awaited, 0);
}

/* Sets the places of all happenings from the digits of `number` to the base
 * `places`. */
static void
place(long number, int places)
{
    for (int i = 0; i < HAPPENINGS; i++) {
        bed.when[i] = (int)(number % places);
        number /= places;
        bed.ready[i < DESCRIPTORS ? i : 0] = false;
    }
    the_world.time = 0;
    bed.woken = false;
    bed.message.ops = &arrives_ops;
}

static int
places(void)
{
    return many() < 20000 ? 7 : 14;
}

static long
orders(void)
{
    long n = 1;
    for (int i = 0; i < HAPPENINGS; i++) {
        n *= places();
    }
    return n;
}

/* ----------------------------------------------------------- tests --- */

static void
nothing_is_slept_over_in_any_order(void)
{
    pf_scheduler *s = open_bed();
    for (long order = 0; order < orders() && !bed.lost; order++) {
        memset(why, 0, sizeof why);
        place(order, places());
        pf_scheduler_hold(s); /* for the message */
        world_spawn(&the_world, wait_for_descriptor, FIRST);
        world_spawn(&the_world, wait_for_descriptor, SECOND);
        world_spawn(&the_world, wait_for_message, 0);
        world_spawn(&the_world, wait_for_time, 0);
        let_all_wait(s);
        play(s);
        CHECK_EQUAL(why[FIRST], PF_WAKE_NORMAL);
        CHECK_EQUAL(why[SECOND], PF_WAKE_NORMAL);
        CHECK_EQUAL(why[MESSAGE], PF_WAKE_NORMAL);
        CHECK_EQUAL(why[TIME], PF_WAKE_TIMEOUT);
    }
    world_close(&the_world);
}

/* One fiber waits twice for everything.  One happening ends each wait, and
 * later ones for that wait do not end the next. */
static int ended[3]; /* waits, by pf_wake */

static void
wait_for_anything(worker *w)
{
    messaged = w;
    ended[wait_for(w, FIRST, DEADLINE)]++;
    ended[wait_for(w, SECOND, DEADLINE + 1)]++;
    messaged = NULL;
}

static void
message_wakes_whoever_waits(pf_message *message, pf_scheduler *s)
{
    (void)message;
    if (messaged != NULL) {
        pf_scheduler_wake(s, &messaged->task, PF_WAKE_NORMAL);
    }
}

static const pf_message_ops wakes_ops = {message_wakes_whoever_waits};

static void
wait_has_one_end_in_every_order(void)
{
    pf_scheduler *s = open_bed();
    for (long order = 0; order < orders() && !bed.lost; order++) {
        memset(ended, 0, sizeof ended);
        place(order, places());
        bed.message.ops = &wakes_ops;
        world_spawn(&the_world, wait_for_anything, 0);
        let_all_wait(s);
        play(s);
        CHECK_EQUAL(ended[PF_WAKE_NORMAL] + ended[PF_WAKE_TIMEOUT], 2);
        CHECK_EQUAL(s->timers.count, 0);
        bed.when[MESSAGE] = -1;
        pf_scheduler_poll(s); /* runs a message that came after the end */
    }
    world_close(&the_world);
}

/* ---------------------------------------------------- what it costs --- */

static void
take_many(worker *w)
{
    for (int i = 0; i < 100; i++) {
        CHECK_EQUAL(wait_for(w, FIRST, PF_NEVER), PF_WAKE_NORMAL);
    }
}

/* The loop does not look before or after its wait. */
static void
idle_turn_asks_the_system_once(void)
{
    pf_scheduler *s = open_bed();
    bed.ready[FIRST] = true; /* and stays so */
    world_spawn(&the_world, take_many, 0);
    pf_scheduler_run(s);
    CHECK_EQUAL(bed.waits + bed.looks, 100);
#if !defined(PYFIBER_HARDTEST) /* which looks at every switch */
    CHECK_EQUAL(bed.looks, 0);
#endif
    world_close(&the_world);
}

static void
yield_many(worker *w)
{
    for (int i = 0; i < 10 * PF_POLL_EVERY; i++) {
        pf_scheduler_yield(&w->world->scheduler);
    }
}

/* Ready fibers do not starve fibers that wait for descriptors. */
static void
busy_loop_looks_in_passing(void)
{
    pf_scheduler *s = open_bed();
    world_spawn(&the_world, yield_many, 0);
    pf_scheduler_run(s);
    CHECK_EQUAL(bed.looks, 0); /* no fiber waits for a descriptor */
    bed.ready[FIRST] = true;
    world_spawn(&the_world, yield_many, 0);
    world_spawn(&the_world, wait_for_descriptor, FIRST);
    why[FIRST] = 0;
    pf_scheduler_run(s);
    CHECK_EQUAL(why[FIRST], PF_WAKE_NORMAL);
    CHECK_EQUAL(bed.looks, 1);
    CHECK_EQUAL(bed.waits, 0);
    world_close(&the_world);
}

static void
post_and_yield(worker *w)
{
    static pf_message message = {NULL, &wakes_ops};
    messaged = NULL;
    for (int i = 0; i < 2 * PF_POLL_EVERY; i++) {
        CHECK(pf_scheduler_post(&w->world->scheduler, &message));
        pf_scheduler_yield(&w->world->scheduler);
    }
}

/* A stream of messages makes the loop poll at each switch.  The loop must not
 * look at descriptors each time, nor stop looking at them. */
static void
messages_do_not_change_how_often_it_looks(void)
{
    pf_scheduler *s = open_bed();
    bed.base.awaited = 1;
    world_spawn(&the_world, post_and_yield, 0);
    s->until_poll = PF_POLL_EVERY;
    let_all_wait(s);
    CHECK_EQUAL(bed.looks, (2 * PF_POLL_EVERY + 2) / PF_POLL_EVERY);
    bed.base.awaited = 0;
    world_close(&the_world);
}

static void
resuming_scheduler_hears_what_came_meanwhile(void)
{
    pf_scheduler *s = open_bed();
    world_spawn(&the_world, wait_for_descriptor, FIRST);
    why[FIRST] = 0;
    let_all_wait(s);
    pf_scheduler_rest(s);
    bed.ready[FIRST] = true;
    pf_scheduler_resume(s);
    CHECK_EQUAL(bed.looks, 1 + (PF_POLL_EVERY == 1 ? 1 : 0));
    let_all_wait(s);
    CHECK_EQUAL(why[FIRST], PF_WAKE_NORMAL);
    world_close(&the_world);
}

const test reactor_tests[] = {
    TEST(nothing_is_slept_over_in_any_order),
    TEST(wait_has_one_end_in_every_order),
    TEST(idle_turn_asks_the_system_once),
    TEST(busy_loop_looks_in_passing),
    TEST(messages_do_not_change_how_often_it_looks),
    TEST(resuming_scheduler_hears_what_came_meanwhile),
    END_OF_TESTS,
};
