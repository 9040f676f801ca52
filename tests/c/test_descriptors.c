/* Tests the default poller with descriptors: adding, changing and removing
 * registrations, and what it reports. */
#include "check.h"

#include <errno.h>

#include "engine/base/memory.h"
#include "engine/core/timers.h"
#include "listeners.h"

#if !defined(_WIN32)
#include <sys/wait.h>
#include <unistd.h>
#endif

/* ----------------------------------------------------------- tests --- */

static void
descriptor_ends_the_wait_and_is_told(void)
{
    source s;
    listener l;
    open_poller();
    intptr_t descriptor = source_open(&s);
    CHECK_EQUAL(add(&l, descriptor, PF_IO_READ), 0);
    CHECK(!pf_poller_busy(poller)); /* the test has not counted a wait */
    CHECK_EQUAL(look(), 0);
    source_set(&s);
    CHECK_EQUAL(poller->ops->wait(poller, PF_NEVER), 1);
    CHECK_EQUAL(l.told, 0); /* wait itself reports nothing */
    poller->ops->deliver(poller, NULL);
    CHECK_EQUAL(l.told, 1);
    CHECK_EQUAL(l.events, PF_IO_READ);
    poller->ops->deliver(poller, NULL); /* reports nothing twice */
    CHECK_EQUAL(l.told, 1);
    CHECK_EQUAL(take_out(&l), 0);
    source_close(&s);
    close_poller();
}

/* A wake-up and an event at once: neither hides the other. */
static void
wake_and_descriptor_come_together(void)
{
    source s;
    listener l;
    open_poller();
    CHECK_EQUAL(add(&l, source_open(&s), PF_IO_READ), 0);
    source_set(&s);
    poller->ops->wake(poller);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(l.told, 1);
    CHECK_EQUAL(take_out(&l), 0);
    CHECK_EQUAL(poller->ops->wait(poller, 1000), 0); /* finds no wake-up */
    source_close(&s);
    close_poller();
}

static void
level_is_told_as_long_as_it_lasts_and_edge_once(void)
{
    source s[2];
    listener level, edge;
    open_poller();
    CHECK_EQUAL(add(&level, source_open(&s[0]), PF_IO_READ), 0);
    CHECK_EQUAL(add(&edge, source_open(&s[1]), PF_IO_READ | PF_IO_EDGE), 0);
    source_set(&s[0]);
    source_set(&s[1]);
    CHECK_EQUAL(look(), 2);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(level.told, 2);
    CHECK_EQUAL(edge.told, 1);
    if (!poller->ops->rearms) {
        source_set(&s[1]); /* more to read */
        CHECK_EQUAL(look(), 2);
        CHECK_EQUAL(look(), 1);
        edge.told--;
    }
    CHECK_EQUAL(modify(&edge, PF_IO_READ | PF_IO_EDGE), 0);
    CHECK_EQUAL(look(), 2);
    CHECK_EQUAL(edge.told, 2);
    CHECK_EQUAL(modify(&level, 0), 0); /* no interest, no report */
    CHECK_EQUAL(look(), 0);
    CHECK_EQUAL(modify(&level, PF_IO_READ), 0);
    CHECK_EQUAL(look(), 1);
    source_close(&s[0]);
    source_close(&s[1]);
    close_poller();
}

static void
what_cannot_be_done_is_refused(void)
{
    source s, t;
    listener l, other = {.registration.added = false};
    open_poller();
    intptr_t descriptor = source_open(&s);
    intptr_t unused = source_open(&t);
    CHECK_EQUAL(add(&l, descriptor, PF_IO_END), -EINVAL);
    CHECK_EQUAL(add(&l, -7, PF_IO_READ), -EBADF);
    source_close(&t);
    CHECK_EQUAL(add(&l, unused, PF_IO_READ), -EBADF);
    CHECK_EQUAL(modify(&other, PF_IO_READ), -ENOENT);
    CHECK_EQUAL(take_out(&other), -ENOENT);
    CHECK_EQUAL(add(&l, descriptor, PF_IO_READ), 0);
    CHECK_EQUAL(add(&other, descriptor, PF_IO_READ), -EEXIST);
    CHECK(!other.registration.added);
    intptr_t second = source_open(&t);
    CHECK_EQUAL(poller->ops->add(poller, second, PF_IO_READ, &l.registration),
                -EEXIST);
    CHECK_EQUAL(modify(&l, PF_IO_ERROR), -EINVAL);
    source_set(&s);
    CHECK_EQUAL(look(), 1); /* the old interest is in force */
    CHECK_EQUAL(take_out(&l), 0);
    CHECK_EQUAL(take_out(&l), -ENOENT);
    CHECK_EQUAL(add(&l, descriptor, PF_IO_READ), 0);
    CHECK_EQUAL(look(), 1);
    source_close(&s);
    source_close(&t);
    close_poller();
}

/* ----------------------------------- changes while events are reported --- */

enum { CROWD = 3 };

/* What an actor does at its first event.  NEXT is the actor with the next
 * number. */
