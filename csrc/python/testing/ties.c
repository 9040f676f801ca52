/* Timers that are due at the same instant: an explorer chooses which of them
 * fires first, and whether a fiber runs before. */
#include "python/task/explore.h"
#include "python/testing/explorer.h"

/* The timers that are due at the same instant and were not passed over since a
 * fiber has run. */
typedef struct Tie {
    const pf_timers *timers;
    int64_t when;
    uint64_t from;  /* timers of lower sequence numbers do not count */
    uint32_t count; /* found so far */
    uint64_t next;  /* the smallest sequence number of these, and its timer */
    pf_timer *next_timer;
} Tie;

/* Adds the timers of the tie in the part of the heap below `index`. */
static void
scan_tie(Tie *tie, uint64_t index)
{
    if (index >= tie->timers->count ||
        tie->timers->heap[index].when != tie->when) {
        return; /* all timers below are due later, too */
    }
    const pf_timer_entry *entry = &tie->timers->heap[index];
    if (entry->sequence >= tie->from) {
        tie->count++;
        if (tie->next_timer == NULL || entry->sequence < tie->next) {
            tie->next = entry->sequence;
            tie->next_timer = entry->timer;
        }
    }
    for (uint64_t child = 1; child <= PF_TIMER_CHILDREN; child++) {
        scan_tie(tie, index * PF_TIMER_CHILDREN + child);
    }
}

static Tie
tie_from(const pf_scheduler *core, uint64_t from)
{
    Tie tie = {&core->timers, core->timers.heap[0].when, from, 0, 0, NULL};
    scan_tie(&tie, 0);
    return tie;
}

/* Returns the tie at the top of the heap.  If the heap has only lost the first
 * timer of the last tie, the rest of that is the tie now, without a scan.
 * Otherwise a thousand timers that are due together and fire in order would be
 * counted a thousand times. */
static Tie
next_tie(ExplorerObject *x, const pf_scheduler *core)
{
    const pf_timers *timers = &core->timers;
    const pf_timer_entry *first = &timers->heap[0];
    if (x->tie_rest == 0 || timers->sequence != x->tie_sequence ||
        timers->count != x->tie_count || first->when != x->tie_when ||
        first->sequence < x->tie_passed) {
        return tie_from(core, x->tie_passed);
    }
    return (Tie){timers,      first->when,     x->tie_passed,
                 x->tie_rest, first->sequence, first->timer};
}

static void
remember_tie(ExplorerObject *x, const pf_scheduler *core, const Tie *tie)
{
    x->tie_rest = tie->count - 1;
    x->tie_count = core->timers.count;
    x->tie_sequence = core->timers.sequence;
    x->tie_when = tie->when;
}

/* The scheduler's `pop_due`.  Each of several timers that are due together may
 * fire now or, if something else can run first, later.  One is chosen, and the
 * timers before it are passed over until a fiber has run.  So each set of
 * timers is tried once, not in every order. */
pf_timer *
pf_explorer_pop_due(pf_scheduler *core, int64_t now, void *data)
{
    ExplorerObject *x = data;
    if (core->timers.count == 0 || core->timers.heap[0].when > now) {
        return NULL;
    }
    bool may_wait = pf_explorer_ready(core) > 0;
    if (!may_wait) {
        x->tie_passed = 0;
    }
    Tie tie = next_tie(x, core);
    uint32_t options = tie.count + may_wait;
    if (tie.count == 0) {
        return NULL;
    }
    uint32_t place =
        pf_explorer_choose(x->scheduler, options, PF_CHOOSE_TIMER);
    if (place == tie.count) {
        x->tie_passed = UINT64_MAX;
        return NULL;
    }
    for (uint32_t i = 0; i < place; i++) {
        tie = tie_from(core, tie.next + 1);
    }
    x->tie_passed = tie.next + 1;
    pf_timers_remove(&core->timers, tie.next_timer);
    remember_tie(x, core, &tie);
    if (place > 0) {
        x->tie_rest = 0;
    }
    return tie.next_timer;
}
