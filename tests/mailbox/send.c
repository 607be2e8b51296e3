/* Sending: queues and answers become messages in the outbox, and the outbox goes into the socket.
 *
 * Everything is copied into the outbox. So a source is reusable as soon as its last fragment lies there, and a message
 * is always whole, even if the region that it came from is released before the socket takes it. Payload costs one copy
 * more than it must; a transport that sends from the source would keep it pinned until then. */

#include "mailbox.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* Room for one more message of the largest size, moving what waits to the front if that makes it. */
static bool room(struct buffer *buffer)
{
    if (BUFFER_BYTES - buffer->tail >= sizeof(struct message) + FRAGMENT_BYTES)
        return true;
    memmove(buffer->bytes, buffer->bytes + buffer->head, buffer->tail - buffer->head);
    buffer->tail -= buffer->head;
    buffer->head = 0;
    return BUFFER_BYTES - buffer->tail >= sizeof(struct message) + FRAGMENT_BYTES;
}

/* Puts a message into the outbox, which has room, and `message->bytes` of payload, if it has any. */
static void append(struct connection *connection, const struct message *message, const void *payload)
{
    struct buffer *outbox = &connection->outbox;
    memcpy(outbox->bytes + outbox->tail, message, sizeof *message);
    outbox->tail += sizeof *message;
    if (payload != NULL)
        memcpy(outbox->bytes + outbox->tail, payload, message->bytes);
    outbox->tail += message->bytes;
}

/* ---- What the peer is told of the job ---- */

static bool send_news(struct transport *transport, struct connection *connection)
{
    uint64_t fault = atomic_load_explicit(&transport->fault, memory_order_acquire);
    if (fault != connection->told) {
        connection->told = fault;
        append(connection, &(struct message){.kind = MESSAGE_FAULT, .value = fault}, NULL);
        return true;
    }
    if (atomic_load_explicit(&transport->leaving, memory_order_acquire) && !connection->told_left) {
        connection->told_left = true;
        append(connection, &(struct message){.kind = MESSAGE_LEFT}, NULL);
        return true;
    }
    uint32_t asked = atomic_load(&connection->asked);
    if (connection->told_asked != asked) {
        connection->told_asked = asked;
        append(connection, &(struct message){.kind = MESSAGE_ASK, .position = asked,
                                             .action = atomic_load(&connection->question),
                                             .value = atomic_load(&connection->question_value)}, NULL);
        return true;
    }
    if (connection->told_question != connection->their_question) {
        connection->told_question = connection->their_question;
        append(connection, &(struct message){.kind = MESSAGE_ANSWER, .position = connection->their_question,
                                             .value = connection->their_answer}, NULL);
        return true;
    }
    return false;
}

/* ---- Answers ---- */

static bool send_answer(struct transport *transport, struct connection *connection)
{
    if (connection->answered == connection->owed)
        return false;
    struct answer *answer = &connection->answers[connection->answered & (connection->answers_size - 1)];
    struct message message = {
        .kind = answer->kind,
        .queue = answer->queue,
        .position = answer->position,
        .value = answer->value,
        .last = 1,
    };
    if (answer->kind != MESSAGE_REPLY) {
        append(connection, &message, NULL);
    } else if (answer->is_word) {
        message.bytes = sizeof answer->value;
        append(connection, &message, &answer->value);
    } else {
        uint64_t left = answer->bytes - answer->sent;
        message.bytes = (uint32_t)(left < FRAGMENT_BYTES ? left : FRAGMENT_BYTES);
        message.offset = answer->sent;
        message.last = message.bytes == left;
        struct region *region;
        uint64_t offset = answer->offset + answer->sent;
        if (region_pin(&transport->locals, answer->region, offset, message.bytes, &region) == FOUND) {
            append(connection, &message, region->address + offset);
            region_unpin(region);
        } else {
            /* Released since the get was accepted. */
            message = (struct message){.kind = MESSAGE_NACK, .queue = answer->queue, .position = answer->position,
                                       .value = NACK_STALE, .last = 1};
            append(connection, &message, NULL);
        }
        answer->sent += message.bytes;
    }
    if (message.last)
        connection->answered++;
    return true;
}

/* ---- Operations ---- */

/* Puts an operation's message into the stream: to an address at the owner, with `message->bytes` of payload. */
static void send_to(struct queue *queue, struct message *message, uint32_t kind, CampanileRemoteAddress at,
                    const void *payload)
{
    message->kind = kind;
    message->region = at.region;
    message->offset = at.offset;
    append(queue->connection, message, payload);
}

/* The next fragment of a put; false, and the queue has failed, if its source is gone. */
static bool send_fragment(struct queue *queue, struct message *message, CampanileLocalAddress source,
                          CampanileRemoteAddress target, uint64_t bytes)
{
    uint64_t left = bytes - queue->done;
    message->bytes = (uint32_t)(left < FRAGMENT_BYTES ? left : FRAGMENT_BYTES);
    source.offset += queue->done;
    target.offset += queue->done;
    struct region *region;
    if (region_pin(&queue->transport->locals, source.region, source.offset, message->bytes, &region) != FOUND) {
        queue_fail(queue, message->position,
                   "its local region was released before it was sent; keep a region until local completion");
        return false;
    }
    send_to(queue, message, MESSAGE_PUT, target, region->address + source.offset);
    region_unpin(region);
    queue->done += message->bytes;
    return true;
}

