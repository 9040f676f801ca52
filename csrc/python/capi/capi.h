/* capi/: the C API, a table of functions that C extensions find through a
 * capsule.  include/pyfiber.h declares it. */
#ifndef PF_CAPI_H
#define PF_CAPI_H

#include "python/core/pyinclude.h"

int pf_capi_init(PyObject *module);

#endif
