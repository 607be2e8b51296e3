/* One rank's end: its table, its memory, and how it ends. */

#include "mailbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((uint64_t)2 << 20)

/* First guess, of two cores of one machine: two wake-ups, and three copies through the caches. */
static const CampanileCost cost = {.latency_ps = 20000000, .bytes_per_s = UINT64_C(1500000000)};

/* ---- What it gives ---- */

static int32_t caps(void *ctx, uint32_t peer_class, uint32_t memory, uint32_t op, CampanileCaps *caps)
{
    (void)ctx;
    if (peer_class == CAMPANILE_CLASS_REMOTE || memory != CAMPANILE_MEMORY_HOST || op > CAMPANILE_OP_FENCE)
        return 0;
    caps->max_bytes = INT64_MAX;
    caps->load_store = 0;
    caps->ordered_puts = 1;
    caps->inline_bytes = op == CAMPANILE_OP_PUT_INLINE ? CAMPANILE_INLINE_BYTES : 0;
    caps->alignment = 1;
    caps->signal_bits = 64;
    caps->signal_flags =
        CAMPANILE_SIGNAL_SET_NATIVE | CAMPANILE_SIGNAL_ADD_NATIVE | CAMPANILE_SIGNAL_STRONG_NATIVE;
    caps->atomicity = CAMPANILE_ATOMICITY_CPU;
    caps->cost = cost;
    return 1;
}

static int32_t reach(void *ctx, uint32_t peer, CampanileText node, CampanileCost *first_guess, const CampanileSink *reason)
{
    struct transport *transport = ctx;
    *first_guess = cost;
    if (node.bytes == transport->node_bytes && memcmp(node.data, transport->node, node.bytes) == 0)
        return 1;
    write_text(reason, "rank %u is on node %.*s, this rank on %.*s: a socket of this kind stays on its node", peer,
               (int)node.bytes, node.data, (int)transport->node_bytes, transport->node);
    return 0;
}

static int32_t address(void *ctx, const CampanileSink *address, CampanileError *error)
{
    struct transport *transport = ctx;
    (void)error;
    address->write(address->ctx, transport->address, transport->address_bytes);
    return CAMPANILE_STATUS_OK;
}

static int32_t connect_peers(void *ctx, const CampanilePeer *peers, size_t count, CampanileEndpoint *endpoints,
                             CampanileRequest *request, CampanileError *error)
{
    (void)endpoints; /* The request's test writes them. */
    return connection_start(ctx, peers, count, request, error);
}

static int32_t queue(void *ctx, uint32_t target, uint32_t number, const CampanileQueueOptions *options,
                     const CampanileQueue **queue, CampanileError *error)
{
    return queue_create(ctx, target, number, options, queue, error);
}

/* ---- Memory ---- */

/* What a handle of this rank's own region points to. It begins with what word_wait needs. */
struct own_region {
    CampanileRegion region;
    size_t mapped; /* bytes of our own mapping, or 0: the caller's memory */
};

static int32_t memory_error(CampanileError *error, const char *reason)
{
    return refuse(error, CAMPANILE_STATUS_MEMORY, NULL, "%s", reason);
}

static int32_t add_region(struct transport *transport, void *address, uint64_t bytes, size_t mapped,
                          CampanileRegion *region, CampanileError *error)
{
    struct own_region *own = calloc(1, sizeof *own);
    if (own == NULL)
        return memory_error(error, "no memory for its record");
    uint64_t key = region_add(&transport->locals, address, bytes, 0, transport->rank);
    if (key == 0) {
        free(own);
        return memory_error(error, "65536 regions are registered already; release some");
    }
    region->key = key;
    region->address = address;
    region->handle = own;
    own->region = *region;
    own->mapped = mapped;
    return CAMPANILE_STATUS_OK;
}

static int32_t allocate(void *ctx, uint64_t bytes, uint32_t memory, CampanileRegion *region, CampanileRequest *request,
                        CampanileError *error)
{
    struct transport *transport = ctx;
    (void)request; /* It ends at once. */
    if (memory != CAMPANILE_MEMORY_HOST)
        return memory_error(error, "a mailbox has host memory only");
    /* A region of no bytes is legal; a mapping of none is not. */
    size_t mapped = bytes == 0 ? 1 : bytes;
    void *address = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED)
        return memory_error(error, strerror(errno));
    if (transport->huge_pages == CAMPANILE_HUGE_PAGES_AUTO && mapped >= HUGE_PAGE_BYTES)
        madvise(address, mapped, MADV_HUGEPAGE); /* A wish. */
    int32_t status = add_region(transport, address, bytes, mapped, region, error);
    if (status != CAMPANILE_STATUS_OK)
        munmap(address, mapped);
    return status;
}

static int32_t register_memory(void *ctx, void *address, uint64_t bytes, uint32_t memory, CampanileRegion *region,
                               CampanileRequest *request, CampanileError *error)
{
    (void)request;
    if (memory != CAMPANILE_MEMORY_HOST)
        return memory_error(error, "a mailbox takes host memory only");
    return add_region(ctx, address, bytes, 0, region, error);
}

