/* Connections in memory: see inmemory.h. */
#include "engine/io/inmemory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

#define FIRST_SIZE 256

pf_end *
pf_end_new(struct pf_scheduler *s, bool tcp, size_t room)
{
    pf_end *end = pf_memory_calloc(1, sizeof *end);
    if (end != NULL) {
        pf_descriptor_init(&end->at);
        end->s = s;
        end->references = 1;
        end->room = room;
        end->tcp = tcp;
    }
    return end;
}

void
pf_end_keep(pf_end *end)
{
    end->references++;
}

/* Does not wake the peer's waiters, because the last reference may be dropped
 * on another thread.  To wake them, close the end first. */
void
pf_end_drop(pf_end *end)
{
    if (--end->references != 0) {
        return;
    }
    if (end->peer != NULL) {
        end->peer->peer = NULL;
        end->peer->lost = end->peer->mute = true;
    }
    pf_transit_free(end->transit);
    free(end->bytes);
    free(end);
}

static void
report(pf_end *end, unsigned events)
{
    pf_descriptor_report(&end->at, end->s, events);
}

/* ------------------------------------------------------------ the ring --- */

static bool
has_room_for(pf_end *end, size_t more)
{
    size_t size = end->size == 0 ? FIRST_SIZE : end->size;
    while (size < end->used + more) {
        size *= 2;
    }
    if (size == end->size) {
        return true;
    }
    char *bytes = pf_memory_malloc(size);
    if (bytes == NULL) {
        return false;
    }
    size_t first = end->size - end->start; /* up to the end of the array */
    if (first >= end->used) {
        first = end->used;
    }
    if (end->used != 0) {
        memcpy(bytes, end->bytes + end->start, first);
        memcpy(bytes + first, end->bytes, end->used - first);
    }
    free(end->bytes);
    end->bytes = bytes;
    end->size = size;
    end->start = 0;
    return true;
}

static void
put(pf_end *end, const char *data, size_t size)
{
    size_t at = (end->start + end->used) % end->size;
    size_t first = end->size - at < size ? end->size - at : size;
    memcpy(end->bytes + at, data, first);
    memcpy(end->bytes, data + first, size - first);
    end->used += size;
}

static void
copy(const pf_end *end, char *buffer, size_t size)
{
    size_t first = end->size - end->start;
    first = first < size ? first : size;
    memcpy(buffer, end->bytes + end->start, first);
    memcpy(buffer + first, end->bytes, size - first);
}

static void
take(pf_end *end, size_t size)
{
    end->start = (end->start + size) % end->size;
    end->used -= size;
    if (end->peer != NULL) {
        report(end->peer, PF_IO_WRITE);
    }
}

/* ----------------------------------------------------------- receiving --- */

int
pf_end_take_error(pf_end *end)
{
    int error = end->error;
    end->error = 0;
    return error;
}

int64_t
pf_end_recv(pf_end *end, void *buffer, size_t size, bool peek)
{
    size_t arrived = pf_end_arrived(end);
    if (arrived != 0) {
        size = size < arrived ? size : arrived;
        copy(end, buffer, size);
        if (!peek && size != 0) {
            take(end, size);
        }
        return (int64_t)size;
    }
    if (end->tcp && end->ended) {
        return 0;
    }
    if (end->error != 0) {
        return -pf_end_take_error(end);
    }
    if (end->ended || end->deaf || end->lost) {
        return 0;
    }
    if (!end->connected && end->peer == NULL) {
        return end->tcp ? -ENOTCONN : -EINVAL;
    }
    return size == 0 ? 0 : -EAGAIN;
}

/* Returns the -errno with which a send fails, or 0.  Takes a pending error. */
static int
refusal(pf_end *end)
{
    if (!end->connected) {
        return end->peer != NULL ? -EAGAIN : end->tcp ? -EPIPE : -ENOTCONN;
    }
    if (end->tcp && end->error != 0) {
        return -pf_end_take_error(end);
    }
    return end->mute ? -EPIPE : 0;
}

/* For TCP: the connection is reset.  Forgets the peer, because its later close
 * would hide the error. */
static void
be_reset(pf_end *end)
{
    end->peer = NULL;
    end->error = end->ended ? EPIPE : ECONNRESET;
    end->lost = end->mute = true;
    report(end, PF_IO_READ | PF_IO_WRITE);
}

/* ------------------------------------------------------------ arriving --- */

/* The peer is closed, with a reset or without. */
static void
lose_peer(pf_end *end, bool reset)
{
    if (end->tcp && reset && !pf_end_is_over(end)) {
        be_reset(end);
        return;
    }
    end->peer = NULL;
    if (reset && !end->tcp) {
        end->error = ECONNRESET;
    }
    end->ended = true;
    end->mute = end->mute || !end->tcp;
    report(end, PF_IO_READ | PF_IO_WRITE | PF_IO_END);
}

static void
arrive(pf_end *end, const pf_arrival *what)
{
    switch (what->kind) {
    case PF_ARRIVES_DATA:
        report(end, PF_IO_READ);
        break;
    case PF_ARRIVES_CONNECTED:
        end->connected = true;
        report(end, PF_IO_WRITE);
        break;
    case PF_ARRIVES_FAILURE:
        end->error = what->error;
        report(end, PF_IO_READ | PF_IO_WRITE);
        break;
    case PF_ARRIVES_OFFER:
        end->offers++;
        report(end, PF_IO_READ);
        break;
    case PF_ARRIVES_END:
        end->ended = true;
        report(end, PF_IO_READ | PF_IO_END);
        break;
    case PF_ARRIVES_CLOSE:
    case PF_ARRIVES_RESET:
        if (!end->lost) { /* else it would hide the error */
            lose_peer(end, what->kind == PF_ARRIVES_RESET);
        }
        break;
    }
}

const pf_end_clock *pf_end_time;

static pf_transit *
transit_of(pf_end *end)
{
    if (end->transit == NULL) {
        end->transit = pf_transit_new();
    }
    return end->transit;
}

static int
call_again(pf_end *end)
{
    return pf_end_time->call_at(end, pf_transit_next(end->transit));
}

/* Puts an arrival in the end's transit.  Returns false without memory. */
static bool
put_off(pf_end *to, const pf_end *from, int64_t delay, pf_arrival what)
{
    pf_transit *transit = transit_of(to);
    if (transit == NULL) {
        return false;
    }
    int64_t now = pf_end_time->now(to);
    int64_t sent = transit->busy_until > now ? transit->busy_until : now;
    if (from->bandwidth != 0) {
        sent += (int64_t)((double)what.bytes * 1e9 / (double)from->bandwidth);
    }
    what.due = sent + delay;
    transit->busy_until = sent;
    return pf_transit_add(transit, what) == 0;
}

/* There is no memory: all that is on its way arrives now. */
static void
arrive_at_once(pf_end *end)
{
    pf_arrival what;
    while (end->transit != NULL &&
           pf_transit_take(end->transit, INT64_MAX, &what)) {
        arrive(end, &what);
    }
}

static void
send_later(pf_end *to, const pf_end *from, int64_t delay, pf_arrival what)
{
    if (!put_off(to, from, delay, what)) {
        arrive_at_once(to);
        arrive(to, &what);
    } else if (call_again(to) < 0) {
        arrive_at_once(to);
    }
}

/* What `from` does arrives at `to` after a delay. */
static void
send_off(pf_end *to, const pf_end *from, int64_t delay, pf_arrival what)
{
    bool clear =
        to->transit == NULL || (to->transit->count == 0 && !to->transit->held);
    if (clear && delay == 0 && from->bandwidth == 0) {
        arrive(to, &what);
    } else {
        send_later(to, from, delay, what);
    }
}

/* ------------------------------------------------------------- sending --- */

