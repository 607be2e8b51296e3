//! Streams: [`Stream`], work of a device in order.

use std::time::{Duration, Instant};

use campanile_host::wait::{SpinPolicy, Step, Waiter};

use crate::calls::StreamHandle;
use crate::{Address, CallError, Device, Event, Graph, Memory};

/// Work that a device does in order. Streams do not wait for each other but through [`Event`]s and words of memory.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    handle: StreamHandle,
    /// Whether dropping it destroys it.
    owned: bool,
}

impl Stream {
    pub(crate) fn new(device: &Device) -> Result<Self, CallError> {
        let handle = device.gpu().calls().stream_create(device.ordinal())?;
        Ok(Self { device: device.clone(), handle, owned: true })
    }

    /// A stream that the caller's engine has made, by its handle (`CUstream`, `hipStream_t`; of PyTorch,
    /// `torch.cuda.Stream.cuda_stream`). Dropping this leaves it alone.
    ///
    /// ```
    /// use campanile_gpu::{Coherence, Emulation, Gpu, Settings, Stream};
    ///
    /// let device = Gpu::emulator(Emulation::default(), &Settings::default())?.device(0)?;
    /// let (engines, memory) = (device.stream()?, device.allocate(2, Coherence::Coarse)?);
    /// // SAFETY: the engine's stream outlives this one.
    /// let stream = unsafe { Stream::borrowed(&device, engines.handle().raw) };
    /// stream.upload(&memory, 0, &[7; 2])?;
    /// drop(stream);
    /// let mut bytes = [0; 2];
    /// engines.download(&memory, 0, &mut bytes)?;
    /// assert_eq!(bytes, [7, 7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// It is a stream of this device, in its primary context, and lives as long as what is returned, and as graphs that were
    /// captured from it.
    #[must_use]
    pub unsafe fn borrowed(device: &Device, raw: usize) -> Self {
        Self { device: device.clone(), handle: StreamHandle { raw, device: device.ordinal() }, owned: false }
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The library's handle (`CUstream`, `hipStream_t`).
    #[must_use]
    pub fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// Whether all its work is done.
    ///
    /// # Errors
    /// Those of the work.
    pub fn done(&self) -> Result<bool, CallError> {
        // SAFETY: own handle.
        unsafe { self.device.gpu().calls().stream_done(self.handle) }
    }

    /// Waits until all its work is done, up to `patience`. The libraries' own waits have no deadline, so this polls:
    /// it spins, yields, then sleeps 50 µs at a time.
    ///
    /// # Errors
    /// [`CallError::Timeout`], and errors of the work.
    pub fn synchronize(&self, patience: Duration) -> Result<(), CallError> {
        poll(patience, "the work of a stream", || self.done())
    }

    /// Copies into device memory at `offset`, and waits until that is done. For set-up and tests: it waits for the
    /// stream's earlier work too, without a deadline.
    ///
    /// # Errors
    /// [`CallError::Unsupported`] if it does not fit, and those of the call.
    pub fn upload(&self, target: &impl Memory, offset: usize, bytes: &[u8]) -> Result<(), CallError> {
        let address = self.span(target, offset, bytes.len())?;
        // SAFETY: within the memory; the slice lives until the wait has ended.
        unsafe {
            self.copy(address, bytes.as_ptr() as Address, bytes.len())?;
            self.device.gpu().calls().stream_synchronize(self.handle)
        }
    }

    /// Copies out of device memory at `offset`, and waits as [`upload`](Self::upload) does.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn download(&self, source: &impl Memory, offset: usize, bytes: &mut [u8]) -> Result<(), CallError> {
        let address = self.span(source, offset, bytes.len())?;
        // SAFETY: within the memory; the slice lives until the wait has ended.
        unsafe {
            self.copy(bytes.as_mut_ptr() as Address, address, bytes.len())?;
            self.device.gpu().calls().stream_synchronize(self.handle)
        }
    }

