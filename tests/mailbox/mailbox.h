/* The mailbox transport: messages over socket pairs, executed at the target by a thread of its own.
 *
 * It reaches the ranks of one machine, be they processes or threads, without sharing memory: what is queued becomes
 * messages on a unix-domain stream, and a progress thread on each rank sends, receives and executes. It is the worked
 * example of a transport whose target is not a pointer, as a network is, and it keeps the whole contract natively.
 *
 *     posters ──post──> queue ──ring──> progress thread ══stream══> progress thread ──> target memory
 *        ^                                     |                          |
 *        └────────── local, remote <───────────┴──<══ ACK, NACK, REPLY ═══┘
 *
 * A file a noun:
 *
 *     plugin.c      the entry symbol: who this is, probe, open
 *     transport.c   one rank's end: its table, memory, shutdown
 *     connection.c  a connected peer: the hand-shake, its buffers, its end
 *     queue.c       operations, marks, the doorbell
 *     region.c      keys and the memory that they name
 *     progress.c    the thread: its loop, sleep and end
 *     send.c        queues and answers to messages
 *     execute.c     messages to memory and answers
 *     fault.c       the job's fault, who is gone, masks
 *     wait.c        waiting for a word
 *     blame.c       whose fault a time-out is
 *     ask.c         questions to a peer's progress thread
 *     error.c       errors, texts, the clock
 *     message.h     what travels
 *
 * Who may touch what. Posters share a queue's slots under its lock. Everything of a connection, and the list of queues,
 * belongs to whoever holds the transport's lock: the progress thread while it makes a turn, and those that make or
 * destroy a queue. What crosses besides is atomic: a queue's counters, the fault, why a peer is gone. A turn never
 * blocks, so a peer that is slow, or stopped, holds up nobody else.
 *
 * After fork() the child has no progress thread: it must leave the transport alone. */

#ifndef MAILBOX_H
#define MAILBOX_H

/* For peers' credentials, processes' descriptors. This header comes before all others. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <campanile/transport.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "message.h"

/* Only the entry symbol is visible, as its header says: other names could be bound to those of somebody else. */
#pragma GCC visibility push(hidden)

/* Room for several fragments, so that one system call moves many messages. */
#define BUFFER_BYTES ((size_t)256 << 10)
/* Most bytes of payload of one message. Queues of a peer take turns after each, so none waits for a large put of
 * another; large enough that a header and a turn cost nothing beside the copy. */
#define FRAGMENT_BYTES ((size_t)64 << 10)
#define MAX_DEPTH ((uint64_t)1 << 16)
#define MAX_RANKS 4096

/* ---- error.c ---- */

/* Fills an error and returns the status. `what` may be NULL. */
__attribute__((format(printf, 4, 5)))
int32_t refuse(CampanileError *error, int32_t status, const char *what, const char *reason, ...);
/* Writes a formatted text of at most 511 bytes. */
__attribute__((format(printf, 2, 3)))
void write_text(const CampanileSink *sink, const char *format, ...);
/* Nanoseconds of the monotonic clock. */
uint64_t now_ns(void);
/* A timeout may be as good as none. */
uint64_t deadline_after(uint64_t start, uint64_t timeout_ns);

/* ---- region.c ---- */

/* What a key names. `address` is of this rank's memory, `remote` the key at the peer that owns an imported region. */
struct region {
    _Atomic uint64_t state; /* generation << 32 | pins; the generation is odd while the region lives */
    unsigned char *address;
    uint64_t bytes;
    uint64_t remote;
    uint32_t owner;
};

struct regions {
    pthread_mutex_t lock; /* of `free`, `frees` and `used` */
    struct region *entries;
    uint32_t *free;
    uint32_t frees, used;
};

enum found { FOUND, STALE, OUTSIDE };

bool regions_init(struct regions *regions);
void regions_end(struct regions *regions);
/* The key of a new region, or 0 if there are too many. */
uint64_t region_add(struct regions *regions, unsigned char *address, uint64_t bytes, uint64_t remote, uint32_t owner);
/* Ends a region: its key is stale from now on. Returns when nobody holds it any more. */
void region_remove(struct regions *regions, uint64_t key);
/* Holds a region that has these bytes: it stays until it is unpinned. */
enum found region_pin(struct regions *regions, uint64_t key, uint64_t offset, uint64_t bytes, struct region **region);
void region_unpin(struct region *region);

