/* Tests the default poller with descriptors that are closed, duplicated or
 * inherited while it watches them, broken, of the wrong kind, or many. */
#include "check.h"

#include "engine/base/clock.h"
#include "listeners.h"

#if !defined(_WIN32)

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MILLISECOND ((int64_t)1000000)

static const unsigned modes[] = {0, PF_IO_EDGE};
enum { MODES = sizeof modes / sizeof *modes };

/* Checks that a wait lasts its whole time. */
static void
check_that_wait_lasts(void)
{
    int64_t start = pf_clock_monotonic();
    CHECK_EQUAL(poller->ops->wait(poller, 5 * MILLISECOND), 0);
    CHECK(pf_clock_monotonic() - start >= 5 * MILLISECOND);
}

static void
source_open_as(source *s, int number)
{
    int other = (int)source_open(s);
    if (other != number) {
        CHECK_EQUAL(dup2(other, number), number);
        close(other);
        s->end = number;
    }
}

/* -------------------------------------- numbers that change their file --- */

/* A duplicate keeps the pipe open, so epoll still has the registration, and no
 * call can remove it. */
static void
number_that_was_closed_tells_nobody_although_its_duplicate_lives(void)
{
    if (is_emulated()) {
        SKIP("it does not see that a number is closed");
    }
    for (int i = 0; i < MODES; i++) {
        source s, t;
        listener old, new;
        open_poller();
        int number = (int)source_open(&s);
        int copy = dup(number);
        CHECK_EQUAL(add(&old, number, PF_IO_READ | modes[i]), 0);
        close(number);
        CHECK_EQUAL(take_out(&old), 0);
        source_set(&s);
        CHECK_EQUAL(look(), 0);
        check_that_wait_lasts();

        source_open_as(&t, number);
        CHECK_EQUAL(add(&new, number, PF_IO_READ | modes[i]), 0);
        source_set(&s);
        CHECK_EQUAL(look(), 0);
        CHECK_EQUAL(new.told, 0);
        check_that_wait_lasts();
        source_set(&t);
        source_set(&s);
        CHECK_EQUAL(look(), 1);
        CHECK_EQUAL(new.told, 1);
        CHECK_EQUAL(old.told, 0);
        source_close(&s);
        source_close(&t);
        close(copy);
        close_poller();
    }
}

/* The number is removed only after it was closed. */
static void
number_that_was_closed_while_watched_is_taken_out_all_the_same(void)
{
    source s;
    listener l;
    if (is_emulated()) {
        SKIP("it does not see that a number is closed");
    }
    open_poller();
    int number = (int)source_open(&s);
    CHECK_EQUAL(add(&l, number, PF_IO_READ | PF_IO_EDGE), 0);
    source_close(&s);
    CHECK_EQUAL(take_out(&l), 0);
    CHECK(!l.registration.added);
    CHECK_EQUAL(look(), 0);
    CHECK_EQUAL(take_out(&l), -ENOENT);
    source_open_as(&s, number);
    CHECK_EQUAL(add(&l, number, PF_IO_READ | PF_IO_EDGE), 0);
    source_set(&s);
    CHECK_EQUAL(look(), 1);
    source_close(&s);
    close_poller();
}

/* epoll has had the number all the time (EEXIST), and has reported its
 * edge. */
static void
number_that_comes_back_with_its_file_is_armed_anew(void)
{
    if (is_emulated()) {
        SKIP("it does not see that a number is closed");
    }
    for (int i = 0; i < MODES; i++) {
        source s;
        listener old, new, third;
        open_poller();
        int number = (int)source_open(&s);
        int copy = dup(number);
        CHECK_EQUAL(add(&old, number, PF_IO_READ | modes[i]), 0);
        source_set(&s);
        CHECK_EQUAL(look(), 1);
        close(number);
        CHECK_EQUAL(take_out(&old), 0);
        CHECK_EQUAL(dup2(copy, number), number);
        CHECK_EQUAL(add(&new, number, PF_IO_READ | modes[i]), 0);
        CHECK_EQUAL(look(), 1);
        CHECK_EQUAL(new.told, 1);
        CHECK_EQUAL(old.told, 1);
        CHECK_EQUAL(add(&third, number, PF_IO_READ), -EEXIST);
        CHECK(!third.registration.added);
        CHECK_EQUAL(take_out(&new), 0);
        CHECK_EQUAL(add(&third, number, PF_IO_READ | modes[i]), 0);
        CHECK_EQUAL(look(), 1); /* the number stayed open all the time */
        CHECK_EQUAL(third.told, 1);
        source_close(&s);
        close(copy);
        close_poller();
    }
}

