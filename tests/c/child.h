/* Run a function in a child process and see how it ended (POSIX only). */
#ifndef PF_TEST_CHILD_H
#define PF_TEST_CHILD_H

#include <stddef.h>

#if !defined(_WIN32)

typedef struct child_end {
    int status;         /* what waitpid says */
    char errors[16384]; /* what it wrote to stderr */
} child_end;

/* Standard error goes to `end->errors`; exits with what fn returns. */
void child_run(int (*fn)(void *arg), void *arg, child_end *end);

#endif

#endif
