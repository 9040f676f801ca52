/* Pools of guarded stacks.
 *
 * One pool serves one thread and one stack size, so it needs no lock.  A stack
 * is a slot of a slab:
 *
 *   slot  [ guard | reserve | C stack, grows down <- | header | room -> ]
 *                  low                               top
 *
 * The reserve is guarded, too, until the stack runs into it.  Then the fault
 * handler (overflow.c) opens the reserve and notifies the host, which makes
 * the recursion fail: code that recurses too deep gets an exception while it
 * still has a stack to handle it on.  The reserve is opened in two halves, so
 * that the host is notified a second time if its first attempt did not end the
 * recursion.  When the stack is back above the reserve, the next switch closes
 * the reserve (pf_stack_close_reserve).
 *
 * `room` is memory above the stack for the host (the Python binding keeps the
 * interpreter's first data-stack chunk there).  The header is placed where the
 * first C frames, the header and the first bytes of the room share one page: a
 * parked fiber touches one page.  Successive slots shift the header by
 * different multiples of 256 bytes ("colouring"); otherwise the hot lines of
 * many fibers would all compete for one cache set.
 *
 * The guard of slot n lies just above the room of slot n-1, so one page-table
 * page describes both.
 *
 * Free slots are reused last-in first-out.  A slab's list of free slots lies
 * outside the slots, so whole slabs can be returned to the system.  A few
 * released stacks do not return to their slab: they stay at hand, already set
 * up, and are the first to be reused, so a fiber that begins where another has
 * just ended costs one pointer access.
 */
#ifndef PF_STACK_H
#define PF_STACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "context/context.h"

typedef struct pf_slab pf_slab;
typedef struct pf_stack_pool pf_stack_pool;

/* The header of a stack, which lies on the stack's first page while the stack
 * is in use.  A header fills one cache line, so the room begins with a new
 * one. */
typedef struct pf_stack {
    pf_area area;
    pf_slab *slab; /* the slab and the slot that the stack is part of */
    uint32_t slot;
    uint32_t room_size;
    uint32_t reserve; /* bytes from area.low that are guarded at first */
    uint32_t guarded; /* bytes from area.low that are guarded now */
    char *room;       /* the host's memory, 16-byte aligned */
    union {
        void *user;     /* set by the code that acquired the stack; even */
        uintptr_t next; /* of a free stack at hand: the next one, plus 1 */
    };
#if PF_VALGRIND
    unsigned valgrind_id;
#endif
} pf_stack;

/* Bytes from the header to the room, where the room follows the header. */
#define PF_STACK_LEAD ((sizeof(pf_stack) + 15) & ~(size_t)15)

/* The system limit that the last failure hit, for the error message. */
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

/* Make a pool.  `slot_size` is rounded up to whole pages and includes guard
 * (one page) and room.  The minimum is pf_stack_min(room_size).  NULL: no
 * memory. */
pf_stack_pool *pf_stack_pool_new(size_t slot_size, size_t room_size);

/* Return all slabs without live stacks to the system and abandon the rest.  (A
 * live stack belongs to a suspended fiber that refused to die: its memory must
 * stay.)  An abandoned pool is freed with its last stack, if ever. */
void pf_stack_pool_free(pf_stack_pool *pool);

/* Take a stack from the pool.  0; -ENOMEM, with *stack NULL: the system has no
 * more memory or mappings (see pf_stack_pool_limit). */
int pf_stack_acquire(pf_stack_pool *pool, pf_stack **stack);
/* The same for a stack that is never shared. */
int pf_stack_acquire_own(pf_stack_pool *pool, pf_stack **stack);

/* Give a stack back, for its occupant.  Must not be called on that stack. */
void pf_stack_release(pf_stack *stack);

/* Return all memory of free stacks to the system.  Returns how many bytes. */
size_t pf_stack_pool_trim(pf_stack_pool *pool);

/* Return the memory of free slots and of vacant ones (see below), but leave
 * slabs mapped, even those without a live stack.  Returns the bytes.  (Not on
 * Windows.) */
size_t pf_stack_pool_discard(pf_stack_pool *pool);

/* The pool's owner is NULL at first. */
void pf_stack_pool_own(pf_stack_pool *pool, void *owner);
void *pf_stack_owner(const pf_stack *stack);