/* ---- connection.c ---- */

/* Bytes on their way: those from `head` to `tail`. */
struct buffer {
    unsigned char *bytes;
    size_t head, tail;
};

/* What this rank owes a peer for its requests; sent in order, so that a peer learns of its operations in order. */
struct answer {
    uint32_t kind; /* MESSAGE_ACK, MESSAGE_NACK or MESSAGE_REPLY */
    uint32_t queue;
    uint64_t position;
    uint64_t region, offset; /* of a get: where its bytes are */
    uint64_t bytes, sent;    /* of a reply */
    uint64_t value;          /* the old word of an atomic; the reason of a NACK */
    bool is_word;            /* whether the reply is `value` */
};

struct connection {
    uint32_t rank;
    int in, out;    /* the same socket, but for this rank's own, which is a pair */
    int pidfd;      /* tells the end of the peer's process, even if a child of it keeps the socket; or -1 */
    uint64_t token; /* which incarnation of the peer this is */
    _Atomic uint32_t gone; /* CAMPANILE_FAULT_DIED, _LEFT or _FAILED, or 0 */
    _Atomic bool masked;
    _Atomic bool told_end;  /* whether its end was told as an event */
    _Atomic uint32_t ended; /* which peer of all it was to end: 1 for the first, 0 while it is there */
    _Atomic uint64_t heard; /* the last fault that it told */

    /* This rank's questions to the peer, and the last answer. */
    _Atomic uint32_t question, asked, answered_number;
    _Atomic uint64_t question_value, answer;

    /* Of whoever holds the transport's lock. */
    bool dead;        /* its process has ended; of the progress thread */
    bool deaf, mute;  /* nothing can be received, or sent, any more */
    bool left;        /* it said that it is done */
    bool told_left;   /* it was told that this rank is */
    uint64_t told;    /* the fault that it knows of */
    uint32_t told_asked; /* the question of this rank that was sent last */
    uint32_t their_question, told_question; /* the peer's last question, and the one that was answered last */
    uint64_t their_answer;
    struct buffer inbox, outbox;
    struct answer *answers; /* a ring; its size is a power of two */
    size_t answered, owed, answers_size;
    uint32_t *failed; /* queues of the peer of which an operation failed: nothing more of them is executed */
    size_t failed_count;
    struct queue *queues; /* those that lead to this peer, a ring; the next to send from */
};

struct transport;

int listener_open(struct transport *transport, CampanileError *error);
int32_t connection_start(struct transport *transport, const CampanilePeer *peers, size_t count,
                         CampanileRequest *request, CampanileError *error);
void connection_end(struct connection *connection);
/* The peer is gone, for this reason unless there was one before. */
void connection_gone(struct transport *transport, struct connection *connection, uint32_t kind);
/* The connection to a rank, or NULL. */
struct connection *connection_to(struct transport *transport, uint32_t rank);

/* ---- queue.c ---- */

struct slot {
    CampanileOp op;             /* its remote addresses name the keys of their owner */
    uint64_t first;             /* position of its post's first operation */
    _Atomic uint64_t cancelled; /* position + 1 of the operation that is not to run */
};

struct queue {
    CampanileQueue table;
    struct transport *transport;
    struct connection *connection;
    struct queue *next, *previous;
    uint32_t number; /* never used again */
    uint64_t depth;
    struct slot *slots;
    pthread_mutex_t lock; /* among posters */

    /* Positions, each behind the one before: an operation is written by a post, rung by the doorbell, sent, and acknowledged
     * by the peer. Its slot is free after that. Marks are positions. */
    _Atomic uint64_t written, rung, sent, acknowledged;
    _Atomic uint64_t local;    /* sources are reusable and results there up to here: acknowledged <= local <= sent */
    _Atomic uint64_t reported; /* progress has told of the operations up to here */
    _Atomic int32_t failure;   /* CAMPANILE_STATUS_COMPLETION once it has failed; what follows is set before */
    uint64_t failed_at;
    char reason[256];

    /* Of the progress thread. */
    uint64_t done;    /* bytes of the operation at `sent` that are sent */
    bool skipping;    /* the rest of the post that begins at `skip_first` is cancelled */
    uint64_t skip_first;
    uint64_t fetches; /* position behind the last operation sent that has a result */
};

