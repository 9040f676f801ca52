/* patch/: blocking calls of the standard library that park in a fiber.
 *
 *   gate.c     a callable in the place of another one, which asks where it is
 *              called; attributes of the interpreter's own types
 *   standard.c one try of an operation on a standard socket
 *   methods.c  methods of the interpreter's own types, changed in place
 *   lot.c      where fibers wait for objects that know nothing of them
 *   lock.c rlock.c simple_queue.c local.c   the interpreter's classes
 *   table.h    records of objects that have no room for them
 *
 * Called by module.c; pyfiber/_patch decides what gets a gate.
 */
#ifndef PF_PATCH_H
#define PF_PATCH_H

#include "python/core/pyinclude.h"

int pf_patch_init(PyObject *module);

/* One part of it each. */
int pf_gate_init(PyObject *module);
int pf_standard_init(PyObject *module);
int pf_patch_lock_init(PyObject *module);
int pf_patch_local_init(PyObject *module);

#endif
