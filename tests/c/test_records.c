/* Tests the records of descriptors and the waits at them (io/descriptor.h).
 *
 * The poller is a fake, `bed`: it notes what is registered, answers as a test
 * sets it, and reports the events that a test chooses.
 */
#include "check.h"

#include <errno.h>

#include "engine/io/descriptor.h"

#define NUMBERS 8

static struct {
    pf_poller base; /* first */
    pf_registration *registered[NUMBERS];
    int adds, modifies, removes;
    int answer; /* of the next add or modify; 0: success */
} bed;

static pf_descriptors table;

static int
bed_add(pf_poller *poller, intptr_t number, unsigned interest,
        pf_registration *r)
{
    (void)poller;
    int answer = bed.answer;
    bed.answer = 0;
    bed.adds++;
    if (answer != 0) {
        return answer;
    }
    CHECK(!r->added && bed.registered[number] == NULL);
    bed.registered[number] = r;
    r->descriptor = number;
    r->interest = (uint16_t)interest;
    r->added = true;
    return 0;
}

static int
bed_modify(pf_poller *poller, pf_registration *r, unsigned interest)
{
    (void)poller;
    int answer = bed.answer;
    bed.answer = 0;
    bed.modifies++;
    CHECK(r->added);
    if (answer == 0) {
        r->interest = (uint16_t)interest;
    }
    return answer;
}

static int
bed_remove(pf_poller *poller, pf_registration *r)
{
    (void)poller;
    CHECK(r->added);
    bed.removes++;
    bed.registered[r->descriptor] = NULL;
    r->added = false;
    return 0;
}

static pf_poller_ops bed_ops = {
    .add = bed_add, .modify = bed_modify, .remove = bed_remove};

typedef struct waiter {
    pf_io_wait wait; /* first */
    int woken;
    bool away; /* woken already, for another reason */
} waiter;

static bool
wake(pf_io_wait *wait, struct pf_scheduler *s)
{
    (void)s;
    waiter *w = (waiter *)wait;
    if (w->away) {
        return false;
    }
    w->woken++;
    return true;
}

static void
begin(void)
{
    memset(&bed, 0, sizeof bed);
    bed_ops.rearms = false;
    bed.base.ops = &bed_ops;
    pf_descriptors_init(&table, &bed.base);
}

static void
end(void)
{
    CHECK_EQUAL(bed.base.awaited, 0);
    pf_descriptors_finish(&table);
}

static pf_descriptor *
owned(intptr_t number, uint64_t owner)
{
    pf_descriptor *at = NULL;
    CHECK_EQUAL(pf_descriptor_of(&table, NULL, number, owner, &at), 0);
    return at;
}

static int
wait_at(pf_descriptor *at, waiter *w, pf_direction direction)
{
    *w = (waiter){.wait.wake = wake};
    return pf_descriptor_wait(at, &w->wait, direction);
}

static int
wait_foreign(intptr_t number, waiter *w, pf_direction direction)
{
    *w = (waiter){.wait.wake = wake};
    return pf_descriptor_wait_foreign(&table, NULL, number, &w->wait,
                                      direction);
}

static void
report(intptr_t number, unsigned events)
{
    pf_registration *r = bed.registered[number];
    CHECK(r != NULL);
    if (r != NULL) {
        r->ready(r, NULL, events);
    }
}

/* ------------------------------------------------------------- owned --- */

static void
owned_number_is_registered_at_its_first_wait_and_never_again(void)
{
    begin();
    pf_descriptor *at = owned(3, 1);
    waiter w;
    CHECK_EQUAL(wait_at(at, &w, PF_READING), 1); /* no operation blocked */
    CHECK_EQUAL(bed.adds, 0);
    for (int i = 0; i < 3; i++) {
        pf_descriptor_blocked(at, PF_READING);
        CHECK_EQUAL(wait_at(at, &w, PF_READING), 0);
        report(3, PF_IO_READ);
        CHECK_EQUAL(w.woken, 1);
        CHECK(w.wait.at == NULL && w.wait.error == 0);
        pf_io_wait_end(&w.wait);
    }
    CHECK_EQUAL(bed.adds, 1);
    CHECK_EQUAL(bed.modifies, 0);
    CHECK_EQUAL(bed.removes, 0);
    CHECK((at->registration.interest & PF_IO_EDGE) != 0);
    end();
}

