/* io/: waits of fibers for events outside of the process.
 *
 *   readiness.c  a descriptor that is readable or writable
 *
 * Called by module.c.
 */
#ifndef PF_IO_H
#define PF_IO_H

#include "python/core/pyinclude.h"

int pf_readiness_init(PyObject *module);

#endif
