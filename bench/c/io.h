/* What the load generator and the C server share: TLS or none on a socket, the
 * clock, and ends with a sentence.  Compiled with WITH_TLS where OpenSSL's
 * headers are. */
#ifndef BENCH_IO_H
#define BENCH_IO_H

#include <stdint.h>
#include <sys/types.h>

/* A socket, with TLS on it if `tls` is set (an SSL of OpenSSL). */
typedef struct stream {
    int fd;
    void *tls;
} stream;

/* Print a sentence to standard error, errno's text with it if that is set,
 * and exit. */
_Noreturn void die(const char *what);

/* End with the parent, also if that is killed, and in any case after ten
 * minutes: a measurement leaves no process behind. */
void end_with_parent(void);

int64_t monotonic_ns(void);

/* An SSL_CTX: a client that trusts the certificate in `file` and no other, or
 * a server with the certificate and key in it. */
void *tls_client(const char *file);
void *tls_server(const char *file);

/* TLS on the socket of `s`.  Connect does the handshake, on a blocking socket;
 * for accept the first read does it. */
void tls_connect(stream *s, void *context);
void tls_accept(stream *s, void *context);

/* As recv and send: -1 with EAGAIN if it would block.  */
ssize_t stream_read(stream *s, void *buffer, size_t size);
ssize_t stream_write(stream *s, const void *buffer, size_t size);

/* Whether something that was received waits in the TLS layer, so that the
 * descriptor will not tell of it. */
int stream_holds_more(stream *s);

void stream_close(stream *s);

#endif
