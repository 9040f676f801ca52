/* fiber/: the Fiber type.  The rooms below implement it:
 *
 *   task/    what a task is: its object, its life, its outcome
 *   waitq/   queues of waiters
 *   switch/  leaving one fiber for another, a fiber's first call and its end
 *   pack/    moving the stacks of parked fibers
 *   wait/    park, sleep, yield, join, waiting in line
 *   look/    attributes, frames, reports
 */
#ifndef PF_FIBER_FIBER_TYPE_H
#define PF_FIBER_FIBER_TYPE_H

#include "python/switch/switch.h"
#include "python/task/fiber.h"
#include "python/task/name.h"
#include "python/wait/wait.h"

extern PyType_Spec pf_fiber_spec;
void pf_fiber_type_ready(PyTypeObject *type);
int pf_fiber_init(PyObject *op, PyObject *args, PyObject *kwds);
/* Fiber(own_stack=True): no other fiber will use this fiber's stack.  Returns
 * 0, or -1 with FiberError if the fiber has been started. */
int pf_fiber_own_stack(FiberObject *self);

extern const PfTaskOps pf_fiber_ops; /* of a plain fiber */
/* The engine's operations of every kind of fiber. */
#define PF_FIBER_CORE_OPS(run_, reap_)                                        \
    {                                                                         \
        .message = {pf_task_arrived},                                         \
        .first = pf_switch_first,                                             \
        .run = (run_),                                                        \
        .reap = (reap_),                                                      \
        .posted = pf_wait_posted,                                             \
        .reads = offsetof(FiberObject, fiber.context.handle) -                \
                 offsetof(FiberObject, core),                                 \
        .releases =                                                           \
            offsetof(FiberObject, args) - offsetof(FiberObject, core),        \
    }
/* The operations of every kind of fiber that methods of Fiber call. */
int pf_fiber_type_join(PfTaskObject *task, PfThread *t, PyObject *timeout,
                       int64_t deadline);
int pf_fiber_type_cancel(PfTaskObject *task, PyObject *reason);
#define PF_FIBER_OPS                                                          \
    .noun = "fiber", .nature = "a stack", .name_of = pf_name_of_task,         \
    .join = pf_fiber_type_join, .cancel = pf_fiber_type_cancel,               \
    .unpark = pf_wait_unpark, .permit_value = offsetof(FiberObject, value)

#endif
