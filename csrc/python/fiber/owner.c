/* Calls to a scheduler's own thread; see owner.h. */
#include "python/fiber/owner.h"

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