/* The number gets another registration while its event is reported. */
static listener heir;

static void
hand_over(pf_registration *r, struct pf_scheduler *s, unsigned events)
{
    (void)s, (void)events;
    ((listener *)r)->told++;
    CHECK_EQUAL(poller->ops->remove(poller, r), 0);
    CHECK_EQUAL(add(&heir, r->descriptor, PF_IO_READ), 0);
}

static void
number_that_is_handed_over_while_it_is_told_is_told_to_the_heir_next(void)
{
    for (int i = 0; i < MODES; i++) {
        source s;
        listener l;
        open_poller();
        CHECK_EQUAL(add(&l, source_open(&s), PF_IO_READ | modes[i]), 0);
        l.registration.ready = hand_over;
        source_set(&s);
        CHECK_EQUAL(look(), 1);
        CHECK_EQUAL(heir.told, 0);
        CHECK_EQUAL(look(), 1);
        CHECK_EQUAL(heir.told, 1);
        CHECK_EQUAL(look(), 1);
        CHECK_EQUAL(heir.told, 2);
        CHECK_EQUAL(l.told, 1);
        source_close(&s);
        close_poller();
    }
}

/* A level-triggered number that cannot be armed again after its event. */
static source closing;

static void
close_when_told(pf_registration *r, struct pf_scheduler *s, unsigned events)
{
    listener *l = (listener *)r;
    (void)s;
    l->events = events;
    if (l->told++ == 0) {
        source_close(&closing);
    }
}

static void
number_that_is_closed_while_it_is_told_is_an_error_next(void)
{
    listener l;
    open_poller();
    CHECK_EQUAL(add(&l, source_open(&closing), PF_IO_READ), 0);
    l.registration.ready = close_when_told;
    source_set(&closing);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(l.events, PF_IO_READ);
    if (is_kind("kqueue")) { /* which forgets a closed number silently */
        modify_closed(&l, PF_IO_READ);
    }
    for (int i = 2; i < 5; i++) {
        CHECK_EQUAL(poller->ops->wait(poller, 3600000 * MILLISECOND), 1);
        poller->ops->deliver(poller, NULL);
        CHECK_EQUAL(l.told, i);
        CHECK_EQUAL(l.events, PF_IO_READ | PF_IO_ERROR);
    }
    CHECK_EQUAL(take_out(&l), 0);
    check_that_wait_lasts();
    close_poller();
}

/* The number was closed without removing it, and is another file's now. */
static void
number_that_is_another_files_by_now_is_noticed_by_modify(void)
{
    source s;
    listener l, new;
    if (is_kind("poll") || is_emulated()) {
        SKIP("it knows numbers only");
    }
    open_poller();
    int number = (int)source_open(&s);
    CHECK_EQUAL(add(&l, number, PF_IO_READ), 0);
    source_close(&s);
    source_open_as(&s, number);
    CHECK_EQUAL(modify(&l, PF_IO_READ | PF_IO_WRITE), -EBADF);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(l.events, PF_IO_READ | PF_IO_WRITE | PF_IO_ERROR);
    CHECK_EQUAL(take_out(&l), 0);
    CHECK_EQUAL(add(&new, number, PF_IO_READ), 0);
    CHECK_EQUAL(look(), 0);
    source_set(&s);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(new.events, PF_IO_READ);
    CHECK_EQUAL(l.told, 1);
    source_close(&s);
    close_poller();
}

/* ------------------------------------------------------------ fork --- */

enum { KEPT, CLOSED, CLOSED_EDGE, CLOSED_MUTE, INHERITED };

static source inherited[INHERITED];
static listener heirs[INHERITED];

static void
close_all_but_one(void)
{
    for (int i = KEPT + 1; i < INHERITED; i++) {
        source_close(&inherited[i]);
    }
}

static bool
was_told(int i, int times, unsigned events)
{
    bool fine = heirs[i].told == times && heirs[i].events == events;
    heirs[i].told = 0;
    heirs[i].events = 0;
    return fine;
}

