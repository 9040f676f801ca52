/* Which stacks may be moved, and what is kept of them. */
#include "check.h"

#include "engine/base/memory.h"
#include "engine/core/images.h"
#include "engine/core/shapes.h"
#include "sleepers.h"

#if PF_CONTEXT_MOVES

/* ------------------------------------------------------------- shapes --- */

static world the_world;
static pf_shapes shapes;
static bool again; /* what pf_shapes_look said last */

/* At each switch. */
static void
look(pf_scheduler *s, void *data)
{
    (void)data;
    again = pf_shapes_look(&shapes, s->thread->current, s->switches);
    s->until_poll = 1;
}

static world *
open_world(void)
{
    CHECK(world_open(&the_world));
    the_world.scheduler.probe = look;
    the_world.scheduler.until_poll = 1;
    pf_shapes_init(&shapes);
    return &the_world;
}

static void
close_world(int fibers)
{
    CHECK_EQUAL(the_world.reaped, fibers);
    CHECK(shapes.read == NULL);
    pf_shapes_finish(&shapes, pf_forms_free);
    world_close(&the_world);
}

static OUT_OF_LINE void
wait_in_it(worker *w)
{
    pf_park(&w->world->scheduler, PF_NEVER);
    trace(w->world, w->value);
}

static void
wait_here(worker *w)
{
    while (w->value-- > 0) {
        pf_park(&w->world->scheduler, PF_NEVER);
    }
}

static void
wait_there(worker *w)
{
    while (w->value-- > 0) {
        wait_in_it(w);
    }
}

/* So deep that not all calls are known. */
static OUT_OF_LINE long
wait_below(worker *w, long depth)
{
    if (depth == 0) {
        wait_in_it(w);
        return 0;
    }
    long below = wait_below(w, depth - 1);
    __asm__("" : "+r"(below)); /* a call, and no loop */
    return below + 1;
}

static void
wait_far_below(worker *w)
{
    long value = w->value;
    for (long i = 0; i < value; i++) {
        CHECK_EQUAL(wait_below(w, 120), 120);
    }
}

static void
let_go_on(worker *w)
{
    CHECK(pf_wake_task(&w->world->scheduler, &w->task, PF_WAKE_NORMAL));
    pf_scheduler_run(&w->world->scheduler);
}

static void
let_end(worker *w)
{
    while (w->task.state == PF_PARKED) {
        let_go_on(w);
    }
    free(w);
}

static worker *
spawn(world *w, work_fn work, long value)
{
    worker *n = world_spawn(w, work, value);
    n->keep = true;
    return n;
}

static bool
is_known(const worker *w)
{
    return pf_shapes_find(&shapes, &w->fiber) != NULL;
}

static void
stack_is_learned_after_it_was_left(void)
{
    SKIP_WHERE_CODE_IS_UNKNOWN();
    world *w = open_world();
    worker *a = spawn(w, wait_here, 3);
    worker *b = spawn(w, wait_here, 3);
    worker *c = spawn(w, wait_there, 3);
    pf_scheduler_run(&w->scheduler);
    CHECK(!again && !is_known(a) && !is_known(b) && !is_known(c));
    CHECK(pf_shapes_miss(&shapes));
    let_go_on(a); /* it is left; whoever waits next finds out */
    CHECK(shapes.read == NULL ? is_known(a) : shapes.read == &a->fiber);
    let_go_on(c);
    CHECK(is_known(a) && is_known(b) && !is_known(c));
    CHECK_EQUAL(shapes.count, 1);
    CHECK(pf_shapes_find(&shapes, &a->fiber) ==
          pf_shapes_find(&shapes, &b->fiber));
    CHECK(pf_shapes_miss(&shapes));
    let_go_on(c);
    let_go_on(a);
    CHECK(is_known(c));
    CHECK_EQUAL(shapes.count, 2);
    let_end(a), let_end(b), let_end(c);
    close_world(3);
}

