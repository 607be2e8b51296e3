/* Drives the mailbox from C, as a host does: ranks of one process, over the table alone. Built together with the transport,
 * so that a sanitizer sees both. Several threads post to several queues, memory comes and goes under operations, a rank
 * ends without a word. Ends with 0 if all went as promised. */

#define _POSIX_C_SOURCE 200809L

#include <campanile/transport.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS 2
#define THREADS 3
#define ROUNDS 200
#define BLOCK ((size_t)200000)
#define WORDS 16
#define TIMEOUT_NS UINT64_C(20000000000)

#define EXPECT(condition)                                                          \
    do {                                                                           \
        if (!(condition)) {                                                        \
            fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

struct blob {
    unsigned char data[256];
    size_t bytes;
};

struct rank {
    const CampanileTransport *transport;
    CampanileRegion region;
    CampanileRemoteRegion remote[RANKS];
    const CampanileQueue *queues[RANKS][2];
    struct blob address;
};

static struct rank ranks[RANKS];

static uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static CampanileError fresh_error(void)
{
    CampanileError error;
    memset(&error, 0, sizeof error);
    error.struct_size = sizeof error;
    return error;
}

static void take(void *ctx, const void *data, size_t bytes)
{
    struct blob *blob = ctx;
    EXPECT(blob->bytes + bytes <= sizeof blob->data);
    memcpy(blob->data + blob->bytes, data, bytes);
    blob->bytes += bytes;
}

static void open_all(const CampanilePlugin *plugin)
{
    CampanileError error = fresh_error();
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        CampanileOpenOptions options = {.struct_size = sizeof options, .node = {"here", 4}, .timeout_ns = TIMEOUT_NS,
                                        .rank = rank, .ranks = RANKS, .ranks_on_node = RANKS};
        EXPECT(plugin->open(plugin->ctx, (CampanileText){"node", 4}, &options, &ranks[rank].transport, &error) == 0);
        ranks[rank].address.bytes = 0;
        CampanileSink sink = {&ranks[rank].address, take};
        EXPECT(ranks[rank].transport->address(ranks[rank].transport->ctx, &sink, &error) == 0);
    }
    CampanilePeer peers[RANKS] = {0};
    CampanileRequest requests[RANKS];
    CampanileEndpoint endpoints[RANKS][RANKS];
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        peers[rank].rank = rank;
        peers[rank].address = (CampanileBytes){ranks[rank].address.data, ranks[rank].address.bytes};
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        requests[rank] = (CampanileRequest){.struct_size = sizeof requests[rank]};
        EXPECT(ranks[rank].transport->connect(ranks[rank].transport->ctx, peers, RANKS, endpoints[rank], &requests[rank],
                                              &error) == CAMPANILE_STATUS_PENDING);
    }
    for (unsigned connected = 0; connected != (1 << RANKS) - 1;)
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            if (connected >> rank & 1)
                continue;
            int32_t status = requests[rank].test(requests[rank].ctx, endpoints[rank], &error);
            EXPECT(status >= 0);
            connected |= (unsigned)(status == CAMPANILE_STATUS_OK) << rank;
            if (status == CAMPANILE_STATUS_PENDING)
                requests[rank].park(requests[rank].ctx, 1000000);
        }
    for (uint32_t rank = 0; rank < RANKS; rank++)
        requests[rank].drop(requests[rank].ctx);
}

/* A region on every rank: words, then a block for each thread of each rank, to be put from and to be put to. */
static size_t source_of(size_t thread) { return 8 * WORDS + thread * BLOCK; }
static size_t target_of(size_t thread) { return 8 * WORDS + (THREADS + thread) * BLOCK; }
static uint64_t *word_of(struct rank *rank, size_t word) { return (uint64_t *)rank->region.address + word; }

