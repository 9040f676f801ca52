/* Watches handles that are not sockets: see handles.h. */
#define WIN32_LEAN_AND_MEAN
#include "engine/windows/handles.h"

#include <errno.h>

#include "engine/base/memory.h"

/* ---------------------------------------------- the pool's thread --- */

/* Runs on a thread of the system's pool. */
static void CALLBACK
handle_is_set(void *data, BOOLEAN timed_out)
{
    pf_handle *h = data;
    (void)timed_out;
    pf_store(&h->fired, 1);
    PostQueuedCompletionStatus(h->port, 0, h->key, NULL);
}

/* Ends the pool's wait for a handle.  Afterwards no thread of the pool uses
 * `h`. */
static void
end_wait(pf_handle *h)
{
    if (h->wait != NULL) {
        (void)UnregisterWaitEx(h->wait, INVALID_HANDLE_VALUE);
        h->wait = NULL;
    }
    pf_store(&h->fired, 0);
}

static bool
is_of_interest(const pf_handle *h)
{
    return (h->registration->interest & PF_IO_READ) != 0;
}

bool
pf_handles_watch(pf_handles *handles)
{
    for (size_t i = 0; i < handles->count; i++) {
        pf_handle *h = handles->list[i];
        HANDLE handle = (HANDLE)h->registration->descriptor;
        if (is_of_interest(h) && h->wait == NULL &&
            !RegisterWaitForSingleObject(&h->wait, handle, handle_is_set, h,
                                         INFINITE, WT_EXECUTEONLYONCE)) {
            h->wait = NULL;
            return false;
        }
    }
    return true;
}

/* The pool's thread may have taken the signal of an event that resets itself,
 * so this looks at `fired` first.  Once either has found the signal, end_wait
 * keeps the other from finding it again. */
static bool
is_set(pf_handle *h)
{
    HANDLE handle = (HANDLE)h->registration->descriptor;
    bool set = pf_load(&h->fired) != 0 ||
               WaitForSingleObject(handle, 0) == WAIT_OBJECT_0;
    if (set) {
        end_wait(h);
    }
    return set;
}

int
pf_handles_look(pf_handles *handles)
{
    int found = 0;
    for (size_t i = 0; i < handles->count; i++) {
        pf_handle *h = handles->list[i];
        h->found = h->found || (is_of_interest(h) && is_set(h));
        found += h->found;
    }
    return found;
}

/* ------------------------------------------------- registrations --- */

static bool
is_registered(const pf_handles *handles, intptr_t descriptor)
{
    for (size_t i = 0; i < handles->count; i++) {
        if (handles->list[i]->registration->descriptor == descriptor) {
            return true;
        }
    }
    return false;
}

static bool
is_known(unsigned interest)
{
    return (interest & ~(unsigned)(PF_IO_READ | PF_IO_EDGE)) == 0;
}

/* Pseudo-handles, which are below 0, do not count as open. */
static bool
is_open(intptr_t descriptor)
{
    DWORD flags;
    return descriptor > 0 && GetHandleInformation((HANDLE)descriptor, &flags);
}

int
pf_handles_add(pf_handles *handles, intptr_t descriptor, unsigned interest,
               pf_registration *r)
{
    if (!is_known(interest)) {
        return -EINVAL;
    }
    if (!is_open(descriptor)) {
        return -EBADF;
    }
    if (r->added || is_registered(handles, descriptor)) {
        return -EEXIST;
    }
    if (handles->count == PF_MOST_HANDLES) {
        return -ENOSPC;
    }
    pf_handle *h = pf_memory_calloc(1, sizeof *h);
    if (h == NULL) {
        return -ENOMEM;
    }
    h->registration = r;
    h->port = handles->port;
    h->key = handles->key;
    r->descriptor = descriptor;
    r->slot = (uint32_t)handles->count++;
    r->interest = (uint16_t)interest;
    r->added = true;
    handles->list[r->slot] = h;
    return 0;
}

int
pf_handles_modify(pf_handles *handles, pf_registration *r, unsigned interest)
{
    if (!is_known(interest)) {
        return -EINVAL;
    }
    pf_handle *h = handles->list[r->slot];
    r->interest = (uint16_t)interest;
    h->found = false;
    end_wait(h);
    return 0;
}

/* The last entry of the list takes the place of the removed one. */
int
pf_handles_remove(pf_handles *handles, pf_registration *r)
{
    pf_handle *h = handles->list[r->slot];
    pf_handle *last = handles->list[--handles->count];
    handles->list[r->slot] = last;
    last->registration->slot = r->slot;
    r->added = false;
    end_wait(h);
    free(h);
    return 0;
}

/* Goes from the last entry to the first.  `ready` may remove a registration,
 * whose place the last one then takes, or add one at the end: the one that
 * moves down has been reported already, the new one has nothing to report. */
void
pf_handles_deliver(pf_handles *handles, struct pf_scheduler *s)
{
    for (size_t i = handles->count; i-- > 0;) {
        if (i < handles->count && handles->list[i]->found) {
            pf_registration *r = handles->list[i]->registration;
            handles->list[i]->found = false;
            if (r->interest & PF_IO_EDGE) {
                r->interest = PF_IO_EDGE;
            }
            r->ready(r, s, PF_IO_READ);
        }
    }
}

void
pf_handles_finish(pf_handles *handles)
{
    for (size_t i = 0; i < handles->count; i++) {
        end_wait(handles->list[i]);
        free(handles->list[i]);
    }
    handles->count = 0;
}