static void release(void *ctx, void *region)
{
    struct transport *transport = ctx;
    struct own_region *own = region;
    region_remove(&transport->locals, own->region.key);
    if (own->mapped > 0)
        munmap(own->region.address, own->mapped);
    free(own);
}

/* A key blob: who exports, and what its peers put into messages. */
struct export {
    uint64_t token; /* the transport's: a key of an earlier one of the same rank is refused */
    uint64_t key;
    uint64_t bytes;
};

static int32_t export_key(void *ctx, void *region, const uint32_t *peers, size_t count, const CampanileSink *blob,
                          CampanileError *error)
{
    struct transport *transport = ctx;
    struct own_region *own = region;
    for (size_t i = 0; i < count; i++)
        if (connection_to(transport, peers[i]) == NULL)
            return refuse(error, CAMPANILE_STATUS_UNSUPPORTED, "export", "rank %u is not connected", peers[i]);
    struct region *entry;
    if (region_pin(&transport->locals, own->region.key, 0, 0, &entry) != FOUND)
        return refuse(error, CAMPANILE_STATUS_INVALID, "export", "the region is released");
    struct export export = {.token = transport->token, .key = own->region.key, .bytes = entry->bytes};
    region_unpin(entry);
    blob->write(blob->ctx, &export, sizeof export);
    return CAMPANILE_STATUS_OK;
}

static int32_t import_key(void *ctx, uint32_t peer, CampanileBytes blob, CampanileRemoteRegion *region,
                          CampanileRequest *request, CampanileError *error)
{
    struct transport *transport = ctx;
    struct connection *connection = connection_to(transport, peer);
    struct export export;
    (void)request;
    error->numbers[0] = peer;
    if (connection == NULL)
        return refuse(error, CAMPANILE_STATUS_PEER_GONE, "importing a region before connecting to it", "not connected");
    if (blob.bytes != sizeof export)
        return refuse(error, CAMPANILE_STATUS_BAD_PEER_DATA, "key blob", "one of a mailbox has %zu bytes, this one %zu",
                      sizeof export, blob.bytes);
    memcpy(&export, blob.data, sizeof export);
    if (export.token != connection->token)
        return refuse(error, CAMPANILE_STATUS_BAD_PEER_DATA, "key blob",
                      "it is of another transport, or of one that this rank had before");
    if (atomic_load(&connection->gone) != 0)
        return refuse(error, CAMPANILE_STATUS_PEER_GONE, "importing its memory", "it is gone");
    uint64_t key = region_add(&transport->remotes, NULL, export.bytes, export.key, peer);
    if (key == 0)
        return memory_error(error, "65536 regions are imported already; release some");
    region->key = key;
    region->bytes = export.bytes;
    region->handle = (void *)(uintptr_t)key;
    region->memory = CAMPANILE_MEMORY_HOST;
    return CAMPANILE_STATUS_OK;
}

static void release_remote(void *ctx, void *region)
{
    struct transport *transport = ctx;
    region_remove(&transport->remotes, (uint64_t)(uintptr_t)region);
}

/* ---- Failure ---- */

static uint64_t fault(void *ctx)
{
    return fault_standing(ctx);
}

static uint64_t report(void *ctx, uint64_t fault)
{
    return fault_report(ctx, fault);
}

static uint32_t gone(void *ctx, uint32_t peer)
{
    struct connection *connection = connection_to(ctx, peer);
    return connection == NULL ? 0 : atomic_load_explicit(&connection->gone, memory_order_acquire);
}

/* Of the ends that were not told yet, the first. */
static uint32_t poll_event(void *ctx, uint32_t *peer)
{
    struct transport *transport = ctx;
    struct connection *first = NULL;
    for (uint32_t rank = 0; rank < transport->connections_count; rank++) {
        struct connection *connection = connection_to(transport, rank);
        uint32_t ended = connection == NULL ? 0 : atomic_load(&connection->ended);
        if (ended != 0 && !atomic_load(&connection->told_end) && !atomic_load(&connection->masked) &&
            (first == NULL || ended < atomic_load(&first->ended)))
            first = connection;
    }
    if (first == NULL || atomic_exchange(&first->told_end, true))
        return CAMPANILE_EVENT_NONE;
    *peer = first->rank;
    return atomic_load(&first->gone) == CAMPANILE_FAULT_LEFT ? CAMPANILE_EVENT_LEFT : CAMPANILE_EVENT_DIED;
}

static void mask(void *ctx, uint32_t peer)
{
    rank_mask(ctx, peer);
}

static int32_t signal_wait(void *ctx, const CampanileWait *wait, uint64_t *seen, CampanileError *error)
{
    return word_wait(ctx, wait, seen, error);
}

/* ---- The end ---- */

static bool idle(struct transport *transport)
{
    bool idle = true;
    pthread_mutex_lock(&transport->lock);
    for (uint32_t rank = 0; rank < transport->connections_count; rank++)
        if (transport->connections[rank] != NULL)
            idle = idle && queues_idle(transport->connections[rank]);
    pthread_mutex_unlock(&transport->lock);
    return idle;
}

