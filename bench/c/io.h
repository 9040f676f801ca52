/* What the load generator and the C server share: sockets with or without TLS,
 * the clock, and how the program ends.  TLS needs WITH_TLS and OpenSSL's
 * headers. */
#ifndef BENCH_IO_H
#define BENCH_IO_H

#include <stdint.h>
#include <sys/types.h>

/* A socket, with TLS if `tls` is set (OpenSSL's SSL). */
typedef struct stream {
    int fd;
    void *tls;
} stream;

/* Prints a sentence to standard error, with errno's text if errno is set, and
 * exits. */
_Noreturn void die(const char *what);

/* Makes this process end with its parent, also if that is killed, and in any
 * case after ten minutes, so that no measurement leaves a process behind. */
void end_with_parent(void);

int64_t monotonic_ns(void);

/* Return an SSL_CTX: of a client that trusts only the certificate in `file`,
 * or of a server with the certificate and key in it. */
void *tls_client(const char *file);
void *tls_server(const char *file);

/* Start TLS on the socket of `s`.  tls_connect does the handshake, on a
 * blocking socket; after tls_accept the first read does it. */
void tls_connect(stream *s, void *context);
void tls_accept(stream *s, void *context);

/* As recv and send: return -1 and set EAGAIN if the call would block.  */
ssize_t stream_read(stream *s, void *buffer, size_t size);
ssize_t stream_write(stream *s, const void *buffer, size_t size);

/* Whether received bytes wait in the TLS layer, for which the descriptor does
 * not become readable. */
int stream_holds_more(stream *s);

void stream_close(stream *s);

#endif
