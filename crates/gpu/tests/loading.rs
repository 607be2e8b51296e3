//! Libraries that are not there, or are others: errors that say what was tried.

use campanile_core::Config;
use campanile_gpu::{Backend, Emulation, Gpu, LoadError, Settings};

fn error(backend: Backend, settings: &Settings) -> String {
    Gpu::open(backend, settings).expect_err("there is no such library").to_string()
}

#[test]
fn a_missing_library_is_an_error_with_the_names_tried() {
    let settings = Settings { libcuda: Some("/nowhere/libcuda.so.1".to_owned()), ..Settings::default() };
    let text = error(Backend::Cuda, &settings);
    for part in ["CUDA driver", "/nowhere/libcuda.so.1", "No such file", "CAMPANILE_LIBCUDA"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    let settings = Settings { libamdhip64: Some("/nowhere/libamdhip64.so".to_owned()), ..Settings::default() };
    let text = error(Backend::Hip, &settings);
    assert!(text.contains("/nowhere/libamdhip64.so") && text.contains("CAMPANILE_LIBAMDHIP64"), "{text}");
}

#[test]
fn another_library_is_an_error_with_the_symbol() {
    let settings = Settings { libcuda: Some("libc.so.6".to_owned()), ..Settings::default() };
    assert!(matches!(Gpu::open(Backend::Cuda, &settings), Err(LoadError::NotStarted { .. })));
    let text = error(Backend::Cuda, &settings);
    assert!(text.contains("libc.so.6 has no cuInit"), "{text}");
}

#[test]
fn settings_come_from_the_configuration() {
    let names = ["LIBCUDA", "LIBNVRTC", "LIBAMDHIP64", "LIBHIPRTC", "CXX", "KERNEL_CACHE"];
    let config = Config::load(names.map(|name| (format!("CAMPANILE_{name}"), format!("/{name}"))), None).unwrap();
    let settings = Settings::from(&config);
    assert_eq!(settings.libcuda.as_deref(), Some("/LIBCUDA"));
    assert_eq!(settings.libnvrtc.as_deref(), Some("/LIBNVRTC"));
    assert_eq!(settings.libamdhip64.as_deref(), Some("/LIBAMDHIP64"));
    assert_eq!(settings.libhiprtc.as_deref(), Some("/LIBHIPRTC"));
    assert_eq!(settings.cxx.as_deref(), Some("/CXX"));
    assert_eq!(settings.kernel_cache.as_deref(), Some("/KERNEL_CACHE".as_ref()));
    assert_eq!(Settings::from(&Config::default()), Settings::default());
}

#[test]
fn what_is_not_emulated_is_refused() {
    let settings = Settings::default();
    for emulation in [
        Emulation { devices: 0, ..Emulation::default() },
        Emulation { wave: 16, ..Emulation::default() },
        Emulation { multiprocessors: 65, ..Emulation::default() },
    ] {
        let error = Gpu::emulator(emulation, &settings).expect_err("to be refused");
        assert!(matches!(error, LoadError::Emulator { .. }), "{error}");
    }
    let gpu = Gpu::emulator(Emulation { devices: 2, ..Emulation::default() }, &settings).unwrap();
    let error = gpu.device(2).expect_err("there is no such device");
    assert!(error.to_string().contains("it sees 2 devices"), "{error}");
}

#[test]
fn without_a_compiler_the_emulator_says_so() {
    let settings = Settings { cxx: Some("/nowhere/c++".to_owned()), ..Settings::default() };
    let gpu = Gpu::emulator(Emulation::default(), &settings).unwrap();
    assert!(!campanile_gpu::has_compiler(&gpu));
    let text = gpu.calls().compiler().expect_err("there is none").to_string();
    assert!(text.contains("/nowhere/c++") && text.contains("CAMPANILE_CXX"), "{text}");
}
