/* Modules that are imported when they are first needed: see import.c. */
#ifndef PF_IMPORT_H
#define PF_IMPORT_H

#include "python/core/pyinclude.h"

/* Import a module, or one of its attributes; no switch can happen meanwhile. A
 * new reference, or NULL with an exception. */
PyObject *pf_import(const char *module);
PyObject *pf_import_from(const char *module, const char *name);
int pf_import_init(PyObject *module);

#endif
