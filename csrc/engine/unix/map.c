/* See map.h. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* MAP_ANONYMOUS, madvise */
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE
#endif

#include "engine/unix/map.h"

#include <stdint.h>
#include <sys/mman.h>

#include "engine/base/memory.h"

#if !defined(MAP_NORESERVE)
#define MAP_NORESERVE 0
#endif
#if !defined(MAP_STACK) || defined(__FreeBSD__) /* grows by itself there */
#define SLAB_MAP_STACK 0
#else
#define SLAB_MAP_STACK MAP_STACK
#endif
#if !defined(MAP_ANONYMOUS)
#define MAP_ANONYMOUS MAP_ANON
#endif

static char *
map(char *place, size_t bytes, int fixed)
{
    char *base = mmap(place, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
                          SLAB_MAP_STACK | fixed,
                      -1, 0);
    if (base == MAP_FAILED) {
        return NULL;
    }
#if defined(MADV_NOHUGEPAGE)
    /* One touched page must not become 2 MiB. */
    (void)madvise(base, bytes, MADV_NOHUGEPAGE);
#endif
    return base;
}

char *
pf_map_stacks(size_t bytes)
{
    return pf_refused() ? NULL : map(NULL, bytes, 0);
}

bool
pf_map_again(char *base, size_t bytes)
{
    return map(base, bytes, MAP_FIXED) != NULL;
}
