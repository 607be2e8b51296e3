/* Campanile: the boundary to transports that are files of their own (C11 and C++11).
 * Generated from crates/abi by `cargo xtask headers`; do not edit. Comments leave out the prefix of names.
 *
 * The plugin boundary: the C types by which a transport in a file of its own is used. No std, no dependencies.
 *
 * A plugin is a shared library with one entry symbol, ENTRY, of type Entry. It returns a Plugin: who it
 * is, and functions. open gives a Transport, that gives Queues, and control calls that take
 * time give Requests. Each of these is a struct of a size, a context and functions that take the context first.
 * What the functions must do is the contract of `campanile-core`'s traits, which these mirror one to one. The C header
 * is `include/campanile/transport.h`, generated from this crate by `cargo xtask headers`.
 *
 * # Rules
 *
 * * **Signatures** hold integers, pointers with lengths, and callbacks. Nobody frees what the other side allocated.
 *   What a call is given is valid until it returns, unless its documentation says otherwise.
 * * **Growth** is append-only. A struct that begins with `struct_size` says how long its writer knew it to be; nobody
 *   reads or writes a field beyond it. A function that is `NULL` or beyond it is absent: the documentation of each one
 *   says what the host does without. A newer MINOR only appends. A MAJOR changes.
 * * **Results** of functions that return `i32` or `i64` are negative for errors (Status codes), and what the
 *   function says otherwise. With an error, and only then, the callee fills the Error that it was given.
 * * **Unwinding** never crosses the boundary: no panic, no C++ exception.
 * * **Threads**: any number of them may call any function of a Transport or Queue at once, but what ends
 *   something (`close`, `destroy`, `release`, `drop`) is called once, after every other call on it has returned, and
 *   the functions of a Request are called by one thread at a time. Queues, regions and requests end before their
 *   transport.
 * * **For ever**: a plugin is never unloaded. The Plugin and all it points to never change and never go.
 */

#ifndef CAMPANILE_TRANSPORT_H
#define CAMPANILE_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

// Done.
#define CAMPANILE_STATUS_OK 0

// A control call goes on: its request says when it is done.
#define CAMPANILE_STATUS_PENDING 1

// The system refused something: `what` was being done, and the `reason`.
#define CAMPANILE_STATUS_FAILED -1

// The transport does not do that: `what`, and the `reason`. Of a queue's `test`: `what` is the completion level.
#define CAMPANILE_STATUS_UNSUPPORTED -2

// It did not end in time. `numbers`: nanoseconds waited; of a queue also its position, and its state as the `reason`; of
// `signal_wait` also the value of the word and the fault word that stands now. `what` was waited for.
#define CAMPANILE_STATUS_TIMEOUT -3

// A peer is gone. `numbers`: its rank. `what` was being done.
#define CAMPANILE_STATUS_PEER_GONE -4

// This memory cannot be had or registered. `numbers`: how many bytes, of which kind. The `reason`.
#define CAMPANILE_STATUS_MEMORY -5

// A peer sent something that makes no sense. `numbers`: its rank. `what` it was meant to be, and the `reason`.
#define CAMPANILE_STATUS_BAD_PEER_DATA -6

// There is no such device. The `reason` lists what there is.
#define CAMPANILE_STATUS_NO_DEVICE -7

// A queue is full for now. `numbers`: slots needed, slots free.
#define CAMPANILE_STATUS_BUSY -8

// A list never fits into the queue. `numbers`: slots needed, depth.
#define CAMPANILE_STATUS_TOO_LARGE -9

// An argument is not legal: the `reason`. Of `post`: `numbers`: position in the list.
#define CAMPANILE_STATUS_INVALID -10

// A queue has failed because an operation completed with an error. `numbers`: its position. The `reason`.
#define CAMPANILE_STATUS_COMPLETION -11

// A queue has failed because a producer reserved and did not publish, or the state makes no sense: the `reason`.
#define CAMPANILE_STATUS_POISONED -12

// A mark is not one that this queue gave.
#define CAMPANILE_STATUS_FOREIGN_TICKET -13

// The job has a fault. `numbers`: the fault word, the value of the word that was waited for.
#define CAMPANILE_STATUS_FAULT -14

// A panic or an exception was caught at the boundary: in `what`, and its message as the `reason`.
#define CAMPANILE_STATUS_PANICKED -15

// An error that nobody else tells.
#define CAMPANILE_LOG_ERROR 1

// Something that the user should look at.
#define CAMPANILE_LOG_WARN 2

// Something that the user may want to know.
#define CAMPANILE_LOG_INFO 3

// For whoever looks for a fault.
#define CAMPANILE_LOG_DEBUG 4

// For whoever looks closely.
#define CAMPANILE_LOG_TRACE 5

