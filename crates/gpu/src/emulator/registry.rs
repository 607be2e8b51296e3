//! Handles of the emulator: [`Registry`], numbers that name living values.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{INVALID_HANDLE, failed};
use crate::calls::Result;

/// The next handle, of any kind: one kind is never taken for another.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// Values of one kind. A number is never used twice.
#[derive(Debug)]
pub(super) struct Registry<T> {
    kind: &'static str,
    values: Mutex<HashMap<usize, Arc<T>>>,
}

impl<T> Registry<T> {
    pub(super) fn new(kind: &'static str) -> Self {
        Self { kind, values: Mutex::default() }
    }

    pub(super) fn insert(&self, value: T) -> usize {
        let handle = NEXT.fetch_add(8, Ordering::Relaxed);
        self.lock().insert(handle, Arc::new(value));
        handle
    }

    pub(super) fn get(&self, handle: usize) -> Result<Arc<T>> {
        self.lock().get(&handle).cloned().ok_or_else(|| self.invalid(handle))
    }

    pub(super) fn remove(&self, handle: usize) -> Result<Arc<T>> {
        self.lock().remove(&handle).ok_or_else(|| self.invalid(handle))
    }

    pub(super) fn remove_all(&self, which: impl Fn(&T) -> bool) {
        self.lock().retain(|_, value| !which(value));
    }

    pub(super) fn all(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }

    fn invalid(&self, handle: usize) -> crate::CallError {
        failed("handle", format!("{} {handle:#x}", self.kind), INVALID_HANDLE, "it is not alive")
    }

    /// Nothing panics while it is held.
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Arc<T>>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
