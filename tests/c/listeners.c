#include "check.h"

#include <errno.h>

#include "listeners.h"

pf_poller *poller;

static void
listen_to(pf_registration *r, struct pf_scheduler *s, unsigned events)
{
    listener *l = (listener *)r;
    CHECK(s == NULL && r->added);
    l->told++;
    l->events = events;
    l->all |= events;
}

bool
is_kind(const char *kind)
{
    return poller_kind != NULL && strcmp(poller_kind, kind) == 0;
}

bool
is_emulated(void)
{
#if defined(PF_LIBKQUEUE)
    return is_kind("kqueue");
#else
    return false;
#endif
}

void
open_poller(void)
{
    int error;
    poller = pf_poller_new_default(&error);
    CHECK_EQUAL(error, 0);
}

void
close_poller(void)
{
    poller->ops->close(poller);
}

int
add(listener *l, intptr_t descriptor, unsigned interest)
{
    *l = (listener){.registration.ready = listen_to};
    return poller->ops->add(poller, descriptor, interest, &l->registration);
}

int
modify(listener *l, unsigned interest)
{
    return poller->ops->modify(poller, &l->registration, interest);
}

void
modify_closed(listener *l, unsigned interest)
{
    CHECK_EQUAL(modify(l, interest), is_kind("poll") ? 0 : -EBADF);
}

int
take_out(listener *l)
{
    return poller->ops->remove(poller, &l->registration);
}

int
look(void)
{
    int found = poller->ops->wait(poller, 0);
    if (found > 0) {
        poller->ops->deliver(poller, NULL);
    }
    return found;
}

/* --------------------------------------------------------- sources --- */

#if defined(_WIN32)

#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>

#include <windows.h>

static SOCKET
new_socket(void)
{
    WSADATA data;
    CHECK_EQUAL(WSAStartup(MAKEWORD(2, 2), &data), 0);
    SOCKET s = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
    CHECK(s != INVALID_SOCKET);
    return s;
}

static void
never_block(SOCKET s)
{
    u_long yes = 1;
    CHECK_EQUAL(ioctlsocket(s, (long)FIONBIO, &yes), 0);
}

intptr_t
listening_socket(struct sockaddr_in *address)
{
    int size = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET};
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    SOCKET s = new_socket();
    CHECK_EQUAL(bind(s, (struct sockaddr *)address, size), 0);
    CHECK_EQUAL(listen(s, 5), 0);
    CHECK_EQUAL(getsockname(s, (struct sockaddr *)address, &size), 0);
    never_block(s);
    return (intptr_t)s;
}

intptr_t
connecting_socket(const struct sockaddr_in *address)
{
    SOCKET s = new_socket();
    never_block(s);
    int rc = connect(s, (const struct sockaddr *)address, sizeof *address);
    CHECK(rc == 0 || WSAGetLastError() == WSAEWOULDBLOCK);
    return (intptr_t)s;
}

/* Asks the system, not the poller under test, since the event may take a
 * moment. */
bool
socket_becomes(intptr_t number, bool readable)
{
    struct timeval patience = {10, 0};
    fd_set set, failed;
    FD_ZERO(&set);
    FD_SET((SOCKET)number, &set);
    failed = set;
    return select(0, readable ? &set : NULL, readable ? NULL : &set, &failed,
                  &patience) == 1;
}

intptr_t
accepted_socket(intptr_t listening)
{
    CHECK(socket_becomes(listening, true));
    SOCKET s = accept((SOCKET)listening, NULL, NULL);
    CHECK(s != INVALID_SOCKET);
    never_block(s);
    return (intptr_t)s;
}

void
socket_pair(source *s)
{
    struct sockaddr_in address;
    intptr_t listening = listening_socket(&address);
    s->other = connecting_socket(&address);
    s->end = accepted_socket(listening);
    CHECK(socket_becomes(s->other, false));
    closesocket((SOCKET)listening);
}

intptr_t
source_open(source *s)
{
    if (is_kind("sockets")) {
        socket_pair(s);
        return s->end;
    }
    s->end = (intptr_t)CreateEventW(NULL, TRUE, FALSE, NULL);
    CHECK(s->end != 0);
    return s->end;
}

void
source_set(source *s)
{
    if (is_kind("sockets")) {
        CHECK_EQUAL(send((SOCKET)s->other, "x", 1, 0), 1);
        CHECK(socket_becomes(s->end, true));
        return;
    }
    CHECK(SetEvent((HANDLE)s->end));
}

void
source_close(source *s)
{
    if (is_kind("sockets")) {
        closesocket((SOCKET)s->end);
        closesocket((SOCKET)s->other);
        return;
    }
    CloseHandle((HANDLE)s->end);
}

#else

#include <poll.h>
#include <unistd.h>

intptr_t
source_open(source *s)
{
    int ends[2] = {-1, -1};
    CHECK_EQUAL(pipe(ends), 0);
    s->end = ends[0];
    s->other = ends[1];
    return s->end;
}

void
source_set(source *s)
{
    CHECK_EQUAL(write((int)s->other, "x", 1), 1);
}

void
source_close(source *s)
{
    close((int)s->end);
    close((int)s->other);
}

bool
is_readable(int fd)
{
    struct pollfd p = {fd, POLLIN, 0};
    return poll(&p, 1, 0) == 1;
}

int
lowest_descriptor(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

#endif
