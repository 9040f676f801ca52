/* Calls to a scheduler's own thread; see post.h. */
#include "python/task/post.h"

/* The objects may hold the last reference to anything, so they are dropped
 * where nothing may switch, and the call's memory is left before. */
static void
arrived(pf_message *message, pf_scheduler *core)
{
    PfOwnerCall *call = (PfOwnerCall *)message;
    SchedulerObject *s = SCHEDULER_OF(core);
    PfThread *t = (PfThread *)core->thread;
    pf_no_switch_begin(t, "inside the scheduler");
    call->run(s, call->target, call->argument);
    pf_owner_call_drop(call);
    pf_no_switch_end(t);
    Py_DECREF(s);
}

static const pf_message_ops call_ops = {arrived};

PfOwnerCall *
pf_owner_call_new(PfOwnerFn run, PyObject *target, PyObject *argument)
{
    PfOwnerCall *call = PyMem_RawMalloc(sizeof(*call));
    if (call == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *call = (PfOwnerCall){
        .run = run,
        .target = Py_XNewRef(target),
        .argument = Py_XNewRef(argument),
    };
    return call;
}

void
pf_owner_call_embed(PfOwnerCall *call, PfOwnerFn run, PyObject *target)
{
    *call = (PfOwnerCall){
        .run = run,
        .target = Py_NewRef(target),
        .embedded = true,
    };
}

void
pf_owner_call_drop(PfOwnerCall *call)
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
pf_owner_call_post(SchedulerObject *s, PfOwnerCall *call)
{
    call->message.ops = &call_ops;
    Py_INCREF(s);
    if (pf_post(&s->core, &call->message)) {
        return true;
    }
    Py_DECREF(s); /* the caller has another one */
    return false;
}

int
pf_call_owner(SchedulerObject *s, PfOwnerFn run, PyObject *target,
              PyObject *argument)
{
    PfOwnerCall *call = pf_owner_call_new(run, target, argument);
    if (call == NULL) {
        return -1;
    }
    if (!pf_owner_call_post(s, call)) {
        pf_owner_call_drop(call);
        return 0;
    }
    return 1;
}

int
pf_post_fiber(SchedulerObject *s, FiberObject *fiber, PfOwnerFn arrived,
              PyObject *argument)
{
    PfOwnerCall *call =
        pf_owner_call_new(arrived, (PyObject *)fiber, argument);
    if (call == NULL) {
        return -1;
    }
    if (pf_fiber_assign(s, fiber) < 0) {
        pf_owner_call_drop(call);
        return -1;
    }
    pf_fetch_add(&s->coming, 1); /* before it can arrive */
    if (pf_owner_call_post(s, call)) {
        return 1;
    }
    pf_fetch_sub(&s->coming, 1);
    pf_fiber_unassign(fiber);
    pf_owner_call_drop(call);
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

static void
add_last(PfThread *t, PfOwnerCall *call)
{
    PfOwnerCall **link = &t->calls;
    while (*link != NULL) {
        link = (PfOwnerCall **)(void *)&(*link)->message.next;
    }
    call->message.next = NULL;
    *link = call;
    pf_thread_pend(t, PF_PENDING_CALLS);
}

/* A run begins and ends there under the lock, so that it is either posted to,
 * or begins later and finds the call. */
int
pf_call_thread(PfThread *thread, PfOwnerFn run, PyObject *target,
               PyObject *argument)
{
    PfOwnerCall *call = pf_owner_call_new(run, target, argument);
    if (call == NULL) {
        return -1;
    }
    pf_mutex_lock(&pf_threads_lock);
    bool alive = is_alive(thread);
    SchedulerObject *s = alive ? thread->scheduler : NULL;
    if (alive && (s == NULL || !pf_owner_call_post(s, call))) {
        add_last(thread, call);
    }
    pf_mutex_unlock(&pf_threads_lock);
    if (!alive) {
        pf_owner_call_drop(call);
    }
    return alive;
}

void
pf_drop_thread_calls(PfThread *t)
{
    PfOwnerCall *call;
    while ((call = t->calls) != NULL) {
        t->calls = (PfOwnerCall *)(void *)call->message.next;
        pf_owner_call_drop(call);
    }
}

void
pf_run_thread_calls(PfThread *t)
{
    pf_thread_unpend(t, PF_PENDING_CALLS);
    pf_mutex_lock(&pf_threads_lock);
    PfOwnerCall *call = t->calls;
    t->calls = NULL;
    pf_mutex_unlock(&pf_threads_lock);
    pf_no_switch_begin(t, "while calls of other threads arrive");
    while (call != NULL) {
        PfOwnerCall *next = (PfOwnerCall *)(void *)call->message.next;
        call->run(NULL, call->target, call->argument);
        pf_owner_call_drop(call);
        call = next;
    }
    pf_no_switch_end(t);
}

/* Only this thread takes messages, and to append to a list runs no code: those
 * that are there stay meanwhile. */
int
pf_owner_calls_list(SchedulerObject *s, PfOwnerFn run, PyObject *list)
{
    pf_message *m = pf_load(&s->core.inbox.head);
    for (; m != NULL && m != PF_INBOX_CLOSED; m = m->next) {
        PfOwnerCall *call = (PfOwnerCall *)m;
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
pf_owner_calls_traverse(SchedulerObject *s, visitproc visit, void *arg)
{
    pf_message *m = pf_load(&s->core.inbox.head);
    for (; m != NULL && m != PF_INBOX_CLOSED; m = m->next) {
        if (m->ops == &call_ops) {
            PfOwnerCall *call = (PfOwnerCall *)m;
            Py_VISIT(s);
            Py_VISIT(call->target);
            Py_VISIT(call->argument);
        }
    }
    return 0;
}
