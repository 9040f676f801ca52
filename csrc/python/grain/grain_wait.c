/* What a grain waits for, how it is woken, and what other threads may request;
 * see grain.h.
 *
 * A waiting grain is PF_PARKED.  A wake-up only puts it back into the ready
 * queue. The grain's next turn dismantles the wait and looks up its result.
 */
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/grain/grain.h"
#include "python/grain/loop.h"
#include "python/queue/channel.h"
#include "python/sync/event.h"
#include "python/task/fiber.h"
#include "python/task/life.h"
#include "python/task/outcome.h"
#include "python/task/post.h"
#include "python/task/scheduler.h"
#include "python/wait/in_line.h"
#include "python/wait/wait.h"
#include "python/waitq/waitq.h"

/* ---------------------------------------------------------------- being ready */

/* The running grain gets another turn.  If its pool has a policy, the caller
 * of the grain's step gives it to the policy after the step has been timed. */
void
pf_grain_ready(GrainObject *g)
{
    g->wait = NULL;
    if (PF_UNLIKELY(g->pool != NULL) && g->pool->policy != NULL) {
        g->core.state = PF_READY;
    } else {
        pf_scheduler_make_ready(g->core.scheduler, &g->core);
    }
}

void
pf_grain_wake(GrainObject *g, pf_wake why)
{
    if (g->core.scheduler != NULL &&
        pf_scheduler_wake(g->core.scheduler, &g->core, why)) {
        pf_scheduler_notify_host(pf_grain_scheduler(g));
    }
}

/* --------------------------------------------------- the callback of futures */

/* The done-callback of a future: wakes the grain, from any thread.  When the
 * wait is over, the reference to the grain is dropped. */
typedef struct NoticeObject {
    PyObject_HEAD
    GrainObject *grain;
    bool called; /* possibly before the grain waits */
} NoticeObject;

/* Called on the grain's thread, perhaps while add_done_callback() still runs,
 * with the grain inside it. */
static void
dispatch_notice(NoticeObject *notice, GrainObject *g)
{
    notice->called = true;
    if (notice->grain == g) {
        pf_grain_wake(g, PF_WAKE_NORMAL);
    }
}

static void
attach_arrived(SchedulerObject *s, PyObject *op, PyObject *ignored)
{
    GrainObject *g = (GrainObject *)op;
    GrainPoolObject *pool = g->pool;
    (void)ignored;
    if (pool == NULL || g->core.scheduler != NULL ||
        (pool->scheduler != NULL && pool->scheduler != s) ||
        g->core.state == PF_DONE) {
        return; /* taken out again meanwhile, or is in another pool */
    }
    if (pool->scheduler == NULL || pf_grain_attach(pool->scheduler, g) < 0) {
        if (PyErr_Occurred()) {
            PyErr_WriteUnraisable(op);
        }
        pf_grain_abandon(pf_thread_current, g);
    }
}

/* Has the grain neither ended nor gone to another scheduler since the call was
 * made? */
static bool
is_still_of(const GrainObject *g, const SchedulerObject *s)
{
    return g->core.scheduler == &s->core && g->core.state != PF_DONE;
}

static void
leave_arrived(SchedulerObject *s, PyObject *op, PyObject *ignored)
{
    GrainObject *g = (GrainObject *)op;
    (void)ignored;
    if (!is_still_of(g, s)) {
        return;
    }
    if (g->core.state == PF_RUNNING) {
        g->leaves = true;
    } else if (g->pool != NULL) {
        pf_grain_leave(g);
    }
}

static void
cancel_arrived(SchedulerObject *s, PyObject *op, PyObject *why)
{
    GrainObject *g = (GrainObject *)op;
    if (is_still_of(g, s)) {
        pf_grain_cancel_now(g, why);
    }
}

static void
unpark_arrived(SchedulerObject *s, PyObject *op, PyObject *value)
{
    GrainObject *g = (GrainObject *)op;
    if (is_still_of(g, s) && pf_task_give_permit(PF_TASK(g), value) == 0) {
        pf_wait_warn_second_permit(op, value);
    }
}

static void
notice_arrived(SchedulerObject *s, PyObject *op, PyObject *notice)
{
    GrainObject *g = (GrainObject *)op;
    if (is_still_of(g, s)) {
        dispatch_notice((NoticeObject *)notice, g);
    }
}

