//! The store of a job of processes: [`StoreServer`] in the launcher or on rank 0, [`StoreClient`] in each rank.
//!
//! **Protocol.** That of torch's `TCPStore` (`torch/csrc/distributed/c10d/TCPStore.cpp`, `TCPStoreLibUvBackend.cpp`),
//! so that ranks can join a store of torch's, and torch's clients one of ours. Checked against torch 2.15 in both
//! directions (`tests/torch_store.py`). A request is an opcode of one byte and its arguments, integers little-endian,
//! strings and values behind a 64-bit length, lists behind a 64-bit count. The first request of a connection is
//! `VALIDATE` with a magic number.
//!
//! | request | arguments | answer |
//! |---|---|---|
//! | `VALIDATE` 0 | u32 magic | none |
//! | `SET` 1 | key, value | none |
//! | `COMPARE_SET` 2 | key, expected, desired | value |
//! | `GET` 3 | key | value; an empty one if there is none |
//! | `ADD` 4 | key, i64 | i64 sum; the value is its decimal text |
//! | `CHECK` 5 | keys | 0 if all are there, else 1 |
//! | `WAIT` 6 | keys | 0 once all are there |
//! | `GETNUMKEYS` 7 | | i64 |
//! | `DELETE_KEY` 8 | key | i64: 1 if it was there |
//! | `APPEND` 9 | key, value | none |
//! | `MULTI_GET` 10 | keys | values |
//! | `MULTI_SET` 11 | list of key, value | none |
//! | `CANCEL_WAIT` 12 | | 1; a 0 may be under way before it |
//! | `PING` 13 | u32 | the same |
//! | `QUEUE_PUSH` 14 | key, value | none |
//! | `QUEUE_POP` 15 | key | i64 length before; the value, if that is not 0 |
//! | `QUEUE_LEN` 16 | key | i64 |
//! | `LIST_KEYS` 17 | | i64 count, keys |
//! | `BARRIER` 18 | key, i64 ranks | 0 once as many have come |
//!
//! A wait with a deadline is `WAIT`, and `CANCEL_WAIT` when the deadline has passed. Requests of a connection are
//! answered in order, so a value that was there in time is never missed.
//!
//! **Transport.** A Unix stream socket in the abstract namespace: no file, gone with its process; each side makes sure
//! that the other runs as the same user (`SO_PEERCRED`). Or TCP, where whoever reaches the port is trusted
//! (see `listener`), and keep-alive makes a dead host an error.
//!
//! **Invariants.** The server is one thread and never waits for a client: what a client does not read is kept, and
//! nothing more is read from that client until it has. A client that dies, at any byte, or speaks nonsense, loses its
//! connection and nothing else. Messages are bounded by the limits of torch's server. A client learns that the server
//! is gone by the end of the stream, at once.

mod address;
mod client;
mod connection;
mod listener;
mod map;
mod server;
mod wire;

pub use address::Address;
pub(crate) use address::MAX_NAME;
pub(crate) use client::ConnectError;
pub use client::StoreClient;
pub(crate) use listener::Listener;
pub use server::StoreServer;
pub use wire::{MAX_ANSWER, MAX_KEY, MAX_VALUE};
