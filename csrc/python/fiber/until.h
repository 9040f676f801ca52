/* Awaiting a fiber or a grain. */
#ifndef PF_UNTIL_H
#define PF_UNTIL_H

#include "python/core/pyinclude.h"

PyObject *pf_await_self(PyObject *op); /* am_await of Fiber and Grain */

#endif