/* Makes the grain's thread call `run`.  Returns 1, 0 if the scheduler is
 * closed and the grain has ended, and -1 without memory. */
static int
call_owner(GrainObject *g, PfPostFn run, PyObject *argument)
{
    return pf_post_call(pf_grain_scheduler(g), run, (PyObject *)g, argument);
}

int
pf_grain_post_attach(SchedulerObject *s, GrainObject *g)
{
    int rc = pf_post_call(s, attach_arrived, (PyObject *)g, NULL);
    if (rc == 0) {
        PyErr_SetString(pf.fiber_error, "the run of the pool is over");
    }
    return rc == 1 ? 0 : -1;
}

int
pf_grain_post_cancel(GrainObject *g, PyObject *why)
{
    return call_owner(g, cancel_arrived, why);
}

int
pf_grain_post_leave(GrainObject *g)
{
    return call_owner(g, leave_arrived, NULL);
}

static PyObject *
notice_call(PyObject *op, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    NoticeObject *self = (NoticeObject *)op;
    GrainObject *g = self->grain;
    if (g == NULL) {
        Py_RETURN_NONE;
    }
    if (pf_grain_is_here(g)) {
        dispatch_notice(self, g);
    } else if (call_owner(g, notice_arrived, op) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static int
notice_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((NoticeObject *)op)->grain);
    return 0;
}

static int
notice_clear(PyObject *op)
{
    Py_CLEAR(((NoticeObject *)op)->grain);
    return 0;
}

static void
notice_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, notice_clear);
}

static PyType_Slot notice_slots[] = {
    {Py_tp_doc, (void *)"Wakes a grain when the future it waits for is done."},
    {Py_tp_call, notice_call},
    {Py_tp_traverse, notice_traverse},
    {Py_tp_clear, notice_clear},
    {Py_tp_dealloc, notice_dealloc},
    {0, NULL},
};