/* Sharing.  A slot may be the home of several users, whose bytes are in the
 * slot in turn.  The user whose bytes are there now is the occupant,
 * stack->user; a slot that is a home but has no occupant is vacant.  (Not on
 * Windows.)
 *
 * pf_stack_pool_share_from sets how the pool shares: while `from` slots or more are
 * live, pf_stack_acquire first asks `share` for one of them, which `share` has
 * made the home of one more user.  If `share` returns NULL, the pool takes a
 * free slot.  `must` is true in a second call, after the system has refused a
 * free slot.  `share` NULL: slots are not shared from now on. */
typedef pf_stack *(*pf_stack_share_fn)(pf_stack_pool *pool, void *owner,
                                       bool must);
void pf_stack_pool_share_from(pf_stack_pool *pool, size_t from,
                              pf_stack_share_fn share);
/* Count the slots that are a home, and those of them with an occupant. */
size_t pf_stack_pool_live(const pf_stack_pool *pool);
size_t pf_stack_pool_occupied(const pf_stack_pool *pool);
/* Return the next slot that may be shared, going round all slots again and
 * again; NULL if there is none among the next `steps` slots, or in one round.
 * A vacant slot counts only if `vacant` is true, and gets its memory back. */
pf_stack *pf_stack_pool_next(pf_stack_pool *pool, size_t steps, bool vacant);
/* Make a vacant slot usable: pf_stack_pool_discard may have returned its
 * memory, with the header.  False if the system refuses. */
bool pf_stack_bring_back(pf_stack_pool *pool, pf_stack *stack);
/* The slot's occupant has moved its bytes elsewhere; the slot is vacant, and
 * still that user's home. */
void pf_stack_leave(pf_stack *stack);
/* For a slot that has just become vacant, and whose stack was in use from
 * `low` on: if that was deep, return the memory of the deep part. */
void pf_stack_trim_below(pf_stack *stack, const char *low);
/* The bytes of `user`, whose home is this vacant slot, are there again. */
void pf_stack_enter(pf_stack *stack, void *user);
/* A vacant slot becomes the home of one more user, who is the occupant. */
void pf_stack_share(pf_stack *stack, void *user);
/* Is the slot the home of several users? */
bool pf_stack_is_shared(const pf_stack *stack);
/* Give a stack back, for a user who is not the occupant of this home. */
void pf_stack_release_home(pf_stack_pool *pool, pf_stack *stack);

/* For a thread that is idle at `now` (pf_clock_monotonic): return the memory
 * that an earlier load left.  Returns when to call again; INT64_MAX: not
 * before the pool is used. */
int64_t pf_stack_pool_decay(pf_stack_pool *pool, int64_t now);

/* A load has ended for good: return its memory at once, as if that load were
 * long ago. */
void pf_stack_pool_load_over(pf_stack_pool *pool);

void pf_stack_pool_stats(const pf_stack_pool *pool, pf_stack_stats *stats);
size_t pf_stack_pool_slot_size(const pf_stack_pool *pool);
pf_stack_pool *pf_stack_pool_of(const pf_stack *stack);
size_t pf_stack_size(const pf_stack *stack); /* the slot size of its pool */
pf_limit pf_stack_pool_limit(const pf_stack_pool *pool);

/* The smallest slot size, in bytes.  An eighth of each slot is reserve, 64 KiB
 * at most, in whole pages (none on Windows). */
size_t pf_stack_min(size_t room_size);
/* The slot size that pf_stack_pool_new makes of `slot_size`. */
size_t pf_stack_slot_size(size_t slot_size, size_t room_size);
size_t pf_stack_page_size(void);
pf_guard_kind pf_stack_guard_kind(void);
const char *pf_stack_guard_name(pf_guard_kind kind);
const char *pf_limit_name(pf_limit limit);

/* Is `address` in the guard of this stack? (for the fault handler) */
bool pf_stack_guards(const pf_stack *stack, const void *address);

/* Is `address` in the part of the reserve that is closed? */
bool pf_stack_in_reserve(const pf_stack *stack, const void *address);

/* Open the half of the reserve that `address` is in, and everything above;
 * the whole reserve if a half has less than a page.  Safe in a signal handler.
 * False if the system refuses. */
bool pf_stack_open_reserve(pf_stack *stack, const void *address);

/* Would pf_stack_open_reserve leave nothing closed? */
bool pf_stack_is_last_reserve(const pf_stack *stack, const void *address);

/* Returns how many bytes of the reserve are open. */
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

/* Close the reserve, unless the running frames reach into it (`sp` is an
 * address in the innermost one).  pf_stack_release closes it, too. */
void pf_stack_close_reserve(pf_stack *stack, const void *sp);

#if defined(_WIN32)
#include "engine/stack/alone.h"
#endif

#endif