typedef enum act {
    NOTHING,
    REMOVE_SELF,
    REMOVE_NEXT,
    REMOVE_OTHERS,
    REPLACE_NEXT, /* remove the next one and add it anew */
    REPLACE_SELF,
    MUTE_NEXT,  /* set its interest to nothing */
    RENEW_NEXT, /* set the same interest again */
    ACTS
} act;

typedef struct actor {
    pf_registration registration; /* first */
    source source;
    intptr_t descriptor;
    act act;
    bool found; /* an event was found and must still be reported */
    bool muted;
    int told;
} actor;

static actor actors[CROWD];
static unsigned mode; /* PF_IO_EDGE or nothing */

static void
remove_actor(actor *a)
{
    int expected = a->registration.added ? 0 : -ENOENT;
    a->found = false;
    CHECK_EQUAL(poller->ops->remove(poller, &a->registration), expected);
}

static void
add_actor(actor *a)
{
    a->muted = false;
    CHECK_EQUAL(poller->ops->add(poller, a->descriptor, PF_IO_READ | mode,
                                 &a->registration),
                0);
}

static void
change_actor(actor *a, bool mute)
{
    int expected = a->registration.added ? 0 : -ENOENT;
    a->found = false;
    a->muted = mute;
    CHECK_EQUAL(poller->ops->modify(poller, &a->registration,
                                    mute ? 0 : PF_IO_READ | mode),
                expected);
}

static void
act_when_told(pf_registration *r, struct pf_scheduler *s, unsigned events)
{
    actor *self = (actor *)r;
    long i = self - actors;
    actor *next = &actors[(i + 1) % CROWD];
    (void)s;
    CHECK(self->found && events == PF_IO_READ);
    self->found = false;
    self->muted = mode != 0;
    if (self->told++ > 0) {
        return;
    }
    switch (self->act) {
    case REMOVE_SELF:
        remove_actor(self);
        break;
    case REMOVE_OTHERS:
        remove_actor(&actors[(i + 2) % CROWD]);
        remove_actor(next);
        break;
    case REMOVE_NEXT:
        remove_actor(next);
        break;
    case REPLACE_NEXT:
        remove_actor(next);
        add_actor(next);
        break;
    case REPLACE_SELF:
        remove_actor(self);
        add_actor(self);
        break;
    case MUTE_NEXT:
    case RENEW_NEXT:
        change_actor(next, self->act == MUTE_NEXT);
        break;
    default:
        break;
    }
}

/* All actors are ready.  The actors act during the first delivery; the second
 * one reports to all that are still registered with an interest. */
static void
play_acts(int number)
{
    open_poller();
    for (int i = 0; i < CROWD; i++) {
        actors[i].registration = (pf_registration){.ready = act_when_told};
        actors[i].act = (act)(number % ACTS);
        number /= ACTS;
        actors[i].told = 0;
        add_actor(&actors[i]);
    }
    for (int turn = 0; turn < 2; turn++) {
        int expected = 0;
        for (int i = 0; i < CROWD; i++) {
            actors[i].found = actors[i].registration.added && !actors[i].muted;
            expected += actors[i].found;
        }
        CHECK_EQUAL(poller->ops->wait(poller, 0), expected);
        poller->ops->deliver(poller, NULL);
        for (int i = 0; i < CROWD; i++) {
            CHECK(!actors[i].found);
        }
    }
    close_poller();
}

static void
changes_while_events_are_told_hold_in_every_combination(void)
{
    for (int i = 0; i < CROWD; i++) {
        actors[i].descriptor = source_open(&actors[i].source);
        source_set(&actors[i].source);
    }
    for (int i = 0; i < ACTS * ACTS * ACTS; i++) {
        mode = 0;
        play_acts(i);
        mode = PF_IO_EDGE;
        play_acts(i);
    }
    for (int i = 0; i < CROWD; i++) {
        source_close(&actors[i].source);
    }
}

/* ---------------------------------------------- many, or no memory --- */

#if defined(_WIN32)
#define MOST 63 /* handles */
#else
#define MOST 200
#endif

static void
many_descriptors_are_watched(void)
{
    static source s[MOST + 1];
    static listener l[MOST + 1];
    open_poller();
    for (int i = 0; i < MOST; i++) {
        CHECK_EQUAL(add(&l[i], source_open(&s[i]), PF_IO_READ), 0);
    }
    if (is_kind("handles")) {
        CHECK_EQUAL(add(&l[MOST], source_open(&s[MOST]), PF_IO_READ), -ENOSPC);
        source_close(&s[MOST]);
    }
    for (int i = 0; i < MOST; i += 3) {
        source_set(&s[i]);
    }
    CHECK_EQUAL(look(), (MOST + 2) / 3);
    for (int i = 0; i < MOST; i++) {
        CHECK_EQUAL(l[i].told, i % 3 == 0);
        if (i % 2 == 0) {
            CHECK_EQUAL(take_out(&l[i]), 0);
        }
    }
    look();
    for (int i = 0; i < MOST; i++) {
        CHECK_EQUAL(l[i].told, i % 3 != 0 ? 0 : i % 2 == 0 ? 1 : 2);
        source_close(&s[i]);
    }
    close_poller();
}

