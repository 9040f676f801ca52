#include "io.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

#define LONGEST_LIFE 600 /* seconds */

void
die(const char *what)
{
    if (errno)
        perror(what);
    else
        fprintf(stderr, "%s\n", what);
    exit(1);
}

void
end_with_parent(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LONGEST_LIFE);
}

int64_t
monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#ifdef WITH_TLS

static _Noreturn void
die_of_tls(const char *what)
{
    ERR_print_errors_fp(stderr);
    errno = 0;
    die(what);
}

static SSL_CTX *
new_context(const SSL_METHOD *method)
{
    SSL_CTX *context = SSL_CTX_new(method);
    if (context == NULL)
        die_of_tls("no TLS context");
    /* Reads the header of a record and its body by one system call. */
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                  SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return context;
}

void *
tls_client(const char *file)
{
    SSL_CTX *context = new_context(TLS_client_method());
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    if (SSL_CTX_load_verify_locations(context, file, NULL) != 1)
        die_of_tls("no certificate to trust");
    return context;
}

void *
tls_server(const char *file)
{
    SSL_CTX *context = new_context(TLS_server_method());
    if (SSL_CTX_use_certificate_file(context, file, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_PrivateKey_file(context, file, SSL_FILETYPE_PEM) != 1)
        die_of_tls("no certificate to serve with");
    return context;
}

static SSL *
tls_over(stream *s, void *context)
{
    SSL *tls = SSL_new(context);
    if (tls == NULL || SSL_set_fd(tls, s->fd) != 1)
        die_of_tls("no TLS connection");
    s->tls = tls;
    return tls;
}

void
tls_connect(stream *s, void *context)
{
    if (SSL_connect(tls_over(s, context)) != 1)
        die_of_tls("TLS handshake");
}

void
tls_accept(stream *s, void *context)
{
    SSL_set_accept_state(tls_over(s, context));
}

/* Converts the result of SSL_read or SSL_write to that of recv or send. */
static ssize_t
as_of_socket(SSL *tls, int result)
{
    if (result > 0)
        return result;
    switch (SSL_get_error(tls, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        return -1;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        ERR_clear_error();
        errno = EPROTO;
        return -1;
    }
}

ssize_t
stream_read(stream *s, void *buffer, size_t size)
{
    if (s->tls == NULL)
        return recv(s->fd, buffer, size, 0);
    return as_of_socket(s->tls, SSL_read(s->tls, buffer, (int)size));
}

ssize_t
stream_write(stream *s, const void *buffer, size_t size)
{
    if (s->tls == NULL)
        return send(s->fd, buffer, size, MSG_NOSIGNAL);
    return as_of_socket(s->tls, SSL_write(s->tls, buffer, (int)size));
}

int
stream_holds_more(stream *s)
{
    return s->tls != NULL && SSL_has_pending(s->tls);
}

void
stream_close(stream *s)
{
    if (s->tls != NULL) {
        SSL_shutdown(s->tls);
        SSL_free(s->tls);
        s->tls = NULL;
    }
    close(s->fd);
}

#else /* no OpenSSL */

static _Noreturn void
die_without_tls(void)
{
    errno = 0;
    die("built without OpenSSL");
}

void *
tls_client(const char *file)
{
    (void)file;
    die_without_tls();
}

void *
tls_server(const char *file)
{
    (void)file;
    die_without_tls();
}

void
tls_connect(stream *s, void *context)
{
    (void)s, (void)context;
    die_without_tls();
}

void
tls_accept(stream *s, void *context)
{
    (void)s, (void)context;
    die_without_tls();
}

ssize_t
stream_read(stream *s, void *buffer, size_t size)
{
    return recv(s->fd, buffer, size, 0);
}

ssize_t
stream_write(stream *s, const void *buffer, size_t size)
{
    return send(s->fd, buffer, size, MSG_NOSIGNAL);
}

int
stream_holds_more(stream *s)
{
    (void)s;
    return 0;
}

void
stream_close(stream *s)
{
    close(s->fd);
}

#endif
