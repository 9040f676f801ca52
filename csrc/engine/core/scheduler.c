/* Threads, fibers and the scheduler.  See scheduler.h for who may call what.
 */
#include "engine/core/scheduler.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

#define container_of(pointer, type, field)                                    \
    ((type *)(void *)&((char *)(pointer))[-(ptrdiff_t)offsetof(type, field)])

/* --------------------------------------------------------- threads --- */

int
pf_thread_init(pf_thread *thread, const pf_host *host, size_t room_size)
{
    memset(thread, 0, sizeof *thread);
    thread->host = host;
    thread->room_size = room_size;
    thread->root.state = PF_RUNNING;
    thread->current = &thread->root;
    return pf_context_adopt(&thread->root.context);
}

void
pf_thread_finish(pf_thread *thread)
{
    for (unsigned i = 0; i < thread->pool_count; i++) {
        pf_stack_pool_free(thread->pools[i]);
    }
    free(thread->pools);
    thread->pools = NULL;
    thread->pool_count = 0;
    pf_context_forget(&thread->root.context);
}

/* Of few sizes, one is asked for most: each hit moves one place forward. */
static pf_stack_pool *
find_pool(pf_thread *thread, size_t slot_size)
{
    pf_stack_pool **pools = thread->pools;
    for (unsigned i = 0; i < thread->pool_count; i++) {
        pf_stack_pool *pool = pools[i];
        if (pf_stack_pool_slot_size(pool) == slot_size) {
            if (i > 0) {
                pools[i] = pools[i - 1];
                pools[i - 1] = pool;
            }
            return pool;
        }
    }
    return NULL;
}

int
pf_thread_add_pool(pf_thread *thread, pf_stack_pool *pool)
{
    size_t bytes = (thread->pool_count + 1) * sizeof(pf_stack_pool *);
    pf_stack_pool **pools = pf_realloc(thread->pools, bytes);
    if (pools == NULL) {
        return -ENOMEM;
    }
    thread->pools = pools;
    pools[thread->pool_count++] = pool;
    return 0;
}

pf_stack_pool *
pf_thread_take_pool(pf_thread *thread)
{
    if (thread->pool_count == 0) {
        return NULL;
    }
    pf_stack_pool *pool = thread->pools[0];
    thread->pools[0] = thread->pools[--thread->pool_count];
    return pool;
}

void
pf_thread_settle(pf_thread *thread)
{
    for (unsigned i = 0; i < thread->pool_count; i++) {
        pf_stack_pool_settle(thread->pools[i]);
    }
}

/* Stacks of an earlier load go back; the time left until more may. */
static int64_t
let_stacks_decay(pf_thread *thread)
{
    int64_t now = pf_monotonic();
    int64_t again = PF_NEVER;
    for (unsigned i = 0; i < thread->pool_count; i++) {
        int64_t next = pf_stack_pool_decay(thread->pools[i], now);
        again = next < again ? next : again;
    }
    return again == PF_NEVER ? PF_NEVER : again > now ? again - now : 0;
}

static pf_stack_pool *
new_pool(pf_thread *thread, size_t slot_size)
{
    pf_stack_pool *pool = pf_stack_pool_new(slot_size, thread->room_size);
    if (pool != NULL && pf_thread_add_pool(thread, pool) != 0) {
        pf_stack_pool_free(pool);
        pool = NULL;
    }
    return pool;
}

pf_stack_pool *
pf_thread_pool(pf_thread *thread, size_t stack_size)
{
    /* Nearly always the default size, which needs no rounding. */
    if (thread->pool_count > 0 &&
        pf_stack_pool_slot_size(thread->pools[0]) == stack_size) {
        return thread->pools[0];
    }
    size_t slot_size = pf_stack_slot_size(stack_size, thread->room_size);
    pf_stack_pool *pool = find_pool(thread, slot_size);
    return pool != NULL ? pool : new_pool(thread, slot_size);
}

/* ---------------------------------------------------------- fibers --- */

static void
reap_zombie(pf_thread *thread)
{
    if (thread->zombie != NULL) {
        pf_reap(thread, thread->zombie);
    }
}

/* The first and the last of a fiber, on its own stack.  What pf_switch does
 * after landing is done here for the first landing; leaving for good is a
 * switch like any other but for the zombie it leaves behind. */
static pf_context *
fiber_main(void *arg)
{
    pf_fiber *self = arg;
    pf_thread *thread = self->stack->user;
    reap_zombie(thread);
    self->state = PF_RUNNING;
    pf_fiber *to = thread->host->run(thread, self);
    assert(thread->zombie == NULL && thread->current == self && to != self);
    self->state = PF_DONE;
    thread->zombie = self;
    thread->current = to;
    if (thread->host->on_switch != NULL) {
        thread->host->on_switch(thread, self, to);
    }
    return &to->context;
}

