/* Runs a function on another thread, in the handler of a signal that this file
 * sends to it: see interrupt.h. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* dladdr, _Unwind_GetIPInfo */
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE
#endif

#include "engine/base/interrupt.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "context/context.h"
#include "engine/base/atomics.h"

/* In a signal handler the unwinder is safe only where it finds the library of
 * an address without a lock, or with a lock that the thread may take again. */
#if defined(__GLIBC__) || defined(__APPLE__)
#define CAN_UNWIND 1
#include <unwind.h>
#endif

#define SIGNAL SIGURG

typedef struct request {
    void (*look)(void *data);
    void *data;
    PF_ATOMIC(uint8_t) done;
} request;

static PF_ATOMIC(request *) wanted; /* NULL: none, or a handler has taken it */
static bool installed;

uintptr_t
pf_interrupt_this_thread(void)
{
    return (uintptr_t)pthread_self();
}

/* The signals that this thread blocks otherwise. Of a thread. */
static _Thread_local sigset_t blocked;

void
pf_interrupt_refuse_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &blocked);
}

void
pf_interrupt_accept_signals(void)
{
    pthread_sigmask(SIG_SETMASK, &blocked, NULL);
}

static void
on_signal(int number)
{
    (void)number;
    int saved = errno;
    request *r = pf_exchange(&wanted, NULL);
    if (r != NULL) { /* else it was withdrawn, or other code sent the signal */
        r->look(r->data);
        pf_store(&r->done, 1);
    }
    errno = saved;
}

/* Whether the installed handler is on_signal. */
static bool
is_ours(const struct sigaction *action)
{
    return !(action->sa_flags & SA_SIGINFO) && action->sa_handler == on_signal;
}

int
pf_interrupt_install(void)
{
    struct sigaction now, action;
    if (sigaction(SIGNAL, NULL, &now) != 0) {
        return -errno;
    }
    bool ours = is_ours(&now);
    bool free = !(now.sa_flags & SA_SIGINFO) &&
                (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN);
    if (!ours && !free) {
        return -EBUSY;
    }
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (!ours && sigaction(SIGNAL, &action, NULL) != 0) {
        return -errno;
    }
    installed = true;
    return 0;
}

void
pf_interrupt_uninstall(void)
{
    struct sigaction now;
    if (!installed) {
        return;
    }
    installed = false;
    /* In the child of a fork it may be the request of a missing thread. */
    (void)pf_exchange(&wanted, NULL);
    if (sigaction(SIGNAL, NULL, &now) == 0 && is_ours(&now)) {
        now.sa_handler = SIG_DFL;
        now.sa_flags = 0;
        (void)sigaction(SIGNAL, &now, NULL);
    }
}

static void
wait_a_little(void)
{
    struct timespec pause = {.tv_nsec = 100000};
    nanosleep(&pause, NULL);
}

/* Takes the request back.  Returns false if no handler had taken it, so none
 * will.  Otherwise waits until the handler is done, because the request is in
 * the caller's memory, and returns true. */
static bool
withdraw(request *r)
{
    if (pf_exchange(&wanted, NULL) == r) {
        return false;
    }
    while (!pf_load(&r->done)) {
        wait_a_little();
    }
    return true;
}

bool
pf_interrupt(uintptr_t thread, void (*look)(void *data), void *data,
             int64_t patience)
{
    request r = {.look = look, .data = data};
    struct sigaction now;
    if (!installed || sigaction(SIGNAL, NULL, &now) != 0 || !is_ours(&now)) {
        return false; /* the program may have replaced the handler */
    }
    (void)pf_exchange(&wanted, &r);
    if (pthread_kill((pthread_t)thread, SIGNAL) != 0) {
        return withdraw(&r);
    }
    for (int64_t waited = 0; waited < patience; waited += 100000) {
        if (pf_load(&r.done)) {
            return true;
        }
        wait_a_little();
    }
    return withdraw(&r);
}

#if defined(CAN_UNWIND)

typedef struct walk {
    void **places;
    size_t count, most;
    bool inside; /* the walk has left the handler's frames */
} walk;

static _Unwind_Reason_Code
one_frame(struct _Unwind_Context *context, void *data)
{
    walk *w = data;
    int interrupted = 0; /* 1: the frame stopped there without a call */
    uintptr_t place = (uintptr_t)_Unwind_GetIPInfo(context, &interrupted);
    w->inside = w->inside || interrupted;
    if (!w->inside) {
        return _URC_NO_REASON;
    }
    if (place == 0 || w->count == w->most) {
        return _URC_END_OF_STACK;
    }
    /* A return address may lie in the next function already, so `place - 1`
     * names the call. */
    w->places[w->count++] = (void *)(interrupted ? place : place - 1);
    return _URC_NO_REASON;
}

size_t
pf_interrupt_native_stack(void **places, size_t most)
{
    walk w = {.places = places, .most = most};
    if (pf_context_between()) {
        return 0;
    }
    (void)_Unwind_Backtrace(one_frame, &w);
    return w.count;
}

#else

size_t
pf_interrupt_native_stack(void **places, size_t most)
{
    (void)places;
    (void)most;
    return 0;
}

#endif

static const char *
last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

size_t
pf_interrupt_native_name(void *place, char *text, size_t size)
{
    Dl_info found;
    int n;
    if (dladdr(place, &found) == 0 || found.dli_fname == NULL) {
        n = snprintf(text, size, "%p", place);
    } else if (found.dli_sname != NULL) {
        n = snprintf(text, size, "%s (%s)", found.dli_sname,
                     last_part(found.dli_fname));
    } else {
        n = snprintf(text, size, "%s+%#zx", last_part(found.dli_fname),
                     (size_t)((char *)place - (char *)found.dli_fbase));
    }
    return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}
