/* Tests the scheduler with other threads: posting, waking, holding,
 * forking. */
#include "check.h"

#include "listeners.h"
#include "threads.h"
#include "world.h"

#if !defined(_WIN32)
#include <sys/wait.h>
#include <unistd.h>
#endif

#define SECOND ((int64_t)1000000000)

typedef struct note {
    pf_message message;
    world *world;
    int *counter;
} note;

static void
count_note(pf_message *message, pf_scheduler *s)
{
    note *n = (note *)message;
    CHECK(s == &n->world->scheduler);
    (*n->counter)++;
    free(n); /* a message may free itself */
}

static const pf_message_ops note_ops = {count_note};

static void
post_note(world *w, int *counter)
{
    note *n = malloc(sizeof *n);
    *n = (note){{NULL, &note_ops}, w, counter};
    pf_scheduler_post(&w->scheduler, &n->message);
}

static world the_world;
static int counted;

/* ---------------------------------------------------------- waking --- */

#define ROUNDS 200

THREAD_FN(post_slowly)
{
    world *w = arg;
    for (int i = 0; i < 20; i++) {
        thread_rest(1);
        post_note(w, &counted);
    }
    pf_scheduler_release(&w->scheduler);
    THREAD_END;
}

/* Each message wakes the blocked loop.  A hold keeps the loop waiting; its
 * release lets the loop end. */
static void
waiting_loop_is_woken(void)
{
    world *w = &the_world;
    test_thread thread;
    CHECK(world_open(w));
    counted = 0;
    pf_scheduler_hold(&w->scheduler);
    thread_start(&thread, post_slowly, w);
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(counted, 20);
    CHECK_EQUAL(w->scheduler.messages, 20);
    thread_join(thread);
    world_close(w);
}

THREAD_FN(post_to_closed)
{
    worker *w = arg;
    pf_task_post(w->task.scheduler, &w->task, 4);
    THREAD_END;
}

/* Closing delivers what was posted before.  A later post does not touch the
 * fiber, which may be freed. */
static void
closed_scheduler_takes_no_messages(void)
{
    world *w = &the_world;
    test_thread thread;
    CHECK(world_open(w));
    worker *late = world_worker(w, NULL, 0);
    pf_task_post(late->task.scheduler, &late->task, 2);
    pf_scheduler_close(&w->scheduler);
    CHECK_EQUAL(w->posted, 2);
    thread_start(&thread, post_to_closed, late);
    thread_join(thread);
    CHECK_EQUAL(pf_load(&late->task.posted), 0);
    pf_scheduler_close(&w->scheduler); /* a second call does no harm */
    CHECK_EQUAL(w->posted, 2);
    pf_fiber_over(&late->fiber);
    pf_fiber_reap(&w->thread, &late->fiber);
    world_close(w);
}

THREAD_FN(release_at_once)
{
    world *w = arg;
    pf_scheduler_release(&w->scheduler);
    THREAD_END;
}

/* A release races with a loop that has just decided to wait. */
static void
release_is_never_missed(void)
{
    world *w = &the_world;
    CHECK(world_open(w));
    for (int i = 0; i < ROUNDS; i++) {
        test_thread thread;
        pf_scheduler_hold(&w->scheduler);
        thread_start(&thread, release_at_once, w);
        pf_scheduler_run(&w->scheduler);
        thread_join(thread);
        CHECK_EQUAL(pf_load(&w->scheduler.holds), 0);
    }
    world_close(w);
}

#define PRODUCERS 4
#define NOTES 2000

THREAD_FN(post_burst)
{
    world *w = arg;
    for (int i = 0; i < NOTES; i++) {
        post_note(w, &counted);
        if (i % 500 == 0) {
            thread_rest(1);
        }
    }
    pf_scheduler_release(&w->scheduler);
    THREAD_END;
}

static void
yield_for_ever(worker *w)
{
    pf_scheduler *s = &w->world->scheduler;
    while (counted < PRODUCERS * NOTES) {
        pf_scheduler_yield(s);
    }
}

/* Several threads post bursts of messages to a loop that waits or (`busy`, by
 * a fiber that always yields) to one that does not. */
static void
burst_from_threads(bool busy)
{
    world *w = &the_world;
    test_thread threads[PRODUCERS];
    CHECK(world_open(w));
    counted = 0;
    for (int i = 0; i < PRODUCERS; i++) {
        pf_scheduler_hold(&w->scheduler);
    }
    if (busy) {
        world_spawn(w, yield_for_ever, 0);
    }
    for (int i = 0; i < PRODUCERS; i++) {
        thread_start(&threads[i], post_burst, w);
    }
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(counted, PRODUCERS * NOTES);
    for (int i = 0; i < PRODUCERS; i++) {
        thread_join(threads[i]);
    }
    world_close(w);
}

static void
idle_loop_takes_bursts(void)
{
    burst_from_threads(false);
}

static void
busy_loop_takes_bursts(void)
{
    burst_from_threads(true);
}

/* ----------------------------------------------- posting to fibers --- */

static void
park_until_posted(worker *w)
{
    for (int i = 0; i < ROUNDS; i++) {
        w->world->posted = 0;
        trace(w->world, i);
        CHECK_EQUAL(pf_scheduler_park(&w->world->scheduler, PF_NEVER),
                    PF_WAKE_NORMAL);
        CHECK_EQUAL(w->world->posted, 3);
    }
}

THREAD_FN(post_bits)
{
    pf_task_post(((pf_task *)arg)->scheduler, arg, 3);
    THREAD_END;
}

