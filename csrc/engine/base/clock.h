/* Clocks; engine/unix/poller.c and engine/windows/poller.c implement them. */
#ifndef PF_CLOCK_H
#define PF_CLOCK_H

#include <stdint.h>

/* Nanoseconds of the system's monotonic clock. */
int64_t pf_clock_monotonic(void);
/* Nanoseconds of processor time that the calling thread has used. */
int64_t pf_clock_thread_time(void);

#endif