static void
readiness_is_remembered_for_each_direction(void)
{
    begin();
    pf_descriptor *at = owned(3, 1);
    waiter w;
    pf_descriptor_blocked(at, PF_READING);
    CHECK(!pf_descriptor_may(at, PF_READING));
    CHECK(pf_descriptor_may(at, PF_WRITING));
    pf_descriptor_blocked(at, PF_WRITING);
    CHECK_EQUAL(wait_at(at, &w, PF_READING), 0);
    report(3, PF_IO_WRITE);
    CHECK_EQUAL(w.woken, 0);
    CHECK(pf_descriptor_may(at, PF_WRITING));
    report(3, PF_IO_READ | PF_IO_URGENT);
    CHECK_EQUAL(w.woken, 1);
    CHECK_EQUAL(at->seen, PF_IO_URGENT);
    end();
}

static void
end_and_error_let_everybody_try(void)
{
    begin();
    pf_descriptor *at = owned(3, 1);
    waiter reader, writer;
    pf_descriptor_blocked(at, PF_READING);
    pf_descriptor_blocked(at, PF_WRITING);
    CHECK_EQUAL(wait_at(at, &reader, PF_READING), 0);
    CHECK_EQUAL(wait_at(at, &writer, PF_WRITING), 0);
    report(3, PF_IO_END);
    CHECK_EQUAL(reader.woken, 1);
    CHECK_EQUAL(writer.woken, 0);
    report(3, PF_IO_ERROR);
    CHECK_EQUAL(writer.woken, 1);
    CHECK_EQUAL(at->seen, PF_IO_END | PF_IO_ERROR);
    end();
}

static void
one_event_wakes_the_first_and_the_turn_is_passed_on(void)
{
    begin();
    pf_descriptor *at = owned(3, 1);
    waiter w[3];
    pf_descriptor_blocked(at, PF_READING);
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(wait_at(at, &w[i], PF_READING), 0);
    }
    CHECK_EQUAL(bed.base.awaited, 3);
    report(3, PF_IO_READ);
    CHECK(w[0].woken == 1 && w[1].woken == 0 && w[2].woken == 0);
    pf_descriptor_pass_on(at, NULL, PF_READING);
    CHECK(w[1].woken == 1 && w[2].woken == 0);
    pf_descriptor_blocked(at, PF_READING);
    pf_descriptor_pass_on(at, NULL, PF_READING); /* nothing to read */
    CHECK_EQUAL(w[2].woken, 0);
    pf_io_wait_end(&w[2].wait);
    end();
}

static void
waiter_that_is_on_its_way_is_passed_over(void)
{
    begin();
    pf_descriptor *at = owned(3, 1);
    waiter first, second;
    pf_descriptor_blocked(at, PF_READING);
    CHECK_EQUAL(wait_at(at, &first, PF_READING), 0);
    CHECK_EQUAL(wait_at(at, &second, PF_READING), 0);
    first.away = true;
    report(3, PF_IO_READ);
    CHECK(first.woken == 0 && second.woken == 1);
    pf_io_wait_end(&first.wait);
    end();
}

static void
release_refuses_all_who_wait(void)
{
    begin();
    pf_descriptor *at = owned(3, 1);
    waiter w[3];
    pf_descriptor_blocked(at, PF_READING);
    pf_descriptor_blocked(at, PF_WRITING);
    CHECK_EQUAL(wait_at(at, &w[0], PF_READING), 0);
    CHECK_EQUAL(wait_at(at, &w[1], PF_READING), 0);
    CHECK_EQUAL(wait_at(at, &w[2], PF_WRITING), 0);
    w[1].away = true;
    pf_descriptor_release(&table, NULL, 3, 2); /* not its owner */
    CHECK_EQUAL(w[0].woken, 0);
    pf_descriptor_release(&table, NULL, 3, 1);
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(w[i].wait.error, -EBADF);
        CHECK_EQUAL(w[i].woken, i == 1 ? 0 : 1);
        pf_io_wait_end(&w[i].wait);
    }
    CHECK(bed.registered[3] == NULL);
    CHECK_EQUAL(bed.removes, 1);
    end();
}

static void
next_owner_of_a_number_believes_nothing_of_the_last(void)
{
    begin();
    pf_descriptor *at = owned(3, 1);
    waiter old, fresh;
    pf_descriptor_blocked(at, PF_READING);
    CHECK_EQUAL(wait_at(at, &old, PF_READING), 0);
    report(3, PF_IO_END);
    pf_descriptor_blocked(at, PF_READING);
    CHECK_EQUAL(wait_at(at, &old, PF_READING), 0);
    CHECK(owned(3, 2) == at);
    CHECK_EQUAL(old.wait.error, -EBADF);
    CHECK_EQUAL(at->seen, 0);
    CHECK(pf_descriptor_may(at, PF_READING));
    pf_descriptor_blocked(at, PF_READING);
    CHECK_EQUAL(wait_at(at, &fresh, PF_READING), 0);
    CHECK_EQUAL(bed.adds, 2);
    report(3, PF_IO_READ);
    CHECK_EQUAL(fresh.woken, 1);
    end();
}