// Memory of the host. Kinds of memory are numbers: this one, or MEMORY_DEVICE_0 plus the ordinal of a device.
#define CAMPANILE_MEMORY_HOST 0

// Memory of the first device.
#define CAMPANILE_MEMORY_DEVICE_0 1

// A put: local memory to a peer.
#define CAMPANILE_OP_PUT 1

// A put and a signal in one reservation.
#define CAMPANILE_OP_PUT_SIGNAL 2

// Bytes that travel inside the operation.
#define CAMPANILE_OP_PUT_INLINE 3

// A signal without a put.
#define CAMPANILE_OP_SIGNAL 4

// A peer's memory to local memory.
#define CAMPANILE_OP_GET 5

// An atomic on a 64-bit word of a peer.
#define CAMPANILE_OP_ATOMIC 6

// Earlier operations are delivered before later ones; no payload.
#define CAMPANILE_OP_FENCE 7

// The word becomes the value.
#define CAMPANILE_SIGNAL_SET 0

// The value is added to the word.
#define CAMPANILE_SIGNAL_ADD 1

// Visible: the put it is bundled with is visible.
#define CAMPANILE_STRENGTH_WEAK 0

// Visible: all earlier puts of the same (queue, peer) are visible.
#define CAMPANILE_STRENGTH_STRONG 1

// `word += operand`.
#define CAMPANILE_ATOMIC_ADD 0

// `word += operand`, the old value goes to the result.
#define CAMPANILE_ATOMIC_FETCH_ADD 1

// `if word == compare { word = operand }`, the old value goes to the result.
#define CAMPANILE_ATOMIC_COMPARE_SWAP 2

// `word = operand`, the old value goes to the result.
#define CAMPANILE_ATOMIC_SWAP 3

// Most bytes that travel inside an operation.
#define CAMPANILE_INLINE_BYTES 64

// The peer is this rank itself.
#define CAMPANILE_CLASS_OWN 0

// The peer is another rank of the same node.
#define CAMPANILE_CLASS_NODE 1

// The peer is a rank of another node.
#define CAMPANILE_CLASS_REMOTE 2

// Updates are atomic among the node's CPUs.
#define CAMPANILE_ATOMICITY_CPU 0

// Updates are atomic on the GPU.
#define CAMPANILE_ATOMICITY_GPU 1

// Updates are atomic on the NIC.
#define CAMPANILE_ATOMICITY_NIC 2

// Of Caps::signal_flags: setting a word is native.
#define CAMPANILE_SIGNAL_SET_NATIVE 1

// Of Caps::signal_flags: adding to a word is native.
#define CAMPANILE_SIGNAL_ADD_NATIVE 2

// Of Caps::signal_flags: a strong signal costs no drain.
#define CAMPANILE_SIGNAL_STRONG_NATIVE 4

// Of Caps::signal_flags: the target must make progress, or wait, for a signal to land.
#define CAMPANILE_SIGNAL_TARGET_PROGRESS 8

// A queue to one connected peer; the number is its rank.
#define CAMPANILE_TARGET_PEER 0

// A queue to an engine that reaches every peer; the number is the engine's.
#define CAMPANILE_TARGET_ENGINE 1

// Host code posts.
#define CAMPANILE_INITIATOR_HOST 0

// Kernels post.
#define CAMPANILE_INITIATOR_DEVICE 1

// Completion: the sources are reusable, results are there.
#define CAMPANILE_LEVEL_LOCAL 0

// Completion: target memory is updated and visible to the target's CPUs.
#define CAMPANILE_LEVEL_REMOTE_CPU 1

// Completion: target memory is updated and visible to the target's GPU.
#define CAMPANILE_LEVEL_REMOTE_GPU 2

// Completion: target memory is updated and visible to the target's NIC.
#define CAMPANILE_LEVEL_REMOTE_NIC 3

// Everything up to the mark had completed, or cannot be stopped.
#define CAMPANILE_CANCELLED_TOO_LATE 0

// What had not started will not run.
#define CAMPANILE_CANCELLED_STOPPED 1

// Memory is put on huge pages where the machine gives them.
#define CAMPANILE_HUGE_PAGES_AUTO 0

// Memory is not put on huge pages.
#define CAMPANILE_HUGE_PAGES_NEVER 1

// Its process ended, or its transport was closed without a shutdown.
#define CAMPANILE_FAULT_DIED 1

// It left by an orderly shutdown while others still needed it.
#define CAMPANILE_FAULT_LEFT 2

// It did not signal within the deadline.
#define CAMPANILE_FAULT_STALLED 3

// It called abort.
#define CAMPANILE_FAULT_ABORTED 4

// It broke the protocol or its queue failed.
#define CAMPANILE_FAULT_FAILED 5

