/* Records which fibers wait for which descriptor: see descriptor.h. */
#include "engine/io/descriptor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/atomics.h"
#include "engine/base/memory.h"

#define BOTH (PF_IO_READ | PF_IO_WRITE)
#define OWNED_INTEREST (BOTH | PF_IO_URGENT | PF_IO_EDGE)
#define FIRST_SIZE 64
/* Limits the table by number; no system gives out higher numbers.  (Windows,
 * too, gives out the lowest handles first, and at most 2^24.) */
#define MOST_NUMBERS ((size_t)1 << 26)

uint64_t
pf_descriptor_new_owner(void)
{
    static PF_ATOMIC(size_t) last; /* shared, one word */
    return (uint64_t)pf_fetch_add(&last, 1) + 1;
}

/* ------------------------------------------------------------ the line --- */

static void
link_wait(pf_descriptor *at, pf_io_wait *wait)
{
    pf_io_wait **head = &at->waiting[wait->direction];
    wait->next = NULL;
    if (*head == NULL) {
        *head = wait->prev = wait;
    } else {
        wait->prev = (*head)->prev;
        (*head)->prev->next = wait;
        (*head)->prev = wait;
    }
    wait->at = at;
    if (at->table != NULL) {
        at->table->poller->awaited++;
    }
}

static void
unlink_wait(pf_io_wait *wait)
{
    pf_descriptor *at = wait->at;
    pf_io_wait **head = &at->waiting[wait->direction];
    if (wait == *head) {
        *head = wait->next;
        if (wait->next != NULL) {
            wait->next->prev = wait->prev;
        }
    } else {
        wait->prev->next = wait->next;
        if (wait->next != NULL) {
            wait->next->prev = wait->prev;
        } else {
            (*head)->prev = wait->prev;
        }
    }
    wait->at = NULL;
    if (at->table != NULL) {
        at->table->poller->awaited--;
    }
}

/* Wakes the first waiter in line, and each waiter with `every`. */
static void
wake_line(pf_descriptor *at, struct pf_scheduler *s, pf_direction direction)
{
    bool given = false;
    pf_io_wait *wait = at->waiting[direction];
    while (wait != NULL) {
        pf_io_wait *next = wait->next;
        if ((wait->every || !given) && wait->wake(wait, s)) {
            given = given || !wait->every;
            unlink_wait(wait);
        }
        wait = next;
    }
}

static void
end_line(pf_descriptor *at, struct pf_scheduler *s, pf_direction direction,
         int error)
{
    pf_io_wait *wait;
    while ((wait = at->waiting[direction]) != NULL) {
        wait->error = error;
        unlink_wait(wait);
        (void)wait->wake(wait, s);
    }
}

void
pf_descriptor_end_waits(pf_descriptor *at, struct pf_scheduler *s, int error)
{
    end_line(at, s, PF_READING, error);
    end_line(at, s, PF_WRITING, error);
}

static unsigned
awaited_events(const pf_descriptor *at)
{
    return (at->waiting[PF_READING] != NULL ? (unsigned)PF_IO_READ : 0) |
           (at->waiting[PF_WRITING] != NULL ? (unsigned)PF_IO_WRITE : 0);
}

/* -------------------------------------------------------------- events --- */

static const pf_poller_ops *
ops_of(const pf_descriptor *at)
{
    return at->table->poller->ops;
}

static void
unregister(pf_descriptor *at)
{
    if (at->registration.added) {
        (void)ops_of(at)->remove(at->table->poller, &at->registration);
    }
}

/* Reduces the interest in a foreign number to what waiters need.  A failure
 * does no harm: the poller then reports too much. */
static void
watch_less(pf_descriptor *at)
{
    unsigned awaited = awaited_events(at);
    if (at->owner != 0 || !at->registration.added) {
        return;
    }
    if (awaited == 0) {
        unregister(at);
    } else if (awaited != at->registration.interest) {
        (void)ops_of(at)->modify(at->table->poller, &at->registration,
                                 awaited);
    }
}

void
pf_descriptor_report(pf_descriptor *at, struct pf_scheduler *s,
                     unsigned events)
{
    if (events & (PF_IO_ERROR | PF_IO_END)) {
        events |= PF_IO_READ;
    }
    if (events & PF_IO_ERROR) {
        events |= PF_IO_WRITE;
    }
    at->ready |= (uint8_t)(events & BOTH);
    at->seen |= (uint8_t)(events & (PF_IO_END | PF_IO_ERROR | PF_IO_URGENT));
    if (events & PF_IO_READ) {
        wake_line(at, s, PF_READING);
    }
    if (events & PF_IO_WRITE) {
        wake_line(at, s, PF_WRITING);
    }
}

static void
is_ready(pf_registration *r, struct pf_scheduler *s, unsigned events)
{
    pf_descriptor *at = (pf_descriptor *)r;
    pf_descriptor_report(at, s, events);
    watch_less(at);
}

/* --------------------------------------------------------- the records --- */

void
pf_descriptors_init(pf_descriptors *table, pf_poller *poller)
{
    *table = (pf_descriptors){.poller = poller};
}

/* Unregisters nothing: the poller is closed, or about to be. */
void
pf_descriptors_finish(pf_descriptors *table)
{
    for (size_t i = 0; i < table->size; i++) {
        free(table->records[i]);
    }
    free(table->records);
    *table = (pf_descriptors){.poller = NULL};
}

static int
grow(pf_descriptors *table, size_t place)
{
    size_t size = table->size == 0 ? FIRST_SIZE : table->size;
    while (size <= place) {
        size *= 2;
    }
    pf_descriptor **records = pf_memory_calloc(size, sizeof *records);
    if (records == NULL) {
        return -ENOMEM;
    }
    if (table->size != 0) {
        memcpy(records, table->records, table->size * sizeof *records);
    }
    free(table->records);
    table->records = records;
    table->size = size;
    return 0;
}

