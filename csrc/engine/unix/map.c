/* See map.h. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* MAP_ANONYMOUS, madvise, O_CLOEXEC */
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE
#endif

#include "engine/unix/map.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/memory.h"

#if !defined(MAP_NORESERVE)
#define MAP_NORESERVE 0
#endif
/* On FreeBSD a mapping with MAP_STACK grows by itself. */
#if !defined(MAP_STACK) || defined(__FreeBSD__)
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
    /* A huge page would turn one touched page into 2 MiB. */
    (void)madvise(base, bytes, MADV_NOHUGEPAGE);
#endif
    return base;
}

char *
pf_map_stacks(size_t bytes)
{
    return pf_memory_refused() ? NULL : map(NULL, bytes, 0);
}

bool
pf_map_again(char *base, size_t bytes)
{
    return map(base, bytes, MAP_FIXED) != NULL;
}

/* Returns the first number in a file of /proc; 0 if there is none. */
static size_t
read_number(const char *path)
{
    char text[32];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return (size_t)strtoull(text, NULL, 10);
}

pf_limit
pf_map_diagnose(size_t wanted, size_t split_guards)
{
    size_t maps = read_number("/proc/sys/vm/max_map_count");
    if (maps != 0 && split_guards * 2 > maps / 2) {
        return PF_LIMIT_MAP_COUNT;
    }
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return PF_LIMIT_MEMORY;
    }
    size_t used = read_number("/proc/self/statm") * pf_stack_page_size();
    if (used != 0 && used + wanted <= limit.rlim_cur) {
        return PF_LIMIT_MEMORY;
    }
    return PF_LIMIT_ADDRESS_SPACE;
}
