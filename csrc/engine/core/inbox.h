/* The inbox of a scheduler: messages from any thread, without a lock.
 *
 * The inbox is a Treiber stack whose consumer takes the whole list: nothing is
 * ever popped singly, so there is no ABA problem, and no message is ever half
 * linked.  The producer learns whether the list was empty; only then must it
 * wake the consumer.  Taken messages come out oldest first.  A closed inbox
 * accepts no messages, and its producers learn that.
 */
#ifndef PF_INBOX_H
#define PF_INBOX_H

#include "engine/base/atomics.h"
#include "engine/base/testpoints.h"

struct pf_scheduler;

typedef struct pf_message pf_message;
/* Handles a message, on the scheduler's thread.  May free the message. */
typedef void (*pf_message_fn)(pf_message *message, struct pf_scheduler *s);
/* The operations of a kind of message; one constant for each kind. */
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
    PF_PUSHED_FIRST, /* the inbox was empty: the producer wakes the consumer */
    PF_PUSHED_MORE,
    PF_PUSHED_NOT, /* the inbox is closed; the producer keeps the message */
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
pf_inbox_pending(const pf_inbox *inbox)
{
    return (uintptr_t)pf_load_relaxed(&inbox->head) >
           (uintptr_t)PF_INBOX_CLOSED;
}

/* Replaces the list by `head`.  Returns all messages, oldest first, linked by
 * `next`. */
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

/* Takes all messages.  The inbox must not be closed: this would open it. */
static inline pf_message *
pf_inbox_take(pf_inbox *inbox)
{
    return pf_inbox_exchange(inbox, NULL);
}

/* Closes the inbox and takes the last messages.  May be called again. */
static inline pf_message *
pf_inbox_close(pf_inbox *inbox)
{
    return pf_inbox_exchange(inbox, PF_INBOX_CLOSED);
}

#endif
