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
    poller = pf_default_poller_new(&error);
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
#include <windows.h>

intptr_t
source_open(source *s)
{
    s->end = (intptr_t)CreateEventW(NULL, TRUE, FALSE, NULL);
    CHECK(s->end != 0);
    return s->end;
}

void
source_set(source *s)
{
    CHECK(SetEvent((HANDLE)s->end));
}

void
source_close(source *s)
{
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
