/* Channels, for grains, which send and receive without a stack (grain/). */
#ifndef PF_CHANNEL_H
#define PF_CHANNEL_H

#include "python/queue/ring.h"
#include "python/task/fiber.h"
#include "python/waitq/waitq.h"

/* Invariants: `receivers` is empty while there are values or senders;
 * `senders` is empty while there are fewer values than `capacity`, or
 * receivers. */
typedef struct ChannelObject {
    PyObject_HEAD
    PyObject *weakrefs;
    PfRing values; /* more than `capacity` only after pf_channel_give_back() */
    size_t capacity;
    PfWaitq senders, receivers;
    PF_SHARED(uint8_t) closed;
    PF_OBJECT_MUTEX
} ChannelObject;

extern PyTypeObject *pf_channel_type;

/* Send, or receive, without waiting.  The caller holds the mutex.  Return 1:
 * done; 0: the caller would have to wait; or PF_REFUSED or PF_NO_MEMORY (see
 * sync/select.h), without an exception: the caller unlocks the mutex and then
 * calls pf_channel_raise(). */
int pf_channel_try_send(ChannelObject *self, PyObject *value);
int pf_channel_try_receive(ChannelObject *self, PyObject **value);
/* Raise the exception for such a negative `rc`.  Returns -1. */
int pf_channel_raise(ChannelObject *self, int rc);
void pf_channel_raise_closed(ChannelObject *self);
/* Undo a receive() whose value (stolen) cannot be used.  Keeps the exception
 * that is set. */
void pf_channel_give_back(ChannelObject *self, PyObject *value);

/* Returns true if receiving() or sending() of a channel made the object. */
bool pf_channel_is_case(PyObject *object);
/* Returns the channel of such a case, borrowed.  *value is set to the value
 * that the case sends, borrowed, or to NULL if the case receives. */
ChannelObject *pf_channel_of_case(PyObject *op, PyObject **value);

int pf_channel_init(PyObject *module);

#endif