static void exchange_regions(void)
{
    CampanileError error = fresh_error();
    struct blob keys[RANKS] = {0};
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const CampanileTransport *transport = ranks[rank].transport;
        CampanileRequest request = {.struct_size = sizeof request};
        ranks[rank].region = (CampanileRegion){.struct_size = sizeof ranks[rank].region};
        EXPECT(transport->allocate(transport->ctx, 8 * WORDS + 2 * THREADS * BLOCK, CAMPANILE_MEMORY_HOST,
                                   &ranks[rank].region, &request, &error) == 0);
        CampanileSink sink = {&keys[rank], take};
        EXPECT(transport->export_key(transport->ctx, ranks[rank].region.handle, (uint32_t[]){0, 1}, RANKS, &sink,
                                     &error) == 0);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++)
        for (uint32_t peer = 0; peer < RANKS; peer++) {
            const CampanileTransport *transport = ranks[rank].transport;
            CampanileRequest request = {.struct_size = sizeof request};
            CampanileQueueOptions options = {.struct_size = sizeof options, .depth = 8, .ordered = 1};
            ranks[rank].remote[peer] = (CampanileRemoteRegion){.struct_size = sizeof ranks[rank].remote[peer]};
            EXPECT(transport->import_key(transport->ctx, peer, (CampanileBytes){keys[peer].data, keys[peer].bytes},
                                         &ranks[rank].remote[peer], &request, &error) == 0);
            for (int queue = 0; queue < 2; queue++)
                EXPECT(transport->queue(transport->ctx, CAMPANILE_TARGET_PEER, peer, &options,
                                        &ranks[rank].queues[peer][queue], &error) == 0);
        }
}

/* Posts until there is room, rings, and returns the mark. */
static uint64_t post(const CampanileQueue *queue, const CampanileOp *ops, size_t count)
{
    CampanileError error = fresh_error();
    uint64_t mark = 0;
    int32_t status;
    while ((status = queue->post(queue->ctx, ops, count, &mark, &error)) == CAMPANILE_STATUS_BUSY)
        sched_yield();
    EXPECT(status == CAMPANILE_STATUS_OK);
    EXPECT(queue->ring(queue->ctx, &error) == CAMPANILE_STATUS_OK);
    return mark;
}

static void wait_for(const CampanileQueue *queue, uint64_t mark, uint32_t level)
{
    CampanileError error = fresh_error();
    int32_t status;
    while ((status = queue->test(queue->ctx, mark, level, &error)) == 0) {
        EXPECT(queue->progress(queue->ctx, &error) >= 0);
        sched_yield();
    }
    EXPECT(status == 1);
}

struct job {
    uint32_t rank;
    size_t thread;
};

/* A thread of a rank: sends blocks to the other rank, reads one back, and counts with everybody on one word. */
static void *play(void *argument)
{
    const struct job *job = argument;
    struct rank *self = &ranks[job->rank];
    uint32_t peer = 1 - job->rank;
    const CampanileQueue *queue = self->queues[peer][job->thread % 2];
    uint64_t key = self->region.key, remote = self->remote[peer].key;
    unsigned char *source = (unsigned char *)self->region.address + source_of(job->thread);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        size_t bytes = round % 8 == 0 ? BLOCK : round * 7;
        memset(source, (int)(round + job->thread), bytes);
        CampanileOp ops[3] = {0};
        ops[0].kind = CAMPANILE_OP_PUT_SIGNAL;
        ops[0].payload.put_signal = (CampanilePutSignal){
            .source = {key, source_of(job->thread)}, .target = {remote, target_of(job->thread)}, .bytes = bytes,
            .signal = {{remote, 8 * job->thread}, round, CAMPANILE_SIGNAL_SET, CAMPANILE_STRENGTH_WEAK}};
        ops[1].kind = CAMPANILE_OP_ATOMIC;
        ops[1].payload.atomic = (CampanileAtomic){.kind = CAMPANILE_ATOMIC_ADD, .operand = 1, .target = {remote, 8 * 8}};
        ops[2].kind = CAMPANILE_OP_FENCE;
        wait_for(queue, post(queue, ops, 3), round % 2 ? CAMPANILE_LEVEL_REMOTE_CPU : CAMPANILE_LEVEL_LOCAL);

        /* The other's thread of the same number did the same. */
        CampanileError error = fresh_error();
        uint64_t seen;
        CampanileWait wait = {.struct_size = sizeof wait, .region = self->region.handle, .offset = 8 * job->thread,
                              .value = round, .epoch = round, .condition = CAMPANILE_CONDITION_AT_LEAST, .peer = peer};
        EXPECT(self->transport->signal_wait(self->transport->ctx, &wait, &seen, &error) == CAMPANILE_STATUS_OK);
        const unsigned char *arrived = (unsigned char *)self->region.address + target_of(job->thread);
        EXPECT(arrived[0] == (unsigned char)(round + job->thread) && arrived[bytes - 1] == arrived[0]);

        /* What it has read, it thanks for; the other waits before it overwrites. */
        CampanileOp thanks = {.kind = CAMPANILE_OP_SIGNAL};
        thanks.payload.signal = (CampanileSignalUpdate){{remote, 8 * (4 + job->thread)}, 1, CAMPANILE_SIGNAL_ADD,
                                                        CAMPANILE_STRENGTH_STRONG};
        post(queue, &thanks, 1);
        wait.offset = 8 * (4 + job->thread);
        wait.value = 2 * round - 1;
        EXPECT(self->transport->signal_wait(self->transport->ctx, &wait, &seen, &error) == CAMPANILE_STATUS_OK);

        CampanileOp get = {.kind = CAMPANILE_OP_GET};
        get.payload.get = (CampanileGet){.source = {remote, target_of(job->thread)},
                                         .target = {key, source_of(job->thread)}, .bytes = bytes};
        wait_for(queue, post(queue, &get, 1), CAMPANILE_LEVEL_LOCAL);
        EXPECT(source[0] == (unsigned char)(round + job->thread) && source[bytes - 1] == source[0]);
        post(queue, &thanks, 1);
        wait.value = 2 * round;
        EXPECT(self->transport->signal_wait(self->transport->ctx, &wait, &seen, &error) == CAMPANILE_STATUS_OK);
    }
    return NULL;
}

