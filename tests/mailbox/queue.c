/* Queues: operations, marks and the doorbell.
 *
 * Four counters along the slots, acknowledged <= sent <= rung <= written. A post copies its whole list into slots and
 * only then moves `written`: one reservation, one publish. Nothing is sent before the doorbell: `ring` moves `rung` up to
 * what is written, and wakes the progress thread, which sends. The answers of the target move `acknowledged`, and a slot
 * is free again behind it, so `depth` bounds what is on its way.
 *
 * Posters take a lock among themselves, for the time of a copy; the progress thread does not. A transport that writes
 * into a ring of the hardware would reserve without one. Tests, flushes and rings take none. */

#include "mailbox.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* How many queues this process has made: a number tells a queue from all others of the process. */
static _Atomic uint32_t numbers;

static uint64_t load(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_acquire);
}

static void store(_Atomic uint64_t *counter, uint64_t value)
{
    atomic_store_explicit(counter, value, memory_order_release);
}

/* Moves a counter that several threads move; it never goes back. */
static bool advance(_Atomic uint64_t *counter, uint64_t to, uint64_t *from)
{
    *from = load(counter);
    while (*from < to)
        if (atomic_compare_exchange_weak(counter, from, to))
            return true;
    return false;
}

/* What the queue failed with, or CAMPANILE_STATUS_OK. */
static int32_t failure(struct queue *queue, CampanileError *error)
{
    int32_t status = atomic_load_explicit(&queue->failure, memory_order_acquire);
    if (status == CAMPANILE_STATUS_OK)
        return status;
    error->numbers[0] = queue->failed_at;
    return refuse(error, status, NULL, "%s", queue->reason);
}

/* ---- Checks of a post: whatever is wrong with an operation is said before any of the list is queued. What is queued names
 * the owner's key of a remote region: it does not need the import any more, and the owner checks the key again. ---- */

struct check {
    struct queue *queue;
    CampanileError *error;
    size_t index;
};

__attribute__((format(printf, 2, 3)))
static bool illegal(const struct check *check, const char *reason, ...)
{
    va_list arguments;
    va_start(arguments, reason);
    vsnprintf(check->error->reason, sizeof check->error->reason, reason, arguments);
    va_end(arguments);
    check->error->numbers[0] = check->index;
    return false;
}

/* Holds the region that has this range; NULL if there is none. */
static struct region *hold(const struct check *check, const char *side, struct regions *regions, uint64_t key,
                           uint64_t offset, uint64_t bytes)
{
    struct region *region;
    enum found found = region_pin(regions, key, offset, bytes, &region);
    if (found == FOUND)
        return region;
    if (found == STALE)
        illegal(check, "its %s region %#llx does not exist (any more)", side, (unsigned long long)key);
    else
        illegal(check, "%llu bytes at offset %llu are outside its %s region", (unsigned long long)bytes,
                (unsigned long long)offset, side);
    return NULL;
}

static bool local(const struct check *check, CampanileLocalAddress at, uint64_t bytes)
{
    struct regions *regions = &check->queue->transport->locals;
    struct region *region = hold(check, "local", regions, at.region, at.offset, bytes);
    if (region != NULL)
        region_unpin(region);
    return region != NULL;
}

static bool remote(const struct check *check, CampanileRemoteAddress *at, uint64_t bytes)
{
    struct regions *regions = &check->queue->transport->remotes;
    struct region *region = hold(check, "remote", regions, at->region, at->offset, bytes);
    if (region == NULL)
        return false;
    uint32_t owner = region->owner;
    at->region = region->remote;
    region_unpin(region);
    if (owner != check->queue->connection->rank)
        return illegal(check, "its remote region belongs to rank %u, the queue leads to rank %u", owner,
                       check->queue->connection->rank);
    return true;
}

static bool word(const struct check *check, CampanileRemoteAddress *at)
{
    if (at->offset % 8 != 0)
        return illegal(check, "a word at offset %llu; words are 8-byte aligned", (unsigned long long)at->offset);
    return remote(check, at, 8);
}

static bool signal_update(const struct check *check, CampanileSignalUpdate *signal)
{
    if (signal->action > CAMPANILE_SIGNAL_ADD || signal->strength > CAMPANILE_STRENGTH_STRONG)
        return illegal(check, "a signal of action %u and strength %u is not known", signal->action, signal->strength);
    return word(check, &signal->target);
}

