/* Connections: how two ranks meet, and what is between them until one ends.
 *
 * Every rank listens at a name in the abstract namespace, which is no file, so nothing stays behind. Its address is a token
 * that it drew and that name. The higher rank of a pair connects to the lower; both ends check the other's user, and say
 * hello with the lower one's token: a stranger of the same user that finds the name is turned away. The hand-shake is a
 * request: each test goes as far as it can without blocking. */

#include "mailbox.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* A full backlog has no event: how soon a connect is tried again. */
#define RETRY_MS 2

/* The abstract address of a name. */
static socklen_t name_to_address(const char *name, size_t bytes, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path + 1, name, bytes);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
}

int listener_open(struct transport *transport, CampanileError *error)
{
    uint64_t random[3];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return refuse(error, CAMPANILE_STATUS_FAILED, "opening", "getrandom: %s", strerror(errno)), -1;
    transport->token = random[0];
    memcpy(transport->address, &transport->token, sizeof transport->token);
    char *name = transport->address + sizeof transport->token;
    int bytes = snprintf(name, sizeof transport->address - sizeof transport->token, "mailbox-%016llx%016llx",
                         (unsigned long long)random[1], (unsigned long long)random[2]);
    transport->address_bytes = sizeof transport->token + (size_t)bytes;
    struct sockaddr_un address;
    socklen_t length = name_to_address(name, (size_t)bytes, &address);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener >= 0 && bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, SOMAXCONN) == 0)
        return listener;
    refuse(error, CAMPANILE_STATUS_FAILED, "opening", "a listening socket: %s", strerror(errno));
    if (listener >= 0)
        close(listener);
    return -1;
}

struct connection *connection_to(struct transport *transport, uint32_t rank)
{
    if (!atomic_load_explicit(&transport->connected, memory_order_acquire) || rank >= transport->connections_count)
        return NULL;
    return transport->connections[rank];
}

/* A connection over these sockets, which it owns from now on; NULL if there is no memory. */
static struct connection *connection_new(uint32_t rank, int in, int out, uint64_t token)
{
    struct connection *connection = calloc(1, sizeof *connection);
    unsigned char *buffers = malloc(2 * BUFFER_BYTES);
    if (connection == NULL || buffers == NULL) {
        free(connection);
        free(buffers);
        return NULL;
    }
    connection->rank = rank;
    connection->in = in;
    connection->out = out;
    connection->token = token;
    connection->inbox.bytes = buffers;
    connection->outbox.bytes = buffers + BUFFER_BYTES;
    struct ucred peer;
    socklen_t length = sizeof peer;
    connection->pidfd = -1;
    if (getsockopt(in, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.pid > 0 && peer.pid != getpid())
        connection->pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0); /* Close-on-exec by itself. */
    return connection;
}

void connection_end(struct connection *connection)
{
    /* Shut down, not only closed: a child that was forked may hold a copy. */
    shutdown(connection->in, SHUT_RDWR);
    close(connection->in);
    if (connection->out != connection->in)
        close(connection->out);
    if (connection->pidfd >= 0)
        close(connection->pidfd);
    free(connection->inbox.bytes);
    free(connection->answers);
    free(connection->failed);
    free(connection);
}

void connection_gone(struct transport *transport, struct connection *connection, uint32_t kind)
{
    uint32_t here = 0;
    if (atomic_compare_exchange_strong(&connection->gone, &here, kind))
        atomic_store(&connection->ended, atomic_fetch_add(&transport->ends, 1) + 1);
}

/* ---- The hand-shake ---- */

/* A peer that is being connected to, or that will come. */
struct meeting {
    uint32_t rank;
    uint64_t token; /* the peer's */
    char name[sizeof(((struct sockaddr_un *)0)->sun_path)];
    size_t name_bytes;
    int socket; /* -1 until there is one */
    bool done;
};

struct connecting {
    struct transport *transport;
    size_t count, strangers_count;
    struct meeting *meetings;
    int *strangers; /* accepted, but no hello yet; as many as peers may come */
};

static bool same_user(int socket)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

