/* The job's fault: the first one stands, the same on every rank.
 *
 * There is no memory that all ranks share, so each has a word of its own, and the lowest rank that is there decides: a
 * report asks it which fault stands, adopts that, and tells everybody. Whoever adopts a fault tells all peers in turn. So a
 * fault arrives even if the one that reported it dies in the middle of telling, it arrives before the end of a stream that
 * is its consequence, and a report knows when the peers that run have heard of it. */

#include "mailbox.h"

#include <stddef.h>

bool rank_masked(struct transport *transport, uint32_t rank)
{
    struct connection *connection = connection_to(transport, rank);
    return connection != NULL && atomic_load_explicit(&connection->masked, memory_order_acquire);
}

uint64_t fault_standing(struct transport *transport)
{
    uint64_t fault = atomic_load_explicit(&transport->fault, memory_order_acquire);
    return fault != 0 && rank_masked(transport, CAMPANILE_FAULT_CULPRIT(fault)) ? 0 : fault;
}

uint64_t fault_adopt(struct transport *transport, uint64_t fault)
{
    uint64_t standing = 0;
    /* A fault of a masked rank gives way to a later one. */
    while (!atomic_compare_exchange_strong(&transport->fault, &standing, fault))
        if (standing != 0 && !rank_masked(transport, CAMPANILE_FAULT_CULPRIT(standing)))
            return standing;
    progress_ring(transport);
    waiters_wake(transport);
    return fault;
}

/* Which fault stands if this one is reported. */
static uint64_t decide(struct transport *transport, uint64_t fault)
{
    for (uint32_t rank = 0; rank < transport->rank; rank++) {
        struct connection *connection = connection_to(transport, rank);
        uint64_t standing;
        if (connection == NULL || atomic_load(&connection->gone) != 0 || atomic_load(&connection->masked))
            continue;
        if (!ask(transport, connection, ASK_FAULT, fault, &standing))
            continue; /* Gone or stopped: the next rank decides. */
        /* It may not have masked yet whom this rank has. */
        return rank_masked(transport, CAMPANILE_FAULT_CULPRIT(standing)) ? fault : standing;
    }
    return fault;
}

/* Waits until the peers that are there have said that they know a fault. */
static void tell(struct transport *transport, uint64_t fault)
{
    uint64_t deadline = answer_deadline(transport);
    for (uint32_t rank = 0; rank < transport->connections_count; rank++) {
        struct connection *connection = connection_to(transport, rank);
        while (connection != NULL && rank != transport->rank) {
            uint32_t turn = waiters_look(transport);
            if (atomic_load(&connection->heard) == fault || atomic_load(&connection->gone) != 0 ||
                atomic_load(&connection->masked) || now_ns() >= deadline)
                break;
            waiters_sleep(transport, turn, deadline);
        }
    }
}

uint64_t fault_report(struct transport *transport, uint64_t fault)
{
    uint64_t standing = fault_standing(transport);
    if (standing != 0)
        return standing;
    standing = fault_adopt(transport, decide(transport, fault));
    tell(transport, standing);
    return standing;
}

void rank_mask(struct transport *transport, uint32_t rank)
{
    struct connection *connection = connection_to(transport, rank);
    if (connection == NULL)
        return;
    atomic_store_explicit(&connection->masked, true, memory_order_release);
    /* What the others told while a fault of the masked rank stood counts now. */
    for (uint32_t peer = 0; peer < transport->connections_count; peer++) {
        struct connection *other = connection_to(transport, peer);
        uint64_t heard = other == NULL ? 0 : atomic_load(&other->heard);
        if (heard != 0 && !rank_masked(transport, CAMPANILE_FAULT_CULPRIT(heard)))
            fault_adopt(transport, heard);
    }
    waiters_wake(transport);
}
