#include "world.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

#define STACK_SIZE ((size_t)128 << 10)

static pf_fiber *
run_work(pf_thread *thread, pf_fiber *self)
{
    worker *w = (worker *)self;
    (void)thread;
    w->work(w);
    return w->then != NULL ? w->then : pf_scheduler_next(&w->world->scheduler);
}

static void
reap(pf_thread *thread, pf_fiber *fiber)
{
    worker *w = (worker *)fiber;
    ((world *)thread)->reaped++;
    if (!w->keep) {
        free(w);
    }
}

static void
on_switch(pf_thread *thread, pf_fiber *from, pf_fiber *to)
{
    ((world *)thread)->switches += from != to && thread->current == to;
}

static void
posted(pf_scheduler *s, pf_task *task, unsigned bits)
{
    world *w = (world *)s->thread;
    w->posted |= bits;
    w->posts++;
    pf_scheduler_wake(s, task, PF_WAKE_NORMAL);
}

static pf_fiber *
first(pf_scheduler *s, pf_task *task)
{
    pf_limit limit;
    pf_fiber *fiber = pf_fiber_of(task);
    if (pf_fiber_prepare(s->thread, fiber, STACK_SIZE, false, &limit) == 0) {
        return fiber;
    }
    task->state = PF_DONE;
    reap(s->thread, fiber);
    return pf_scheduler_next(s);
}

static const pf_host the_host = {.on_switch = on_switch};

const pf_task_ops worker_ops = {
    .message = {pf_task_arrived},
    .first = first,
    .run = run_work,
    .reap = reap,
    .posted = posted,
};

/* -------------------------------------------- tasks without a stack --- */

static pf_fiber *
take_turn(pf_scheduler *s, pf_task *task)
{
    errand *e = (errand *)task;
    e->turns++;
    task->state = PF_PARKED;
    if (e->work != NULL) {
        e->work(e);
    }
    return e->then != NULL ? e->then : pf_scheduler_next(s);
}

static void
take_bits(pf_scheduler *s, pf_task *task, unsigned bits)
{
    ((errand *)task)->posted |= bits;
    pf_scheduler_wake(s, task, PF_WAKE_NORMAL);
}

static const pf_task_ops errand_ops = {
    .message = {pf_task_arrived},
    .first = take_turn,
    .posted = take_bits,
    .reads = offsetof(errand, reads),
};

void
errand_init(errand *e, world *w, void (*work)(errand *e), long value)
{
    *e = (errand){.world = w, .work = work, .value = value};
    e->task.scheduler = &w->scheduler;
    pf_task_set_ops(&e->task, &errand_ops);
}

/* ------------------------------------------------------- the world --- */

bool
world_open(world *w)
{
    memset(w, 0, sizeof *w);
    if (pf_thread_init(&w->thread, &the_host, 2048) != 0) {
        return false;
    }
    if (pf_scheduler_init(&w->scheduler, &w->thread) != 0) {
        pf_thread_finish(&w->thread);
        return false;
    }
    return true;
}

void
world_close(world *w)
{
    pf_scheduler_finish(&w->scheduler);
    pf_thread_finish(&w->thread);
}

static int64_t
fake_clock(void *data)
{
    return ((world *)data)->time;
}

void
world_use_fake_clock(world *w)
{
    w->scheduler.clock = fake_clock;
    w->scheduler.clock_data = w;
}

static worker *
worker_new(world *w, work_fn work, long value)
{
    worker *n = pf_memory_calloc(1, sizeof *n);
    if (n != NULL) {
        n->world = w;
        n->work = work;
        n->value = value;
        n->task.scheduler = &w->scheduler;
        pf_task_set_ops(&n->task, &worker_ops);
    }
    return n;
}

worker *
world_worker(world *w, work_fn work, long value)
{
    pf_limit limit;
    worker *n = worker_new(w, work, value);
    if (n != NULL && pf_fiber_prepare(&w->thread, &n->fiber, STACK_SIZE, false,
                                      &limit) != 0) {
        free(n);
        return NULL;
    }
    return n;
}

worker *
world_spawn(world *w, work_fn work, long value)
{
    worker *n = world_worker(w, work, value);
    if (n != NULL) {
        pf_scheduler_make_ready(&w->scheduler, &n->task);
    }
    return n;
}

worker *
world_spawn_lazily(world *w, work_fn work, long value)
{
    worker *n = worker_new(w, work, value);
    if (n != NULL) {
        pf_scheduler_make_ready_fresh(&w->scheduler, &n->fiber);
    }
    return n;
}

void
trace(world *w, long value)
{
    if (w->traced < (int)(sizeof w->trace / sizeof *w->trace)) {
        w->trace[w->traced++] = value;
    }
}
