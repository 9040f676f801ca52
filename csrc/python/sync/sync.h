/* sync/: what fibers use to work together (for handing things over, see queue/).
 *
 *   lock.c semaphore.c event.c condition.c latch.c  waiting for one another
 *   select.c case.c                  waiting for the first of several
 *   local.c                          a value for each fiber
 *   generator.c                      functions that emit values, as iterators
 *   hooked.c                         what subclasses may do their way
 *
 * Called by module.c; its types are made of waitq/waitq.h.
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
