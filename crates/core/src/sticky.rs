//! The sticky error of a communicator: the first one stays, until the rank that caused it is masked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{CommError, Rank};

/// The first error, if there was one. Looking whether there is one is a load.
#[derive(Default)]
pub(crate) struct Sticky {
    failed: AtomicBool,
    first: Mutex<Option<CommError>>,
}

impl Sticky {
    fn lock(&self) -> MutexGuard<'_, Option<CommError>> {
        // No code that can panic runs under the lock.
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first error, if there was one.
    pub(crate) fn get(&self) -> Option<CommError> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.lock().clone()
    }

    /// An error that tells the first one, if there was one.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), CommError> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.get().map_or(Ok(()), |first| Err(CommError::Failed(Box::new(first))))
    }

    /// Keeps an error unless there is one already; whether it was the first.
    pub(crate) fn set(&self, error: CommError) -> bool {
        let mut first = self.lock();
        if first.is_some() {
            return false;
        }
        *first = Some(error);
        self.failed.store(true, Ordering::Release);
        true
    }

    /// Forgets the error if its culprit is one of `masked`; else says what it is.
    pub(crate) fn forgive(&self, masked: &[Rank]) -> Result<(), CommError> {
        let mut first = self.lock();
        if let Some(error) = &*first
            && !error.fault().is_some_and(|fault| masked.contains(&fault.culprit))
        {
            return Err(CommError::Failed(Box::new(error.clone())));
        }
        *first = None;
        self.failed.store(false, Ordering::Release);
        Ok(())
    }
}
