/* Questions to a peer's progress thread, which answers whatever its rank does meanwhile; unless its process is stopped. */

#include "mailbox.h"

/* How long a rank that runs may take to answer: generous, because many ranks may share a core. */
#define PATIENCE_NS UINT64_C(250000000)

uint64_t answer_deadline(const struct transport *transport)
{
    uint64_t quarter = transport->timeout_ns / 4;
    return now_ns() + (quarter < PATIENCE_NS ? quarter : PATIENCE_NS);
}

bool ask(struct transport *transport, struct connection *connection, uint32_t question, uint64_t value,
         uint64_t *answer)
{
    bool answered = false;
    pthread_mutex_lock(&transport->ask_lock);
    uint64_t deadline = answer_deadline(transport);
    atomic_store(&connection->question, question);
    atomic_store(&connection->question_value, value);
    uint32_t number = atomic_fetch_add(&connection->asked, 1) + 1;
    progress_ring(transport);
    for (;;) {
        uint32_t turn = waiters_look(transport);
        answered = atomic_load(&connection->answered_number) == number;
        if (answered || atomic_load(&connection->gone) != 0 || now_ns() >= deadline)
            break;
        waiters_sleep(transport, turn, deadline);
    }
    *answer = atomic_load(&connection->answer);
    pthread_mutex_unlock(&transport->ask_lock);
    return answered;
}
