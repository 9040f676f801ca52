/* The part of stacks that all systems share: names for error messages. */
#include "engine/stack/stack.h"

#include "engine/base/memory.h"

#if defined(PYFIBER_HARDTEST)
long pf_memory_fail;
#endif

const char *
pf_stack_guard_name(pf_guard_kind kind)
{
    switch (kind) {
    case PF_GUARD_NONE:
        return "none";
    case PF_GUARD_MPROTECT:
        return "mprotect";
    case PF_GUARD_MADVISE:
        return "madvise";
    case PF_GUARD_SYSTEM:
        return "system";
    }
    return "unknown";
}

/* The name completes the message "... was hit: <name>". */
const char *
pf_limit_name(pf_limit limit)
{
    switch (limit) {
    case PF_LIMIT_NONE:
        return "none";
    case PF_LIMIT_MAP_COUNT:
        return "the number of memory mappings (vm.max_map_count)";
    case PF_LIMIT_ADDRESS_SPACE:
        return "the address space (ulimit -v, RLIMIT_AS)";
    case PF_LIMIT_MEMORY:
        return "memory";
    }
    return "unknown";
}
