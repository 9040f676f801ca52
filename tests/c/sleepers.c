#include "sleepers.h"

#include "engine/base/os_threads.h"

#include "check.h"

#define ROOM_USED 64

/* ---------------------------------------------------------- the host --- */

world sleepers_world;
sleeper sleepers_line;
int sleepers_finished, sleepers_lost, sleepers_looks, sleepers_arrivals;
bool sleepers_all_lend;
static pf_fiber the_mover;

static void
look(pf_thread *thread, pf_fiber *fiber, pf_packing *packing)
{
    const sleeper *self = (sleeper *)fiber;
    CHECK(thread == &sleepers_world.thread);
    CHECK(fiber->stack->user == fiber && fiber->task.has_stack);
    packing->room_end = fiber->stack->room + ROOM_USED;
    packing->exposed = self->exposed;
    packing->called_back = self->lends || sleepers_all_lend;
    packing->pinned = self->pinned;
    sleepers_looks++;
}

static void
moved(pf_fiber *fiber, const char *low, const char *high, ptrdiff_t distance)
{
    sleeper *self = (sleeper *)fiber;
    self->moved++;
    if (self->seen == NULL) {
        return;
    }
    CHECK(self->seen >= low && self->seen < high);
    self->seen += distance;
    CHECK_EQUAL(*self->seen, 'x');
}

static void
packed(pf_fiber *fiber)
{
    CHECK(pf_pack_is_packed(fiber));
    ((sleeper *)fiber)->packed++;
}

static void
unpacked(pf_fiber *fiber)
{
    CHECK(!pf_pack_is_packed(fiber) && fiber->stack->user == fiber);
    ((sleeper *)fiber)->unpacked++;
}

static void
on_arrival(pf_thread *thread, pf_fiber *mover, pf_fiber *to)
{
    CHECK(mover == &the_mover && thread->current == to);
    sleepers_arrivals++;
}

static pf_fiber *
new_mover(pf_thread *thread)
{
    CHECK(thread == &sleepers_world.thread);
    return &the_mover;
}

static void
free_mover(pf_fiber *mover)
{
    CHECK(mover == &the_mover);
}

const pf_pack_host sleepers_host = {
    look,      moved,      packed,     unpacked,
    new_mover, free_mover, on_arrival, pf_os_thread_pause,
};

static pf_fiber *
first(pf_scheduler *s, pf_task *task)
{
    pf_limit limit;
    pf_fiber *fiber = pf_fiber_of(task);
    const sleeper *self = (sleeper *)fiber;
    if (pf_pack_is_packed(fiber)) {
        return pf_pack_next(s, fiber);
    }
    if (pf_fiber_prepare(s->thread, fiber, self->stack_size, self->own_stack,
                         &limit) == 0) {
        return fiber;
    }
    sleepers_lost++;
    task->state = PF_DONE;
    worker_ops.reap(s->thread, fiber);
    return pf_scheduler_next(s);
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
    pf_scheduler_make_ready_fresh(&w->scheduler, &self->worker.fiber);
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
    sleepers_line.next = sleepers_line.previous = &sleepers_line;
    sleepers_finished = sleepers_lost = 0;
    sleepers_looks = sleepers_arrivals = 0;
    sleepers_all_lend = false;
    return world_open(&sleepers_world);
}

int
sleepers_set(size_t slots)
{
    return pf_pack_set(&sleepers_world.thread, &sleepers_host, slots);
}

world *
sleepers_open(size_t slots)
{
    CHECK(sleepers_try_to_open());
    CHECK_EQUAL(sleepers_set(slots), 0);
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
sleepers_occupied(void)
{
    return pf_stack_pool_occupied(sleepers_pool(STACK_SIZE));
}

void
sleepers_run(void)
{
    pf_scheduler_run(&sleepers_world.scheduler);
}

int
sleepers_wake(void)
{
    int count = 0;
    for (sleeper *s = sleepers_line.next; s != &sleepers_line; s = s->next) {
        CHECK(pf_scheduler_wake(&sleepers_world.scheduler, &s->worker.task,
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
        CHECK_EQUAL(pf_stack_pool_occupied(w->thread.pools[i]), 0);
    }
    world_close(w);
}

/* ---------------------------------------------------------------- work --- */

OUT_OF_LINE void
sleeper_wait(sleeper *self)
{
    self->next = &sleepers_line;
    self->previous = sleepers_line.previous;
    self->next->previous = self->previous->next = self;
    pf_scheduler_park(&sleepers_world.scheduler, PF_NEVER);
    CHECK(sleepers_world.thread.current == &self->worker.fiber);
    CHECK(self->worker.fiber.stack->user == self);
    self->previous->next = self->next;
    self->next->previous = self->previous;
    self->next = self->previous = NULL;
}

/* Has more variables than the processor has registers that calls preserve. */
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
        CHECK(room == (uint64_t *)(void *)w->fiber.stack->room);
        CHECK_EQUAL(room[0], a);
        CHECK(room[7] == (uintptr_t)(room + 5));
        pf_scheduler_yield(&w->world->scheduler);
    }
    sleepers_finished++;
}

sleeper *
sleepers_packed_one(void)
{
    for (sleeper *s = sleepers_line.next; s != &sleepers_line; s = s->next) {
        if (pf_pack_is_packed(&s->worker.fiber)) {
            return s;
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
