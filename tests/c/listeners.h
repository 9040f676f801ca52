/* Registrations that count what they are told, with one poller: the default
 * one, which each run of these tests chooses anew (see main.c). */
#ifndef PF_TEST_LISTENERS_H
#define PF_TEST_LISTENERS_H

#include "engine/io/poller.h"

typedef struct listener {
    pf_registration registration; /* first */
    int told;
    unsigned events; /* the last time */
    unsigned all;    /* of every time */
} listener;

extern pf_poller *poller;
void open_poller(void);
void close_poller(void);

int add(listener *l, intptr_t descriptor, unsigned interest);
int modify(listener *l, unsigned interest);
/* ... of one that was closed.  poll(2) notices only in the next wait. */
void modify_closed(listener *l, unsigned interest);
int take_out(listener *l);
/* Wait for nothing, deliver what is there. */
int look(void);

/* Something that is readable or not: the end of a pipe; on Windows an event, or
 * a socket. */
typedef struct source {
    intptr_t end; /* that is watched */
    intptr_t other;
} source;

intptr_t source_open(source *s); /* its end */
void source_set(source *s);
void source_close(source *s);

/* Is the poller under test this one? */
bool is_kind(const char *kind);
/* libkqueue's kqueues are no system's: their number is not readable, they do
 * not notice that one they watch is closed, and they clear its errors. */
bool is_emulated(void);

#if defined(_WIN32)
/* They do not block. */
struct sockaddr_in;
intptr_t listening_socket(struct sockaddr_in *address);
intptr_t connecting_socket(const struct sockaddr_in *address);
intptr_t accepted_socket(intptr_t listening);
void socket_pair(source *s);
/* Wait until it is readable or writable, or its connect has failed. */
bool socket_becomes(intptr_t number, bool readable);
#else
bool is_readable(int fd);
/* The next descriptor that the system will hand out. */
int lowest_descriptor(void);
#endif

#endif
