/* The ready queue of a scheduler: first in, first out, with two exceptions.  A
 * task may be put in front, and one may be removed from the middle; that takes
 * constant time for a fresh task, which has a pointer to the task before it.
 * This header also prefetches what the next tasks will need.
 */
#ifndef PF_ENGINE_QUEUE_H
#define PF_ENGINE_QUEUE_H

#include "engine/core/fiber.h"
#include "engine/core/task.h"

typedef struct pf_queue {
    pf_task *head;
    pf_task *tail;
    size_t count;
    /* Cursors of pf_queue_prefetch: the next tasks to prefetch lines, pages
     * and fields of.  All three are invalid while `fields` is NULL. */
    pf_task *lines;
    pf_task *pages;
    pf_task *fields;
} pf_queue;

static inline void
pf_queue_push(pf_queue *queue, pf_task *task)
{
    task->next = NULL;
    if (queue->tail == NULL) {
        queue->head = task;
    } else {
        queue->tail->next = task;
    }
    queue->tail = task;
    queue->count++;
}

static inline void
pf_queue_push_front(pf_queue *queue, pf_task *task)
{
    task->next = queue->head;
    if (queue->head == NULL) {
        queue->tail = task;
    } else if (pf_task_is_fresh(queue->head)) {
        pf_fiber_of(queue->head)->before = task;
    }
    queue->head = task;
    queue->count++;
}

static inline pf_task *
pf_queue_pop(pf_queue *queue)
{
    pf_task *task = queue->head;
    if (task != NULL) {
        queue->head = task->next;
        if (queue->head == NULL) {
            queue->tail = NULL;
            queue->fields = NULL; /* the cursors are invalid */
        }
        task->next = NULL;
        queue->count--;
    }
    return task;
}

/* Removes a task from the middle; a fresh one in constant time, others by a
 * search from the front.  False: the task is not in the queue. */
bool pf_queue_remove(pf_queue *queue, pf_task *task);
/* Removes a task if the one before it is known (NULL: `task` is the first). */
void pf_queue_unlink(pf_queue *queue, pf_task *before, pf_task *task);

/* Prefetching.  With thousands of ready fibers every switch lands on a cold
 * stack: a page that is not in the TLB and some ten cache lines, one after the
 * other.  The queue shows which fibers come next, so three cursors run ahead
 * of its head:
 * - the farthest prefetches a task's fields, to follow its links;
 * - the middle one prefetches pages, two at a time: a prefetch waits for its
 *   page walk before it retires, and the processor can do two walks at once;
 * - the nearest prefetches exactly the lines that a switch touches (more would
 *   exhaust the fill buffers, of which a core has ten or twelve).
 * A short queue's stacks are in the cache anyway. */
#if defined(__GNUC__)
#define PF_PREFETCH(address) __builtin_prefetch(address)
/* Functions that only prefetch must be inlined: gcc treats them as "pure" and
 * drops their calls. */
#define PF_ALWAYS_INLINE inline __attribute__((always_inline))
#define PF_NEVER_INLINE __attribute__((noinline))
#else
#define PF_PREFETCH(address) ((void)(address))
#define PF_ALWAYS_INLINE inline
#define PF_NEVER_INLINE
#endif
#define PF_PREFETCH_FROM 1024  /* ready tasks */
#define PF_PREFETCH_FRAMES 384 /* bytes of the innermost C frames */
#define PF_PREFETCH_READS 256  /* bytes: see pf_task_ops.reads */
#define PF_CACHE_LINE 64

static PF_ALWAYS_INLINE void
pf_queue_prefetch_run(const char *from, int bytes)
{
    for (int i = 0; from != NULL && i < bytes; i += PF_CACHE_LINE) {
        PF_PREFETCH(from + i);
    }
}

/* The stack of a task.  NULL: it has not run yet, is packed, is of a kind
 * without stacks, or is a thread's own fiber. */
