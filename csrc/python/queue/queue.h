/* Queue and LifoQueue, for the code that serves their subclasses. */
#ifndef PF_QUEUE_H
#define PF_QUEUE_H

#include "python/queue/ring.h"
#include "python/task/fiber.h"
#include "python/waitq/waitq.h"

/* No get() waits while there are items, no put() while there is a place. */
typedef struct QueueObject {
    PyObject_HEAD
    PyObject *weakrefs;
    PfRing items;
    Py_ssize_t maxsize;    /* <= 0: no limit */
    Py_ssize_t unfinished; /* put, and not yet task_done() */
    PfWaitq getters, putters, joiners;
    PyObject *hooked;  /* serves a subclass that overrides _put and the like */
    Py_ssize_t inside; /* calls of its methods in progress */
    bool lifo;
    PF_SHARED(uint8_t) shut_down;
    PF_OBJECT_MUTEX
} QueueObject;

/* n items will never be done; with the mutex. */
void pf_queue_forget_tasks(QueueObject *self, Py_ssize_t n);

/* --- queue_hooks.c: methods --- */
PyObject *pf_queue_hook_init(PyObject *op, PyObject *maxsize);
PyObject *pf_queue_hook_qsize(PyObject *op, PyObject *ignored);
PyObject *pf_queue_hook_put(PyObject *op, PyObject *item);
PyObject *pf_queue_hook_get(PyObject *op, PyObject *ignored);
PyObject *pf_queue_hook_tasks(PyObject *op, PyObject *n);
PyObject *pf_queue_hook_shut(PyObject *op, PyObject *ignored);

int pf_queue_init(PyObject *module);

#endif
