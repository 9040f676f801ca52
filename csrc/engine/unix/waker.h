/* A descriptor that becomes readable when any thread, or a signal handler,
 * says so: the two ends are one eventfd on Linux, those of a pipe elsewhere. */
#ifndef PF_WAKER_H
#define PF_WAKER_H

typedef struct pf_waker {
    int read_end; /* -1: closed */
    int write_end;
} pf_waker;

/* 0, or -errno and it is closed. */
int pf_waker_open(pf_waker *waker);
void pf_waker_close(pf_waker *waker);

/* From any thread and from a signal handler; errno stays as it was. */
void pf_waker_wake(const pf_waker *waker);
/* Forget that it was woken. */
void pf_waker_empty(const pf_waker *waker);

#endif
