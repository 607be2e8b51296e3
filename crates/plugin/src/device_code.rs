//! Device code on its way across.

use std::num::NonZeroU32;

use campanile_abi as abi;
use campanile_core::{DeviceCode, DeviceCodeError};

use crate::codes;
use crate::import::TableError;
use crate::text;

/// The header of C authors and the core name one version.
const _: () = assert!(abi::DEVICE_API == DeviceCode::API);

/// The record of device code, for ever.
pub(crate) fn record(code: &'static DeviceCode) -> abi::DeviceCode {
    abi::DeviceCode {
        struct_size: size_of::<abi::DeviceCode>() as u64,
        kind: text::lend(code.kind),
        header: text::lend(code.header),
        abi: code.abi,
        smallest_scope: codes::scope_code(code.smallest_scope),
        convergence: code.convergence.into(),
        slots_per_op: code.slots_per_op,
        largest_op: code.largest_op,
        alignment: code.alignment,
        producers_per_queue: code.producers_per_queue.map_or(0, NonZeroU32::get),
        native_strong: code.native_strong.into(),
        signal_bits: code.signal_bits,
        form: codes::form_code(code.form),
        peer_bytes: code.peer_bytes,
    }
}

/// The device code of a plugin's table, which this host can compile; `None` if it has none.
///
/// # Safety
/// The table is true to its header, and what it points to stays for ever.
pub(crate) unsafe fn read(table: &abi::Plugin) -> Result<Option<&'static DeviceCode>, TableError> {
    // What it needs is said first: of another version the record may be another one.
    if table.device_abi != 0 {
        DeviceCode::check_api(table.device_abi)?;
    }
    if table.device_code.is_null() {
        return Ok(None);
    }
    if table.device_abi == 0 {
        DeviceCode::check_api(0)?;
    }
    let needed = size_of::<abi::DeviceCode>() as u64;
    // SAFETY: the caller's promise; a record begins with its size.
    let size = unsafe { (*table.device_code).struct_size };
    if size < needed {
        return Err(TableError::ShortDeviceCode { size, needed });
    }
    // SAFETY: the caller's promise, and it is as long as this host's.
    let record = unsafe { *table.device_code };
    let invalid = |field, given, allowed| TableError::DeviceCode(DeviceCodeError::Invalid { field, given, allowed });
    let string = |given: abi::Text, most: usize, field, allowed| {
        // Before it is read: a length beyond these is none.
        if given.bytes > most {
            return Err(invalid(field, format!("of {} bytes", given.bytes), allowed));
        }
        // SAFETY: the caller's promise: the texts are there, for ever.
        std::str::from_utf8(unsafe { text::borrow(given) })
            .map_err(|_| invalid(field, "that is no UTF-8".to_owned(), "UTF-8 without NULs"))
    };
    let code = DeviceCode {
        kind: string(record.kind, DeviceCode::MAX_KIND, "kind", "at most 64 bytes")?,
        form: codes::device_form(record.form)
            .ok_or_else(|| invalid("form", record.form.to_string(), "CAMPANILE_FORM_MAP or CAMPANILE_FORM_QUEUE"))?,
        header: string(record.header, DeviceCode::MAX_HEADER, "header", "at most 1 MiB")?,
        abi: record.abi,
        peer_bytes: record.peer_bytes,
        smallest_scope: codes::device_scope(record.smallest_scope)
            .ok_or_else(|| invalid("smallest_scope", record.smallest_scope.to_string(), "a CAMPANILE_SCOPE_*"))?,
        convergence: record.convergence != 0,
        slots_per_op: record.slots_per_op,
        largest_op: record.largest_op,
        alignment: record.alignment,
        producers_per_queue: NonZeroU32::new(record.producers_per_queue),
        native_strong: record.native_strong != 0,
        signal_bits: record.signal_bits,
    };
    code.check()?;
    // One a plugin, which stays for ever.
    Ok(Some(Box::leak(Box::new(code))))
}
