/* System calls that answer as a test wants (Linux: the linker's --wrap, see
 * the Makefile).  Each is the system's own while its pointer is NULL. */
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
/* May only tell of a call, and whether it fails: -1 and errno, or 0. */
extern int (*fake_syscall)(long number);

/* The system's, for fakes that do some of it. */
int __real_epoll_ctl(int epoll, int operation, int fd,
                     struct epoll_event *event);
int __real_munmap(void *low, size_t size);
int __real_open(const char *path, int flags, ...);
ssize_t __real_read(int fd, void *bytes, size_t size);
int __real_sigaction(int number, const struct sigaction *action,
                     struct sigaction *before);

/* How many bytes were unmapped between these two. */
void count_unmapped(void);
size_t unmapped(void);

#endif

#endif
