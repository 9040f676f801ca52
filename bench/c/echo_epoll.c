/* An echo server as one would write it in C: one thread, level-triggered
 * epoll, and for each message one recv and one send with the same buffer.
 *
 *     echo_epoll [CERTIFICATE-AND-KEY.pem]
 *
 * Prints its port on 127.0.0.1 and serves until it is killed. */
#include "io.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define EVENTS 1024
#define BACKLOG 4096

/* A connection.  `rest` has the bytes that the peer was too slow to take;
 * while there are any, the server reads nothing more. */
typedef struct client {
    stream stream;
    char *rest;
    size_t rest_size;
} client;

typedef struct server {
    int epoll;
    int listener;
    void *tls; /* the TLS context, or NULL */
    char buffer[64 * 1024];
} server;

static int
listen_somewhere(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int one = 1;
    /* Connections inherit this option. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, size) < 0 ||
        listen(fd, BACKLOG) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        die("listen");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void
watch(server *s, int operation, client *c, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    int fd = c ? c->stream.fd : s->listener;
    if (epoll_ctl(s->epoll, operation, fd, &event) < 0)
        die("epoll_ctl");
}

static void
accept_all(server *s)
{
    int fd;
    while ((fd = accept4(s->listener, NULL, NULL,
                         SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        client *c = calloc(1, sizeof *c);
        if (c == NULL)
            die("calloc");
        c->stream.fd = fd;
        if (s->tls != NULL)
            tls_accept(&c->stream, s->tls);
        watch(s, EPOLL_CTL_ADD, c, EPOLLIN);
    }
    if (errno != EAGAIN && errno != ECONNABORTED)
        die("accept");
}

static void
hang_up(client *c)
{
    stream_close(&c->stream);
    free(c->rest);
    free(c);
}

/* Keeps the bytes that could not be sent until the peer reads. */
static void
keep_rest(server *s, client *c, const char *data, size_t size)
{
    c->rest = malloc(size);
    if (c->rest == NULL)
        die("malloc");
    memcpy(c->rest, data, size);
    c->rest_size = size;
    watch(s, EPOLL_CTL_MOD, c, EPOLLOUT);
}

/* Sends the data or keeps the rest.  Returns 0, or -1 if the connection is
 * gone. */
static int
answer(server *s, client *c, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t sent = stream_write(&c->stream, data, size);
        if (sent < 0 && errno != EAGAIN)
            return -1;
        if (sent < 0) {
            keep_rest(s, c, data, size);
            return 0;
        }
        data += sent;
        size -= (size_t)sent;
    }
    return 0;
}

static int
flush_rest(server *s, client *c)
{
    char *rest = c->rest;
    c->rest = NULL;
    int result = answer(s, c, rest, c->rest_size);
    free(rest);
    if (result == 0 && c->rest == NULL)
        watch(s, EPOLL_CTL_MOD, c, EPOLLIN);
    return result;
}

static int
echo(server *s, client *c)
{
    do {
        ssize_t size = stream_read(&c->stream, s->buffer, sizeof s->buffer);
        if (size < 0)
            return errno == EAGAIN ? 0 : -1;
        if (size == 0 || answer(s, c, s->buffer, (size_t)size) < 0)
            return -1;
    } while (c->rest == NULL && stream_holds_more(&c->stream));
    return 0;
}

static void
serve(server *s)
{
    struct epoll_event events[EVENTS];
    for (;;) {
        int count = epoll_wait(s->epoll, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            client *c = events[i].data.ptr;
            if (c == NULL)
                accept_all(s);
            else if ((c->rest ? flush_rest(s, c) : echo(s, c)) < 0)
                hang_up(c);
        }
    }
}

int
main(int argc, char **argv)
{
    static server s;
    end_with_parent();
    signal(SIGPIPE, SIG_IGN); /* TLS sends without MSG_NOSIGNAL */
    s.tls = argc > 1 ? tls_server(argv[1]) : NULL;
    s.epoll = epoll_create1(EPOLL_CLOEXEC);
    s.listener = listen_somewhere();
    watch(&s, EPOLL_CTL_ADD, NULL, EPOLLIN);
    serve(&s);
}