/* A get, a fence, and a put over what the get reads: it returns what was there before. */
static void fence_behind_get(void)
{
    struct rank *self = &ranks[0];
    const CampanileQueue *queue = self->queues[1][0];
    uint64_t key = self->region.key, remote = self->remote[1].key;
    unsigned char *got = (unsigned char *)self->region.address + target_of(0);
    unsigned char *source = (unsigned char *)self->region.address + source_of(0);
    for (int round = 1; round < 50; round++) {
        memset((unsigned char *)ranks[1].region.address + source_of(1), round, BLOCK);
        memset(source, 0xee, BLOCK);
        CampanileOp ops[3] = {{.kind = CAMPANILE_OP_GET}, {.kind = CAMPANILE_OP_FENCE}, {.kind = CAMPANILE_OP_PUT}};
        ops[0].payload.get = (CampanileGet){{remote, source_of(1)}, {key, target_of(0)}, BLOCK};
        ops[2].payload.put = (CampanilePut){{key, source_of(0)}, {remote, source_of(1)}, BLOCK};
        wait_for(queue, post(queue, ops, 3), CAMPANILE_LEVEL_REMOTE_CPU);
        for (size_t i = 0; i < BLOCK; i++)
            EXPECT(got[i] == round);
    }
}

/* Memory that is released under a put: the queue fails or the put was faster, and nothing else happens. */
static void release_in_flight(void)
{
    CampanileError error = fresh_error();
    struct rank *self = &ranks[0];
    const CampanileTransport *transport = self->transport;
    for (unsigned round = 0; round < 300; round++) {
        CampanileRegion region = {.struct_size = sizeof region};
        CampanileRequest request = {.struct_size = sizeof request};
        unsigned char *memory = malloc(BLOCK);
        memset(memory, (int)round, BLOCK);
        EXPECT(transport->register_memory(transport->ctx, memory, BLOCK, CAMPANILE_MEMORY_HOST, &region, &request,
                                          &error) == 0);
        const CampanileQueue *queue;
        CampanileQueueOptions options = {.struct_size = sizeof options, .depth = 4};
        EXPECT(transport->queue(transport->ctx, CAMPANILE_TARGET_PEER, 1, &options, &queue, &error) == 0);
        CampanileOp op = {.kind = CAMPANILE_OP_PUT};
        op.payload.put = (CampanilePut){{region.key, 0}, {self->remote[1].key, target_of(0)}, BLOCK};
        uint64_t mark = post(queue, &op, 1);
        /* Before it is sent, in the middle, and after. */
        for (uint64_t until = clock_ns() + round * 500; clock_ns() < until;)
            ;
        transport->release(transport->ctx, region.handle);
        free(memory); /* Whatever touches it now is found by the sanitizer. */
        int32_t status;
        while ((status = queue->test(queue->ctx, mark, CAMPANILE_LEVEL_REMOTE_CPU, &error)) == 0)
            sched_yield();
        EXPECT(status == 1 || status == CAMPANILE_STATUS_COMPLETION);
        EXPECT(queue->post(queue->ctx, &op, 1, &mark, &error) ==
               (status == 1 ? CAMPANILE_STATUS_INVALID : CAMPANILE_STATUS_COMPLETION));
        queue->destroy(queue->ctx);
    }
}