// Nothing happened.
#define CAMPANILE_EVENT_NONE 0

// A peer ended by an orderly shutdown.
#define CAMPANILE_EVENT_LEFT 1

// A peer's process ended, or its transport was closed without a shutdown.
#define CAMPANILE_EVENT_DIED 2

// Tell the peers that this rank is done; what is queued completes first.
#define CAMPANILE_SHUTDOWN_DRAIN 0

// Drop what is queued; peers that still need this rank learn of a fault.
#define CAMPANILE_SHUTDOWN_ABORT 1

// The word is not before `value`: `(int64_t)(word - value) >= 0`.
#define CAMPANILE_CONDITION_AT_LEAST 0

// The bits of the word under `mask` equal `value`.
#define CAMPANILE_CONDITION_TAG 1

// Version of the device API (`kernels/campanile.h`) that a host of this header compiles.
#define CAMPANILE_DEVICE_API 1

// Each thread may post for itself.
#define CAMPANILE_SCOPE_THREAD 0

// A warp posts together.
#define CAMPANILE_SCOPE_WARP 1

// A block posts together.
#define CAMPANILE_SCOPE_BLOCK 2

// Kernels load from and store to every window: no header.
#define CAMPANILE_FORM_MAP 0

// Kernels post to queues, by a header.
#define CAMPANILE_FORM_QUEUE 1

// Begins every root table: `"campanil"`, read as a little-endian number.
#define CAMPANILE_MAGIC 7811896393427935587

// Version of the boundary; another one needs a shim.
#define CAMPANILE_MAJOR 1

// Additions within the version; a newer one is accepted, what it adds is not used.
#define CAMPANILE_MINOR 0

// UTF-8 of known length, not NUL-terminated.
typedef struct CampanileText {
  // First byte; may be anything if there are none.
  const char *data;
  // How many.
  size_t bytes;
} CampanileText;

// What a transport brings for kernels: of the form queue, a header that implements the device API for its queues, and what
// kernels must know of it to be compiled.
//
// **Experimental** until two transports bring queues: it may change within a major version. A host refuses a plugin whose
// device code it cannot compile.
typedef struct CampanileDeviceCode {
  // Bytes of this struct, as the plugin knows it.
  uint64_t struct_size;
  // Name of the kind; the header's namespace, a C++ identifier of at most 64 bytes.
  struct CampanileText kind;
  // The header, at most 1 MiB without NULs; empty for FORM_MAP.
  struct CampanileText header;
  // Version of the device API that it is written against: DEVICE_API is the host's.
  uint32_t abi;
  // Smallest group of threads that may post: `SCOPE_*`.
  uint32_t smallest_scope;
  // Whether the threads of that group must be converged: 0 or 1.
  uint32_t convergence;
  // Slots of an operation, at most; at least 1.
  uint32_t slots_per_op;
  // Most bytes of an operation, at least 16; more is posted in pieces.
  uint64_t largest_op;
  // Required alignment of addresses and lengths in bytes: 1, 2 or 4.
  uint32_t alignment;
  // Producers that may share a queue; 0: any number.
  uint32_t producers_per_queue;
  // Whether a strong signal costs no drain: 0 or 1.
  uint32_t native_strong;
  // Bits of a signal word that arrive together: 64.
  uint32_t signal_bits;
  // How kernels reach peers: `FORM_*`.
  uint32_t form;
  // Bytes of the header's struct `Peer`, a multiple of 8; 0 for FORM_MAP.
  uint32_t peer_bytes;
} CampanileDeviceCode;

// The host, as a plugin sees it; valid for ever once given to Plugin::init.
typedef struct CampanileHost {
  // Bytes of this struct, as the host knows it.
  uint64_t struct_size;
  // Major version of the host.
  uint32_t abi_major;
  // Minor version of the host.
  uint32_t abi_minor;
  // First argument of the functions.
  void *ctx;
  // The most verbose level that anybody listens to, 0 for none; a guess at the time of `init`.
  uint32_t log_level;
  // Must be 0.
  uint32_t reserved;
  // Takes a line for the log, from any thread. Always there; where nobody listens it does nothing.
  void (*log)(void *ctx, uint32_t level, struct CampanileText target, struct CampanileText message);
  // Where counters go: `NULL` until a minor version says what it points to.
  const void *counters;
  // Where spans go: `NULL` until a minor version says what it points to.
  const void *tracer;
} CampanileHost;

// What an error says beside its status. Given by the host, filled by the plugin, and only with a negative status, so that
// success costs nothing. What a status does not use is left alone: the host has zeroed it.
typedef struct CampanileError {
  // Bytes of this struct, as the host knows it.
  uint64_t struct_size;
  // What the status says.
  uint64_t numbers[4];
  // A short text, NUL-terminated UTF-8.
  char what[128];
  // What is wrong, what is allowed, what to do: NUL-terminated UTF-8.
  char reason[512];
} CampanileError;

