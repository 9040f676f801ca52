/* Event, for who waits for one among other things. */
#ifndef PF_EVENT_H
#define PF_EVENT_H

#include "python/waitq/waitq.h"

bool pf_event_is(PyObject *object);
PfWaitq *pf_event_queue(PyObject *event); /* with the mutex; NULL: it is set */
PfMutex *pf_event_mutex(PyObject *event);

#endif
