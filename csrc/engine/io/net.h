/* Reading and writing sockets, as the system has it: no call here blocks, but
 * pf_net_poll.
 *
 * A socket asks a table of operations, so that one whose other end is in
 * memory differs in nothing but its table.  Results are a number of bytes or
 * -errno; -EAGAIN: it would block.
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

/* Those of the system; `end` is not used. */
extern const pf_net_ops pf_net_system;

/* A connection of a listener: its number, which never blocks and is closed in
 * programs that this one becomes; the address, of which `size` bytes are there
 * and were needed.  Only where PF_NET_ACCEPTS; elsewhere -ENOSYS. */
int64_t pf_net_accept(intptr_t number, void *address, size_t *size);

#if defined(__linux__) || defined(__FreeBSD__) || defined(__NetBSD__) ||      \
    defined(__OpenBSD__)
#define PF_NET_ACCEPTS 1
#else
#define PF_NET_ACCEPTS 0
#endif

void pf_net_close(intptr_t number);

/* 0; -errno where only sockets can be waited for, and it is none. */
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

/* Block until the socket is ready in that direction, at most `timeout_ns`
 * (PF_NEVER: for ever).  1: it is, or has an error, which the operation will
 * tell; 0: it is not; -errno, -EINTR after a signal. */
int pf_net_poll(intptr_t number, pf_direction direction, int64_t timeout_ns);

#endif
