/* Tests tasks without a stack among fibers in the ready queue, and operations
 * that differ from kind to kind. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "world.h"

static world the_world;

static world *
open_world(void)
{
    CHECK(world_open(&the_world));
    return &the_world;
}

static void
note_errand(errand *e)
{
    trace(e->world, e->value);
}

static void
note_worker(worker *w)
{
    trace(w->world, w->value);
}

static void
traced_is(const char *expected)
{
    world *w = &the_world;
    CHECK_EQUAL(w->traced, (int)strlen(expected));
    for (int i = 0; i < w->traced; i++) {
        CHECK_EQUAL(w->trace[i], expected[i]);
    }
}

static void
stackless_task_has_its_turn_among_fibers(void)
{
    world *w = open_world();
    errand e;
    errand_init(&e, w, note_errand, 'b');
    world_spawn(w, note_worker, 'a');
    pf_scheduler_make_ready(&w->scheduler, &e.task);
    world_spawn_lazily(w, note_worker, 'c');
    CHECK(!e.task.has_stack);
    pf_scheduler_run(&w->scheduler);
    traced_is("abc");
    CHECK_EQUAL(e.turns, 1);
    CHECK_EQUAL(w->scheduler.switches, 3);
    world_close(w);
}

static void
serve(worker *runner)
{
    while (runner->value-- > 0) {
        trace(runner->world, 'r');
        pf_scheduler_park(&runner->world->scheduler, PF_NEVER);
    }
}

/* A fiber with a stack runs in the turn of the task, as for grains. */
static void
fiber_runs_in_the_turn_of_a_stackless_task(void)
{
    world *w = open_world();
    errand e;
    worker *runner = world_spawn(w, serve, 2);
    errand_init(&e, w, note_errand, 'e');
    e.then = &runner->fiber;
    pf_scheduler_run(&w->scheduler); /* until the runner parks */
    CHECK_EQUAL(runner->task.state, PF_PARKED);
    for (int turn = 1; turn <= 2; turn++) {
        pf_scheduler_make_ready(&w->scheduler, &e.task);
        pf_scheduler_run(&w->scheduler);
        CHECK_EQUAL(e.turns, turn);
    }
    traced_is("rere");
    CHECK_EQUAL(w->reaped, 1);
    world_close(w);
}

/* When the turn of a task ends, the next task leaves the queue without a
 * switch. */
static void
stackless_tasks_follow_each_other_without_a_switch(void)
{
    world *w = open_world();
    enum { COUNT = 100 };
    static errand e[COUNT];
    for (int i = 0; i < COUNT; i++) {
        errand_init(&e[i], w, NULL, i);
        pf_scheduler_make_ready(&w->scheduler, &e[i].task);
    }
    CHECK(pf_scheduler_next(&w->scheduler) == &w->thread.root);
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQUAL(e[i].turns, 1);
    }
    CHECK_EQUAL(w->switches, 0);
    world_close(w);
}

static void
note_wake(errand *e)
{
    trace(e->world, e->task.wake);
}

static void
timer_wakes_a_stackless_task(void)
{
    world *w = open_world();
    errand e;
    world_use_fake_clock(w);
    errand_init(&e, w, note_wake, 0);
    e.task.state = PF_PARKED;
    CHECK_EQUAL(pf_timers_add(&w->scheduler.timers, &e.task.timer, 10), 0);
    pf_scheduler_poll(&w->scheduler);
    CHECK_EQUAL(e.task.state, PF_PARKED); /* not yet */
    w->time = 10;
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(w->traced, 1);
    CHECK_EQUAL(w->trace[0], PF_WAKE_TIMEOUT);
    CHECK(!pf_timer_armed(&e.task.timer));
    world_close(w);
}

static void
bits_posted_to_a_task_come_to_its_own_kind(void)
{
    world *w = open_world();
    errand e;
    worker *sleeper = world_spawn(w, serve, 1);
    pf_scheduler_run(&w->scheduler);
    errand_init(&e, w, note_errand, 'e');
    e.task.state = PF_PARKED;
    pf_task_post(e.task.scheduler, &e.task, 2);
    pf_task_post(e.task.scheduler, &e.task, 4);
    pf_task_post(sleeper->task.scheduler, &sleeper->task, 1);
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(e.posted, 6);
    CHECK_EQUAL(e.turns, 1);
    CHECK_EQUAL(w->posted, 1);
    CHECK_EQUAL(w->posts, 1);
    CHECK_EQUAL(w->reaped, 1);
    world_close(w);
}

static int arrivals;

static void
post_more(pf_scheduler *s, pf_task *task, unsigned bits)
{
    ((errand *)task)->posted = bits;
    arrivals++;
    if (bits == 1) {
        pf_task_post(s, task, 2);
        CHECK(!pf_inbox_pending(&s->inbox)); /* not before this returns */
    }
}

static const pf_task_ops posting_ops = {
    .message = {pf_task_arrived},
    .posted = post_more,
};

