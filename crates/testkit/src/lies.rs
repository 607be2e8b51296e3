//! Transports that are wrong on purpose, each in one way: what the [conformance](crate::conformance) suite must find.
//!
//! **Model.** A [`LyingPlugin`] wraps a transport whose queues execute in order on host memory, such as shared memory.
//! It hides load / store, and its queues execute one operation at a time, when somebody makes progress, as a transport
//! with an engine of its own would. Without a [`Lie`] that is an honest transport: the suite passes, so whatever the
//! suite finds in a liar is its lie.
//!
//! No lie touches memory that it must not: where one accepts what should be refused, nothing is done instead.
//!
//! ```
//! use campanile_core::TransportPlugin;
//! use campanile_testkit::lies::{Lie, LyingPlugin};
//!
//! let liar = LyingPlugin::new(&campanile_shm::ShmPlugin, Some(Lie::LostSignal));
//! assert_eq!(liar.info().name, "shm");
//! assert_eq!(Lie::LostSignal.says(), "now and then a signal is lost");
//! ```

mod queue;
mod transport;

use std::sync::Arc;

use campanile_core::{OpenError, OpenOptions, Probed, Transport, TransportInfo, TransportPlugin};

use transport::LyingTransport;

/// Makes the enum, the list of all, and what each says of itself.
macro_rules! lies {
    ($($name:ident: $says:literal,)+) => {
        /// One way to break the contract.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Lie {
            $(#[doc = $says] $name,)+
        }

        impl Lie {
            /// Every lie.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// What it is, in words.
            pub const fn says(self) -> &'static str {
                match self {
                    $(Self::$name => $says,)+
                }
            }
        }
    };
}

lies! {
    StrongSignalEarly: "a strong signal is delivered before earlier puts",
    WeakSignalEarly: "a weak signal is delivered before the put that it is bundled with",
    FenceIgnored: "puts pass a fence",
    GetPassesFence: "a get is answered after what is behind its fence",
    PutsOutOfOrder: "puts are reordered although the caps claim order",
    LocalCompletionEarly: "local completion is told before the source was read",
    RemoteCompletionEarly: "remote completion is told before the target was written",
    LostSignal: "now and then a signal is lost",
    EmptySignalLost: "a put of 0 bytes loses its signal",
    AddTwice: "an adding signal is applied twice",
    WordsTorn: "signal words are written in two halves",
    AtomicsRace: "an atomic reads, then writes",
    LastByteLost: "of large puts the last byte is not written",
    OffsetsOf32Bits: "remote and local offsets are cut to 32 bits",
    FlushRings: "a flush rings the doorbell",
    FlushWaits: "a flush waits for completion",
    RingBlocks: "a ring with much behind it waits for the peers",
    DrainForgets: "a drain forgets what was not rung",
    TicketsOf16Bits: "tickets are compared by their low 16 bits",
    ForeignTicketAccepted: "a ticket of another queue is taken for one's own",
    CancelDoesNothing: "cancel says stopped, and what it stopped runs",
    TooLargeIsBusy: "a list that never fits is told to be busy, for ever",
    RefusedListHalfQueued: "of a refused list the part before the illegal operation is queued",
    RangeUnchecked: "a range beyond a region is accepted",
    MisalignedAccepted: "a misaligned word is accepted",
    StaleKeyAccepted: "the key of a dropped region is accepted",
    FailureSwallowed: "an operation that failed is told to be complete",
    FailureForgotten: "a failed queue works again",
    MemoryNotZeroed: "allocated memory is not zeroed",
    DeathUntold: "a dead peer is never gone; waits for it run into the deadline",
    LastSignalIgnored: "a wait for a rank that is gone does not look at its word any more",
    AbortUntold: "a reported fault reaches nobody",
    NeighbourBlamed: "whoever is waited for is blamed, not whoever died",
    EventsRepeated: "the end of a peer is told again and again",
    MaskIgnored: "a mask changes nothing",
    MaskedWaitHangs: "a wait for a masked rank runs into the deadline",
}

/// A transport that lies in one way, or not at all.
pub struct LyingPlugin {
    inner: &'static dyn TransportPlugin,
    lie: Option<Lie>,
}

impl LyingPlugin {
    /// Wraps `inner`; honest if there is no lie.
    pub fn new(inner: &'static dyn TransportPlugin, lie: Option<Lie>) -> Self {
        Self { inner, lie }
    }
}

impl TransportPlugin for LyingPlugin {
    fn info(&self) -> TransportInfo {
        self.inner.info()
    }

    fn probe(&self) -> Vec<Probed> {
        self.inner.probe()
    }

    fn open(&self, device: &str, options: OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        let timeout = options.timeout;
        Ok(Arc::new(LyingTransport::new(self.inner.open(device, options)?, self.lie, timeout)))
    }
}
