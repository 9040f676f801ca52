/* The system's calls for sockets; unix/net.c and windows/net.c make them.
 * Only pf_net_poll blocks.
 *
 * A socket has a table of operations, so that one whose other end is in memory
 * (inmemory.h) differs in nothing but its table.  The operations return a
 * number of bytes or -errno; -EAGAIN: the operation would block.
 */
#ifndef PF_NET_H
#define PF_NET_H

#include <stddef.h>
#include <stdint.h>

#include "engine/io/descriptor.h"

typedef struct pf_net_ops {
    int64_t (*recv)(void *end, intptr_t number, void *buffer, size_t size,
                    int flags);
    int64_t (*send)(void *end, intptr_t number, const void *data, size_t size,
                    int flags);
} pf_net_ops;

/* The system's operations on socket `number`; they do not use `end`. */
extern const pf_net_ops pf_net_system;

/* Accepts a connection of listener `number`.  Returns the new number, which is
 * non-blocking and close-on-exec, or -errno.  Writes the peer's address; *size
 * is the room for it and becomes the size that the address needs.  Always
 * -ENOSYS if PF_NET_ACCEPTS is 0. */
int64_t pf_net_accept(intptr_t number, void *address, size_t *size);

#if defined(__linux__) || defined(__FreeBSD__) || defined(__NetBSD__) ||      \
    defined(__OpenBSD__)
#define PF_NET_ACCEPTS 1
#else
#define PF_NET_ACCEPTS 0
#endif

void pf_net_close(intptr_t number);

/* Returns 0 if the number can be waited for.  Windows returns an error if it
 * is not a socket. */
#if defined(_WIN32)
int pf_net_check(intptr_t number);
#else
static inline int
pf_net_check(intptr_t number)
{
    (void)number;
    return 0;
}
#endif

/* Blocks the thread until the socket is ready in that direction, at most
 * `timeout_ns` (PF_NEVER: for ever).  Returns 1 if the socket is ready or has
 * an error, which the operation will return; 0 if it is not ready; or -errno,
 * -EINTR after a signal. */
int pf_net_poll(intptr_t number, pf_direction direction, int64_t timeout_ns);

#endif
