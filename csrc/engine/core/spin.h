/* Decides when a scheduler that has nothing to do spins for a moment before it
 * sleeps.
 *
 * Two threads that send each other one message at a time sleep after each
 * message: that is two system calls and a wake-up by the kernel, some 10 us a
 * message.  A thread that spins for as long as sleeping costs is never more
 * than twice as slow as one that knows the future (Karlin, Manasse, McGeoch,
 * Owicki, "Competitive randomized algorithms for non-uniform problems", 1990).
 * But a thread that spins in vain takes a processor from others, so:
 * - the host must allow spinning, and does so only where another thread can
 *   run meanwhile: with more than one processor, and no lock around all of
 *   Python;
 * - a scheduler spins only after a short wait that a message has ended;
 * - after spinning in vain n times in a row, 2^n such waits pass without it.
 */
#ifndef PF_SPIN_H
#define PF_SPIN_H

#include <stdbool.h>
#include <stdint.h>
#ifdef _MSC_VER
#include <intrin.h>
#endif

#define PF_SPIN_NS INT64_C(20000)       /* the time to spin */
#define PF_SPIN_SOON_NS INT64_C(100000) /* a wait below this is short */
#define PF_SPIN_MOST_MISSES 6

typedef struct pf_spin {
    bool allowed;    /* by the host */
    bool soon;       /* the last wait was short, and a message ended it */
    uint8_t misses;  /* times in a row that no message came */
    uint8_t passing; /* short waits to let pass before the next try */
} pf_spin;

static inline bool
pf_spin_pays(const pf_spin *spin)
{
    return spin->allowed && spin->soon && spin->passing == 0;
}

/* Records the outcome of spinning; `came`: a message came in time. */
static inline void
pf_spin_tried(pf_spin *spin, bool came)
{
    if (came) {
        spin->misses = 0;
        return;
    }
    if (spin->misses < PF_SPIN_MOST_MISSES) {
        spin->misses++;
    }
    spin->passing = (uint8_t)(1U << spin->misses);
    spin->soon = false;
}

/* Records that the scheduler has slept for `ns` nanoseconds; `came`: a message
 * has come. */
static inline void
pf_spin_slept(pf_spin *spin, int64_t ns, bool came)
{
    spin->soon = came && ns < PF_SPIN_SOON_NS;
    if (spin->soon && spin->passing > 0) {
        spin->passing--;
    }
}

/* Lets the processor core rest between two checks, or its other hardware
 * thread run. */
static inline void
pf_spin_rest(void)
{
#if defined(_MSC_VER) && (defined(_M_X64) || defined(_M_IX86))
    _mm_pause();
#elif defined(_MSC_VER) && defined(_M_ARM64)
    __yield();
#elif defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif
