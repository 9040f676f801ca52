/* Tests what a scheduler asks of its host and of its poller when it waits. */
#include "check.h"

#include <errno.h>

#include "world.h"

/* A fake poller that records how it is called. */
static struct {
    pf_poller base; /* first */
    int waits;
    int wakes;
    int64_t timeout; /* of the last wait */
    int answer;
    bool after_fork;
    pf_message *message; /* to be posted during the next wait */
} bed;

static world the_world;
static char told[64]; /* a letter for each call of host and poller, in order */
static int counted;

static void
tell(char what)
{
    size_t length = strlen(told);
    if (length + 1 < sizeof told) {
        told[length] = what;
        told[length + 1] = 0;
    }
}

static void
count(pf_message *message, pf_scheduler *s)
{
    (void)message;
    (void)s;
    counted++;
}

static const pf_message_ops count_ops = {count};

static int
bed_wait(pf_poller *poller, int64_t timeout)
{
    (void)poller;
    tell('w');
    bed.waits++;
    bed.timeout = timeout;
    if (bed.message != NULL) {
        pf_scheduler_post(&the_world.scheduler, bed.message);
        bed.message = NULL;
    }
    return bed.answer;
}

static void
bed_wake(pf_poller *poller)
{
    (void)poller;
    bed.wakes++;
}

static int
bed_after_fork(pf_poller *poller)
{
    (void)poller;
    bed.after_fork = true;
    return bed.answer;
}

static void
bed_close(pf_poller *poller)
{
    (void)poller;
}

static const pf_poller_ops bed_ops = {
    .wait = bed_wait,
    .wake = bed_wake,
    .after_fork = bed_after_fork,
    .close = bed_close,
};

static pf_scheduler *
open_bed(void)
{
    memset(&bed, 0, sizeof bed);
    bed.base.ops = &bed_ops;
    told[0] = 0;
    counted = 0;
    CHECK(world_open(&the_world));
    pf_scheduler_set_poller(&the_world.scheduler, &bed.base);
    world_use_fake_clock(&the_world);
    return &the_world.scheduler;
}

/* ----------------------------------------------------------- tests --- */

static void
wait_begins(pf_scheduler *s)
{
    (void)s;
    tell('b');
}

static void
wait_ends(pf_scheduler *s)
{
    (void)s;
    tell('e');
}

static void
host_is_told_around_the_wait(void)
{
    pf_scheduler *s = open_bed();
    pf_host host = *the_world.thread.host;
    host.wait_begin = wait_begins;
    host.wait_end = wait_ends;
    the_world.thread.host = &host;
    CHECK_EQUAL(pf_scheduler_wait(s, PF_NEVER), 0);
    CHECK(strcmp(told, "bwe") == 0);
    CHECK_EQUAL(s->waits, 1);
    CHECK_EQUAL(pf_scheduler_wait(s, PF_NEVER), 0);
    CHECK_EQUAL(s->waits, 2);
    CHECK_EQUAL(pf_scheduler_wait(s, 0), 0); /* is past: looks only */
    CHECK(strcmp(told, "bwebwew") == 0);
    world_close(&the_world);
}

static void
failing_poller_ends_the_wait_and_the_run(void)
{
    pf_scheduler *s = open_bed();
    bed.answer = -EBADF;
    CHECK_EQUAL(pf_scheduler_wait(s, PF_NEVER), -EBADF);
    CHECK_EQUAL(pf_scheduler_block(s, PF_NEVER), -EBADF);
    pf_scheduler_hold(s);
    pf_scheduler_run(s); /* would wait for ever without the failure */
    CHECK_EQUAL(bed.waits, 3);
    world_close(&the_world);
}

static void
wait_lasts_until_what_comes_first(void)
{
    pf_scheduler *s = open_bed();
    pf_timer_call call = {.timer.kind = PF_TIMER_CALL};
    the_world.time = 1000;
    pf_scheduler_wait(s, PF_NEVER);
    CHECK_EQUAL(bed.timeout, PF_NEVER);
    pf_scheduler_wait(s, 1700);
    CHECK_EQUAL(bed.timeout, 700);
    pf_scheduler_wait(s, 900); /* is past: looks only */
    CHECK_EQUAL(bed.timeout, 0);
    CHECK_EQUAL(pf_timers_add(&s->timers, &call.timer, 1500), 0);
    pf_scheduler_wait(s, 1700);
    CHECK_EQUAL(bed.timeout, 500);
    pf_scheduler_wait(s, 1300);
    CHECK_EQUAL(bed.timeout, 300);
    pf_timers_remove(&s->timers, &call.timer);
    CHECK_EQUAL(bed.waits, 5);
    world_close(&the_world);
}

static void
message_before_the_wait_prevents_it(void)
{
    pf_scheduler *s = open_bed();
    pf_message message = {NULL, &count_ops};
    pf_scheduler_post(s, &message);
    CHECK_EQUAL(pf_scheduler_wait(s, PF_NEVER), 0);
    CHECK_EQUAL(counted, 1);
    CHECK_EQUAL(bed.waits, 0);
    world_close(&the_world);
}

