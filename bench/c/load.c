/* The load generator, the same for every server.  Each of its connections
 * sends a message, waits until the whole answer has come back, and sends the
 * next one.  With --short each message has a new connection.
 *
 *     load --port N [--connections N] [--size BYTES] [--messages N]
 *          [--seconds S] [--warm-up N] [--pid SERVER] [--tls CERTIFICATE]
 *          [--short] [--message TEXT --answer TEXT [--tail BYTES]]
 *
 * A message is --size bytes that must come back unchanged, or TEXT that must
 * be answered with --answer.  With --tail the answer must have the same size,
 * but only its last BYTES must be the same, since there may be a date before
 * them.
 *
 * The program connects, does the warm-up, prints "ready" and waits for a line
 * on standard input.  Then it measures until --messages are done or --seconds
 * are over, and prints the results as a line of JSON.  The connections stay
 * open until standard input is closed.
 *
 * The kernel's clock of the server process gives its time on processors, in
 * nanoseconds.  The program reads that clock right before the first message
 * and right after the last one. */
#include "io.h"
#include "histogram.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 1024
#define NANOSECONDS 1000000000
#define STEP 100      /* ms between looks at the clock, at most */
#define PATIENCE 20.0 /* s without a message done: the server hangs */

typedef struct options {
    int port;
    int connections;
    size_t size; /* of a message that must come back */
    const char *message;
    const char *answer;
    size_t tail; /* bytes that are compared; 0: the whole answer */
    int64_t messages;
    int64_t warm_up;
    double seconds;
    pid_t pid;
    const char *tls;
    int short_lived;
} options;

/* A connection; with --short, the place of one connection after the other. */
typedef struct connection {
    stream stream;
    size_t sent;     /* of the message under way */
    size_t received; /* of its answer */
    int64_t began;
    int waits_to_send;
} connection;

typedef struct load {
    options options;
    int epoll;
    void *tls;
    const char *message;
    const char *answer;
    size_t message_size;
    size_t answer_size;
    size_t head; /* bytes of the answer that may differ */
    char *buffer;
    connection *connections;
    int64_t started;
    int64_t done;
    int64_t total;
    int64_t deadline;
    histogram latencies;
} load;

/* --- Connections ------------------------------------------------------- */

/* The system has some 28,000 ports for connections from one address to one
 * other.  So each group of so
 * many connections uses another address: 127.0.0.1, 127.0.0.2, ... */
#define FROM_ONE_ADDRESS 20000

static void
choose_source(int fd, size_t number)
{
    int one = 1;
    struct sockaddr_in source = {
        .sin_family = AF_INET,
        .sin_addr.s_addr =
            htonl(INADDR_LOOPBACK + (uint32_t)(number / FROM_ONE_ADDRESS))};
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&source, sizeof source) < 0)
        die("bind");
}

static int
connect_to(int port, size_t number)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0)
        die("socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (number >= FROM_ONE_ADDRESS)
        choose_source(fd, number);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("connect");
    return fd;
}

