//! Tickets: snapshots of a queue that can be waited for.

/// What a post or a flush returned. Opaque; belongs to the queue that gave it.
///
/// It stands for all posts of that queue up to a point, can be tested any number of times, by anyone, in any order,
/// and stays fulfilled once it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    queue: u64,
    mark: u64,
}

/// How far a ticket must have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The sources are reusable, results are there.
    Local,
    /// Target memory is updated and visible to that agent.
    Remote(Agent),
}

/// Who must see the bytes. A NIC's acknowledgement alone is not visibility in GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
    /// The target's CPUs.
    Cpu,
    /// The target's GPU.
    Gpu,
    /// The target's NIC.
    Nic,
}

impl Ticket {
    /// The ticket that `queue` gives for `mark`. For transports.
    pub const fn new(queue: u64, mark: u64) -> Self {
        Self { queue, mark }
    }

    /// The queue that gave it.
    pub const fn queue(self) -> u64 {
        self.queue
    }

    /// What it stands for, in the terms of that queue.
    pub const fn mark(self) -> u64 {
        self.mark
    }
}
