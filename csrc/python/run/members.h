/* The members of a run on several threads: what team.c (work moves between
 * members) and team_run.c (the run begins, ends, reports) share. */
#ifndef PF_MEMBERS_H
#define PF_MEMBERS_H

#include "python/run/team.h"

#include "engine/base/mutex.h"

#define MOST_THREADS 256

typedef struct PfMember {
    SchedulerObject *scheduler; /* owned; written once, before `count` grows */
    PF_ATOMIC(uint8_t) hungry;  /* SATED, HUNGRY or PROMISED; see team.c */
    PF_ATOMIC(uint8_t) empty, stuck;
    /* --- only this member's thread uses these --- */
    const PyObject *given; /* function of its last gift; only compared */
    /* `switches` + 1 when it last reported that it is stuck; 0: it has not. */
    uint64_t said_stuck;
} PfMember;

enum { SATED, HUNGRY, PROMISED }; /* PfMember.hungry */

typedef struct PfTeam {
    PF_ATOMIC(size_t) count;  /* members that have joined */
    PF_ATOMIC(size_t) hungry; /* members whose `hungry` is HUNGRY */
    /* so far: gifts, counted before they are posted; times that a member other
     * than the first has woken */
    PF_ATOMIC(size_t) gifts, wakes;
    PF_ATOMIC(uint8_t) over;
    pf_mutex joining; /* guards additions to `members` */
    /* --- only the first member's thread uses these --- */
    size_t looked; /* `wakes` when all members were found stuck */
    bool found_stuck;
    bool begun;        /* the other threads were started, or could not be */
    PyObject *begin;   /* callable without arguments that starts them */
    PyObject *end;     /* waits for their end; NULL: they were not started */
    PyObject *reports; /* texts: what waits on the other threads, or NULL */
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
/* Starts the other threads, now that there is work to give away. */
void pf_team_begin(SchedulerObject *s);
/* Without a GIL: asks every other member whether it is stuck, and stores their
 * reports.  Returns true if all of them are.  With a GIL: true. */
bool pf_team_confirm(SchedulerObject *s);

#endif