static void
message_during_the_wait_has_run_when_it_returns(void)
{
    pf_scheduler *s = open_bed();
    pf_message message = {NULL, &count_ops};
    bed.message = &message;
    CHECK_EQUAL(pf_scheduler_wait(s, PF_NEVER), 0);
    CHECK_EQUAL(counted, 1);
    CHECK_EQUAL(bed.wakes, 1);
    bed.message = &message;
    CHECK_EQUAL(pf_scheduler_block(s, PF_NEVER), 0);
    CHECK_EQUAL(counted, 2);
    world_close(&the_world);
}

/* A needless wake-up would cost a system call. */
static void
message_to_a_running_loop_wakes_nobody(void)
{
    pf_scheduler *s = open_bed();
    pf_message message = {NULL, &count_ops};
    pf_scheduler_post(s, &message);
    pf_scheduler_poll(s);
    pf_scheduler_wait(s, PF_NEVER);
    pf_scheduler_post(s, &message);
    pf_scheduler_poll(s);
    pf_scheduler_rest(s);
    pf_scheduler_resume(s);
    CHECK_EQUAL(bed.timeout, 0);
    pf_scheduler_post(s, &message);
    pf_scheduler_poll(s);
    CHECK_EQUAL(pf_scheduler_after_fork(s), 0);
    pf_scheduler_post(s, &message);
    pf_scheduler_poll(s);
    CHECK_EQUAL(bed.wakes, 0);
    CHECK_EQUAL(counted, 4);
    world_close(&the_world);
}

static void
busy_poller_is_looked_at_in_passing(void)
{
    pf_scheduler *s = open_bed();
    pf_scheduler_poll(s);
    CHECK_EQUAL(bed.waits, 0);
    bed.base.awaited = 1;
    bed.timeout = 77;
    s->until_poll = 0;
    pf_scheduler_poll(s);
    CHECK_EQUAL(bed.waits, 1);
    CHECK_EQUAL(bed.timeout, 0);
    CHECK_EQUAL(s->until_poll, PF_POLL_EVERY);
    world_close(&the_world);
}

static void
probe_sees_each_look(pf_scheduler *s, void *data)
{
    (void)s;
    ++*(int *)data;
}

static void
probe_is_called_at_each_look(void)
{
    pf_scheduler *s = open_bed();
    int looks = 0;
    s->probe = probe_sees_each_look;
    s->pick_data = &looks;
    pf_scheduler_poll(s);
    pf_scheduler_poll(s);
    CHECK_EQUAL(looks, 2);
    world_close(&the_world);
}

static void
child_of_fork_has_slept_and_been_nudged_never(void)
{
    pf_scheduler *s = open_bed();
    pf_scheduler_hold(s);
    pf_scheduler_release(s); /* sets `nudged` */
    pf_scheduler_rest(s);
    bed.answer = -EMFILE;
    CHECK_EQUAL(pf_scheduler_after_fork(s), -EMFILE);
    CHECK(bed.after_fork);
    CHECK_EQUAL(pf_load(&s->sleeping), 0);
    CHECK_EQUAL(pf_load(&s->nudged), 0);
    world_close(&the_world);
}

static void
end_at_once(worker *w)
{
    trace(w->world, w->value);
}

/* The wait of an idle loop ends when stacks of an earlier load may be
 * returned. */
static void
wait_ends_when_stacks_may_go_back(void)
{
    pf_scheduler *s = open_bed();
    enum { CROWD = 64 };
    worker *crowd[CROWD];
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = world_spawn(&the_world, end_at_once, i);
        CHECK(crowd[i] != NULL);
    }
    pf_scheduler_run(s);
    CHECK_EQUAL(the_world.traced, CROWD);
    pf_scheduler_wait(s, PF_NEVER);
#if !defined(_WIN32)
    CHECK(bed.timeout != PF_NEVER && bed.timeout > 0);
#endif
    pf_thread_load_over(&the_world.thread);
    for (int i = 0; i < 10 && bed.timeout != PF_NEVER; i++) {
        pf_scheduler_wait(s, PF_NEVER);
    }
    CHECK_EQUAL(bed.timeout, PF_NEVER);
    world_close(&the_world);
}

const test waiting_tests[] = {
    TEST(host_is_told_around_the_wait),
    TEST(failing_poller_ends_the_wait_and_the_run),
    TEST(wait_lasts_until_what_comes_first),
    TEST(message_before_the_wait_prevents_it),
    TEST(message_during_the_wait_has_run_when_it_returns),
    TEST(message_to_a_running_loop_wakes_nobody),
    TEST(busy_poller_is_looked_at_in_passing),
    TEST(probe_is_called_at_each_look),
    TEST(child_of_fork_has_slept_and_been_nudged_never),
    TEST(wait_ends_when_stacks_may_go_back),
    END_OF_TESTS,
};
