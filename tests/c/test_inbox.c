/* Tests the inbox: its order, and which producer has to wake the consumer. */
#include "check.h"

#include "engine/core/inbox.h"
#include "threads.h"

typedef struct letter {
    pf_message message;
    int sender;
    int number;
} letter;

static void
inbox_keeps_the_order(void)
{
    pf_inbox inbox;
    letter letters[10];
    memset(&inbox, 0, sizeof inbox);
    CHECK(!pf_inbox_pending(&inbox));
    CHECK(pf_inbox_take(&inbox) == NULL);
    for (int i = 0; i < 10; i++) {
        letters[i].number = i;
        pf_pushed pushed = pf_inbox_push(&inbox, &letters[i].message);
        CHECK_EQUAL(pushed, i == 0 ? PF_PUSHED_FIRST : PF_PUSHED_MORE);
    }
    CHECK(pf_inbox_pending(&inbox));
    int n = 0;
    for (pf_message *m = pf_inbox_take(&inbox); m != NULL; m = m->next) {
        CHECK_EQUAL(((letter *)m)->number, n);
        n++;
    }
    CHECK_EQUAL(n, 10);
    CHECK(!pf_inbox_pending(&inbox));
    CHECK_EQUAL(pf_inbox_push(&inbox, &letters[0].message), PF_PUSHED_FIRST);
}

static void
inbox_closed_takes_nothing(void)
{
    pf_inbox inbox;
    letter letters[2];
    memset(&inbox, 0, sizeof inbox);
    pf_inbox_push(&inbox, &letters[0].message);
    CHECK(pf_inbox_close(&inbox) == &letters[0].message);
    CHECK_EQUAL(pf_inbox_push(&inbox, &letters[1].message), PF_PUSHED_NOT);
    CHECK(!pf_inbox_pending(&inbox));
    CHECK(pf_inbox_close(&inbox) == NULL);
}

#define SENDERS 4
#define LETTERS 5000

static pf_inbox shared;
static letter mail[SENDERS][LETTERS];
static PF_ATOMIC(size_t) first_pushes;

THREAD_FN(send)
{
    letter *mine = arg;
    for (int i = 0; i < LETTERS; i++) {
        mine[i].number = i;
        mine[i].sender = (int)((mine - mail[0]) / LETTERS);
        if (pf_inbox_push(&shared, &mine[i].message) == PF_PUSHED_FIRST) {
            pf_fetch_add(&first_pushes, 1);
        }
    }
    THREAD_END;
}

/* With several producers and one consumer nothing is lost, the letters of each
 * producer keep their order, and each list that is taken had exactly one push
 * that was first. */
static void
inbox_takes_letters_of_many_threads(void)
{
    test_thread threads[SENDERS];
    int expected[SENDERS] = {0};
    int total = 0;
    size_t taken = 0;
    pf_store(&first_pushes, 0);
    for (int i = 0; i < SENDERS; i++) {
        thread_start(&threads[i], send, mail[i]);
    }
    while (total < SENDERS * LETTERS) {
        pf_message *m = pf_inbox_take(&shared);
        taken += m != NULL;
        for (; m != NULL; m = m->next) {
            letter *l = (letter *)m;
            CHECK_EQUAL(l->number, expected[l->sender]);
            expected[l->sender]++;
            total++;
        }
    }
    for (int i = 0; i < SENDERS; i++) {
        thread_join(threads[i]);
    }
    CHECK_EQUAL(pf_load(&first_pushes), taken);
    CHECK(!pf_inbox_pending(&shared));
}

const test inbox_tests[] = {
    TEST(inbox_keeps_the_order),
    TEST(inbox_closed_takes_nothing),
    TEST(inbox_takes_letters_of_many_threads),
    END_OF_TESTS,
};
