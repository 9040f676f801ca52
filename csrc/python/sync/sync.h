/* sync/: synchronization between fibers.  (Queues and channels are in queue/.)
 *
 *   lock.c semaphore.c event.c condition.c latch.c   the primitives
 *   select.c case.c    select(): wait for the first of several operations
 *   local.c            local: attributes that each fiber has for itself
 *   generator.c        generators whose function emits at any call depth
 *   hooked.c           put() and get() of subclasses that override Queue._put
 *
 * module.c calls the functions below at import.  The types wait by means of
 * waitq/waitq.h.
 */
#ifndef PF_SYNC_H
#define PF_SYNC_H

#include "python/task/fiber.h"

extern PyType_Spec pf_latch_spec;

int pf_hooked_init(PyObject *module);

int pf_lock_init(PyObject *module);
int pf_semaphore_init(PyObject *module);
int pf_event_init(PyObject *module);
int pf_condition_init(PyObject *module);
int pf_select_init(PyObject *module);
int pf_local_init(PyObject *module);
int pf_generator_init(PyObject *module);

#endif