static PF_ALWAYS_INLINE const pf_stack *
pf_queue_stack_of(pf_task *task)
{
    return task->has_stack ? pf_fiber_of(task)->stack : NULL;
}

/* The pointer at this offset from the task; NULL: there is none, or the task
 * has not begun. */
static PF_ALWAYS_INLINE const char *
pf_queue_pointee(pf_task *task, size_t offset)
{
    return offset == 0 || pf_task_is_fresh(task)
               ? NULL
               : *(const char **)(void *)((char *)task + offset);
}

static PF_ALWAYS_INLINE void
pf_queue_prefetch_page(pf_task *task)
{
    const pf_stack *stack = pf_queue_stack_of(task);
    if (stack != NULL) {
        PF_PREFETCH(stack + 1);
    } else if (!task->has_stack) {
        pf_queue_prefetch_run(
            pf_queue_pointee(task, pf_task_ops_of(task)->reads), 1);
        PF_PREFETCH((const char *)task + 2 * PF_CACHE_LINE); /* `releases` */
    }
}

/* Prefetches an object that will be freed: its first lines, with the garbage
 * collector's words in front, and the header of the memory pool that gets the
 * object back.  (CPython's pools lie at multiples of 16 KiB, so that their
 * headers push each other out of the cache.) */
static PF_ALWAYS_INLINE void
pf_queue_prefetch_released(const char *object)
{
    if (object == NULL) {
        return;
    }
    PF_PREFETCH(object - 16);
    PF_PREFETCH(object + 31);
    PF_PREFETCH((const char *)((uintptr_t)object & ~(uintptr_t)(16384 - 1)));
}

/* Prefetches for a packed fiber, or for a task of a kind without stacks, what
 * its operations name.  If the turn releases an object, the lines of the
 * host's object in front of the task are needed, too. */
static PF_ALWAYS_INLINE void
pf_queue_prefetch_reads(pf_task *task)
{
    const pf_task_ops *ops = pf_task_ops_of(task);
    pf_queue_prefetch_run(pf_queue_pointee(task, ops->reads),
                          PF_PREFETCH_READS);
    if (ops->releases != 0) {
        pf_queue_prefetch_released(pf_queue_pointee(task, ops->releases));
        PF_PREFETCH((const char *)task - PF_CACHE_LINE);
        PF_PREFETCH((const char *)task - PF_CACHE_LINE - PF_CACHE_LINE / 2);
    }
}

static PF_ALWAYS_INLINE void
pf_queue_prefetch_lines(pf_task *task, const pf_host *host)
{
    const pf_stack *stack = pf_queue_stack_of(task);
    if (!task->has_stack) {
        pf_queue_prefetch_reads(task);
    }
    if (stack == NULL) {
        return;
    }
    const char *room = (const char *)(stack + 1); /* after its header */
    pf_queue_prefetch_run(pf_fiber_of(task)->context.handle,
                          PF_PREFETCH_FRAMES);
    for (int i = 0; i < PF_HOT_LINES; i++) {
        PF_PREFETCH(room + host->hot_lines[i]);
    }
}

void pf_queue_prefetch_begin(pf_queue *queue);

static PF_ALWAYS_INLINE void
pf_queue_prefetch(pf_queue *queue, const pf_host *host, uint64_t turn)
{
    if (queue->count < PF_PREFETCH_FROM) {
        queue->fields = NULL;
        return;
    }
    if (queue->fields == NULL) {
        pf_queue_prefetch_begin(queue);
    }
    queue->fields = queue->fields->next;
    if (queue->fields == NULL) { /* many were put in front: start over */
        return;
    }
    PF_PREFETCH(queue->fields);
    PF_PREFETCH((const char *)queue->fields + PF_CACHE_LINE);
    if (turn % 2 == 0) {
        pf_queue_prefetch_page(queue->pages);
        pf_queue_prefetch_page(queue->pages->next);
        queue->pages = queue->pages->next->next;
    }
    pf_queue_prefetch_lines(queue->lines, host);
    queue->lines = queue->lines->next;
}

#endif