    /// Sets each byte of `memory`, in stream order.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// The memory lives until the stream has done it.
    pub unsafe fn fill(&self, memory: &impl Memory, value: u8) -> Result<(), CallError> {
        if memory.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.device.gpu().calls().set(memory.address(), value, memory.bytes(), self.handle) }
    }

    /// Copies between any two memories, in stream order.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// Both are mapped for the device, for `bytes` bytes, until the stream has done it.
    pub unsafe fn copy(&self, target: Address, source: Address, bytes: usize) -> Result<(), CallError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.device.gpu().calls().copy(target, source, bytes, self.handle) }
    }

    /// Writes a 64-bit word, after the stream's earlier work.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// The word is mapped for the device, aligned, and lives until the stream has done it.
    pub unsafe fn write_value(&self, word: Address, value: u64) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { self.device.gpu().calls().stream_write(self.handle, word, value) }
    }

    /// Holds the stream until the 64-bit word is at least `value`; a word that wraps means another thing to each vendor. No
    /// deadline: an abort writes the word.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// As [`write_value`](Self::write_value).
    pub unsafe fn wait_value(&self, word: Address, value: u64) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { self.device.gpu().calls().stream_wait(self.handle, word, value) }
    }

    /// Holds the stream until what `event` recorded is done.
    ///
    /// # Errors
    /// Those of the call.
    pub fn wait_event(&self, event: &Event) -> Result<(), CallError> {
        // SAFETY: both are alive; the library keeps what it needs of the event.
        unsafe { self.device.gpu().calls().event_wait(event.handle(), self.handle) }
    }

    /// Records what `work` gives to this stream, instead of running it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use campanile_gpu::{Coherence, Emulation, Gpu, Settings};
    ///
    /// let device = Gpu::emulator(Emulation::default(), &Settings::default())?.device(0)?;
    /// let (stream, memory) = (device.stream()?, device.allocate(2, Coherence::Coarse)?);
    /// // SAFETY: the memory outlives the download, which waits for all launches.
    /// let graph = stream.capture(|stream| unsafe { stream.fill(&memory, 7) })?;
    /// unsafe { graph.launch(&stream)? };
    /// let mut bytes = [0; 2];
    /// stream.download(&memory, 0, &mut bytes)?;
    /// assert_eq!(bytes, [7, 7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `work`, and of the calls; a capture that failed is ended.
    pub fn capture<E: From<CallError>>(&self, work: impl FnOnce(&Self) -> Result<(), E>) -> Result<Graph, E> {
        let calls = self.device.gpu().calls();
        // SAFETY: own handle; the graph's handle goes to its owner.
        unsafe {
            calls.capture_begin(self.handle)?;
            let worked = work(self);
            let graph = calls.capture_end(self.handle);
            match (worked, graph) {
                (Ok(()), Ok(graph)) => Ok(Graph::new(self, graph)?),
                (Err(error), Ok(graph)) => {
                    let _ = calls.graph_destroy(graph);
                    Err(error)
                }
                (Err(error), Err(_)) => Err(error),
                (Ok(()), Err(error)) => Err(error.into()),
            }
        }
    }

    fn span(&self, memory: &impl Memory, offset: usize, bytes: usize) -> Result<Address, CallError> {
        if offset.checked_add(bytes).is_none_or(|end| end > memory.bytes()) {
            return Err(CallError::Unsupported {
                backend: self.device.gpu().backend(),
                what: format!("copy {bytes} bytes at offset {offset}"),
                reason: format!("the memory has {} bytes", memory.bytes()),
            });
        }
        Ok(memory.address() + offset as Address)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        // SAFETY: own handle, destroyed once.
        if let Err(error) = unsafe { self.device.gpu().calls().stream_destroy(self.handle) } {
            tracing::warn!(%error, "a stream was not destroyed");
        }
    }
}

/// Looks at `done` until it is, or `patience` is over: the vendors' blocking calls have no deadline.
pub(crate) fn poll(
    patience: Duration,
    what: &'static str,
    mut done: impl FnMut() -> Result<bool, CallError>,
) -> Result<(), CallError> {
    let deadline = Instant::now() + patience;
    let policy = SpinPolicy { sleep_slice: Duration::from_micros(50), ..SpinPolicy::SHARED };
    let mut waiter = Waiter::new(policy);
    while !done()? {
        if Instant::now() > deadline {
            return Err(CallError::Timeout { what, milliseconds: patience.as_millis() });
        }
        match waiter.step() {
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => std::thread::yield_now(),
            Step::Sleep(slice) => std::thread::sleep(slice),
        }
    }
    Ok(())
}
