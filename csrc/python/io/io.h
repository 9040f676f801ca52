/* io/: waits of fibers for events outside of the process, and sockets.
 *
 *   waiting.c    a wait for a descriptor: the fiber parks, or its thread blocks
 *   readiness.c  wait_readable() and wait_writable(): numbers of others
 *   socket.c     the socket type: timeouts, its number's life
 *   base.c       what the standard class does itself
 *   accept.c     accept()
 *   connect.c    connect()
 *   address.c    names of hosts in addresses are looked up first
 *   transfer.c   recv() and send() and their kin
 *   inmemory.c   sockets of a network in memory, which a test brings
 *   tls.c        TLS over such a socket: the connection's type
 *   tls_end.c    ... how it begins and ends
 *   tls_flow.c   ... and how its bytes come and go
 *   reader.c     a buffer before recv(): what streams read with
 *
 * Called by module.c.
 */
#ifndef PF_IO_H
#define PF_IO_H

#include "python/core/pyinclude.h"

#include "engine/io/descriptor.h"
#include "python/core/parts.h"

int pf_io_init(PyObject *module);
extern const PfPart pf_io_part, pf_inmemory_part;

/* Wait for a number that others own, `length` nanoseconds (PF_NEVER: for ever;
 * 0: it is only a question to the system).  0: it is ready; 1: it is not; -1
 * with an exception.  `what` is for reports. */
int pf_readiness_wait_for_number(intptr_t number, pf_direction direction,
                                 int64_t length, PyObject *what);

/* One part of it each. */
int pf_readiness_init(PyObject *module);
int pf_socket_init(PyObject *module);
int pf_inmemory_init(PyObject *module);
int pf_tls_init(PyObject *module);
int pf_reader_init(PyObject *module);

#endif
