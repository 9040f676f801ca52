/* A trace function of each fiber's own, as threading.settrace() gives one to
 * each thread.
 *
 * Tools that keep a stack of calls beside the interpreter's, coverage is one,
 * ask threading.settrace() for a trace function for each thread.  A fiber that
 * begins on a traced thread gets one as well, which is in the thread state
 * while the fiber runs.  Without threading.settrace() the thread has one trace
 * function for all of its fibers.
 */
#ifndef PF_SWITCH_TRACING_H
#define PF_SWITCH_TRACING_H

#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"

void pf_tracing_begin_slow(PfThread *t, FiberObject *self);
void pf_tracing_end_slow(PfThread *t, FiberObject *self);
/* A part of the switch: runs no code. */
void pf_tracing_switch(PyThreadState *ts, PfTrace *from, PfTrace *to);
/* Of a fiber that is not packed; `trace` may be NULL. */
int pf_tracing_traverse(const PfTrace *trace, visitproc visit, void *arg);
void pf_tracing_free_spares(PfThread *t);

/* The running fiber is about to make its first call.  No exception is set; one
 * that the tool raises is written out. */
static inline void
pf_tracing_begin(PfThread *t, FiberObject *self)
{
    if (PF_UNLIKELY(pystate_traced(t->tstate))) {
        pf_tracing_begin_slow(t, self);
    }
}

/* The running fiber has made its last call.  An exception may be set. */
static inline void
pf_tracing_end(PfThread *t, FiberObject *self)
{
    if (PF_UNLIKELY(self->saved->trace != NULL)) {
        pf_tracing_end_slow(t, self);
    }
}

#endif
