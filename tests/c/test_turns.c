/* Tests the order of turns: fibers that pass others, states, and loops in odd
 * places. */
#include "check.h"

#include "world.h"

static world the_world;

static void
note_value(worker *w)
{
    trace(w->world, w->value);
    CHECK_EQUAL(w->task.state, PF_RUNNING);
}

static void
traced_is(const char *values)
{
    size_t count = strlen(values);
    CHECK_EQUAL(the_world.traced, count);
    for (size_t i = 0; i < count; i++) {
        CHECK_EQUAL(the_world.trace[i], values[i]);
    }
}

static void
run_another_now(worker *w)
{
    trace(w->world, w->value);
    pf_scheduler_run_now(&w->world->scheduler, &w->other->task);
    CHECK_EQUAL(w->task.state, PF_RUNNING);
    trace(w->world, w->value);
}

static void
fiber_run_now_runs_before_all_others(void)
{
    world *w = &the_world;
    CHECK(world_open(w));
    worker *first = world_spawn(w, run_another_now, 'a');
    world_spawn(w, note_value, 'b');
    first->other = world_worker(w, note_value, 'n');
    pf_scheduler_run(&w->scheduler);
    traced_is("anab");
    CHECK_EQUAL(w->scheduler.wakeups, 4);
    world_close(w);
}

static void
park_and_note(worker *w)
{
    CHECK_EQUAL(pf_scheduler_park(&w->world->scheduler, PF_NEVER),
                PF_WAKE_CANCEL);
    note_value(w);
}

static void
wake_other(worker *w)
{
    pf_scheduler *s = &w->world->scheduler;
    CHECK(pf_scheduler_wake_next(s, &w->other->task, PF_WAKE_CANCEL));
    CHECK(!pf_scheduler_wake_next(s, &w->other->task, PF_WAKE_NORMAL));
    note_value(w);
}

/* `passed`: how many fibers have passed others since one had its regular
 * turn. */
static void
wake_after(uint32_t passed, const char *order)
{
    world *w = &the_world;
    CHECK(world_open(w));
    worker *sleeper = world_spawn(w, park_and_note, 's');
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(sleeper->task.state, PF_PARKED);
    worker *waker = world_worker(w, wake_other, 'w');
    waker->other = sleeper;
    world_spawn(w, note_value, 'b');
    w->scheduler.passed = passed;
    pf_fiber_switch(&w->thread, &waker->fiber);
    pf_scheduler_run(&w->scheduler);
    traced_is(order);
    CHECK_EQUAL(w->scheduler.wakeups, 3);
    world_close(w);
}

static void
fiber_woken_next_passes_others_if_it_may(void)
{
    wake_after(0, "wsb");
    wake_after(PF_MAY_PASS, "wbs");
}

/* The hub in the queue marks the end of a pass, so the fiber right behind it
 * counts as the first one, too. */
static void
fiber_behind_the_hub_is_preferred_already(void)
{
    world *w = &the_world;
    pf_scheduler *s = &w->scheduler;
    CHECK(world_open(w));
    pf_scheduler_make_ready(s, &s->hub->task);
    worker *first = world_spawn_lazily(w, note_value, 'a');
    worker *second = world_spawn_lazily(w, note_value, 'b');
    CHECK(!pf_scheduler_prefer(s, &first->task));
    CHECK(s->ready.head == &s->hub->task);
    CHECK(pf_scheduler_prefer(s, &second->task));
    CHECK(pf_queue_remove(&s->ready, &s->hub->task));
    CHECK(s->hub->task.next == NULL);
    s->hub->task.state = PF_RUNNING;
    pf_scheduler_run(s);
    traced_is("ba");
    world_close(w);
}

static void
note_value_in_loop(worker *w)
{
    CHECK_EQUAL(w->world->scheduler.hub->task.state, PF_SUSPENDED);
    note_value(w);
}

static void
run_loop(worker *w)
{
    pf_scheduler *s = &w->world->scheduler;
    world_spawn(w->world, note_value_in_loop, 'b');
    pf_scheduler_run(s);
    CHECK(s->hub == &w->fiber);
    trace(w->world, 'e');
}

static void
loop_runs_in_the_fiber_that_calls_it(void)
{
    world *w = &the_world;
    CHECK(world_open(w));
    CHECK_EQUAL(w->thread.root.task.state, PF_RUNNING);
    CHECK_EQUAL(w->thread.room_size, 2048);
    worker *outer = world_worker(w, run_loop, 0);
    worker *last = world_worker(w, note_value, 'l');
    outer->then = &last->fiber;
    last->then = &w->thread.root;
    w->thread.root.task.state = PF_SUSPENDED;
    pf_fiber_switch(&w->thread, &outer->fiber);
    traced_is("bel");
    CHECK_EQUAL(w->reaped, 3);
    world_close(w);
}

const test turn_tests[] = {
    TEST(fiber_run_now_runs_before_all_others),
    TEST(fiber_woken_next_passes_others_if_it_may),
    TEST(fiber_behind_the_hub_is_preferred_already),
    TEST(loop_runs_in_the_fiber_that_calls_it),
    END_OF_TESTS,
};
