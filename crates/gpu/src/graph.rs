//! Graphs: [`Graph`], captured work that is launched as one.

use crate::calls::{GraphExecHandle, GraphHandle};
use crate::{CallError, Device, Stream};

/// Work that [`Stream::capture`] recorded, instantiated and ready to launch, any number of times.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    exec: GraphExecHandle,
}

impl Graph {
    /// # Safety
    /// The handle is a captured graph, which this takes over.
    pub(crate) unsafe fn new(stream: &Stream, graph: GraphHandle) -> Result<Self, CallError> {
        let calls = stream.device().gpu().calls();
        // SAFETY: the caller's promise; the graph is destroyed once, what was instantiated lives on.
        unsafe {
            let exec = calls.graph_instantiate(graph);
            calls.graph_destroy(graph)?;
            // Dropping it from here on destroys it.
            let graph = Self { device: stream.device().clone(), exec: exec? };
            calls.graph_upload(graph.exec, stream.handle())?;
            Ok(graph)
        }
    }

    /// Launches it. A launch waits for the one before it.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// All memory that the captured work uses is alive until the stream has done it.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), CallError> {
        // SAFETY: own handles, and the caller's promise.
        unsafe { self.device.gpu().calls().graph_launch(self.exec, stream.handle()) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: own handle, destroyed once.
        if let Err(error) = unsafe { self.device.gpu().calls().graph_exec_destroy(self.exec) } {
            tracing::warn!(%error, "a graph was not destroyed");
        }
    }
}
