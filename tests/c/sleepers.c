#include "sleepers.h"

#if PF_CONTEXT_MOVES

#include <stdlib.h>
#include <string.h>

#include "check.h"

#define ROOM_USED 64

/* ---------------------------------------------------------- the host --- */

world sleepers_world;
place sleepers_line;
int sleepers_finished, sleepers_lost;
bool sleepers_all_stay;

static void
link_place(place *p, sleeper *self)
{
    p->next->previous = p->previous->next = p;
    self->place = p;
}

static bool
may_pack(pf_thread *thread, pf_fiber *fiber, pf_packing *packing)
{
    sleeper *self = (sleeper *)fiber;
    CHECK(thread == &sleepers_world.thread && fiber != thread->current);
    if (self->stays || sleepers_all_stay) {
        return false;
    }
    packing->room_end = fiber->stack->room + ROOM_USED;
    if (self->place != NULL) {
        packing->moves = (char *)self->place;
        packing->bytes = sizeof *self->place;
    }
    return true;
}

static void
keep(pf_fiber *fiber, char *moves, char *kept)
{
    sleeper *self = (sleeper *)fiber;
    CHECK(moves == (char *)self->place);
    memcpy(kept, moves, sizeof(place));
    link_place((place *)(void *)kept, self);
    self->kept++;
}

static void
unpacked(pf_thread *thread, pf_fiber *fiber, char *moves, char *kept)
{
    sleeper *self = (sleeper *)fiber;
    CHECK(thread == &sleepers_world.thread && fiber->stack != PF_PACKED);
    if (kept == NULL) {
        self->left++;
        return;
    }
    if (moves != NULL) {
        CHECK(kept == (char *)self->place);
        memcpy(moves, kept, sizeof(place));
        link_place((place *)(void *)moves, self);
    }
}

const pf_pack_host sleepers_host = {may_pack, keep, unpacked};

static pf_fiber *
first(pf_scheduler *s, pf_task *task)
{
    pf_limit limit;
    pf_fiber *fiber = pf_fiber_of(task);
    if (pf_is_packed(fiber)) {
        return pf_next_packed(s, fiber);
    }
    size_t size = ((sleeper *)fiber)->stack_size;
    if (pf_fiber_prepare(s->thread, fiber, size, &limit) == 0) {
        return fiber;
    }
    sleepers_lost++;
    task->state = PF_DONE;
    worker_ops.reap(s->thread, fiber);
    return pf_next(s);
}

static pf_task_ops sleeper_ops;

sleeper *
sleeper_spawn_sized(work_fn work, long value, size_t stack_size)
{
    world *w = &sleepers_world;
    sleeper *self = calloc(1, sizeof *self);
    self->stack_size = stack_size;
    self->worker.world = w;
    self->worker.work = work;
    self->worker.value = value;
    self->worker.task.scheduler = &w->scheduler;
    pf_task_set_ops(&self->worker.task, &sleeper_ops);
    pf_make_ready_fresh(&w->scheduler, &self->worker.fiber);
    return self;
}

sleeper *
sleeper_spawn(work_fn work, long value)
{
    return sleeper_spawn_sized(work, value, STACK_SIZE);
}

bool
sleepers_try_to_open(void)
{
    sleeper_ops = worker_ops;
    sleeper_ops.first = first;
    sleepers_line = (place){&sleepers_line, &sleepers_line, NULL};
    sleepers_finished = sleepers_lost = 0;
    sleepers_all_stay = false;
    return world_open(&sleepers_world);
}

world *
sleepers_open(size_t slots)
{
    CHECK(sleepers_try_to_open());
    CHECK_EQUAL(pf_pack_set(&sleepers_world.thread, &sleepers_host, slots), 0);
    return &sleepers_world;
}

pf_stack_pool *
sleepers_pool(size_t stack_size)
{
    return pf_thread_pool(&sleepers_world.thread, stack_size);
}

pf_pack_stats
sleepers_stats(void)
{
    pf_pack_stats found;
    pf_pack_stats_get(&sleepers_world.thread, sleepers_pool(STACK_SIZE),
                      &found);
    return found;
}

