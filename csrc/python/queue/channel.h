/* Channels, for select(). */
#ifndef PF_CHANNEL_H
#define PF_CHANNEL_H

#include "python/queue/ring.h"
#include "python/task/fiber.h"
#include "python/waitq/waitq.h"

/* No receiver waits while there are values or senders; no sender waits while
 * there is a place or a receiver. */
typedef struct ChannelObject {
    PyObject_HEAD
    PyObject *weakrefs;
    PfRing values; /* above the capacity only after a give-back */
    size_t capacity;
    PfWaitq senders, receivers;
    PF_SHARED(uint8_t) closed;
    PF_OBJECT_MUTEX
} ChannelObject;

extern PyTypeObject *pf_channel_type;

/* Without waiting, with the mutex: 1: done; 0: would have to wait; or the reason
 * why not (select.h), without an exception: that is raised afterwards. */
int pf_channel_try_send(ChannelObject *self, PyObject *value);
int pf_channel_try_receive(ChannelObject *self, PyObject **value);
int pf_channel_raise(ChannelObject *self, int rc); /* returns -1 */
/* A value (stolen) was received and cannot be used: undo that.  Keeps the
 * exception that is set. */
void pf_channel_give_back(ChannelObject *self, PyObject *value);
void pf_channel_raise_closed(ChannelObject *self);

/* Is it what receiving() or sending() makes?  Its channel, and what it sends
 * (NULL: it receives), borrowed. */
bool pf_channel_is_case(PyObject *object);
ChannelObject *pf_channel_of_case(PyObject *op, PyObject **value);

int pf_channel_init(PyObject *module);

#endif
