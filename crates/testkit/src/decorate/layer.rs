//! Layers: what a decorator is made of.
//!
//! A layer is written as what it changes: every method of [`TransportLayer`] and [`QueueLayer`] passes the call on unless
//! it is overridden. [`decorated_transport`] and [`decorated_queue`] make a transport and a queue of a layer; what all
//! layers have in common is done there once: the name of the stack, hiding load / store, and keeping track of regions.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use campanile_core::{
    Cancelled, Caps, Completion, ControlError, DeviceView, Endpoint, Event, Fault, FaultKind, Memory, MemoryKind, Node,
    Op, OpKind, OpenError, OpenOptions, PeerClass, PostError, Probed, Queue, QueueError, QueueOptions, QueueTarget,
    Rank, Reach, Region, RemoteRegion, Request, Shutdown, Ticket, Transport, TransportInfo, TransportPlugin, Wait,
    WaitError,
};

use super::Regions;

/// Puts a layer around each transport that a plugin opens. The text of those of this crate is one that a
/// [`Stack`](super::Stack) reads.
///
/// # Example
///
/// A decorator that says no to large puts; everything else it passes on:
///
/// ```
/// use std::fmt;
/// use std::sync::Arc;
///
/// use campanile_core::{
///     ControlError, Op, OpenError, OpenOptions, PostError, Queue, QueueOptions, QueueTarget, Ticket, Transport,
///     TransportPlugin,
/// };
/// use campanile_testkit::decorate::{
///     Decorator, QueueLayer, Stack, TransportLayer, decorated_queue, decorated_transport,
/// };
///
/// struct Small;
///
/// impl fmt::Display for Small {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         f.write_str(self.name())
///     }
/// }
///
/// impl Decorator for Small {
///     fn name(&self) -> &'static str {
///         "small"
///     }
///
///     fn decorate(&self, inner: Arc<dyn Transport>, _: &OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
///         Ok(decorated_transport(self.name(), SmallTransport(inner)))
///     }
/// }
///
/// struct SmallTransport(Arc<dyn Transport>);
///
/// impl TransportLayer for SmallTransport {
///     fn inner(&self) -> &dyn Transport {
///         &*self.0
///     }
///
///     fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
///         Ok(decorated_queue(SmallQueue(self.0.queue(target, options)?)))
///     }
/// }
///
/// struct SmallQueue(Arc<dyn Queue>);
///
/// impl QueueLayer for SmallQueue {
///     fn inner(&self) -> &dyn Queue {
///         &*self.0
///     }
///
///     fn post(&self, ops: &[Op]) -> Result<Ticket, PostError> {
///         match ops.iter().position(|op| op.bytes() > 64) {
///             Some(index) => Err(PostError::Invalid { index, reason: "more than 64 bytes".to_owned() }),
///             None => self.0.post(ops),
///         }
///     }
/// }
///
/// let plugin = Stack::new().with(Small).apply(Arc::new(campanile_shm::ShmPlugin));
/// assert_eq!(plugin.info().name, "shm+small");
/// ```
pub trait Decorator: Any + fmt::Display + Send + Sync {
    /// What the names of its transports end with.
    fn name(&self) -> &'static str;

    /// A transport around `inner`, which was opened with `options`.
    ///
    /// # Errors
    /// [`OpenError`] if the decorator's own means cannot be had.
    fn decorate(&self, inner: Arc<dyn Transport>, options: &OpenOptions) -> Result<Arc<dyn Transport>, OpenError>;
}

/// A plugin with a decorator around what it opens.
pub(super) struct DecoratedPlugin {
    pub(super) inner: Arc<dyn TransportPlugin>,
    pub(super) decorator: Arc<dyn Decorator>,
}

impl TransportPlugin for DecoratedPlugin {
    fn info(&self) -> TransportInfo {
        stacked(self.inner.info(), self.decorator.name())
    }

    fn probe(&self) -> Vec<Probed> {
        self.inner.probe()
    }

    fn open(&self, device: &str, options: OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        let inner = self.inner.open(device, options.clone())?;
        self.decorator.decorate(inner, &options)
    }
}

