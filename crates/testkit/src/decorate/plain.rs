//! Plain: a decorator that does nothing, to know what a layer costs.
//!
//! A post through it is 9 instructions more than the 331 of one to a queue of shared memory, through two of them 18: a call by
//! table a layer (x86-64, release build; `examples/layer_cost.rs`, which says how it is counted).

use std::fmt;
use std::sync::Arc;

use campanile_core::{ControlError, OpenError, OpenOptions, Queue, QueueOptions, QueueTarget, Transport};

use super::{Decorator, QueueLayer, TransportLayer, decorated_queue, decorated_transport};

/// Passes everything on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

pub(super) const NAME: &str = "plain";

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

impl Decorator for Plain {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decorate(&self, inner: Arc<dyn Transport>, _: &OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        Ok(decorated_transport(NAME, PlainTransport(inner)))
    }
}

struct PlainTransport(Arc<dyn Transport>);

impl TransportLayer for PlainTransport {
    fn inner(&self) -> &dyn Transport {
        &*self.0
    }

    fn queue(&self, target: QueueTarget, options: QueueOptions) -> Result<Arc<dyn Queue>, ControlError> {
        Ok(decorated_queue(PlainQueue(self.0.queue(target, options)?)))
    }
}

struct PlainQueue(Arc<dyn Queue>);

impl QueueLayer for PlainQueue {
    fn inner(&self) -> &dyn Queue {
        &*self.0
    }
}
