/* Fibers for the tests of packing, and their host.  A sleeper waits in a
 * linked list, `sleepers_line`, whose links are in the sleepers themselves. */
#ifndef PF_TEST_SLEEPERS_H
#define PF_TEST_SLEEPERS_H

#include "engine/core/pack.h"
#include "world.h"

#define STACK_SIZE ((size_t)64 << 10)
#define FEW 4     /* slots: their number is fixed */
#define ENOUGH 16 /* slots: there may be more for a while */
#define OUT_OF_LINE __attribute__((noinline))
/* Makes the compiler treat the variable's value as unknown, so that the value
 * must be kept across a wait and cannot be computed again. */
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
    struct sleeper *next, *previous; /* in the line; NULL: not waiting */
    const char *seen; /* an 'x' on its stack; the host moves it along */
    bool exposed, lends, pinned; /* what the host's `look` answers */
    int packed, unpacked, moved; /* how often the host was called */
} sleeper;

extern world sleepers_world;  /* large; one test at a time */
extern sleeper sleepers_line; /* the head of the list of waiting sleepers */
extern int sleepers_finished;
extern int sleepers_lost;      /* sleepers that got no stack */
extern bool sleepers_all_lend; /* `look` answers `lends` for every sleeper */
extern int sleepers_looks;     /* calls of the host's `look` */
extern int sleepers_arrivals;  /* switches from the mover to a fiber */
extern const pf_pack_host sleepers_host;

/* Opens the world with packing on, with so many slots. */
world *sleepers_open(size_t slots);
/* Opens the world with packing off.  False if there is no
 * memory. */
bool sleepers_try_to_open(void);
int sleepers_set(size_t slots);
/* Runs all sleepers to their end, checks that there were `fibers` of them and
 * that nothing is left, and closes the world. */
void sleepers_close(int fibers);

/* Spawned sleepers are in the ready queue and get a stack when they begin. */
sleeper *sleeper_spawn(work_fn work, long value);
sleeper *sleeper_spawn_sized(work_fn work, long value, size_t stack_size);
void sleepers_spawn(work_fn work, int count);

/* Called by a sleeper's work: waits in line until woken. */
void sleeper_wait(sleeper *self);
/* The work of a sleeper that waits three times and checks its variables. */
void sleeper_keep_locals(worker *w);

/* Runs until no fiber is ready. */
void sleepers_run(void);
/* Wakes all sleepers in the line and returns how many there were. */
int sleepers_wake(void);
void sleepers_run_to_the_end(void);

pf_stack_pool *sleepers_pool(size_t stack_size);
/* Both are about the pool of STACK_SIZE. */
pf_pack_stats sleepers_stats(void);
size_t sleepers_occupied(void);
/* Returns the first sleeper in line that is packed, or NULL. */
sleeper *sleepers_packed_one(void);

#endif
