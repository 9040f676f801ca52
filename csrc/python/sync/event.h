/* Event, for grains, which wait in its queue themselves (grain/). */
#ifndef PF_EVENT_H
#define PF_EVENT_H

#include "python/waitq/waitq.h"

bool pf_event_is(PyObject *object);
/* Returns the queue of waiters, NULL if the event is set.  The caller holds
 * pf_event_mutex(). */
PfWaitq *pf_event_queue(PyObject *event);
PfMutex *pf_event_mutex(PyObject *event);

#endif
