/* A small transport in C: the ranks are threads of one process.
 *
 * Posting executes: by the time a post returns its operations are done, so every mark is complete, puts are in order and
 * every signal is strong. One lock guards all state of the process. There are no inline puts, gets and atomics, and the
 * caps say so; waits, events, snapshots and the rest are left to the host. docs/src/guide/transport.md walks through it. */

#include <campanile/transport.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT(literal) {literal, sizeof(literal) - 1}
#define MOST_REGIONS 65536u
#define MOST_RANKS 64u /* that are open in the process */

/* One rank's end. Peers hold it, so that it can be asked about after its end. */
struct rank {
    CampanileTransport table;
    uint64_t id; /* never used again in this process */
    uint32_t number, holders;
    struct rank *peers[MOST_RANKS]; /* by rank, itself included */
    _Atomic uint32_t masked[MOST_RANKS];
    _Atomic uint64_t fault;
    _Atomic uint32_t gone, shut;
};
/* Memory of a rank, or an imported region: then `target` is the key that its owner uses. */
struct region {
    uint64_t key, target, bytes;
    struct rank *user; /* who may use this key */
    unsigned char *address, *allocated; /* NULL: not ours to free */
};
struct queue {
    CampanileQueue table;
    struct rank *rank, *peer;
    uint64_t depth;
    _Atomic uint64_t posted; /* the mark of the last post */
};
/* What an address and a key blob hold. */
struct place {
    uint64_t process, entry, id, key, bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rank ranks[MOST_RANKS];
static struct region regions[MOST_REGIONS];
static _Atomic uint64_t numbers; /* of ranks, uses of regions, and queues: never the same one twice */

/* Says what is wrong and what is allowed. Only errors fill the record, so success costs nothing. */
static int32_t refuse(CampanileError *error, int32_t status, uint64_t number, const char *what, const char *reason)
{
    error->numbers[0] = number;
    snprintf(error->what, sizeof error->what, "%s", what);
    snprintf(error->reason, sizeof error->reason, "%s", reason);
    return status;
}

/* ---- Memory. A key is (number, entry), and a number is not used again: a stale key names nothing. ---- */

static struct region *find(uint64_t key, struct rank *user)
{
    struct region *region = &regions[key % MOST_REGIONS];
    return region->user == user && region->key == key ? region : NULL;
}

static struct region *add(struct region new)
{
    struct region *added = NULL;
    pthread_mutex_lock(&lock);
    for (uint64_t i = 0; i < MOST_REGIONS && added == NULL; i++)
        if (regions[i].user == NULL) {
            added = &regions[i];
            *added = new;
            added->key = ++numbers * MOST_REGIONS + i;
        }
    pthread_mutex_unlock(&lock);
    return added;
}

static int32_t register_memory(void *ctx, void *address, uint64_t bytes, uint32_t memory, CampanileRegion *region,
                               CampanileRequest *unused, CampanileError *error)
{
    (void)unused; /* The call ends at once. */
    struct region new = {.bytes = bytes, .user = ctx, .address = address};
    struct region *added = memory == CAMPANILE_MEMORY_HOST && address != NULL ? add(new) : NULL;
    if (added == NULL)
        return refuse(error, CAMPANILE_STATUS_MEMORY, 0, "", "there is host memory only, in at most 65536 regions");
    *region = (CampanileRegion){region->struct_size, added->key, address, added};
    return CAMPANILE_STATUS_OK;
}

static int32_t allocate(void *ctx, uint64_t bytes, uint32_t memory, CampanileRegion *region, CampanileRequest *request,
                        CampanileError *error)
{
    void *address = memory == CAMPANILE_MEMORY_HOST ? calloc(1, bytes > 0 ? bytes : 1) : NULL;
    int32_t status = register_memory(ctx, address, bytes, memory, region, request, error);
    if (status == CAMPANILE_STATUS_OK)
        ((struct region *)region->handle)->allocated = address;
    else
        free(address);
    return status;
}

/* Of own and imported regions. Operations run under the lock: once this returns nobody touches the memory. */
static void release(void *ctx, void *handle)
{
    (void)ctx;
    struct region *region = handle;
    pthread_mutex_lock(&lock);
    free(region->allocated);
    *region = (struct region){0};
    pthread_mutex_unlock(&lock);
}

static struct rank *peer_of(struct rank *rank, uint32_t peer)
{
    return peer < MOST_RANKS ? rank->peers[peer] : NULL;
}

static int32_t export_key(void *ctx, void *handle, const uint32_t *peers, size_t count, const CampanileSink *blob,
                          CampanileError *error)
{
    struct region *region = handle;
    struct place place = {.id = ((struct rank *)ctx)->id, .key = region->key, .bytes = region->bytes};
    for (size_t i = 0; i < count; i++)
        if (peer_of(ctx, peers[i]) == NULL)
            return refuse(error, CAMPANILE_STATUS_UNSUPPORTED, 0, "export", "only to connected peers");
    blob->write(blob->ctx, &place, sizeof place);
    return CAMPANILE_STATUS_OK;
}

static int32_t import_key(void *ctx, uint32_t peer, CampanileBytes blob, CampanileRemoteRegion *region,
                          CampanileRequest *unused, CampanileError *error)
{
    (void)unused;
    struct place place;
    struct rank *owner = peer_of(ctx, peer);
    /* A blob is somebody's word: it must be of this very end of the peer, and nothing in it is taken for an address. */
    if (owner == NULL || blob.bytes != sizeof place || (memcpy(&place, blob.data, sizeof place), place.id != owner->id))
        return refuse(error, CAMPANILE_STATUS_BAD_PEER_DATA, peer, "key blob", "it is not one of that rank");
    struct region *added = add((struct region){.target = place.key, .bytes = place.bytes, .user = ctx});
    if (added == NULL)
        return refuse(error, CAMPANILE_STATUS_MEMORY, 0, "", "at most 65536 regions");
    *region = (CampanileRemoteRegion){region->struct_size, added->key, added->bytes, added, CAMPANILE_MEMORY_HOST, 0};
    return CAMPANILE_STATUS_OK;
}

/* ---- Queues ---- */

/* The first byte of a range of this rank's memory, or of the peer's; NULL if it is stale or the range is outside. */
static unsigned char *range(struct region *region, uint64_t offset, uint64_t bytes)
{
    int inside = region != NULL && region->address != NULL && offset <= region->bytes && bytes <= region->bytes - offset;
    return inside ? region->address + offset : NULL;
}

static unsigned char *local(struct queue *queue, CampanileLocalAddress at, uint64_t bytes)
{
    return range(find(at.region, queue->rank), at.offset, bytes);
}

static unsigned char *remote(struct queue *queue, CampanileRemoteAddress at, uint64_t bytes)
{
    struct region *import = find(at.region, queue->rank);
    return import == NULL ? NULL : range(find(import->target, queue->peer), at.offset, bytes);
}

/* Whether an operation is legal; executes it if `run`. One function does both, so that they cannot differ. */
static int execute(struct queue *queue, const CampanileOp *op, int run)
{
    const CampanilePut *put = &op->payload.put; /* A put with a signal begins as a put does. */
    const CampanileSignalUpdate *signal = op->kind == CAMPANILE_OP_SIGNAL       ? &op->payload.signal
                                          : op->kind == CAMPANILE_OP_PUT_SIGNAL ? &op->payload.put_signal.signal
                                                                                : NULL;
    unsigned char *from = NULL, *to = NULL;
    _Atomic uint64_t *word = NULL;
    if (op->kind == CAMPANILE_OP_PUT || op->kind == CAMPANILE_OP_PUT_SIGNAL) {
        if ((from = local(queue, put->source, put->bytes)) == NULL || (to = remote(queue, put->target, put->bytes)) == NULL)
            return 0;
    } else if (op->kind != CAMPANILE_OP_SIGNAL) {
        return op->kind == CAMPANILE_OP_FENCE; /* In order anyway. */
    }
    if (signal != NULL && (signal->action > CAMPANILE_SIGNAL_ADD || signal->target.offset % 8 != 0 ||
                           (word = (void *)remote(queue, signal->target, sizeof *word)) == NULL || (uintptr_t)word % 8 != 0))
        return 0;
    if (run && to != NULL)
        memmove(to, from, put->bytes); /* A put to oneself may overlap. */
    /* Release: whoever acquires the word sees the bytes. */
    if (run && word != NULL && signal->action == CAMPANILE_SIGNAL_SET)
        atomic_store_explicit(word, signal->value, memory_order_release);
    else if (run && word != NULL)
        atomic_fetch_add_explicit(word, signal->value, memory_order_release);
    return 1;
}

static int32_t post(void *ctx, const CampanileOp *ops, size_t count, uint64_t *mark, CampanileError *error)
{
    struct queue *queue = ctx;
    size_t legal = 0, done = 0;
    pthread_mutex_lock(&lock);
    /* All of a list or nothing: every operation is checked before the first is executed. */
    while (legal < count && execute(queue, &ops[legal], 0))
        legal++;
    if (legal == count && count <= queue->depth) {
        while (done < count)
            execute(queue, &ops[done++], 1);
        *mark = atomic_fetch_add(&queue->posted, count) + count;
    }
    pthread_mutex_unlock(&lock);
    if (legal < count)
        return refuse(error, CAMPANILE_STATUS_INVALID, legal, "", "it is not known here, or names a region that does not "
                      "exist (any more), a range outside it, or a word that is not 8-byte aligned");
    if (done == count)
        return CAMPANILE_STATUS_OK;
    error->numbers[1] = queue->depth;
    return refuse(error, CAMPANILE_STATUS_TOO_LARGE, count, "", "");
}

static int32_t test(void *ctx, uint64_t mark, uint32_t level, CampanileError *error)
{
    if (level > CAMPANILE_LEVEL_REMOTE_CPU)
        return refuse(error, CAMPANILE_STATUS_UNSUPPORTED, 0, "a device", "memory becomes visible to CPUs");
    if (mark <= atomic_load(&((struct queue *)ctx)->posted))
        return 1;
    return refuse(error, CAMPANILE_STATUS_FOREIGN_TICKET, mark, "", "");
}

static int64_t progress(void *ctx, CampanileError *error)
{
    (void)ctx, (void)error;
    return 0; /* Nothing is ever left to do. */
}

static int32_t make_queue(void *ctx, uint32_t target, uint32_t number, const CampanileQueueOptions *options,
                          const CampanileQueue **table, CampanileError *error)
{
    struct rank *peer = target == CAMPANILE_TARGET_PEER ? peer_of(ctx, number) : NULL;
    int good = peer != NULL && options->initiator == CAMPANILE_INITIATOR_HOST;
    struct queue *queue = good && options->depth > 0 && options->depth <= 65536 ? calloc(1, sizeof *queue) : NULL;
    if (queue == NULL)
        return refuse(error, CAMPANILE_STATUS_UNSUPPORTED, 0, "queue", "from the host to a peer, with 1 to 65536 slots");
    *queue = (struct queue){{.struct_size = sizeof queue->table, .ctx = queue, .number = ++numbers, .destroy = free,
                             .post = post, .test = test, .progress = progress}, ctx, peer, options->depth, 0};
    *table = &queue->table;
    return CAMPANILE_STATUS_OK;
}

/* ---- The transport ---- */

/* `reach` sees a node, not a process: a cost that nobody chooses keeps selection from taking this for a job of processes. */
static const CampanileCost cost = {.latency_ps = UINT64_C(1000000000), .bytes_per_s = UINT64_C(8000000000)};

static int32_t caps(void *ctx, uint32_t peer_class, uint32_t memory, uint32_t op, CampanileCaps *caps)
{
    (void)ctx;
    if (peer_class == CAMPANILE_CLASS_REMOTE || memory != CAMPANILE_MEMORY_HOST ||
        (op != CAMPANILE_OP_PUT && op != CAMPANILE_OP_PUT_SIGNAL && op != CAMPANILE_OP_FENCE))
        return 0;
    /* Only what is kept: each of these has cases in `campanile check`. What is not set is 0. */
    caps->max_bytes = INT64_MAX;
    caps->ordered_puts = 1;
    caps->alignment = 1;
    caps->signal_bits = 64;
    caps->signal_flags = CAMPANILE_SIGNAL_SET_NATIVE | CAMPANILE_SIGNAL_ADD_NATIVE | CAMPANILE_SIGNAL_STRONG_NATIVE;
    caps->atomicity = CAMPANILE_ATOMICITY_CPU;
    caps->cost = cost;
    return 1;
}

static int32_t reach(void *ctx, uint32_t peer, CampanileText node, CampanileCost *guess, const CampanileSink *reason)
{
    (void)ctx, (void)peer, (void)node, (void)reason; /* Whether it is this process shows in its address. */
    *guess = cost;
    return 1;
}

static int32_t address(void *ctx, const CampanileSink *address, CampanileError *error)
{
    (void)error;
    struct rank *rank = ctx;
    struct place place = {.process = (uint64_t)getpid(), .entry = (uint64_t)(rank - ranks), .id = rank->id};
    address->write(address->ctx, &place, sizeof place);
    return CAMPANILE_STATUS_OK;
}

/* A connect has met all peers once each of them has called it too: nobody is used before it is ready. */
static int32_t connected(void *ctx, void *result, CampanileError *error)
{
    struct rank *rank = ctx;
    CampanileEndpoint *endpoints = result;
    int32_t status = CAMPANILE_STATUS_OK;
    pthread_mutex_lock(&lock);
    for (uint32_t number = 0; number < MOST_RANKS; number++) {
        struct rank *peer = rank->peers[number];
        if (peer == NULL)
            continue;
        /* One that has called and left since was met. */
        if (peer->peers[rank->number] != rank) {
            status = CAMPANILE_STATUS_PENDING;
            if (atomic_load(&peer->gone) != 0) {
                status = refuse(error, CAMPANILE_STATUS_PEER_GONE, number, "connecting to it", "");
                break;
            }
        }
        *endpoints++ = (CampanileEndpoint){number, peer == rank ? CAMPANILE_CLASS_OWN : CAMPANILE_CLASS_NODE};
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static void missing(void *ctx, const CampanileSink *text)
{
    struct rank *rank = ctx;
    char name[32];
    text->write(text->ctx, "connecting to", 13);
    for (uint32_t number = 0; number < MOST_RANKS; number++)
        if (rank->peers[number] != NULL && rank->peers[number]->peers[rank->number] != rank)
            text->write(text->ctx, name, (size_t)snprintf(name, sizeof name, " rank %u", number));
}

static int32_t connect_peers(void *ctx, const CampanilePeer *peers, size_t count, CampanileEndpoint *endpoints,
                             CampanileRequest *request, CampanileError *error)
{
    (void)endpoints; /* The request's test writes them. */
    struct rank *rank = ctx;
    int32_t status = CAMPANILE_STATUS_PENDING;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count && status == CAMPANILE_STATUS_PENDING; i++) {
        struct place place = {0};
        if (peers[i].address.bytes == sizeof place)
            memcpy(&place, peers[i].address.data, sizeof place);
        struct rank *peer = &ranks[place.entry % MOST_RANKS];
        if (place.process != (uint64_t)getpid() || peers[i].rank >= MOST_RANKS) {
            status = refuse(error, CAMPANILE_STATUS_BAD_PEER_DATA, peers[i].rank, "address", "it is no rank of this process");
        } else if (peer->id != place.id) {
            status = refuse(error, CAMPANILE_STATUS_PEER_GONE, peers[i].rank, "connecting to it", "");
        } else {
            peer->holders++;
            rank->peers[peers[i].rank] = peer;
        }
    }
    pthread_mutex_unlock(&lock);
    request->ctx = rank;
    request->test = connected;
    request->describe = missing;
    return status;
}

/* ---- Failure: one word a rank; the first fault stands, and is told to every peer. ---- */

static int counts(struct rank *rank, uint64_t fault)
{
    uint32_t culprit = CAMPANILE_FAULT_CULPRIT(fault);
    return fault != 0 && !(culprit < MOST_RANKS && atomic_load(&rank->masked[culprit]));
}

static uint64_t fault(void *ctx)
{
    struct rank *rank = ctx;
    uint64_t fault = atomic_load_explicit(&rank->fault, memory_order_acquire);
    return counts(rank, fault) ? fault : 0;
}

static uint64_t report(void *ctx, uint64_t reported)
{
    struct rank *rank = ctx;
    pthread_mutex_lock(&lock); /* One report at a time, so that all ranks name the same. */
    uint64_t first = fault(rank) != 0 ? fault(rank) : reported;
    atomic_store(&rank->fault, first);
    for (uint32_t peer = 0; peer < MOST_RANKS; peer++)
        if (rank->peers[peer] != NULL && !counts(rank, atomic_load(&rank->peers[peer]->fault)))
            atomic_store(&rank->peers[peer]->fault, first);
    pthread_mutex_unlock(&lock);
    return first;
}

/* A fault of a masked rank does not count, and gives way to a later one. */
static void mask(void *ctx, uint32_t peer)
{
    if (peer < MOST_RANKS)
        atomic_store(&((struct rank *)ctx)->masked[peer], 1);
}

static uint32_t gone(void *ctx, uint32_t peer)
{
    struct rank *other = peer_of(ctx, peer);
    return other != NULL ? atomic_load(&other->gone) : 0;
}

static int32_t shut_down(void *ctx, uint32_t mode, CampanileError *error)
{
    (void)error;
    struct rank *rank = ctx;
    if (atomic_exchange(&rank->shut, 1))
        return CAMPANILE_STATUS_OK;
    if (mode == CAMPANILE_SHUTDOWN_DRAIN) /* Nothing is queued, so there is nothing to wait for. */
        atomic_store(&rank->gone, CAMPANILE_FAULT_LEFT);
    else
        report(rank, CAMPANILE_FAULT(CAMPANILE_FAULT_DIED, rank->number, rank->number));
    return CAMPANILE_STATUS_OK;
}

static void close_rank(void *ctx)
{
    struct rank *rank = ctx;
    uint32_t here = 0;
    atomic_compare_exchange_strong(&rank->gone, &here, CAMPANILE_FAULT_DIED); /* Unless it left in good order. */
    pthread_mutex_lock(&lock);
    for (uint32_t peer = 0; peer < MOST_RANKS; peer++)
        if (rank->peers[peer] != NULL)
            rank->peers[peer]->holders--; /* Its entry is used again when nobody holds it. */
    rank->holders--;
    pthread_mutex_unlock(&lock);
}

/* ---- The plugin ---- */

static int32_t probe(void *ctx, const CampanileDeviceSink *devices, CampanileError *error)
{
    (void)ctx, (void)error;
    devices->device(devices->ctx, (CampanileText)TEXT("process"), 1, (CampanileText)TEXT("threads of one process"));
    return CAMPANILE_STATUS_OK;
}

static int32_t open_rank(void *ctx, CampanileText device, const CampanileOpenOptions *options,
                         const CampanileTransport **table, CampanileError *error)
{
    (void)ctx;
    struct rank *rank = ranks;
    if (device.bytes != 7 || memcmp(device.data, "process", 7) != 0)
        return refuse(error, CAMPANILE_STATUS_NO_DEVICE, 0, "process", "");
    pthread_mutex_lock(&lock);
    while (rank < &ranks[MOST_RANKS] && rank->holders > 0)
        rank++;
    if (rank < &ranks[MOST_RANKS])
        *rank = (struct rank){
            {.struct_size = sizeof rank->table, .ctx = rank, .close = close_rank, .caps = caps, .reach = reach,
             .address = address, .connect = connect_peers, .allocate = allocate, .release = release,
             .export_key = export_key, .import_key = import_key, .release_remote = release, .queue = make_queue,
             .fault = fault, .report = report, .gone = gone, .register_memory = register_memory, .mask = mask, .shutdown = shut_down},
            .id = ++numbers, .number = options->rank, .holders = 1};
    pthread_mutex_unlock(&lock);
    if (rank == &ranks[MOST_RANKS])
        return refuse(error, CAMPANILE_STATUS_FAILED, 0, "opening", "64 ranks are open in this process already");
    *table = &rank->table;
    return CAMPANILE_STATUS_OK;
}

const CampanilePlugin *campanile_transport_plugin(uint32_t host_major)
{
    static const CampanilePlugin plugin = {
        .magic = CAMPANILE_MAGIC, .abi_major = CAMPANILE_MAJOR, .abi_minor = CAMPANILE_MINOR, .struct_size = sizeof plugin,
        .name = TEXT("inproc-c"), .version = TEXT("1.0.0"), .vendor = TEXT("me"), .summary = TEXT("an example in C"),
        .probe = probe, .open = open_rank,
    };
    return host_major == CAMPANILE_MAJOR ? &plugin : NULL;
}
