/* Looking at what another thread's fiber does, for reports.
 *
 * With a GIL its thread stands still while one looks.  Without one it would go
 * on: so all other threads are stopped for a moment, as for the collector, at
 * places where every object may be looked at.  Whoever looks takes strong
 * references to what it needs, and lets the others go before it runs any code
 * or drops a reference.
 *
 * Frames of a fiber that runs on another thread, or may at any time, are not
 * given away: pf_calls_of has what a report needs of them.
 */
#ifndef PF_CORE_WORLD_H
#define PF_CORE_WORLD_H

#include "python/core/thread.h"
#include "python/core/tstate.h"

/* May what belongs to that thread change while this one looks?  One that has
 * not begun belongs to nobody, but may begin at any time. */
static inline bool
pf_world_moves(const PfThread *owner)
{
    return PF_FREE_THREADED && (owner == NULL || owner != pf_thread_current);
}

/* Not within each other, nor with a mutex held.  True: it has stopped them. */
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

/* An object in a list that does not count its references, while the others
 * stand still: one of them may just be freeing it. */
static inline bool
pf_world_has(void *op)
{
    return !PF_FREE_THREADED || Py_REFCNT((PyObject *)op) != 0;
}

/* A reference to what may be dying on another thread, which then leaves it to
 * this one: it is suspended here, and so its memory stays.  False: it is not
 * to be had. */
bool pf_world_hold(PyObject *op);

/* What a field refers to, or None: a new reference. */
PyObject *pf_world_ref(const PfThread *owner, PyObject *const *field);

#endif