static void
bits_posted_while_others_arrive_come_in_a_message_of_their_own(void)
{
    world *w = open_world();
    errand e;
    errand_init(&e, w, NULL, 0);
    pf_task_set_ops(&e.task, &posting_ops);
    arrivals = 0;
    pf_task_post(&w->scheduler, &e.task, 1);
    pf_scheduler_poll(&w->scheduler);
    CHECK_EQUAL(e.posted, 1);
    CHECK(pf_inbox_pending(&w->scheduler.inbox));
    pf_scheduler_poll(&w->scheduler);
    CHECK_EQUAL(e.posted, 2);
    pf_task_post(&w->scheduler, &e.task, 1);
    pf_scheduler_close(&w->scheduler); /* delivers the bits at once */
    CHECK_EQUAL(e.posted, 2);
    CHECK_EQUAL(arrivals, 4);
    CHECK_EQUAL(pf_load(&e.task.posted), 0);
    world_close(w);
}

static void
task_that_is_left_is_free_or_told_last(void)
{
    world *w = open_world();
    errand e;
    errand_init(&e, w, NULL, 0);
    CHECK(pf_task_leave(&e.task));
    pf_task_post(&w->scheduler, &e.task, 4);
    CHECK(!pf_task_leave(&e.task));
    pf_scheduler_poll(&w->scheduler);
    CHECK_EQUAL(e.posted, 4 | PF_POST_LEFT);
    CHECK(pf_task_leave(&e.task)); /* no message is under way any more */
    world_close(w);
}

/* ------------------------------------------------ kinds of fibers --- */

static int others_run, others_reaped;

static pf_fiber *
run_other(pf_thread *thread, pf_fiber *self)
{
    (void)self;
    others_run++;
    return &thread->root;
}

static void
reap_other(pf_thread *thread, pf_fiber *self)
{
    (void)thread;
    CHECK(self->stack == NULL && !self->task.has_stack);
    others_reaped++;
}

static void
each_kind_of_fiber_runs_and_is_reaped_by_its_own_operations(void)
{
    static const pf_task_ops others = {.run = run_other, .reap = reap_other};
    static const pf_task_ops unreaped = {.run = run_other};
    world *w = open_world();
    worker *common = world_worker(w, note_worker, 'w');
    worker *other = world_worker(w, NULL, 0);
    worker *last = world_worker(w, NULL, 0);
    common->then = &w->thread.root;
    pf_task_set_ops(&other->task, &others);
    pf_task_set_ops(&last->task, &unreaped);
    CHECK(pf_task_ops_of(&other->task) == &others);
    others_run = others_reaped = 0;
    pf_fiber_switch(&w->thread, &other->fiber);
    CHECK_EQUAL(others_run, 1);
    CHECK_EQUAL(others_reaped, 1);
    pf_fiber_switch(&w->thread, &last->fiber);
    CHECK_EQUAL(others_run, 2);
    CHECK_EQUAL(others_reaped, 1);
    CHECK_EQUAL(w->reaped, 0);
    pf_fiber_switch(&w->thread, &common->fiber);
    traced_is("w");
    CHECK_EQUAL(w->reaped, 1);
    free(other);
    free(last);
    world_close(w);
}

/* ------------------------------------------------- the long queue --- */

/* The queue prefetches what a task's turn will read.  Some kinds of task, and
 * some tasks, have nothing to prefetch. */
static void
long_queue_looks_ahead_at_tasks_of_every_kind(void)
{
    enum { COUNT = PF_PREFETCH_FROM + 200 };
    static errand e[COUNT];
    static const char text[PF_PREFETCH_READS];
    world *w = open_world();
    for (int i = 0; i < COUNT; i++) {
        errand_init(&e[i], w, NULL, i);
        e[i].reads = i % 3 == 0 ? NULL : text;
        pf_scheduler_make_ready(&w->scheduler, &e[i].task);
        if (i % 7 == 0) {
            world_spawn_lazily(w, note_worker, i);
        }
        if (i % 50 == 0) {
            world_spawn(w, note_worker, i);
        }
    }
    pf_scheduler_make_ready(&w->scheduler, &w->thread.root.task);
    int ready = (int)w->scheduler.ready.count;
    pf_fiber_switch(&w->thread, pf_scheduler_next(&w->scheduler));
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQUAL(e[i].turns, 1);
    }
    CHECK_EQUAL(w->scheduler.switches, ready);
    CHECK(w->scheduler.ready.head == NULL);
    world_close(w);
}

const test task_tests[] = {
    TEST(stackless_task_has_its_turn_among_fibers),
    TEST(fiber_runs_in_the_turn_of_a_stackless_task),
    TEST(stackless_tasks_follow_each_other_without_a_switch),
    TEST(timer_wakes_a_stackless_task),
    TEST(bits_posted_to_a_task_come_to_its_own_kind),
    TEST(bits_posted_while_others_arrive_come_in_a_message_of_their_own),
    TEST(task_that_is_left_is_free_or_told_last),
    TEST(each_kind_of_fiber_runs_and_is_reaped_by_its_own_operations),
    TEST(long_queue_looks_ahead_at_tasks_of_every_kind),
    END_OF_TESTS,
};
