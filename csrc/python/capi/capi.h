/* capi/: the table of functions for C programs. */
#ifndef PF_CAPI_H
#define PF_CAPI_H

#include "python/core/pyinclude.h"

int pf_capi_init(PyObject *module);

#endif
