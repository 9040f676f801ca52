/* Tests the scheduler on one thread: order, time, which fiber is woken and
 * why. */
#include "check.h"

#include "world.h"

#define SECOND ((int64_t)1000000000)

static world the_world; /* large; one test at a time */

static world *
open_world(void)
{
    CHECK(world_open(&the_world));
    return &the_world;
}

/* Ends a test and checks that nothing is left. */
static void
close_world(world *w, int fibers)
{
    CHECK_EQUAL(w->reaped, fibers);
    CHECK(w->thread.zombie == NULL);
    CHECK(w->thread.current == &w->thread.root);
    CHECK(!pf_scheduler_expects(&w->scheduler));
    for (unsigned i = 0; i < w->thread.pool_count; i++) {
        pf_stack_stats stats;
        pf_stack_pool_stats(w->thread.pools[i], &stats);
        CHECK_EQUAL(stats.live, 0);
    }
    world_close(w);
}

static void
yield_three_times(worker *w)
{
    for (int i = 0; i < 3; i++) {
        trace(w->world, w->value);
        pf_scheduler_yield(&w->world->scheduler);
    }
}

static void
yield_is_fair(void)
{
    world *w = open_world();
    for (long i = 0; i < 10; i++) {
        world_spawn(w, yield_three_times, i);
    }
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(w->traced, 30);
    for (int i = 0; i < w->traced; i++) {
        CHECK_EQUAL(w->trace[i], i % 10);
    }
    close_world(w, 10);
}

static void
yield_alone_returns(void)
{
    world *w = open_world();
    world_spawn(w, yield_three_times, 1);
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(w->traced, 3);
    CHECK_EQUAL(w->switches, 2); /* to the fiber and back, none to itself */
    close_world(w, 1);
}

static void
crowd_of_fibers_runs(void)
{
    world *w = open_world();
    int n = many();
    for (long i = 0; i < n; i++) {
        CHECK(world_spawn(w, yield_three_times, i) != NULL);
    }
    pf_scheduler_run(&w->scheduler);
    CHECK(w->scheduler.switches >= (uint64_t)n * 4);
    close_world(w, n);
}

static void
finish_at_once(worker *w)
{
    w->world->trace[0] += w->value;
}

/* Lazy fibers get a stack when they first run, so many fibers that never wait
 * use two stacks. */
static void
lazy_fibers_share_stacks(void)
{
    pf_stack_stats stats;
    world *w = open_world();
    int n = many();
    for (int i = 0; i < n; i++) {
        world_spawn_lazily(w, finish_at_once, 1);
    }
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(w->trace[0], n);
    pf_stack_pool_stats(w->thread.pools[0], &stats);
    CHECK_EQUAL(stats.acquired, n);
    CHECK(stats.peak <= 2);
    close_world(w, n);
}

/* ------------------------------------------------------------ park --- */

static void
park_for_ever(worker *w)
{
    trace(w->world, pf_scheduler_park(&w->world->scheduler, PF_NEVER));
    trace(w->world, w->task.wake);
}

static void
wake_other(worker *w)
{
    pf_scheduler *s = &w->world->scheduler;
    pf_task *other = &w->other->task;
    CHECK_EQUAL(other->state, PF_PARKED);
    CHECK(pf_scheduler_wake(s, other, PF_WAKE_CANCEL));
    CHECK(!pf_scheduler_wake(s, other, PF_WAKE_NORMAL)); /* is ready already */
    CHECK_EQUAL(other->state, PF_READY);
}

static void
park_tells_why_it_was_woken(void)
{
    world *w = open_world();
    worker *sleeper = world_spawn(w, park_for_ever, 0);
    worker *waker = world_spawn(w, wake_other, 0);
    waker->other = sleeper;
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(w->traced, 2);
    CHECK_EQUAL(w->trace[0], PF_WAKE_CANCEL);
    CHECK_EQUAL(w->trace[1], PF_WAKE_CANCEL);
    close_world(w, 2);
}

