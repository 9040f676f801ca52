/* Work that must be done before the running fiber is left: see pending.h. */
#include "python/switch/pending.h"

#include "python/core/import.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/switch/home.h"
#include "python/switch/overflow.h"
#include "python/switch/unwind.h"
#include "python/task/fiber.h"
#include "python/task/post.h"

/* Is our callback still in gc.callbacks, through which the collector reports
 * its beginning and end? If it was removed in between, the end was not
 * reported. */
static bool
collector_really_runs(void)
{
    PyObject *list = pf_import_from("gc", "callbacks");
    PyObject *ours = pf_import_from("pyfiber._engine", "_gc_callback");
    bool there = true;
    if (list != NULL && ours != NULL) {
        there = PySequence_Contains(list, ours) != 0;
    }
    PyErr_Clear(); /* unknown: assume that it is there */
    Py_XDECREF(ours);
    Py_XDECREF(list);
    return there;
}

/* Unwinds a fiber that another thread has dropped. The post has the only
 * reference to it, unless other code has found it since. */
static void
dropped_arrived(SchedulerObject *s, PyObject *op, PyObject *ignored)
{
    (void)s, (void)ignored;
    if (PyObject_TypeCheck(op, pf_task_fiber_type) && Py_REFCNT(op) == 1 &&
        pf_unwind_may((FiberObject *)op)) {
        pf_unwind_fiber(pf_thread_current, (FiberObject *)op);
    }
}

/* The object leaks if the thread has ended, or if there is no memory. */
void
pf_pending_leave(PfThread *owner, PyObject *op)
{
    PyObject *raised = pystate_take_exception();
    PfPost *post = pf_post_new(dropped_arrived, NULL, NULL);
    if (post == NULL) {
        PyErr_Clear();
    } else {
        post->target = op;
        post->unwinds = true;
        if (!pf_post_send_thread(owner, post)) {
            post->target = NULL;
            pf_post_drop(post);
        }
    }
    pystate_restore_exception(raised);
}

/* Runs calls from other threads, and unwinds fibers whose last reference other
 * threads or a collection have dropped. (A greenlet unwinds itself.) If that
 * is not allowed yet, the next switching point does it. */
void
pf_pending_take_posts(PfThread *t)
{
    if (!pf_home_must_stay(t)) {
        pf_thread_unpend(t, PF_PENDING_POSTS);
        pf_post_run(t);
    }
}

void
pf_pending_take_posts_here(void)
{
    PfThread *t = pf_thread_current;
    if (t != NULL && (t->pending & PF_PENDING_POSTS)) {
        pf_pending_take_posts(t);
    }
}

/* Closes the running fiber's reserve if it no longer runs in there. A fiber
 * may be left, and resumed, while it runs in its reserve. Until it is above
 * its reserve again, each fiber of the thread is checked when it is left. */
void
pf_pending_close_reserve(PfThread *t)
{
    FiberObject *self = CURRENT(t);
    pf_stack *stack = self->fiber.stack;
    char here = 0;
    bool open = false;
    pf_thread_unpend(t, PF_PENDING_RESERVE);
    if (stack != NULL) {
        pf_overflow_end_watch(t, &here);
        pf_stack_close_reserve(stack, &here);
        open = pf_stack_reserve_is_open(stack);
        if (!open) {
            pystate_replenish(t->tstate, self->saved);
        }
    }
    t->in_reserve += (size_t)open - self->in_reserve;
    self->in_reserve = open;
    if (t->in_reserve != 0) {
        pf_thread_pend(t, PF_PENDING_RESERVE);
    }
}

bool
pf_pending_collector_runs(PfThread *t)
{
    if (t->collecting == t->engine.current && !collector_really_runs()) {
        pf_thread_mark_collector(t, false);
    }
    return t->collecting == t->engine.current;
}

int
pf_pending_before_wait(PfThread *t)
{
    if (!pf_unwind_cuts_off(t)) {
        return pf_pending_run(t);
    }
    if (t->pending & PF_PENDING_RESERVE) {
        pf_pending_close_reserve(t);
    }
    return pf_unwind_abandon(t);
}

int
pf_pending_run(PfThread *t)
{
    if (t->pending & PF_PENDING_RESERVE) {
        pf_pending_close_reserve(t);
    }
    if (pf_pending_collector_runs(t)) {
        PyErr_SetString(pf.fiber_error,
                        "cannot leave this fiber while the garbage collector "
                        "runs (in __del__ or a weakref callback, say)");
        return -1;
    }
    if (t->pending & PF_PENDING_NO_SWITCH) {
        PyErr_Format(pf.fiber_error, "cannot leave this fiber %s",
                     t->no_switch_why);
        return -1;
    }
    if (t->pending & PF_PENDING_POSTS) {
        pf_pending_take_posts(t);
    }
    return 0;
}