/* There is nobody to receive what the end has sent: the answer is a reset,
 * unless the peer's machine is gone and nothing answers. */
static void
send_to_nobody(pf_end *end)
{
    if (!end->vanished) {
        send_off(end, end, 2 * end->delay,
                 (pf_arrival){.kind = PF_ARRIVES_RESET});
    }
}

int64_t
pf_end_send(pf_end *end, const void *data, size_t size)
{
    pf_end *peer = end->peer;
    int rc = refusal(end);
    if (rc < 0 || size == 0) {
        return rc;
    }
    if (peer == NULL || (end->tcp && peer->deaf && peer->mute)) {
        send_to_nobody(end); /* as if the bytes went */
        if (peer != NULL) {
            be_reset(peer);
        }
        return (int64_t)size;
    }
    size_t room = peer->room - peer->used;
    size = size < room ? size : room;
    if (size == 0) {
        return -EAGAIN;
    }
    if (!has_room_for(peer, size)) {
        return -ENOBUFS;
    }
    put(peer, data, size);
    send_off(peer, end, end->delay,
             (pf_arrival){.kind = PF_ARRIVES_DATA, .bytes = size});
    return (int64_t)size;
}

/* ------------------------------------------------------------- closing --- */

int
pf_end_shutdown(pf_end *end, bool reading, bool writing)
{
    pf_end *peer = end->peer;
    if (end->tcp && (!end->connected || pf_end_is_over(end))) {
        return -ENOTCONN;
    }
    if (reading) {
        end->deaf = true;
        report(end, PF_IO_READ | PF_IO_END);
        if (!end->tcp && peer != NULL) {
            peer->mute = true;
            report(peer, PF_IO_WRITE);
        }
    }
    if (writing) {
        end->mute = true;
        report(end, PF_IO_WRITE);
        if (peer != NULL) {
            send_off(peer, end, end->delay,
                     (pf_arrival){.kind = PF_ARRIVES_END});
        }
    }
    return 0;
}

static void
be_closed(pf_end *end)
{
    end->peer = NULL;
    pf_end_forget(end);
    free(end->bytes);
    end->bytes = NULL;
    end->size = end->used = 0;
    pf_descriptor_end_waits(&end->at, end->s, -EBADF);
}

/* Bytes that are on their way when the end is closed are answered by a reset
 * as they arrive.  The peer learns that after another delay. */
void
pf_end_close(pf_end *end, bool reset)
{
    pf_end *peer = end->peer;
    if (end->closed) {
        return;
    }
    bool arrives_later = end->used != pf_end_arrived(end);
    reset = reset || pf_end_arrived(end) != 0;
    end->closed = true;
    be_closed(end);
    if (peer == NULL) {
        return;
    }
    peer->peer = NULL;
    send_off(
        peer, end, end->delay,
        (pf_arrival){.kind = reset ? PF_ARRIVES_RESET : PF_ARRIVES_CLOSE});
    if (arrives_later && !reset) {
        send_off(peer, end, 2 * end->delay,
                 (pf_arrival){.kind = PF_ARRIVES_RESET});
    }
}

/* ---------------------------------------------------------- connecting --- */

void
pf_end_join(pf_end *one, pf_end *other)
{
    one->peer = other;
    other->peer = one;
    other->connected = true;
    report(other, PF_IO_WRITE);
    send_off(one, other, one->delay + other->delay,
             (pf_arrival){.kind = PF_ARRIVES_CONNECTED});
}

void
pf_end_offer(pf_end *end, const pf_end *from)
{
    send_off(end, from, from->delay, (pf_arrival){.kind = PF_ARRIVES_OFFER});
}

bool
pf_end_take_offer(pf_end *end)
{
    if (end->offers == 0) {
        return false;
    }
    if (--end->offers == 0) {
        pf_descriptor_blocked(&end->at, PF_READING);
    }
    return true;
}

