/* A thread's root, which is the fiber of the thread's own stack.  When the
 * thread ends, its suspended fibers are unwound. */
#ifndef PF_FIBER_ROOT_H
#define PF_FIBER_ROOT_H

#include "python/core/parts.h"

extern const PfPart pf_root_part;
extern const PfPart pf_root_locals_part; /* clears the root's locals */

#endif