// Where the host takes the devices that a probe finds.
typedef struct CampanileDeviceSink {
  // First argument of the function.
  void *ctx;
  // Takes a device: the name that `open` accepts, whether it is usable (0 or 1), and a line for people, or the reason
  // why it was left out.
  void (*device)(void *ctx, struct CampanileText name, uint32_t usable, struct CampanileText detail);
} CampanileDeviceSink;

// What a transport is told when it is opened.
typedef struct CampanileOpenOptions {
  // Bytes of this struct, as the host knows it.
  uint64_t struct_size;
  // Identity of the machine, equal for ranks that can share its memory.
  struct CampanileText node;
  // Upper bound of every wait, in nanoseconds.
  uint64_t timeout_ns;
  // This rank, in the world.
  uint32_t rank;
  // Ranks of the world.
  uint32_t ranks;
  // Ranks on this node.
  uint32_t ranks_on_node;
  // CPUs that the ranks on this node may use together; 0: as many as this process may use now.
  uint32_t cores;
  // Whether memory is put on huge pages: `HUGE_PAGES_*`.
  uint32_t huge_pages;
  // Must be 0.
  uint32_t reserved;
} CampanileOpenOptions;

// First guess of what an operation costs.
typedef struct CampanileCost {
  // Picoseconds until a small put is seen.
  uint64_t latency_ps;
  // Bytes a second of a large one.
  uint64_t bytes_per_s;
} CampanileCost;

// What a transport gives for one (peer class, memory kind, operation). The host zeroes it, the plugin fills it.
typedef struct CampanileCaps {
  // Bytes of this struct, as the host knows it.
  uint64_t struct_size;
  // Most bytes of one operation.
  uint64_t max_bytes;
  // Whether pointers to the peer's memory can be had: 0 or 1.
  uint32_t load_store;
  // Whether puts of one (queue, peer) are delivered in order: 0 or 1.
  uint32_t ordered_puts;
  // Most bytes of an inline put.
  uint32_t inline_bytes;
  // Required alignment of addresses and lengths, in bytes; 1 for none.
  uint32_t alignment;
  // Bits of a signal word that arrive together.
  uint32_t signal_bits;
  // What signals can do: `SIGNAL_*_NATIVE`, `SIGNAL_TARGET_PROGRESS`.
  uint32_t signal_flags;
  // Among whom updates are atomic: `ATOMICITY_*`.
  uint32_t atomicity;
  // Must be 0.
  uint32_t reserved;
  // First guess of the cost.
  struct CampanileCost cost;
} CampanileCaps;

// Where the host takes a text or a blob of any length.
typedef struct CampanileSink {
  // First argument of the function.
  void *ctx;
  // Takes a copy of these bytes. Called again it appends.
  void (*write)(void *ctx, const void *data, size_t bytes);
} CampanileSink;

// Bytes of known length.
typedef struct CampanileBytes {
  // First byte; may be anything if there are none.
  const uint8_t *data;
  // How many.
  size_t bytes;
} CampanileBytes;

// A peer to connect to.
typedef struct CampanilePeer {
  // Its address, as its transport gave it.
  struct CampanileBytes address;
  // Who.
  uint32_t rank;
  // Must be 0.
  uint32_t reserved;
} CampanilePeer;

// A connected peer.
typedef struct CampanileEndpoint {
  // Who.
  uint32_t peer;
  // How far away: `CLASS_*`.
  uint32_t peer_class;
} CampanileEndpoint;

// A control call that has been started and goes on. The host gives the struct with `struct_size` set and the rest
// zeroed; a call that returns STATUS_PENDING has filled it. Calls that end at once return
// STATUS_OK and leave it alone.
typedef struct CampanileRequest {
  // Bytes of this struct, as the host knows it.
  uint64_t struct_size;
  // First argument of the functions.
  void *ctx;
  // Whether the call is done; never blocks. STATUS_PENDING, or `STATUS_OK` with the result
  // written to `result`, which has the type that the starting call has; or an error. Not called again after that.
  //
  // Required.
  int32_t (*test)(void *ctx, void *result, struct CampanileError *error);
  // Blocks on the call's own event until a test may succeed, for at most `timeout_ns`.
  //
  // Without it the host tests again after short naps.
  void (*park)(void *ctx, uint64_t timeout_ns);
  // What is being waited for, for the time-out error.
  //
  // Without it the error names the call.
  void (*describe)(void *ctx, const struct CampanileSink *text);
  // Ends the request; cancels the call if it goes on.
  //
  // Without it nothing is done.
  void (*drop)(void *ctx);
} CampanileRequest;

