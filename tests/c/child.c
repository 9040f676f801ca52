#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "child.h"

#if !defined(_WIN32)

#include "context/sanitizers.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if PF_VALGRIND
#include <valgrind/valgrind.h>
#endif

/* Keeps Valgrind from counting the child's deliberate fault as an error, since
 * it would replace the child's exit code. */
static void
silence_valgrind(void)
{
#if PF_VALGRIND
    VALGRIND_DISABLE_ERROR_REPORTING;
#endif
}

static void
read_all(int fd, char *text, size_t size)
{
    size_t length = 0;
    for (;;) {
        char drain[256]; /* takes what does not fit into `errors` */
        char *to = length < size - 1 ? text + length : drain;
        size_t most = length < size - 1 ? size - 1 - length : sizeof drain;
        ssize_t n = read(fd, to, most);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        length += to == drain ? 0 : (size_t)n;
    }
    text[length] = '\0';
}

void
child_run(int (*fn)(void *arg), void *arg, child_end *end)
{
    int ends[2];
    end->status = -1;
    end->errors[0] = '\0';
    if (pipe(ends) != 0) {
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        alarm(60);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        silence_valgrind();
        _exit(fn(arg));
    }
    close(ends[1]);
    read_all(ends[0], end->errors, sizeof end->errors);
    close(ends[0]);
    waitpid(pid, &end->status, 0);
}

#else
typedef int not_used_here;
#endif
