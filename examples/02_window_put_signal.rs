//! One-sided communication: a put, a signal that announces it, and a wait, by load / store and by a queue.
//!
//! A window is memory that every rank has the same number of bytes of. Rank 0 writes into rank 1's part of it; rank 1
//! waits for a word in its own part and then reads.
//!
//! `cargo run -p campanile-examples --example 02_window_put_signal`

use std::error::Error;

use campanile::core::{
    Agent, LocalAddress, QueueOptions, QueueTarget, RemoteAddress, SignalAction, SignalUpdate, Strength,
};
use campanile::{Arena, CommOptions, Communicator, Completion, Condition, MemoryKind, Op, Path, Wait, Window, threads};

const MESSAGE: usize = 32;
const SENDER: usize = 0;
const RECEIVER: usize = 1;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    // `Auto` takes load / store where that reaches the peer, `Queue` the command ring even then. What is sent is the same.
    for path in [Path::Auto, Path::Queue] {
        let options = CommOptions { path, ..CommOptions::default() };
        let ranks = threads(2, &options, |comm| exchange(&comm));
        let messages: Vec<_> = ranks.into_iter().collect::<Result<_>>()?;
        assert_eq!(messages, [vec![], vec!["a put, then a signal", "both in one operation"]]);
        println!("path {}: {:?}", path.name(), messages[RECEIVER]);
    }
    Ok(())
}

/// One rank's part: the messages that it received.
fn exchange(comm: &Communicator) -> Result<Vec<String>> {
    // The layout is computed once and is the same on every rank; `println!("{arena}")` shows it as a map.
    let mut arena = Arena::new();
    let word = arena.carve("arrived", "word", 8, 1)?.offset;
    let outgoing = arena.carve("outgoing", "u8[32]", MESSAGE, 1)?.offset;
    let incoming = arena.carve("incoming", "u8[32]", MESSAGE, 2)?;
    let window = comm.window(arena.bytes(), MemoryKind::Host)?;

    if comm.rank() == SENDER {
        // By the window, which knows the path.
        write(&window, outgoing, "a put, then a signal");
        window.put(RECEIVER, window.region(), outgoing, incoming.at(0), MESSAGE)?;
        window.signal(RECEIVER, word, 1)?;
        // The source is this rank's again.
        window.flush(RECEIVER)?;

        // By a queue of one's own: bytes and signal are one operation, and a ticket tells how far it has come.
        write(&window, outgoing, "both in one operation");
        let peer = comm.team().member(RECEIVER);
        let queue = comm.transport().queue(QueueTarget::Peer(peer), QueueOptions::default())?;
        let remote = window.remote(RECEIVER).key();
        let ticket = queue.post(&[Op::PutSignal {
            source: LocalAddress { region: window.region().key(), offset: outgoing as u64 },
            target: RemoteAddress { region: remote, offset: incoming.at(1) as u64 },
            bytes: MESSAGE as u64,
            signal: SignalUpdate {
                target: RemoteAddress { region: remote, offset: word as u64 },
                action: SignalAction::Set,
                value: 2,
                strength: Strength::Weak,
            },
        }])?;
        queue.wait(ticket, Completion::Remote(Agent::Cpu), comm.timeout())?;
        return Ok(Vec::new());
    }

    let mut messages = Vec::new();
    for number in 0..2 {
        // A word only grows, so that it needs no reset. Every wait has a deadline; its error names the peer and the word.
        comm.wait(&Wait {
            region: window.region(),
            offset: word,
            condition: Condition::AtLeast(number as u64 + 1),
            peer: comm.team().member(SENDER),
            operation: "example",
            slot: "arrived",
            epoch: number as u64,
        })?;
        messages.push(read(&window, incoming.at(number)));
    }
    Ok(messages)
}

/// Writes a message into this rank's own part of the window.
fn write(window: &Window, offset: usize, text: &str) {
    let mut message = [0; MESSAGE];
    message[..text.len()].copy_from_slice(text.as_bytes());
    assert!(offset + MESSAGE <= window.bytes());
    // SAFETY: inside the region (just checked), which lives as long as `window`. Only this rank reads and writes its
    // outgoing message, and a put of the last one has completed.
    unsafe { window.region().address().add(offset).copy_from_nonoverlapping(message.as_ptr(), MESSAGE) }
}

/// Reads a message from this rank's own part of the window.
fn read(window: &Window, offset: usize) -> String {
    let mut message = [0; MESSAGE];
    assert!(offset + MESSAGE <= window.bytes());
    // SAFETY: inside the region (just checked), which lives as long as `window`. The sender wrote it before the signal
    // that was waited for, and writes each place once.
    unsafe { window.region().address().add(offset).copy_to_nonoverlapping(message.as_mut_ptr(), MESSAGE) }
    String::from_utf8_lossy(&message).trim_end_matches('\0').to_owned()
}