/* Checks an operation, and makes it one that names the owner's keys. */
static bool legal(const struct check *check, CampanileOp *op)
{
    switch (op->kind) {
    case CAMPANILE_OP_PUT: {
        CampanilePut *put = &op->payload.put;
        return local(check, put->source, put->bytes) && remote(check, &put->target, put->bytes);
    }
    case CAMPANILE_OP_PUT_SIGNAL: {
        CampanilePutSignal *put = &op->payload.put_signal;
        return local(check, put->source, put->bytes) && remote(check, &put->target, put->bytes) &&
               signal_update(check, &put->signal);
    }
    case CAMPANILE_OP_PUT_INLINE: {
        CampanilePutInline *put = &op->payload.put_inline;
        if (put->bytes > CAMPANILE_INLINE_BYTES)
            return illegal(check, "%u bytes inline; at most %d fit", put->bytes, CAMPANILE_INLINE_BYTES);
        return remote(check, &put->target, put->bytes);
    }
    case CAMPANILE_OP_SIGNAL:
        return signal_update(check, &op->payload.signal);
    case CAMPANILE_OP_GET: {
        CampanileGet *get = &op->payload.get;
        return remote(check, &get->source, get->bytes) && local(check, get->target, get->bytes);
    }
    case CAMPANILE_OP_ATOMIC: {
        CampanileAtomic *atomic = &op->payload.atomic;
        if (atomic->kind > CAMPANILE_ATOMIC_SWAP)
            return illegal(check, "an atomic of kind %u is not known", atomic->kind);
        return word(check, &atomic->target) &&
               (atomic->kind == CAMPANILE_ATOMIC_ADD || local(check, atomic->result, 8));
    }
    case CAMPANILE_OP_FENCE:
        return true;
    default:
        return illegal(check, "an operation of kind %u is not known", op->kind);
    }
}

/* ---- The table ---- */