int
pf_fiber_prepare(pf_thread *thread, pf_fiber *fiber, size_t stack_size,
                 pf_limit *limit)
{
    *limit = PF_LIMIT_MEMORY;
    pf_stack_pool *pool = pf_thread_pool(thread, stack_size);
    if (pool == NULL) {
        return -ENOMEM;
    }
    pf_stack *stack;
    int error = pf_stack_acquire(pool, &stack);
    if (error != 0) {
        *limit = pf_stack_pool_limit(pool);
        return error;
    }
    stack->user = thread;
    error = pf_context_init(&fiber->context, &stack->area, fiber_main, fiber);
    if (error != 0) {
        pf_stack_release(stack);
        return error;
    }
    fiber->stack = stack;
    *limit = PF_LIMIT_NONE;
    return 0;
}

/* A host may make a fiber that is merely left the zombie, to hear when the
 * thread is off its stack: only one that is done loses it. */
void
pf_reap(pf_thread *thread, pf_fiber *zombie)
{
    pf_stack *stack = zombie->stack;
    thread->zombie = NULL;
    if (stack != NULL && zombie->state == PF_DONE) {
        zombie->stack = NULL;
        pf_context_finish(&zombie->context);
        pf_stack_release(stack);
    }
    if (thread->host->on_reap != NULL) {
        thread->host->on_reap(thread, zombie);
    }
}

/* ------------------------------------------------------- scheduler --- */

int
pf_scheduler_init(pf_scheduler *s, pf_thread *thread)
{
    int error;
    memset(s, 0, sizeof *s);
    pf_timers_init(&s->timers);
    s->thread = thread;
    s->hub = thread->current;
    s->until_poll = PF_POLL_EVERY;
    s->poller = pf_default_poller_new(&error);
    return error;
}

/* Messages still in the inbox are not run and not freed: the host empties it
 * with pf_poll once nobody can post any more. */
void
pf_scheduler_finish(pf_scheduler *s)
{
    pf_timers_clear(&s->timers);
    pf_scheduler_set_poller(s, NULL);
}

/* The poller belongs to the scheduler from now on, the last one is closed.
 * Not while another thread may post. */
void
pf_scheduler_set_poller(pf_scheduler *s, pf_poller *poller)
{
    pf_poller *last = s->poller;
    s->poller = poller;
    if (last != NULL) {
        last->ops->close(last);
    }
}

void
pf_scheduler_stats_get(const pf_scheduler *s, pf_scheduler_stats *stats)
{
    *stats = (pf_scheduler_stats){
        .switches = s->switches,
        .wakeups = s->wakeups,
        .messages = s->messages,
        .timeouts = s->timeouts,
        .waits = s->waits,
        .ready = s->ready.count,
        .timers = s->timers.count,
    };
}

void
pf_queue_unlink(pf_queue *queue, pf_fiber *before, pf_fiber *fiber)
{
    pf_fiber *after = fiber->next;
    if (before == NULL) {
        queue->head = after;
    } else {
        before->next = after;
    }
    if (after == NULL) {
        queue->tail = before;
    } else if (pf_is_fresh(after)) {
        after->before = before;
    }
    fiber->next = NULL;
    queue->fields = NULL;
    queue->count--;
}

bool
pf_queue_remove(pf_queue *queue, pf_fiber *fiber)
{
    pf_fiber *before = NULL;
    pf_fiber *f = queue->head;
    if (f != fiber && pf_is_fresh(fiber)) {
        before = fiber->before;
        f = fiber;
    }
    while (f != NULL && f != fiber) {
        before = f;
        f = f->next;
    }
    if (f != NULL) {
        pf_queue_unlink(queue, before, f);
    }
    return f != NULL;
}

static void
put_in_front(pf_scheduler *s, pf_fiber *fiber)
{
    s->ahead++;
    pf_queue_push_front(&s->ready, fiber);
}

static void
make_ready_in_front(pf_scheduler *s, pf_fiber *fiber)
{
    fiber->state = PF_READY;
    s->wakeups++;
    put_in_front(s, fiber);
}

static bool
may_pass(pf_scheduler *s)
{
    if (s->passed == PF_MAY_PASS) {
        return false;
    }
    s->passed++;
    return true;
}

bool
pf_prefer(pf_scheduler *s, pf_fiber *fiber)
{
    if (!pf_is_fresh(fiber)) {
        return false;
    }
    pf_fiber *first = s->ready.head;
    if (first == s->hub) { /* marks the end of a pass: it is nobody's turn */
        first = first->next;
    }
    if (fiber == first || !may_pass(s)) {
        return false;
    }
    pf_queue_remove(&s->ready, fiber);
    put_in_front(s, fiber);
    return true;
}

