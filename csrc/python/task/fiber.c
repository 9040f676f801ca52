/* Makes and frees the objects of fibers, and hands fibers to schedulers: see
 * fiber.h. */
#include "python/task/fiber.h"

#include "python/core/arguments.h"
#include "python/core/parts.h"
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/task/cancelling.h"
#include "python/task/migrate.h"
#include "python/task/scheduler.h"

PF_ATOMIC(size_t) pf_fiber_default_stack_size; /* shared, one word */

/* Takes the memory of a dead fiber, if the thread keeps one (linked by
 * `next`). */
FiberObject *
pf_fiber_alloc(PfThread *t)
{
    PyTypeObject *type = pf_task_fiber_type;
    FiberObject *self = t == NULL ? NULL : t->spare[PF_SPARE_FIBERS].first;
    if (self == NULL) {
        self = (FiberObject *)type->tp_alloc(type, 0);
        if (self != NULL) {
            pf_task_set_kind(&self->core, pf_parts_hooks.plain_fiber);
        }
        return self;
    }
    t->spare[PF_SPARE_FIBERS].first = self->next;
    t->spare[PF_SPARE_FIBERS].count--;
    pf_memory_zero((char *)self + sizeof(PyObject),
                   sizeof *self - sizeof(PyObject));
    pf_task_set_kind(&self->core, pf_parts_hooks.plain_fiber);
    pf_fiber_revive((PyObject *)self);
    return self;
}

/* Keeps the memory of a cleared fiber for reuse, unless a subclass made it or
 * the fiber was finalized: an object is finalized only once, and its memory
 * remembers that. */
void
pf_fiber_free(FiberObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PfSpare *spare = pf_thread_place_to_spare(PF_SPARE_FIBERS);
    if (type == pf_task_fiber_type && spare != NULL && !self->finalized) {
        self->next = spare->first;
        spare->first = self;
        spare->count++;
        return;
    }
    type->tp_free(self);
    Py_DECREF(type);
}

void
pf_fibers_free_spare(PfThread *t)
{
    FiberObject *self = pf_thread_empty_spare(t, PF_SPARE_FIBERS);
    while (self != NULL) {
        FiberObject *next = self->next;
        PyTypeObject *type = Py_TYPE(self);
        type->tp_free(self);
        Py_DECREF(type);
        self = next;
    }
}

FiberObject *
pf_fiber_make(PyTypeObject *type)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    FiberObject *self = type == pf_task_fiber_type
                            ? pf_fiber_alloc(t)
                            : (FiberObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    pf_task_set_kind(&self->core, pf_parts_hooks.plain_fiber);
    if (*pystate_context(t->tstate) != NULL) {
        self->context = PyContext_CopyCurrent();
        if (self->context == NULL) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return self;
}

/* A fiber that will run target(*args, **kwargs), given the arguments of a
 * vectorcall. */
FiberObject *
pf_fiber_new(PyObject *target, PyObject *const *args, Py_ssize_t nargs,
             PyObject *kwnames)
{
    FiberObject *self = pf_fiber_make(pf_task_fiber_type);
    if (self == NULL) {
        return NULL;
    }
    pf_fiber_set_target(self, target);
    if ((nargs > 0 || kwnames != NULL) &&
        pf_arguments_pack(args, nargs, kwnames, &self->args, &self->kwargs) <
            0) {
        Py_CLEAR(self);
    }
    return self;
}

int
pf_fiber_assign(SchedulerObject *s, FiberObject *fiber)
{
    if (fiber->core.state != PF_NEW || fiber->scheduled ||
        !pf_fiber_claim(fiber, s->thread)) {
        PyErr_SetString(pf.fiber_error,
                        "the fiber has been started already: make a new one");
        return -1;
    }
    fiber->scheduled = true;
    fiber->core.scheduler = &s->core;
    Py_INCREF(s);
    fiber->thread = s->thread;
    return 0;
}

void
pf_fiber_unassign(FiberObject *fiber)
{
    SchedulerObject *s = SCHEDULER_OF(fiber->core.scheduler);
    fiber->scheduled = false;
    fiber->core.scheduler = NULL;
    pf_unclaim_pointer(&fiber->thread);
    Py_DECREF(s); /* not the last reference */
}

/* Hides the fiber from the collector until it is done. A run holds its fibers
 * so long, and nobody holds the run, so none of them can be garbage, nor can
 * what they refer to. The collector need not look at them, which for a million
 * waiting fibers is most of its work. (Where it must find uncounted references
 * in frames, it has to look.) */
static inline void
keep(SchedulerObject *s, FiberObject *fiber)
{
    if (!PF_TRAVERSES_ALL && s->untracks) {
        PyObject_GC_UnTrack((PyObject *)fiber);
        fiber->untracked = true;
        if (fiber->args != NULL && Py_REFCNT(fiber->args) == 1) {
            PyObject_GC_UnTrack(fiber->args); /* no other code has the tuple */
        }
    }
}

void
pf_fiber_show_args(FiberObject *fiber)
{
    PyObject *args = fiber->args;
    if (fiber->untracked && args != NULL && !PyObject_GC_IsTracked(args)) {
        PyObject_GC_Track(args);
    }
}

void
pf_fiber_track(FiberObject *fiber)
{
    if (fiber->untracked) {
        pf_fiber_show_args(fiber);
        fiber->untracked = false;
        PyObject_GC_Track((PyObject *)fiber);
    }
}

void
pf_fiber_enroll(SchedulerObject *s, FiberObject *fiber)
{
    assert(s->thread == pf_thread_current);
    if (PF_UNLIKELY(s->ending) && pf_parts_hooks.cancelling->is_top(fiber)) {
        fiber->under_cancel = true;
        fiber->cancel_called = true;
    }
    pf_fiber_link(s->thread, fiber);
    s->alive++;
    if (!fiber->daemon) {
        s->foreground++;
    }
    Py_INCREF(fiber); /* until the fiber is done */
    keep(s, fiber);
}

int
pf_fiber_enlist(SchedulerObject *s, FiberObject *fiber)
{
    if (pf_fiber_assign(s, fiber) < 0) {
        return -1;
    }
    pf_fiber_enroll(s, fiber);
    return 0;
}

void
pf_fiber_make_ready(SchedulerObject *s, FiberObject *fiber)
{
    pf_scheduler_make_ready_fresh(&s->core, &fiber->fiber);
    if (PF_UNLIKELY(s->team != NULL)) {
        pf_parts_hooks.migrate->spawned(s);
    }
    pf_scheduler_notify_host(s);
}

int
pf_fiber_start(SchedulerObject *s, FiberObject *fiber)
{
    if (pf_fiber_enlist(s, fiber) < 0) {
        return -1;
    }
    pf_fiber_make_ready(s, fiber);
    Py_CLEAR(fiber->parent);
    return 0;
}

FiberObject *
pf_fiber_expect(PyObject *object)
{
    if (object != NULL && PyObject_TypeCheck(object, pf_task_fiber_type)) {
        return (FiberObject *)object;
    }
    PyErr_Format(PyExc_TypeError, "expected a Fiber, not '%.200s'",
                 object == NULL ? "NULL" : Py_TYPE(object)->tp_name);
    return NULL;
}
