/* Messages to a scheduler from any thread, without a lock.
 *
 * A Treiber push and a whole-list take: nothing is ever popped singly, so
 * there is no ABA problem and no half-linked window.  The producer learns
 * whether the list was empty; only then must it wake the consumer.  Taken
 * messages come out oldest first.  A closed inbox accepts no messages, and its
 * producers learn that.
 */
#ifndef PF_INBOX_H
#define PF_INBOX_H

#include "engine/base/atomics.h"
#include "engine/base/testpoints.h"

struct pf_scheduler;

typedef struct pf_message pf_message;
/* Runs on the scheduler's thread.  The message may be freed by it. */
typedef void (*pf_message_fn)(pf_message *message, struct pf_scheduler *s);
/* What to do with a message: one constant for each kind. */
typedef struct pf_message_ops {
    pf_message_fn run;
} pf_message_ops;
struct pf_message {
    pf_message *next;
    const pf_message_ops *ops;
};

typedef struct pf_inbox {
    PF_ATOMIC(pf_message *) head;
} pf_inbox;

/* The head of a closed inbox: no message has this address. */
#define PF_INBOX_CLOSED ((pf_message *)(uintptr_t)1)

typedef enum pf_pushed {
    PF_PUSHED_FIRST, /* it was empty: this producer wakes the consumer */
    PF_PUSHED_MORE,
    PF_PUSHED_NOT, /* it is closed; the producer keeps the message */
} pf_pushed;

static inline pf_pushed
pf_inbox_push(pf_inbox *inbox, pf_message *message)
{
    pf_message *head = pf_load_relaxed(&inbox->head);
    do {
        if (head == PF_INBOX_CLOSED) {
            return PF_PUSHED_NOT;
        }
        message->next = head;
        PF_TEST_POINT();
    } while (!pf_cas_weak(&inbox->head, &head, message));
    return head == NULL ? PF_PUSHED_FIRST : PF_PUSHED_MORE;
}

static inline bool
pf_inbox_pending(pf_inbox *inbox)
{
    return (uintptr_t)pf_load_relaxed(&inbox->head) >
           (uintptr_t)PF_INBOX_CLOSED;
}

/* Put `head` in its place; returns all messages, oldest first, linked by next.
 */
static inline pf_message *
pf_inbox_exchange(pf_inbox *inbox, pf_message *head)
{
    pf_message *m = pf_exchange(&inbox->head, head);
    pf_message *oldest = NULL;
    if (m == PF_INBOX_CLOSED) {
        return NULL;
    }
    while (m != NULL) {
        pf_message *next = m->next;
        m->next = oldest;
        oldest = m;
        m = next;
    }
    return oldest;
}

/* Not of a closed one. */
static inline pf_message *
pf_inbox_take(pf_inbox *inbox)
{
    return pf_inbox_exchange(inbox, NULL);
}

/* Takes the last messages; closing twice is fine. */
static inline pf_message *
pf_inbox_close(pf_inbox *inbox)
{
    return pf_inbox_exchange(inbox, PF_INBOX_CLOSED);
}

#endif
