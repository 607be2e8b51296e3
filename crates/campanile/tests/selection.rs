//! The ranks of a job come to one transport, or all learn why not.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use campanile::bootstrap::ThreadBootstrap;
use campanile::core::selection::Preference;
use campanile::core::{OpKind, OpenError, OpenOptions, Probed, TransportInfo};
use campanile::shm::ShmPlugin;
use campanile::{
    Barrier, CommError, CommOptions, Communicator, Config, Explanation, MemoryKind, Origin, Path, Plugin, Plugins,
    Rank, Transport, TransportPlugin, threads, threads_over,
};

/// Shared memory under another name, that some ranks cannot open.
struct Alias {
    name: &'static str,
    /// Ranks from this one on cannot open it.
    opens_below: u32,
    device: Result<&'static str, &'static str>,
}

fn alias(name: &'static str, opens_below: u32) -> Alias {
    Alias { name, opens_below, device: Ok("memory of this node") }
}

impl TransportPlugin for Alias {
    fn info(&self) -> TransportInfo {
        TransportInfo { name: self.name, ..ShmPlugin.info() }
    }

    fn probe(&self) -> Vec<Probed> {
        vec![Probed { device: "node".to_owned(), usable: self.device.map(str::to_owned).map_err(str::to_owned) }]
    }

    fn open(&self, device: &str, options: OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        if options.rank.0 >= self.opens_below {
            return Err(OpenError::System { transport: self.name, reason: "the driver is missing".to_owned() });
        }
        ShmPlugin.open(device, options)
    }
}

/// A rank's plugins and preference.
type Given<'a> = (&'a [&'a dyn TransportPlugin], &'a str);