/* Numbers that were closed before the poller could add them again are reported
 * as errors.  What the child does with its poller does not reach the
 * parent. */
static int
live_in_the_child(void)
{
    const unsigned error = PF_IO_READ | PF_IO_ERROR;
    close_all_but_one();
    if (poller->ops->after_fork(poller) != 0) {
        return 10;
    }
    if (look() != 2 || !was_told(CLOSED, 1, error) ||
        !was_told(CLOSED_EDGE, 1, error)) {
        return 11;
    }
    if (look() != 1 || !was_told(CLOSED, 1, error) ||
        !was_told(CLOSED_EDGE, 0, 0)) {
        return 12;
    }
    modify_closed(&heirs[CLOSED_EDGE], PF_IO_READ | PF_IO_EDGE);
    if (look() != 2) {
        return 13;
    }
    for (int i = 1; i < INHERITED; i++) {
        if (take_out(&heirs[i]) != 0) {
            return 14;
        }
    }
    if (look() != 0 || heirs[CLOSED_MUTE].told != 0) {
        return 15;
    }
    source_set(&inherited[KEPT]);
    poller->ops->wake(poller);
    bool fine = look() == 1 && was_told(KEPT, 1, PF_IO_READ);
    return !fine || take_out(&heirs[KEPT]) != 0 ? 16 : 3;
}

static void
numbers_that_are_closed_in_the_child_of_a_fork_are_told_as_errors(void)
{
    static const unsigned interests[INHERITED] = {PF_IO_READ, PF_IO_READ,
                                                  PF_IO_READ | PF_IO_EDGE, 0};
    open_poller();
    for (int i = 0; i < INHERITED; i++) {
        CHECK_EQUAL(add(&heirs[i], source_open(&inherited[i]), interests[i]),
                    0);
    }
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        _exit(live_in_the_child());
    }
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK_EQUAL(WEXITSTATUS(status), 3);
    CHECK_EQUAL(look(), 1); /* the child wrote; its wake() woke only itself */
    CHECK_EQUAL(heirs[KEPT].told, 1);
    for (int i = 0; i < INHERITED; i++) {
        source_set(&inherited[i]);
        CHECK_EQUAL(take_out(&heirs[i]), 0);
    }
    check_that_wait_lasts();
    for (int i = 0; i < INHERITED; i++) {
        source_close(&inherited[i]);
    }
    close_poller();
}

/* --------------------------------------------------- events of sockets --- */

