/* io/: waits of fibers for events outside of the process, and sockets.
 *
 *   waiting.c    waits for a descriptor: parks the fiber or blocks its thread
 *   readiness.c  wait_readable() and wait_writable(), for any descriptor
 *   socket.c     the socket type: timeouts; when it opens and closes
 *   base.c       methods and attributes of the standard class
 *   accept.c     accept()
 *   connect.c    connect()
 *   address.c    looks up the names of hosts in addresses
 *   transfer.c   recv(), send() and their variants
 *   inmemory.c   sockets of a test's network in memory
 *   tls.c        TLS over a socket: the connection's type, reading and writing
 *   tls_end.c    ... handshake and shutdown
 *   tls_flow.c   ... moves bytes between the session and the socket
 *   reader.c     a buffer before recv(), with which streams read
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

/* Waits for a descriptor that other code opens and closes, for `length`
 * nanoseconds (PF_NEVER: for ever; 0: asks the system and does not wait).
 * Returns 0 if the descriptor is ready, 1 if it is not, and -1 with an
 * exception.  `what` is for reports. */
int pf_readiness_wait_for_number(intptr_t number, pf_direction direction,
                                 int64_t length, PyObject *what);

/* pf_io_init() calls these, which initialize one file each. */
int pf_readiness_init(PyObject *module);
int pf_socket_init(PyObject *module);
int pf_inmemory_init(PyObject *module);
int pf_tls_init(PyObject *module);
int pf_reader_init(PyObject *module);

#endif
