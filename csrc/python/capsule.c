/* The C API: one table, found through a capsule. */
#include "python/binding.h"

int
pf_capsule_init(PyObject *module)
{
    (void)module;
    return 0;
}