/* Known ones that are left in between are few. */
static void
learning_goes_past_known_stacks(void)
{
    SKIP_WHERE_CODE_IS_UNKNOWN();
    world *w = open_world();
    worker *a = spawn(w, wait_here, 40);
    worker *c = spawn(w, wait_there, 40);
    pf_scheduler_run(&w->scheduler);
    CHECK(pf_shapes_miss(&shapes));
    let_go_on(a);
    let_go_on(a);
    CHECK(is_known(a) && !is_known(c));
    CHECK(pf_shapes_miss(&shapes));
    for (int i = 0; i < 10; i++) {
        let_go_on(a);
        CHECK(again);
    }
    let_go_on(c);
    let_go_on(a);
    CHECK(is_known(c));
    CHECK(!again);
    CHECK(pf_shapes_miss(&shapes));
    for (int i = 0; i < 17; i++) { /* then it gives up */
        let_go_on(a);
    }
    CHECK(!again && shapes.tries == 0 && shapes.patience == 1);
    let_end(a), let_end(c);
    close_world(2);
}

/* Each failure makes it twice as patient, success impatient. */
static void
what_cannot_be_learned_is_tried_ever_more_rarely(void)
{
    SKIP_WHERE_CODE_IS_UNKNOWN();
    world *w = open_world();
    worker *deep = spawn(w, wait_far_below, 30);
    worker *plain = spawn(w, wait_here, 30);
    pf_scheduler_run(&w->scheduler);
    for (uint32_t tries = 0; tries < 15; tries++) {
        uint32_t patience = tries > 10 ? 1024 : (1U << tries) - 1;
        CHECK_EQUAL(shapes.patience, patience);
        for (uint32_t i = 0; i < patience; i++) {
            CHECK(!pf_shapes_miss(&shapes));
        }
        CHECK(pf_shapes_miss(&shapes));
        let_go_on(tries < 14 ? deep : plain);
        let_go_on(plain);
        CHECK(!is_known(deep));
    }
    CHECK(is_known(plain));
    CHECK_EQUAL(shapes.patience, 0);
    let_end(deep), let_end(plain);
    close_world(2);
}

/* ------------------------------------------------------------- images --- */

enum { WORDS = 60, ROOM = 12, LEFT = 4 }; /* not in use */

/* As a slot of a pool is laid out. */
typedef struct slot {
    uint64_t words[WORDS];
    pf_stack header;
    uint64_t room[ROOM];
} slot;

static pf_draft draft;

static void
init_slot(slot *s, pf_fiber *fiber)
{
    memset(s, 0, sizeof *s);
    s->header.area.low = (char *)s->words;
    s->header.room = (char *)s->room;
    s->header.room_size = sizeof s->room;
    fiber->stack = &s->header;
    fiber->context.handle = s->words + LEFT;
}

static pf_image *
image_of(pf_shape *shape, const pf_fiber *fiber)
{
    const char *room_end = fiber->stack->room + (ROOM - LEFT) * 8;
    pf_span span = pf_span_of(fiber, room_end, NULL, 0);
    return pf_image_new(&draft, shape, &span, 0);
}

static uint64_t *
word_in(slot *s, int i)
{
    return i < WORDS ? &s->words[i] : &s->room[i - WORDS];
}

static bool
in_use(int i)
{
    return i >= LEFT && i < WORDS + ROOM - LEFT;
}

/* Small numbers, places in the slot, in the fiber, and elsewhere. */
static uint64_t
random_word(uint64_t *random, slot *s, pf_fiber *fiber)
{
    uint64_t number = random_next(random) >> 8;
    switch (number % 6) {
    case 0:
        return (uintptr_t)(s->words + number % WORDS);
    case 1:
        return (uintptr_t)(s->room + number % ROOM);
    case 2:
        return (uintptr_t)fiber + number % 512;
    case 3:
        return (uintptr_t)&the_world + number % 5;
    default:
        return number % 10;
    }
}

static void
fill_slot(slot *s, pf_fiber *fiber, uint64_t *random)
{
    for (int i = 0; i < WORDS + ROOM; i++) {
        *word_in(s, i) = random_word(random, s, fiber);
    }
}

/* `s` was `before`, which lay elsewhere. */
static void
check_slot(slot *s, slot *before)
{
    for (int i = 0; i < WORDS + ROOM; i++) {
        uint64_t was = *word_in(before, i);
        if (was - (uintptr_t)before <= sizeof *before) {
            was += (uintptr_t)s - (uintptr_t)before;
        }
        CHECK_EQUAL(*word_in(s, i), in_use(i) ? was : 0);
    }
}