void
pf_descriptor_init(pf_descriptor *at)
{
    *at = (pf_descriptor){.registration.ready = is_ready, .ready = BOTH};
}

static int
record_of(pf_descriptors *table, intptr_t number, pf_descriptor **at)
{
    size_t place = (size_t)number / PF_NUMBER_STEP;
    if (number < 0 || place >= MOST_NUMBERS) {
        return -EBADF;
    }
    if (place >= table->size && grow(table, place) != 0) {
        return -ENOMEM;
    }
    if (table->records[place] == NULL) {
        pf_descriptor *fresh = pf_memory_malloc(sizeof *fresh);
        if (fresh == NULL) {
            return -ENOMEM;
        }
        pf_descriptor_init(fresh);
        fresh->table = table;
        fresh->number = number;
        table->records[place] = fresh;
    }
    *at = table->records[place];
    return 0;
}

static void
reset(pf_descriptor *at, struct pf_scheduler *s, uint64_t owner)
{
    unregister(at);
    at->owner = owner;
    at->ready = BOTH;
    at->seen = 0;
    pf_descriptor_end_waits(at, s, -EBADF);
}

int
pf_descriptor_claim(pf_descriptors *table, struct pf_scheduler *s,
                    intptr_t number, uint64_t owner, pf_descriptor **at)
{
    int rc = record_of(table, number, at);
    if (rc == 0 && (*at)->owner != owner) {
        reset(*at, s, owner);
    }
    return rc;
}

pf_descriptor *
pf_descriptor_known(const pf_descriptors *table, intptr_t number)
{
    size_t place = (size_t)number / PF_NUMBER_STEP;
    return number >= 0 && place < table->size ? table->records[place] : NULL;
}

void
pf_descriptor_release(pf_descriptors *table, struct pf_scheduler *s,
                      intptr_t number, uint64_t owner)
{
    pf_descriptor *at = pf_descriptor_known(table, number);
    if (at != NULL && at->owner == owner) {
        reset(at, s, 0);
    }
}

/* ------------------------------------------------------------- waiting --- */

static int
begin(pf_descriptor *at, pf_io_wait *wait, pf_direction direction)
{
    wait->direction = direction;
    wait->error = 0;
    link_wait(at, wait);
    return 0;
}

/* Registers an owned number for good.  A poller with `rearms` must be asked
 * again after each edge; then this leaves out what is known to be ready.
 * Urgent data, which may lie between data and their end, are left out as well:
 * a request made anew reports either of these anyway. */
static int
watch_owned(pf_descriptor *at)
{
    pf_poller *poller = at->table->poller;
    pf_registration *r = &at->registration;
    unsigned interest = OWNED_INTEREST;
    if (poller->ops->rearms) {
        interest &= ~(unsigned)(at->ready | PF_IO_URGENT);
    }
    if (!r->added) {
        return poller->ops->add(poller, at->number, interest, r);
    }
    return poller->ops->rearms ? poller->ops->modify(poller, r, interest) : 0;
}

int
pf_descriptor_wait(pf_descriptor *at, pf_io_wait *wait, pf_direction direction)
{
    wait->at = NULL;
    if (pf_descriptor_may(at, direction)) {
        return 1;
    }
    int rc = at->table == NULL ? 0 : watch_owned(at);
    return rc < 0 ? rc : begin(at, wait, direction);
}

static int
ask_for(pf_descriptor *at, unsigned interest)
{
    pf_poller *poller = at->table->poller;
    pf_registration *r = &at->registration;
    return r->added ? poller->ops->modify(poller, r, interest)
                    : poller->ops->add(poller, at->number, interest, r);
}

static int
watch_foreign(pf_descriptor *at, pf_direction direction)
{
    return ask_for(at, awaited_events(at) | pf_descriptor_event(direction));
}

/* Forgets what is remembered for an owned number and arms the edge anew: if
 * the number is ready, the next wait of the poller reports it, for the owner
 * as well. */
static int
watch_anew(pf_descriptor *at)
{
    at->ready = 0;
    return ask_for(at, OWNED_INTEREST);
}

/* Whether the system has lost the registration: the number was closed without
 * pf_descriptor_release, and perhaps opened again. */
static bool
is_stale(const pf_descriptor *at, int rc)
{
    return at->registration.added && (rc == -ENOENT || rc == -EBADF);
}

int
pf_descriptor_wait_foreign(pf_descriptors *table, struct pf_scheduler *s,
                           intptr_t number, pf_io_wait *wait,
                           pf_direction direction)
{
    pf_descriptor *at;
    wait->at = NULL;
    int rc = record_of(table, number, &at);
    if (rc < 0) {
        return rc;
    }
    rc = at->owner != 0 ? watch_anew(at) : watch_foreign(at, direction);
    if (is_stale(at, rc)) {
        reset(at, s, 0);
        rc = watch_foreign(at, direction);
    }
    if (rc == -EPERM) {
        return 1; /* such as a regular file: always ready */
    }
    wait->every = true;
    return rc < 0 ? rc : begin(at, wait, direction);
}

void
pf_io_wait_end(pf_io_wait *wait)
{
    pf_descriptor *at = wait->at;
    if (at != NULL) {
        unlink_wait(wait);
        watch_less(at);
    }
}

void
pf_descriptor_pass_on(pf_descriptor *at, struct pf_scheduler *s,
                      pf_direction direction)
{
    if (at->waiting[direction] != NULL && pf_descriptor_may(at, direction)) {
        wake_line(at, s, direction);
    }
}