// Registered memory of this rank. The host zeroes it, the plugin fills it.
typedef struct CampanileRegion {
  // Bytes of this struct, as the host knows it.
  uint64_t struct_size;
  // What operations carry; never used again for another region of the transport.
  uint64_t key;
  // First byte; valid until the region is released.
  void *address;
  // By which the region is exported, waited in and released.
  void *handle;
} CampanileRegion;

// A peer's memory that this rank can address. The host zeroes it, the plugin fills it.
typedef struct CampanileRemoteRegion {
  // Bytes of this struct, as the host knows it.
  uint64_t struct_size;
  // What operations carry; never used again for another region of the transport.
  uint64_t key;
  // Length.
  uint64_t bytes;
  // By which the region is mapped and released.
  void *handle;
  // Where it lives: MEMORY_HOST or a device.
  uint32_t memory;
  // Must be 0.
  uint32_t reserved;
} CampanileRemoteRegion;

// How a queue is made.
typedef struct CampanileQueueOptions {
  // Bytes of this struct, as the host knows it.
  uint64_t struct_size;
  // Slots; an operation takes one or more.
  uint64_t depth;
  // Who posts: `INITIATOR_*`.
  uint32_t initiator;
  // Whether puts are to be delivered in order even where the caps do not promise it: 0 or 1.
  uint32_t ordered;
} CampanileQueueOptions;

// A place in this rank's registered memory.
typedef struct CampanileLocalAddress {
  // Key of the region.
  uint64_t region;
  // Bytes from its start.
  uint64_t offset;
} CampanileLocalAddress;

// A place in a peer's imported memory.
typedef struct CampanileRemoteAddress {
  // Key of the region.
  uint64_t region;
  // Bytes from its start.
  uint64_t offset;
} CampanileRemoteAddress;

// Payload of OP_PUT.
typedef struct CampanilePut {
  // From; unchanged by the caller until local completion.
  struct CampanileLocalAddress source;
  // To.
  struct CampanileRemoteAddress target;
  // How many bytes; 0 is legal.
  uint64_t bytes;
} CampanilePut;

// The change of a signal word.
typedef struct CampanileSignalUpdate {
  // The word, 8-byte aligned.
  struct CampanileRemoteAddress target;
  // By what.
  uint64_t value;
  // How it changes: `SIGNAL_*`.
  uint32_t action;
  // What it promises once it is visible: `STRENGTH_*`.
  uint32_t strength;
} CampanileSignalUpdate;

// Payload of OP_PUT_SIGNAL.
typedef struct CampanilePutSignal {
  // From; unchanged by the caller until local completion.
  struct CampanileLocalAddress source;
  // To.
  struct CampanileRemoteAddress target;
  // How many bytes; 0 is legal, the signal still fires.
  uint64_t bytes;
  // Fires after the bytes.
  struct CampanileSignalUpdate signal;
} CampanilePutSignal;

// Payload of OP_PUT_INLINE.
typedef struct CampanilePutInline {
  // The bytes.
  uint8_t data[CAMPANILE_INLINE_BYTES];
  // How many, at most INLINE_BYTES.
  uint8_t bytes;
  // Not to be read.
  uint8_t reserved[7];
  // To.
  struct CampanileRemoteAddress target;
} CampanilePutInline;

// Payload of OP_GET.
typedef struct CampanileGet {
  // From.
  struct CampanileRemoteAddress source;
  // To; undefined until local completion.
  struct CampanileLocalAddress target;
  // How many bytes; 0 is legal.
  uint64_t bytes;
} CampanileGet;

// Payload of OP_ATOMIC.
typedef struct CampanileAtomic {
  // Which: `ATOMIC_*`.
  uint32_t kind;
  // Not to be read.
  uint32_t reserved;
  // What is added, or what the word becomes.
  uint64_t operand;
  // Where the old value goes; not to be read of ATOMIC_ADD.
  struct CampanileLocalAddress result;
  // What the word must be; of ATOMIC_COMPARE_SWAP only.
  uint64_t compare;
  // The word, 8-byte aligned.
  struct CampanileRemoteAddress target;
} CampanileAtomic;

// What an operation needs, by its kind.
typedef union CampanilePayload {
  // Of OP_PUT.
  struct CampanilePut put;
  // Of OP_PUT_SIGNAL.
  struct CampanilePutSignal put_signal;
  // Of OP_PUT_INLINE.
  struct CampanilePutInline put_inline;
  // Of OP_SIGNAL.
  struct CampanileSignalUpdate signal;
  // Of OP_GET.
  struct CampanileGet get;
  // Of OP_ATOMIC.
  struct CampanileAtomic atomic;
  // Fixes the size.
  uint64_t size[11];
} CampanilePayload;

