//! Compilation: [`Compile`], the options of one.

use std::fmt::Write;

use crate::vendor::{Compiler, Dialect, base_options};
use crate::{Cache, CompileError, Device, Gpu, LoadError, Settings, Source};

/// How to compile a source. Data: two equal values and sources give the same code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compile {
    options: Vec<String>,
}

impl Compile {
    /// With a macro: the way in which a plan's constants reach its kernel.
    #[must_use]
    pub fn define(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.options.push(format!("-D{name}={value}"));
        self
    }

    /// With an option of the compiler, which only some of them may know.
    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Machine code for the device: from the cache, or compiled and kept there.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn image(&self, device: &Device, source: &Source, cache: &Cache) -> Result<Vec<u8>, CompileError> {
        let calls = device.gpu().calls();
        let target = device.target()?;
        let options = [&calls.base_options(&target)[..], &self.options].concat();
        let key = key(&calls.compiler()?, &target, &options, source);
        cache.get_or_build(&key, || calls.compile(source, &target, &options))
    }
}

/// All that the code depends on.
fn key(compiler: &str, target: &str, options: &[String], source: &Source) -> String {
    let mut key = format!("{compiler}\n{target}\n");
    let mut part = |name: &str, text: &str| {
        // Lengths keep the parts apart.
        let _ = write!(key, "{name} {}\n{text}\n", text.len());
    };
    for option in options {
        part("option", option);
    }
    for (name, text) in source.headers() {
        part(name, text);
    }
    part(source.name(), source.text());
    key
}

/// NVRTC without a driver or a device: compiles for a target that is named.
///
/// For checks of machine code where there is no GPU. Programs compile with [`Device::compile`].
#[derive(Debug)]
pub struct CrossCompiler(Compiler);

impl CrossCompiler {
    /// Loads NVRTC.
    ///
    /// # Errors
    /// [`LoadError`] with the names that were tried.
    pub fn nvrtc(settings: &Settings) -> Result<Self, LoadError> {
        Compiler::open(Dialect::Cuda, None, settings.libnvrtc.as_deref(), 0).map(Self)
    }

    /// Name and version.
    #[must_use]
    pub fn version(&self) -> &str {
        self.0.version()
    }

    /// Machine code for a target such as `sm_90`.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn compile(&self, source: &Source, target: &str, compile: &Compile) -> Result<Vec<u8>, CompileError> {
        let options = [&base_options(Dialect::Cuda, target)[..], &compile.options].concat();
        self.0.compile(source, target, &options)
    }
}

/// Whether kernels can be compiled at all; where they cannot, [`Device::compile`] says why.
#[must_use]
pub fn has_compiler(gpu: &Gpu) -> bool {
    gpu.calls().compiler().is_ok()
}
