// What a link carries: peer stores, peer loads, bulk loads, and a copy in own memory. `campanile bench link` says what each
// figure means; nothing here waits for another rank.
//
// Window: `send`, what is read, and `receive`, a slice for each source. A wave moves a chunk at a time; chunks go to, or
// come from, the peers in turn, so that all links are busy at once.
#include "campanile.h"
#include "link/bulk.h"

using namespace campanile;

struct TransferArguments {
  CommunicatorView comm;
  RegionView send;     // [peers] slices
  RegionView receive;  // [ranks] slices
  u64 bytes;           // with each peer, a multiple of 64 KiB
  u32 peers;           // those after this rank, in order; 0: own memory
  u32* sink;           // never written, but the compiler does not know
};

constexpr u32 ROWS = 8;  // that a lane has in flight
constexpr u32 CHUNK = WAVE * ROWS;

CAMPANILE_DEVICE u32 peer_of(const TransferArguments& a, u32 number) { return (a.comm.rank + 1 + number) % a.comm.ranks; }

// For each chunk of this wave: its peer's number, and the row of its slice that this lane begins with.
template <class Body>
CAMPANILE_DEVICE void for_chunks(const TransferArguments& a, Body body) {
  const u32 peers = a.peers == 0 ? 1 : a.peers;
  const u64 chunks = a.bytes / 16 / CHUNK * peers, waves = grid_threads() / WAVE;
  for (u64 chunk = grid_thread_index() / WAVE; chunk < chunks; chunk += waves)
    body(static_cast<u32>(chunk % peers), chunk / peers * CHUNK + lane());
}

CAMPANILE_KERNEL(link_store, 512, TransferArguments, a) {
  for_chunks(a, [&](u32 number, u64 row) {
    const Vec16* from = at<Vec16>(a.comm, a.comm.rank, a.send, number) + row;
    Vec16* to = at<Vec16>(a.comm, peer_of(a, number), a.receive, a.comm.rank) + row;
    Vec16 v[ROWS];
    CAMPANILE_UNROLL
    for (u32 k = 0; k < ROWS; k++) v[k] = load16_stream(from + WAVE * k);
    CAMPANILE_UNROLL
    for (u32 k = 0; k < ROWS; k++) store16_window(to + WAVE * k, v[k]);
  });
}

CAMPANILE_KERNEL(link_load, 512, TransferArguments, a) {
  u32 sum = 0;
  for_chunks(a, [&](u32 number, u64 row) {
    const u32 peer = peer_of(a, number);
    // The slice that this peer keeps for this rank.
    const u32 mine = (a.comm.rank + a.comm.ranks - peer - 1) % a.comm.ranks;
    const Vec16* from = at<Vec16>(a.comm, peer, a.send, mine) + row;
    const Vec16* p[ROWS];
    Vec16 v[ROWS];
    CAMPANILE_UNROLL
    for (u32 k = 0; k < ROWS; k++) p[k] = from + WAVE * k;
    load16_window(p, v);
    CAMPANILE_UNROLL
    for (u32 k = 0; k < ROWS; k++) sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  });
  if (sum == 0x9e3779b9u) store(a.sink, sum);
}

CAMPANILE_KERNEL(link_copy, 512, TransferArguments, a) {
  for_chunks(a, [&](u32, u64 row) {
    const Vec16* from = at<Vec16>(a.comm, a.comm.rank, a.send, 0) + row;
    Vec16* to = at<Vec16>(a.comm, a.comm.rank, a.receive, 0) + row;
    Vec16 v[ROWS];
    CAMPANILE_UNROLL
    for (u32 k = 0; k < ROWS; k++) v[k] = load16_stream(from + WAVE * k);
    CAMPANILE_UNROLL
    for (u32 k = 0; k < ROWS; k++) store16_stream(to + WAVE * k, v[k]);
  });
}

#if defined(CAMPANILE_BULK)
constexpr u32 STAGES = 16, BULK_BYTES = 8192;

// One thread a block keeps a ring of chunks in flight; nobody reads them. Dynamic shared memory: STAGES * BULK_BYTES.
CAMPANILE_KERNEL(link_bulk_load, 64, TransferArguments, a) {
  CAMPANILE_DYNAMIC_SHARED(Vec16, ring);
  CAMPANILE_SHARED u64 barriers[STAGES];
  if (thread_index() != 0) return;
  for (u32 stage = 0; stage < STAGES; stage++) bulk_init(&barriers[stage]);
  bulk_ready();
  const u64 chunks = a.bytes / BULK_BYTES * a.peers;
  u64 loaded = 0, awaited = 0;
  for (u64 chunk = block_index(); chunk < chunks; chunk += grid_blocks()) {
    const u32 number = static_cast<u32>(chunk % a.peers), peer = peer_of(a, number);
    const u32 mine = (a.comm.rank + a.comm.ranks - peer - 1) % a.comm.ranks;
    const u32 stage = static_cast<u32>(loaded % STAGES);
    if (loaded - awaited == STAGES) {
      bulk_wait(&barriers[stage], static_cast<u32>(awaited / STAGES % 2));
      awaited++;
    }
    bulk_load(reinterpret_cast<u8*>(ring) + stage * BULK_BYTES,
              at<u8>(a.comm, peer, a.send, mine) + chunk / a.peers * BULK_BYTES, BULK_BYTES, &barriers[stage]);
    loaded++;
  }
  for (; awaited < loaded; awaited++) bulk_wait(&barriers[awaited % STAGES], static_cast<u32>(awaited / STAGES % 2));
}
#endif
