// Device code of the test's transport: a ring of slots to each peer, in memory of the host, that a proxy thread executes.
//
// A post reserves a turn, waits until its slot is free, fills it, and publishes it by its turn alone, so that producers
// do not wait for each other. What posts a signal waits until the proxy has executed it: sources are free then.
namespace ring {

using namespace campanile;

constexpr u64 DEPTH = 8;

// As in proxy.rs, like the structs below.
struct Slot {
  u64 turn;            // + 1: published
  u64 source, offset;  // of a put: an address here, an offset in the peer's window
  u64 bytes;
  u64 word, value;  // of a signal: the word's offset in the peer's window; ~0: none
};

struct Ring {
  u64 reserved, completed;
  Slot slots[DEPTH];
};

struct Peer {
  Ring* ring;
};

constexpr u64 NO_WORD = ~u64{0};

struct Queue {
  template <class Group>
  static CAMPANILE_MEMBER void put(const CommunicatorView& c, Group group, u32 peer, u64 offset, const void* source,
                                   u64 bytes) {
    group.meet();
    if (group.index() == 0) post(c, peer, {0, reinterpret_cast<u64>(source), offset, bytes, NO_WORD, 0});
  }
  template <class Group>
  static CAMPANILE_MEMBER void signal(const CommunicatorView& c, Group group, u32 peer, u32 slot, u64 value) {
    put_signal(c, group, peer, 0, nullptr, 0, slot, value);
  }
  template <class Group>
  static CAMPANILE_MEMBER void put_signal(const CommunicatorView& c, Group group, u32 peer, u64 offset,
                                          const void* source, u64 bytes, u32 slot, u64 value) {
    group.meet();
    if (group.index() == 0)
      post(c, peer, {0, reinterpret_cast<u64>(source), offset, bytes, c.signals + 8 * u64{slot}, value});
    // The other threads' sources, too, are free only then.
    group.meet();
  }

 private:
  static CAMPANILE_MEMBER void post(const CommunicatorView& c, u32 peer, const Slot& given) {
    Ring* ring = static_cast<const Peer*>(c.queues)[peer].ring;
    const u64 turn = fetch_add_relaxed<Scope::System>(&ring->reserved, u64{1});
    if (!await(c, peer, ring, turn + 1 - DEPTH)) return;
    Slot* slot = ring->slots + turn % DEPTH;
    store_relaxed<Scope::System>(&slot->source, given.source);
    store_relaxed<Scope::System>(&slot->offset, given.offset);
    store_relaxed<Scope::System>(&slot->bytes, given.bytes);
    store_relaxed<Scope::System>(&slot->word, given.word);
    store_relaxed<Scope::System>(&slot->value, given.value);
    fence_release_window();
    store_relaxed<Scope::System>(&slot->turn, turn + 1);
    if (given.word != NO_WORD) await(c, peer, ring, turn + 1);
  }
  // Until the proxy has completed that many.
  static CAMPANILE_MEMBER bool await(const CommunicatorView& c, u32 peer, Ring* ring, u64 count) {
    u64 seen = 0;
    const Outcome outcome = wait_until(&ring->completed, count, {c.abort, c.deadline}, seen);
    if (outcome != Outcome::Done) fail(c, outcome, 0x71, peer, 0, count, seen);
    return outcome == Outcome::Done;
  }
};

}  // namespace ring
