/* Tests what the poller on Windows reports of sockets and handles. */
#include "check.h"

#if defined(_WIN32)

#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>

#include <errno.h>

#include "engine/base/clock.h"
#include "engine/core/timers.h"
#include "listeners.h"

#define SECOND ((int64_t)1000000000)
#define BOTH (PF_IO_READ | PF_IO_WRITE)

/* Polls until the listener has had so many reports, at most for 20 seconds. */
static void
wait_until_told(const listener *l, int times)
{
    int64_t end = pf_clock_monotonic() + 20 * SECOND;
    while (l->told < times && pf_clock_monotonic() < end) {
        if (poller->ops->wait(poller, SECOND) > 0) {
            poller->ops->deliver(poller, NULL);
        }
    }
    CHECK(l->told >= times);
}

static void
break_connection(intptr_t number)
{
    struct linger at_once = {1, 0};
    setsockopt((SOCKET)number, SOL_SOCKET, SO_LINGER, (char *)&at_once,
               sizeof at_once);
    closesocket((SOCKET)number);
}

static void
socket_is_told_in_both_directions(void)
{
    source s;
    listener l;
    open_poller();
    socket_pair(&s);
    CHECK_EQUAL(add(&l, s.end, PF_IO_READ), 0);
    CHECK_EQUAL(look(), 0);
    CHECK_EQUAL(modify(&l, PF_IO_WRITE), 0);
    wait_until_told(&l, 1);
    CHECK_EQUAL(l.events, PF_IO_WRITE);
    CHECK_EQUAL(modify(&l, BOTH | PF_IO_EDGE), 0);
    wait_until_told(&l, 2);
    CHECK_EQUAL(l.events, PF_IO_WRITE);
    CHECK_EQUAL(look(), 0);
    CHECK_EQUAL(send((SOCKET)s.other, "x", 1, 0), 1);
    wait_until_told(&l, 3); /* reading was still armed after the edge */
    CHECK_EQUAL(l.events, PF_IO_READ);
    CHECK_EQUAL(look(), 0);
    CHECK_EQUAL(modify(&l, BOTH | PF_IO_EDGE), 0); /* both are still true */
    l.all = 0;
    wait_until_told(&l, 4);
    look();
    CHECK_EQUAL(l.all, BOTH);
    closesocket((SOCKET)s.end);
    closesocket((SOCKET)s.other);
    close_poller();
}

static void
connection_is_told_to_both_ends(void)
{
    struct sockaddr_in address;
    listener server, client;
    open_poller();
    intptr_t listening = listening_socket(&address);
    CHECK_EQUAL(add(&server, listening, PF_IO_READ), 0);
    CHECK_EQUAL(look(), 0);
    intptr_t connecting = connecting_socket(&address);
    CHECK_EQUAL(add(&client, connecting, PF_IO_WRITE | PF_IO_EDGE), 0);
    wait_until_told(&server, 1);
    CHECK_EQUAL(server.events, PF_IO_READ);
    wait_until_told(&client, 1);
    CHECK_EQUAL(client.events, PF_IO_WRITE);
    intptr_t accepted = accepted_socket(listening);
    server.told = 0;
    while (look() > 0) { /* takes answers to earlier requests */
    }
    closesocket((SOCKET)accepted);
    closesocket((SOCKET)connecting);
    closesocket((SOCKET)listening);
    close_poller();
}

static void
failed_connect_is_an_error(void)
{
    struct sockaddr_in address;
    listener l;
    open_poller();
    closesocket((SOCKET)listening_socket(&address));
    intptr_t connecting = connecting_socket(&address);
    CHECK_EQUAL(add(&l, connecting, PF_IO_WRITE | PF_IO_EDGE), 0);
    wait_until_told(&l, 1);
    CHECK_EQUAL(l.events, PF_IO_WRITE | PF_IO_ERROR);
    int error = 0, size = sizeof error;
    getsockopt((SOCKET)connecting, SOL_SOCKET, SO_ERROR, (char *)&error,
               &size);
    CHECK_EQUAL(error, WSAECONNREFUSED);
    CHECK_EQUAL(look(), 0);
    closesocket((SOCKET)connecting);
    close_poller();
}