/* More descriptors are ready than one wait finds; the next wait reports the
 * others first. */
static void
each_of_many_that_stay_ready_has_its_turn(void)
{
#if defined(_WIN32)
    SKIP("a wait finds as many as there may be");
#else
    enum { READY = 300 };
    static source s[READY];
    static listener l[READY];
    open_poller();
    for (int i = 0; i < READY; i++) {
        CHECK_EQUAL(add(&l[i], source_open(&s[i]), PF_IO_READ), 0);
        source_set(&s[i]);
    }
    look();
    look();
    for (int i = 0; i < READY; i++) {
        CHECK(l[i].told >= 1);
        source_close(&s[i]);
    }
    close_poller();
#endif
}

static void
adding_without_memory_changes_nothing(void)
{
#if defined(PYFIBER_HARDTEST)
    source s[20];
    listener l[20];
    int refused = 0;
    open_poller();
    for (int i = 0; i < 20; i++) {
        intptr_t descriptor = source_open(&s[i]);
        source_set(&s[i]);
        pf_memory_fail = 1;
        int rc = add(&l[i], descriptor, PF_IO_READ);
        pf_memory_fail = 0;
        if (rc != 0) {
            CHECK_EQUAL(rc, -ENOMEM);
            CHECK_EQUAL(look(), i);
            CHECK_EQUAL(add(&l[i], descriptor, PF_IO_READ), 0);
            refused++;
        }
    }
    CHECK(refused > 1);
    CHECK_EQUAL(look(), 20);
    for (int i = 0; i < 20; i++) {
        source_close(&s[i]);
    }
    close_poller();
#else
    SKIP("memory fails on request in HARDTEST builds only");
#endif
}

#if !defined(_WIN32)

/* ------------------------------------------------ events of POSIX only --- */

static void
both_directions_are_told(void)
{
    source s;
    listener l;
    open_poller();
    source_open(&s);
    CHECK_EQUAL(add(&l, (int)s.other, PF_IO_READ), 0);
    CHECK_EQUAL(look(), 0);
    CHECK_EQUAL(modify(&l, PF_IO_WRITE), 0);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(l.events, PF_IO_WRITE);
    CHECK_EQUAL(modify(&l, PF_IO_READ | PF_IO_WRITE | PF_IO_EDGE), 0);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(l.events, PF_IO_WRITE);
    CHECK_EQUAL(look(), 0);
    source_close(&s);
    close_poller();
}

/* END and ERROR are reported whatever the interest is; to an edge, once. */
static void
end_and_error_are_told_unasked(void)
{
    source s;
    listener l;
    open_poller();
    source_open(&s);
    CHECK_EQUAL(add(&l, (int)s.end, PF_IO_READ | PF_IO_EDGE), 0);
    close((int)s.other);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(l.events, PF_IO_READ | PF_IO_END);
    CHECK_EQUAL(look(), 0);
    CHECK_EQUAL(take_out(&l), 0);
    close((int)s.end);

    source_open(&s);
    CHECK_EQUAL(add(&l, (int)s.other, PF_IO_WRITE), 0);
    close((int)s.end);
    CHECK_EQUAL(look(), 1);
    CHECK(l.events & PF_IO_WRITE);
    CHECK(l.events & (PF_IO_ERROR | PF_IO_END));
    /* Some kqueues refuse this interest. */
    if (modify(&l, PF_IO_URGENT | PF_IO_EDGE) != -EINVAL) {
        CHECK_EQUAL(look(), 1);
        CHECK_EQUAL(look(), 0);
    }
    close((int)s.other); /* against the rules: it is still registered */
    modify_closed(&l, PF_IO_WRITE);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(l.events, PF_IO_WRITE | PF_IO_ERROR);
    modify_closed(&l, 0);
    CHECK_EQUAL(look(), 0);
    close_poller();
}

static void
registrations_outlive_a_fork(void)
{
    source s;
    listener l;
    open_poller();
    CHECK_EQUAL(add(&l, source_open(&s), PF_IO_READ), 0);
    pid_t pid = fork();
    if (pid == 0) {
        bool fine = poller->ops->after_fork(poller) == 0 && look() == 0;
        poller->ops->wake(poller);
        source_set(&s);
        _exit(fine && look() == 1 && l.told == 1 ? 3 : 4);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    CHECK_EQUAL(look(), 1); /* both processes share the pipe, not wake() */
    source_close(&s);
    close_poller();
}

#endif

const test descriptor_tests[] = {
    TEST(descriptor_ends_the_wait_and_is_told),
    TEST(wake_and_descriptor_come_together),
    TEST(level_is_told_as_long_as_it_lasts_and_edge_once),
    TEST(what_cannot_be_done_is_refused),
    TEST(changes_while_events_are_told_hold_in_every_combination),
    TEST(many_descriptors_are_watched),
    TEST(each_of_many_that_stay_ready_has_its_turn),
    TEST(adding_without_memory_changes_nothing),
#if !defined(_WIN32)
    TEST(both_directions_are_told),
    TEST(end_and_error_are_told_unasked),
    TEST(registrations_outlive_a_fork),
#endif
    END_OF_TESTS,
};
