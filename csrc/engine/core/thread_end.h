/* A function that runs when a thread really ends, whoever made the thread. */
#ifndef PF_THREAD_END_H
#define PF_THREAD_END_H

/* Have `at_end` called once when the calling thread ends, or when it calls
 * exit().  Always the same function.  Never called on Windows. */
void pf_thread_end_watch(void (*at_end)(void));

#endif