/* A poller with `rearms` is asked again, for the events that are not known to
 * be there. */
static void
poller_that_must_be_rearmed_is_asked_at_each_wait(void)
{
    begin();
    bed_ops.rearms = true;
    pf_descriptor *at = owned(3, 1);
    waiter w;
    pf_descriptor_blocked(at, PF_READING);
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(wait_at(at, &w, PF_READING), 0);
        CHECK((at->registration.interest & PF_IO_READ) != 0);
        CHECK((at->registration.interest & PF_IO_WRITE) == 0);
        CHECK((at->registration.interest & PF_IO_URGENT) == 0);
        report(3, PF_IO_READ);
        pf_descriptor_blocked(at, PF_READING);
    }
    CHECK_EQUAL(bed.adds, 1);
    CHECK_EQUAL(bed.modifies, 2);
    end();
}

static void
record_without_a_number_is_reported_by_hand(void)
{
    begin();
    pf_descriptor at;
    waiter w;
    pf_descriptor_init(&at);
    pf_descriptor_blocked(&at, PF_READING);
    CHECK_EQUAL(wait_at(&at, &w, PF_READING), 0);
    pf_descriptor_report(&at, NULL, PF_IO_READ);
    CHECK_EQUAL(w.woken, 1);
    CHECK_EQUAL(bed.adds, 0);
    end();
}

/* ----------------------------------------------------------- foreign --- */

static void
foreign_number_is_registered_while_somebody_waits(void)
{
    begin();
    waiter w[3];
    CHECK_EQUAL(wait_foreign(4, &w[0], PF_READING), 0);
    CHECK_EQUAL(wait_foreign(4, &w[1], PF_READING), 0);
    CHECK_EQUAL(wait_foreign(4, &w[2], PF_WRITING), 0);
    CHECK_EQUAL(bed.registered[4]->interest, PF_IO_READ | PF_IO_WRITE);
    report(4, PF_IO_READ);
    CHECK(w[0].woken == 1 && w[1].woken == 1 && w[2].woken == 0);
    CHECK_EQUAL(bed.registered[4]->interest, PF_IO_WRITE);
    pf_io_wait_end(&w[2].wait); /* as after a time-out */
    CHECK(bed.registered[4] == NULL);
    CHECK_EQUAL(wait_foreign(4, &w[0], PF_READING), 0); /* again, anew */
    CHECK_EQUAL(bed.adds, 2);
    pf_io_wait_end(&w[0].wait);
    end();
}

static void
number_that_cannot_be_watched_is_always_ready(void)
{
    begin();
    waiter w;
    bed.answer = -EPERM;
    CHECK_EQUAL(wait_foreign(4, &w, PF_READING), 1);
    pf_io_wait_end(&w.wait);
    end();
}

static void
errors_of_the_poller_leave_nobody_in_line(void)
{
    begin();
    waiter w;
    bed.answer = -EBADF;
    CHECK_EQUAL(wait_foreign(4, &w, PF_READING), -EBADF);
    pf_descriptor *at = owned(3, 1);
    pf_descriptor_blocked(at, PF_READING);
    bed.answer = -ENOMEM;
    CHECK_EQUAL(wait_at(at, &w, PF_READING), -ENOMEM);
    pf_io_wait_end(&w.wait);
    CHECK_EQUAL(wait_at(at, &w, PF_READING), 0);
    pf_io_wait_end(&w.wait);
    end();
}

static void
numbers_out_of_range_are_refused(void)
{
    begin();
    waiter w;
    pf_descriptor *at;
    CHECK_EQUAL(wait_foreign(-1, &w, PF_READING), -EBADF);
    CHECK_EQUAL(wait_foreign(INTPTR_MAX, &w, PF_READING), -EBADF);
    CHECK_EQUAL(pf_descriptor_of(&table, NULL, -1, 1, &at), -EBADF);
    pf_descriptor_release(&table, NULL, -1, 1);
    pf_descriptor_release(&table, NULL, 1000, 1);
    end();
}

/* A foreign wait asks the poller, because what the record remembers may be
 * old. */
static void
foreign_wait_for_an_owned_number_arms_it_anew(void)
{
    begin();
    pf_descriptor *at = owned(3, 1);
    waiter own, other;
    CHECK_EQUAL(wait_foreign(3, &other, PF_READING), 0);
    CHECK_EQUAL(bed.adds, 1);
    CHECK(!pf_descriptor_may(at, PF_WRITING));
    CHECK_EQUAL(wait_at(at, &own, PF_READING), 0);
    report(3, PF_IO_READ | PF_IO_WRITE);
    CHECK(own.woken == 1 && other.woken == 1);
    CHECK(bed.registered[3] != NULL); /* for the owner */
    CHECK_EQUAL(wait_foreign(3, &other, PF_READING), 0);
    CHECK_EQUAL(bed.modifies, 1);
    pf_io_wait_end(&other.wait);
    end();
}

