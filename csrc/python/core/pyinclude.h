/* Python.h, and nothing else: included by every file of this directory. */
#ifndef PF_PYINCLUDE_H
#define PF_PYINCLUDE_H

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#endif
