/* See recorded.h. */
#include "python/watch/recorded.h"

#include "python/core/objlock.h"
#include "python/core/state.h"
#include "python/core/thread.h"

/* Without a GIL; NULL: nobody's.  Shared, written behind pf_threads_lock, and
 * one word. */
static PF_SHARED(PfThread *) recorded;

bool
pf_is_recorded(const SchedulerObject *s)
{
    return !PF_FREE_THREADED || s->thread == PF_SHARED_GET(&recorded);
}

/* Under pf_threads_lock. */
static bool
still_lives(const PfThread *thread)
{
    const PfThread *t = pf_threads;
    while (t != NULL && t != thread) {
        t = t->next;
    }
    return t != NULL;
}

static bool
claim_for(PfThread *t)
{
    pf_mutex_lock(&pf_threads_lock);
    PfThread *whose = PF_SHARED_GET(&recorded);
    bool ours = whose == t || !still_lives(whose);
    if (ours) {
        PF_SHARED_SET(&recorded, t);
    }
    pf_mutex_unlock(&pf_threads_lock);
    return ours;
}

int
pf_claim_record(void)
{
    PfThread *t = PF_FREE_THREADED ? pf_this_thread() : NULL;
    if (!PF_FREE_THREADED || (t != NULL && claim_for(t))) {
        return 0;
    }
    if (t != NULL) {
        PyErr_SetString(pf.fiber_error,
                        "another thread records its turns: without a GIL only "
                        "one thread's can be recorded, and only there");
    }
    return -1;
}

void
pf_unclaim_record(void)
{
    PF_SHARED_SET(&recorded, NULL);
}