// An operation.
typedef struct CampanileOp {
  // Which: `OP_*`. An unknown one is STATUS_INVALID.
  uint32_t kind;
  // Not to be read.
  uint32_t reserved;
  // What it needs.
  union CampanilePayload payload;
} CampanileOp;

// A queue, in memory of the plugin, constant until it is destroyed.
//
// What stands for a post, or for all that had been published at some time, is a *mark*: a number that never decreases
// along the queue. It stands for everything up to it, can be tested any number of times in any order, and stays
// fulfilled once it is. Mark 0 stands for nothing and is always fulfilled.
typedef struct CampanileQueue {
  // Bytes of this struct, as the plugin knows it.
  uint64_t struct_size;
  // First argument of the functions.
  void *ctx;
  // Tells this queue from the others of the process, as well as the plugin can: errors name it, tickets carry it.
  uint64_t number;
  // Ends it. What is queued and has not started does not run.
  //
  // Required.
  void (*destroy)(void *ctx);
  // Queues a list as one contiguous publish, or nothing of it, and writes its mark. No operation is legal. Never waits for
  // free slots: `STATUS_BUSY` for now, `STATUS_TOO_LARGE` for ever, `STATUS_INVALID` for an operation that is
  // not legal, or what the queue failed with.
  //
  // Required.
  int32_t (*post)(void *ctx, const struct CampanileOp *ops, size_t count, uint64_t *mark, struct CampanileError *error);
  // 1 if a mark has come as far as the level (`LEVEL_*`), also if the queue has failed since; 0 if not yet, or what the
  // queue failed with.
  //
  // Required.
  int32_t (*test)(void *ctx, uint64_t mark, uint32_t level, struct CampanileError *error);
  // Does or drives some work; the number of operations that it completed, or that were completed since it was last called.
  //
  // Required.
  int64_t (*progress)(void *ctx, struct CampanileError *error);
  // Rings the doorbell up to what has been written.
  //
  // Without it posting rings: the host does nothing.
  int32_t (*ring)(void *ctx, struct CampanileError *error);
  // A pure snapshot: writes the mark of everything that had been published. Never rings, never waits.
  //
  // Without it the host gives the largest mark that a post through it has returned.
  int32_t (*flush)(void *ctx, uint64_t *mark, struct CampanileError *error);
  // Best effort: `CANCELLED_*`. May still complete, may fail the queue.
  //
  // Without it everything is too late.
  int32_t (*cancel)(void *ctx, uint64_t mark, struct CampanileError *error);
  // The state of the queue's counters, for errors and people.
  //
  // Without it the host tells the last mark that it saw.
  void (*describe)(void *ctx, const struct CampanileSink *text);
} CampanileQueue;

// One wait for one signal of one peer.
typedef struct CampanileWait {
  // Bytes of this struct, as the host knows it.
  uint64_t struct_size;
  // Handle of this rank's region that holds the word.
  void *region;
  // Offset of the word in it, a multiple of 8; the host has not checked it.
  uint64_t offset;
  // Which bits count; of CONDITION_TAG only.
  uint64_t mask;
  // What the word, or those bits of it, must be.
  uint64_t value;
  // Which use of the set, for errors.
  uint64_t epoch;
  // What is being done, for errors. Lives for ever.
  struct CampanileText operation;
  // Which word it is, for errors. Lives for ever.
  struct CampanileText slot;
  // How they are compared: `CONDITION_*`.
  uint32_t condition;
  // The word's only writer.
  uint32_t peer;
} CampanileWait;

// What kernels need to use a window by a transport. The host says which window and zeroes the rest, the plugin fills that.
typedef struct CampanileDeviceView {
  // Bytes of this struct, as the host knows it.
  uint64_t struct_size;
  // Which device code reads it: its `kind`. Lives for ever.
  struct CampanileText kind;
  // Version of the device API that this is written against.
  uint32_t abi;
  // Must be 0.
  uint32_t reserved;
  // The host's: handle of this rank's region, on whose device the kernels run.
  void *region;
  // The host's: handles of the imported regions of all members in the order of the team, this rank's among them.
  void *const *remotes;
  // The host's: how many members.
  uint64_t members;
} CampanileDeviceView;