/* Rings what is written and waits until it is executed. */
static int32_t drain(struct transport *transport, CampanileError *error)
{
    uint64_t start = now_ns(), deadline = deadline_after(start, transport->timeout_ns);
    pthread_mutex_lock(&transport->lock);
    for (uint32_t rank = 0; rank < transport->connections_count; rank++)
        if (transport->connections[rank] != NULL)
            queues_ring(transport->connections[rank]);
    pthread_mutex_unlock(&transport->lock);
    progress_ring(transport);
    for (;;) {
        uint32_t turn = waiters_look(transport);
        if (idle(transport))
            return CAMPANILE_STATUS_OK;
        uint64_t now = now_ns();
        if (now >= deadline) {
            error->numbers[0] = now - start;
            return refuse(error, CAMPANILE_STATUS_TIMEOUT, "mailbox: what is queued to be executed", "a peer does not go on");
        }
        waiters_sleep(transport, turn, deadline);
    }
}

static int32_t shut_down(void *ctx, uint32_t mode, CampanileError *error)
{
    struct transport *transport = ctx;
    if (atomic_exchange(&transport->ended, true))
        return CAMPANILE_STATUS_OK;
    if (mode == CAMPANILE_SHUTDOWN_ABORT) {
        fault_report(transport, CAMPANILE_FAULT(CAMPANILE_FAULT_DIED, transport->rank, transport->rank));
        pthread_mutex_lock(&transport->lock);
        for (uint32_t rank = 0; rank < transport->connections_count; rank++)
            if (transport->connections[rank] != NULL)
                queues_fail(transport->connections[rank], "this rank has aborted");
        pthread_mutex_unlock(&transport->lock);
        return CAMPANILE_STATUS_OK;
    }
    int32_t status = drain(transport, error);
    atomic_store_explicit(&transport->leaving, true, memory_order_release);
    progress_ring(transport);
    return status;
}

static void close_transport(void *ctx)
{
    struct transport *transport = ctx;
    progress_end(transport);
    for (uint32_t rank = 0; rank < transport->connections_count; rank++)
        if (transport->connections[rank] != NULL)
            connection_end(transport->connections[rank]);
    free(transport->connections);
    if (transport->listener >= 0)
        close(transport->listener);
    if (transport->doorbell >= 0)
        close(transport->doorbell);
    regions_end(&transport->locals);
    regions_end(&transport->remotes);
    pthread_cond_destroy(&transport->bell);
    pthread_mutex_destroy(&transport->bell_lock);
    pthread_mutex_destroy(&transport->ask_lock);
    pthread_mutex_destroy(&transport->lock);
    free(transport->node);
    free(transport);
}

int32_t transport_open(const CampanileOpenOptions *options, const CampanileTransport **table, CampanileError *error)
{
    struct transport *transport = calloc(1, sizeof *transport);
    if (transport == NULL)
        return refuse(error, CAMPANILE_STATUS_FAILED, "opening", "no memory");
    transport->rank = options->rank;
    transport->timeout_ns = options->timeout_ns;
    transport->huge_pages = options->huge_pages;
    transport->listener = transport->doorbell = -1;
    pthread_mutex_init(&transport->lock, NULL);
    pthread_mutex_init(&transport->bell_lock, NULL);
    pthread_mutex_init(&transport->ask_lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&transport->bell, &monotonic);
    pthread_condattr_destroy(&monotonic);

    /* The options are ours until this call returns: the text is copied. */
    transport->node = malloc(options->node.bytes + 1);
    transport->node_bytes = options->node.bytes;
    bool locals = regions_init(&transport->locals), remotes = regions_init(&transport->remotes);
    if (transport->node == NULL || !locals || !remotes) {
        close_transport(transport);
        return refuse(error, CAMPANILE_STATUS_FAILED, "opening", "no memory");
    }
    memcpy(transport->node, options->node.data, options->node.bytes);
    transport->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (transport->doorbell < 0)
        refuse(error, CAMPANILE_STATUS_FAILED, "opening", "eventfd: %s", strerror(errno));
    else
        transport->listener = listener_open(transport, error);
    if (transport->listener < 0) {
        close_transport(transport);
        return CAMPANILE_STATUS_FAILED;
    }
    transport->table = (CampanileTransport){
        .struct_size = sizeof transport->table,
        .ctx = transport,
        .close = close_transport,
        .caps = caps,
        .reach = reach,
        .address = address,
        .connect = connect_peers,
        .allocate = allocate,
        .release = release,
        .export_key = export_key,
        .import_key = import_key,
        .release_remote = release_remote,
        .queue = queue,
        .fault = fault,
        .report = report,
        .gone = gone,
        .register_memory = register_memory,
        .signal_wait = signal_wait,
        .poll_event = poll_event,
        .mask = mask,
        .shutdown = shut_down,
        /* No load / store: no map and no notify. Kernels cannot post here. */
    };
    *table = &transport->table;
    return CAMPANILE_STATUS_OK;
}
