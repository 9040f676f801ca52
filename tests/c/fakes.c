#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "fakes.h"

#if defined(__linux__)

#include <stdarg.h>

#define FAKE(result, name, parameters, arguments)                             \
    result(*fake_##name) parameters;                                          \
    result __real_##name parameters;                                          \
    result __wrap_##name parameters;                                          \
    result __wrap_##name parameters                                           \
    {                                                                         \
        return fake_##name != NULL ? fake_##name arguments                    \
                                   : __real_##name arguments;                 \
    }

FAKE(int, epoll_create1, (int flags), (flags))
FAKE(int, epoll_ctl,
     (int epoll, int operation, int fd, struct epoll_event *event),
     (epoll, operation, fd, event))
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

int (*fake_syscall)(long number);
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

/* Passes six arguments on; a call with fewer ignores the rest. */
long
__wrap_syscall(long number, ...)
{
    long a[6];
    va_list arguments;
    if (fake_syscall != NULL && fake_syscall(number) != 0) {
        return -1;
    }
    va_start(arguments, number);
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(arguments, long);
    }
    va_end(arguments);
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
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