void
pf_end_withdraw(pf_end *end)
{
    end->offers = 0;
    pf_end_forget(end);
    pf_descriptor_blocked(&end->at, PF_READING);
}

void
pf_end_fail(pf_end *end, int error, int64_t after)
{
    send_off(end, end, after,
             (pf_arrival){.kind = PF_ARRIVES_FAILURE, .error = error});
}

void
pf_end_disturb(pf_end *end)
{
    pf_descriptor_end_waits(&end->at, end->s, 0);
}

bool
pf_end_blocks(const pf_end *end, pf_direction direction)
{
    if (end->error != 0) {
        return false;
    }
    if (direction == PF_READING) {
        return pf_end_arrived(end) == 0 && !end->ended && !end->deaf &&
               !end->lost && end->offers == 0;
    }
    return !end->mute &&
           (!end->connected ||
            (end->peer != NULL && end->peer->used == end->peer->room));
}

/* -------------------------------------------------------------- faults --- */

/* The end gives up; its peer does not learn of it. */
static void
give_up(pf_end *end)
{
    int error = end->transit->doom_error;
    pf_end *peer = end->peer;
    if (peer != NULL) {
        peer->peer = NULL;
        peer->vanished = true;
    }
    pf_end_forget(end);
    be_reset(end);
    end->error = error;
}

/* A fiber that an arrival wakes runs later, so nothing changes meanwhile. */
void
pf_end_arrive(pf_end *end)
{
    pf_arrival what;
    pf_transit *transit = end->transit;
    int64_t now = pf_end_time->now(end);
    while (pf_transit_take(transit, now, &what)) {
        arrive(end, &what);
    }
    if (transit->doom <= now) {
        give_up(end);
    } else {
        (void)call_again(end);
    }
}

void
pf_end_set_line(pf_end *end, int64_t delay, uint64_t bandwidth)
{
    end->delay = delay;
    end->bandwidth = bandwidth;
}

int
pf_end_hold(pf_end *end, bool held)
{
    if (end->transit == NULL && !held) {
        return 0;
    }
    if (transit_of(end) == NULL) {
        return -ENOMEM;
    }
    if (!held && end->transit->held) { /* the sender sends it again */
        int64_t delay = end->peer == NULL ? end->delay : end->peer->delay;
        pf_transit_delay(end->transit, pf_end_time->now(end) + delay);
    }
    end->transit->held = held;
    return call_again(end);
}

int
pf_end_doom(pf_end *end, int64_t when, int error)
{
    if (end->transit == NULL && when == PF_TRANSIT_NEVER) {
        return 0;
    }
    if (transit_of(end) == NULL) {
        return -ENOMEM;
    }
    end->transit->doom = when;
    end->transit->doom_error = error;
    return call_again(end);
}

void
pf_end_cut(pf_end *end)
{
    const pf_arrival reset = {.kind = PF_ARRIVES_RESET};
    pf_end *peer = end->peer;
    end->peer = NULL;
    send_later(end, end, 2 * end->delay, reset);
    if (peer != NULL) {
        peer->peer = NULL;
        send_later(peer, end, end->delay, reset);
    }
}

void
pf_end_crash(pf_end *end, bool silent)
{
    pf_end *peer = end->peer;
    if (end->closed) {
        return;
    }
    end->closed = true;
    be_closed(end);
    if (peer == NULL) {
        return;
    }
    pf_end_keep(peer); /* the host's reference may be the last one */
    peer->peer = NULL;
    pf_end_forget(peer);
    if (silent) {
        peer->vanished = true;
    } else {
        send_off(peer, end, end->delay,
                 (pf_arrival){.kind = PF_ARRIVES_RESET});
    }
    pf_end_drop(peer);
}

void
pf_end_forget(pf_end *end)
{
    if (end->transit != NULL) {
        end->used -= pf_transit_forget(end->transit);
        end->transit->doom = PF_TRANSIT_NEVER;
        (void)call_again(end);
    }
}
