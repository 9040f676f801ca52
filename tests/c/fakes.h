/* Replaces system calls by a test's functions (on Linux, by the linker's
 * --wrap: see the Makefile).  While a pointer is NULL, its call is the
 * system's. */
#ifndef PF_TEST_FAKES_H
#define PF_TEST_FAKES_H

#if defined(__linux__)

#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/types.h>

extern int (*fake_epoll_create1)(int flags);
extern int (*fake_epoll_ctl)(int epoll, int operation, int fd,
                             struct epoll_event *event);
extern int (*fake_getrlimit)(int resource, struct rlimit *limit);
extern int (*fake_madvise)(void *low, size_t size, int advice);
extern void *(*fake_mmap)(void *low, size_t size, int protection, int flags,
                          int fd, off_t offset);
extern int (*fake_munmap)(void *low, size_t size);
extern int (*fake_open)(const char *path, int flags);
extern ssize_t (*fake_read)(int fd, void *bytes, size_t size);
extern int (*fake_sigaction)(int number, const struct sigaction *action,
                             struct sigaction *before);
/* Sees only the number of a system call, and may make it fail: by -1 and
 * errno.  After 0 the call is made. */
extern int (*fake_syscall)(long number);

/* The system's calls, for fakes that pass some calls on. */
int __real_epoll_ctl(int epoll, int operation, int fd,
                     struct epoll_event *event);
int __real_munmap(void *low, size_t size);
int __real_open(const char *path, int flags, ...);
ssize_t __real_read(int fd, void *bytes, size_t size);
int __real_sigaction(int number, const struct sigaction *action,
                     struct sigaction *before);

/* unmapped() returns how many bytes were unmapped since count_unmapped(). */
void count_unmapped(void);
size_t unmapped(void);

#endif

#endif
