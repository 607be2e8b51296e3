//! Files that are plugins, files that are not, and what is said of them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use campanile::TransportPlugin;
use campanile::core::{DeviceCode, DeviceForm, DeviceScope, OpenError, OpenOptions, Probed, Rank};
use campanile_plugin::{LoadError, Loader, SearchError, Shim, abi};
use tempfile::TempDir;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[path = "plugins/compiler.rs"]
mod compiler;
#[path = "plugins/library.rs"]
mod library;

/// A plugin in C, made wrong by these arguments; `None` without a compiler.
fn plugin(folder: &TempDir, arguments: &[&str]) -> Option<PathBuf> {
    compiler::library("plugin.c", folder.path().join("libcampanile_c.so"), arguments)
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("there is a folder for temporary files")
}

/// What the loader says of a plugin that is wrong.
fn refusal(arguments: &[&str], loader: Loader<'_>) -> Option<String> {
    let folder = folder();
    let file = plugin(&folder, arguments)?;
    let error = loader.load_file(&file).err().unwrap_or_else(|| panic!("{arguments:?} is loaded"));
    let text = error.to_string();
    assert!(text.contains(&*file.to_string_lossy()), "which file: {text}");
    Some(text)
}

/// Checks what the loader says of a plugin that is wrong.
fn is_refused(arguments: &[&str], words: &[&str]) {
    let Some(text) = refusal(arguments, Loader::default()) else { return };
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

#[test]
fn a_good_plugin() {
    let folder = folder();
    let Some(file) = plugin(&folder, &[]) else { return };
    let found = Loader::default().probe(&file).unwrap();
    assert_eq!((&*found.name, &*found.version, &*found.vendor), ("c", "1.2", "a test"));
    let devices = [
        Probed { device: "first".to_owned(), usable: Ok("fine".to_owned()) },
        Probed { device: "second".to_owned(), usable: Err("broken".to_owned()) },
    ];
    assert_eq!(found.devices, devices);
    let loaded = Loader::default().load_file(&file).unwrap();
    assert_eq!((loaded.info().name, loaded.info().summary, loaded.vendor()), ("c", "opens nothing", "a test"));
    assert_eq!(loaded.probe(), devices);

    let options = OpenOptions {
        rank: Rank(0),
        ranks: 1,
        node: campanile::core::Node::new("here"),
        ranks_on_node: 1,
        cores: 1,
        huge_pages: campanile::core::HugePages::Auto,
        timeout: Duration::from_secs(1),
    };
    let error = loaded.open("third", options.clone()).err();
    let Some(OpenError::NoDevice { transport: "c", device, available }) = error else { panic!("{error:?}") };
    assert_eq!((&*device, &*available), ("third", "first"));
    let error = loaded.open("first", options).err();
    assert!(matches!(error, Some(OpenError::System { transport: "c", .. })), "a null table: {error:?}");
}

#[test]
fn versions() {
    is_refused(&["-DMAGIC=0x1234"], &["0x0000000000001234", "0x6c69"]);
    is_refused(&["-DSIZE=100"], &["100 bytes", "version 1.0", "136"]);
    is_refused(&["-DMAJOR=2"], &["version 2.0", "host of 1.0", "without a shim for 2"]);
    is_refused(&["-DNO_TABLE"], &["no table for a host of version 1.0"]);
    is_refused(&["-DNO_PROBE"], &["the plugin table has no function probe"]);
    is_refused(&["-DNAME=\"\""], &["the name in its table is empty"]);

    let folder = folder();
    let Some(newer) = plugin(&folder, &["-DMINOR=7"]) else { return };
    assert_eq!(Loader::default().load_file(&newer).unwrap().info().name, "c");
}

#[test]
fn device_code_comes_with_what_it_declares() {
    let folder = folder();
    let Some(file) = plugin(&folder, &["-DCODE"]) else { return };
    let code = Loader::default().load_file(&file).unwrap().info().device_code.expect("it brings some");
    let declared = DeviceCode {
        kind: "ring",
        form: DeviceForm::Queue,
        header: "namespace ring {}",
        abi: DeviceCode::API,
        peer_bytes: 24,
        smallest_scope: DeviceScope::Wave,
        convergence: true,
        slots_per_op: 2,
        largest_op: 4096,
        alignment: 4,
        producers_per_queue: 3.try_into().ok(),
        native_strong: false,
        signal_bits: 64,
    };
    assert_eq!(*code, declared);
}

#[test]
fn device_code_that_this_host_cannot_compile_is_refused() {
    is_refused(&["-DCODE", "-DCODE_API=2"], &["written against version 2 of the device API, this host has version 1"]);
    // It needs another one: what its record looks like is not this host's to say.
    is_refused(&["-DCODE", "-DNEEDS_API=3", "-DCODE_SIZE=1"], &["version 3 of the device API"]);
    is_refused(&["-DCODE", "-DNEEDS_API=0"], &["version 0 of the device API"]);
    is_refused(&["-DCODE", "-DCODE_SIZE=80"], &["its device code has 80 bytes, 88 at least"]);
    is_refused(&["-DCODE", "-DKIND=\"\\377\""], &["kind that is no UTF-8"]);
    is_refused(&["-DCODE", "-DHEADER=\"a\\377b\""], &["header that is no UTF-8"]);
    is_refused(&["-DCODE", "-DHEADER=\"a\\0b\""], &["header with a NUL at byte 1"]);
    is_refused(&["-DCODE", "-DHEADER_SIZE=(size_t)1<<62"], &["header of 4611686018427387904 bytes; at most 1 MiB"]);
    is_refused(&["-DCODE", "-DKIND=\"a b\""], &["kind \"a b\"; a C++ identifier"]);
    is_refused(&["-DCODE", "-DFORM=7"], &["form 7; CAMPANILE_FORM_MAP or CAMPANILE_FORM_QUEUE"]);
}

#[test]
fn a_newer_minor_is_as_long_as_the_newest_that_is_known() {
    is_refused(&["-DMINOR=7", "-DSIZE=128"], &["128 bytes", "version 1.7", "136 at least"]);
}

/// Makes a table of the version 0 that never was into one of version 1: they differ in the number.
fn adapt(old: *const abi::Plugin) -> Result<*const abi::Plugin, String> {
    // SAFETY: a shim is given the table of a plugin.
    let old = unsafe { &*old };
    assert_eq!(old.abi_major, 0);
    if old.abi_minor < 3 {
        return Err(format!("0.{} has no queues", old.abi_minor));
    }
    Ok(Box::leak(Box::new(abi::Plugin { abi_major: abi::MAJOR, abi_minor: 0, ..*old })))
}

#[test]
fn an_older_major_needs_a_shim() {
    is_refused(&["-DMAJOR=0", "-DMINOR=3"], &["version 0.3", "without a shim for 0"]);
    let loader = Loader { shims: &[Shim { major: 0, adapt }], ..Loader::default() };
    let folder = folder();
    let Some(old) = plugin(&folder, &["-DMAJOR=0", "-DMINOR=3"]) else { return };
    assert_eq!(loader.load_file(&old).unwrap().info().version, "1.2");
    let text = refusal(&["-DMAJOR=0", "-DMINOR=2"], loader).expect("there is a compiler");
    assert!(text.contains("the shim for that says: 0.2 has no queues"), "{text}");
}

#[test]
fn what_the_system_says_reaches_the_caller() {
    is_refused(&["-DNO_ENTRY"], &["undefined symbol: campanile_transport_plugin"]);
    is_refused(&["-DUNDEFINED"], &["undefined symbol: campanile_test_nobody_has_this"]);

    let folder = folder();
    let absent = folder.path().join("libabsent.so");
    let place = folder.path().to_str().expect("a temporary folder has a plain name");
    let Some(absent) = compiler::library("absent.c", absent, &[]) else { return };
    let Some(file) = plugin(&folder, &["-DDEPENDS", "-L", place, "-labsent"]) else { return };
    std::fs::remove_file(absent).unwrap();
    let text = Loader::default().load_file(&file).err().unwrap().to_string();
    assert!(text.contains("libabsent.so: cannot open shared object file"), "{text}");
}

#[test]
fn files_that_are_no_libraries() {
    let folder = folder();
    let says = |name: &str, content: Option<&[u8]>, word: &str| {
        let file = folder.path().join(name);
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        let text = Loader::default().load_file(&file).err().unwrap().to_string();
        assert!(text.contains(word) && text.contains(name), "{text}");
    };
    says("empty.so", Some(b""), "file too short");
    says("text.so", Some("this is no library\n".repeat(100).as_bytes()), "invalid ELF header");
    says("not_there.so", None, "No such file");
    std::fs::create_dir(folder.path().join("folder.so")).unwrap();
    says("folder.so", None, "no regular file");
    let fifo = folder.path().join("pipe.so");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    says("pipe.so", None, "no regular file");
}

#[test]
fn crashes_and_hangs_stay_in_the_child() {
    is_refused(&["-DCRASH"], &["ended the process that probed it", "SIGABRT"]);
    is_refused(&["-DLEAVE"], &["ended the process that probed it", "exit status: 7"]);
    is_refused(&["-DREFUSE"], &["init: no licence for this machine"]);

    let folder = folder();
    let Some(file) = plugin(&folder, &["-DHANG"]) else { return };
    let loader = Loader { deadline: Duration::from_millis(200), ..Loader::default() };
    let error = loader.load_file(&file).err();
    let Some(LoadError::Hung { path, waited }) = &error else { panic!("{error:?}") };
    assert!(path.ends_with("libcampanile_c.so") && *waited >= loader.deadline);
}

#[test]
fn what_a_probe_starts_ends_with_it() {
    let folder = folder();
    let number = folder.path().join("stray");
    let Some(file) = plugin(&folder, &[&format!("-DSTRAY=\"{}\"", number.display())]) else { return };
    Loader::default().probe(&file).unwrap();
    let stray: u32 = std::fs::read_to_string(&number).expect("`probe` writes it").parse().expect("a number");
    // Until whoever inherits it has taken note of its end: a process that has ended has no memory.
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while std::fs::read_to_string(format!("/proc/{stray}/statm")).is_ok_and(|pages| !pages.starts_with("0 ")) {
        assert!(std::time::Instant::now() < deadline, "process {stray} is still there");
        std::thread::yield_now();
    }
}

#[test]
fn a_panic_is_an_error_that_names_the_function() {
    let file = library::Library::Panicking.file();
    let text = Loader::default().load_file(&file).err().unwrap().to_string();
    assert!(text.contains("init: panic in info: who am I?"), "{text}");
}

/// Keeps the events of its thread, as lines.
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_plugin_writes_into_the_log_of_the_host() {
    let folder = folder();
    let Some(file) = plugin(&folder, &["-DLOG"]) else { return };
    let lines = Arc::new(Mutex::new(Vec::new()));
    let subscriber = Lines(Arc::clone(&lines));
    tracing::subscriber::with_default(subscriber, || Loader::default().load_file(&file)).unwrap();
    let lines = lines.lock().unwrap();
    let told = lines.iter().any(|line| line.starts_with("WARN") && line.contains("hello from C"));
    assert_eq!(
        lines.iter().filter(|line| line.contains("hello")).count(),
        1,
        "the child's log goes nowhere: {lines:?}"
    );
    assert!(told && lines.iter().any(|line| line.contains("from=\"c\"")), "{lines:?}");
}

fn paths(refused: &[SearchError]) -> Vec<&Path> {
    refused.iter().map(SearchError::path).collect()
}

#[test]
fn a_search_tells_of_everything() {
    let (one, two) = (folder(), folder());
    let make = |folder: &TempDir, file: &str, name: &str| {
        compiler::library("plugin.c", folder.path().join(file), &[&format!("-DNAME=\"{name}\"")])
    };
    let Some(good) = make(&one, "libcampanile_good.so", "good") else { return };
    let [same_1, same_2, taken] = [
        make(&one, "libcampanile_same.so", "same"),
        make(&two, "libcampanile_other.so", "same"),
        make(&two, "libcampanile_shm.so", "shm"),
    ]
    .map(|file| file.expect("there is a compiler"));
    let broken = two.path().join("libcampanile_broken.so");
    std::fs::write(&broken, "").unwrap();
    // Neither of these is looked at.
    std::fs::write(one.path().join("libother.so"), "").unwrap();
    std::fs::write(one.path().join("libcampanile_good.so.1"), "").unwrap();
    let folders =
        format!("{}:/no/such/folder::{}:{}", one.path().display(), two.path().display(), one.path().display());

    let search = Loader::default().search(&folders, &["shm"]);
    assert_eq!(search.found.iter().map(|found| &*found.name).collect::<Vec<_>>(), ["good"]);
    assert_eq!(search.found[0].path, good.canonicalize().unwrap());
    let mut refused = search.refused.iter().map(ToString::to_string).collect::<Vec<_>>();
    refused.sort();
    assert_eq!(refused.len(), 5, "{refused:?}");
    let has = |words: &[&dyn std::fmt::Display]| {
        let words: Vec<_> = words.iter().map(ToString::to_string).collect();
        let told = refused.iter().any(|text| words.iter().all(|word| text.contains(word)));
        assert!(told, "nothing with {words:?} in {refused:?}");
    };
    has(&[&"/no/such/folder", &"No such file"]);
    has(&[&broken.display(), &"file too short"]);
    has(&[&format!("plugin {}", same_1.display()), &same_2.display(), &"\"same\"", &"remove all but one"]);
    has(&[&format!("plugin {}", same_2.display()), &same_1.display(), &"\"same\""]);
    has(&[&taken.display(), &"linked in", &format!("CAMPANILE_TRANSPORT={}", taken.display())]);
    assert!(paths(&search.refused).contains(&taken.as_path()));
    assert_eq!(search.refused.iter().filter(|error| error.name() == Some("same")).count(), 2);
    assert!(Loader::default().search("", &[]).refused.is_empty());
}