static void
sleep_for_value(worker *w)
{
    pf_scheduler *s = &w->world->scheduler;
    int why = pf_scheduler_park(s, pf_scheduler_now(s) + w->value);
    trace(w->world, w->value * 10 + why);
}

static void
park_times_out_in_order(void)
{
    world *w = open_world();
    for (long i = 0; i < 20; i++) {
        world_spawn(w, sleep_for_value, i * 7 % 20 + 1);
    }
    int64_t start = pf_clock_monotonic();
    pf_scheduler_run(&w->scheduler);
    CHECK(pf_clock_monotonic() - start >= 20);
    CHECK_EQUAL(w->traced, 20);
    CHECK_EQUAL(w->scheduler.timeouts, 20);
    CHECK_EQUAL(w->scheduler.timers.count, 0);
    close_world(w, 20);
}

/* The fake clock stands still until the test moves it, so the order is
 * exact. */
static void
fake_clock_drives_timers(void)
{
    world *w = open_world();
    world_use_fake_clock(w);
    for (long i = 0; i < 20; i++) {
        world_spawn(w, sleep_for_value, i * 7 % 20 + 1);
    }
    while (pf_scheduler_expects(&w->scheduler)) {
        if (w->scheduler.ready.head == NULL) {
            w->time++;
            pf_scheduler_poll(&w->scheduler);
        } else {
            pf_fiber_switch(&w->thread, pf_scheduler_next(&w->scheduler));
        }
    }
    CHECK_EQUAL(w->traced, 20);
    for (int i = 0; i < 20; i++) {
        CHECK_EQUAL(w->trace[i], (i + 1) * 10 + PF_WAKE_TIMEOUT);
    }
    close_world(w, 20);
}

static void
park_an_hour(worker *w)
{
    pf_scheduler *s = &w->world->scheduler;
    trace(w->world, pf_scheduler_park(s, pf_scheduler_now(s) + SECOND * 3600));
    CHECK(!pf_timer_armed(&w->task.timer));
}

static void
wake_before_the_timeout_disarms(void)
{
    world *w = open_world();
    worker *sleeper = world_spawn(w, park_an_hour, 0);
    worker *waker = world_spawn(w, wake_other, 0);
    waker->other = sleeper;
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(w->trace[0], PF_WAKE_CANCEL);
    close_world(w, 2);
}

static void
sleep_while_others_yield(worker *w)
{
    pf_scheduler *s = &w->world->scheduler;
    CHECK_EQUAL(pf_scheduler_park(s, pf_scheduler_now(s) + 1000),
                PF_WAKE_TIMEOUT);
    w->other->value = 1;
}

static void
yield_until_told(worker *w)
{
    for (long i = 0; w->value == 0 && i < 100000000; i++) {
        pf_scheduler_yield(&w->world->scheduler);
    }
    CHECK_EQUAL(w->value, 1);
}

static void
busy_fibers_do_not_starve_timers(void)
{
    world *w = open_world();
    worker *busy = world_spawn(w, yield_until_told, 0);
    worker *sleeper = world_spawn(w, sleep_while_others_yield, 0);
    sleeper->other = busy;
    pf_scheduler_run(&w->scheduler);
    close_world(w, 2);
}

/* ---------------------------------------------------------- timers --- */

typedef struct ticker {
    pf_timer_call call;
    int fired;
    int most;
} ticker;

static void
tick(pf_timer_call *call, pf_scheduler *s)
{
    ticker *t = (ticker *)call;
    if (++t->fired < t->most) {
        pf_timers_add(&s->timers, &call->timer, pf_scheduler_now(s));
    }
}

/* A timer that is always due again must not block the loop. */
static void
timer_call_rearms_itself(void)
{
    world *w = open_world();
    ticker t = {{{0, PF_TIMER_CALL}, tick}, 0, 10};
    world_use_fake_clock(w);
    pf_timers_add(&w->scheduler.timers, &t.call.timer, 0);
    pf_scheduler_poll(&w->scheduler);
    CHECK_EQUAL(t.fired, 1);
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(t.fired, 10);
    close_world(w, 0);
}

