/* Allocation of the engine's memory, which a test can make fail, and a fast
 * memset to zero.
 *
 * A PYFIBER_HARDTEST build counts pf_memory_fail down at every request and
 * refuses the request that reaches zero.  A test that repeats its scenario
 * with 1, 2, 3, ... takes every path that a lack of memory can cause.
 */
#ifndef PF_MEMORY_H
#define PF_MEMORY_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(PYFIBER_HARDTEST)

/* Number of the request that fails, counted from now; 1: the next one, 0:
 * none. */
extern long pf_memory_fail;

static inline bool
pf_memory_refused(void)
{
    return pf_memory_fail > 0 && --pf_memory_fail == 0;
}

#else

static inline bool
pf_memory_refused(void)
{
    return false;
}

#endif

static inline void *
pf_memory_malloc(size_t size)
{
    return pf_memory_refused() ? NULL : malloc(size);
}

static inline void *
pf_memory_calloc(size_t count, size_t size)
{
    return pf_memory_refused() ? NULL : calloc(count, size);
}

static inline void *
pf_memory_realloc(void *memory, size_t size)
{
    return pf_memory_refused() ? NULL : realloc(memory, size);
}

/* memset(place, 0, size), done by the C library even if the size is a
 * constant: gcc 12 compiles a constant of 100 or 200 bytes to `rep stos`,
 * which takes 40 cycles more (Zen 5). */
static inline void
pf_memory_zero(void *place, size_t size)
{
#if defined(__GNUC__)
    __asm__("" : "+r"(size)); /* hides the constant from the compiler */
#endif
    memset(place, 0, size);
}

#endif
