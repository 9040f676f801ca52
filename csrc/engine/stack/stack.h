/* Guarded stacks, pooled.
 *
 * One pool serves one thread and one size, so it needs no lock.  Stacks are
 * slots cut from slabs:
 *
 *   slot  [ guard | reserve | C stack, grows down <- | header | room -> ]
 *                  low                               top
 *
 * The reserve is guarded, too, until the stack runs into it.  Then the fault
 * handler (overflow.c) opens it and tells the host, which makes the recursion
 * fail: code that recurses too deep gets an exception while it still has a
 * stack to handle it on.  The reserve is opened in two halves, which tells the
 * host a second time if its first attempt did not end the recursion.  When the
 * stack is back above the reserve, the next switch closes it
 * (pf_stack_close_reserve).
 *
 * `room` is memory above the stack for the host (the Python binding keeps the
 * interpreter's first data-stack chunk there).  The header is placed where the
 * first C frames, the header and the first bytes of the room share one page: a
 * parked fiber touches one page.  Successive slots shift it by a multiple of
 * 128 bytes ("colouring"); otherwise the hot lines of many fibers would all
 * compete for one cache set.
 *
 * The guard of slot n lies just above the room of slot n-1, so one page-table
 * page describes both.
 *
 * Free slots are reused last-in first-out.  A slab's list of free slots is
 * kept outside the slots, so whole slabs can be returned to the system.  A few
 * released stacks do not even return to their slab: they stay at hand, already
 * set up, and are the first to be reused, so a fiber that begins where another
 * has just ended costs one pointer access.
 */
#ifndef PF_STACK_H
#define PF_STACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "context/context.h"

typedef struct pf_slab pf_slab;
typedef struct pf_stack_pool pf_stack_pool;

/* Lies on the stack's own first page while the stack is in use.  It fills one
 * cache line, so the room begins with a new one. */
typedef struct pf_stack {
    pf_area area;
    pf_slab *slab; /* which slab and slot it came from */
    uint32_t slot;
    uint32_t room_size;
    uint32_t reserve; /* bytes from area.low that start out guarded */
    uint32_t guarded; /* of these, guarded now */
    char *room;       /* host's memory, 16-byte aligned */
    union {
        void *user;     /* for the code that acquired the stack; even */
        uintptr_t next; /* while it is free and at hand: the next, plus 1 */
    };
#if PF_VALGRIND
    unsigned valgrind_id;
#endif
} pf_stack;

/* Where the room of a stack with a header of its own in front begins. */
#define PF_STACK_LEAD ((sizeof(pf_stack) + 15) & ~(size_t)15)

/* What pf_stack_acquire may return besides 0; errno values negated:
 * -ENOMEM the system has no more memory or mappings (see pf_stack_pool.limit)
 */

/* Which system limit the last failure hit, for the error message. */
typedef enum pf_limit {
    PF_LIMIT_NONE,
    PF_LIMIT_MAP_COUNT,     /* vm.max_map_count (mprotect guards only) */
    PF_LIMIT_ADDRESS_SPACE, /* RLIMIT_AS or the address space itself */
    PF_LIMIT_MEMORY,        /* malloc failed, or overcommit refused */
} pf_limit;

typedef enum pf_guard_kind {
    PF_GUARD_NONE,
    PF_GUARD_MPROTECT, /* one mapping split per stack */
    PF_GUARD_MADVISE,  /* MADV_GUARD_INSTALL: no split (Linux 6.13+) */
    PF_GUARD_SYSTEM, /* the operating system guards its own stacks (Windows) */
} pf_guard_kind;

typedef struct pf_stack_stats {
    size_t stack_size; /* bytes per slot, guard and room included */
    size_t mapped;     /* bytes of address space in slabs */
    size_t slots;      /* slots in all slabs */
    size_t live;       /* in use */
    size_t peak;       /* highest live so far */
    uint64_t acquired; /* ever */
    uint64_t trims;    /* times memory was returned */
} pf_stack_stats;

/* `slot_size` is rounded up to whole pages and includes guard (one page) and
 * room.  The minimum is pf_stack_min(room_size).  NULL: no memory. */
pf_stack_pool *pf_stack_pool_new(size_t slot_size, size_t room_size);

/* Returns all slabs without live stacks to the system and forgets the rest (a
 * live stack is a suspended fiber that refused to die: its memory must stay).
 */
void pf_stack_pool_free(pf_stack_pool *pool);

/* *stack is NULL and the result -errno on failure. */
int pf_stack_acquire(pf_stack_pool *pool, pf_stack **stack);
/* The same for one that is never shared. */
int pf_stack_acquire_own(pf_stack_pool *pool, pf_stack **stack);

/* By its occupant.  The stack must not be the running one. */
void pf_stack_release(pf_stack *stack);

/* Return all memory that free stacks hold to the system; how many bytes. */
size_t pf_stack_pool_trim(pf_stack_pool *pool);

/* The same, but whole slabs without a live stack stay mapped; also that of slots
 * without an occupant.  (Not on Windows.) */