static void
wait_ends_at_its_deadline(void)
{
    world *w = open_world();
    int64_t start = pf_clock_monotonic();
    CHECK_EQUAL(pf_scheduler_wait(&w->scheduler, start + SECOND / 50), 0);
    int64_t took = pf_clock_monotonic() - start;
    CHECK(took >= SECOND / 50 - SECOND / 500);
    CHECK_EQUAL(pf_scheduler_wait(&w->scheduler, start), 0); /* is past */
    close_world(w, 0);
}

/* --------------------------------------------- which fiber runs next --- */

static pf_task *
pick_last(pf_scheduler *s, void *data)
{
    pf_task *f = s->ready.head;
    (*(int *)data)++;
    while (f->next != NULL) {
        f = f->next;
    }
    CHECK(pf_queue_remove(&s->ready, f));
    return f;
}

static void
trace_value(worker *w)
{
    trace(w->world, w->value);
}

static void
pick_replaces_the_order(void)
{
    int picks = 0;
    world *w = open_world();
    w->scheduler.pick = pick_last;
    w->scheduler.pick_data = &picks;
    for (long i = 0; i < 5; i++) {
        world_spawn(w, trace_value, i);
    }
    pf_scheduler_run(&w->scheduler);
    CHECK_EQUAL(picks, 5);
    CHECK_EQUAL(w->traced, 5);
    for (int i = 0; i < 5; i++) {
        CHECK_EQUAL(w->trace[i], 4 - i);
    }
    close_world(w, 5);
}

static void
queue_removes_anywhere(void)
{
    pf_queue queue = {0};
    static pf_task f[3], stranger;
    for (int skip = 0; skip < 3; skip++) {
        for (int i = 0; i < 3; i++) {
            pf_queue_push(&queue, &f[i]);
        }
        CHECK(!pf_queue_remove(&queue, &stranger));
        CHECK(pf_queue_remove(&queue, &f[skip]));
        CHECK_EQUAL(queue.count, 2);
        for (int i = 0; i < 3; i++) {
            if (i != skip) {
                CHECK(pf_queue_pop(&queue) == &f[i]);
            }
        }
        CHECK(pf_queue_pop(&queue) == NULL);
        CHECK(queue.tail == NULL);
    }
}

/* The ready queue with a model of it: the numbers of its fibers, in order. */
enum { FIBERS = 24 };
typedef struct line {
    pf_scheduler s; /* only its ready queue is used */
    pf_fiber f[FIBERS];
    int order[FIBERS];
    int count;
} line;

static void
line_insert(line *l, int place, int number)
{
    memmove(&l->order[place + 1], &l->order[place],
            sizeof(int) * (size_t)(l->count - place));
    l->order[place] = number;
    l->count++;
}

static int
line_cut(line *l, int place)
{
    int number = l->order[place];
    l->count--;
    memmove(&l->order[place], &l->order[place + 1],
            sizeof(int) * (size_t)(l->count - place));
    return number;
}

/* Returns a fiber that is not in the queue, or NULL. */
static pf_fiber *
line_outsider(line *l, uint64_t *random)
{
    pf_fiber *f = &l->f[random_next(random) % FIBERS];
    return f->task.state == PF_READY ? NULL : f;
}

static void
line_add(line *l, pf_fiber *f, uint64_t kind)
{
    int number = (int)(f - l->f);
    if (kind == 2) {
        f->task.state = PF_READY;
        f->task.wake = PF_WAKE_NORMAL;
        pf_queue_push_front(&l->s.ready, &f->task);
        line_insert(l, 0, number);
        return;
    }
    if (kind == 1) {
        f->task.wake = PF_WAKE_NORMAL;
        pf_scheduler_make_ready(&l->s, &f->task);
    } else {
        pf_scheduler_make_ready_fresh(&l->s, f);
    }
    line_insert(l, l->count, number);
}