static void
fiber_is_woken_by_another_thread(void)
{
    world *w = &the_world;
    CHECK(world_open(w));
    worker *sleeper = world_spawn(w, park_until_posted, 0);
    pf_fiber_switch(&w->thread,
                    pf_scheduler_next(&w->scheduler)); /* until it parks */
    for (int i = 0; i < ROUNDS; i++) {
        test_thread thread;
        CHECK_EQUAL(w->traced, i + 1);
        thread_start(&thread, post_bits, &sleeper->task);
        while (w->posts <= i) {
            pf_scheduler_wait(&w->scheduler, PF_NEVER);
        }
        thread_join(thread);
        pf_fiber_switch(&w->thread, pf_scheduler_next(&w->scheduler));
    }
    CHECK_EQUAL(w->posts, ROUNDS);
    CHECK_EQUAL(w->reaped, 1);
    world_close(w);
}

static void
park_once(worker *w)
{
    pf_scheduler_park(&w->world->scheduler, PF_NEVER);
}

static void
posts_to_one_fiber_come_together(void)
{
    world *w = &the_world;
    CHECK(world_open(w));
    worker *sleeper = world_spawn(w, park_once, 0);
    pf_fiber_switch(&w->thread, pf_scheduler_next(&w->scheduler));
    pf_task_post(sleeper->task.scheduler, &sleeper->task, 1);
    pf_task_post(sleeper->task.scheduler, &sleeper->task, 4);
    CHECK_EQUAL(w->posts, 0);
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(w->posts, 1);
    CHECK_EQUAL(w->posted, 5);
    CHECK_EQUAL(w->scheduler.messages, 1);
    world_close(w);
}

/* --------------------------------------- one scheduler for each thread --- */

static void
hop(worker *w)
{
    for (int i = 0; i < 50; i++) {
        pf_scheduler_park(&w->world->scheduler,
                          pf_scheduler_now(&w->world->scheduler) +
                              (i % 3) * 1000);
        pf_scheduler_yield(&w->world->scheduler);
    }
}

THREAD_FN(run_a_world)
{
    world *w = arg;
    CHECK(world_open(w));
    for (int i = 0; i < 50; i++) {
        world_spawn(w, hop, i);
    }
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(w->reaped, 50);
    world_close(w);
    THREAD_END;
}

static void
each_thread_runs_its_own_scheduler(void)
{
    static world worlds[4];
    test_thread threads[4];
    for (int i = 0; i < 4; i++) {
        thread_start(&threads[i], run_a_world, &worlds[i]);
    }
    for (int i = 0; i < 4; i++) {
        thread_join(threads[i]);
    }
}

/* --------------------------------------------- another loop's host --- */

#if !defined(_WIN32)

static void
resting_scheduler_tells_by_descriptor(void)
{
    world *w = &the_world;
    if (is_emulated()) {
        SKIP("its number is not readable");
    }
    CHECK(world_open(w));
    pf_poller *own = w->scheduler.poller;
    int fd = own->ops->fileno(own);
    counted = 0;
    pf_scheduler_rest(&w->scheduler);
    CHECK(!is_readable(fd));
    post_note(w, &counted);
    CHECK(is_readable(fd));
    pf_scheduler_resume(&w->scheduler);
    CHECK(!is_readable(fd));
    post_note(w, &counted); /* a running loop needs no signal */
    CHECK(!is_readable(fd));
    pf_scheduler_rest(&w->scheduler);
    CHECK(is_readable(fd)); /* the message is still there */
    pf_scheduler_resume(&w->scheduler);
    pf_scheduler_poll(&w->scheduler);
    CHECK_EQUAL(counted, 2);
    world_close(w);
}

/* ------------------------------------------------------------ fork --- */

/* Runs in the child, on the fiber that forked. */
static bool
live_on(worker *w)
{
    pf_scheduler *s = &w->world->scheduler;
    test_thread thread;
    if (pf_scheduler_after_fork(s) != 0 ||
        pf_scheduler_park(s, pf_scheduler_now(s) + 1000) != PF_WAKE_TIMEOUT) {
        return false;
    }
    pf_scheduler_hold(s);
    thread_start(&thread, post_slowly, w->world);
    while (counted < 21) { /* 20, and one from before the fork */
        pf_scheduler_park(s, pf_scheduler_now(s) + 20 * SECOND / 1000);
    }
    thread_join(thread);
    return true;
}

static void
fork_and_go_on(worker *w)
{
    pf_scheduler_yield(&w->world->scheduler);
    post_note(w->world, &counted);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        _exit(live_on(w) ? 3 : 4);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    w->world->trace[0] = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    pf_scheduler_yield(&w->world->scheduler);
}

static void
child_of_fork_goes_on(void)
{
    world *w = &the_world;
    if (PF_WITH_TSAN) {
        SKIP("it takes fibers for threads, which a child has not");
    }
    CHECK(world_open(w));
    counted = 0;
    world_spawn(w, hop, 0);
    world_spawn(w, fork_and_go_on, 0);
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(w->trace[0], 3);
    CHECK_EQUAL(counted, 1);
    CHECK_EQUAL(w->reaped, 2);
    world_close(w);
}

#endif

const test thread_tests[] = {
    TEST(waiting_loop_is_woken),
    TEST(closed_scheduler_takes_no_messages),
    TEST(release_is_never_missed),
    TEST(idle_loop_takes_bursts),
    TEST(busy_loop_takes_bursts),
    TEST(fiber_is_woken_by_another_thread),
    TEST(posts_to_one_fiber_come_together),
    TEST(each_thread_runs_its_own_scheduler),
#if !defined(_WIN32)
    TEST(resting_scheduler_tells_by_descriptor),
    TEST(child_of_fork_goes_on),
#endif
    END_OF_TESTS,
};
