/* spawn() on a group that was entered on another thread of the run: see
 * run/team.c, which gives away fibers that use the group they are in.
 *
 * The child is made here, and so its handle is there at once; it belongs to the
 * group's scheduler from then on, which counts it as `coming`, and to the group
 * when it arrives.  Who spawns it is in the group, as a rule: then the message
 * that this one has ended comes later, and the group is not left before.
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

/* Who has the handle gets the error. */
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
