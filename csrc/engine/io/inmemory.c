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
    free(end->bytes);
    free(end);
}

static void
report(pf_end *end, unsigned events)
{
    pf_descriptor_report(&end->at, end->s, events);
}

void
pf_end_join(pf_end *one, pf_end *other)
{
    one->peer = other;
    other->peer = one;
    one->connected = other->connected = true;
    report(one, PF_IO_WRITE);
    report(other, PF_IO_WRITE);
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

/* -------------------------------------------------------------- moving --- */

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
    if (end->used != 0) {
        size = size < end->used ? size : end->used;
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
    return !end->connected ? (end->tcp ? -ENOTCONN : -EINVAL)
           : size == 0     ? 0
                           : -EAGAIN;
}

/* Returns the -errno with which a send fails, or 0.  Takes a pending error. */
static int
refusal(pf_end *end)
{
    if (!end->connected) {
        return end->tcp ? -EPIPE : -ENOTCONN;
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

int64_t
pf_end_send(pf_end *end, const void *data, size_t size)
{
    pf_end *peer = end->peer;
    int rc = refusal(end);
    if (rc < 0 || size == 0) {
        return rc;
    }
    if (peer == NULL || (end->tcp && peer->deaf && peer->mute)) {
        be_reset(end); /* as if the bytes went and the answer was a reset */
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
    report(peer, PF_IO_READ);
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
            peer->ended = true;
            report(peer, PF_IO_READ | PF_IO_END);
        }
    }
    return 0;
}

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

void
pf_end_close(pf_end *end, bool reset)
{
    pf_end *peer = end->peer;
    if (end->closed) {
        return;
    }
    reset = reset || end->used != 0;
    end->closed = true;
    end->peer = NULL;
    free(end->bytes);
    end->bytes = NULL;
    end->size = end->used = 0;
    pf_descriptor_end_waits(&end->at, end->s, -EBADF);
    if (peer != NULL) {
        lose_peer(peer, reset);
    }
}

/* ---------------------------------------------------------- connecting --- */

void
pf_end_offer(pf_end *end, bool any)
{
    end->offers = any;
    if (any) {
        report(end, PF_IO_READ);
    } else {
        pf_descriptor_blocked(&end->at, PF_READING);
    }
}

void
pf_end_fail(pf_end *end, int error)
{
    end->error = error;
    report(end, PF_IO_READ | PF_IO_WRITE);
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
        return end->used == 0 && !end->ended && !end->deaf && !end->lost &&
               !end->offers;
    }
    return !end->mute &&
           (!end->connected ||
            (end->peer != NULL && end->peer->used == end->peer->room));
}
