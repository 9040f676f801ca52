/* When a scheduler that has nothing to do looks on for a moment, before it
 * sleeps.
 *
 * Two threads that send each other one message at a time sleep after each:
 * that is two system calls and a wake-up by the kernel, some 10 us a message.
 * Who looks on for as long as sleeping costs is never more than twice as slow
 * as who knew the future (Karlin, Manasse, McGeoch, Owicki, "Competitive
 * randomized algorithms for non-uniform problems", 1990).  But a processor that
 * looks on in vain is taken from others, so:
 * - the host allows it, where another thread can run meanwhile: with more than
 *   one processor, and no lock around all of Python;
 * - only after a wait that a message has ended soon;
 * - who looks on in vain n times in a row lets 2^n such waits pass.
 */
#ifndef PF_SPIN_H
#define PF_SPIN_H

#include <stdbool.h>
#include <stdint.h>
#ifdef _MSC_VER
#include <intrin.h>
#endif

#define PF_SPIN_NS INT64_C(20000)       /* how long it looks on */
#define PF_SPIN_SOON_NS INT64_C(100000) /* a wait that was this short */
#define PF_SPIN_MOST_MISSES 6

typedef struct pf_spin {
    bool allowed;    /* by the host */
    bool soon;       /* the last wait was short */
    uint8_t misses;  /* in a row */
    uint8_t passing; /* short waits that still pass before the next try */
} pf_spin;

static inline bool
pf_spin_pays(const pf_spin *spin)
{
    return spin->allowed && spin->soon && spin->passing == 0;
}

/* It has looked on: did a message come? */
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

/* It has slept for so many nanoseconds, and a message has come, or not. */
static inline void
pf_spin_slept(pf_spin *spin, int64_t ns, bool came)
{
    spin->soon = came && ns < PF_SPIN_SOON_NS;
    if (spin->soon && spin->passing > 0) {
        spin->passing--;
    }
}

/* Between two looks: lets the processor rest, or its other half. */
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
