/* The calls of net.h by Winsock. */
#include "engine/io/net.h"

#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>

#include <errno.h>
#include <limits.h>

#include "engine/core/timers.h"

/* Returns the last error of Winsock, negated.  Only the one that callers look
 * for becomes an errno value; the others keep Winsock's number, which OSError
 * expects on Windows. */
static int
last_error(void)
{
    int error = WSAGetLastError();
    return error == WSAEWOULDBLOCK ? -EAGAIN : -error;
}

static int
at_most(size_t size)
{
    return size > INT_MAX ? INT_MAX : (int)size;
}

static int64_t
system_recv(void *end, intptr_t number, void *buffer, size_t size, int flags)
{
    (void)end;
    int n = recv((SOCKET)number, buffer, at_most(size), flags);
    return n == SOCKET_ERROR ? last_error() : n;
}

static int64_t
system_send(void *end, intptr_t number, const void *data, size_t size,
            int flags)
{
    (void)end;
    int n = send((SOCKET)number, data, at_most(size), flags);
    return n == SOCKET_ERROR ? last_error() : n;
}

const pf_net_ops pf_net_system = {system_recv, system_send};

int64_t
pf_net_accept(intptr_t number, void *address, size_t *size)
{
    (void)number;
    (void)address;
    (void)size;
    return -ENOSYS;
}

void
pf_net_close(intptr_t number)
{
    closesocket((SOCKET)number);
}

/* Refuses a descriptor number of the C library: taken for a handle, that
 * number belongs to something else. */
int
pf_net_check(intptr_t number)
{
    int type, size = sizeof type;
    int rc =
        getsockopt((SOCKET)number, SOL_SOCKET, SO_TYPE, (char *)&type, &size);
    return rc == SOCKET_ERROR ? last_error() : 0;
}

/* select() reports a failed connect among the exceptions. */
int
pf_net_poll(intptr_t number, pf_direction direction, int64_t timeout_ns)
{
    fd_set ready, failed;
    FD_ZERO(&ready);
    FD_SET((SOCKET)number, &ready);
    failed = ready;
    struct timeval limit = {0, 0};
    if (timeout_ns != PF_NEVER) {
        int64_t us = timeout_ns / 1000 + (timeout_ns % 1000 > 0);
        us = us < 0 ? 0 : us / 1000000 > LONG_MAX ? LONG_MAX : us;
        limit = (struct timeval){(long)(us / 1000000), (long)(us % 1000000)};
    }
    int rc = select(0, direction == PF_READING ? &ready : NULL,
                    direction == PF_WRITING ? &ready : NULL, &failed,
                    timeout_ns == PF_NEVER ? NULL : &limit);
    return rc == SOCKET_ERROR ? last_error() : rc > 0;
}