size_t
sleepers_live(void)
{
    return pf_stack_pool_live(sleepers_pool(STACK_SIZE));
}

void
sleepers_run(void)
{
    pf_scheduler_run(&sleepers_world.scheduler);
}

/* The line leads from one to the next, wherever they are. */
int
sleepers_wake(void)
{
    int count = 0;
    for (place *p = sleepers_line.next; p != &sleepers_line; p = p->next) {
        pf_fiber *fiber = &p->sleeper->worker.fiber;
        const char *top = (char *)fiber->stack;
        bool on_stack = !pf_is_packed(fiber) && (char *)p < top &&
                        (char *)p >= top - STACK_SIZE;
        CHECK(p->sleeper->place == p && p->next->previous == p);
        CHECK(on_stack != pf_is_packed(fiber));
        CHECK(pf_wake_task(&sleepers_world.scheduler, &fiber->task,
                           PF_WAKE_NORMAL));
        count++;
    }
    return count;
}

void
sleepers_run_to_the_end(void)
{
    do {
        sleepers_run();
    } while (sleepers_wake() > 0);
}

void
sleepers_close(int fibers)
{
    world *w = &sleepers_world;
    sleepers_run_to_the_end();
    CHECK_EQUAL(w->reaped, fibers);
    CHECK_EQUAL(sleepers_finished + sleepers_lost, fibers);
    for (unsigned i = 0; i < w->thread.pool_count; i++) {
        pf_pack_stats s;
        pf_pack_stats_get(&w->thread, w->thread.pools[i], &s);
        CHECK_EQUAL(s.packed, 0);
        CHECK_EQUAL(s.packed_bytes, 0);
        CHECK_EQUAL(s.packings, s.unpackings);
        CHECK_EQUAL(pf_stack_pool_live(w->thread.pools[i]), 0);
    }
    CHECK(w->thread.learning == NULL);
    world_close(w);
}

/* ------------------------------------------------- what they go on with --- */

OUT_OF_LINE void
sleeper_wait(sleeper *self)
{
    place here = {&sleepers_line, sleepers_line.previous, self};
    link_place(&here, self);
    pf_park(&sleepers_world.scheduler, PF_NEVER);
    CHECK(self->place == &here && here.sleeper == self);
    CHECK(sleepers_world.thread.current == &self->worker.fiber);
    here.previous->next = here.next;
    here.next->previous = here.previous;
    self->place = NULL;
}

/* More than the processor preserves registers across a call. */
void
sleeper_keep_locals(worker *w)
{
    sleeper *self = (sleeper *)w;
    uint64_t numbers[20], *own = numbers + w->value % 20;
    uint64_t a = (uint64_t)w->value, b = a * 3, c = a * 5, d = ~a, e = a << 9;
    uint64_t **pointer = &own;
    uint64_t *room = (uint64_t *)(void *)w->fiber.stack->room;
    for (uint64_t i = 0; i < 20; i++) {
        numbers[i] = a + i;
    }
    room[0] = a;
    room[7] = (uintptr_t)(room + 5);
    for (int i = 0; i < 3; i++) {
        __asm__("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e));
        REMEMBER(pointer);
        sleeper_wait(self);
        CHECK_EQUAL(a, w->value);
        CHECK(b == a * 3 && c == a * 5 && d == ~a && e == a << 9);
        CHECK(pointer == &own && own == numbers + a % 20);
        for (uint64_t n = 0; n < 20; n++) {
            CHECK_EQUAL(numbers[n], a + n);
        }
        room = (uint64_t *)(void *)w->fiber.stack->room;
        CHECK_EQUAL(room[0], a);
        CHECK(room[7] == (uintptr_t)(room + 5));
        pf_yield(&w->world->scheduler);
    }
    sleepers_finished++;
}

sleeper *
sleepers_packed_one(void)
{
    for (place *p = sleepers_line.next; p != &sleepers_line; p = p->next) {
        if (pf_is_packed(&p->sleeper->worker.fiber)) {
            return p->sleeper;
        }
    }
    return NULL;
}

void
sleepers_spawn(work_fn work, int count)
{
    for (int i = 0; i < count; i++) {
        sleeper_spawn(work, i);
    }
}

#endif
