/* Queue and LifoQueue, for queue_hooks.c. */
#ifndef PF_QUEUE_H
#define PF_QUEUE_H

#include "python/queue/ring.h"
#include "python/task/fiber.h"
#include "python/waitq/waitq.h"

/* Invariants: `getters` is empty while there are items, and `putters` while
 * there is a free place. */
typedef struct QueueObject {
    PyObject_HEAD
    PyObject *weakrefs;
    PfRing items;
    Py_ssize_t maxsize;    /* <= 0: no limit */
    Py_ssize_t unfinished; /* items put for which task_done() was not called */
    PfWaitq getters, putters, joiners;
    PyObject *hooked;  /* of a subclass that overrides _put, _get, _qsize or
                          _init: the HookedQueue that does the work */
    Py_ssize_t inside; /* calls of methods of `hooked` in progress */
    bool lifo;
    PF_SHARED(uint8_t) shut_down;
    PF_OBJECT_MUTEX
} QueueObject;

/* Count n unfinished items as done, because nobody will work on them.  The
 * caller holds the mutex. */
void pf_queue_forget_tasks(QueueObject *self, Py_ssize_t n);

/* --- queue_hooks.c: methods of Queue --- */
PyObject *pf_queue_hook_init(PyObject *op, PyObject *maxsize);
PyObject *pf_queue_hook_qsize(PyObject *op, PyObject *ignored);
PyObject *pf_queue_hook_put(PyObject *op, PyObject *item);
PyObject *pf_queue_hook_get(PyObject *op, PyObject *ignored);
PyObject *pf_queue_hook_tasks(PyObject *op, PyObject *n);
PyObject *pf_queue_hook_shut(PyObject *op, PyObject *ignored);

int pf_queue_init(PyObject *module);

#endif
