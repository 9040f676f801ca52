/* Python.h and the standard headers that all of the binding uses. Every file
 * of csrc/python includes this before anything else, as Python.h decides what
 * the system's headers define. */
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
