/* The job's fault: the first that this rank learns of stands, and is told to every peer.
 *
 * Each rank has a word of its own, and tells what it adopts to all it is connected to. So a fault arrives even if the one
 * that reported it dies in the middle of telling, and before the end of a stream that is its consequence. Two ranks that
 * report at the same moment may name two culprits; a transport with memory that all share would have one word. */

#include "mailbox.h"

#include <stddef.h>

bool rank_masked(struct transport *transport, uint32_t rank)
{
    struct connection *connection = connection_to(transport, rank);
    return connection != NULL && atomic_load_explicit(&connection->masked, memory_order_acquire);
}

void rank_mask(struct transport *transport, uint32_t rank)
{
    struct connection *connection = connection_to(transport, rank);
    if (connection != NULL)
        atomic_store_explicit(&connection->masked, true, memory_order_release);
    waiters_wake(transport);
}

uint64_t fault_standing(struct transport *transport)
{
    uint64_t fault = atomic_load_explicit(&transport->fault, memory_order_acquire);
    return fault != 0 && rank_masked(transport, CAMPANILE_FAULT_CULPRIT(fault)) ? 0 : fault;
}

uint64_t fault_report(struct transport *transport, uint64_t fault)
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
