//! `hiprtc*`: the run-time compiler.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::sync::Mutex;

use campanile_gpu::{Backend, CompileError, Source};

use crate::{Failure, INVALID_VALUE, calls, device, exports};

const COMPILATION: c_int = 6;

/// `hiprtcProgram` points to one.
struct Program {
    source: Source,
    log: Vec<u8>,
    code: Vec<u8>,
}

/// A code object says its own length; what the backends behind the shim make does not all, so it is put in front.
const MAGIC: &[u8; 8] = b"hipshim1";

fn wrap(code: &[u8]) -> Vec<u8> {
    [MAGIC, &(code.len() as u64).to_ne_bytes()[..], code].concat()
}

/// What [`wrap`] wrapped.
///
/// # Safety
/// `image` points to code that the shim made.
pub unsafe fn image(image: *const u8) -> Option<Vec<u8>> {
    let head = unsafe { std::slice::from_raw_parts(image, 16) };
    let length = head.strip_prefix(MAGIC)?.try_into().map(u64::from_ne_bytes).ok()? as usize;
    Some(unsafe { std::slice::from_raw_parts(image.add(16), length) }.to_vec())
}

/// Programs alive, so that a stale one is refused.
static PROGRAMS: Mutex<Option<HashMap<usize, Program>>> = Mutex::new(None);

fn with_program<T>(program: usize, work: impl FnOnce(&mut Program) -> T) -> Result<T, Failure> {
    let mut programs = PROGRAMS.lock().map_err(|_| Failure::Code(INVALID_VALUE))?;
    let program = programs.get_or_insert_default().get_mut(&program).ok_or(Failure::Code(INVALID_VALUE))?;
    Ok(work(program))
}

unsafe fn text(pointer: *const c_char) -> String {
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// The GPU that the shim gives itself out as.
pub fn target() -> &'static str {
    if std::env::var("HIP_SHIM_TARGET").is_ok_and(|target| target == "gfx950") { "gfx950" } else { "gfx942" }
}

fn compile(source: &Source, options: &[String]) -> Result<Vec<u8>, CompileError> {
    let calls = calls().map_err(|_| CompileError::NoCompiler("the shim does not start".to_owned()))?;
    if !options.contains(&format!("--offload-arch={}", target())) {
        return Err(CompileError::NoCompiler(format!("the shim compiles for {}", target())));
    }
    // Macros mean the same everywhere; the rest is hipRTC's own.
    let target = calls.target(device())?;
    let macros = options.iter().filter(|option| option.starts_with("-D")).cloned();
    let options: Vec<String> = calls.base_options(&target).into_iter().chain(macros).collect();
    calls.compile(source, &target, &options)
}

exports! {
    // No real one has such a version, and each backend has its own: the cache never takes one's code for another's.
    fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) {
        (*major, *minor) = (0, if calls()?.backend() == Backend::Emulator { 1 } else { 2 })
    }
    fn hiprtcCreateProgram(
        out: *mut usize, source: *const c_char, name: *const c_char, headers: c_int,
        header_texts: *const *const c_char, header_names: *const *const c_char,
    ) {
        let mut made = Source::new(text(name), text(source));
        for header in 0..headers as usize {
            made = made.with_header(text(*header_names.add(header)), text(*header_texts.add(header)));
        }
        let mut programs = PROGRAMS.lock().map_err(|_| Failure::Code(INVALID_VALUE))?;
        let programs = programs.get_or_insert_default();
        let handle = Box::into_raw(Box::new(0u8)) as usize;
        programs.insert(handle, Program { source: made, log: vec![0], code: Vec::new() });
        *out = handle
    }
    fn hiprtcDestroyProgram(program: *mut usize) {
        let mut programs = PROGRAMS.lock().map_err(|_| Failure::Code(INVALID_VALUE))?;
        programs.get_or_insert_default().remove(&*program).ok_or(Failure::Code(INVALID_VALUE))?;
        drop(Box::from_raw(*program as *mut u8));
        *program = 0
    }
    fn hiprtcCompileProgram(program: usize, count: c_int, options: *const *const c_char) {
        let options: Vec<String> = (0..count as usize).map(|option| text(*options.add(option))).collect();
        with_program(program, |program| match compile(&program.source, &options) {
            Ok(code) => {
                program.code = wrap(&code);
                Ok(())
            }
            Err(error) => {
                program.log = format!("{error}\0").into_bytes();
                Err(Failure::Code(COMPILATION))
            }
        })??
    }
    fn hiprtcGetProgramLogSize(program: usize, out: *mut usize) {
        *out = with_program(program, |program| program.log.len())?
    }
    fn hiprtcGetProgramLog(program: usize, out: *mut u8) {
        with_program(program, |program| out.copy_from_nonoverlapping(program.log.as_ptr(), program.log.len()))?
    }
    fn hiprtcGetCodeSize(program: usize, out: *mut usize) {
        *out = with_program(program, |program| program.code.len())?
    }
    fn hiprtcGetCode(program: usize, out: *mut u8) {
        with_program(program, |program| out.copy_from_nonoverlapping(program.code.as_ptr(), program.code.len()))?
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetErrorString(code: c_int) -> *const c_char {
    match code {
        COMPILATION => c"HIPRTC_ERROR_COMPILATION".as_ptr(),
        _ => c"HIPRTC_ERROR_INVALID_INPUT".as_ptr(),
    }
}