static void
end_of_stream_can_be_read(void)
{
    source s;
    listener l;
    open_poller();
    socket_pair(&s);
    CHECK_EQUAL(add(&l, s.end, PF_IO_READ | PF_IO_EDGE), 0);
    CHECK_EQUAL(shutdown((SOCKET)s.other, SD_SEND), 0);
    wait_until_told(&l, 1);
    CHECK_EQUAL(l.events, PF_IO_READ | PF_IO_END);
    CHECK_EQUAL(look(), 0);
    CHECK_EQUAL(modify(&l, PF_IO_READ), 0);
    wait_until_told(&l, 2);
    CHECK_EQUAL(modify(&l, PF_IO_WRITE | PF_IO_EDGE), 0);
    wait_until_told(&l, 3); /* the other direction still works */
    CHECK_EQUAL(l.events & BOTH, PF_IO_WRITE);
    closesocket((SOCKET)s.end);
    closesocket((SOCKET)s.other);
    close_poller();
}

static void
broken_connection_is_an_error_of_every_interest(void)
{
    source s;
    listener l;
    for (int i = 0; i < 2; i++) {
        open_poller();
        socket_pair(&s);
        CHECK_EQUAL(
            add(&l, s.end, (i == 0 ? PF_IO_READ : PF_IO_URGENT) | PF_IO_EDGE),
            0);
        break_connection(s.other);
        wait_until_told(&l, 1);
        CHECK((l.events & (PF_IO_ERROR | PF_IO_END)) != 0);
        CHECK_EQUAL(l.events & PF_IO_READ, i == 0 ? PF_IO_READ : 0);
        CHECK_EQUAL(look(), 0);
        closesocket((SOCKET)s.end);
        close_poller();
    }
}

static void
data_out_of_band_are_told_apart(void)
{
    source s;
    listener l;
    open_poller();
    socket_pair(&s);
    CHECK_EQUAL(add(&l, s.end, PF_IO_READ | PF_IO_URGENT | PF_IO_EDGE), 0);
    CHECK_EQUAL(send((SOCKET)s.other, "!", 1, MSG_OOB), 1);
    wait_until_told(&l, 1);
    CHECK_EQUAL(l.events, PF_IO_URGENT);
    CHECK_EQUAL(send((SOCKET)s.other, "x", 1, 0), 1);
    wait_until_told(&l, 2);
    CHECK_EQUAL(l.events, PF_IO_READ);
    closesocket((SOCKET)s.end);
    closesocket((SOCKET)s.other);
    close_poller();
}

/* Closing a watched socket is against the rules, but its waiters must get an
 * error. */
static void
socket_closed_under_the_poller_is_an_error(void)
{
    source s;
    listener l;
    open_poller();
    socket_pair(&s);
    CHECK_EQUAL(add(&l, s.end, PF_IO_READ | PF_IO_EDGE), 0);
    CHECK_EQUAL(look(), 0);
    closesocket((SOCKET)s.end);
    wait_until_told(&l, 1);
    CHECK_EQUAL(l.events, PF_IO_READ | PF_IO_ERROR);
    CHECK_EQUAL(look(), 0);
    CHECK_EQUAL(modify(&l, PF_IO_WRITE), -EBADF);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(l.events, PF_IO_WRITE | PF_IO_ERROR);
    CHECK_EQUAL(modify(&l, 0), 0);
    CHECK_EQUAL(look(), 0);
    CHECK_EQUAL(take_out(&l), 0);
    closesocket((SOCKET)s.other);
    close_poller();
}

static void
datagrams_are_told(void)
{
    listener l;
    struct sockaddr_in address = {.sin_family = AF_INET};
    int size = sizeof address;
    open_poller();
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    SOCKET one = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK_EQUAL(bind(one, (struct sockaddr *)&address, size), 0);
    CHECK_EQUAL(getsockname(one, (struct sockaddr *)&address, &size), 0);
    CHECK_EQUAL(add(&l, (intptr_t)one, PF_IO_READ | PF_IO_EDGE), 0);
    CHECK_EQUAL(look(), 0);
    CHECK_EQUAL(sendto(one, "x", 1, 0, (struct sockaddr *)&address, size), 1);
    wait_until_told(&l, 1);
    CHECK_EQUAL(l.events, PF_IO_READ);
    CHECK_EQUAL(modify(&l, BOTH | PF_IO_EDGE), 0);
    wait_until_told(&l, 2);
    CHECK_EQUAL(l.all, BOTH);
    closesocket(one);
    close_poller();
}

enum { CROWD = 100 }; /* sockets: too many for one handle of the driver */

