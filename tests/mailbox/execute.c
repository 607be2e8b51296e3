/* Executing: what is in the inbox is done, in order, by the progress thread of the target.
 *
 * Every request names a region of this rank by its key, and is checked here, because the sender's knowledge of it may be
 * stale. One that fails is answered by a NACK, and no later one of its queue is executed: a signal must not tell of a put
 * that did not happen. What makes no sense at all ends the connection, and the peer is to blame. */

#include "mailbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Most bytes taken from a peer in one turn, so that none starves the others. */
#define TURN_BYTES ((size_t)4 * BUFFER_BYTES)

/* ---- What is owed ---- */

/* A new answer at the end of the ring, which grows to what the peers' queues are deep; NULL if there is no memory. */
static struct answer *owe(struct connection *connection)
{
    size_t size = connection->answers_size;
    if (connection->owed - connection->answered == size) {
        size_t larger = size == 0 ? 64 : 2 * size;
        struct answer *answers = malloc(larger * sizeof *answers);
        if (answers == NULL)
            return NULL;
        for (size_t i = 0; i < size; i++)
            answers[i] = connection->answers[(connection->answered + i) & (size - 1)];
        free(connection->answers);
        connection->answers = answers;
        connection->answers_size = larger;
        connection->owed = size;
        connection->answered = 0;
    }
    struct answer *answer = &connection->answers[connection->owed++ & (connection->answers_size - 1)];
    *answer = (struct answer){0};
    return answer;
}

/* Tells the peer that everything of a queue before `position` is executed. */
static bool acknowledge(struct connection *connection, uint32_t queue, uint64_t position)
{
    if (connection->owed != connection->answered) {
        /* One acknowledgement for as many as come before it is sent. */
        struct answer *last = &connection->answers[(connection->owed - 1) & (connection->answers_size - 1)];
        if (last->kind == MESSAGE_ACK && last->queue == queue) {
            last->position = position;
            return true;
        }
    }
    struct answer *answer = owe(connection);
    if (answer == NULL)
        return false;
    answer->kind = MESSAGE_ACK;
    answer->queue = queue;
    answer->position = position;
    return true;
}

static bool has_failed(const struct connection *connection, uint32_t queue)
{
    for (size_t i = 0; i < connection->failed_count; i++)
        if (connection->failed[i] == queue)
            return true;
    return false;
}

static bool reject(struct connection *connection, const struct message *message, uint64_t reason)
{
    uint32_t *failed = realloc(connection->failed, (connection->failed_count + 1) * sizeof *failed);
    struct answer *answer = owe(connection);
    if (failed != NULL)
        connection->failed = failed;
    if (failed == NULL || answer == NULL)
        return false;
    failed[connection->failed_count++] = message->queue;
    answer->kind = MESSAGE_NACK;
    answer->queue = message->queue;
    answer->position = message->position;
    answer->value = reason;
    return true;
}

/* ---- Requests. False: the connection cannot go on. ---- */

static bool execute_put(struct transport *transport, struct connection *connection, const struct message *message,
                        const unsigned char *payload)
{
    struct region *region;
    enum found found = region_pin(&transport->locals, message->region, message->offset, message->bytes, &region);
    if (found != FOUND)
        return reject(connection, message, found == STALE ? NACK_STALE : NACK_OUTSIDE);
    if (message->bytes > 0)
        memcpy(region->address + message->offset, payload, message->bytes);
    region_unpin(region);
    return !message->last || acknowledge(connection, message->queue, message->position + 1);
}

/* Holds the region of a word and gives the word; NULL if there is none, and the request is rejected. */
static _Atomic uint64_t *pin_word(struct transport *transport, const struct message *message, struct region **region,
                                  uint64_t *reason)
{
    enum found found = region_pin(&transport->locals, message->region, message->offset, 8, region);
    if (found != FOUND) {
        *reason = found == STALE ? NACK_STALE : NACK_OUTSIDE;
        return NULL;
    }
    unsigned char *address = (*region)->address + message->offset;
    if ((uintptr_t)address % 8 != 0) {
        /* The offset was good, but the memory that was registered is not aligned. */
        region_unpin(*region);
        *reason = NACK_UNALIGNED;
        return NULL;
    }
    return (_Atomic uint64_t *)(void *)address;
}

