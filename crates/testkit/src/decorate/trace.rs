//! Trace: which calls were made, when, and for how long.
//!
//! The newest calls are kept, in a buffer of fixed capacity; how many older ones had to go is counted. Times are those of
//! the monotonic clock, which the ranks of a machine share. Calls that start a control request are traced, not what
//! happens until its end; look-ups that do nothing (`info`, `caps`, `map`, `describe`) and `register` are left out.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use campanile_core::{
    Cancelled, Completion, ControlError, DeviceView, Endpoint, Event, Fault, FaultKind, MemoryKind, Node, Op,
    OpenError, OpenOptions, PostError, Queue, QueueError, QueueOptions, QueueTarget, Rank, Reach, Region, RemoteRegion,
    Request, Shutdown, Ticket, Transport, Wait, WaitError,
};
use campanile_host::clock::now_ns;
use serde_json::json;

use super::options::{Options, Written};
use super::{Decorator, QueueLayer, StackError, TransportLayer, decorated_queue, decorated_transport};

pub(super) const NAME: &str = "trace";

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Who made it.
    pub rank: Rank,
    /// Number of the thread, from 1 in the order in which threads of the process made a first call.
    pub thread: u64,
    /// Its name: the method's.
    pub name: &'static str,
    /// When it began, in nanoseconds of the monotonic clock.
    pub start_ns: u64,
    /// How long it took, in nanoseconds.
    pub duration_ns: u64,
    /// Its arguments and result, in short.
    pub arguments: String,
}

/// Remembers calls. A clone remembers in the same buffer. As text: `trace(events=65536, file=/tmp/trace)`; with a file, the
/// calls of rank R are written as Chrome trace JSON to `/tmp/trace.R.json` when its transport ends.
#[derive(Clone, Debug)]
pub struct Trace {
    buffer: Arc<Mutex<Buffer>>,
    capacity: usize,
    file: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct Buffer {
    calls: VecDeque<Call>,
    dropped: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Self::with_capacity(Self::CAPACITY)
    }
}

impl Trace {
    /// Calls that are kept, unless said otherwise: some 10 MB.
    pub const CAPACITY: usize = 1 << 16;

    pub(super) const OPTIONS: &[&str] = &["events", "file"];

    /// Keeps the newest `calls` calls.
    pub fn with_capacity(calls: usize) -> Self {
        Self { buffer: Arc::default(), capacity: calls.max(1), file: None }
    }

    pub(super) fn from_options(options: &Options<'_>) -> Result<Self, StackError> {
        let events = options.get("events", "a number from 1 to 4294967295", |text| {
            text.parse().ok().filter(|&events: &u32| events > 0)
        })?;
        let file = options.get("file", "a path", |text| (!text.is_empty()).then(|| PathBuf::from(text)))?;
        Ok(Self { file, ..Self::with_capacity(events.map_or(Self::CAPACITY, |events| events as usize)) })
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls that are kept, in the order in which they ended.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.iter().cloned().collect()
    }

    /// How many calls had to go.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// The calls as text in Chrome's trace event format, for `chrome://tracing` or Perfetto: a process a rank.
    pub fn chrome_json(&self) -> String {
        chrome_json(&self.calls(), self.dropped())
    }

    fn record(&self, call: Call) {
        let mut buffer = self.lock();
        if buffer.calls.len() == self.capacity {
            buffer.calls.pop_front();
            buffer.dropped += 1;
        }
        buffer.calls.push_back(call);
    }
}

fn chrome_json(calls: &[Call], dropped: u64) -> String {
    let event = |call: &Call| {
        json!({
            "name": call.name, "cat": "transport", "ph": "X", "pid": call.rank.0, "tid": call.thread,
            "ts": call.start_ns as f64 / 1e3, "dur": call.duration_ns as f64 / 1e3,
            "args": { "call": call.arguments },
        })
    };
    let events: Vec<_> = calls.iter().map(event).collect();
    json!({ "traceEvents": events, "otherData": { "calls dropped": dropped } }).to_string()
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Written::new(NAME)
            .option("events", Some(self.capacity).filter(|capacity| *capacity != Self::CAPACITY))
            .option("file", self.file.as_ref().map(|file| file.display()))
            .fmt(f)
    }
}