static int32_t post(void *ctx, const CampanileOp *ops, size_t count, uint64_t *mark, CampanileError *error)
{
    struct queue *queue = ctx;
    int32_t status = failure(queue, error);
    if (status != CAMPANILE_STATUS_OK)
        return status;
    pthread_mutex_lock(&queue->lock);
    uint64_t written = load(&queue->written);
    uint64_t free_slots = queue->depth - (written - load(&queue->acknowledged));
    /* A list that does not fit is checked all the same: what is never legal is said first. */
    for (size_t i = 0; i < count && status == CAMPANILE_STATUS_OK; i++) {
        CampanileOp op = ops[i];
        if (!legal(&(struct check){queue, error, i}, &op))
            status = CAMPANILE_STATUS_INVALID;
        else if (count <= free_slots) {
            struct slot *slot = &queue->slots[(written + i) % queue->depth];
            slot->op = op;
            slot->first = written;
        }
    }
    if (status == CAMPANILE_STATUS_OK && count > free_slots) {
        status = count > queue->depth ? CAMPANILE_STATUS_TOO_LARGE : CAMPANILE_STATUS_BUSY;
        error->numbers[0] = count;
        error->numbers[1] = count > queue->depth ? queue->depth : free_slots;
    }
    if (status == CAMPANILE_STATUS_OK) {
        *mark = written + count;
        store(&queue->written, *mark);
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

static int32_t ring(void *ctx, CampanileError *error)
{
    struct queue *queue = ctx;
    uint64_t before;
    if (advance(&queue->rung, load(&queue->written), &before))
        progress_ring(queue->transport);
    return failure(queue, error);
}

static int32_t flush(void *ctx, uint64_t *mark, CampanileError *error)
{
    (void)error;
    *mark = load(&((struct queue *)ctx)->written);
    return CAMPANILE_STATUS_OK;
}

/* 1 if it is fulfilled, 0 if not, or an error. A mark that is fulfilled stays so, whatever happens to the queue. */
static int32_t test(void *ctx, uint64_t mark, uint32_t level, CampanileError *error)
{
    struct queue *queue = ctx;
    if (level != CAMPANILE_LEVEL_LOCAL && level != CAMPANILE_LEVEL_REMOTE_CPU)
        return refuse(error, CAMPANILE_STATUS_UNSUPPORTED, level == CAMPANILE_LEVEL_REMOTE_GPU ? "Gpu" : "Nic",
                      "the mailbox makes memory visible to CPUs");
    int32_t failed = failure(queue, error);
    if (load(level == CAMPANILE_LEVEL_LOCAL ? &queue->local : &queue->acknowledged) >= mark)
        return 1;
    if (mark > load(&queue->written)) {
        error->numbers[0] = mark;
        return CAMPANILE_STATUS_FOREIGN_TICKET;
    }
    return failed;
}

/* The thread does the work; what it has completed since the last call is told here. */
static int64_t progress(void *ctx, CampanileError *error)
{
    struct queue *queue = ctx;
    uint64_t before, now = load(&queue->acknowledged);
    if (advance(&queue->reported, now, &before))
        return (int64_t)(now - before);
    return failure(queue, error);
}

/* Leaves out what is not sent yet of the post whose mark it is. The marks complete in their turn all the same. */
static int32_t cancel(void *ctx, uint64_t mark, CampanileError *error)
{
    struct queue *queue = ctx;
    pthread_mutex_lock(&queue->lock);
    uint64_t written = load(&queue->written), sent = load(&queue->sent);
    int32_t result = CAMPANILE_CANCELLED_TOO_LATE;
    if (mark > written) {
        error->numbers[0] = mark;
        result = CAMPANILE_STATUS_FOREIGN_TICKET;
    } else if (mark > sent) {
        /* Its slots are not used again: that takes a post, and the lock. From the last to the first, so that if the
         * progress thread meets one, it meets all that follow: a signal never goes without its put. */
        uint64_t first = queue->slots[(mark - 1) % queue->depth].first;
        for (uint64_t at = mark; at > first && at > sent; at--)
            store(&queue->slots[(at - 1) % queue->depth].cancelled, at);
        result = CAMPANILE_CANCELLED_STOPPED;
    }
    pthread_mutex_unlock(&queue->lock);
    return result;
}

static void describe(void *ctx, const CampanileSink *text)
{
    struct queue *queue = ctx;
    write_text(text, "mailbox queue to rank %u: acknowledged %llu, sent %llu, rung %llu, written %llu, depth %llu",
               queue->connection->rank, (unsigned long long)load(&queue->acknowledged),
               (unsigned long long)load(&queue->sent), (unsigned long long)load(&queue->rung),
               (unsigned long long)load(&queue->written), (unsigned long long)queue->depth);
}

static void destroy(void *ctx)
{
    struct queue *queue = ctx;
    struct connection *connection = queue->connection;
    pthread_mutex_lock(&queue->transport->lock);
    queue->previous->next = queue->next;
    queue->next->previous = queue->previous;
    if (connection->queues == queue)
        connection->queues = queue->next == queue ? NULL : queue->next;
    pthread_mutex_unlock(&queue->transport->lock);
    pthread_mutex_destroy(&queue->lock);
    free(queue->slots);
    free(queue);
}

int32_t queue_create(struct transport *transport, uint32_t target, uint32_t number, const CampanileQueueOptions *options,
                     const CampanileQueue **table, CampanileError *error)
{
    if (target != CAMPANILE_TARGET_PEER)
        return refuse(error, CAMPANILE_STATUS_UNSUPPORTED, "queue", "a mailbox has no engines; make a queue to a peer");
    if (options->initiator != CAMPANILE_INITIATOR_HOST)
        return refuse(error, CAMPANILE_STATUS_UNSUPPORTED, "queue", "a device cannot post to a mailbox");
    if (options->depth == 0 || options->depth > MAX_DEPTH)
        return refuse(error, CAMPANILE_STATUS_UNSUPPORTED, "queue", "a depth of %llu; it is from 1 to %llu",
                      (unsigned long long)options->depth, (unsigned long long)MAX_DEPTH);
    struct connection *connection = connection_to(transport, number);
    if (connection == NULL)
        return refuse(error, CAMPANILE_STATUS_UNSUPPORTED, "queue", "rank %u is not connected", number);
    struct queue *queue = calloc(1, sizeof *queue);
    struct slot *slots = calloc(options->depth, sizeof *slots);
    if (queue == NULL || slots == NULL) {
        free(queue);
        free(slots);
        return refuse(error, CAMPANILE_STATUS_FAILED, "making a queue", "no memory for %llu slots",
                      (unsigned long long)options->depth);
    }
    queue->transport = transport;
    queue->connection = connection;
    queue->number = atomic_fetch_add(&numbers, 1);
    queue->depth = options->depth;
    queue->slots = slots;
    pthread_mutex_init(&queue->lock, NULL);
    queue->table = (CampanileQueue){
        .struct_size = sizeof queue->table,
        .ctx = queue,
        .number = queue->number,
        .destroy = destroy,
        .post = post,
        .test = test,
        .progress = progress,
        .ring = ring,
        .flush = flush,
        .cancel = cancel,
        .describe = describe,
    };
    pthread_mutex_lock(&transport->lock);
    struct queue *next = connection->queues != NULL ? connection->queues : queue;
    queue->next = next;
    queue->previous = next == queue ? queue : next->previous;
    queue->previous->next = next->previous = queue;
    connection->queues = next;
    if (atomic_load(&connection->gone) != 0 && connection->deaf)
        queue_fail(queue, 0, "rank %u is gone", connection->rank);
    pthread_mutex_unlock(&transport->lock);
    *table = &queue->table;
    return CAMPANILE_STATUS_OK;
}

/* ---- What the progress thread does to a queue ---- */

struct queue *queue_find(struct connection *connection, uint32_t number)
{
    struct queue *queue = connection->queues;
    if (queue == NULL)
        return NULL;
    do {
        if (queue->number == number)
            return queue;
        queue = queue->next;
    } while (queue != connection->queues);
    return NULL;
}

void queue_sent(struct queue *queue, bool fetches)
{
    uint64_t sent = load(&queue->sent) + 1;
    if (fetches)
        queue->fetches = sent;
    queue->done = 0;
    store(&queue->sent, sent);
    /* Sources have been copied into the stream. Results come later: behind one, only what is acknowledged is complete. */
    if (load(&queue->acknowledged) >= queue->fetches)
        store(&queue->local, sent);
}

void queue_acknowledge(struct queue *queue, uint64_t position)
{
    store(&queue->acknowledged, position);
    uint64_t local = position >= queue->fetches ? load(&queue->sent) : position;
    if (local > load(&queue->local))
        store(&queue->local, local);
}

void queue_fail(struct queue *queue, uint64_t position, const char *reason, ...)
{
    if (atomic_load(&queue->failure) != CAMPANILE_STATUS_OK)
        return;
    va_list arguments;
    va_start(arguments, reason);
    vsnprintf(queue->reason, sizeof queue->reason, reason, arguments);
    va_end(arguments);
    queue->failed_at = position;
    atomic_store_explicit(&queue->failure, CAMPANILE_STATUS_COMPLETION, memory_order_release);
}

void queues_ring(struct connection *connection)
{
    struct queue *queue = connection->queues;
    if (queue == NULL)
        return;
    do {
        uint64_t before;
        advance(&queue->rung, load(&queue->written), &before);
        queue = queue->next;
    } while (queue != connection->queues);
}

void queues_fail(struct connection *connection, const char *reason)
{
    struct queue *queue = connection->queues;
    if (queue == NULL)
        return;
    do {
        queue_fail(queue, load(&queue->acknowledged), "%s", reason);
        queue = queue->next;
    } while (queue != connection->queues);
}

bool queue_ready(struct queue *queue)
{
    uint64_t sent = load(&queue->sent);
    if (sent == load(&queue->rung) || atomic_load(&queue->failure) != CAMPANILE_STATUS_OK)
        return false;
    /* The bytes of a get are read when its answer is sent, which may be after later messages were executed: a fence
     * behind one waits for the answer. All else is executed in the order in which it is sent. */
    bool fence = queue->slots[sent % queue->depth].op.kind == CAMPANILE_OP_FENCE;
    return !fence || load(&queue->acknowledged) >= queue->fetches;
}

bool queues_ready(struct connection *connection)
{
    struct queue *queue = connection->queues;
    if (queue == NULL)
        return false;
    do {
        if (queue_ready(queue))
            return true;
        queue = queue->next;
    } while (queue != connection->queues);
    return false;
}

bool queues_idle(struct connection *connection)
{
    struct queue *queue = connection->queues;
    if (queue == NULL)
        return true;
    do {
        if (load(&queue->acknowledged) < load(&queue->rung) && atomic_load(&queue->failure) == CAMPANILE_STATUS_OK)
            return false;
        queue = queue->next;
    } while (queue != connection->queues);
    return true;
}
