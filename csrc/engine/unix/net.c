/* The calls of net.h by POSIX sockets and poll(2). */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* accept4 */
#endif

#include "engine/io/net.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "engine/unix/watch.h"

/* Whether calls block is a property of the open file, not of the descriptor.
 * A process that has inherited the file, or another socket object that shares
 * it, can change that; a call without this flag would then stop the whole
 * loop. */
#if defined(__linux__)
#define NEVER_BLOCK MSG_DONTWAIT
#else
#define NEVER_BLOCK 0
#endif

static int64_t
system_recv(void *end, intptr_t number, void *buffer, size_t size, int flags)
{
    (void)end;
    ssize_t n = recv((int)number, buffer, size, flags | NEVER_BLOCK);
    return n < 0 ? -errno : n;
}

static int64_t
system_send(void *end, intptr_t number, const void *data, size_t size,
            int flags)
{
    (void)end;
    ssize_t n = send((int)number, data, size, flags | NEVER_BLOCK);
    return n < 0 ? -errno : n;
}

const pf_net_ops pf_net_system = {system_recv, system_send};

int64_t
pf_net_accept(intptr_t number, void *address, size_t *size)
{
#if PF_NET_ACCEPTS
    socklen_t length = (socklen_t)*size;
    int made =
        accept4((int)number, address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    *size = length;
    return made < 0 ? -errno : made;
#else
    (void)number, (void)address, (void)size;
    return -ENOSYS;
#endif
}

void
pf_net_close(intptr_t number)
{
    close((int)number);
}

int
pf_net_poll(intptr_t number, pf_direction direction, int64_t timeout_ns)
{
    short events = direction == PF_READING ? POLLIN : POLLOUT;
    struct pollfd one = {(int)number, events, 0};
    int rc = poll(&one, 1, pf_watch_milliseconds(timeout_ns));
    return rc < 0 ? -errno : rc;
}
