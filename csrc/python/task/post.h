/* Messages from one thread to another one's scheduler, fibers or objects.
 *
 * A scheduler, its queue and timers, and its fibers' state are written by
 * their own thread alone. Any other thread, or one that does not know where
 * they belong, posts a message to an inbox (engine/core/inbox.h):
 *
 *   to a scheduler   its loop is woken, and runs the messages between two
 *                    turns
 *   to a thread      PF_PENDING_POSTS is set; the next switch there, or the
 *                    next wait, runs the messages. For raw fibers, and for
 *                    objects that another thread or a collection has dropped
 *
 * A message is a PfPost, which is a function and up to two objects; or it is
 * the task that it is for (pf_task_post), which needs no memory and no GIL:
 * the task's `posted` gets bits on the task's own thread, perhaps those of
 * several posts at once.
 *
 * A push is a compare-and-swap, a take is an exchange of the whole list, and
 * both are sequentially consistent. So the consumer sees what a producer wrote
 * before its push. And of "push, then look whether the consumer sleeps" and
 * "say that it sleeps, then look for messages" at least one sees the other. A
 * scheduler that is closed takes its last messages and refuses later ones; so
 * does a thread that ends, which producers look up under pf_threads_lock.
 *
 * An unread post holds references to the scheduler and the objects, which the
 * collector can see (pf_post_traverse).
 */
#ifndef PF_TASK_POST_H
#define PF_TASK_POST_H

#include "python/task/fiber.h"
#include "python/task/scheduler.h"

/* Bits of pf_task.posted. */
enum {
    PF_POST_UNPARK = 1 << 0,
    PF_POST_WAKE = 1 << 1, /* check whether the wait is over; see waitq.h */
    PF_POST_SEEN = 1 << 2, /* another thread has seen how the task ended */
};

/* Runs on the thread of `s`, where nothing may switch. The call owns the
 * references to the objects. */
typedef void (*PfPostFn)(SchedulerObject *s, PyObject *target,
                         PyObject *argument);

typedef struct PfPost {
    pf_message message; /* first */
    PfPostFn run;
    PyObject *target;   /* or NULL */
    PyObject *argument; /* or NULL */
    bool embedded;      /* part of its target, which owns the memory */
    bool unwinds;       /* `run` unwinds fibers, and forbids switches itself */
} PfPost;

/* Have `run` called on the scheduler's thread. 1: posted; 0: the scheduler is
 * closed, so everything there is over; -1: MemoryError. */
int pf_post_call(SchedulerObject *s, PfPostFn run, PyObject *target,
                 PyObject *argument);

/* Hand a fiber that was not started over to the scheduler, which counts it as
 * `coming` until `arrived` has enrolled it. 1: posted; 0: closed; -1: an
 * exception. Unless posted, the fiber is unchanged. */
int pf_post_fiber(SchedulerObject *s, FiberObject *fiber, PfPostFn arrived,
                  PyObject *argument);

/* As pf_post_call for a thread, whether a scheduler runs there or not; if none
 * does, `run` gets NULL. 1: posted; 0: the thread has ended; -1: MemoryError.
 */
int pf_post_call_thread(PfThread *thread, PfPostFn run, PyObject *target,
                        PyObject *argument);
void pf_post_run(PfThread *t);   /* run this thread's messages */
void pf_post_close(PfThread *t); /* refuse and drop messages: `t` has ended */

/* The same in steps, for callers that do something in between, or must not
 * fail. */
PfPost *pf_post_new(PfPostFn run, PyObject *target, PyObject *argument);
void pf_post_embed(PfPost *call, PfPostFn run, PyObject *target);
/* False: the scheduler is closed, and the caller still has to drop the call.
 */
bool pf_post_send(SchedulerObject *s, PfPost *call);
/* As pf_post_send for a thread. False: the thread has ended. */
bool pf_post_send_thread(PfThread *thread, PfPost *call);
void pf_post_drop(PfPost *call);

/* Append the targets of unread calls of `run` to a list, newest first; on the
 * scheduler's thread. 0 or -1. */
int pf_post_list(SchedulerObject *s, PfPostFn run, PyObject *list);

/* Visit what unread calls hold. */
int pf_post_traverse(SchedulerObject *s, visitproc visit, void *arg);

#endif
