/* Doubly linked lists: a pointer to the first item; each item has `prev` and
 * `next`, which are NULL at the ends. Removing an item that is in no list does
 * nothing. */
#ifndef PF_LIST_H
#define PF_LIST_H

#define PF_LIST_PUSH(head, item)                                              \
    do {                                                                      \
        (item)->prev = NULL;                                                  \
        (item)->next = (head);                                                \
        if ((head) != NULL) {                                                 \
            (head)->prev = (item);                                            \
        }                                                                     \
        (head) = (item);                                                      \
    } while (0)

#define PF_LIST_REMOVE(head, item)                                            \
    do {                                                                      \
        if ((item)->prev != NULL) {                                           \
            (item)->prev->next = (item)->next;                                \
        } else if ((head) == (item)) {                                        \
            (head) = (item)->next;                                            \
        }                                                                     \
        if ((item)->next != NULL) {                                           \
            (item)->next->prev = (item)->prev;                                \
        }                                                                     \
        (item)->prev = (item)->next = NULL;                                   \
    } while (0)

#endif