static void
line_take(line *l, uint64_t *random, uint64_t kind)
{
    int place =
        kind == 0 ? 0 : (int)(random_next(random) % (unsigned)l->count);
    pf_fiber *f = &l->f[l->order[place]];
    if (kind == 0) {
        CHECK(pf_queue_pop(&l->s.ready) == &f->task);
    } else if (kind == 1) {
        CHECK(pf_queue_remove(&l->s.ready, &f->task));
    } else {
        pf_queue_unlink(&l->s.ready,
                        place == 0 ? NULL : &l->f[l->order[place - 1]].task,
                        &f->task);
    }
    f->task.state = PF_PARKED;
    line_cut(l, place);
}

static void
line_prefer(line *l, uint64_t *random)
{
    if (random_next(random) % 1000 == 0) {
        l->s.passed = 0; /* as after a regular turn */
    }
    int place = (int)(random_next(random) % (unsigned)l->count);
    pf_fiber *f = &l->f[l->order[place]];
    bool moves = f->task.wake == PF_WAKE_FRESH && place > 0 &&
                 l->s.passed < PF_MAY_PASS;
    CHECK_EQUAL(pf_scheduler_prefer(&l->s, &f->task), moves);
    if (moves) {
        line_insert(l, 0, line_cut(l, place));
    }
}

static void
line_check(const line *l)
{
    pf_task *f = l->s.ready.head;
    for (int i = 0; i < l->count; i++) {
        CHECK(f == &l->f[l->order[i]].task);
        CHECK(i == 0 || !pf_task_is_fresh(f) ||
              pf_fiber_of(f)->before == &l->f[l->order[i - 1]].task);
        f = f->next;
    }
    CHECK(f == NULL);
    CHECK_EQUAL(l->s.ready.count, l->count);
    CHECK(l->s.ready.tail ==
          (l->count == 0 ? NULL : &l->f[l->order[l->count - 1]].task));
}

static void
fresh_ones_leave_from_anywhere(void)
{
    static line l;
    uint64_t random = 20;
    for (int step = 0; step < 40000; step++) {
        pf_fiber *f = line_outsider(&l, &random);
        uint64_t kind = random_next(&random) % 3;
        if (f != NULL) {
            line_add(&l, f, kind);
        } else if (random_next(&random) % 2 == 0) {
            line_take(&l, &random, kind);
        } else {
            line_prefer(&l, &random);
        }
        line_check(&l);
    }
}

static pf_fiber *
itself(pf_scheduler *s, pf_task *task)
{
    (void)s;
    return pf_fiber_of(task);
}

static const pf_task_ops ops_of_itself = {.first = itself};

/* A fiber that passes others whenever it may leaves one turn in 258 to another
 * fiber, which is always ready. */
static void
preferred_ones_starve_nobody(void)
{
    static const pf_host host;
    static pf_thread thread = {.host = &host};
    static pf_scheduler s = {.thread = &thread};
    static pf_fiber f, other;
    int turns = 0;
    pf_task_set_ops(&f.task, &ops_of_itself);
    pf_task_set_ops(&other.task, &ops_of_itself);
    pf_scheduler_make_ready(&s, &other.task);
    for (int i = 0; i < 10 * (PF_MAY_PASS + 1); i++) {
        if (f.task.state == PF_READY) {
            /* `f` was refused and is behind the other. */
            (void)pf_scheduler_prefer(&s, &f.task);
        } else if (i % 2 == 0) {
            pf_scheduler_make_ready_fresh(&s, &f);
            (void)pf_scheduler_prefer(&s, &f.task);
        } else {
            CHECK(pf_scheduler_wake_next(&s, &f.task, PF_WAKE_NORMAL));
            /* A fiber that is ready already is not woken. */
            CHECK(!pf_scheduler_wake_next(&s, &f.task, PF_WAKE_NORMAL));
        }
        pf_fiber *next = pf_scheduler_next(&s);
        next->task.state = PF_PARKED;
        if (next == &other) {
            turns++;
            pf_scheduler_make_ready(&s, &other.task);
        }
    }
    CHECK(turns >= 9);
    CHECK(turns <= 20); /* else `f` did not pass it */
}