static void
watch(load *l, connection *c, int operation)
{
    struct epoll_event event = {
        .events = EPOLLIN | (c->waits_to_send ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(l->epoll, operation, c->stream.fd, &event) < 0)
        die("epoll_ctl");
}

/* On loopback the kernel has connected when connect() returns, so the call may
 * block.  A TLS handshake waits for the server. */
static void
open_connection(load *l, connection *c)
{
    c->stream = (stream){
        .fd = connect_to(l->options.port, (size_t)(c - l->connections))};
    if (l->tls != NULL)
        tls_connect(&c->stream, l->tls);
    fcntl(c->stream.fd, F_SETFL, O_NONBLOCK);
    c->waits_to_send = 0;
    watch(l, c, EPOLL_CTL_ADD);
}

/* --- Messages ---------------------------------------------------------- */

static void
send_rest(load *l, connection *c)
{
    size_t size = l->message_size;
    while (c->sent < size) {
        ssize_t sent =
            stream_write(&c->stream, l->message + c->sent, size - c->sent);
        if (sent < 0 && errno != EAGAIN)
            die("the server closed a connection while it was sent a message");
        if (sent < 0)
            break;
        c->sent += (size_t)sent;
    }
    int waits = c->sent < size;
    if (waits != c->waits_to_send) {
        c->waits_to_send = waits;
        watch(l, c, EPOLL_CTL_MOD);
    }
}

static void
begin_message(load *l, connection *c)
{
    if (l->started == l->total)
        return;
    l->started++;
    c->sent = c->received = 0;
    c->began = monotonic_ns();
    if (l->options.short_lived)
        open_connection(l, c);
    send_rest(l, c);
}

static void
end_message(load *l, connection *c)
{
    histogram_add(&l->latencies, (uint64_t)(monotonic_ns() - c->began));
    l->done++;
    if (l->options.short_lived)
        stream_close(&c->stream);
    begin_message(l, c);
}

/* Whether the buffer has the `size` bytes that the answer has from `at` on. */
static int
is_as_expected(const load *l, size_t at, size_t size)
{
    size_t skip = at < l->head ? l->head - at : 0;
    return skip >= size ||
           memcmp(l->buffer + skip, l->answer + at + skip, size - skip) == 0;
}

/* Reads once; returns 1 if there may be more to read. */
static int
read_some(load *l, connection *c)
{
    size_t missing = l->answer_size - c->received;
    ssize_t size = stream_read(&c->stream, l->buffer, missing + 1);
    if (size < 0 && errno == EAGAIN)
        return 0;
    if (size < 0)
        die("reading an answer");
    errno = 0;
    if (size == 0)
        die("the server closed a connection before it had answered");
    if ((size_t)size > missing ||
        !is_as_expected(l, c->received, (size_t)size))
        die("the server answered something else");
    c->received += (size_t)size;
    if (c->received < l->answer_size)
        return 1;
    end_message(l, c);
    return 0;
}

static void
handle(load *l, connection *c, uint32_t events)
{
    if (events & EPOLLOUT)
        send_rest(l, c);
    if (events & ~(uint32_t)EPOLLOUT)
        while (read_some(l, c))
            ;
}

/* --- A run ------------------------------------------------------------- */

static void
look_at_clock(load *l, int64_t *last_done, int64_t *last_time)
{
    int64_t now = monotonic_ns();
    if (now > l->deadline)
        l->total = l->started; /* but wait for messages under way */
    if (l->done != *last_done) {
        *last_done = l->done;
        *last_time = now;
    } else if (now - *last_time > (int64_t)(PATIENCE * NANOSECONDS)) {
        errno = 0;
        die("the server has not answered for 20 seconds");
    }
}

static void
run(load *l, int64_t messages, double seconds)
{
    struct epoll_event events[EVENTS];
    int64_t last_done = -1, last_time = monotonic_ns();
    memset(&l->latencies, 0, sizeof l->latencies);
    l->started = l->done = 0;
    l->total = messages;
    l->deadline = last_time + (int64_t)(seconds * NANOSECONDS);
    for (int i = 0; i < l->options.connections; i++)
        begin_message(l, &l->connections[i]);
    while (l->done < l->total) {
        int count = epoll_wait(l->epoll, events, EVENTS, STEP);
        if (count < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < count; i++)
            handle(l, events[i].data.ptr, events[i].events);
        look_at_clock(l, &last_done, &last_time);
    }
}

/* Returns the time that the server has spent on processors (ns). */
static int64_t
server_time(pid_t pid)
{
    clockid_t clock;
    struct timespec spent = {0};
    if (pid == 0)
        return 0;
    errno = clock_getcpuclockid(pid, &clock);
    if (errno != 0 || clock_gettime(clock, &spent) < 0)
        die("the server's clock");
    return (int64_t)spent.tv_sec * NANOSECONDS + spent.tv_nsec;
}

static void
measure(load *l)
{
    int64_t spent = server_time(l->options.pid), began = monotonic_ns();
    run(l, l->options.messages, l->options.seconds);
    int64_t wall = monotonic_ns() - began;
    spent = server_time(l->options.pid) - spent;
    printf("{\"messages\": %lld, \"wall_ns\": %lld, \"server_ns\": %lld, "
           "\"p50_ns\": %llu, \"p90_ns\": %llu, \"p99_ns\": %llu, "
           "\"max_ns\": %llu}\n",
           (long long)l->done, (long long)wall, (long long)spent,
           (unsigned long long)histogram_quantile(&l->latencies, 0.5),
           (unsigned long long)histogram_quantile(&l->latencies, 0.9),
           (unsigned long long)histogram_quantile(&l->latencies, 0.99),
           (unsigned long long)l->latencies.largest);
    fflush(stdout);
}

/* --- The program ------------------------------------------------------- */

static const struct option known[] = {
    {"port", required_argument, NULL, 'p'},
    {"connections", required_argument, NULL, 'c'},
    {"size", required_argument, NULL, 's'},
    {"message", required_argument, NULL, 'q'},
    {"answer", required_argument, NULL, 'a'},
    {"tail", required_argument, NULL, 'l'},
    {"messages", required_argument, NULL, 'm'},
    {"seconds", required_argument, NULL, 't'},
    {"warm-up", required_argument, NULL, 'w'},
    {"pid", required_argument, NULL, 'i'},
    {"tls", required_argument, NULL, 'x'},
    {"short", no_argument, NULL, 'o'},
    {NULL, 0, NULL, 0},
};

static void
set_option(options *o, int option, const char *value)
{
    /* clang-format off */
    switch (option) {
    case 'p': o->port = atoi(value); break;
    case 'c': o->connections = atoi(value); break;
    case 's': o->size = (size_t)atoll(value); break;
    case 'q': o->message = value; break;
    case 'a': o->answer = value; break;
    case 'l': o->tail = (size_t)atoll(value); break;
    case 'm': o->messages = atoll(value); break;
    case 't': o->seconds = atof(value); break;
    case 'w': o->warm_up = atoll(value); break;
    case 'i': o->pid = atoi(value); break;
    case 'x': o->tls = value; break;
    case 'o': o->short_lived = 1; break;
    default: exit(2);
    }
    /* clang-format on */
}

static options
parse(int argc, char **argv)
{
    options o = {.connections = 1, .size = 128, .seconds = 60};
    int option;
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1)
        set_option(&o, option, optarg);
    if (o.port <= 0 || o.connections <= 0 || o.size == 0) {
        errno = 0;
        die("load: a port, connections and a size above zero are needed");
    }
    return o;
}

