/* Messages to a scheduler from any thread, without a lock.
 *
 * A Treiber push and a whole-list take: nothing is ever popped singly, so
 * there is no ABA problem and no half-linked window.  The producer learns
 * whether the list was empty; only then need it wake the consumer.  Taken
 * messages come out oldest first.
 */
#ifndef PF_INBOX_H
#define PF_INBOX_H

#include "engine/atomics.h"

struct pf_scheduler;

typedef struct pf_message pf_message;
/* Runs on the scheduler's thread.  The message may be freed by it. */
typedef void (*pf_message_fn)(pf_message *message, struct pf_scheduler *s);
struct pf_message {
    pf_message *next;
    pf_message_fn run;
};

typedef struct pf_inbox {
    PF_ATOMIC(pf_message *) head;
} pf_inbox;

/* true if the inbox was empty: this producer has to wake the consumer. */
static inline bool
pf_inbox_push(pf_inbox *inbox, pf_message *message)
{
    pf_message *head = pf_load_relaxed(&inbox->head);
    do {
        message->next = head;
    } while (!pf_cas_weak(&inbox->head, &head, message));
    return head == NULL;
}

static inline bool
pf_inbox_pending(pf_inbox *inbox)
{
    return pf_load_relaxed(&inbox->head) != NULL;
}

/* All messages, oldest first, linked by next. */
static inline pf_message *
pf_inbox_take(pf_inbox *inbox)
{
    pf_message *m = pf_exchange(&inbox->head, NULL);
    pf_message *oldest = NULL;
    while (m != NULL) {
        pf_message *next = m->next;
        m->next = oldest;
        oldest = m;
        m = next;
    }
    return oldest;
}

#endif