bool
pf_wake_next(pf_scheduler *s, pf_fiber *fiber, pf_wake why)
{
    if (fiber->state != PF_PARKED || !may_pass(s)) {
        return pf_wake_fiber(s, fiber, why);
    }
    fiber->wake = (uint8_t)why;
    make_ready_in_front(s, fiber);
    return true;
}

/* The queue holds at least PF_PREFETCH_FROM fibers. */
void
pf_prefetch_begin(pf_queue *queue)
{
    queue->lines = queue->head->next;
    queue->pages = queue->lines->next->next;
    queue->fields = queue->pages->next->next;
}

/* A message may be freed by running it, so its successor is read first. */
static void
run_messages(pf_scheduler *s, pf_message *m)
{
    while (m != NULL) {
        pf_message *next = m->next;
        s->messages++;
        m->run(m, s);
        m = next;
    }
}

static void
take_messages(pf_scheduler *s)
{
    if (pf_inbox_pending(&s->inbox)) {
        run_messages(s, pf_inbox_take(&s->inbox));
    }
}

void
pf_scheduler_close(pf_scheduler *s)
{
    run_messages(s, pf_inbox_close(&s->inbox));
}

static void
fire(pf_scheduler *s, pf_timer *timer)
{
    s->timeouts++;
    if (timer->kind == PF_TIMER_FIBER) {
        pf_fiber *fiber = container_of(timer, pf_fiber, timer);
        pf_wake_fiber(s, fiber, PF_WAKE_TIMEOUT); /* woken before? no harm */
    } else {
        pf_timer_call *call = container_of(timer, pf_timer_call, timer);
        call->fire(call, s);
    }
}

/* One reading of the clock for all, so a timer that re-arms itself for "now"
 * cannot hold the loop here. */
static void
fire_timers(pf_scheduler *s)
{
    if (s->timers.count == 0) {
        return;
    }
    int64_t now = pf_now(s);
    uint64_t end = s->timers.sequence;
    while (s->timers.count != 0 && s->timers.heap[0].sequence < end) {
        pf_timer *timer = s->pop_due == NULL
                              ? pf_timers_pop_due(&s->timers, now)
                              : s->pop_due(s, now, s->pick_data);
        if (timer == NULL) {
            return;
        }
        fire(s, timer);
    }
}

void
pf_poll(pf_scheduler *s)
{
    s->until_poll = PF_POLL_EVERY;
    if (s->probe != NULL) {
        s->probe(s, s->pick_data);
    }
    take_messages(s);
    fire_timers(s);
    if (s->poller->ops->busy(s->poller)) {
        (void)s->poller->ops->wait(s->poller, 0);
    }
}

/* The running fiber has said what it waits for; run whoever is next, perhaps
 * itself. */
static void
run_next(pf_scheduler *s, pf_fiber *self)
{
    pf_fiber *to = pf_next(s);
    if (to != self) {
        pf_switch(s->thread, to);
    }
    self->state = PF_RUNNING;
}

int
pf_park(pf_scheduler *s, int64_t deadline)
{
    pf_fiber *self = s->thread->current;
    assert(self != s->hub);
    if (deadline != PF_NEVER &&
        pf_timers_add(&s->timers, &self->timer, deadline) != 0) {
        return -1;
    }
    self->wake = PF_WAKE_NONE;
    self->state = PF_PARKED;
    run_next(s, self);
    pf_timers_remove(&s->timers, &self->timer);
    return self->wake;
}

void
pf_yield(pf_scheduler *s)
{
    pf_fiber *self = s->thread->current;
    self->wake = PF_WAKE_NORMAL;
    pf_make_ready(s, self);
    run_next(s, self);
}

void
pf_run_now(pf_scheduler *s, pf_fiber *fresh)
{
    pf_fiber *self = s->thread->current;
    self->wake = PF_WAKE_NORMAL;
    make_ready_in_front(s, self);
    make_ready_in_front(s, fresh);
    run_next(s, self);
}

/* ------------------------------------------------------------ idle --- */

static int64_t
time_left(pf_scheduler *s, int64_t deadline)
{
    int64_t first = pf_timers_next(&s->timers);
    if (deadline < first) {
        first = deadline;
    }
    if (first == PF_NEVER) {
        return PF_NEVER;
    }
    int64_t now = pf_now(s);
    return first > now ? first - now : 0;
}

/* Between saying "sleeping" and blocking lies the last look: a producer that
 * came before it is seen here, one that comes after it sees the word and
 * wakes the poller. */
static bool
may_block(pf_scheduler *s)
{
    PF_TEST_POINT();
    pf_store(&s->sleeping, 1);
    PF_TEST_POINT();
    return pf_take(&s->nudged) == 0 && pf_load(&s->inbox.head) == NULL;
}

