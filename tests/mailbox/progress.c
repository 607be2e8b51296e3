/* The progress thread: turns, and sleep when a turn finds nothing to do.
 *
 * A turn receives and executes from every peer, then sends to every peer, and never blocks: what a socket does not take
 * waits in the outbox, what is owed waits in the ring of answers, and receiving goes on. So two ranks that send each
 * other more than the sockets hold both drain. */

#include "mailbox.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* How long the end of a transport waits for peers to take what was promised to them. A peer that is stopped takes nothing;
 * one that runs needs microseconds. */
#define LAST_WORDS_NS UINT64_C(500000000)
#define LAST_WORDS_LOOK_MS 20

void progress_ring(struct transport *transport)
{
    /* Both sides change `sleeping`: either the thread sees what we did before, or we see that it sleeps. */
    if (atomic_exchange(&transport->sleeping, 0) == 0)
        return;
    uint64_t one = 1;
    ssize_t written = write(transport->doorbell, &one, sizeof one);
    (void)written; /* It cannot fail: the counter is far from its end. */
}

/* A peer is gone once nothing more can come from it. */
static void say_it_is_gone(struct transport *transport, struct connection *connection)
{
    connection_gone(transport, connection, connection->left ? CAMPANILE_FAULT_LEFT : CAMPANILE_FAULT_DIED);
    connection->mute = true;
    char reason[64];
    snprintf(reason, sizeof reason, "rank %u is gone", connection->rank);
    queues_fail(connection, reason);
}

/* Takes what the peers have sent; whether there was anything. `ended` becomes whether one of them has come to its end. */
static bool receive(struct transport *transport, bool *ended)
{
    bool worked = false;
    for (uint32_t rank = 0; rank < transport->connections_count; rank++) {
        struct connection *connection = transport->connections[rank];
        if (connection == NULL || connection->deaf)
            continue;
        bool received = connection_receive(transport, connection);
        /* A process that has ended sends nothing more, even if a child that it forked keeps its sockets. */
        connection->deaf |= connection->dead && !received;
        worked |= received;
        *ended |= connection->deaf;
    }
    return worked;
}

static bool turn(struct transport *transport)
{
    bool ended = false;
    pthread_mutex_lock(&transport->lock);
    bool worked = receive(transport, &ended);
    if (ended) {
        /* All are listened to once more before anybody is said to be gone: a peer that left because of a fault has told
         * that fault to the others before, and it is the fault that counts. */
        receive(transport, &ended);
        for (uint32_t rank = 0; rank < transport->connections_count; rank++)
            if (transport->connections[rank] != NULL && transport->connections[rank]->deaf)
                say_it_is_gone(transport, transport->connections[rank]);
        worked = true;
    }
    /* Before sending: a waiter has more use of a core than an acknowledgement. */
    if (worked)
        waiters_wake(transport);
    for (uint32_t rank = 0; rank < transport->connections_count; rank++)
        if (transport->connections[rank] != NULL)
            worked |= connection_send(transport, transport->connections[rank]);
    pthread_mutex_unlock(&transport->lock);
    return worked;
}

/* Whether there is something to send that no event of a socket will tell of. */
static bool anything_to_send(struct transport *transport)
{
    bool found = false;
    pthread_mutex_lock(&transport->lock);
    for (uint32_t rank = 0; rank < transport->connections_count && !found; rank++) {
        struct connection *connection = transport->connections[rank];
        if (connection != NULL && !connection->mute && connection->outbox.head == connection->outbox.tail)
            found = connection_owes(transport, connection) || queues_ready(connection);
    }
    pthread_mutex_unlock(&transport->lock);
    return found;
}

/* Descriptors of a connection that are polled; one that is not is -1, and poll passes over it. */
enum { AT_IN, AT_OUT, AT_PROCESS, AT_COUNT };

/* Sleeps until a socket, the end of a process or the doorbell has something. */
static void sleep_until_event(struct transport *transport, struct pollfd *fds)
{
    nfds_t count = 1 + AT_COUNT * (nfds_t)transport->connections_count;
    fds[0] = (struct pollfd){.fd = transport->doorbell, .events = POLLIN};
    for (uint32_t rank = 0; rank < transport->connections_count; rank++) {
        struct connection *connection = transport->connections[rank];
        struct pollfd *polled = &fds[1 + AT_COUNT * rank];
        polled[AT_IN] = polled[AT_OUT] = polled[AT_PROCESS] = (struct pollfd){.fd = -1};
        if (connection == NULL || connection->deaf)
            continue;
        polled[AT_IN] = (struct pollfd){.fd = connection->in, .events = POLLIN};
        if (!connection->mute && connection->outbox.head < connection->outbox.tail)
            polled[AT_OUT] = (struct pollfd){.fd = connection->out, .events = POLLOUT};
        if (!connection->dead)
            polled[AT_PROCESS] = (struct pollfd){.fd = connection->pidfd, .events = POLLIN};
    }
    /* Whoever rings from here on sees that the thread sleeps; what was rung before is found now. */
    atomic_exchange(&transport->sleeping, 1);
    int timeout = anything_to_send(transport) ? 0 : atomic_load(&transport->ending) ? LAST_WORDS_LOOK_MS : -1;
    int events = poll(fds, count, timeout);
    atomic_store(&transport->sleeping, 0);
    if (events <= 0)
        return;
    if (fds[0].revents != 0) {
        uint64_t rings;
        ssize_t taken = read(transport->doorbell, &rings, sizeof rings);
        (void)taken; /* It does not block, and only that it was readable matters. */
    }
    for (uint32_t rank = 0; rank < transport->connections_count; rank++)
        if (fds[1 + AT_COUNT * rank + AT_PROCESS].revents != 0)
            transport->connections[rank]->dead = true;
}

/* Whether a peer is still to be told something. */
static bool owes(struct transport *transport)
{
    bool found = false;
    pthread_mutex_lock(&transport->lock);
    for (uint32_t rank = 0; rank < transport->connections_count; rank++) {
        struct connection *connection = transport->connections[rank];
        found |= connection != NULL && rank != transport->rank && connection_owes(transport, connection);
    }
    pthread_mutex_unlock(&transport->lock);
    return found;
}

static void *run(void *argument)
{
    struct transport *transport = argument;
    struct pollfd *fds = calloc(1 + AT_COUNT * (size_t)transport->connections_count, sizeof *fds);
    uint64_t last_words = 0;
    while (fds != NULL) {
        if (turn(transport))
            continue;
        if (atomic_load(&transport->ending)) {
            uint64_t now = now_ns();
            if (last_words == 0)
                last_words = now + LAST_WORDS_NS;
            if (!owes(transport) || now >= last_words)
                break;
        }
        sleep_until_event(transport, fds);
    }
    free(fds);
    return NULL;
}

bool progress_start(struct transport *transport, CampanileError *error)
{
    /* Signals are for the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&transport->thread, NULL, run, transport);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    transport->running = failed == 0;
    if (failed != 0)
        refuse(error, CAMPANILE_STATUS_FAILED, "starting the progress thread", "pthread_create: error %d", failed);
    return transport->running;
}

void progress_end(struct transport *transport)
{
    if (!transport->running)
        return;
    atomic_store(&transport->ending, 1);
    progress_ring(transport);
    pthread_join(transport->thread, NULL);
    transport->running = false;
}
