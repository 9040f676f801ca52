/* Fibers for tests of packing: they wait in a line, in which their places are
 * part of them. */
#ifndef PF_TEST_SLEEPERS_H
#define PF_TEST_SLEEPERS_H

#include "engine/core/pack.h"
#include "world.h"

#define STACK_SIZE ((size_t)64 << 10)
#define FEW 4     /* slots: their number is fixed */
#define ENOUGH 16 /* slots: there may be more for a while */
#define OUT_OF_LINE __attribute__((noinline))
/* The compiler does not know where it comes from, and cannot find it again. */
#define REMEMBER(variable) __asm__("" : "+r"(variable))

#define SKIP_WHERE_STACKS_STAY()                                              \
    do {                                                                      \
        if (!pf_pack_is_possible()) {                                         \
            SKIP("stacks cannot be packed here");                             \
        }                                                                     \
    } while (0)

typedef struct sleeper {
    worker worker; /* first */
    size_t stack_size;
    bool own_stack;
    struct sleeper *next, *previous; /* in the line; NULL: not there */
    const char *seen; /* a byte of its stack, an 'x', wherever it is now */
    bool exposed, lends, pinned; /* so the host says */
    int packed, unpacked, moved; /* calls of the host */
} sleeper;

extern world sleepers_world;  /* large; one test at a time */
extern sleeper sleepers_line; /* of all who wait */
extern int sleepers_finished;
extern int sleepers_lost;      /* for lack of a stack */
extern bool sleepers_all_lend; /* the host says so */
extern int sleepers_looks;     /* calls of the host */
extern int sleepers_arrivals;  /* by the mover */
extern const pf_pack_host sleepers_host;

/* With so many slots. */
world *sleepers_open(size_t slots);
/* Without any; false: no memory. */
bool sleepers_try_to_open(void);
int sleepers_set(size_t slots);
/* Lets all so many end, and nothing is left behind. */
void sleepers_close(int fibers);

/* In the ready queue; they get their stacks as they begin. */
sleeper *sleeper_spawn(work_fn work, long value);
sleeper *sleeper_spawn_sized(work_fn work, long value, size_t stack_size);
void sleepers_spawn(work_fn work, int count);

/* For their work: wait in line until woken. */
void sleeper_wait(sleeper *self);
/* Work: waits three times, and finds all its variables as they were. */
void sleeper_keep_locals(worker *w);

/* Until none is ready. */
void sleepers_run(void);
/* Wake all in the line: how many. */
int sleepers_wake(void);
void sleepers_run_to_the_end(void);

pf_stack_pool *sleepers_pool(size_t stack_size);
/* Of the pool of STACK_SIZE. */
pf_pack_stats sleepers_stats(void);
size_t sleepers_occupied(void);
/* The first in line that is packed; NULL: none is. */
sleeper *sleepers_packed_one(void);

#endif
