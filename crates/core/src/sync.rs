//! Atomics and cells, replaceable by a model checker.
//!
//! Code that other threads race with imports its atomics and cells from here. A plain build gets
//! `core`'s own types; a build with `--cfg campanile_loom` gets [loom]'s, so that the very same code
//! is run through every interleaving and every stale value that the memory model allows.
//!
//! Only what the algorithms of this crate use is re-exported. Types of loom work inside `loom::model`
//! alone: under this cfg only the `*_loom` tests can run.
//!
//! [loom]: https://docs.rs/loom

/// Atomic integers and their orderings: `core::sync::atomic`, or loom's.
pub mod atomic {
    #[cfg(not(campanile_loom))]
    pub use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    #[cfg(campanile_loom)]
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

/// Interior mutability whose accesses a model checker can see.
pub mod cell {
    #[cfg(campanile_loom)]
    pub use loom::cell::UnsafeCell;

    /// [`core::cell::UnsafeCell`] with loom's interface: the pointer is lent to a closure, so that the
    /// model checker knows where an access begins and ends and can report two that race.
    #[cfg(not(campanile_loom))]
    #[derive(Debug)]
    #[repr(transparent)]
    pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    #[cfg(not(campanile_loom))]
    impl<T> UnsafeCell<T> {
        /// A cell that holds `value`.
        pub const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        /// Lends the content for reading. Dereferencing the pointer is what needs `unsafe`.
        #[inline]
        pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        /// Lends the content for writing. Dereferencing the pointer is what needs `unsafe`.
        #[inline]
        pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}
