/* Waiting for a word that the progress thread will change.
 *
 * A waiter yields its core a few times, since that thread may need it, and then sleeps until a turn has executed
 * something. It looks at the word first and last: what came before a fault or a death counts. */

#include "mailbox.h"

#include <sched.h>

/* Yields before sleeping: some 20 us, which is longer than a message takes between two ranks that run. */
#define YIELDS 100

static bool holds(const CampanileWait *wait, uint64_t word)
{
    if (wait->condition == CAMPANILE_CONDITION_TAG)
        return (word & wait->mask) == wait->value;
    return (int64_t)(word - wait->value) >= 0;
}

uint32_t waiters_look(struct transport *transport)
{
    return atomic_load(&transport->turns);
}

void waiters_sleep(struct transport *transport, uint32_t turn, uint64_t deadline)
{
    struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000u), .tv_nsec = (long)(deadline % 1000000000u)};
    pthread_mutex_lock(&transport->bell_lock);
    /* Counted first, then looked; the waker counts a turn first, then looks for waiters: one of them sees the other. The
     * lock is held from here to the sleep, so the bell is not missed either. */
    atomic_fetch_add(&transport->waiters, 1);
    if (atomic_load(&transport->turns) == turn)
        pthread_cond_timedwait(&transport->bell, &transport->bell_lock, &until);
    atomic_fetch_sub(&transport->waiters, 1);
    pthread_mutex_unlock(&transport->bell_lock);
}

void waiters_wake(struct transport *transport)
{
    atomic_fetch_add(&transport->turns, 1);
    if (atomic_load(&transport->waiters) == 0)
        return;
    pthread_mutex_lock(&transport->bell_lock);
    pthread_cond_broadcast(&transport->bell);
    pthread_mutex_unlock(&transport->bell_lock);
}

int32_t word_wait(struct transport *transport, const CampanileWait *wait, uint64_t *seen, CampanileError *error)
{
    struct region *region = NULL;
    const CampanileRegion *handle = wait->region;
    if (wait->offset % 8 != 0 || (uintptr_t)handle->address % 8 != 0 ||
        region_pin(&transport->locals, handle->key, wait->offset, 8, &region) != FOUND)
        return refuse(error, CAMPANILE_STATUS_INVALID, NULL,
                      "a word at %llu: offsets are multiples of 8 inside the region, which is 8-byte aligned",
                      (unsigned long long)wait->offset);
    /* The caller keeps the region while it waits in it; a pin would make its release wait as long. */
    region_unpin(region);
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)((unsigned char *)handle->address + wait->offset);
    *seen = atomic_load_explicit(word, memory_order_acquire);
    if (holds(wait, *seen))
        return CAMPANILE_STATUS_OK;

    struct connection *connection = connection_to(transport, wait->peer);
    if (connection == NULL)
        return refuse(error, CAMPANILE_STATUS_INVALID, NULL, "rank %u is not connected", wait->peer);
    if (atomic_load(&connection->masked))
        return refuse(error, CAMPANILE_STATUS_INVALID, NULL, "rank %u is masked: this rank goes on without it",
                      wait->peer);
    uint64_t start = now_ns();
    uint64_t deadline = deadline_after(start, transport->timeout_ns);
    atomic_store(&transport->waiting, wait->peer + 1);
    int32_t status = CAMPANILE_STATUS_PENDING;
    for (unsigned look = 0; status == CAMPANILE_STATUS_PENDING; look++) {
        uint32_t turn = waiters_look(transport);
        uint64_t fault = fault_standing(transport);
        uint32_t gone = atomic_load(&connection->gone);
        uint64_t now = look < YIELDS ? start : now_ns();
        *seen = atomic_load_explicit(word, memory_order_acquire);
        if (holds(wait, *seen)) {
            status = CAMPANILE_STATUS_OK;
        } else if (fault != 0 || gone != 0) {
            if (fault == 0)
                fault = fault_report(transport, CAMPANILE_FAULT(gone, wait->peer, transport->rank));
            error->numbers[0] = fault;
            error->numbers[1] = *seen;
            status = CAMPANILE_STATUS_FAULT;
        } else if (now >= deadline) {
            error->numbers[0] = now - start;
            error->numbers[1] = *seen;
            error->numbers[2] = fault_report(transport, blame(transport, wait->peer));
            status = CAMPANILE_STATUS_TIMEOUT;
        } else if (look < YIELDS) {
            sched_yield();
        } else {
            waiters_sleep(transport, turn, deadline);
        }
    }
    atomic_store(&transport->waiting, 0);
    return status;
}