static void
image_is_the_same_stack_in_another_slot(void)
{
    enum { COUNT = 100 };
    static slot from[COUNT], to;
    static pf_fiber fibers[COUNT];
    pf_image *images[COUNT];
    pf_shape shape = {0};
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < COUNT; i++) {
        init_slot(&from[i], &fibers[i]);
        fill_slot(&from[i], &fibers[i], &random);
        images[i] = image_of(&shape, &fibers[i]);
        CHECK(images[i] != NULL);
    }
    for (int i = 0; i < COUNT; i++) {
        int one = i * 7 % COUNT;
        init_slot(&to, &fibers[one]);
        CHECK(pf_image_expand(images[one], &to.header, &fibers[one]) ==
              to.words + LEFT);
        check_slot(&to, &from[one]);
        pf_image_free(images[one]);
    }
    pf_forms_free(&shape);
    CHECK(shape.forms == NULL);
}

/* What is the same relative to the slot or the fiber is in the form. */
static void
image_of_an_equal_stack_has_no_entries(void)
{
    static slot slots[2];
    pf_fiber fibers[2];
    pf_image *images[2];
    pf_shape shape = {0};
    for (int i = 0; i < 2; i++) {
        init_slot(&slots[i], &fibers[i]);
        for (int k = 0; k < WORDS; k++) {
            slots[i].words[k] = k % 3 == 0 ? (uintptr_t)&slots[i].words[k] + 9
                                : k % 3 == 1 ? (uintptr_t)&fibers[i] + 16
                                             : (uintptr_t)k;
        }
        slots[i].room[ROOM - 1] = (uint64_t)i; /* not in use */
        images[i] = image_of(&shape, &fibers[i]);
        CHECK_EQUAL(pf_image_size(images[i]), sizeof(pf_image));
    }
    slots[1].room[0] = slots[1].room[3] = 77; /* one value, at two places */
    pf_image *other = image_of(&shape, &fibers[1]);
    CHECK_EQUAL(pf_image_size(other), sizeof(pf_image) + 8);
    pf_forms_free(&shape); /* images may come after */
    pf_image_free(other);
    pf_image_free(images[0]);
    pf_image_free(images[1]);
}

/* What the host keeps is neither compared nor put back. */
static void
words_that_move_are_left_to_the_host(void)
{
    static slot from, to;
    pf_fiber fiber;
    pf_shape shape = {0};
    uint64_t random = 4101842887655102017u;
    init_slot(&from, &fiber);
    fill_slot(&from, &fiber, &random);
    for (int i = 0; i < 3; i++) {
        char *moves = (char *)(from.words + 20);
        pf_span span = pf_span_of(&fiber, from.header.room, moves, 24);
        memset(moves, i, 24);
        pf_image *image = pf_image_new(&draft, &shape, &span, 24);
        CHECK_EQUAL(pf_image_size(image), sizeof *image + 24);
        memset(pf_image_kept(image), 99, 24);
        init_slot(&to, &fiber);
        pf_image_expand(image, &to.header, &fiber);
        CHECK(to.words[20] == 0 && to.words[22] == 0 && to.room[0] == 0);
        CHECK(to.words[23] != 0 || from.words[23] == 0);
        pf_image_free(image);
        fiber.stack = &from.header;
        fiber.context.handle = from.words + LEFT;
    }
    pf_forms_free(&shape);
}

static void
form_that_does_not_serve_is_replaced(void)
{
    enum { COUNT = 40 };
    static slot first, from, to;
    pf_fiber fiber;
    pf_image *images[COUNT];
    pf_shape shape = {0};
    init_slot(&first, &fiber);
    images[0] = image_of(&shape, &fiber); /* the only one of its kind */
    const pf_form *form = shape.forms;
    init_slot(&from, &fiber);
    for (int i = LEFT; i < WORDS; i++) {
        from.words[i] = (uint64_t)i + 1000;
    }
    for (int i = 1; i < COUNT; i++) {
        from.words[30] = (uint64_t)i;
        images[i] = image_of(&shape, &fiber);
        CHECK((shape.forms == form) == (i < 32));
        CHECK((pf_image_size(images[i]) > 260) == (i < 32));
    }
    form = shape.forms;
    for (int i = COUNT - 1; i >= 0; i--) { /* those of both are right */
        init_slot(&to, &fiber);
        pf_image_expand(images[i], &to.header, &fiber);
        from.words[30] = (uint64_t)i;
        check_slot(&to, i == 0 ? &first : &from);
        pf_image_free(images[i]);
    }
    CHECK(shape.forms == form);
    pf_forms_free(&shape);
}

