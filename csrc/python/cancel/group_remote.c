/* spawn() on a group that was entered on another thread of the run.
 * run/team.c moves fibers to other threads, and these may use the group they
 * are in.
 *
 * The child is made on the calling thread, so spawn() can return it at once.
 * From then on it belongs to the group's scheduler, which counts it as
 * `coming`; it joins the group when it arrives.  The fiber that calls spawn()
 * usually is in the group itself.  Then the message that this fiber has ended
 * arrives later than the child, so the group is not left before the child is
 * in it.
 */
#include "python/cancel/scope.h"

#include "python/core/parts.h"
#include "python/core/state.h"
#include "python/switch/switch.h"
#include "python/task/fiber.h"
#include "python/task/migrate.h"
#include "python/task/post.h"

SchedulerObject *
pf_group_is_remote(PfThread *t, GroupObject *group)
{
    if (group->scope.scheduler == t->scheduler) {
        return NULL;
    }
    SchedulerObject *s = pf_scope_is_remote(&group->scope);
    if (s != NULL && !pf_parts_hooks.migrate->together(t->scheduler, s)) {
        Py_CLEAR(s);
    }
    return s;
}

static void
join_group(SchedulerObject *s, GroupObject *group, FiberObject *child)
{
    pf_scope_adopt(&group->scope, PF_TASK(child));
    child->grouped = true;
    group->alive++;
    pf_fiber_enroll(s, child);
    if (group->scope.source != NULL) {
        pf_scope_refresh_fiber(child);
    }
    pf_fiber_make_ready(s, child);
}

/* Ends a child that has arrived after the group was left: it fails with
 * FiberError. */
static void
end_without(SchedulerObject *s, GroupObject *group, FiberObject *child)
{
    pf_fiber_enroll(s, child);
    PyErr_Format(pf.fiber_error,
                 "%R was left before the fiber, which another thread spawned "
                 "there, had arrived",
                 group);
    pf_switch_end(s->thread, child, NULL);
}

static void
child_arrived(SchedulerObject *s, PyObject *fiber, PyObject *op)
{
    FiberObject *child = (FiberObject *)fiber;
    GroupObject *group = (GroupObject *)op;
    if (group->scope.scheduler == s) {
        join_group(s, group, child);
    } else {
        end_without(s, group, child);
    }
    pf_parts_hooks.migrate->came(s);
    pf_fetch_sub(&s->coming, 1);
}

static int
post_child(SchedulerObject *s, GroupObject *group, FiberObject *child)
{
    int posted = pf_post_fiber(s, child, child_arrived, (PyObject *)group);
    if (posted == 0) {
        PyErr_SetString(pf.fiber_error,
                        "the scheduler of the group is closed");
    }
    return posted > 0 ? 0 : -1;
}

FiberObject *
pf_group_remote_spawn(SchedulerObject *s, GroupObject *group,
                      FiberObject *child)
{
    if (post_child(s, group, child) < 0) {
        Py_CLEAR(child);
    }
    return child;
}