static void
number_that_was_closed_unseen_is_registered_afresh(void)
{
    begin();
    pf_descriptor *at = owned(3, 1);
    waiter lost, found;
    pf_descriptor_blocked(at, PF_READING);
    CHECK_EQUAL(wait_at(at, &lost, PF_READING), 0);
    bed.answer = -ENOENT;
    CHECK_EQUAL(wait_foreign(3, &found, PF_READING), 0);
    CHECK_EQUAL(lost.wait.error, -EBADF);
    CHECK_EQUAL(at->owner, 0);
    report(3, PF_IO_READ);
    CHECK_EQUAL(found.woken, 1);
    CHECK(bed.registered[3] == NULL);
    end();
}

/* ------------------------------------------------------------ chance --- */

static unsigned state;

static unsigned
chance(unsigned n)
{
    state = state * 1103515245u + 12345u;
    return (state >> 16) % n;
}

#define WAITERS 12

static size_t
in_line(const waiter *waiters)
{
    size_t count = 0;
    for (int i = 0; i < WAITERS; i++) {
        count += waiters[i].wait.at != NULL;
    }
    return count;
}

static void
one_step(waiter *waiters)
{
    waiter *w = &waiters[chance(WAITERS)];
    intptr_t number = (intptr_t)chance(3);
    pf_direction direction = chance(2) ? PF_READING : PF_WRITING;
    pf_descriptor *at;
    bed.answer = chance(20) == 0 ? -ENOMEM : 0;
    switch (chance(7)) {
    case 0:
        if (w->wait.at == NULL) {
            (void)wait_foreign(number, w, direction);
        }
        break;
    case 1:
    case 2:
        at = owned(number, number == 2 ? 1 + chance(2) : 7);
        pf_descriptor_blocked(at, direction);
        if (w->wait.at == NULL) {
            (void)wait_at(at, w, direction);
        }
        break;
    case 3:
        pf_io_wait_end(&w->wait);
        break;
    case 4:
        pf_descriptor_release(&table, NULL, number, 7);
        break;
    case 5:
        w->away = !w->away;
        break;
    default:
        if (bed.registered[number] != NULL) {
            report(number, 1u << chance(6));
        }
    }
    bed.answer = 0;
}

/* Checks that a foreign number is registered exactly while a wait needs it. */
static void
look_at_registrations(void)
{
    for (intptr_t i = 0; i < 3; i++) {
        pf_descriptor *at = (size_t)i < table.size ? table.records[i] : NULL;
        if (at != NULL && at->owner == 0) {
            bool awaited = at->waiting[0] != NULL || at->waiting[1] != NULL;
            CHECK_EQUAL(at->registration.added, awaited);
        }
    }
}

static void
random_waits_are_counted_and_none_is_lost(void)
{
    for (unsigned seed = 1; seed <= 200; seed++) {
        waiter waiters[WAITERS] = {{.woken = 0}};
        for (int i = 0; i < WAITERS; i++) {
            waiters[i].wait.wake = wake;
        }
        state = seed;
        begin();
        for (int i = 0; i < 300; i++) {
            one_step(waiters);
            CHECK_EQUAL(bed.base.awaited, in_line(waiters));
            look_at_registrations();
        }
        for (int i = 0; i < WAITERS; i++) {
            pf_io_wait_end(&waiters[i].wait);
        }
        end();
    }
}

const test record_tests[] = {
    TEST(owned_number_is_registered_at_its_first_wait_and_never_again),
    TEST(readiness_is_remembered_for_each_direction),
    TEST(end_and_error_let_everybody_try),
    TEST(one_event_wakes_the_first_and_the_turn_is_passed_on),
    TEST(waiter_that_is_on_its_way_is_passed_over),
    TEST(release_refuses_all_who_wait),
    TEST(next_owner_of_a_number_believes_nothing_of_the_last),
    TEST(poller_that_must_be_rearmed_is_asked_at_each_wait),
    TEST(record_without_a_number_is_reported_by_hand),
    TEST(foreign_number_is_registered_while_somebody_waits),
    TEST(number_that_cannot_be_watched_is_always_ready),
    TEST(errors_of_the_poller_leave_nobody_in_line),
    TEST(numbers_out_of_range_are_refused),
    TEST(foreign_wait_for_an_owned_number_arms_it_anew),
    TEST(number_that_was_closed_unseen_is_registered_afresh),
    TEST(random_waits_are_counted_and_none_is_lost),
    END_OF_TESTS,
};
