/* Posts calls to a scheduler's thread, and runs those that arrive; see post.h.
 */
#include "python/task/post.h"

/* Runs a call that has arrived at its scheduler. The objects may hold the last
 * reference to anything, so they are dropped where nothing may switch, and
 * after the call's memory is freed. */
static void
arrived(pf_message *message, pf_scheduler *core)
{
    PfPost *call = (PfPost *)message;
    SchedulerObject *s = SCHEDULER_OF(core);
    PfThread *t = (PfThread *)core->thread;
    pf_thread_no_switch_begin(t, "inside the scheduler");
    call->run(s, call->target, call->argument);
    pf_post_drop(call);
    pf_thread_no_switch_end(t);
    Py_DECREF(s);
}

static const pf_message_ops call_ops = {arrived};

PfPost *
pf_post_new(PfPostFn run, PyObject *target, PyObject *argument)
{
    PfPost *call = PyMem_RawMalloc(sizeof(*call));
    if (call == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *call = (PfPost){
        .run = run,
        .target = Py_XNewRef(target),
        .argument = Py_XNewRef(argument),
    };
    return call;
}

void
pf_post_embed(PfPost *call, PfPostFn run, PyObject *target)
{
    *call = (PfPost){
        .run = run,
        .target = Py_NewRef(target),
        .embedded = true,
    };
}

void
pf_post_drop(PfPost *call)
{
    PyObject *target = call->target;
    PyObject *argument = call->argument;
    if (!call->embedded) {
        PyMem_RawFree(call);
    }
    Py_XDECREF(argument);
    Py_XDECREF(target);
}

/* The scheduler's thread may read the call, and free it, as soon as it is
 * posted. */
bool
pf_post_send(SchedulerObject *s, PfPost *call)
{
    call->message.ops = &call_ops;
    Py_INCREF(s);
    if (pf_scheduler_post(&s->core, &call->message)) {
        return true;
    }
    Py_DECREF(s); /* not the last reference */
    return false;
}

int
pf_post_call(SchedulerObject *s, PfPostFn run, PyObject *target,
             PyObject *argument)
{
    PfPost *call = pf_post_new(run, target, argument);
    if (call == NULL) {
        return -1;
    }
    if (!pf_post_send(s, call)) {
        pf_post_drop(call);
        return 0;
    }
    return 1;
}

int
pf_post_fiber(SchedulerObject *s, FiberObject *fiber, PfPostFn arrived,
              PyObject *argument)
{
    PfPost *call = pf_post_new(arrived, (PyObject *)fiber, argument);
    if (call == NULL) {
        return -1;
    }
    if (pf_fiber_assign(s, fiber) < 0) {
        pf_post_drop(call);
        return -1;
    }
    pf_fetch_add(&s->coming, 1); /* before the fiber can arrive */
    if (pf_post_send(s, call)) {
        return 1;
    }
    pf_fetch_sub(&s->coming, 1);
    pf_fiber_unassign(fiber);
    pf_post_drop(call);
    return 0;
}

static bool
is_alive(const PfThread *thread)
{
    PfThread *t = pf_threads;
    while (t != NULL && t != thread) {
        t = t->next;
    }
    return t != NULL;
}

/* The caller holds pf_threads_lock, because the thread's record may be freed
 * otherwise. */
static void
send_to_thread(PfThread *t, PfPost *call)
{
    call->message.ops = &call_ops;
    (void)pf_inbox_push(&t->inbox, &call->message);
    pf_thread_pend(t, PF_PENDING_POSTS);
}

bool
pf_post_send_thread(PfThread *thread, PfPost *call)
{
    pf_mutex_lock(&pf_threads_lock);
    bool alive = is_alive(thread);
    if (alive) {
        send_to_thread(thread, call);
    }
    pf_mutex_unlock(&pf_threads_lock);
    return alive;
}

/* Posts under pf_threads_lock, under which runs of that thread begin and end:
 * a run either gets the message, or begins later and finds the call in the
 * thread's inbox. */
int
pf_post_call_thread(PfThread *thread, PfPostFn run, PyObject *target,
                    PyObject *argument)
{
    PfPost *call = pf_post_new(run, target, argument);
    if (call == NULL) {
        return -1;
    }
    pf_mutex_lock(&pf_threads_lock);
    bool alive = is_alive(thread);
    SchedulerObject *s = alive ? thread->scheduler : NULL;
    if (alive && (s == NULL || !pf_post_send(s, call))) {
        send_to_thread(thread, call);
    }
    pf_mutex_unlock(&pf_threads_lock);
    if (!alive) {
        pf_post_drop(call);
    }
    return alive;
}

void
pf_post_close(PfThread *t)
{
    pf_message *m = pf_inbox_close(&t->inbox);
    while (m != NULL) {
        PfPost *call = (PfPost *)m;
        m = m->next;
        pf_post_drop(call);
    }
}

void
pf_post_run(PfThread *t)
{
    pf_message *m = pf_inbox_take(&t->inbox);
    while (m != NULL) {
        PfPost *call = (PfPost *)m;
        m = m->next;
        if (!call->unwinds) {
            pf_thread_no_switch_begin(t,
                                      "while calls of other threads arrive");
        }
        call->run(NULL, call->target, call->argument);
        bool unwinds = call->unwinds;
        pf_post_drop(call);
        if (!unwinds) {
            pf_thread_no_switch_end(t);
        }
    }
}

/* The messages that are found stay there during this call: only this thread
 * takes messages, and appending to a list runs no code. */
int
pf_post_list(SchedulerObject *s, PfPostFn run, PyObject *list)
{
    pf_message *m = pf_load(&s->core.inbox.head);
    for (; m != NULL && m != PF_INBOX_CLOSED; m = m->next) {
        PfPost *call = (PfPost *)m;
        if (m->ops == &call_ops && call->run == run &&
            PyList_Append(list, call->target) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Other threads may push to the inbox meanwhile, but none takes messages, as
 * that needs the GIL. Calls that have been taken and not run yet are not
 * found; the collector then sees what they hold as referenced from outside,
 * which is right. */
int
pf_post_traverse(SchedulerObject *s, visitproc visit, void *arg)
{
    pf_message *m = pf_load(&s->core.inbox.head);
    for (; m != NULL && m != PF_INBOX_CLOSED; m = m->next) {
        if (m->ops == &call_ops) {
            PfPost *call = (PfPost *)m;
            Py_VISIT(s);
            Py_VISIT(call->target);
            Py_VISIT(call->argument);
        }
    }
    return 0;
}