impl Decorator for Trace {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decorate(&self, inner: Arc<dyn Transport>, options: &OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        let tracer = Tracer { trace: self.clone(), rank: options.rank };
        Ok(decorated_transport(NAME, TraceTransport { inner, tracer }))
    }
}

/// What the calls of one rank are traced with.
#[derive(Clone)]
struct Tracer {
    trace: Trace,
    rank: Rank,
}

impl Tracer {
    fn call<T>(&self, name: &'static str, call: impl FnOnce() -> T, arguments: impl FnOnce(&T) -> String) -> T {
        let start_ns = now_ns();
        let result = call();
        let duration_ns = now_ns() - start_ns;
        let arguments = arguments(&result);
        self.trace.record(Call { rank: self.rank, thread: thread(), name, start_ns, duration_ns, arguments });
        result
    }
}

/// The number of this thread.
fn thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(1);
    thread_local!(static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed));
    THREAD.with(|thread| *thread)
}

/// How a call ended, in short.
fn ended<T, E: fmt::Display>(result: &Result<T, E>) -> String {
    result.as_ref().map_or_else(|error| format!(": {error}"), |_| String::new())
}

struct TraceTransport {
    inner: Arc<dyn Transport>,
    tracer: Tracer,
}

impl Drop for TraceTransport {
    fn drop(&mut self) {
        let (trace, rank) = (&self.tracer.trace, self.tracer.rank);
        let Some(file) = &trace.file else { return };
        let calls: Vec<_> = trace.calls().into_iter().filter(|call| call.rank == rank).collect();
        let mut path = file.clone().into_os_string();
        path.push(format!(".{}.json", rank.0));
        if let Err(error) = std::fs::write(&path, chrome_json(&calls, trace.dropped())) {
            tracing::warn!(rank = rank.0, ?path, %error, "the trace cannot be written");
        }
    }
}

impl TransportLayer for TraceTransport {
    fn inner(&self) -> &dyn Transport {
        &*self.inner
    }

    fn reach(&self, peer: Rank, node: &Node) -> Reach {
        self.tracer.call("reach", || self.inner.reach(peer, node), |_| format!("{peer} on {node}"))
    }

    fn address(&self) -> Vec<u8> {
        self.tracer.call("address", || self.inner.address(), |address| format!("{} bytes", address.len()))
    }

    fn connect(&self, peers: &[(Rank, Vec<u8>)]) -> Request<Vec<Endpoint>> {
        self.tracer.call("connect", || self.inner.connect(peers), |_| format!("{} ranks", peers.len()))
    }

    fn allocate(&self, bytes: usize, kind: MemoryKind) -> Request<Region> {
        self.tracer.call("allocate", || self.inner.allocate(bytes, kind), |_| format!("{bytes} bytes of {kind} memory"))
    }

    fn export(&self, region: &Region, peers: &[Rank]) -> Result<Vec<u8>, ControlError> {
        let arguments = |result: &_| format!("{region:?} to {} ranks{}", peers.len(), ended(result));
        self.tracer.call("export", || self.inner.export(region, peers), arguments)
    }

