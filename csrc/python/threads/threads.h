/* threads/: fibers call functions in threads, and threads call into runs.
 *
 *   worker.c    the threads that run functions for fibers
 *   job.c       one such call
 *   limiter.c   how many functions run at a time; to_thread()
 *   portal.c    how a thread waits for what it has called in a run
 *   unbroken.c  steps of the façade that must not be interrupted half-way
 */
#ifndef PF_THREADS_H
#define PF_THREADS_H

#include "python/core/parts.h"
#include "python/task/scheduler.h"

int pf_worker_init(PyObject *module);
/* This thread never wakes a fiber, so it does not hide a deadlock. False: too
 * many live threads have declared that. */
bool pf_worker_only_watches(void);
int pf_portal_init(PyObject *module);
int pf_threads_unbroken_init(PyObject *module);

extern const PfPart pf_worker_part;

#endif
