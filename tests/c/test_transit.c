/* Tests what is on its way between two ends in memory. */
#include "check.h"

#include <errno.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/io/inmemory.h"

#define ROOM 1000

static pf_end *left, *right;
static int64_t time_now;

/* The clock keeps the time of the next call in the end's alarm, and a
 * reference while there is one. */
static int64_t
now_at(const pf_end *end)
{
    (void)end;
    return time_now;
}

static int
call_at(pf_end *end, int64_t when)
{
    bool armed = end->alarm[0] != 0;
    bool arms = when != PF_TRANSIT_NEVER;
    end->alarm[0] = arms;
    end->alarm[1] = (uint64_t)when;
    if (arms && !armed) {
        pf_end_keep(end);
    } else if (!arms && armed) {
        pf_end_drop(end);
    }
    return 0;
}

static const pf_end_clock fake = {now_at, call_at};

static void
ring(pf_end *end)
{
    if (end->alarm[0] != 0 && (int64_t)end->alarm[1] <= time_now) {
        end->alarm[0] = 0;
        pf_end_arrive(end);
        pf_end_drop(end);
    }
}

static void
pass(int64_t time)
{
    time_now += time;
    ring(left);
    ring(right);
}

static void
set_up(int64_t delay)
{
    time_now = 1000;
    pf_end_time = &fake;
    left = pf_end_new(NULL, true, ROOM);
    right = pf_end_new(NULL, true, ROOM);
    CHECK(left != NULL && right != NULL);
    pf_end_set_line(left, delay, 0);
    pf_end_set_line(right, delay, 0);
    pf_end_join(left, right);
    pass(2 * delay);
    CHECK(left->connected);
}

static void
tear_down(void)
{
    pf_end_close(left, false);
    pf_end_close(right, false);
    pass(1000000);
    pf_end_drop(left);
    pf_end_drop(right);
}

static int64_t
received(pf_end *end)
{
    char got[ROOM];
    return pf_end_recv(end, got, sizeof got, false);
}

static void
a_connection_takes_a_round_trip(void)
{
    set_up(0);
    tear_down();
    time_now = 0;
    left = pf_end_new(NULL, true, ROOM);
    right = pf_end_new(NULL, true, ROOM);
    pf_end_set_line(left, 10, 0);
    pf_end_set_line(right, 20, 0);
    pf_end_join(left, right);
    CHECK(right->connected && !left->connected);
    CHECK_EQUAL(received(left), -EAGAIN);
    CHECK_EQUAL(pf_end_send(left, "x", 1), -EAGAIN);
    CHECK(pf_end_blocks(left, PF_WRITING));
    pass(29);
    CHECK(!left->connected);
    pass(1);
    CHECK(left->connected && !pf_end_blocks(left, PF_WRITING));
    tear_down();
}

static void
bytes_arrive_when_they_are_due(void)
{
    set_up(10);
    CHECK_EQUAL(pf_end_send(left, "abc", 3), 3);
    pass(5);
    pf_end_set_line(left, 1, 0); /* what is sent later does not overtake */
    CHECK_EQUAL(pf_end_send(left, "de", 2), 2);
    CHECK_EQUAL(pf_end_shutdown(left, false, true), 0);
    pass(4);
    CHECK(pf_end_blocks(right, PF_READING));
    CHECK_EQUAL(received(right), -EAGAIN);
    pass(1);
    CHECK_EQUAL(received(right), 5);
    CHECK_EQUAL(received(right), 0);
    tear_down();
}

static void
more_arrivals_than_fit_at_first(void)
{
    set_up(10);
    for (int i = 0; i < 100; i++) {
        CHECK_EQUAL(pf_end_send(left, "x", 1), 1);
        pass(1);
    }
    CHECK_EQUAL(received(right), 91);
    pass(9);
    CHECK_EQUAL(received(right), 9);
    tear_down();
}

static void
a_line_carries_no_more_than_its_bandwidth(void)
{
    set_up(10);
    pf_end_set_line(left, 10, 1000000000); /* a byte in a nanosecond */
    CHECK_EQUAL(pf_end_send(left, "0123456789", 10), 10);
    CHECK_EQUAL(pf_end_send(left, "0123456789", 10), 10);
    pass(19);
    CHECK_EQUAL(received(right), -EAGAIN);
    pass(1);
    CHECK_EQUAL(received(right), 10);
    pass(10);
    CHECK_EQUAL(received(right), 10);
    tear_down();
}

static void
nothing_arrives_where_it_is_held(void)
{
    set_up(10);
    CHECK_EQUAL(pf_end_hold(right, true), 0);
    CHECK_EQUAL(pf_end_send(left, "abc", 3), 3);
    pf_end_close(left, false);
    pass(1000);
    CHECK_EQUAL(received(right), -EAGAIN);
    CHECK_EQUAL(pf_end_hold(right, false), 0);
    pass(9);
    CHECK_EQUAL(received(right), -EAGAIN);
    pass(1);
    CHECK_EQUAL(received(right), 3);
    CHECK_EQUAL(received(right), 0);
    tear_down();
}

