//! The committed header and this crate say the same layout: a C and a C++ compiler check every offset.

use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};

use campanile_abi::*;

/// An assertion in C for the size of each struct and for the place of each of its fields.
macro_rules! assertions {
    ($($name:ident { $($field:ident),+ $(,)? })+) => {{
        let mut text = String::new();
        $(
            let name = concat!("Campanile", stringify!($name));
            writeln!(text, "CHECK(sizeof({name}) == {});", size_of::<$name>()).unwrap();
            $(
                let (field, offset) = (stringify!($field), offset_of!($name, $field));
                writeln!(text, "CHECK(offsetof({name}, {field}) == {offset});").unwrap();
            )+
        )+
        text
    }};
}

fn source() -> String {
    let layout = assertions! {
        Text { data, bytes }
        Bytes { data, bytes }
        Sink { ctx, write }
        Error { struct_size, numbers, what, reason }
        Host { struct_size, abi_major, abi_minor, ctx, log_level, reserved, log, counters, tracer }
        Region { struct_size, key, address, handle }
        RemoteRegion { struct_size, key, bytes, handle, memory, reserved }
        LocalAddress { region, offset }
        RemoteAddress { region, offset }
        SignalUpdate { target, value, action, strength }
        Put { source, target, bytes }
        PutSignal { source, target, bytes, signal }
        PutInline { data, bytes, reserved, target }
        Get { source, target, bytes }
        Atomic { kind, reserved, operand, result, compare, target }
        Payload { put, put_signal, put_inline, signal, get, atomic, size }
        Op { kind, reserved, payload }
        Cost { latency_ps, bytes_per_s }
        Caps {
            struct_size, max_bytes, load_store, ordered_puts, inline_bytes, alignment, signal_bits, signal_flags, atomicity,
            reserved, cost,
        }
        Request { struct_size, ctx, test, park, describe, drop }
        QueueOptions { struct_size, depth, initiator, ordered }
        Queue { struct_size, ctx, number, destroy, post, test, progress, ring, flush, cancel, describe }
        OpenOptions { struct_size, node, timeout_ns, rank, ranks, ranks_on_node, cores, huge_pages, reserved }
        Peer { address, rank, reserved }
        Endpoint { peer, peer_class }
        Wait { struct_size, region, offset, mask, value, epoch, operation, slot, condition, peer }
        DeviceView { struct_size, kind, abi, reserved, region, remotes, members }
        Transport {
            struct_size, ctx, close, caps, reach, address, connect, allocate, release, export_key, import_key,
            release_remote, queue, fault, report, gone, register_memory, map, notify, signal_wait, poll_event, mask,
            shutdown, device_view,
        }
        DeviceCode {
            struct_size, kind, header, abi, smallest_scope, convergence, slots_per_op, largest_op, alignment,
            producers_per_queue, native_strong, signal_bits, form, peer_bytes,
        }
        DeviceSink { ctx, device }
        Plugin {
            magic, abi_major, abi_minor, struct_size, ctx, name, version, vendor, summary, device_abi, reserved,
            device_code, init, probe, open,
        }
    };
    format!(
        "#include <campanile/transport.h>\n\
         #ifdef __cplusplus\n\
         #define CHECK(condition) static_assert(condition, #condition)\n\
         #else\n\
         #define CHECK(condition) _Static_assert(condition, #condition)\n\
         #endif\n\
         {layout}\
         CHECK(CAMPANILE_MAGIC == {MAGIC});\n\
         CHECK(CAMPANILE_FAULT(CAMPANILE_FAULT_DIED, 5, 7) == (1ull << 48 | 7ull << 24 | 5ull));\n"
    )
}

/// What `compiler` says against the assertions; `None` if it cannot be started.
fn objections(compiler: &str, arguments: &[&str], source: &str) -> Option<Vec<u8>> {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut command = Command::new(compiler);
    command.args(arguments).args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]).arg(include).arg("-");
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
    std::io::Write::write_all(&mut child.stdin.take()?, source.as_bytes()).ok()?;
    Some(child.wait_with_output().expect("a child that was started").stderr)
}

fn check(compiler: &str, arguments: &[&str]) {
    let source = source();
    match objections(compiler, arguments, &source) {
        None => println!("not run: no compiler {compiler}"),
        Some(objections) => {
            assert!(objections.is_empty(), "{}", String::from_utf8_lossy(&objections));
            let lie = source.replace("sizeof(CampanileOp) ==", "sizeof(CampanileOp) !=");
            let objections = self::objections(compiler, arguments, &lie).expect("it could be started before");
            assert!(!objections.is_empty(), "{compiler} accepts a wrong size");
        }
    }
}

#[test]
fn a_c_compiler_sees_the_same_layout() {
    check("cc", &["-x", "c", "-std=c11"]);
}

#[test]
fn a_cpp_compiler_sees_the_same_layout() {
    check("c++", &["-x", "c++", "-std=c++11"]);
}