/* Returns the bytes of a message that must come back. */
static const char *
pattern(size_t size)
{
    char *text = malloc(size);
    if (text == NULL)
        die("malloc");
    for (size_t i = 0; i < size; i++)
        text[i] = (char)('a' + i % 26);
    return text;
}

static void
choose_messages(load *l)
{
    const options *o = &l->options;
    if (o->message != NULL && o->answer != NULL) {
        l->message = o->message;
        l->answer = o->answer;
        l->message_size = strlen(o->message);
        l->answer_size = strlen(o->answer);
    } else {
        l->message = l->answer = pattern(o->size);
        l->message_size = l->answer_size = o->size;
    }
}

static void
prepare(load *l)
{
    const options *o = &l->options;
    choose_messages(l);
    if (o->tail > 0 && o->tail < l->answer_size)
        l->head = l->answer_size - o->tail;
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->tls = o->tls ? tls_client(o->tls) : NULL;
    l->buffer = malloc(l->answer_size + 1);
    l->connections = calloc((size_t)o->connections, sizeof *l->connections);
    if (l->buffer == NULL || l->connections == NULL)
        die("malloc");
    for (int i = 0; i < o->connections && !o->short_lived; i++)
        open_connection(l, &l->connections[i]);
}

static void
wait_for_input(int wanted)
{
    int byte;
    do
        byte = getchar();
    while (byte != wanted && byte != EOF);
}

int
main(int argc, char **argv)
{
    static load l;
    end_with_parent();
    signal(SIGPIPE, SIG_IGN); /* TLS sends without MSG_NOSIGNAL */
    l.options = parse(argc, argv);
    prepare(&l);
    run(&l, l.options.warm_up, l.options.seconds);
    printf("ready\n");
    fflush(stdout);
    wait_for_input('\n');
    if (l.options.messages > 0)
        measure(&l);
    wait_for_input(EOF);
    return 0;
}