PyType_Spec pf_grain_notice_spec = {
    .name = "pyfiber._engine._Notice",
    .basicsize = sizeof(NoticeObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = notice_slots,
};

/* ------------------------------------------------------------ beginning to wait */

static GrainWait *
new_wait(GrainObject *g)
{
    GrainWait *wait = PyMem_Calloc(1, sizeof(GrainWait));
    if (wait == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    wait->line.waiter.task = PF_TASK(g);
    wait->line.waiter.scheduler = SCHEDULER_OF(g->core.scheduler);
    wait->line.waiter.nodes = &wait->line.node;
    wait->line.waiter.count = 1;
    wait->line.node.waiter = &wait->line.waiter;
    return wait;
}

/* From now on the grain waits and uses `wait`, instead of `runner`. */
static void
park(GrainObject *g, int kind, GrainWait *wait)
{
    g->wait = wait;
    g->waits_for = (uint8_t)kind;
    g->core.wake = PF_WAKE_NONE;
    g->core.state = PF_PARKED;
}

/* Sleeps for a number of seconds.  0 is an ordinary turn. */
int
pf_grain_sleep(GrainObject *g, PyObject *seconds)
{
    int64_t ns;
    if (pf_arguments_seconds(seconds, "the time a grain sleeps", &ns) < 0) {
        return -1;
    }
    if (ns < 0) {
        PyErr_SetString(PyExc_ValueError,
                        "a grain cannot sleep a negative time");
        return -1;
    }
    if (ns == 0) {
        pf_grain_ready(g);
        return 0;
    }
    int64_t when = pf_timers_later(pf_scheduler_now(g->core.scheduler), ns);
    if (when != PF_NEVER &&
        pf_timers_add(&g->core.scheduler->timers, &g->core.timer, when) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    park(g, PF_WAIT_TIME, NULL);
    return 0;
}

/* Waits until the waiters in the queue are woken.  If that has happened
 * already (`done`), the grain continues at once. */
int
pf_grain_wait_end(GrainObject *g, PfWaitq *waiters, bool done)
{
    if (done) {
        g->waits_for = PF_WAIT_END;
        pf_grain_ready(g);
        return 0;
    }
    GrainWait *wait = new_wait(g);
    if (wait == NULL) {
        return -1;
    }
    pf_waitq_push(waiters, &wait->line.node);
    park(g, PF_WAIT_END, wait);
    return 0;
}

int
pf_grain_wait_answer(GrainObject *g)
{
    SchedulerObject *s = pf_grain_scheduler(g);
    GrainWait *wait = pf_grains_begin(s) < 0 ? NULL : new_wait(g);
    if (wait == NULL) {
        return -1;
    }
    PfGrains *grains = pf_grains_at(s);
    pf_waitq_push(&grains->sleepers, &wait->line.node);
    grains->asking++;
    park(g, PF_WAIT_ANSWER, wait);
    pf_grains_poke(s);
    return 0;
}

/* Lets the next turn begin with `value` (stolen). */
static int
ready_with(GrainObject *g, PyObject *value)
{
    Py_XSETREF(g->value, value);
    pf_grain_ready(g);
    return 0;
}

/* Waits in a queue.  Frees the mutex, which was taken after `wait` had been
 * made. */
static int
wait_in_line(GrainObject *g, GrainWait *wait, PfWaitq *queue, PfMutex *mutex,
             PyObject *item)
{
    PF_SET_NODE_MUTEX(&wait->line.node, mutex);
    wait->line.node.item = Py_XNewRef(item);
    park(g, PF_WAIT_GRANT, wait);
    pf_waitq_push(queue, &wait->line.node);
    PF_UNLOCK_MUTEX(mutex);
    return 0;
}

int
pf_grain_wait_event(GrainObject *g, PyObject *event)
{
    GrainWait *wait = new_wait(g);
    if (wait == NULL) {
        return -1;
    }
    PfMutex *mutex = pf_event_mutex(event);
    PF_LOCK_MUTEX(mutex);
    PfWaitq *queue = pf_event_queue(event);
    if (queue != NULL) {
        return wait_in_line(g, wait, queue, mutex, NULL);
    }
    PF_UNLOCK_MUTEX(mutex);
    PyMem_Free(wait);
    return ready_with(g, Py_NewRef(Py_True));
}

int
pf_grain_wait_case(GrainObject *g, PyObject *op)
{
    PyObject *value;
    GrainWait *wait = new_wait(g);
    if (wait == NULL) {
        return -1;
    }
    ChannelObject *channel = pf_channel_of_case(op, &value);
    bool sends = value != NULL;
    PF_LOCK(channel);
    int rc = sends ? pf_channel_try_send(channel, value)
                   : pf_channel_try_receive(channel, &value);
    if (rc == 0) {
        return wait_in_line(g, wait,
                            sends ? &channel->senders : &channel->receivers,
                            PF_MUTEX_OF(channel), sends ? value : NULL);
    }
    PF_UNLOCK(channel);
    PyMem_Free(wait);
    if (rc < 0) {
        return pf_channel_raise(channel, rc);
    }
    return ready_with(g, sends ? Py_NewRef(Py_None) : value);
}

static NoticeObject *
new_notice(GrainObject *g)
{
    NoticeObject *notice = PyObject_GC_New(NoticeObject, pf_grain_notice_type);
    if (notice != NULL) {
        notice->grain = (GrainObject *)Py_NewRef((PyObject *)g);
        notice->called = false;
        PyObject_GC_Track(notice);
    }
    return notice;
}

/* Waits for the notice, which the future has by now.  Steals the reference. */
static int
wait_for_notice(GrainObject *g, NoticeObject *notice)
{
    GrainWait *wait = notice->called ? NULL : new_wait(g);
    if (wait != NULL) {
        wait->notice = (PyObject *)notice;
        pf_scheduler_hold(g->core.scheduler);
        park(g, PF_WAIT_FUTURE, wait);
        return 0;
    }
    int rc = notice->called ? 0 : -1;
    if (rc == 0) {
        g->waits_for = PF_WAIT_FUTURE;
        pf_grain_ready(g);
    }
    Py_CLEAR(notice->grain);
    Py_DECREF(notice);
    return rc;
}

/* The grain counts as running while the future's own code runs, which may call
 * back at once, or let others run.  Only afterwards does the grain wait. */
int
pf_grain_wait_future(GrainObject *g, PyObject *future)
{
    NoticeObject *notice = new_notice(g);
    if (notice == NULL) {
        return -1;
    }
    PyObject *done = PyObject_CallMethod(future, "add_done_callback", "O",
                                         (PyObject *)notice);
    if (done == NULL) {
        Py_CLEAR(notice->grain);
        Py_DECREF(notice);
        return -1;
    }
    Py_DECREF(done);
    return wait_for_notice(g, notice);
}

int
pf_grain_wait_unpark(GrainObject *g)
{
    if (g->permit) {
        g->waits_for = PF_WAIT_UNPARK;
        pf_grain_ready(g);
    } else {
        park(g, PF_WAIT_UNPARK, NULL);
        g->in_park = true;
    }
    return 0;
}

/* A cancelled grain continues its wait, if it has one, for at most `ns`
 * nanoseconds. */
int
pf_grain_wait_slowly(GrainObject *g, int64_t ns)
{
    pf_scheduler *s = g->core.scheduler;
    if (pf_timers_add(&s->timers, &g->core.timer, pf_scheduler_now(s) + ns) !=
        0) {
        if (g->core.state == PF_PARKED) {
            g->core.state = PF_RUNNING;
            pf_grain_unwait(g);
        }
        PyErr_NoMemory();
        return -1;
    }
    if (g->core.state == PF_RUNNING) {
        park(g, PF_WAIT_TIME, NULL);
    }
    g->slowed = true;
    return 0;
}

/* --------------------------------------------------- the end of a wait */

/* Has the grain got what it waited for in a queue? */
bool
pf_grain_was_granted(GrainObject *g)
{
    return g->waits_for == PF_WAIT_GRANT &&
           PF_SHARED_GET(&g->wait->line.waiter.taken) != NULL;
}

bool
pf_grain_receives(GrainObject *g)
{
    PyObject *value = NULL;
    return pf_channel_is_case(g->yielded) &&
           (pf_channel_of_case(g->yielded, &value), value == NULL);
}

/* Takes the node out of its queue.  A value that the grain has received but
 * will not get goes back to the channel. */
static void
leave_line(GrainObject *g, PfNode *node)
{
    if (g->waits_for == PF_WAIT_ANSWER && node->queue != NULL) {
        pf_grains_at(pf_grain_scheduler(g))->asking--;
    }
    pf_waitq_leave(node->waiter);
    if (node->item == NULL) {
        return;
    }
    PyObject *value = node->item, *unused = NULL;
    node->item = NULL;
    if (PF_SHARED_GET(&node->waiter->taken) != NULL && pf_grain_receives(g)) {
        pf_channel_give_back(pf_channel_of_case(g->yielded, &unused), value);
    } else {
        Py_DECREF(value);
    }
}

/* Dismantles the wait, however it ended. */
void
pf_grain_unwait(GrainObject *g)
{
    GrainWait *wait = g->wait;
    pf_timers_remove(&g->core.scheduler->timers, &g->core.timer);
    if (wait != NULL) {
        g->wait = NULL;
        if (wait->notice != NULL) {
            pf_scheduler_release(g->core.scheduler);
            Py_CLEAR(((NoticeObject *)wait->notice)->grain);
            Py_DECREF(wait->notice);
        } else {
            leave_line(g, &wait->line.node);
        }
        PyMem_Free(wait);
    }
    g->waits_for = PF_WAIT_NOTHING;
    g->in_park = false;
}

static PyObject *
raise_cancelled(GrainObject *g)
{
    pf_grain_raise_cancelled(g);
    return NULL;
}

/* Returns the result of the fiber or grain that was waited for. */
static PyObject *
result_of(GrainObject *g)
{
    PyObject *other = g->yielded;
    bool called = g->calls;
    g->calls = false;
    PfTaskObject *target = PF_TASK(other);
    if (called && target->outcome == PF_OUTCOME_CANCELLED && g->under_cancel) {
        /* Cancelled by our own cancellation: see pf_grain_cancel_now(). */
        return raise_cancelled(g);
    }
    return pf_task_value(target);
}

/* Returns the result from the Event or the channel. */
static PyObject *
take_grant(GrainObject *g)
{
    PfNode *node = &g->wait->line.node;
    PyObject *value = node->item, *unused = NULL;
    bool refused = node->refused;
    if (pf_channel_is_case(g->yielded)) {
        node->item = NULL;
        ChannelObject *channel = pf_channel_of_case(g->yielded, &unused);
        pf_grain_unwait(g);
        if (refused) {
            Py_XDECREF(value);
            pf_channel_raise_closed(channel);
            return NULL;
        }
        return value != NULL ? value : Py_NewRef(Py_None);
    }
    pf_grain_unwait(g);
    return Py_NewRef(Py_True);
}

/* Takes the value or exception that was stored for this turn. */
static PyObject *
take_kept(GrainObject *g)
{
    PyObject *value = g->value;
    g->value = NULL;
    if (g->throws) {
        g->throws = false;
        pystate_restore_exception(value);
        return NULL;
    }
    return value;
}

static PyObject *
take_permit(GrainObject *g)
{
    PyObject *value = g->permit_value;
    g->permit = false;
    g->permit_value = NULL;
    return value;
}

/* Returns what the new turn begins with: a new reference to send into the
 * generator, or NULL with an exception to throw.  NULL without an exception
 * means the result of the future in `yielded`.  The grain is PF_RUNNING, also
 * for code that runs in here. */
PyObject *
pf_grain_take_value(GrainObject *g)
{
    int kind = g->waits_for;
    uint8_t why = g->core.wake;
    bool cancelled = why == PF_WAKE_CANCEL;
    g->core.wake = PF_WAKE_NONE;
    if (PF_UNLIKELY(kind != PF_WAIT_NOTHING)) {
        cancelled |= why == PF_WAKE_TIMEOUT && g->slowed;
        g->slowed = false;
        if (PF_FREE_THREADED && kind == PF_WAIT_GRANT) {
            /* From now on, no other thread can grant it. */
            pf_waitq_leave(&g->wait->line.waiter);
        }
        if (pf_grain_was_granted(g)) {
            return take_grant(g);
        }
        pf_grain_unwait(g);
    }
    if (PF_UNLIKELY(g->value != NULL)) {
        return take_kept(g);
    }
    if (PF_UNLIKELY(cancelled ||
                    (kind == PF_WAIT_NOTHING && g->under_cancel))) {
        return raise_cancelled(g);
    }
    switch (kind) {
    case PF_WAIT_END:
        return result_of(g);
    case PF_WAIT_FUTURE:
        return NULL; /* the caller calls its result(), which may wait */
    case PF_WAIT_UNPARK:
        return take_permit(g);
    default:
        return Py_NewRef(Py_None);
    }
}

/* -------------------------------------------------------------------- permits */

int
pf_grain_unpark(PfTaskObject *task, PyObject *value)
{
    GrainObject *g = (GrainObject *)(void *)task;
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_task_may_unpark(task) < 0) {
        return -1;
    }
    if (g->core.scheduler == NULL || pf_grain_is_here(g)) {
        int rc = pf_task_give_permit(task, value);
        return rc == 0 && pf_wait_second_permit((PyObject *)g, value) < 0 ? -1
                                                                          : rc;
    }
    return call_owner(g, unpark_arrived, value);
}

/* ----------------------------------------------------------------------- join */

/* Makes a fiber wait for the grain.  Returns 0 if the grain has ended, 1 if
 * the deadline has passed, and -1 with an exception. */
int
pf_grain_join(PfThread *t, GrainObject *g, int64_t deadline)
{
    if (pf_grain_current(t) == g) {
        PyErr_SetString(pf.fiber_error, "a grain cannot wait for its own end");
        return -1;
    }
    return pf_wait_once(&g->waiters, NULL, t, deadline, (PyObject *)g);
}

/* ----------------------------------------------- wake-ups from other threads */

/* A message for the grain has arrived; see wake() in waitq.c. */
void
pf_grain_posted(pf_scheduler *s, pf_task *core, unsigned bits)
{
    pf_thread_no_switch_begin((PfThread *)s->thread, "inside the scheduler");
    GrainObject *g = pf_grain_of(core);
    if (core->state == PF_PARKED && g->wait != NULL &&
        PF_SHARED_GET(&g->wait->line.waiter.taken) != NULL) {
        pf_grain_wake(g, PF_WAKE_NORMAL);
    }
    if (bits & PF_POST_LEFT) { /* the message hands over a reference */
        Py_DECREF(g);
    }
    pf_thread_no_switch_end((PfThread *)s->thread);
}

/* The grains will never continue, because the child of a fork lacks their
 * thread: takes them out of their queues. */
void
pf_grains_forget_waits(SchedulerObject *s)
{
    GrainObject *g = pf_grains_at(s)->live;
    for (; g != NULL; g = g->next) {
        if (g->core.state != PF_RUNNING && g->wait != NULL) {
            pf_waitq_leave(&g->wait->line.waiter);
        }
    }
}