// An opened backend of one rank, in memory of the plugin, constant until it is closed.
//
// A *fault word* is `kind << 48 | reporter << 24 | culprit`, with `FAULT_*` and ranks; 0 is no fault.
typedef struct CampanileTransport {
  // Bytes of this struct, as the plugin knows it.
  uint64_t struct_size;
  // First argument of the functions.
  void *ctx;
  // Ends it; a death to the peers unless `shutdown` came before.
  //
  // Required.
  void (*close)(void *ctx);
  // 1 and what it gives for an operation (`OP_*`) on such memory of such a peer (`CLASS_*`), or 0 if it does not do
  // it at all. `OP_SIGNAL` is not asked for: `OP_PUT_SIGNAL` answers for it.
  //
  // Required.
  int32_t (*caps)(void *ctx, uint32_t peer_class, uint32_t memory, uint32_t op, struct CampanileCaps *caps);
  // 1 and the cost if it can reach a peer on that node, before connecting; 0 and the reason if it cannot.
  //
  // Required.
  int32_t (*reach)(void *ctx,
                   uint32_t peer,
                   struct CampanileText node,
                   struct CampanileCost *cost,
                   const struct CampanileSink *reason);
  // Writes what peers need to connect to this rank, any length.
  //
  // Required.
  int32_t (*address)(void *ctx, const struct CampanileSink *address, struct CampanileError *error);
  // Connects to peers; every rank connects to the same ones, itself included. It is done once each of them has called it
  // too; one that is gone is `STATUS_PEER_GONE`. The result is an array of `count` endpoints, in any order.
  //
  // Required.
  int32_t (*connect)(void *ctx,
                     const struct CampanilePeer *peers,
                     size_t count,
                     struct CampanileEndpoint *endpoints,
                     struct CampanileRequest *request,
                     struct CampanileError *error);
  // Registered memory of the transport's own choosing, zeroed, at least 8-byte aligned.
  //
  // Required.
  int32_t (*allocate)(void *ctx,
                      uint64_t bytes,
                      uint32_t memory,
                      struct CampanileRegion *region,
                      struct CampanileRequest *request,
                      struct CampanileError *error);
  // Ends a region of `allocate` or `register`.
  //
  // Required.
  void (*release)(void *ctx, void *region);
  // Writes the key blob by which these connected peers import a region, any length. Each of them imports it once.
  //
  // Required.
  int32_t (*export_key)(void *ctx,
                        void *region,
                        const uint32_t *peers,
                        size_t count,
                        const struct CampanileSink *blob,
                        struct CampanileError *error);
  // A connected peer's exported region. What is not a blob of this very end of the peer, one that its rank gave before it
  // opened this transport for instance, is `STATUS_BAD_PEER_DATA`. The peer may have released the region meanwhile: the
  // import succeeds all the same, and every operation that names the region is an error.
  //
  // Required.
  int32_t (*import_key)(void *ctx,
                        uint32_t peer,
                        struct CampanileBytes blob,
                        struct CampanileRemoteRegion *region,
                        struct CampanileRequest *request,
                        struct CampanileError *error);
  // Ends a region of `import_key`.
  //
  // Required.
  void (*release_remote)(void *ctx, void *region);
  // Makes a queue to a peer or an engine (`TARGET_*` and its number).
  //
  // Required.
  int32_t (*queue)(void *ctx,
                   uint32_t target,
                   uint32_t number,
                   const struct CampanileQueueOptions *options,
                   const struct CampanileQueue **queue,
                   struct CampanileError *error);
  // The job's first fault as a fault word, 0 if there is none. Cheap: waits call it at every turn.
  //
  // Required.
  uint64_t (*fault)(void *ctx);
  // Records a fault for all connected ranks unless there is one; returns the one that stands, the same on every rank.
  // It may take as long as the ranks that run need to learn of it.
  //
  // Required.
  uint64_t (*report)(void *ctx, uint64_t fault);
  // Why a connected peer is gone (`FAULT_*`), 0 while it is there. Never blocks; may cost a system call.
  //
  // Required.
  uint32_t (*gone)(void *ctx, uint32_t peer);
  // Registers the caller's memory, which stays valid until the region is released.
  //
  // Without it memory cannot be registered, only allocated.
  int32_t (*register_memory)(void *ctx,
                             void *address,
                             uint64_t bytes,
                             uint32_t memory,
                             struct CampanileRegion *region,
                             struct CampanileRequest *request,
                             struct CampanileError *error);
  // First byte of a peer's region, where load / store reaches it, or `NULL`; valid until the region is released.
  //
  // Without it load / store reaches nobody.
  void *(*map)(void *ctx, void *region);
  // Tells a peer that a word in its memory was stored through a mapped pointer.
  //
  // Without it a sleeping waiter looks later.
  void (*notify)(void *ctx, uint32_t peer);
  // Waits for a signal, making progress meanwhile, and writes the word that fulfilled the condition. On return
  // everything that the signal covers is visible to the caller.
  //
  // Without it the host looks at the word, which must be in memory of the host; it makes progress on this transport's
  // queues, spins, yields and naps, looks at `fault` and at `gone`, and reports a peer that does not come in time as
  // stalled, also if that one waits for another.
  int32_t (*signal_wait)(void *ctx, const struct CampanileWait *wait, uint64_t *seen, struct CampanileError *error);
  // The next thing that happened to a peer and was not told yet: `EVENT_*`, with the peer. Never blocks.
  //
  // Without it the host asks `gone` of each connected peer.
  uint32_t (*poll_event)(void *ctx, uint32_t *peer);
  // Goes on without a peer that is known dead: no wait for another rank ends for its sake, and a fault whose culprit it is
  // does not count, so that a later one of another rank is told. A wait for a signal of the masked peer itself ends at
  // once, with `STATUS_INVALID`.
  //
  // Without it the host leaves out the peer's faults and its death, and keeps later faults that this rank reports to
  // itself; other ranks learn of those only by their own waits.
  void (*mask)(void *ctx, uint32_t peer);
  // Ends this rank's part: `SHUTDOWN_*`. A second call does nothing, whatever its mode.
  //
  // Without it an abort is reported as this rank's death, and a drain is nothing: `close` comes next, and is a death to the
  // peers.
  int32_t (*shutdown)(void *ctx, uint32_t mode, struct CampanileError *error);
  // What kernels need to use a window by this transport: the view, and its bytes. `memory` is that of the window's part
  // here. The bytes are a `uint64_t` for each member, the first byte of its part as load and store of the device reach it
  // or 0 (never for this rank, and for nobody with FORM_MAP); then a struct `Peer` of the header for
  // each member, `peer_bytes` long. What they name is valid until one of the regions is released.
  //
  // Without it kernels cannot use the transport.
  int32_t (*device_view)(void *ctx,
                         uint32_t memory,
                         struct CampanileDeviceView *view,
                         const struct CampanileSink *bytes,
                         struct CampanileError *error);
} CampanileTransport;