/* A removed registration may leave a request with the system, which still
 * writes to its memory. */
static void
registrations_come_and_go_while_requests_are_outstanding(void)
{
    static source s[CROWD];
    static listener l[CROWD];
    uint64_t seed = 7;
    open_poller();
    for (int i = 0; i < CROWD; i++) {
        socket_pair(&s[i]);
        CHECK_EQUAL(add(&l[i], s[i].end, PF_IO_READ), 0);
    }
    for (int i = 0; i < many() / 10; i++) {
        uint64_t number = random_next(&seed);
        int which = (int)((number >> 8) % CROWD);
        unsigned interest = (unsigned)(number >> 32) & (BOTH | PF_IO_EDGE);
        if (number % 4 == 0) {
            CHECK_EQUAL(take_out(&l[which]), 0);
            CHECK_EQUAL(add(&l[which], s[which].end, interest), 0);
        } else {
            CHECK_EQUAL(modify(&l[which], interest), 0);
        }
        if (number % 8 == 1) {
            look();
        }
    }
    for (int i = 0; i < CROWD; i++) {
        CHECK_EQUAL(modify(&l[i], PF_IO_READ | PF_IO_EDGE), 0);
        l[i].told = 0;
        CHECK_EQUAL(send((SOCKET)s[i].other, "x", 1, 0), 1);
    }
    for (int i = 0; i < CROWD; i++) {
        wait_until_told(&l[i], 1);
        CHECK_EQUAL(l[i].events, PF_IO_READ);
    }
    look();
    for (int i = 0; i < CROWD; i++) {
        CHECK_EQUAL(l[i].told, 1);
        CHECK_EQUAL(modify(&l[i], BOTH), 0); /* leaves a request outstanding */
        closesocket((SOCKET)s[i].other);
    }
    close_poller();
    for (int i = 0; i < CROWD; i++) {
        closesocket((SOCKET)s[i].end);
    }
}

/* ------------------------------------------------- handles, and wake() --- */

static void
many_wakes_end_one_wait(void)
{
    open_poller();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++) {
            poller->ops->wake(poller);
        }
        int64_t start = pf_clock_monotonic();
        CHECK_EQUAL(poller->ops->wait(poller, 60 * SECOND), 0);
        CHECK(pf_clock_monotonic() - start < 30 * SECOND);
        start = pf_clock_monotonic();
        CHECK_EQUAL(poller->ops->wait(poller, SECOND / 50), 0);
        CHECK(pf_clock_monotonic() - start >= SECOND / 100);
    }
    close_poller();
}

static DWORD WINAPI
set_event(void *event)
{
    SetEvent((HANDLE)event);
    return 0;
}

/* Tests both kinds of event: one that resets itself as soon as a thread has
 * seen it, and one that does not. */
static void
handle_ends_a_wait_that_has_begun(void)
{
    for (int manual = 0; manual < 2; manual++) {
        listener l;
        open_poller();
        HANDLE event = CreateEventW(NULL, manual, FALSE, NULL);
        CHECK_EQUAL(add(&l, (intptr_t)event, PF_IO_READ | PF_IO_EDGE), 0);
        for (int i = 1; i < 50; i++) {
            HANDLE thread = CreateThread(NULL, 0, set_event, event, 0, NULL);
            wait_until_told(&l, i);
            WaitForSingleObject(thread, INFINITE);
            CloseHandle(thread);
            ResetEvent(event);
            CHECK_EQUAL(modify(&l, PF_IO_READ | PF_IO_EDGE), 0);
            CHECK_EQUAL(look(), 0);
            CHECK_EQUAL(l.told, i);
        }
        close_poller();
        CloseHandle(event);
    }
}

const test afd_tests[] = {
    TEST(socket_is_told_in_both_directions),
    TEST(connection_is_told_to_both_ends),
    TEST(failed_connect_is_an_error),
    TEST(end_of_stream_can_be_read),
    TEST(broken_connection_is_an_error_of_every_interest),
    TEST(data_out_of_band_are_told_apart),
    TEST(socket_closed_under_the_poller_is_an_error),
    TEST(datagrams_are_told),
    TEST(registrations_come_and_go_while_requests_are_outstanding),
    TEST(many_wakes_end_one_wait),
    TEST(handle_ends_a_wait_that_has_begun),
    END_OF_TESTS,
};

#else

const test afd_tests[] = {END_OF_TESTS};

#endif