int32_t queue_create(struct transport *transport, uint32_t target, uint32_t number, const CampanileQueueOptions *options,
                     const CampanileQueue **table, CampanileError *error);
/* The queue of that number to a peer, or NULL if it was destroyed. */
struct queue *queue_find(struct connection *connection, uint32_t number);
/* Everything before `position` is executed at the target. */
void queue_acknowledge(struct queue *queue, uint64_t position);
/* The operation at `sent` is in the stream. */
void queue_sent(struct queue *queue, bool fetches);
__attribute__((format(printf, 3, 4)))
void queue_fail(struct queue *queue, uint64_t position, const char *reason, ...);
/* Whether the operation at `sent` may be sent now. */
bool queue_ready(struct queue *queue);
/* Of all queues to a peer: they are rung; they fail; one is ready; everything rung is acknowledged or never will be. */
void queues_ring(struct connection *connection);
void queues_fail(struct connection *connection, const char *reason);
bool queues_ready(struct connection *connection);
bool queues_idle(struct connection *connection);

/* ---- transport.c ---- */

struct transport {
    CampanileTransport table;
    uint32_t rank;
    uint64_t timeout_ns;
    uint32_t huge_pages;
    char *node;
    size_t node_bytes;

    int listener;
    uint64_t token; /* drawn at open: a peer that does not know it is not let in */
    char address[64];
    size_t address_bytes;

    struct regions locals, remotes;

    pthread_mutex_t lock;
    struct connection **connections; /* by rank; fixed once `connected` */
    uint32_t connections_count;
    _Atomic bool connected;

    _Atomic uint64_t fault;
    _Atomic bool leaving; /* the peers are to be told that this rank is done */
    _Atomic bool ended;   /* it was shut down */

    /* The progress thread. */
    pthread_t thread;
    bool running;
    int doorbell; /* an eventfd */
    _Atomic uint32_t sleeping, ending;

    pthread_mutex_t ask_lock; /* one question at a time */
    _Atomic uint32_t ends;    /* how many peers have ended */

    /* Its waiters. */
    pthread_mutex_t bell_lock;
    pthread_cond_t bell;
    _Atomic uint32_t turns, waiters;
    _Atomic uint32_t waiting; /* whom this rank waits for: rank + 1, or 0 */
};

int32_t transport_open(const CampanileOpenOptions *options, const CampanileTransport **table, CampanileError *error);

/* ---- progress.c ---- */

bool progress_start(struct transport *transport, CampanileError *error);
void progress_end(struct transport *transport);
/* Makes the progress thread look again. */
void progress_ring(struct transport *transport);

/* ---- send.c, execute.c: parts of a turn; whether they did anything ---- */

bool connection_send(struct transport *transport, struct connection *connection);
bool connection_receive(struct transport *transport, struct connection *connection);
/* Whether anything is left to be told to the peer, queues apart. */
bool connection_owes(struct transport *transport, struct connection *connection);

/* ---- fault.c ---- */

uint64_t fault_standing(struct transport *transport);
/* Makes a fault this rank's, unless one stands; returns the one that stands. Never waits: the progress thread calls it. */
uint64_t fault_adopt(struct transport *transport, uint64_t fault);
/* The same for all ranks; waits for the peers, for a short while. */
uint64_t fault_report(struct transport *transport, uint64_t fault);
bool rank_masked(struct transport *transport, uint32_t rank);
void rank_mask(struct transport *transport, uint32_t rank);

/* ---- wait.c ---- */

int32_t word_wait(struct transport *transport, const CampanileWait *wait, uint64_t *seen, CampanileError *error);
/* A waiter takes the number of the turn, looks for what it waits for, and sleeps unless there was another turn since. */
uint32_t waiters_look(struct transport *transport);
void waiters_sleep(struct transport *transport, uint32_t turn, uint64_t deadline);
/* Something has changed: the waiters look again, if there are any. */
void waiters_wake(struct transport *transport);

/* ---- ask.c, blame.c ---- */

/* When to give up on an answer that is asked for now. */
uint64_t answer_deadline(const struct transport *transport);
/* Asks a peer's progress thread; false if there is no answer in time. */
bool ask(struct transport *transport, struct connection *connection, uint32_t question, uint64_t value,
         uint64_t *answer);

/* The fault of a wait for that rank which was in vain. */
uint64_t blame(struct transport *transport, uint32_t first);

#pragma GCC visibility pop

#endif
