/* The table of watched descriptors. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* fcntl */
#endif

#include "engine/unix/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>

#include "engine/base/memory.h"

#define FIRST_CAPACITY 16

/* A failure changes nothing.  A number that is not open could be any, and the
 * table would become as large. */
static int
make_room(pf_watch *watch, int number)
{
    if (fcntl(number, F_GETFD) < 0) {
        return -EBADF;
    }
    size_t capacity = watch->capacity == 0 ? FIRST_CAPACITY : watch->capacity;
    while (capacity <= (size_t)number) {
        capacity *= 2;
    }
    pf_watched *numbers =
        pf_realloc(watch->numbers, capacity * sizeof *numbers);
    if (numbers == NULL) {
        return -ENOMEM;
    }
    memset(&numbers[watch->capacity], 0,
           (capacity - watch->capacity) * sizeof *numbers);
    watch->numbers = numbers;
    watch->capacity = capacity;
    return 0;
}

static void
renew(pf_watched *w)
{
    if (++w->generation == PF_NOBODY) {
        w->generation++;
    }
}

int
pf_watch_enter(pf_watch *watch, intptr_t descriptor, unsigned interest,
               pf_registration *r)
{
    if (interest & ~(unsigned)PF_IO_ASKED) {
        return -EINVAL;
    }
    if (descriptor < 0 || descriptor > INT_MAX) {
        return -EBADF;
    }
    if (r->added) {
        return -EEXIST;
    }
    if ((size_t)descriptor >= watch->capacity) {
        int error = make_room(watch, (int)descriptor);
        if (error != 0) {
            return error;
        }
    }
    pf_watched *w = &watch->numbers[descriptor];
    if (w->registration != NULL) {
        return -EEXIST;
    }
    w->registration = r;
    renew(w);
    r->descriptor = descriptor;
    r->interest = (uint16_t)interest;
    r->added = true;
    return 0;
}

int
pf_watch_change(pf_watch *watch, pf_registration *r, unsigned interest)
{
    if (interest & ~(unsigned)PF_IO_ASKED) {
        return -EINVAL;
    }
    if (!r->added) {
        return -ENOENT;
    }
    pf_watched *w = pf_watch_of(watch, r);
    pf_watch_find_again(watch, w);
    renew(w);
    r->interest = (uint16_t)interest;
    return 0;
}

int
pf_watch_leave(pf_watch *watch, pf_registration *r)
{
    if (!r->added) {
        return -ENOENT;
    }
    pf_watched *w = pf_watch_of(watch, r);
    pf_watch_find_again(watch, w);
    w->registration = NULL;
    r->added = false;
    return 0;
}

/* Nobody is told of one that is of no interest. */
void
pf_watch_lose(pf_watch *watch, pf_watched *w)
{
    if (!w->lost && !pf_watch_is_mute(w->registration)) {
        w->lost = true;
        watch->lost++;
    }
}

void
pf_watch_find_again(pf_watch *watch, pf_watched *w)
{
    if (w->lost) {
        w->lost = false;
        watch->lost--;
    }
}

size_t
pf_watch_next_lost(const pf_watch *watch, size_t from)
{
    while (from < watch->capacity && !watch->numbers[from].lost) {
        from++;
    }
    return from;
}

void
pf_watch_free(pf_watch *watch)
{
    free(watch->numbers);
}
