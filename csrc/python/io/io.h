/* io/: waits of fibers for events outside of the process, and sockets.
 *
 *   waiting.c    a wait for a descriptor: the fiber parks, or its thread blocks
 *   readiness.c  wait_readable() and wait_writable(): numbers of others
 *   socket.c     the socket type: timeouts, its number's life
 *   connect.c    connect()
 *   transfer.c   recv() and send() and their kin
 *
 * Called by module.c.
 */
#ifndef PF_IO_H
#define PF_IO_H

#include "python/core/parts.h"
#include "python/core/pyinclude.h"

int pf_io_init(PyObject *module);
extern const PfPart pf_io_part;

/* One part of it each. */
int pf_readiness_init(PyObject *module);
int pf_socket_init(PyObject *module);

#endif
