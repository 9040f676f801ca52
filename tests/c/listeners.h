/* Registrations that count their events, and the poller under test: the
 * default one, which main.c chooses anew for each run of these tests. */
#ifndef PF_TEST_LISTENERS_H
#define PF_TEST_LISTENERS_H

#include "engine/io/poller.h"

typedef struct listener {
    pf_registration registration; /* first */
    int told;                     /* how often events were reported */
    unsigned events;              /* of the last report */
    unsigned all;                 /* of all reports together */
} listener;

extern pf_poller *poller;
void open_poller(void);
void close_poller(void);

int add(listener *l, intptr_t descriptor, unsigned interest);
int modify(listener *l, unsigned interest);
/* Modifies the registration of a descriptor that was closed.  poll(2) notices
 * the closing only in the next wait. */
void modify_closed(listener *l, unsigned interest);
int take_out(listener *l);
/* Polls without waiting and delivers; returns how many events there were. */
int look(void);

/* A descriptor that a test makes readable: the end of a pipe; on Windows an
 * event or a socket. */
typedef struct source {
    intptr_t end; /* the watched one */
    intptr_t other;
} source;

intptr_t source_open(source *s); /* returns s->end */
void source_set(source *s);
void source_close(source *s);

/* Whether the poller under test is this one. */
bool is_kind(const char *kind);
/* Whether libkqueue emulates kqueue.  Such a kqueue has a number that is never
 * readable, does not notice that a watched number is closed, and clears errors
 * of what it watches. */
bool is_emulated(void);

#if defined(_WIN32)
/* The functions below make sockets that do not block. */
struct sockaddr_in;
intptr_t listening_socket(struct sockaddr_in *address);
intptr_t connecting_socket(const struct sockaddr_in *address);
intptr_t accepted_socket(intptr_t listening);
void socket_pair(source *s);
/* Waits until the socket is readable or writable, or its connect has
 * failed. */
bool socket_becomes(intptr_t number, bool readable);
#else
bool is_readable(int fd);
/* Returns the number of the next descriptor that the system will hand out. */
int lowest_descriptor(void);
#endif

#endif
