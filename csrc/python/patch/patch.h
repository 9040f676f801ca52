/* patch/: makes blocking calls of the standard library park the fiber that
 * calls.
 *
 *   gate.c     callables that take the place of others and choose between
 *              the original and its replacement at each call; attributes of
 *              the interpreter's own types
 *   standard.c one non-blocking attempt at an operation of a standard socket
 *   methods.c  methods of the interpreter's own types, changed in place
 *   lot.c      queues of fibers that wait for objects of the interpreter
 *   stay.c     waits where no fiber may park
 *   lock.c rlock.c simple_queue.c local.c event.c   the interpreter's classes
 *   table.h    records of objects that have no room for them
 *
 * Called by module.c.  pyfiber/_patch decides what gets a gate.
 */
#ifndef PF_PATCH_H
#define PF_PATCH_H

#include "python/core/pyinclude.h"

int pf_patch_init(PyObject *module);

/* pf_patch_init() calls these, which initialize one file each. */
int pf_gate_init(PyObject *module);
int pf_standard_init(PyObject *module);
int pf_patch_lock_init(PyObject *module);
int pf_patch_local_init(PyObject *module);
int pf_patch_event_init(PyObject *module);

#endif