/// What each of two ranks says when it selects.
fn select(ranks: [Given<'_>; 2]) -> [Result<(), CommError>; 2] {
    let selected: Vec<_> = std::thread::scope(|scope| {
        let mut ends = Vec::new();
        for (bootstrap, (plugins, transports)) in ThreadBootstrap::world(2).into_iter().zip(ranks) {
            let transports = Preference::parse(transports).expect("a preference");
            let options = CommOptions { transports, timeout: Duration::from_secs(10), ..CommOptions::default() };
            ends.push(scope.spawn(move || {
                let comm = Arc::new(Communicator::select(Arc::new(bootstrap), plugins, options)?);
                Barrier::new(&comm)?.wait()
            }));
        }
        ends.into_iter().map(|end| end.join().expect("no rank panics")).collect()
    });
    selected.try_into().expect("two ranks")
}

fn messages(ranks: [Result<(), CommError>; 2]) -> [String; 2] {
    ranks.map(|rank| rank.expect_err("no transport").to_string())
}

#[test]
fn what_one_rank_cannot_open_no_rank_uses() {
    let plugins: &[&dyn TransportPlugin] = &[&alias("fast", 1), &ShmPlugin];
    for preference in ["auto", "fast,shm", "shm"] {
        for rank in select([(plugins, preference), (plugins, preference)]) {
            rank.unwrap_or_else(|error| panic!("{preference}: {error}"));
        }
    }
}

#[test]
fn a_forced_transport_that_cannot_run_is_an_error_on_every_rank_with_what_could() {
    let plugins: &[&dyn TransportPlugin] = &[&alias("fast", 1), &ShmPlugin];
    for message in messages(select([(plugins, "fast"), (plugins, "fast")])) {
        assert_eq!(
            message,
            "no transport reaches every rank, of CAMPANILE_TRANSPORT=fast: fast: rank 1: transport fast cannot be opened: \
             the driver is missing; shm could run here, and so could auto"
        );
    }
    let broken = Alias { device: Err("no driver"), ..alias("fast", 2) };
    let plugins: &[&dyn TransportPlugin] = &[&broken];
    for message in messages(select([(plugins, "auto"), (plugins, "auto")])) {
        assert!(message.contains("fast: rank 0: it has no usable device: node: no driver"), "{message}");
        assert!(message.ends_with("nothing else could run here; `campanile info --explain` says why"), "{message}");
    }
}

#[test]
fn a_transport_that_only_one_rank_has_is_not_chosen() {
    let (one, other): (&[&dyn TransportPlugin], &[&dyn TransportPlugin]) =
        (&[&alias("mine", 2), &ShmPlugin], &[&ShmPlugin]);
    for rank in select([(one, "auto"), (other, "auto")]) {
        rank.unwrap();
    }
    for message in messages(select([(one, "mine"), (other, "mine")])) {
        assert!(message.contains("mine: rank 1: there is no transport of that name"), "{message}");
    }
}

#[test]
fn ranks_with_different_preferences_name_each_other() {
    let plugins: &[&dyn TransportPlugin] = &[&alias("fast", 2), &ShmPlugin];
    let [here, there] = messages(select([(plugins, "fast"), (plugins, "shm,fast")]));
    assert_eq!(here, "communicator: transport is fast here and shm,fast on rank 1; every rank must be given the same");
    assert!(there.contains("transport is shm,fast here and fast on rank 0"), "{there}");
}

#[test]
fn the_forced_path_is_the_path_of_windows() {
    for (path, mapped) in [(Path::Auto, true), (Path::LoadStore, true), (Path::Queue, false)] {
        let options = CommOptions { path, ..CommOptions::default() };
        let ranks = threads(2, &options, |comm| -> Result<[bool; 2], CommError> {
            let window = comm.window(64, MemoryKind::Host)?;
            Ok([comm.maps_all(), window.map(1 - comm.rank()).is_some()])
        });
        for rank in ranks {
            assert_eq!(rank.unwrap(), [mapped; 2], "{path:?}");
        }
    }
}

#[test]
fn threads_run_over_the_plugins_that_they_are_given() {
    let plugins = Plugins::default().with(file("/p/libfast.so", "fast"));
    let options = CommOptions { transports: Preference::parse("fast").unwrap(), ..CommOptions::default() };
    let over = |plugins: &Plugins| threads_over(plugins, 2, &options, |comm| Barrier::new(&comm)?.wait());
    assert!(over(&plugins).into_iter().all(|rank| rank.is_ok()));
    assert!(over(&Plugins::linked()).into_iter().all(|rank| matches!(rank, Err(CommError::NoTransport { .. }))));
}

fn file(path: &str, name: &'static str) -> Plugin {
    Plugin::new(Arc::new(alias(name, 9)), Origin::File(PathBuf::from(path)))
}

#[test]
fn names_are_unique() {
    let plugins = Plugins::linked().with(file("/p/d.so", "tcp")).with(file("/p/c.so", "shm"));
    let found: Vec<_> = plugins.iter().map(|plugin| (plugin.name(), plugin.origin.to_string())).collect();
    let [linked, d, c] = ["linked in", "/p/d.so", "/p/c.so"].map(str::to_owned);
    assert_eq!(found, [("p2p", linked), ("tcp", d), ("shm", c)]);
}

/// Nobody gets emulated devices who has not asked for them, nor loses shared memory to them.
#[test]
fn emulated_devices_are_used_when_they_are_asked_for() {
    let config = |variables: &[(&str, &str)]| Config::load(variables.iter().copied(), None).unwrap();
    let emulated = config(&[("CAMPANILE_GPU", "emulator")]);
    let opens = |config: &Config| Explanation::new(&Plugins::of(config).unwrap(), config, 2).unwrap().communicator;
    assert_eq!(opens(&emulated).as_deref(), Ok("shm"));
    let named = config(&[("CAMPANILE_GPU", "emulator"), ("CAMPANILE_TRANSPORT", "p2p")]);
    assert_eq!(opens(&named).as_deref(), Ok("p2p"));
    let libraries = [("CAMPANILE_LIBCUDA", "/nowhere/cuda.so"), ("CAMPANILE_LIBAMDHIP64", "/nowhere/hip.so")];
    let none = config(&[&libraries[..], &[("CAMPANILE_TRANSPORT", "p2p")]].concat());
    let reason = opens(&none).unwrap_err();
    assert!(reason.contains("/nowhere/cuda.so") && reason.contains("/nowhere/hip.so"), "{reason}");
    assert_eq!(opens(&config(&libraries)).as_deref(), Ok("shm"));
}

#[test]
fn decorators_do_not_change_the_name_that_is_chosen() {
    let config = Config::load([("CAMPANILE_TRANSPORT", "shm"), ("CAMPANILE_DECORATE", "plain+stats")], None).unwrap();
    let plugins = Plugins::of(&config).unwrap();
    assert_eq!(plugins.iter().next().unwrap().name(), "shm");
    assert_eq!(plugins.preference(&config).unwrap().to_string(), "shm+plain+stats");
    let bad = Config::load([("CAMPANILE_DECORATE", "stast")], None).unwrap();
    let error = Plugins::of(&bad).err().unwrap().to_string();
    assert!(error.contains("CAMPANILE_DECORATE") && error.contains("stats"), "{error}");
}

#[test]
fn a_configuration_names_transports_by_name_or_path() {
    let plugins = Plugins::linked().with(file("/p/d.so", "tcp"));
    let preference = |text: &str| {
        let config = Config::load([("CAMPANILE_TRANSPORT", text)], None).unwrap();
        plugins.preference(&config).map(|preference| preference.to_string()).map_err(|error| error.to_string())
    };
    assert_eq!(preference("auto"), Ok("auto".to_owned()));
    assert_eq!(preference("/p/d.so,shm"), Ok("tcp,shm".to_owned()));
    for given in ["rdma", "/p/other.so", "shm,rdma"] {
        assert_eq!(
            preference(given),
            Err(format!(
                "CAMPANILE_TRANSPORT = {given:?} (from environment) is not allowed; it takes auto or, in order of \
                 preference, any of shm, p2p, tcp, and plugins' files (a path with a slash)"
            ))
        );
    }
    // A path and a name that mean one transport are one too many.
    assert!(preference("tcp,/p/d.so").unwrap_err().starts_with("CAMPANILE_TRANSPORT = \"tcp,/p/d.so\""));
}

#[test]
fn an_explanation_says_what_a_communicator_would_open_or_why_none() {
    let plugins = Plugins::linked().with(Plugin::new(Arc::new(alias("broken", 0)), Origin::Linked));
    let explain = |transports: &str| {
        let config = Config::load([("CAMPANILE_TRANSPORT", transports)], None).unwrap();
        Explanation::new(&plugins, &config, 3).unwrap()
    };
    assert_eq!(explain("broken,shm").communicator.as_deref(), Ok("shm"));
    let forced = explain("broken");
    let reason = "transport broken cannot be opened: the driver is missing";
    assert_eq!(forced.communicator, Err(format!("broken: rank 0: {reason}")));
    assert!(forced.selection.rows().iter().all(|row| row.chosen().is_none()));
    let reasons = &forced.selection.find(Rank(2), MemoryKind::Host, OpKind::Put, 8).unwrap().rejected;
    let reasons: Vec<_> = reasons.iter().map(|it| (it.transport.as_str(), it.reason.as_str())).collect();
    let unnamed = "CAMPANILE_TRANSPORT=broken (environment) does not name it";
    assert_eq!(reasons, [("shm", unnamed), ("p2p", unnamed), ("broken", reason)]);
}
