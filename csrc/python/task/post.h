/* What a thread wants of another one's scheduler, fibers or objects.
 *
 * A scheduler, its queue and timers, and its fibers' state are written by
 * their own thread alone.  Who wants something of them from elsewhere, or does
 * not know where it is, posts a message to an inbox (engine/core/inbox.h):
 *
 *   to a scheduler   its loop is woken, and runs what has come between two
 *                    turns
 *   to a thread      PF_PENDING_POSTS is set, and the next switch runs it, or
 *                    whoever waits there: for raw fibers, and for objects that
 *                    another thread, or a collection, has dropped
 *
 * A message is a PfPost, which is a function and up to two objects; or it is
 * the task that it is for (pf_task_post), which takes no memory and no GIL: its
 * `posted` gets bits on its own thread, perhaps those of several posts at once.
 *
 * To push is a compare-and-swap, to take an exchange of the whole list, both
 * sequentially consistent.  So what a producer wrote before it is there for
 * whoever takes; and of "push, then look whether the consumer sleeps" and "say
 * that it sleeps, then look for messages" one sees the other.  A scheduler
 * that is closed takes its last messages and refuses later ones; so does a
 * thread that ends, which is looked for under pf_threads_lock.
 *
 * An unread post holds the scheduler and the objects, which the collector
 * knows.
 */
#ifndef PF_TASK_POST_H
#define PF_TASK_POST_H

#include "python/task/fiber.h"
#include "python/task/scheduler.h"

/* Bits of pf_fiber.posted */
enum {
    PF_POST_UNPARK = 1 << 0,
    PF_POST_WAKE = 1 << 1, /* check whether your wait is over; see waitq.h */
    PF_POST_SEEN = 1 << 2, /* another thread has seen how it ended */
};

/* Runs on the thread of `s`, where nothing may switch.  The objects, as given,
 * are the call's. */
typedef void (*PfPostFn)(SchedulerObject *s, PyObject *target,
                         PyObject *argument);

typedef struct PfPost {
    pf_message message; /* first */
    PfPostFn run;
    PyObject *target;   /* or NULL */
    PyObject *argument; /* or NULL */
    bool embedded;      /* in its target, which therefore holds the memory */
    bool unwinds;       /* `run` ends fibers, which forbids to switch itself */
} PfPost;

/* `run` will be called.  1; 0: the scheduler is closed, and so all is over
 * there; -1: MemoryError. */
int pf_post_call(SchedulerObject *s, PfPostFn run, PyObject *target,
                 PyObject *argument);

/* A fiber that was not started goes to the scheduler, which counts it as
 * `coming` until `arrived` has counted it otherwise.  1; 0: closed; -1: an
 * exception; in both the fiber is as it was. */
int pf_post_fiber(SchedulerObject *s, FiberObject *fiber, PfPostFn arrived,
                  PyObject *argument);

/* As pf_post_call for a thread, whether a scheduler runs there or not; if none
 * does, `run` gets NULL.  1; 0: the thread has ended; -1: MemoryError. */
int pf_post_call_thread(PfThread *thread, PfPostFn run, PyObject *target,
                        PyObject *argument);
void pf_post_run(PfThread *t);   /* this thread's: from pf_pending_run */
void pf_post_close(PfThread *t); /* it has ended: no more can come */

/* The same by steps, for what must be done in between, or must not fail. */
PfPost *pf_post_new(PfPostFn run, PyObject *target, PyObject *argument);
void pf_post_embed(PfPost *call, PfPostFn run, PyObject *target);
/* False: the scheduler is closed, and the call still the caller's to drop. */
bool pf_post_send(SchedulerObject *s, PfPost *call);
/* To a thread, whatever runs there.  False: it has ended. */
bool pf_post_send_thread(PfThread *thread, PfPost *call);
void pf_post_drop(PfPost *call);

/* Append the targets of unread calls of `run` to a list, newest first; on the
 * scheduler's thread. 0, or -1. */
int pf_post_list(SchedulerObject *s, PfPostFn run, PyObject *list);

/* What unread calls hold. */
int pf_post_traverse(SchedulerObject *s, visitproc visit, void *arg);

#endif