    fn import(&self, peer: Rank, blob: &[u8]) -> Request<RemoteRegion> {
        let arguments = |_: &_| format!("{} bytes from {peer}", blob.len());
        self.tracer.call("import", || self.inner.import(peer, blob), arguments)
    }

    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
        let arguments = |result: &_| format!("{target:?}, {} slots{}", options.depth, ended(result));
        let inner = self.tracer.call("queue", || self.inner.queue(target, options), arguments)?;
        Ok(decorated_queue(TraceQueue { inner, tracer: self.tracer.clone(), target }))
    }

    fn notify(&self, peer: Rank) {
        self.tracer.call("notify", || self.inner.notify(peer), |()| peer.to_string());
    }

    fn device_view(&self, region: &Region, remotes: &[RemoteRegion]) -> Result<DeviceView, ControlError> {
        let arguments = |result: &_| format!("{region:?}, {} members{}", remotes.len(), ended(result));
        self.tracer.call("device_view", || self.inner.device_view(region, remotes), arguments)
    }

    fn poll_event(&self) -> Option<Event> {
        self.tracer.call("poll_event", || self.inner.poll_event(), |event| format!("{event:?}"))
    }

    fn gone(&self, peer: Rank) -> Option<FaultKind> {
        self.tracer.call("gone", || self.inner.gone(peer), |gone| format!("{peer}: {gone:?}"))
    }

    fn mask(&self, peer: Rank) {
        self.tracer.call("mask", || self.inner.mask(peer), |()| peer.to_string());
    }

    fn signal_wait(&self, wait: &Wait<'_>) -> Result<u64, WaitError> {
        let arguments = |result: &_| {
            let Wait { operation, slot, peer, offset, condition, .. } = wait;
            format!("{operation}: {slot} of {peer} at {offset}, {condition}{}", ended(result))
        };
        self.tracer.call("signal_wait", || self.inner.signal_wait(wait), arguments)
    }

    fn fault(&self) -> Option<Fault> {
        self.tracer.call("fault", || self.inner.fault(), |fault| format!("{fault:?}"))
    }

    fn report(&self, fault: Fault) -> Fault {
        self.tracer.call("report", || self.inner.report(fault), |first| format!("{fault}; first: {first}"))
    }

    fn shutdown(&self, mode: Shutdown) -> Result<(), ControlError> {
        self.tracer.call("shutdown", || self.inner.shutdown(mode), |result| format!("{mode:?}{}", ended(result)))
    }
}

struct TraceQueue {
    inner: Arc<dyn Queue>,
    tracer: Tracer,
    target: QueueTarget,
}

impl TraceQueue {
    fn call<T>(&self, name: &'static str, call: impl FnOnce(&dyn Queue) -> T, what: impl FnOnce(&T) -> String) -> T {
        self.tracer.call(name, || call(&*self.inner), |result| format!("{:?}{}", self.target, what(result)))
    }
}

/// A list of operations, in short: the kinds in turn, with their bytes.
fn short(ops: &[Op]) -> String {
    const SHOWN: usize = 4;
    let shown = ops.iter().take(SHOWN).map(|op| format!(" {:?} {}", op.kind(), op.bytes()));
    let rest = if ops.len() > SHOWN { format!(" and {} more", ops.len() - SHOWN) } else { String::new() };
    shown.collect::<String>() + &rest
}

impl QueueLayer for TraceQueue {
    fn inner(&self) -> &dyn Queue {
        &*self.inner
    }

    fn post(&self, ops: &[Op]) -> Result<Ticket, PostError> {
        self.call("post", |queue| queue.post(ops), |result| format!("{}{}", short(ops), ended(result)))
    }

    fn ring(&self) -> Result<(), QueueError> {
        self.call("ring", |queue| queue.ring(), ended)
    }

    fn flush(&self) -> Ticket {
        self.call("flush", |queue| queue.flush(), |ticket| format!(": {}", ticket.mark()))
    }

    fn test(&self, ticket: Ticket, completion: Completion) -> Result<bool, QueueError> {
        let what = |result: &Result<bool, _>| match result {
            Ok(done) => format!(" {} {completion:?}: {done}", ticket.mark()),
            Err(error) => format!(" {} {completion:?}: {error}", ticket.mark()),
        };
        self.call("test", |queue| queue.test(ticket, completion), what)
    }

    fn progress(&self) -> Result<usize, QueueError> {
        let what = |result: &Result<usize, _>| match result {
            Ok(done) => format!(": {done}"),
            Err(error) => format!(": {error}"),
        };
        self.call("progress", |queue| queue.progress(), what)
    }

    fn cancel(&self, ticket: Ticket) -> Result<Cancelled, QueueError> {
        self.call("cancel", |queue| queue.cancel(ticket), |result| format!(" {}: {result:?}", ticket.mark()))
    }

    fn wait(&self, ticket: Ticket, completion: Completion, timeout: Duration) -> Result<(), QueueError> {
        let what = |result: &_| format!(" {} {completion:?}{}", ticket.mark(), ended(result));
        self.call("wait", |queue| queue.wait(ticket, completion, timeout), what)
    }
}