// A plugin. It and all that it points to never change and never go.
//
// The fields up to `struct_size` are at their places in every major version.
typedef struct CampanilePlugin {
  // MAGIC.
  uint64_t magic;
  // MAJOR that the plugin was built for.
  uint32_t abi_major;
  // MINOR that the plugin was built for.
  uint32_t abi_minor;
  // Bytes of this struct, as the plugin knows it.
  uint64_t struct_size;
  // First argument of the functions.
  void *ctx;
  // Name of the transport: what selection prints and accepts.
  struct CampanileText name;
  // Version of the backend.
  struct CampanileText version;
  // Who made it.
  struct CampanileText vendor;
  // One line for people.
  struct CampanileText summary;
  // Version of the device API that its device code is written against (DEVICE_API); 0 if it has
  // none. A host that has not that version refuses the plugin.
  uint32_t device_abi;
  // Must be 0.
  uint32_t reserved;
  // Code for kernels, or `NULL`: kernels cannot use the transport. Experimental.
  const struct CampanileDeviceCode *device_code;
  // Called once, before every other function. The host is valid for ever.
  //
  // Without it nothing is initialised.
  int32_t (*init)(void *ctx, const struct CampanileHost *host, struct CampanileError *error);
  // The devices that it could use, and a reason for each one left out. Cheap, and without a side effect.
  //
  // Required.
  int32_t (*probe)(void *ctx, const struct CampanileDeviceSink *devices, struct CampanileError *error);
  // Opens a device for one rank; any number of times in a process.
  //
  // Required.
  int32_t (*open)(void *ctx,
                  struct CampanileText device,
                  const struct CampanileOpenOptions *options,
                  const struct CampanileTransport **transport,
                  struct CampanileError *error);
} CampanilePlugin;

/* Whether a struct that begins with struct_size reaches as far as a field: only then is the field read or written. Fields
 * that are in version 1.0 always are. */
#define CAMPANILE_HAS(pointer, field) \
  ((const char *)&(pointer)->field + sizeof((pointer)->field) \
   <= (const char *)(pointer) + (pointer)->struct_size)

/* A fault word and its parts. */
#define CAMPANILE_FAULT(kind, culprit, reporter) \
  ((uint64_t)(kind) << 48 | ((uint64_t)(reporter) & 0xffffff) << 24 | ((uint64_t)(culprit) & 0xffffff))
#define CAMPANILE_FAULT_KIND(word) ((uint32_t)((uint64_t)(word) >> 48))
#define CAMPANILE_FAULT_CULPRIT(word) ((uint32_t)((word) & 0xffffff))
#define CAMPANILE_FAULT_REPORTER(word) ((uint32_t)((word) >> 24 & 0xffffff))

/* The only symbol that a plugin needs to export. Returns its table for a host of that major version, or NULL if it has
 * none. */
#ifdef __cplusplus
extern "C"
#endif
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const CampanilePlugin *campanile_transport_plugin(uint32_t host_major);

#endif  /* CAMPANILE_TRANSPORT_H */
