/* Calls a function when a thread really ends, no matter which code made the
 * thread.  engine/unix/thread_end.c and engine/windows/thread_end.c implement
 * this. */
#ifndef PF_THREAD_END_H
#define PF_THREAD_END_H

/* Have `at_end` called once when the calling thread ends, or when it calls
 * exit().  Every call must pass the same function.  On Windows the function is
 * never called. */
void pf_thread_end_watch(void (*at_end)(void));

#endif