/* The prefetch cursors run ahead of the head, so they must not survive the
 * fibers they point at. */
static pf_task *
take_next(pf_queue *queue, uint64_t turn)
{
    static const pf_host host;
    pf_task *f = pf_queue_pop(queue);
    pf_queue_prefetch(queue, &host, turn);
    return f;
}

static void
fill_with_new(pf_queue *queue, int count)
{
    for (int i = 0; i < count; i++) {
        pf_fiber *f = calloc(1, sizeof *f);
        pf_task_set_ops(&f->task, &ops_of_itself);
        pf_queue_push(queue, &f->task);
    }
}

static void
long_queue_forgets_the_fibers_that_left(void)
{
    pf_queue queue = {0};
    enum { COUNT = PF_PREFETCH_FROM + 50 };
    fill_with_new(&queue, COUNT);
    for (uint64_t turn = 0; turn < 20; turn++) {
        free(take_next(&queue, turn));
    }
    CHECK(queue.fields != NULL);
    for (int i = 0; i < 10; i++) { /* from the middle, where cursors point */
        pf_task *f = queue.head->next->next;
        CHECK(pf_queue_remove(&queue, f));
        free(f);
        free(take_next(&queue, (uint64_t)i));
    }
    for (int round = 0; round < 2; round++) {
        while (queue.head != NULL) { /* the rest, without prefetching */
            free(pf_queue_pop(&queue));
        }
        CHECK(queue.fields == NULL);
        fill_with_new(&queue, COUNT);
    }
    uint64_t turn = 0;
    while (queue.head != NULL) {
        free(take_next(&queue, turn++));
    }
    CHECK_EQUAL(turn, COUNT);
}

/* ------------------------------------------------- direct switches --- */

static void
hand_back(worker *w)
{
    pf_thread *thread = &w->world->thread;
    for (int i = 0; i < 5; i++) {
        w->value++;
        w->task.state = PF_SUSPENDED;
        pf_fiber_switch(thread, &thread->root);
        w->task.state = PF_RUNNING;
    }
    w->then = &thread->root;
}

static void
raw_fiber_is_switched_by_hand(void)
{
    world *w = open_world();
    worker *raw = world_worker(w, hand_back, 10);
    raw->keep = true;
    for (int i = 1; i <= 6; i++) {
        pf_fiber_switch(&w->thread, &raw->fiber);
        CHECK_EQUAL(raw->value, i < 6 ? 10 + i : 15);
    }
    CHECK_EQUAL(raw->task.state, PF_DONE);
    CHECK(raw->fiber.stack == NULL);
    free(raw);
    close_world(w, 1);
}

/* A suspended fiber may be made the zombie, so that its `reap` runs after it
 * was left; it keeps its stack.  A prepared fiber that is given up loses its
 * stack. */
static void
reaping_spares_the_suspended(void)
{
    world *w = open_world();
    worker *raw = world_worker(w, hand_back, 0);
    raw->keep = true;
    pf_fiber_switch(&w->thread, &raw->fiber);
    raw->task.state = PF_DONE; /* the fiber has more to run */
    w->thread.zombie = &raw->fiber;
    pf_fiber_reap(&w->thread, w->thread.zombie);
    raw->task.state = PF_SUSPENDED;
    CHECK_EQUAL(w->reaped, 1);
    CHECK(raw->fiber.stack != NULL);
    while (raw->task.state != PF_DONE) {
        pf_fiber_switch(&w->thread, &raw->fiber);
    }
    free(raw);
    worker *never = world_worker(w, hand_back, 0);
    pf_fiber_over(&never->fiber);
    pf_fiber_reap(&w->thread, &never->fiber);
    close_world(w, 3);
}

static void
spawn_more(worker *w)
{
    if (w->value > 0) {
        world_spawn(w->world, spawn_more, w->value - 1);
        world_spawn_lazily(w->world, spawn_more, w->value - 1);
        pf_scheduler_yield(&w->world->scheduler);
    }
}

