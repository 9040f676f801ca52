/* wakeup.h for POSIX: the interpreter writes to a pipe that the loop watches
 * (signal.set_wakeup_fd) when a signal arrives.
 *
 * The signal alone is not enough: one that arrives just before the loop blocks
 * does not interrupt the wait, and the system may deliver it to another
 * thread. If the program uses the wakeup descriptor itself, it is left alone.
 */
#include "python/run/wakeup.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

/* of a thread: the main one; read end, write end */
static int wake_pipe[2] = {-1, -1};
/* of a thread: the main one; result of fstat() for the two ends */
static struct stat pipe_stat[2];

static int
set_up_end(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
                   fcntl(fd, F_SETFD, FD_CLOEXEC) < 0
               ? -1
               : 0;
}

/* Do both numbers still belong to our pipe?  A program that closes every
 * descriptor, to become a daemon, closes the pipe as well, and the numbers may
 * belong to other files by now. */
static bool
pipe_is_ours(void)
{
    for (int i = 0; i < 2; i++) {
        struct stat now;
        if (wake_pipe[i] < 0 || fstat(wake_pipe[i], &now) < 0 ||
            now.st_dev != pipe_stat[i].st_dev ||
            now.st_ino != pipe_stat[i].st_ino) {
            return false;
        }
    }
    return true;
}

static int
set_up_pipe(int ends[2])
{
    return set_up_end(ends[0]) < 0 || set_up_end(ends[1]) < 0 ? -1 : 0;
}

static int
remember_pipe(void)
{
    return fstat(wake_pipe[0], &pipe_stat[0]) < 0 ||
                   fstat(wake_pipe[1], &pipe_stat[1]) < 0
               ? -1
               : 0;
}

static int
open_pipe(void)
{
    if (pipe_is_ours()) {
        return 0;
    }
    if (pipe(wake_pipe) < 0 || set_up_pipe(wake_pipe) < 0 ||
        remember_pipe() < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return 0;
}

/* Gives the child a separate pipe under the same numbers.  If it shared the
 * parent's, each process would read wake-ups that are the other's. */
static int
after_fork(PfThread *t)
{
    (void)t;
    if (!pipe_is_ours()) {
        return 0;
    }
    int fresh[2];
    if (pipe(fresh) < 0 || dup2(fresh[0], wake_pipe[0]) < 0 ||
        dup2(fresh[1], wake_pipe[1]) < 0 || set_up_pipe(wake_pipe) < 0 ||
        remember_pipe() < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    close(fresh[0]);
    close(fresh[1]);
    return 0;
}

const PfPart pf_wakeup_part = {
    .after_fork = after_fork,
};

void
pf_wakeup_drain(void)
{
    char sink[64];
    while (read(wake_pipe[0], sink, sizeof(sink)) == (ssize_t)sizeof(sink)) {
    }
}

/* Sets the wakeup descriptor.  Returns a new reference to the one before (-1:
 * none was set), or NULL with an exception. */
static PyObject *
set_wakeup_fd(PyObject *signals, int descriptor)
{
    PyObject *args = NULL, *kwargs = NULL, *old = NULL;
    PyObject *set = PyObject_GetAttrString(signals, "set_wakeup_fd");
    if (set == NULL) {
        goto done;
    }
    args = Py_BuildValue("(i)", descriptor);
    if (args == NULL) {
        goto done;
    }
    kwargs = Py_BuildValue("{sO}", "warn_on_full_buffer", Py_False);
    if (kwargs != NULL) {
        old = PyObject_Call(set, args, kwargs);
    }
done:
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    Py_XDECREF(set);
    return old;
}

/* Sets the wakeup descriptor.  Returns false, without an exception, if
 * signal.set_wakeup_fd refuses it. */
static bool
try_set(PyObject *signals, long descriptor)
{
    PyObject *now =
        PyObject_CallMethod(signals, "set_wakeup_fd", "l", descriptor);
    if (now == NULL) {
        PyErr_Clear();
        return false;
    }
    Py_DECREF(now);
    return true;
}

/* Restores the program's wakeup descriptor.  signal.set_wakeup_fd refuses one
 * that was closed or made blocking since the program set it.  A blocking one
 * is restored all the same, by making it non-blocking for the call; if the
 * descriptor is closed, none is set. */
static void
restore(PyObject *signals, long descriptor)
{
    if (try_set(signals, descriptor)) {
        return;
    }
    int fd = (int)descriptor;
    int flags = fcntl(fd, F_GETFL);
    bool done = false;
    if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) {
        done = try_set(signals, descriptor);
        (void)fcntl(fd, F_SETFL, flags);
    }
    if (!done) {
        (void)try_set(signals, -1);
    }
}

int
pf_wakeup_begin(PyObject *signals, long *old, intptr_t *descriptor)
{
    *old = PF_WAKEUP_UNTOUCHED;
    *descriptor = PF_NO_DESCRIPTOR;
    PyObject *before =
        open_pipe() < 0 ? NULL : set_wakeup_fd(signals, wake_pipe[1]);
    if (before == NULL) {
        return -1;
    }
    long found = PyLong_AsLong(before);
    Py_DECREF(before);
    if (PyErr_Occurred()) {
        return -1; /* somebody has replaced signal.set_wakeup_fd */
    }
    if (found >= 0 && found != wake_pipe[1]) {
        restore(signals, found);
        return 0;
    }
    *old = found;
    *descriptor = wake_pipe[0];
    return 0;
}

/* Sets `old` again, unless the program has set a descriptor during the run:
 * that one stays. */
void
pf_wakeup_end(PyObject *signals, long old)
{
    PyObject *now = set_wakeup_fd(signals, (int)old);
    long found = now == NULL ? -1 : PyLong_AsLong(now);
    Py_XDECREF(now);
    PyErr_Clear();
    if (found != wake_pipe[1] && found >= 0) {
        restore(signals, found);
    }
}
