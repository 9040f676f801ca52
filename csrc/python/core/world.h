/* Stops all other threads for a moment, to look at another thread's fiber for
 * a report.
 *
 * With a GIL the other thread stands still anyway. Without one it would go on;
 * so all other threads are stopped, as for the collector, at places where
 * every object may be looked at. Code that looks takes strong references to
 * what it needs, and restarts the others before it runs any code or drops a
 * reference.
 *
 * Reports get no frames of a fiber that runs on another thread, or may run
 * there at any time; pf_calls_of returns what they need of such frames.
 */
#ifndef PF_CORE_WORLD_H
#define PF_CORE_WORLD_H

#include "python/core/thread.h"
#include "python/core/tstate.h"

/* May objects that belong to thread `owner` change while this thread looks at
 * them? A fiber that has not begun belongs to no thread (NULL), and may begin
 * at any time. */
static inline bool
pf_world_moves(const PfThread *owner)
{
    return PF_FREE_THREADED && (owner == NULL || owner != pf_thread_current);
}

/* Stops all other threads if objects of `owner` could change. Returns whether
 * it has; pass that to pf_world_start. The caller holds no mutex, and has not
 * stopped them already. */
static inline bool
pf_world_stop(const PfThread *owner)
{
    bool stops = pf_world_moves(owner);
    if (stops) {
        pystate_stop_others();
    }
    return stops;
}
static inline void
pf_world_start(bool stopped)
{
    if (stopped) {
        pystate_let_others_go();
    }
}

/* Is the object alive? For an object found in a list that does not count its
 * references, while the other threads are stopped: one of them may be freeing
 * the object. */
static inline bool
pf_world_has(void *op)
{
    return !PF_FREE_THREADED || Py_REFCNT((PyObject *)op) != 0;
}

/* Takes a reference to a fiber or greenlet that is suspended on this thread
 * and may be dying on another one. The other thread leaves such an object to
 * this one, so its memory stays. False: the object is gone. */
bool pf_world_hold(PyObject *op);

/* Returns a new reference to what the field of an object of `owner` refers to,
 * or to None. */
PyObject *pf_world_ref(const PfThread *owner, PyObject *const *field);

#endif
