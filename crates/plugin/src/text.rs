//! Texts and bytes on their way across.

use std::ffi::{c_char, c_void};

use campanile_abi as abi;

/// A text that is lent for a call, or for ever.
pub(crate) fn lend(text: &str) -> abi::Text {
    abi::Text { data: text.as_ptr().cast(), bytes: text.len() }
}

/// Bytes that are lent for a call.
pub(crate) fn lend_bytes(bytes: &[u8]) -> abi::Bytes {
    abi::Bytes { data: bytes.as_ptr(), bytes: bytes.len() }
}

/// # Safety
/// The bytes that `data` says are there, for `'a`.
unsafe fn slice<'a>(data: *const u8, bytes: usize) -> &'a [u8] {
    // No object is larger than `isize::MAX`: such a length is nonsense.
    if bytes == 0 || data.is_null() || isize::try_from(bytes).is_err() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, bytes) }
}

/// The bytes that the other side lends.
///
/// # Safety
/// They are there, for `'a`.
pub(crate) unsafe fn borrow_bytes<'a>(bytes: abi::Bytes) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { slice(bytes.data, bytes.bytes) }
}

/// The bytes of a text that the other side lends.
///
/// # Safety
/// They are there, for `'a`.
pub(crate) unsafe fn borrow<'a>(text: abi::Text) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { slice(text.data.cast(), text.bytes) }
}

/// A copy of a text that the other side lends; what is not UTF-8 is replaced.
///
/// # Safety
/// Its bytes are there.
pub(crate) unsafe fn copy(text: abi::Text) -> String {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { borrow(text) }).into_owned()
}

/// What `call` writes into the sink that it is given.
pub(crate) fn collect<R>(call: impl FnOnce(*const abi::Sink) -> R) -> (Vec<u8>, R) {
    unsafe extern "C" fn write(ctx: *mut c_void, data: *const c_void, bytes: usize) {
        // SAFETY: the context is the vector below, lent to one call at a time; the writer lends the bytes.
        unsafe { (*ctx.cast::<Vec<u8>>()).extend_from_slice(slice(data.cast(), bytes)) };
    }
    let mut collected = Vec::new();
    let sink = abi::Sink { ctx: (&raw mut collected).cast(), write };
    let result = call(&raw const sink);
    (collected, result)
}

/// As [`collect`], for text; what is not UTF-8 is replaced.
pub(crate) fn collect_text<R>(call: impl FnOnce(*const abi::Sink) -> R) -> (String, R) {
    let (bytes, result) = collect(call);
    (String::from_utf8_lossy(&bytes).into_owned(), result)
}

/// Writes into a sink of the host.
///
/// # Safety
/// The sink is one that the host gave to the call that runs.
pub(crate) unsafe fn write(sink: *const abi::Sink, bytes: &[u8]) {
    // SAFETY: the caller's promise; the bytes are lent for the call.
    unsafe { ((*sink).write)((*sink).ctx, bytes.as_ptr().cast(), bytes.len()) };
}

/// Copies as much of `text` as fits, in whole characters, and a NUL.
pub(crate) fn fill(buffer: &mut [c_char], text: &str) {
    let Some(room) = buffer.len().checked_sub(1) else { return };
    let bytes = &text.as_bytes()[..text.floor_char_boundary(room)];
    for (to, from) in buffer.iter_mut().zip(bytes) {
        *to = *from as c_char;
    }
    buffer[bytes.len()] = 0;
}

/// The text before the NUL, or all of it; what is not UTF-8 is replaced.
pub(crate) fn read(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_ends_with_a_whole_character() {
        let mut buffer = [1; 6];
        fill(&mut buffer, "abcdé");
        assert_eq!(read(&buffer), "abcd");
        fill(&mut buffer, "é");
        assert_eq!(read(&buffer), "é");
        fill(&mut buffer, "");
        assert_eq!(read(&buffer), "");
        assert_eq!(read(&[b'a' as c_char; 3]), "aaa");
    }

    #[test]
    fn a_sink_appends() {
        let (text, ()) = collect_text(|sink| {
            // SAFETY: the sink of this call.
            unsafe {
                write(sink, b"a");
                write(sink, b"");
                write(sink, b"b");
            }
        });
        assert_eq!(text, "ab");
    }
}