/* Sets `ends` to two blocking sockets that are connected by loopback. */
static void
connect_pair(int ends[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK_EQUAL(bind(listening, (struct sockaddr *)&address, size), 0);
    CHECK_EQUAL(listen(listening, 1), 0);
    CHECK_EQUAL(getsockname(listening, (struct sockaddr *)&address, &size), 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQUAL(connect(ends[0], (struct sockaddr *)&address, size), 0);
    ends[1] = accept(listening, NULL, NULL);
    CHECK(ends[1] >= 0);
    close(listening);
}

/* Waits a moment if necessary, which TCP takes to reach the other end. */
static unsigned
events_soon(listener *l)
{
    l->all = 0;
    CHECK(poller->ops->wait(poller, 10000 * MILLISECOND) > 0);
    poller->ops->deliver(poller, NULL);
    return l->all;
}

#define BOTH (PF_IO_READ | PF_IO_WRITE)

static void
half_closed_connection_is_at_its_end_and_may_be_written(void)
{
    for (int i = 0; i < MODES; i++) {
        int ends[2];
        listener l;
        open_poller();
        connect_pair(ends);
        CHECK_EQUAL(add(&l, ends[0], PF_IO_READ | modes[i]), 0);
        CHECK_EQUAL(write(ends[1], "x", 1), 1);
        CHECK_EQUAL(events_soon(&l), PF_IO_READ);
        char byte;
        CHECK_EQUAL(read(ends[0], &byte, 1), 1);
        CHECK_EQUAL(modify(&l, PF_IO_READ | modes[i]), 0);
        shutdown(ends[1], SHUT_WR);
        CHECK_EQUAL(events_soon(&l), PF_IO_READ | PF_IO_END);
        CHECK_EQUAL(write(ends[0], "x", 1), 1);
        CHECK_EQUAL(modify(&l, PF_IO_WRITE | modes[i]), 0);
        CHECK_EQUAL(events_soon(&l), PF_IO_WRITE);
        close(ends[0]);
        close(ends[1]);
        close_poller();
    }
}

static void
connection_that_was_shut_both_ways_is_told_to_both(void)
{
    int ends[2];
    listener l;
    open_poller();
    connect_pair(ends);
    shutdown(ends[0], SHUT_WR);
    shutdown(ends[1], SHUT_WR);
    CHECK_EQUAL(add(&l, ends[0], BOTH | PF_IO_EDGE), 0);
    unsigned events = 0;
    for (int i = 0; i < 10 && (events & PF_IO_END) == 0; i++) {
        events |= events_soon(&l);
        CHECK_EQUAL(modify(&l, BOTH | PF_IO_EDGE), 0);
    }
    CHECK_EQUAL(events & (BOTH | PF_IO_END), BOTH | PF_IO_END);
    close(ends[0]);
    close(ends[1]);
    close_poller();
}

/* A reset is reported whatever the interest is. */
static void
connection_that_was_reset_is_an_error(void)
{
    static const unsigned asked[] = {PF_IO_READ, PF_IO_WRITE | PF_IO_EDGE,
                                     BOTH | PF_IO_EDGE};
    for (int i = 0; i < 3; i++) {
        int ends[2];
        listener l;
        struct linger at_once = {.l_onoff = 1, .l_linger = 0};
        unsigned directions = asked[i] & BOTH;
        open_poller();
        connect_pair(ends);
        CHECK_EQUAL(add(&l, ends[0], asked[i]), 0);
        setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(ends[1]);
        unsigned events = 0;
        for (int n = 0; n < 10 && (events & PF_IO_ERROR) == 0; n++) {
            events = events_soon(&l);
            CHECK_EQUAL(modify(&l, asked[i]), 0);
        }
        CHECK_EQUAL(events & (BOTH | PF_IO_ERROR), directions | PF_IO_ERROR);
        close(ends[0]);
        close_poller();
    }
}

static void
connect_that_was_refused_is_an_error(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    listener l;
    if (is_emulated()) {
        SKIP("it clears the error");
    }
    int taken = socket(AF_INET, SOCK_STREAM, 0); /* does not listen */
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    open_poller();
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK_EQUAL(bind(taken, (struct sockaddr *)&address, size), 0);
    CHECK_EQUAL(getsockname(taken, (struct sockaddr *)&address, &size), 0);
    CHECK_EQUAL(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    CHECK_EQUAL(connect(fd, (struct sockaddr *)&address, size), -1);
    CHECK_EQUAL(add(&l, fd, PF_IO_WRITE | PF_IO_EDGE), 0);
    unsigned events = events_soon(&l);
    CHECK_EQUAL(events & (BOTH | PF_IO_ERROR), PF_IO_WRITE | PF_IO_ERROR);
    int error = 0;
    size = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    CHECK_EQUAL(error, ECONNREFUSED);
    close(fd);
    close(taken);
    close_poller();
}

static void
data_out_of_band_is_told_to_whoever_asks(void)
{
    for (int i = 0; i < MODES; i++) {
        int ends[2];
        listener l;
        open_poller();
        connect_pair(ends);
        if (add(&l, ends[0], PF_IO_URGENT | modes[i]) == -EINVAL) {
            CHECK_EQUAL(add(&l, ends[0], PF_IO_READ | PF_IO_URGENT), 0);
            close(ends[0]);
            close(ends[1]);
            close_poller();
            SKIP("this system's poller does not know it");
        }
        CHECK_EQUAL(modify(&l, PF_IO_READ | PF_IO_URGENT | modes[i]), 0);
        CHECK_EQUAL(send(ends[1], "!", 1, MSG_OOB), 1);
        CHECK(events_soon(&l) & PF_IO_URGENT);
        CHECK_EQUAL(modify(&l, PF_IO_WRITE | modes[i]), 0);
        CHECK_EQUAL(events_soon(&l), PF_IO_WRITE);
        CHECK_EQUAL(modify(&l, PF_IO_URGENT | modes[i]), 0);
        CHECK_EQUAL(events_soon(&l), PF_IO_URGENT);
        close(ends[0]);
        close(ends[1]);
        close_poller();
    }
}

/* ------------------------------------------- what cannot be watched --- */

/* poll(2) and kqueue report such files as ready. */
static void
files_that_epoll_cannot_watch_are_refused_by_it(void)
{
    static const char *const paths[] = {"/dev/null", "/etc/passwd"};
    for (int i = 0; i < 2; i++) {
        listener l;
        source s;
        int fd = open(paths[i], O_RDONLY);
        open_poller();
        int rc = add(&l, fd, PF_IO_READ);
        if (is_kind("epoll")) {
            CHECK_EQUAL(rc, -EPERM);
        }
        CHECK(rc == 0 || rc == -EPERM);
        CHECK_EQUAL(l.registration.added, rc == 0);
        CHECK_EQUAL(look(), rc == 0);
        CHECK_EQUAL(take_out(&l), rc == 0 ? 0 : -ENOENT);
        close(fd);
        source_open_as(&s, fd);
        CHECK_EQUAL(add(&l, fd, PF_IO_READ), 0); /* the place is free again */
        source_close(&s);
        close_poller();
    }
}

static void
numbers_that_cannot_be_open_are_refused(void)
{
    listener l;
    open_poller();
    CHECK_EQUAL(add(&l, INT32_MAX, PF_IO_READ), -EBADF);
    CHECK_EQUAL(add(&l, INT32_MAX / 2, 0), -EBADF);
    CHECK_EQUAL(add(&l, (intptr_t)1 << 32, PF_IO_READ), -EBADF);
    CHECK_EQUAL(add(&l, -1, PF_IO_READ), -EBADF);
    CHECK(!l.registration.added);
    CHECK_EQUAL(look(), 0);
    close_poller();
}

/* A number that was closed may have become one of the poller's own. */
static void
own_descriptors_of_a_poller_are_refused(void)
{
    listener l;
    int first = dup(0), second = dup(0);
    close(first);
    close(second);
    open_poller();
    if (is_kind("epoll")) {
        int own = poller->ops->fileno(poller);
        CHECK(add(&l, own, PF_IO_READ) < 0);
        CHECK_EQUAL(add(&l, own == first ? second : first, PF_IO_READ),
                    -EEXIST);
        poller->ops->wake(poller);
        CHECK_EQUAL(poller->ops->wait(poller, 3600000 * MILLISECOND), 0);
    }
    close_poller();
}

/* ------------------------------------------------------ interest --- */

static void
mute_registration_is_told_nothing_and_ends_no_wait(void)
{
    source s;
    listener l;
    open_poller();
    CHECK_EQUAL(add(&l, source_open(&s), 0), 0);
    source_set(&s);
    CHECK_EQUAL(look(), 0);
    close((int)s.other);
    CHECK_EQUAL(look(), 0);
    check_that_wait_lasts();
    CHECK_EQUAL(modify(&l, PF_IO_READ | PF_IO_EDGE), 0);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(modify(&l, PF_IO_EDGE), 0);
    CHECK_EQUAL(look(), 0);
    check_that_wait_lasts();
    CHECK_EQUAL(l.told, 1);
    close((int)s.end);
    modify_closed(&l, 0); /* an error of no interest */
    check_that_wait_lasts();
    CHECK_EQUAL(take_out(&l), 0);
    close_poller();
}

/* A wait has found the event, and modify() comes before its delivery. */
static void
event_of_an_interest_that_was_changed_meanwhile_is_not_told(void)
{
    for (int i = 0; i < MODES; i++) {
        source s;
        listener l;
        open_poller();
        CHECK_EQUAL(add(&l, source_open(&s), PF_IO_READ | modes[i]), 0);
        source_set(&s);
        CHECK_EQUAL(poller->ops->wait(poller, 0), 1);
        CHECK_EQUAL(modify(&l, PF_IO_READ | modes[i]), 0);
        poller->ops->deliver(poller, NULL);
        CHECK_EQUAL(l.told, 0);
        CHECK_EQUAL(look(), 1);
        CHECK_EQUAL(l.told, 1);
        source_close(&s);
        close_poller();
    }
}

/* ------------------------------------------------------------ many --- */

static int
crowd(void)
{
    struct rlimit limit;
    int wanted = many() < 20000 ? 2000 : 10000;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < (rlim_t)wanted + 100) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    rlim_t most = limit.rlim_cur - 100;
    return most < (rlim_t)wanted ? (int)most : wanted;
}

/* All numbers are the same pipe, so all are ready at once: more than one wait
 * finds. */
static void
ten_thousand_registrations_are_each_told_once(void)
{
    source s;
    int count = crowd(), told = 0;
    listener *all = calloc((size_t)count, sizeof *all);
    open_poller();
    source_open(&s);
    for (int i = 0; i < count; i++) {
        CHECK_EQUAL(add(&all[i], dup((int)s.end), PF_IO_READ | PF_IO_EDGE), 0);
    }
    CHECK_EQUAL(look(), 0);
    source_set(&s);
    for (int found = look(); found > 0; found = look()) {
        told += found;
    }
    CHECK_EQUAL(told, count);
    for (int i = 0; i < count; i++) {
        CHECK_EQUAL(all[i].told, 1);
        if (i % 2 == 0) {
            CHECK_EQUAL(take_out(&all[i]), 0);
        } else {
            CHECK_EQUAL(modify(&all[i], PF_IO_READ | PF_IO_EDGE), 0);
        }
    }
    for (int found = look(); found > 0; found = look()) {
        told += found;
    }
    CHECK_EQUAL(told, count + count / 2);
    for (int i = 0; i < count; i++) {
        CHECK_EQUAL(all[i].told, 1 + i % 2);
        close((int)all[i].registration.descriptor);
    }
    close_poller();
    source_close(&s);
    free(all);
}

/* More numbers are lost than one wait can report, and the wait finds other
 * events as well. */
static void
ten_thousand_that_were_closed_are_told_so(void)
{
    source s;
    int count = crowd(), told = 0;
    if (is_emulated()) {
        SKIP("it does not see that a number is closed");
    }
    listener living, *all = calloc((size_t)count, sizeof *all);
    open_poller();
    source_open(&s);
    for (int i = 0; i < count; i++) {
        CHECK_EQUAL(add(&all[i], dup((int)s.end), PF_IO_READ | PF_IO_EDGE), 0);
    }
    for (int i = 0; i < count; i++) {
        close((int)all[i].registration.descriptor);
        modify_closed(&all[i], PF_IO_READ | PF_IO_EDGE);
    }
    CHECK_EQUAL(add(&living, s.end, PF_IO_READ), 0);
    source_set(&s);
    CHECK(look() > 1);
    CHECK_EQUAL(living.told, 1);
    CHECK_EQUAL(take_out(&living), 0);
    while (look() > 0) {
    }
    for (int i = 0; i < count; i++) {
        told += all[i].told;
        CHECK_EQUAL(all[i].events, PF_IO_READ | PF_IO_ERROR);
    }
    CHECK_EQUAL(told, count);
    close_poller();
    source_close(&s);
    free(all);
}

const test watch_tests[] = {
    TEST(number_that_was_closed_tells_nobody_although_its_duplicate_lives),
    TEST(number_that_was_closed_while_watched_is_taken_out_all_the_same),
    TEST(number_that_comes_back_with_its_file_is_armed_anew),
    TEST(number_that_is_handed_over_while_it_is_told_is_told_to_the_heir_next),
    TEST(number_that_is_closed_while_it_is_told_is_an_error_next),
    TEST(number_that_is_another_files_by_now_is_noticed_by_modify),
    TEST(numbers_that_are_closed_in_the_child_of_a_fork_are_told_as_errors),
    TEST(half_closed_connection_is_at_its_end_and_may_be_written),
    TEST(connection_that_was_shut_both_ways_is_told_to_both),
    TEST(connection_that_was_reset_is_an_error),
    TEST(connect_that_was_refused_is_an_error),
    TEST(data_out_of_band_is_told_to_whoever_asks),
    TEST(files_that_epoll_cannot_watch_are_refused_by_it),
    TEST(numbers_that_cannot_be_open_are_refused),
    TEST(own_descriptors_of_a_poller_are_refused),
    TEST(mute_registration_is_told_nothing_and_ends_no_wait),
    TEST(event_of_an_interest_that_was_changed_meanwhile_is_not_told),
    TEST(ten_thousand_registrations_are_each_told_once),
    TEST(ten_thousand_that_were_closed_are_told_so),
    END_OF_TESTS,
};

#else

const test watch_tests[] = {
    END_OF_TESTS,
};

#endif
