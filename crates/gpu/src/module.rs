//! Modules: [`Module`], machine code on a device.

use std::ffi::CString;
use std::sync::Arc;

use crate::calls::{FunctionHandle, ModuleHandle};
use crate::{CallError, Device};

/// Loaded machine code. Cheap to clone; unloaded when the last clone and the last plan of it are dropped.
#[derive(Clone, Debug)]
pub struct Module {
    loaded: Arc<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    device: Device,
    handle: ModuleHandle,
}

impl Module {
    pub(crate) fn new(device: &Device, image: &[u8]) -> Result<Self, CallError> {
        let handle = device.gpu().calls().module_load(device.ordinal(), image)?;
        Ok(Self { loaded: Arc::new(Loaded { device: device.clone(), handle }) })
    }

    /// The device on which it is loaded.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.loaded.device
    }

    /// A kernel, and the bytes of its argument where the driver can tell.
    pub(crate) fn function(&self, name: &str) -> Result<(FunctionHandle, Option<usize>), CallError> {
        let Ok(symbol) = CString::new(name) else {
            return Err(CallError::Unsupported {
                backend: self.device().gpu().backend(),
                what: format!("find kernel {name:?}"),
                reason: "a name has no NUL".to_owned(),
            });
        };
        let calls = self.device().gpu().calls();
        // SAFETY: own handle; the name ends with a NUL.
        unsafe {
            let function = calls.function(self.loaded.handle, &symbol)?;
            Ok((function, calls.argument_bytes(self.loaded.handle, &symbol)?))
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: own handle, unloaded once; plans hold the module, so no kernel of it is launched any more.
        if let Err(error) = unsafe { self.device.gpu().calls().module_unload(self.device.ordinal(), self.handle) } {
            tracing::warn!(%error, "a module was not unloaded");
        }
    }
}