static void send_signal(struct queue *queue, struct message *message, const CampanileSignalUpdate *signal)
{
    message->value = signal->value;
    message->action = signal->action;
    message->last = 1;
    send_to(queue, message, MESSAGE_SIGNAL, signal->target, NULL);
}

/* Whether the operation at `sent` is stopped. Once one of a post is, so are those that follow. */
static bool stopped(struct queue *queue, const struct slot *slot, uint64_t position)
{
    if (atomic_load_explicit(&slot->cancelled, memory_order_acquire) == position + 1) {
        queue->skipping = true;
        queue->skip_first = slot->first;
    }
    return queue->skipping && queue->skip_first == slot->first;
}

/* The next message of a queue: one fragment, or what an operation has besides. */
static bool send_operation(struct queue *queue)
{
    if (!queue_ready(queue))
        return false;
    uint64_t position = atomic_load(&queue->sent);
    const struct slot *slot = &queue->slots[position % queue->depth];
    const CampanilePayload *payload = &slot->op.payload;
    struct message message = {.queue = queue->number, .position = position, .last = 1};
    bool fetches = false;
    uint32_t kind = queue->done == 0 && stopped(queue, slot, position) ? CAMPANILE_OP_FENCE : slot->op.kind;
    switch (kind) {
    case CAMPANILE_OP_PUT:
        message.last = payload->put.bytes - queue->done <= FRAGMENT_BYTES;
        if (!send_fragment(queue, &message, payload->put.source, payload->put.target, payload->put.bytes))
            return false;
        break;
    case CAMPANILE_OP_PUT_SIGNAL: {
        const CampanilePutSignal *put = &payload->put_signal;
        if (queue->done < put->bytes) {
            message.last = 0;
            if (!send_fragment(queue, &message, put->source, put->target, put->bytes))
                return false;
        } else {
            send_signal(queue, &message, &put->signal);
        }
        break;
    }
    case CAMPANILE_OP_PUT_INLINE:
        message.bytes = payload->put_inline.bytes;
        send_to(queue, &message, MESSAGE_PUT, payload->put_inline.target, payload->put_inline.data);
        break;
    case CAMPANILE_OP_SIGNAL:
        send_signal(queue, &message, &payload->signal);
        break;
    case CAMPANILE_OP_GET:
        message.value = payload->get.bytes;
        send_to(queue, &message, MESSAGE_GET, payload->get.source, NULL);
        fetches = true;
        break;
    case CAMPANILE_OP_ATOMIC:
        message.action = payload->atomic.kind;
        message.value = payload->atomic.operand;
        message.compare = payload->atomic.compare;
        send_to(queue, &message, MESSAGE_ATOMIC, payload->atomic.target, NULL);
        fetches = payload->atomic.kind != CAMPANILE_ATOMIC_ADD;
        break;
    default: /* A fence, or what was stopped; post refused all others. */
        message.kind = MESSAGE_NOP;
        append(queue->connection, &message, NULL);
        break;
    }
    if (message.last)
        queue_sent(queue, fetches);
    return true;
}

/* One message of the next queue that has one. */
static bool send_next(struct connection *connection)
{
    struct queue *first = connection->queues;
    if (first == NULL)
        return false;
    struct queue *queue = first;
    do {
        connection->queues = queue->next;
        if (send_operation(queue))
            return true;
        queue = queue->next;
    } while (queue != first);
    return false;
}

bool connection_owes(struct transport *transport, struct connection *connection)
{
    return !connection->mute && (connection->outbox.head < connection->outbox.tail ||
                                 connection->answered < connection->owed ||
                                 connection->told != atomic_load(&transport->fault) ||
                                 (atomic_load(&transport->leaving) && !connection->told_left) ||
                                 connection->told_asked != atomic_load(&connection->asked) ||
                                 connection->told_question != connection->their_question);
}

bool connection_send(struct transport *transport, struct connection *connection)
{
    struct buffer *outbox = &connection->outbox;
    if (connection->mute)
        return false;
    /* Answers come first: they free what the peer waits for, and are few. */
    bool staged = false;
    while (room(outbox) &&
           (send_news(transport, connection) || send_answer(transport, connection) || send_next(connection)))
        staged = true;
    if (outbox->head == outbox->tail)
        return staged;
    ssize_t sent = send(connection->out, outbox->bytes + outbox->head, outbox->tail - outbox->head,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
        outbox->head += (size_t)sent;
        if (outbox->head == outbox->tail)
            outbox->head = outbox->tail = 0;
        return true;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        return staged;
    /* It is gone. What it said before is still to be read: see connection_receive. */
    connection->mute = true;
    return true;
}