static void
fibers_spawn_fibers(void)
{
    int depth = PF_WITH_TSAN ? 6 : 9;
    world *w = open_world();
    world_spawn(w, spawn_more, depth);
    pf_scheduler_run(&w->scheduler);
    close_world(w, (2 << depth) - 1);
}

/* ---------------------------------------------------------- poller --- */

typedef struct fake_poller {
    pf_poller base;
    int waits;
    bool *closed;
    worker *waiting; /* the next delivery makes it ready */
} fake_poller;

static int
fake_wait(pf_poller *poller, int64_t timeout_ns)
{
    (void)timeout_ns;
    ((fake_poller *)poller)->waits++;
    return poller->awaited > 0;
}

static void
fake_deliver(pf_poller *poller, struct pf_scheduler *s)
{
    fake_poller *p = (fake_poller *)poller;
    if (pf_scheduler_wake(s, &p->waiting->task, PF_WAKE_NORMAL)) {
        poller->awaited = 0;
    }
}

static void
fake_wake(pf_poller *poller)
{
    (void)poller;
}

static void
fake_close(pf_poller *poller)
{
    *((fake_poller *)poller)->closed = true;
}

static const pf_poller_ops fake_ops = {
    .wait = fake_wait,
    .wake = fake_wake,
    .deliver = fake_deliver,
    .close = fake_close,
};

static void
other_pollers_fit_the_slot(void)
{
    bool closed = false;
    world *w = open_world();
    fake_poller poller = {.base = {&fake_ops, 1}, .closed = &closed};
    pf_scheduler_set_poller(&w->scheduler, &poller.base);
    poller.waiting = world_spawn(w, park_for_ever, 0);
    pf_scheduler_run(&w->scheduler);
    CHECK(poller.waits >= 1);
    CHECK_EQUAL(w->trace[0], PF_WAKE_NORMAL);
    close_world(w, 1);
    CHECK(closed);
}

static void
statistics_add_up(void)
{
    pf_scheduler_stats stats;
    world *w = open_world();
    world_use_fake_clock(w);
    world_spawn(w, yield_three_times, 0);
    world_spawn(w, sleep_for_value, 5);
    pf_fiber_switch(&w->thread, pf_scheduler_next(&w->scheduler));
    pf_scheduler_stats_get(&w->scheduler, &stats);
    CHECK_EQUAL(stats.switches, 5);
    CHECK_EQUAL(stats.wakeups, 5);
    CHECK_EQUAL(stats.timers, 1);
    CHECK_EQUAL(stats.ready, 0);
    w->time = 5;
    pf_scheduler_run(&w->scheduler);
    pf_scheduler_stats_get(&w->scheduler, &stats);
    CHECK_EQUAL(stats.timeouts, 1);
    CHECK_EQUAL(stats.timers, 0);
    close_world(w, 2);
}

const test scheduler_tests[] = {
    TEST(yield_is_fair),
    TEST(yield_alone_returns),
    TEST(crowd_of_fibers_runs),
    TEST(lazy_fibers_share_stacks),
    TEST(park_tells_why_it_was_woken),
    TEST(park_times_out_in_order),
    TEST(fake_clock_drives_timers),
    TEST(wake_before_the_timeout_disarms),
    TEST(busy_fibers_do_not_starve_timers),
    TEST(timer_call_rearms_itself),
    TEST(wait_ends_at_its_deadline),
    TEST(pick_replaces_the_order),
    TEST(queue_removes_anywhere),
    TEST(fresh_ones_leave_from_anywhere),
    TEST(preferred_ones_starve_nobody),
    TEST(long_queue_forgets_the_fibers_that_left),
    TEST(raw_fiber_is_switched_by_hand),
    TEST(reaping_spares_the_suspended),
    TEST(fibers_spawn_fibers),
    TEST(other_pollers_fit_the_slot),
    TEST(statistics_add_up),
    END_OF_TESTS,
};
