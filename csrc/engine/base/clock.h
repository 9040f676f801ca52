/* Real time. */
#ifndef PF_CLOCK_H
#define PF_CLOCK_H

#include <stdint.h>

int64_t pf_monotonic(void); /* nanoseconds, from the poller's system */

#endif
