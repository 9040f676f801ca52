/* The ready queue's slow paths; see queue.h. */
#include "engine/core/queue.h"

void
pf_queue_unlink(pf_queue *queue, pf_task *before, pf_task *task)
{
    pf_task *after = task->next;
    if (before == NULL) {
        queue->head = after;
    } else {
        before->next = after;
    }
    if (after == NULL) {
        queue->tail = before;
    } else if (pf_task_is_fresh(after)) {
        pf_fiber_of(after)->before = before;
    }
    task->next = NULL;
    queue->fields = NULL;
    queue->count--;
}

bool
pf_queue_remove(pf_queue *queue, pf_task *task)
{
    pf_task *before = NULL;
    pf_task *t = queue->head;
    if (t != task && pf_task_is_fresh(task)) {
        before = pf_fiber_of(task)->before;
        t = task;
    }
    while (t != NULL && t != task) {
        before = t;
        t = t->next;
    }
    if (t != NULL) {
        pf_queue_unlink(queue, before, t);
    }
    return t != NULL;
}

/* Sets the cursors.  The queue must hold at least PF_PREFETCH_FROM tasks. */
void
pf_queue_prefetch_begin(pf_queue *queue)
{
    queue->lines = queue->head->next;
    queue->pages = queue->lines->next->next;
    queue->fields = queue->pages->next->next;
}