/* Everything of a rank ends, the transport last. */
static void end(struct rank *rank)
{
    for (uint32_t peer = 0; peer < RANKS; peer++) {
        rank->transport->release_remote(rank->transport->ctx, rank->remote[peer].handle);
        for (int queue = 0; queue < 2; queue++)
            rank->queues[peer][queue]->destroy(rank->queues[peer][queue]->ctx);
    }
    rank->transport->release(rank->transport->ctx, rank->region.handle);
    rank->transport->close(rank->transport->ctx);
}

/* What is queued completes before a rank leaves, also if nobody has rung it. */
static void leave(void)
{
    CampanileError error = fresh_error();
    const CampanileQueue *queue = ranks[0].queues[1][0];
    CampanileOp op = {.kind = CAMPANILE_OP_PUT};
    uint64_t mark;
    op.payload.put = (CampanilePut){{ranks[0].region.key, source_of(0)}, {ranks[0].remote[1].key, target_of(0)}, BLOCK};
    for (int i = 0; i < 8; i++)
        EXPECT(queue->post(queue->ctx, &op, 1, &mark, &error) == CAMPANILE_STATUS_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        EXPECT(ranks[rank].transport->shutdown(ranks[rank].transport->ctx, CAMPANILE_SHUTDOWN_DRAIN, &error) == 0);
    EXPECT(queue->test(queue->ctx, mark, CAMPANILE_LEVEL_REMOTE_CPU, &error) == 1);
    end(&ranks[0]);
    end(&ranks[1]);
}

/* Rank 1 ends without a word; rank 0 hears of it while it waits for it. */
static void die(void)
{
    CampanileError error = fresh_error();
    const CampanileTransport *transport = ranks[0].transport;
    CampanileWait wait = {.struct_size = sizeof wait, .region = ranks[0].region.handle, .offset = 8 * 15, .value = 1,
                          .peer = 1};
    uint64_t seen;
    EXPECT(transport->fault(transport->ctx) == 0 && transport->gone(transport->ctx, 1) == 0);
    end(&ranks[1]);
    EXPECT(transport->signal_wait(transport->ctx, &wait, &seen, &error) == CAMPANILE_STATUS_FAULT);
    EXPECT(error.numbers[0] == CAMPANILE_FAULT(CAMPANILE_FAULT_DIED, 1, 0));
    EXPECT(transport->gone(transport->ctx, 1) == CAMPANILE_FAULT_DIED);
    end(&ranks[0]);
}

int main(void)
{
    const CampanilePlugin *plugin = campanile_transport_plugin(CAMPANILE_MAJOR);
    EXPECT(plugin != NULL && plugin->magic == CAMPANILE_MAGIC);
    for (int dying = 0; dying < 2; dying++) {
        open_all(plugin);
        exchange_regions();
        pthread_t threads[RANKS * THREADS];
        struct job jobs[RANKS * THREADS];
        for (size_t i = 0; i < RANKS * THREADS; i++) {
            jobs[i] = (struct job){(uint32_t)(i / THREADS), i % THREADS};
            EXPECT(pthread_create(&threads[i], NULL, play, &jobs[i]) == 0);
        }
        for (size_t i = 0; i < RANKS * THREADS; i++)
            pthread_join(threads[i], NULL);
        for (uint32_t rank = 0; rank < RANKS; rank++)
            EXPECT(__atomic_load_n(word_of(&ranks[rank], 8), __ATOMIC_ACQUIRE) == THREADS * ROUNDS);
        fence_behind_get();
        release_in_flight();
        dying ? die() : leave();
    }
    puts("done");
    return 0;
}
