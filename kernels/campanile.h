// campanile.h: the device API, for authors of kernels that communicate.
//
// It stands on portable.h, which says what a kernel may use and how memory is ordered; here are the nouns of the host's
// API for kernels, one file each in device/. The host fills the views, plain structs that are passed by value in a
// kernel's argument (crates/gpu/src/view.rs); a kernel never allocates, and never learns which transport it runs on.
//
//   CommunicatorView c    rank, ranks, window bases, signal words, error, abort and deadline. device/communicator.h
//   RegionView r          a region of the window's arena: at<T>(c, rank, r, i). device/arena.h
//   TeamView t            some of the ranks, in an order: member(t, position). device/team.h
//   Thread, Wave, Block   the threads that do an operation together; all of them call it. device/group.h
//
//   put(c, group, peer, offset, source, bytes)
//                         copies into the peer's window. No order between puts. Offset and source are aligned to 16
//                         bytes, `bytes` is a multiple of 4, 0 is legal. The source stays unchanged until a signal to
//                         that peer.
//   signal(c, group, peer, slot, value)
//                         sets a word of the peer's window, as a strong signal: whoever sees it sees all that the group
//                         has put to that peer before. One thread's stores are not covered by another group's signal.
//   put_signal(c, group, peer, offset, source, bytes, slot, value)
//                         both. The group sends the bytes and the word together.
//   wait(c, group, peer, slot, value, operation)
//                         waits until this rank's word `slot`, which only `peer` writes, has reached `value`; what the
//                         signal covers is then visible to the group. `operation` is for the report.
//   barrier(c, b)         over the ranks of a team and all blocks of the grid. device/barrier.h
//   has_failed(c), fail(c, ...)
//                         device/failure.h
//
// Words. A signal word has one writer and is monotone: it is never reset, and it may wrap. Which slot means what is the
// kernel's to say; slots of different kernels differ.
//
// Failure. Every wait ends: with Outcome::Done, Timeout after the deadline, or Aborted, after the host's abort() or a
// failure of another block. The first failure of a rank is recorded for the host, with operation, peer, slot, and what
// was expected and seen. A kernel that got another outcome than Done publishes nothing more and returns; one that begins
// asks has_failed() first.
//
// Forms. A peer is reached by load and store (MAP: the window is mapped here, and at<T> may be read and written) or by a
// queue (QUEUE: only put and signal reach it). put, signal and put_signal choose by peer; `is_mapped` says. Queues come
// with a transport's header, see device/queue.h; without one every peer is mapped and the choice costs nothing. A kernel
// that is to run on queues puts from this rank's own window, which is registered everywhere, and reads its own window only.
#ifndef CAMPANILE_CAMPANILE_H
#define CAMPANILE_CAMPANILE_H

#include "device/arena.h"
#include "device/barrier.h"
#include "device/communicator.h"
#include "device/failure.h"
#include "device/group.h"
#include "device/put.h"
#include "device/signal.h"
#include "device/team.h"
#include "portable.h"

#endif