static bool say_hello(int socket, uint32_t rank, uint64_t token)
{
    struct hello hello = {.magic = HELLO_MAGIC, .token = token, .rank = rank};
    /* The first bytes into an empty socket: there is room. */
    return send(socket, &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof hello;
}

/* 1 with the hello, 0 if it is not there yet, -1 if none will come. */
static int hear_hello(int socket, struct hello *hello)
{
    ssize_t there = recv(socket, hello, sizeof *hello, MSG_DONTWAIT | MSG_PEEK);
    if (there < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
    if (there < (ssize_t)sizeof *hello)
        return there == 0 ? -1 : 0;
    /* What follows it is not ours to read. */
    return recv(socket, hello, sizeof *hello, MSG_DONTWAIT) == sizeof *hello ? 1 : -1;
}

static int32_t bad_address(CampanileError *error, uint32_t rank, const char *reason)
{
    error->numbers[0] = rank;
    return refuse(error, CAMPANILE_STATUS_BAD_PEER_DATA, "address", "%s", reason);
}

/* Connects to a lower rank, greets, and hears its answer. */
static int32_t go_out(struct connecting *connecting, struct meeting *meeting, CampanileError *error)
{
    uint32_t own = connecting->transport->rank;
    if (meeting->socket < 0) {
        struct sockaddr_un address;
        socklen_t length = name_to_address(meeting->name, meeting->name_bytes, &address);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            return refuse(error, CAMPANILE_STATUS_FAILED, "connecting", "socket: %s", strerror(errno));
        if (connect(fd, (struct sockaddr *)&address, length) != 0) {
            int failure = errno;
            close(fd);
            if (failure == EAGAIN || failure == EINTR)
                return CAMPANILE_STATUS_PENDING;
            error->numbers[0] = meeting->rank;
            return refuse(error, CAMPANILE_STATUS_PEER_GONE, "connecting to it", "%s", strerror(failure));
        }
        meeting->socket = fd;
        if (!same_user(fd))
            return bad_address(error, meeting->rank, "a process of another user listens there");
        if (!say_hello(fd, own, meeting->token))
            goto gone;
    }
    struct hello hello;
    switch (hear_hello(meeting->socket, &hello)) {
    case 0:
        return CAMPANILE_STATUS_PENDING;
    case 1:
        if (hello.magic != HELLO_MAGIC || hello.token != meeting->token || hello.rank != meeting->rank)
            return bad_address(error, meeting->rank, "whoever listens there is not that rank");
        meeting->done = true;
        return CAMPANILE_STATUS_OK;
    default:
        break;
    }
gone:
    error->numbers[0] = meeting->rank;
    return refuse(error, CAMPANILE_STATUS_PEER_GONE, "connecting to it", "it closed the connection");
}

static struct meeting *expected(struct connecting *connecting, uint32_t rank)
{
    for (size_t i = 0; i < connecting->count; i++)
        if (connecting->meetings[i].rank == rank && rank > connecting->transport->rank && !connecting->meetings[i].done)
            return &connecting->meetings[i];
    return NULL;
}

/* Accepts who comes, and answers the hellos that are there. Whoever is not a rank that we wait for is dropped. */
static void let_in(struct connecting *connecting)
{
    struct transport *transport = connecting->transport;
    while (connecting->strangers_count < connecting->count) {
        int fd = accept4(transport->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            break;
        if (same_user(fd))
            connecting->strangers[connecting->strangers_count++] = fd;
        else
            close(fd);
    }
    size_t kept = 0;
    for (size_t i = 0; i < connecting->strangers_count; i++) {
        int fd = connecting->strangers[i];
        struct hello hello;
        int heard = hear_hello(fd, &hello);
        if (heard == 0) {
            connecting->strangers[kept++] = fd;
            continue;
        }
        struct meeting *meeting = NULL;
        if (heard == 1 && hello.magic == HELLO_MAGIC && hello.token == transport->token)
            meeting = expected(connecting, hello.rank);
        if (meeting == NULL || !say_hello(fd, transport->rank, transport->token)) {
            close(fd);
            continue;
        }
        meeting->socket = fd;
        meeting->done = true;
    }
    connecting->strangers_count = kept;
}

/* This rank to itself: a pair of sockets, so that its own operations take the same way as all others. */
static int32_t meet_oneself(struct connecting *connecting, struct meeting *meeting, struct connection **connection,
                            CampanileError *error)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        return refuse(error, CAMPANILE_STATUS_FAILED, "connecting", "socketpair: %s", strerror(errno));
    *connection = connection_new(meeting->rank, pair[0], pair[1], connecting->transport->token);
    if (*connection != NULL)
        return CAMPANILE_STATUS_OK;
    close(pair[0]);
    close(pair[1]);
    return CAMPANILE_STATUS_OK;
}

/* All have been met: makes the connections and starts the progress thread. */
static int32_t finish(struct connecting *connecting, CampanileEndpoint *endpoints, CampanileError *error)
{
    struct transport *transport = connecting->transport;
    uint32_t most = 0;
    for (size_t i = 0; i < connecting->count; i++)
        most = connecting->meetings[i].rank > most ? connecting->meetings[i].rank : most;
    transport->connections = calloc((size_t)most + 1, sizeof *transport->connections);
    if (transport->connections == NULL)
        return refuse(error, CAMPANILE_STATUS_FAILED, "connecting", "no memory for %u connections", most + 1);
    transport->connections_count = most + 1;
    for (size_t i = 0; i < connecting->count; i++) {
        struct meeting *meeting = &connecting->meetings[i];
        struct connection *connection = NULL;
        if (meeting->rank == transport->rank) {
            int32_t status = meet_oneself(connecting, meeting, &connection, error);
            if (status != CAMPANILE_STATUS_OK)
                return status;
        } else {
            connection = connection_new(meeting->rank, meeting->socket, meeting->socket, meeting->token);
        }
        if (connection == NULL)
            return refuse(error, CAMPANILE_STATUS_FAILED, "connecting", "no memory for a connection");
        meeting->socket = -1; /* The connection's. */
        transport->connections[meeting->rank] = connection;
        endpoints[i].peer = meeting->rank;
        endpoints[i].peer_class = meeting->rank == transport->rank ? CAMPANILE_CLASS_OWN : CAMPANILE_CLASS_NODE;
    }
    if (!progress_start(transport, error))
        return CAMPANILE_STATUS_FAILED;
    atomic_store_explicit(&transport->connected, true, memory_order_release);
    return CAMPANILE_STATUS_OK;
}

static int32_t test(void *ctx, void *result, CampanileError *error)
{
    struct connecting *connecting = ctx;
    bool all = true;
    let_in(connecting);
    for (size_t i = 0; i < connecting->count; i++) {
        struct meeting *meeting = &connecting->meetings[i];
        if (!meeting->done && meeting->rank < connecting->transport->rank) {
            int32_t status = go_out(connecting, meeting, error);
            if (status < 0)
                return status;
        }
        all = all && meeting->done;
    }
    return all ? finish(connecting, result, error) : CAMPANILE_STATUS_PENDING;
}

static void park(void *ctx, uint64_t timeout_ns)
{
    struct connecting *connecting = ctx;
    struct pollfd *fds = calloc(2 * connecting->count + 1, sizeof *fds);
    uint64_t timeout_ms = timeout_ns / 1000000 + 1;
    nfds_t count = 0;
    if (fds == NULL)
        return; /* The next test comes early. */
    fds[count++] = (struct pollfd){.fd = connecting->transport->listener, .events = POLLIN};
    for (size_t i = 0; i < connecting->strangers_count; i++)
        fds[count++] = (struct pollfd){.fd = connecting->strangers[i], .events = POLLIN};
    for (size_t i = 0; i < connecting->count; i++) {
        struct meeting *meeting = &connecting->meetings[i];
        if (meeting->done || meeting->rank > connecting->transport->rank)
            continue;
        if (meeting->socket >= 0)
            fds[count++] = (struct pollfd){.fd = meeting->socket, .events = POLLIN};
        else if (timeout_ms > RETRY_MS)
            timeout_ms = RETRY_MS;
    }
    poll(fds, count, timeout_ms > 1000 ? 1000 : (int)timeout_ms);
    free(fds);
}

static void describe(void *ctx, const CampanileSink *text)
{
    struct connecting *connecting = ctx;
    write_text(text, "mailbox: connecting rank %u to", connecting->transport->rank);
    for (size_t i = 0; i < connecting->count; i++)
        if (!connecting->meetings[i].done)
            write_text(text, " rank %u", connecting->meetings[i].rank);
}

static void drop(void *ctx)
{
    struct connecting *connecting = ctx;
    for (size_t i = 0; i < connecting->strangers_count; i++)
        close(connecting->strangers[i]);
    for (size_t i = 0; connecting->meetings != NULL && i < connecting->count; i++)
        if (connecting->meetings[i].socket >= 0)
            close(connecting->meetings[i].socket);
    free(connecting->meetings);
    free(connecting->strangers);
    free(connecting);
}

int32_t connection_start(struct transport *transport, const CampanilePeer *peers, size_t count,
                         CampanileRequest *request, CampanileError *error)
{
    if (atomic_load(&transport->connected))
        return refuse(error, CAMPANILE_STATUS_UNSUPPORTED, "connect", "it is connected already; open another transport");
    struct connecting *connecting = calloc(1, sizeof *connecting);
    if (connecting == NULL)
        return refuse(error, CAMPANILE_STATUS_FAILED, "connecting", "no memory");
    connecting->transport = transport;
    connecting->meetings = calloc(count + 1, sizeof *connecting->meetings);
    connecting->strangers = calloc(count + 1, sizeof *connecting->strangers);
    int32_t status = CAMPANILE_STATUS_PENDING;
    if (connecting->meetings == NULL || connecting->strangers == NULL)
        status = refuse(error, CAMPANILE_STATUS_FAILED, "connecting", "no memory for %zu peers", count);
    for (size_t i = 0; i < count && status == CAMPANILE_STATUS_PENDING; i++) {
        struct meeting *meeting = &connecting->meetings[connecting->count++];
        const CampanileBytes *address = &peers[i].address;
        meeting->rank = peers[i].rank;
        meeting->socket = -1;
        meeting->done = meeting->rank == transport->rank;
        if (meeting->rank >= MAX_RANKS)
            status = refuse(error, CAMPANILE_STATUS_UNSUPPORTED, "connect", "rank %u; a mailbox serves %d", meeting->rank,
                            MAX_RANKS);
        else if (address->bytes <= sizeof meeting->token ||
                 address->bytes - sizeof meeting->token >= sizeof meeting->name)
            status = bad_address(error, meeting->rank, "it is not a token and the name of a socket");
        else {
            meeting->name_bytes = address->bytes - sizeof meeting->token;
            memcpy(&meeting->token, address->data, sizeof meeting->token);
            memcpy(meeting->name, address->data + sizeof meeting->token, meeting->name_bytes);
        }
    }
    if (status != CAMPANILE_STATUS_PENDING) {
        drop(connecting);
        return status;
    }
    request->ctx = connecting;
    request->test = test;
    request->park = park;
    request->describe = describe;
    request->drop = drop;
    return status;
}
