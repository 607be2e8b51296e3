//! Tables, read as far as both sides know them.

use std::mem::{MaybeUninit, offset_of};

use campanile_abi as abi;

/// A table with a `struct_size`.
///
/// # Safety
/// All bytes zero are a value (numbers, pointers and optional functions), and `SIZE_AT` is where a `u64` says how long
/// the writer's struct is.
pub(super) unsafe trait Prefix: Sized {
    /// Offset of `struct_size`.
    const SIZE_AT: usize;

    /// The fields that both sides know; the others are zero: absent.
    ///
    /// # Safety
    /// `source` is a table that is as long as it says.
    unsafe fn prefix(source: *const Self) -> Self {
        let mut table = MaybeUninit::<Self>::zeroed();
        // SAFETY: the caller's promise; a size beyond what both know is cut, a field that is there in part is left out (all
        // fields are 8 bytes or pairs of numbers in them).
        unsafe {
            let size = source.cast::<u8>().add(Self::SIZE_AT).cast::<u64>().read();
            let both = usize::try_from(size).unwrap_or(usize::MAX).min(size_of::<Self>()) & !7;
            std::ptr::copy_nonoverlapping(source.cast::<u8>(), table.as_mut_ptr().cast(), both);
            table.assume_init()
        }
    }
}

// SAFETY: numbers, pointers, texts and optional functions.
unsafe impl Prefix for abi::Plugin {
    const SIZE_AT: usize = offset_of!(Self, struct_size);
}

// SAFETY: numbers, pointers and optional functions.
unsafe impl Prefix for abi::Transport {
    const SIZE_AT: usize = offset_of!(Self, struct_size);
}

// SAFETY: numbers, pointers and optional functions.
unsafe impl Prefix for abi::Queue {
    const SIZE_AT: usize = offset_of!(Self, struct_size);
}

/// The first function that is not there.
pub(super) fn required(functions: &[(&'static str, bool)]) -> Result<(), &'static str> {
    functions.iter().find(|(_, there)| !there).map_or(Ok(()), |(name, _)| Err(name))
}

/// The functions of a table that every one has, by name: `Err` with the first that is not there.
macro_rules! required_functions {
    ($table:expr, $name:literal: $($function:ident),+ $(,)?) => {
        $crate::import::table::required(&[$((stringify!($function), $table.$function.is_some())),+])
            .map_err(|function| $crate::import::TableError::Function { table: $name, function })
    };
}
pub(super) use required_functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_size_is_absent() {
        unsafe extern "C" fn ring(_: *mut std::ffi::c_void, _: *mut abi::Error) -> i32 {
            0
        }
        // SAFETY: all bytes zero are a table.
        let mut table: abi::Queue = unsafe { std::mem::zeroed() };
        table.number = 7;
        table.ring = Some(ring);
        let end = offset_of!(abi::Queue, ring) as u64 + 8;
        for (size, there) in [(end, true), (end + 1000, true), (end - 1, false), (end - 8, false), (32, false)] {
            table.struct_size = size;
            // SAFETY: only the fields of the struct are read, however long it says it is.
            let read = unsafe { abi::Queue::prefix(&raw const table) };
            assert_eq!((read.number, read.ring.is_some()), (7, there), "size {size}");
        }
        table.struct_size = 8;
        // SAFETY: as above.
        assert_eq!(unsafe { abi::Queue::prefix(&raw const table) }.number, 0);
    }
}