/// `info` with a decorator's name behind the transport's.
fn stacked(info: TransportInfo, decorator: &str) -> TransportInfo {
    TransportInfo { name: lasting(format!("{}+{decorator}", info.name)), ..info }
}

/// A name that lasts as long as the process; each different one is kept once.
fn lasting(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.insert(name);
    name
}

/// Makes a layer's trait, whose methods pass calls on, and the object around such a layer, which calls them. What the
/// object treats for all layers is written out under `treated`.
macro_rules! layer {
    (
        $(#[$meta:meta])*
        trait $layer:ident of $inner:ident { $($own:item)* }
        object $object:ident treated { $($treatment:item)* }
        treated: $(fn $treated:ident(&self $(, $t_argument:ident: $t_type:ty)*) $(-> $t_result:ty)?;)*
        passed: $(fn $passed:ident(&self $(, $p_argument:ident: $p_type:ty)*) $(-> $p_result:ty)?;)*
    ) => {
        $(#[$meta])*
        #[allow(clippy::missing_errors_doc, reason = "the doc of the method that each stands for tells")]
        pub trait $layer: Send + Sync + 'static {
            $($own)*

            /// What it is around.
            fn inner(&self) -> &dyn $inner;

            $(
                #[doc = concat!("As [`", stringify!($inner), "::", stringify!($treated), "`]; passed on unless overridden.")]
                #[inline]
                fn $treated(&self $(, $t_argument: $t_type)*) $(-> $t_result)? {
                    self.inner().$treated($($t_argument),*)
                }
            )*

            $(
                #[doc = concat!("As [`", stringify!($inner), "::", stringify!($passed), "`]; passed on unless overridden.")]
                #[inline]
                fn $passed(&self $(, $p_argument: $p_type)*) $(-> $p_result)? {
                    self.inner().$passed($($p_argument),*)
                }
            )*
        }

        impl<L: $layer> $inner for $object<L> {
            $($treatment)*

            $(
                #[inline]
                fn $passed(&self $(, $p_argument: $p_type)*) $(-> $p_result)? {
                    self.layer.$passed($($p_argument),*)
                }
            )*
        }
    };
}

/// The queue of a layer.
pub fn decorated_queue(layer: impl QueueLayer) -> Arc<dyn Queue> {
    Arc::new(DecoratedQueue { layer })
}

struct DecoratedQueue<L> {
    layer: L,
}

layer! {
    /// What a decorator changes of a queue.
    trait QueueLayer of Queue {}

    object DecoratedQueue treated {}

    treated:

    passed:
    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError>;
    fn ring(&self) -> Result<(), QueueError>;
    fn flush(&self) -> Ticket;
    fn test(&self, ticket: Ticket, completion: Completion) -> Result<bool, QueueError>;
    fn progress(&self) -> Result<usize, QueueError>;
    fn cancel(&self, ticket: Ticket) -> Result<Cancelled, QueueError>;
    fn wait(&self, ticket: Ticket, completion: Completion, timeout: Duration) -> Result<(), QueueError>;
    fn describe(&self) -> String;
}

/// The transport of a layer; `name` is the decorator's.
pub fn decorated_transport(name: &str, layer: impl TransportLayer) -> Arc<dyn Transport> {
    let mut info = stacked(layer.inner().info(), name);
    if layer.hides_load_store() {
        info.device_code = None;
    }
    Arc::new(DecoratedTransport { layer, info })
}

struct DecoratedTransport<L> {
    layer: L,
    info: TransportInfo,
}

layer! {
    /// What a decorator changes of a transport.
    trait TransportLayer of Transport {
        /// Whether it must see every byte: its caps deny load / store, and nothing is mapped.
        fn hides_load_store(&self) -> bool {
            false
        }

        /// Where regions are kept track of, for a layer that must know them. The layer then sees regions of its own,
        /// which stand for those of the transport that it is around.
        fn regions(&self) -> Option<&Arc<Regions>> {
            None
        }
    }

    object DecoratedTransport treated {
        fn info(&self) -> TransportInfo {
            self.info.clone()
        }

        fn caps(&self, class: PeerClass, memory: MemoryKind, op: OpKind) -> Option<Caps> {
            let caps = self.layer.caps(class, memory, op)?;
            Some(Caps { load_store: caps.load_store && !self.layer.hides_load_store(), ..caps })
        }

        fn allocate(&self, bytes: usize, kind: MemoryKind) -> Request<Region> {
            kept(self.layer.regions(), self.layer.allocate(bytes, kind))
        }

        unsafe fn register(&self, memory: Memory) -> Request<Region> {
            // SAFETY: the caller's promise is the same; what is kept of the region does not keep it alive.
            kept(self.layer.regions(), unsafe { self.layer.inner().register(memory) })
        }

        fn export(&self, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError> {
            self.layer.export(self.layer.regions().map_or(region, |regions| regions.inner(region)), peers)
        }

        fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion> {
            let request = self.layer.import(peer, blob);
            match self.layer.regions().map(Arc::clone) {
                Some(regions) => request.map(move |region| regions.keep_remote(region)),
                None => request,
            }
        }

        fn map(&self, region: &RemoteRegion) -> Option<NonNull<u8>> {
            if self.layer.hides_load_store() {
                return None;
            }
            self.layer.map(self.layer.regions().map_or(region, |regions| regions.inner_remote(region)))
        }

        fn reaches_registered(&self, peer: Rank) -> Result<(), String> {
            if self.layer.hides_load_store() {
                return Err(format!("{} must see every byte", self.info.name));
            }
            self.layer.reaches_registered(peer)
        }

        fn device_view(&self, region: &Region, remotes: &[RemoteRegion]) -> Result<DeviceView, ControlError> {
            if self.layer.hides_load_store() {
                let (transport, what) = (self.info.name, "device view");
                let reason = "it must see every byte, and sees none of kernels".to_owned();
                return Err(ControlError::Unsupported { transport, what, reason });
            }
            let Some(regions) = self.layer.regions() else { return self.layer.device_view(region, remotes) };
            let remotes: Vec<_> = remotes.iter().map(|remote| regions.inner_remote(remote).clone()).collect();
            self.layer.device_view(regions.inner(region), &remotes)
        }

        fn signal_wait(&self, wait: &Wait<'_>) -> Result<u64, WaitError> {
            let region = self.layer.regions().map_or(wait.region, |regions| regions.inner(wait.region));
            self.layer.signal_wait(&Wait { region, ..*wait })
        }
    }

    treated:
    fn caps(&self, class: PeerClass, memory: MemoryKind, op: OpKind) -> Option<Caps>;
    fn allocate(&self, bytes: usize, kind: MemoryKind) -> Request<Region>;
    fn export(&self, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError>;
    fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion>;
    fn map(&self, region: &RemoteRegion) -> Option<NonNull<u8>>;
    fn reaches_registered(&self, peer: Rank) -> Result<(), String>;
    fn device_view(&self, region: &Region, remotes: &[RemoteRegion]) -> Result<DeviceView, ControlError>;
    fn signal_wait(&self, wait: &Wait<'_>) -> Result<u64, WaitError>;

    passed:
    fn reach(&self, peer: Rank, node: &Node) -> Reach;
    fn address(&self) -> Vec<u8>;
    fn connect(&self, peers: &[(Rank, Vec<u8>)]) -> Request<Vec<Endpoint>>;
    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError>;
    fn notify(&self, peer: Rank);
    fn poll_event(&self) -> Option<Event>;
    fn gone(&self, peer: Rank) -> Option<FaultKind>;
    fn mask(&self, peer: Rank);
    fn follows_waits(&self) -> bool;
    fn fault(&self) -> Option<Fault>;
    fn report(&self, fault: Fault) -> Fault;
    fn shutdown(&self, mode: Shutdown) -> Result<(), ControlError>;
}

fn kept(regions: Option<&Arc<Regions>>, request: Request<Region>) -> Request<Region> {
    match regions.map(Arc::clone) {
        Some(regions) => request.map(move |region| regions.keep(region)),
        None => request,
    }
}
