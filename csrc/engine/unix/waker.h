/* A waker is a descriptor that any thread, or a signal handler, can make
 * readable, in order to end a poller's wait.  On Linux both ends are the same
 * eventfd, elsewhere they are those of a pipe. */
#ifndef PF_WAKER_H
#define PF_WAKER_H

typedef struct pf_waker {
    int read_end; /* -1: closed */
    int write_end;
} pf_waker;

/* Returns 0, or -errno; the waker is closed then. */
int pf_waker_open(pf_waker *waker);
void pf_waker_close(pf_waker *waker);

/* Makes read_end readable.  Any thread and any signal handler may call this;
 * errno stays as it was. */
void pf_waker_wake(const pf_waker *waker);
/* Makes read_end unreadable until the next pf_waker_wake. */
void pf_waker_empty(const pf_waker *waker);

#endif
