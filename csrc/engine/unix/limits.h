/* Why the system has refused memory. */
#ifndef PF_LIMITS_H
#define PF_LIMITS_H

#include "engine/stack/stack.h"

/* mmap reports ENOMEM for several reasons: which one was it, for `wanted`
 * bytes in a process with so many guards that split a mapping? */
pf_limit pf_diagnose(size_t wanted, size_t split_guards);

#endif
