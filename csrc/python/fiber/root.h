/* A thread's own stack as a fiber, and the end of the others on it. */
#ifndef PF_FIBER_ROOT_H
#define PF_FIBER_ROOT_H

#include "python/core/parts.h"

extern const PfPart pf_root_part;
extern const PfPart pf_root_locals_part; /* of the root, which end last */

#endif
