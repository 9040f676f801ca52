#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "fakes.h"

#if defined(__linux__)

#define FAKE(result, name, parameters, arguments)                             \
    result(*fake_##name) parameters;                                          \
    result __real_##name parameters;                                          \
    result __wrap_##name parameters;                                          \
    result __wrap_##name parameters                                           \
    {                                                                         \
        return fake_##name != NULL ? fake_##name arguments                    \
                                   : __real_##name arguments;                 \
    }

FAKE(int, getrlimit, (int resource, struct rlimit *limit), (resource, limit))
FAKE(int, madvise, (void *low, size_t size, int advice), (low, size, advice))
FAKE(void *, mmap,
     (void *low, size_t size, int protection, int flags, int fd, off_t offset),
     (low, size, protection, flags, fd, offset))
FAKE(int, munmap, (void *low, size_t size), (low, size))
FAKE(ssize_t, read, (int fd, void *bytes, size_t size), (fd, bytes, size))
FAKE(int, sigaction,
     (int number, const struct sigaction *action, struct sigaction *before),
     (number, action, before))

int (*fake_open)(const char *path, int flags);
int __wrap_open(const char *path, int flags);

int
__wrap_open(const char *path, int flags)
{
    return fake_open != NULL ? fake_open(path, flags)
                             : __real_open(path, flags);
}

static size_t bytes_unmapped;

static int
add_unmapped(void *low, size_t size)
{
    bytes_unmapped += size;
    return __real_munmap(low, size);
}

void
count_unmapped(void)
{
    bytes_unmapped = 0;
    fake_munmap = add_unmapped;
}

size_t
unmapped(void)
{
    fake_munmap = NULL;
    return bytes_unmapped;
}

#else
typedef int not_used_here;
#endif