static bool execute_signal(struct transport *transport, struct connection *connection, const struct message *message)
{
    struct region *region;
    uint64_t reason = 0;
    _Atomic uint64_t *word = pin_word(transport, message, &region, &reason);
    if (word == NULL)
        return reject(connection, message, reason);
    /* Release: whoever sees the word sees the bytes that this thread has copied before. */
    if (message->action == CAMPANILE_SIGNAL_ADD)
        atomic_fetch_add_explicit(word, message->value, memory_order_release);
    else
        atomic_store_explicit(word, message->value, memory_order_release);
    region_unpin(region);
    return acknowledge(connection, message->queue, message->position + 1);
}

static bool execute_atomic(struct transport *transport, struct connection *connection, const struct message *message)
{
    struct region *region;
    uint64_t reason = 0;
    _Atomic uint64_t *word = pin_word(transport, message, &region, &reason);
    if (word == NULL)
        return reject(connection, message, reason);
    uint64_t old = message->compare;
    switch (message->action) {
    case CAMPANILE_ATOMIC_COMPARE_SWAP:
        atomic_compare_exchange_strong(word, &old, message->value);
        break;
    case CAMPANILE_ATOMIC_SWAP:
        old = atomic_exchange(word, message->value);
        break;
    default:
        old = atomic_fetch_add(word, message->value);
        break;
    }
    region_unpin(region);
    if (message->action == CAMPANILE_ATOMIC_ADD)
        return acknowledge(connection, message->queue, message->position + 1);
    struct answer *answer = owe(connection);
    if (answer == NULL)
        return false;
    answer->kind = MESSAGE_REPLY;
    answer->queue = message->queue;
    answer->position = message->position;
    answer->value = old;
    answer->is_word = true;
    return true;
}

static bool execute_get(struct transport *transport, struct connection *connection, const struct message *message)
{
    struct region *region;
    enum found found = region_pin(&transport->locals, message->region, message->offset, message->value, &region);
    if (found != FOUND)
        return reject(connection, message, found == STALE ? NACK_STALE : NACK_OUTSIDE);
    region_unpin(region);
    struct answer *answer = owe(connection);
    if (answer == NULL)
        return false;
    answer->kind = MESSAGE_REPLY;
    answer->queue = message->queue;
    answer->position = message->position;
    answer->region = message->region;
    answer->offset = message->offset;
    answer->bytes = message->value;
    return true;
}

/* ---- Answers ---- */

static const char *nack_text(uint64_t reason)
{
    switch (reason) {
    case NACK_STALE:
        return "the region does not exist at its owner (any more); keep it until the peers are done";
    case NACK_OUTSIDE:
        return "the range is outside the region at its owner";
    case NACK_UNALIGNED:
        return "the word is not 8-byte aligned at its owner, which registered unaligned memory";
    default:
        return "the target refused it for a reason that this version does not know";
    }
}

/* Bytes of the result of an operation that is on its way. */
static bool take_reply(struct transport *transport, struct queue *queue, const struct message *message,
                       const unsigned char *payload)
{
    uint64_t position = message->position;
    if (position < atomic_load(&queue->acknowledged) || position >= atomic_load(&queue->sent))
        return false;
    const CampanileOp *op = &queue->slots[position % queue->depth].op;
    CampanileLocalAddress at;
    uint64_t bytes;
    if (op->kind == CAMPANILE_OP_GET) {
        at = op->payload.get.target;
        bytes = op->payload.get.bytes;
    } else if (op->kind == CAMPANILE_OP_ATOMIC) {
        at = op->payload.atomic.result;
        bytes = 8;
    } else {
        return false;
    }
    if (message->offset > bytes || bytes - message->offset < message->bytes)
        return false;
    struct region *region;
    at.offset += message->offset;
    if (region_pin(&transport->locals, at.region, at.offset, message->bytes, &region) != FOUND) {
        queue_fail(queue, position, "the region of its result was released before it came; keep it until completion");
        return true;
    }
    if (message->bytes > 0)
        memcpy(region->address + at.offset, payload, message->bytes);
    region_unpin(region);
    if (message->last)
        queue_acknowledge(queue, position + 1);
    return true;
}

