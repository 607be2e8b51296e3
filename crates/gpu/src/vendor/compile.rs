//! Run-time compilation with NVRTC and hipRTC: [`Compiler`].

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use super::table::{Program, Rtc};
use super::{Dialect, hip_version};
use crate::library::{Library, Names};
use crate::{CallError, CompileError, LoadError, Source};

/// The compiler's library, loaded.
#[derive(Debug)]
pub(crate) struct Compiler {
    rtc: Rtc,
    version: String,
}

impl Compiler {
    /// Loads it. NVRTC of the driver's own major version is preferred, since a driver may refuse machine code of a
    /// newer one; hipRTC may lie in a library of its own or in the runtime. `driver_version` is the driver's or the runtime's.
    pub(crate) fn open(
        dialect: Dialect,
        runtime: Option<&Library>,
        path: Option<&str>,
        driver_version: c_int,
    ) -> Result<Self, LoadError> {
        let (names, compiler) = match dialect {
            Dialect::Cuda => {
                let driver = driver_version / 1000;
                let mut majors = [13, 12];
                majors.sort_by_key(|major| *major != driver);
                let mut names: Vec<String> = majors.iter().map(|major| format!("libnvrtc.so.{major}")).collect();
                names.push("libnvrtc.so".to_owned());
                names.push("/usr/local/cuda/lib64/libnvrtc.so".to_owned());
                (Names { library: "NVRTC", variable: "CAMPANILE_LIBNVRTC", names }, "NVRTC")
            }
            Dialect::Hip => {
                let names = ["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so", "/opt/rocm/lib/libhiprtc.so"]
                    .map(str::to_owned);
                let names = Names { library: "hipRTC", variable: "CAMPANILE_LIBHIPRTC", names: names.to_vec() };
                (names, "hipRTC")
            }
        };
        let rtc = match Library::open(names, path) {
            Ok(library) => Rtc::new(&library, dialect),
            Err(error) => {
                let inside = runtime.map(|runtime| Rtc::new(runtime, dialect)).filter(Rtc::is_there);
                inside.ok_or(error)?
            }
        };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two pointers to ints.
        unsafe { rtc.version(&raw mut major, &raw mut minor) }
            .map_err(|source| LoadError::NotStarted { library: compiler.to_owned(), source })?;
        let version = match dialect {
            Dialect::Cuda => format!("{compiler} {major}.{minor}"),
            // Every hipRTC says 9.0. It comes with its runtime, whose version tells them apart: the cache has to.
            Dialect::Hip => format!("{compiler} {major}.{minor} of HIP {}", hip_version(driver_version)),
        };
        Ok(Self { rtc, version })
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Machine code of `source`; `options` are all options, the target among them.
    pub(crate) fn compile(&self, source: &Source, target: &str, options: &[String]) -> Result<Vec<u8>, CompileError> {
        let text = c_string(source.text())?;
        let name = c_string(source.name())?;
        let header_names = source.headers().iter().map(|(name, _)| c_string(name)).collect::<Result<Vec<_>, _>>()?;
        let header_texts = source.headers().iter().map(|(_, text)| c_string(text)).collect::<Result<Vec<_>, _>>()?;
        let option_texts = options.iter().map(|option| c_string(option)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (names, texts) = (pointers(&header_names), pointers(&header_texts));
        let option_pointers = pointers(&option_texts);

        let mut program: Program = ptr::null_mut();
        // SAFETY: strings and arrays of strings that live until the end of this function; the counts are theirs.
        unsafe {
            self.rtc.create(
                &raw mut program,
                text.as_ptr(),
                name.as_ptr(),
                names.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )?;
        }
        let guard = Guard { rtc: &self.rtc, program };
        // SAFETY: the program lives in `guard`; strings as above.
        let compiled =
            unsafe { self.rtc.compile(guard.program, option_pointers.len() as c_int, option_pointers.as_ptr()) };
        if let Err(error) = compiled {
            // SAFETY: the program lives in `guard`.
            let log = unsafe { self.bytes(guard.program, Rtc::log_bytes, Rtc::log) }?;
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim_end().to_owned();
            return Err(CompileError::Source {
                source_name: source.name().to_owned(),
                target: target.to_owned(),
                options: options.join(" "),
                log: if log.is_empty() { error.to_string() } else { log },
            });
        }
        // SAFETY: the program lives in `guard`.
        Ok(unsafe { self.bytes(guard.program, Rtc::code_bytes, Rtc::code) }?)
    }

    /// # Safety
    /// `program` is alive, and `get` writes as many bytes as `size` says.
    unsafe fn bytes(
        &self,
        program: Program,
        size: unsafe fn(&Rtc, Program, *mut usize) -> Result<(), CallError>,
        get: unsafe fn(&Rtc, Program, *mut c_char) -> Result<(), CallError>,
    ) -> Result<Vec<u8>, CallError> {
        let mut bytes = 0;
        // SAFETY: the caller's promise.
        unsafe { size(&self.rtc, program, &raw mut bytes)? };
        let mut buffer = vec![0u8; bytes];
        // SAFETY: the buffer has the size that was asked for.
        unsafe { get(&self.rtc, program, buffer.as_mut_ptr().cast())? };
        Ok(buffer)
    }
}

/// What every kernel is compiled with.
pub(crate) fn base_options(dialect: Dialect, target: &str) -> Vec<String> {
    let (target, arithmetic) = match dialect {
        // Machine code, not PTX: the driver need not know this PTX version, and nothing is compiled at load.
        Dialect::Cuda => (format!("--gpu-architecture={target}"), "--fmad=false"),
        Dialect::Hip => (format!("--offload-arch={target}"), "-ffp-contract=off"),
    };
    let mut options = vec![target, arithmetic.to_owned(), "-std=c++17".to_owned()];
    options.extend((dialect == Dialect::Hip).then(|| "-O3".to_owned()));
    options
}

/// Destroys a program.
struct Guard<'a> {
    rtc: &'a Rtc,
    program: Program,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: created by this table, destroyed once.
        if let Err(error) = unsafe { self.rtc.destroy(&raw mut self.program) } {
            tracing::warn!(%error, "a program of the run-time compiler was not destroyed");
        }
    }
}

fn c_string(text: &str) -> Result<CString, CompileError> {
    CString::new(text).map_err(|_| CompileError::NoCompiler("a source, name or option contains a NUL".to_owned()))
}
