/* The heap of timers.  A child's index is 4 * parent + 1 .. 4; a timer's
 * place is its index plus one, so that 0 can mean "not armed". */
#include "engine/core/timers.h"

#include <errno.h>

#include "engine/base/memory.h"

#define CHILDREN PF_TIMER_CHILDREN
#define FIRST_CAPACITY 16
#define KEEP_CAPACITY 1024 /* smaller heaps are not worth shrinking */

void
pf_timers_init(pf_timers *timers)
{
    *timers = (pf_timers){0};
}

void
pf_timers_clear(pf_timers *timers)
{
    for (uint32_t i = 0; i < timers->count; i++) {
        timers->heap[i].timer->place = 0;
    }
    free(timers->heap);
    pf_timers_init(timers);
}

/* Equal times fire in the order they were armed. */
static inline bool
earlier(const pf_timer_entry *a, const pf_timer_entry *b)
{
    return a->when < b->when ||
           (a->when == b->when && a->sequence < b->sequence);
}

static inline void
put(pf_timers *timers, uint32_t index, pf_timer_entry entry)
{
    timers->heap[index] = entry;
    entry.timer->place = index + 1;
}

/* Puts `entry` into the hole at `index`, or nearer to the root. */
static void
move_up(pf_timers *timers, uint32_t index, pf_timer_entry entry)
{
    while (index > 0) {
        uint32_t parent = (index - 1) / CHILDREN;
        if (!earlier(&entry, &timers->heap[parent])) {
            break;
        }
        put(timers, index, timers->heap[parent]);
        index = parent;
    }
    put(timers, index, entry);
}

/* Returns the earliest child of `index`, or `count` if there is no child. */
static inline uint32_t
first_child(const pf_timers *timers, uint32_t index)
{
    uint64_t child = (uint64_t)index * CHILDREN + 1;
    if (child >= timers->count) {
        return timers->count;
    }
    uint32_t best = (uint32_t)child;
    uint32_t end =
        timers->count - best < CHILDREN ? timers->count : best + CHILDREN;
    for (uint32_t i = best + 1; i < end; i++) {
        if (earlier(&timers->heap[i], &timers->heap[best])) {
            best = i;
        }
    }
    return best;
}

/* Puts `entry` into the hole at `index`, or farther from the root. */
static void
move_down(pf_timers *timers, uint32_t index, pf_timer_entry entry)
{
    for (;;) {
        uint32_t child = first_child(timers, index);
        if (child == timers->count || !earlier(&timers->heap[child], &entry)) {
            break;
        }
        put(timers, index, timers->heap[child]);
        index = child;
    }
    put(timers, index, entry);
}

static void
fill(pf_timers *timers, uint32_t index, pf_timer_entry entry)
{
    if (index > 0 && earlier(&entry, &timers->heap[(index - 1) / CHILDREN])) {
        move_up(timers, index, entry);
    } else {
        move_down(timers, index, entry);
    }
}

static int
resize(pf_timers *timers, uint32_t capacity)
{
    pf_timer_entry *heap =
        pf_memory_realloc(timers->heap, (size_t)capacity * sizeof *heap);
    if (heap == NULL) {
        return -ENOMEM;
    }
    timers->heap = heap;
    timers->capacity = capacity;
    return 0;
}

static int
grow(pf_timers *timers)
{
    if (timers->count < timers->capacity) {
        return 0;
    }
    if (timers->capacity > UINT32_MAX / 2) {
        return -ENOMEM;
    }
    return resize(timers, timers->capacity == 0 ? FIRST_CAPACITY
                                                : timers->capacity * 2);
}

/* Returns most of the heap's memory after very many timers.  At least half of
 * the new capacity is free, or the next few additions would grow it again. */
static void
shrink(pf_timers *timers)
{
    if (timers->capacity > KEEP_CAPACITY &&
        timers->count < timers->capacity / 8) {
        (void)resize(timers, timers->capacity / 4); /* may fail */
    }
}

int
pf_timers_add(pf_timers *timers, pf_timer *timer, int64_t when)
{
    pf_timer_entry entry = {when, timers->sequence++, timer};
    if (timer->place != 0) { /* re-arm */
        fill(timers, timer->place - 1, entry);
        return 0;
    }
    int error = grow(timers);
    if (error == 0) {
        move_up(timers, timers->count++, entry);
    }
    return error;
}

void
pf_timers_remove(pf_timers *timers, pf_timer *timer)
{
    if (timer->place == 0) {
        return;
    }
    uint32_t index = timer->place - 1;
    timer->place = 0;
    pf_timer_entry last = timers->heap[--timers->count];
    if (index != timers->count) { /* the last one fills the hole */
        fill(timers, index, last);
    }
    shrink(timers);
}

pf_timer *
pf_timers_pop_due(pf_timers *timers, int64_t now)
{
    if (timers->count == 0 || timers->heap[0].when > now) {
        return NULL;
    }
    pf_timer *timer = timers->heap[0].timer;
    pf_timers_remove(timers, timer);
    return timer;
}
