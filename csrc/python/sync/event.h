/* Event, for who waits for one among other things. */
#ifndef PF_EVENT_H
#define PF_EVENT_H

#include "python/fiber/waitq.h"

bool pf_is_event(PyObject *object);
PfWaitq *pf_event_queue(PyObject *event); /* NULL: it is set */

#endif
