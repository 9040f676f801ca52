/* Runs a function in a child process and reports how the process ended (POSIX
 * only). */
#ifndef PF_TEST_CHILD_H
#define PF_TEST_CHILD_H

#include <stddef.h>

#if !defined(_WIN32)

typedef struct child_end {
    int status;         /* from waitpid */
    char errors[16384]; /* what the child wrote to stderr */
} child_end;

/* Calls fn(arg) in a child, which exits with its result.  Fills *end. */
void child_run(int (*fn)(void *arg), void *arg, child_end *end);

#endif

#endif
