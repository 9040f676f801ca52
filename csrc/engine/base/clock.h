/* Real time. */
#ifndef PF_CLOCK_H
#define PF_CLOCK_H

#include <stdint.h>

int64_t pf_clock_monotonic(void); /* nanoseconds, from the poller's system */
/* Nanoseconds that the processor has spent on the calling thread. */
int64_t pf_clock_thread_time(void);

#endif