static void
who_gives_up_has_an_error(void)
{
    set_up(10);
    CHECK_EQUAL(pf_end_doom(left, time_now + 100, ETIMEDOUT), 0);
    CHECK_EQUAL(pf_end_send(right, "abc", 3), 3);
    pass(50);
    CHECK_EQUAL(received(left), 3);
    pass(50);
    CHECK_EQUAL(received(left), -ETIMEDOUT);
    CHECK_EQUAL(pf_end_send(left, "x", 1), -EPIPE);
    CHECK_EQUAL(pf_end_send(right, "x", 1), 1); /* which nobody reads */
    pass(100);
    CHECK_EQUAL(received(right), -EAGAIN);
    tear_down();
    set_up(0);
    CHECK_EQUAL(pf_end_doom(left, time_now + 100, ETIMEDOUT), 0);
    CHECK_EQUAL(pf_end_doom(left, PF_TRANSIT_NEVER, 0), 0);
    pass(1000);
    CHECK_EQUAL(received(left), -EAGAIN);
    tear_down();
}

static void
a_cut_loses_what_is_sent_before_it_is_noticed(void)
{
    for (int64_t delay = 0; delay < 20; delay += 10) {
        set_up(delay);
        CHECK_EQUAL(pf_end_send(left, "abc", 3), 3);
        pf_end_cut(left);
        CHECK_EQUAL(pf_end_send(left, "lost", 4), 4);
        pass(delay);
        CHECK_EQUAL(received(right), 3);
        CHECK_EQUAL(received(right), -ECONNRESET);
        pass(delay);
        CHECK_EQUAL(received(left), -ECONNRESET);
        CHECK_EQUAL(received(left), 0);
        tear_down();
    }
}

static void
a_crash_loses_what_is_on_its_way(void)
{
    for (int silent = 0; silent < 2; silent++) {
        set_up(10);
        CHECK_EQUAL(pf_end_send(left, "abc", 3), 3);
        pass(10);
        CHECK_EQUAL(pf_end_send(left, "lost", 4), 4);
        pf_end_crash(left, silent);
        pf_end_crash(left, silent);
        pass(100);
        CHECK_EQUAL(received(right), 3);
        CHECK_EQUAL(received(right), silent ? -EAGAIN : -ECONNRESET);
        CHECK_EQUAL(pf_end_send(right, "x", 1), silent ? 1 : -EPIPE);
        if (silent) { /* the machine is back, and knows no connection */
            right->vanished = false;
            CHECK_EQUAL(pf_end_send(right, "x", 1), 1);
            pass(20);
            CHECK_EQUAL(received(right), -ECONNRESET);
        }
        tear_down();
    }
}

static void
bytes_that_meet_a_closed_end_are_answered_by_a_reset(void)
{
    set_up(10);
    CHECK_EQUAL(pf_end_send(left, "abc", 3), 3);
    pf_end_close(right, false);
    pass(10);
    CHECK_EQUAL(received(left), 0);
    CHECK_EQUAL(pf_end_send(left, "x", 1), 1);
    pass(10);
    CHECK_EQUAL(pf_end_send(left, "x", 1), -EPIPE);
    tear_down();
}

static void
a_listener_counts_what_has_arrived(void)
{
    pf_end *listener = pf_end_new(NULL, true, ROOM);
    set_up(10);
    pf_end_offer(listener, left);
    pf_end_offer(listener, left);
    CHECK(!pf_end_take_offer(listener) && pf_end_blocks(listener, PF_READING));
    time_now += 10;
    ring(listener);
    CHECK(pf_end_take_offer(listener) && !pf_end_blocks(listener, PF_READING));
    pf_end_offer(listener, left);
    pf_end_withdraw(listener);
    time_now += 10;
    ring(listener);
    CHECK(!pf_end_take_offer(listener));
    pf_end_fail(listener, ECONNREFUSED, 5);
    time_now += 5;
    ring(listener);
    CHECK_EQUAL(pf_end_take_error(listener), ECONNREFUSED);
    pf_end_drop(listener);
    tear_down();
}

#if defined(PYFIBER_HARDTEST)
static void
without_memory_everything_arrives_at_once(void)
{
    set_up(10);
    CHECK_EQUAL(pf_end_send(left, "ab", 2), 2);
    for (int i = 2; i < 9; i++) { /* fills the first array of arrivals */
        CHECK_EQUAL(pf_end_send(left, "x", 1), 1);
    }
    pf_memory_fail = 1;
    CHECK_EQUAL(pf_end_send(left, "y", 1), 1);
    CHECK_EQUAL(received(right), 10);
    tear_down();
    set_up(0);
    pf_memory_fail = 1;
    CHECK_EQUAL(pf_end_hold(left, true), -ENOMEM);
    pf_memory_fail = 1;
    CHECK_EQUAL(pf_end_doom(left, 5, EIO), -ENOMEM);
    tear_down();
}
#endif

const test transit_tests[] = {
    TEST(a_connection_takes_a_round_trip),
    TEST(bytes_arrive_when_they_are_due),
    TEST(more_arrivals_than_fit_at_first),
    TEST(a_line_carries_no_more_than_its_bandwidth),
    TEST(nothing_arrives_where_it_is_held),
    TEST(who_gives_up_has_an_error),
    TEST(a_cut_loses_what_is_sent_before_it_is_noticed),
    TEST(a_crash_loses_what_is_on_its_way),
    TEST(bytes_that_meet_a_closed_end_are_answered_by_a_reset),
    TEST(a_listener_counts_what_has_arrived),
#if defined(PYFIBER_HARDTEST)
    TEST(without_memory_everything_arrives_at_once),
#endif
    END_OF_TESTS};
