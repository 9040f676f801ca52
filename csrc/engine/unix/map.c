/* See map.h. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* MAP_ANONYMOUS, madvise */
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE
#endif

#include "engine/unix/map.h"

#include <stdbool.h>
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

/* A compiler keeps an int in half of a word, beside half of an address that
 * was there before.  If that was one in the fiber's own stack, and the stack
 * lies around a multiple of 2^32, a small int makes the two look like another
 * address there: images.h would move it, and did.  So no stack is nearer to
 * such an address than any count is to 0. */
#define HALF ((uint64_t)1 << 32)
#define SMALL_INTS ((uint64_t)16 << 20)

static char *
map_anywhere(size_t bytes)
{
    char *base = mmap(
        NULL, bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | SLAB_MAP_STACK, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

/* What must be left free of stacks and is nearest above `base`: up to
 * SMALL_INTS after the result, and as much before it. */
static uint64_t
next_half(const char *base)
{
    uint64_t from = (uint64_t)(uintptr_t)base - SMALL_INTS;
    return (from / HALF + 1) * HALF;
}

static bool
is_clear(const char *base, size_t bytes)
{
    return (uint64_t)(uintptr_t)base + bytes + SMALL_INTS <= next_half(base);
}

size_t
pf_map_needs(size_t bytes)
{
    return 2 * (bytes + SMALL_INTS);
}

/* A piece of so many bytes out of a larger one that has room for it either
 * before or after the next half. */
static char *
map_clear(size_t bytes)
{
    size_t whole = pf_map_needs(bytes);
    char *low = map_anywhere(whole);
    if (low == NULL) {
        return NULL;
    }
    char *base = low;
    if (!is_clear(base, bytes)) {
        base += next_half(base) + SMALL_INTS - (uint64_t)(uintptr_t)base;
    }
    if (base != low) {
        munmap(low, (size_t)(base - low));
    }
    munmap(base + bytes, whole - (size_t)(base - low) - bytes);
    return base;
}

char *
pf_map_stacks(size_t bytes)
{
    if (pf_refused()) {
        return NULL;
    }
    char *base = map_anywhere(bytes);
    if (base != NULL && !is_clear(base, bytes)) {
        munmap(base, bytes);
        base = map_clear(bytes);
    }
    if (base == NULL) {
        return NULL;
    }
#if defined(MADV_NOHUGEPAGE)
    /* One touched page must not become 2 MiB. */
    (void)madvise(base, bytes, MADV_NOHUGEPAGE);
#endif
    return base;
}