static int
block(pf_scheduler *s, int64_t timeout)
{
    const pf_host *host = s->thread->host;
    s->waits++;
    PF_TEST_POINT();
    if (host->wait_begin != NULL) {
        host->wait_begin(s);
    }
    int error = s->poller->ops->wait(s->poller, timeout);
    if (host->wait_end != NULL) {
        host->wait_end(s);
    }
    return error;
}

/* A message or a timer that made nobody ready may still have been the last
 * thing the caller was waiting for: after either it has to think again. */
static bool
nothing_happens(pf_scheduler *s)
{
    uint64_t before = s->messages + s->timeouts;
    pf_poll(s);
    return s->ready.head == NULL && s->messages + s->timeouts == before;
}

int
pf_scheduler_block(pf_scheduler *s, int64_t timeout)
{
    int error = 0;
    if (may_block(s)) {
        error = block(s, timeout);
    }
    PF_TEST_POINT();
    pf_store(&s->sleeping, 0);
    PF_TEST_POINT();
    pf_poll(s);
    return error;
}

int
pf_scheduler_wait(pf_scheduler *s, int64_t deadline)
{
    PF_TEST_POINT();
    if (!nothing_happens(s)) {
        return 0;
    }
    int64_t left = time_left(s, deadline);
    if (left > 0) {
        int64_t again = let_stacks_decay(s->thread);
        left = again < left ? again : left; /* the caller looks anew */
    }
    return pf_scheduler_block(s, left);
}

void
pf_scheduler_rest(pf_scheduler *s)
{
    pf_store(&s->sleeping, 1);
    PF_TEST_POINT();
    if (pf_load(&s->inbox.head) != NULL || s->ready.head != NULL) {
        s->poller->ops->wake(s->poller);
    }
}

void
pf_scheduler_resume(pf_scheduler *s)
{
    pf_store(&s->sleeping, 0);
    (void)s->poller->ops->wait(s->poller, 0);
}

bool
pf_scheduler_expects(pf_scheduler *s)
{
    return s->ready.head != NULL || s->timers.count != 0 ||
           pf_inbox_pending(&s->inbox) || pf_load(&s->holds) != 0 ||
           s->poller->ops->busy(s->poller);
}

void
pf_scheduler_run(pf_scheduler *s)
{
    pf_fiber *self = s->thread->current;
    int error = 0;
    s->hub = self;
    do {
        while (s->ready.head != NULL) {
            self->state = PF_SUSPENDED;
            run_next(s, self);
        }
        if (!pf_scheduler_expects(s)) {
            break;
        }
        error = pf_scheduler_wait(s, PF_NEVER);
    } while (error == 0);
}

/* ---------------------------------------------- from other threads --- */

bool
pf_post(pf_scheduler *s, pf_message *message)
{
    pf_pushed pushed = pf_inbox_push(&s->inbox, message);
    PF_TEST_POINT();
    if (pushed == PF_PUSHED_FIRST && pf_load(&s->sleeping)) {
        s->poller->ops->wake(s->poller);
    }
    return pushed != PF_PUSHED_NOT;
}

/* Bits posted while this runs are either taken here or posted anew, because
 * only the one that finds 0 posts. */
static void
deliver_bits(pf_message *message, pf_scheduler *s)
{
    pf_fiber *fiber = container_of(message, pf_fiber, message);
    PF_TEST_POINT();
    unsigned bits = pf_take(&fiber->posted);
    s->thread->host->on_posted(s, fiber, bits);
}

void
pf_fiber_post(pf_fiber *fiber, unsigned bits)
{
    if (pf_fetch_or(&fiber->posted, bits) == 0) {
        PF_TEST_POINT();
        fiber->message.run = deliver_bits;
        if (!pf_post(fiber->scheduler, &fiber->message)) {
            (void)pf_take(&fiber->posted);
        }
    }
}

void
pf_hold(pf_scheduler *s)
{
    pf_fetch_add(&s->holds, 1);
}

/* The loop may just be deciding to wait because of this hold: it must look
 * again, or it would wait for nobody. */
void
pf_release(pf_scheduler *s)
{
    if (pf_fetch_sub(&s->holds, 1) == 1) {
        PF_TEST_POINT();
        pf_store(&s->nudged, 1);
        PF_TEST_POINT();
        if (pf_load(&s->sleeping)) {
            s->poller->ops->wake(s->poller);
        }
    }
}

/* What other threads had posted is here and will run; what they held is held
 * by nobody now, which only the host can know. */
int
pf_scheduler_after_fork(pf_scheduler *s)
{
    pf_store(&s->sleeping, 0);
    pf_store(&s->nudged, 0);
    return s->poller->ops->after_fork(s->poller);
}