size_t pf_stack_pool_discard(pf_stack_pool *pool);

/* Whose pool it is; NULL at first. */
void pf_stack_pool_own(pf_stack_pool *pool, void *owner);
void *pf_stack_owner(const pf_stack *stack);

/* A slot may be the home of several users, whose bytes are in it in turn: the
 * one whose they are is its occupant, `user`.  (Not on Windows.)
 *
 * Once `from` slots are live, `share` is asked for one that has been shared
 * before another one is acquired; NULL: there shall be one more.  `must`: the
 * system refuses that.  `share` NULL: not any more. */
typedef pf_stack *(*pf_stack_share_fn)(pf_stack_pool *pool, void *owner,
                                       bool must);
void pf_stack_pool_lend(pf_stack_pool *pool, size_t from,
                        pf_stack_share_fn share);
/* The slots that are somebody's home, and those of them with an occupant. */
size_t pf_stack_pool_live(const pf_stack_pool *pool);
size_t pf_stack_pool_occupied(const pf_stack_pool *pool);
/* The live slots, one after the other, again and again: the next one that may
 * be shared, or NULL if there is none within so many slots, or within one round
 * of all.  `vacant`: also
 * those without an occupant. */
pf_stack *pf_stack_pool_next(pf_stack_pool *pool, size_t steps, bool vacant);
/* pf_stack_pool_discard has returned the memory of slots without an occupant,
 * with their headers.  Before one is used: false if the system refuses. */
bool pf_stack_bring_back(pf_stack_pool *pool, pf_stack *stack);
/* It has no occupant now, and is still its home; it is the occupant again. */
void pf_stack_leave(pf_stack *stack);
/* Its bytes below `low` hold nothing any more: if that is deep, their memory is
 * returned. */
void pf_stack_trim_below(pf_stack *stack, const char *low);
void pf_stack_enter(pf_stack *stack, void *user);
/* One without an occupant becomes the home of one more user, the occupant. */
void pf_stack_share(pf_stack *stack, void *user);
bool pf_stack_is_shared(const pf_stack *stack); /* several are at home there */
/* As pf_stack_release, by one who is not the occupant. */
void pf_stack_release_home(pf_stack_pool *pool, pf_stack *stack);

/* For a thread that is idle at `now` (pf_clock_monotonic): returns the memory that
 * an earlier load left.  The result is when to call again; INT64_MAX: not
 * before the pool is used. */
int64_t pf_stack_pool_decay(pf_stack_pool *pool, int64_t now);

/* A load has ended for good: treat it as if that were long ago. */
void pf_stack_pool_load_over(pf_stack_pool *pool);

void pf_stack_pool_stats(const pf_stack_pool *pool, pf_stack_stats *stats);
size_t pf_stack_pool_slot_size(const pf_stack_pool *pool);
pf_stack_pool *pf_stack_pool_of(const pf_stack *stack);
size_t pf_stack_size(const pf_stack *stack); /* its pool's slot size */
pf_limit pf_stack_pool_limit(const pf_stack_pool *pool);

/* The reserve is an eighth of the slot, 64 KiB at most, in whole pages;
 * none on Windows. */
size_t pf_stack_min(size_t room_size);
/* The slot size that pf_stack_pool_new makes of this one. */
size_t pf_stack_slot_size(size_t slot_size, size_t room_size);
size_t pf_stack_page_size(void);
pf_guard_kind pf_stack_guard_kind(void);
const char *pf_stack_guard_name(pf_guard_kind kind);
const char *pf_limit_name(pf_limit limit);

/* Is `address` in the guard of this stack? (for the fault handler) */
bool pf_stack_guards(const pf_stack *stack, const void *address);

/* Is it in the part of the reserve that is still closed? */
bool pf_stack_in_reserve(const pf_stack *stack, const void *address);

/* Open the half of the reserve that `address` is in, and everything above it;
 * the whole reserve if a half is not whole pages.  Safe in a signal handler.
 * False if the system refuses. */
bool pf_stack_open_reserve(pf_stack *stack, const void *address);

/* Would pf_stack_open_reserve leave nothing closed? */
bool pf_stack_is_last_reserve(const pf_stack *stack, const void *address);

/* How many bytes of the reserve are open. */
static inline uint32_t
pf_stack_opened(const pf_stack *stack)
{
    return stack->reserve - stack->guarded;
}

static inline bool
pf_stack_reserve_is_open(const pf_stack *stack)
{
    return pf_stack_opened(stack) != 0;
}

/* Does the frame at `sp`, or its next call, reach into the reserve? */
bool pf_stack_runs_in_reserve(const pf_stack *stack, const void *sp);

/* Does nothing while the stack in use still reaches into the reserve
 * (`sp` is an address in the running frame), or if it is closed.  A released
 * stack is closed by pf_stack_release. */
void pf_stack_close_reserve(pf_stack *stack, const void *sp);

#if defined(_WIN32)
#include "engine/stack/alone.h"
#endif

#endif
