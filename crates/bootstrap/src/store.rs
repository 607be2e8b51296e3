//! The store of a job of processes: [`StoreServer`] in the launcher, [`StoreClient`] in each rank.
//!
//! **Protocol.** A subset of torch's `TCPStore` (`torch/csrc/distributed/c10d/TCPStore.cpp`, `TCPStoreBackend.hpp`):
//! a request is an opcode of one byte and its arguments, integers little-endian, strings and values behind a 64-bit
//! length, lists behind a 64-bit count. The first request of a connection is `VALIDATE` with a magic number.
//!
//! | request | arguments | answer |
//! |---|---|---|
//! | `VALIDATE` 0 | u32 magic | none |
//! | `SET` 1 | key, value | none |
//! | `GET` 3 | key that is there | value |
//! | `ADD` 4 | key, i64 | i64 sum; the value is its decimal text |
//! | `CHECK` 5 | keys | 0 if all are there, else 1 |
//! | `WAIT` 6 | keys | 0 once all are there |
//! | `CANCEL_WAIT` 12 | | 1; a 0 may be under way before it |
//! | `PING` 13 | u32 | the same |
//!
//! A wait with a deadline is `WAIT`, and `CANCEL_WAIT` when the deadline has passed. Requests of a connection are
//! answered in order, so a value that was there in time is never missed.
//!
//! **Transport.** A Unix stream socket in the abstract namespace: no file, gone with the launcher. Each side makes sure
//! that the other runs as the same user (`SO_PEERCRED`).
//!
//! **Invariants.** The server is one thread and never waits for a client: what a client does not read is kept, and
//! nothing more is read from that client until it has. A client that dies, at any byte, or speaks nonsense, loses its
//! connection and nothing else. Messages are bounded by the limits of torch's server. A client learns that the server
//! is gone by the end of the stream, at once.

mod client;
mod server;
mod wire;

pub use client::StoreClient;
pub use server::StoreServer;
pub use wire::{MAX_KEY, MAX_VALUE};
