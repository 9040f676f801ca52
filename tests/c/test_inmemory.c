/* Tests connections in memory.  A test in Python compares them with the
 * system's: tests/testing/test_testing_network_model.py. */
#include "check.h"

#include <errno.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/io/inmemory.h"

#define ROOM 1000

static pf_end *left, *right;

typedef struct waiter {
    pf_io_wait wait; /* first */
    int woken;
} waiter;

static bool
wake(pf_io_wait *wait, struct pf_scheduler *s)
{
    (void)s;
    ((waiter *)wait)->woken++;
    return true;
}

static void
set_up(bool tcp)
{
    left = pf_end_new(NULL, tcp, ROOM);
    right = pf_end_new(NULL, tcp, ROOM);
    CHECK(left != NULL && right != NULL);
    pf_end_join(left, right);
}

static void
tear_down(void)
{
    pf_end_drop(left);
    pf_end_drop(right);
}

/* Each place of the ring is its end once, at each size of the ring. */
static void
bytes_come_in_order(void)
{
    char data[ROOM], got[ROOM];
    unsigned next_out = 0, next_in = 0;
    set_up(true);
    for (size_t round = 1; round < 3 * ROOM; round++) {
        size_t size = round * 7 % ROOM + 1;
        for (size_t i = 0; i < size; i++) {
            data[i] = (char)(next_out + i);
        }
        int64_t sent = pf_end_send(left, data, size);
        CHECK(sent > 0 || (sent == -EAGAIN && right->used == ROOM));
        next_out += sent > 0 ? (unsigned)sent : 0;
        size_t wanted = round * 11 % ROOM + 1;
        int64_t peeked = pf_end_recv(right, data, wanted, true);
        int64_t count = pf_end_recv(right, got, wanted, false);
        CHECK_EQUAL(peeked, count);
        CHECK(memcmp(data, got, (size_t)count) == 0);
        for (int64_t i = 0; i < count; i++) {
            CHECK_EQUAL(got[i], (char)next_in++);
        }
    }
    tear_down();
}

static void
who_waits_is_woken(void)
{
    char byte;
    waiter reader = {.wait.wake = wake},
           watcher = {.wait.wake = wake, .wait.every = true};
    set_up(true);
    CHECK_EQUAL(pf_end_recv(left, &byte, 1, false), -EAGAIN);
    pf_descriptor_blocked(&left->at, PF_READING);
    CHECK_EQUAL(pf_descriptor_wait(&left->at, &reader.wait, PF_READING), 0);
    CHECK_EQUAL(pf_descriptor_wait(&left->at, &watcher.wait, PF_READING), 0);
    CHECK_EQUAL(pf_end_send(right, "x", 1), 1);
    CHECK(reader.woken == 1 && watcher.woken == 1);
    CHECK_EQUAL(pf_descriptor_wait(&left->at, &watcher.wait, PF_READING), 1);
    CHECK_EQUAL(pf_end_recv(left, &byte, 1, false), 1);
    pf_descriptor_blocked(&left->at, PF_READING);
    CHECK_EQUAL(pf_descriptor_wait(&left->at, &reader.wait, PF_READING), 0);
    pf_end_disturb(left);
    CHECK(reader.woken == 2 && reader.wait.error == 0);
    CHECK_EQUAL(pf_descriptor_wait(&left->at, &reader.wait, PF_READING), 0);
    pf_end_close(left, false);
    CHECK(reader.woken == 3 && reader.wait.error == -EBADF);
    tear_down();
}

static void
what_is_unread_resets(void)
{
    char byte;
    for (int tcp = 0; tcp < 2; tcp++) {
        set_up(tcp);
        CHECK_EQUAL(pf_end_send(left, "x", 1), 1);
        pf_end_close(right, false);
        CHECK_EQUAL(pf_end_recv(left, &byte, 1, false), -ECONNRESET);
        CHECK_EQUAL(pf_end_recv(left, &byte, 1, false), 0);
        CHECK_EQUAL(pf_end_send(left, "x", 1), -EPIPE);
        tear_down();
    }
}

/* Both directions were shut down, more bytes came, and then the sender was
 * closed. */
static void
a_reset_is_told_after_the_peer_has_closed(void)
{
    char byte;
    set_up(true);
    CHECK_EQUAL(pf_end_send(left, "x", 1), 1);
    CHECK_EQUAL(pf_end_shutdown(right, true, true), 0);
    CHECK_EQUAL(pf_end_send(left, "y", 1), 1);
    pf_end_close(left, false);
    CHECK_EQUAL(pf_end_recv(right, &byte, 1, false), 1);
    CHECK_EQUAL(pf_end_recv(right, &byte, 1, false), -ECONNRESET);
    CHECK_EQUAL(pf_end_recv(right, &byte, 1, false), 0);
    CHECK_EQUAL(pf_end_send(right, "x", 1), -EPIPE);
    tear_down();
}

/* The last reference to one end is dropped before those to the other. */
static void
a_dropped_end_leaves_no_peer(void)
{
    char byte;
    set_up(true);
    pf_end_keep(left);
    pf_end_drop(left);
    pf_end_drop(left);
    CHECK(right->peer == NULL);
    CHECK_EQUAL(pf_end_recv(right, &byte, 1, false), 0);
    CHECK_EQUAL(pf_end_send(right, "x", 1), -EPIPE);
    pf_end_drop(right);
}

#if defined(PYFIBER_HARDTEST)
static void
without_memory_nothing_is_sent(void)
{
    char data[ROOM] = {0};
    pf_memory_fail = 1;
    CHECK(pf_end_new(NULL, true, ROOM) == NULL);
    set_up(true);
    pf_memory_fail = 1;
    CHECK_EQUAL(pf_end_send(left, data, 1), -ENOBUFS);
    CHECK_EQUAL(pf_end_send(left, data, 1), 1);
    pf_memory_fail = 1;
    CHECK_EQUAL(pf_end_send(left, data, ROOM), -ENOBUFS);
    CHECK_EQUAL(pf_end_recv(right, data, ROOM, false), 1);
    tear_down();
}
#endif

const test inmemory_tests[] = {TEST(bytes_come_in_order),
                               TEST(who_waits_is_woken),
                               TEST(what_is_unread_resets),
                               TEST(a_reset_is_told_after_the_peer_has_closed),
                               TEST(a_dropped_end_leaves_no_peer),
#if defined(PYFIBER_HARDTEST)
                               TEST(without_memory_nothing_is_sent),
#endif
                               END_OF_TESTS};
