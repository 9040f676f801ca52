/* Modules that are imported when they are first needed: see import.c. */
#ifndef PF_IMPORT_H
#define PF_IMPORT_H

#include "python/core/pyinclude.h"

/* New references. */
PyObject *pf_import(const char *module);
PyObject *pf_import_from(const char *module, const char *name);
int pf_import_init(PyObject *module);

#endif