static void
check_size(uint32_t words, bool fits)
{
    static uint64_t stack[PF_MOST_WORDS + 1];
    pf_shape shape = {0};
    pf_span span = {.stack = stack, .stack_words = words, .room = stack};
    span.low = 1, span.high = 2, span.fiber = 100000;
    memset(stack, 0, sizeof stack);
    pf_image *image = pf_image_new(&draft, &shape, &span, 0);
    CHECK_EQUAL(image != NULL, fits);
    for (uint32_t i = 0; i < words; i++) {
        stack[i] = 1000000 + i;
    }
    pf_image *full = pf_image_new(&draft, &shape, &span, 0);
    if (fits) {
        CHECK_EQUAL(pf_image_size(full), sizeof *full + words * 8);
        pf_image_free(image);
        pf_image_free(full);
    }
    pf_forms_free(&shape);
}

static void
image_has_a_greatest_size(void)
{
    check_size(1, true);
    check_size(PF_MOST_WORDS, true);
    check_size(PF_MOST_WORDS + 1, false);
}

/* Those that images use stay. */
static void
forms_that_nobody_uses_are_dropped(void)
{
    enum { COUNT = 1000, KEPT = 100 };
    static uint64_t words[COUNT];
    pf_image *kept[KEPT];
    pf_shape shape = {0};
    pf_span span = {.stack = words, .room = words, .stack_words = 1};
    span.low = 1, span.high = 2, span.fiber = 100000;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            span.room_words = (uint32_t)i;
            pf_image *image = pf_image_new(&draft, &shape, &span, 0);
            CHECK(image != NULL);
            if (round == 0 && i % (COUNT / KEPT) == 0) {
                kept[i / (COUNT / KEPT)] = image;
            } else {
                pf_image_free(image);
            }
            CHECK(shape.form_count < 3 * KEPT + 70);
        }
    }
    CHECK(shape.form_count >= KEPT);
    for (int i = 0; i < KEPT; i++) {
        CHECK_EQUAL(pf_image_size(kept[i]), sizeof(pf_image));
        pf_image_free(kept[i]);
    }
    pf_forms_free(&shape);
    CHECK_EQUAL(shape.form_count, 0);
}

#if defined(PYFIBER_HARDTEST)

/* A form, its words, a pattern, an image; a form that cannot be replaced
 * stays.  Of equal ones only the image is new. */
static void
image_without_memory_is_none(void)
{
    static slot from;
    pf_fiber fiber;
    pf_shape shape = {0};
    init_slot(&from, &fiber);
    for (long n = 1; n <= 3; n++) {
        pf_fail_allocation = n;
        CHECK(image_of(&shape, &fiber) == NULL);
        CHECK_EQUAL(pf_fail_allocation, 0);
        CHECK((shape.forms != NULL) == (n == 3));
    }
    pf_fail_allocation = 2; /* the pattern was made */
    CHECK(image_of(&shape, &fiber) == NULL);
    pf_fail_allocation = 2;
    pf_image *equal = image_of(&shape, &fiber);
    CHECK(equal != NULL && pf_fail_allocation == 1);
    pf_image_free(equal);
    pf_fail_allocation = 0;
    memset(from.words, 1, sizeof from.words);
    for (int i = 0; i < 40; i++) {
        pf_fail_allocation = i < 31 ? 0 : 1; /* one was tried above */
        pf_image *image = image_of(&shape, &fiber);
        CHECK((image == NULL) == (i > 31));
        if (image != NULL) {
            CHECK(pf_image_size(image) > sizeof *image);
            pf_image_free(image);
        }
    }
    pf_fail_allocation = 0;
    pf_forms_free(&shape);
}

#endif

const test shape_tests[] = {
    TEST(stack_is_learned_after_it_was_left),
    TEST(learning_goes_past_known_stacks),
    TEST(what_cannot_be_learned_is_tried_ever_more_rarely),
    TEST(image_is_the_same_stack_in_another_slot),
    TEST(image_of_an_equal_stack_has_no_entries),
    TEST(words_that_move_are_left_to_the_host),
    TEST(form_that_does_not_serve_is_replaced),
    TEST(image_has_a_greatest_size),
    TEST(forms_that_nobody_uses_are_dropped),
#if defined(PYFIBER_HARDTEST)
    TEST(image_without_memory_is_none),
#endif
    END_OF_TESTS,
};

#else

const test shape_tests[] = {END_OF_TESTS};

#endif
