/* Calls to a scheduler's own thread; see post.h. */
#include "python/task/post.h"

/* The objects may hold the last reference to anything, so they are dropped
 * where nothing may switch, and the call's memory is left before. */
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

/* Once it is posted it may be read, and freed, at once. */
bool
pf_post_send(SchedulerObject *s, PfPost *call)
{
    call->message.ops = &call_ops;
    Py_INCREF(s);
    if (pf_scheduler_post(&s->core, &call->message)) {
        return true;
    }
    Py_DECREF(s); /* the caller has another one */
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
    pf_fetch_add(&s->coming, 1); /* before it can arrive */
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

/* Behind pf_threads_lock, as the thread's record may go otherwise. */
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

/* A run begins and ends there under the lock, so that it is either posted to,
 * or begins later and finds the call. */
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

/* Only this thread takes messages, and to append to a list runs no code: those
 * that are there stay meanwhile. */
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

/* Others may push to the inbox meanwhile, but nobody takes: that needs the
 * GIL.  Calls that have been taken and not run yet are not found; so what they
 * hold is taken for held from outside, as it is. */
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
