/* What team.c and team_run.c know of a run on several threads: see
 * team.c. */
#ifndef PF_MEMBERS_H
#define PF_MEMBERS_H

#include "python/run/team.h"

#include "engine/base/mutex.h"

#define MOST_THREADS 256

typedef struct PfMember {
    SchedulerObject *scheduler; /* owned; written once, before `count` grows */
    PF_ATOMIC(uint8_t) hungry;  /* see team.c */
    PF_ATOMIC(uint8_t) empty, stuck;
    const PyObject *given; /* the function of its last gift: to be compared */
    /* Its own: it has said that it is stuck, after so many switches, plus 1. */
    uint64_t said_stuck;
} PfMember;

enum { SATED, HUNGRY, PROMISED }; /* `hungry` */

typedef struct PfTeam {
    PF_ATOMIC(size_t) count;  /* members that are there */
    PF_ATOMIC(size_t) hungry; /* of these, without work */
    PF_ATOMIC(size_t) gifts, wakes;
    PF_ATOMIC(uint8_t) over;
    pf_mutex joining; /* who adds to `members` holds it */
    /* --- the first member's alone --- */
    size_t looked; /* `wakes` when all were found stuck */
    bool found_stuck;
    bool begun;        /* the others were started, or could not be */
    PyObject *begin;   /* the function for that, to be called without more */
    PyObject *end;     /* waits for their end; NULL: they were not started */
    PyObject *reports; /* texts: what waits on the others, or NULL */
    PfMember members[MOST_THREADS];
} PfTeam;

static inline bool
pf_team_is_first(const SchedulerObject *s)
{
    return s->member == &s->team->members[0];
}

/* --- team.c --- */
void pf_team_join(SchedulerObject *s, PfTeam *c);
void pf_team_get_hungry(PfMember *m);
void pf_team_come_back(SchedulerObject *s, FiberObject *f);

/* --- team_run.c --- */
/* Start the others, now that there is something to give. */
void pf_team_begin(SchedulerObject *s);
/* Without a GIL: does every other member say itself that it is stuck?  Their
 * reports are kept. */
bool pf_team_confirm(SchedulerObject *s);

#endif
