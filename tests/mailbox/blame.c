/* Whose fault a time-out is.
 *
 * A rank that has waited in vain asks the peer whom it waits for in turn, and so on to the end of the chain: a rank that
 * waits for nobody, or does not even answer. */

#include "mailbox.h"

uint64_t blame(struct transport *transport, uint32_t first)
{
    uint32_t culprit = first;
    /* A chain that is longer than there are ranks is a ring, which has no culprit: then it is the first. */
    for (uint32_t length = 0; length < transport->connections_count; length++) {
        struct connection *connection = connection_to(transport, culprit);
        uint64_t next;
        if (atomic_load(&connection->gone) != 0)
            return CAMPANILE_FAULT(atomic_load(&connection->gone), culprit, transport->rank);
        bool answered = ask(transport, connection, ASK_WAITING, 0, &next);
        if (answered && next == (uint64_t)transport->rank + 1)
            break;
        if (!answered || next == 0 || connection_to(transport, (uint32_t)next - 1) == NULL ||
            rank_masked(transport, (uint32_t)next - 1))
            return CAMPANILE_FAULT(CAMPANILE_FAULT_STALLED, culprit, transport->rank);
        culprit = (uint32_t)next - 1;
    }
    return CAMPANILE_FAULT(CAMPANILE_FAULT_STALLED, first, transport->rank);
}