static bool take_answer(struct transport *transport, struct connection *connection, const struct message *message,
                        const unsigned char *payload)
{
    struct queue *queue = queue_find(connection, message->queue);
    /* Destroyed, or failed: nothing of it touches memory any more. What was executed before counts. */
    bool failed = queue != NULL && atomic_load(&queue->failure) != CAMPANILE_STATUS_OK;
    if (queue == NULL || (failed && message->kind != MESSAGE_ACK))
        return true;
    switch (message->kind) {
    case MESSAGE_ACK:
        if (message->position > atomic_load(&queue->sent) || message->position < atomic_load(&queue->acknowledged))
            return false;
        queue_acknowledge(queue, message->position);
        return true;
    case MESSAGE_NACK:
        queue_fail(queue, message->position, "%s", nack_text(message->value));
        return true;
    default:
        return take_reply(transport, queue, message, payload);
    }
}

/* ---- The inbox ---- */

static bool execute(struct transport *transport, struct connection *connection, const struct message *message,
                    const unsigned char *payload)
{
    switch (message->kind) {
    case MESSAGE_PUT:
    case MESSAGE_SIGNAL:
    case MESSAGE_GET:
    case MESSAGE_ATOMIC:
    case MESSAGE_NOP:
        if (has_failed(connection, message->queue))
            return true;
        switch (message->kind) {
        case MESSAGE_PUT:
            return execute_put(transport, connection, message, payload);
        case MESSAGE_SIGNAL:
            return execute_signal(transport, connection, message);
        case MESSAGE_GET:
            return execute_get(transport, connection, message);
        case MESSAGE_ATOMIC:
            return execute_atomic(transport, connection, message);
        default:
            return acknowledge(connection, message->queue, message->position + 1);
        }
    case MESSAGE_ACK:
    case MESSAGE_NACK:
    case MESSAGE_REPLY:
        return take_answer(transport, connection, message, payload);
    case MESSAGE_FAULT:
        /* It is told back what stands here, and so knows that it was heard. */
        atomic_store(&connection->heard, message->value);
        fault_adopt(transport, message->value);
        return true;
    case MESSAGE_LEFT:
        connection->left = true;
        connection_gone(transport, connection, CAMPANILE_FAULT_LEFT);
        return true;
    case MESSAGE_ASK:
        connection->their_question = (uint32_t)message->position;
        connection->their_answer = message->action == ASK_FAULT ? fault_adopt(transport, message->value)
                                                                : atomic_load(&transport->waiting);
        return true;
    case MESSAGE_ANSWER:
        atomic_store(&connection->answer, message->value);
        atomic_store(&connection->answered_number, (uint32_t)message->position);
        return true;
    default:
        return false;
    }
}

/* Executes the whole messages of the inbox and moves the rest to its front. */
static bool execute_all(struct transport *transport, struct connection *connection)
{
    struct buffer *inbox = &connection->inbox;
    bool good = true;
    while (good && inbox->tail - inbox->head >= sizeof(struct message)) {
        struct message message;
        memcpy(&message, inbox->bytes + inbox->head, sizeof message);
        good = message.bytes <= FRAGMENT_BYTES;
        if (!good || inbox->tail - inbox->head < sizeof message + message.bytes)
            break;
        good = execute(transport, connection, &message, inbox->bytes + inbox->head + sizeof message);
        inbox->head += sizeof message + message.bytes;
    }
    memmove(inbox->bytes, inbox->bytes + inbox->head, inbox->tail - inbox->head);
    inbox->tail -= inbox->head;
    inbox->head = 0;
    return good;
}

/* Takes what a peer has sent. At the end of its stream, or of sense, it goes deaf; the turn then says that it is gone. */
bool connection_receive(struct transport *transport, struct connection *connection)
{
    struct buffer *inbox = &connection->inbox;
    size_t total = 0;
    while (!connection->deaf && total < TURN_BYTES) {
        /* There is room: what is left of a message is smaller than the inbox. */
        ssize_t received = recv(connection->in, inbox->bytes + inbox->tail, BUFFER_BYTES - inbox->tail, MSG_DONTWAIT);
        if (received < 0 && errno == EINTR)
            continue;
        if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (received <= 0) {
            connection->deaf = true;
            break;
        }
        inbox->tail += (size_t)received;
        total += (size_t)received;
        if (!execute_all(transport, connection)) {
            connection_gone(transport, connection, CAMPANILE_FAULT_FAILED);
            connection->deaf = connection->mute = true;
            fault_adopt(transport, CAMPANILE_FAULT(CAMPANILE_FAULT_FAILED, connection->rank, transport->rank));
        }
    }
    return total > 0;
}
