//! Configuration: precedence, sources, refusals that name what was given and what is allowed.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use campanile_core::selection::{Policy, Preference};
use campanile_core::{
    Bind, Config, ConfigError, HugePages, MoeCombine, MoeMode, Path, Rank, Scope, Source, VARIABLES, parse_duration,
};
use proptest::prelude::*;

const NOTHING: [(&str, &str); 0] = [];

fn refusal(environment: &[(&str, &str)], file: Option<&str>) -> String {
    Config::load(environment.iter().copied(), file).expect_err("to be refused").to_string()
}

#[test]
fn nothing_given_is_the_defaults() {
    let config = Config::load([("PATH", "/bin"), ("OTHER_TIMEOUT", "x")], None).unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.timeout(), Duration::from_secs(30));
    assert_eq!(config.transport(), Preference::AUTO);
    assert_eq!(config.path(), Path::Auto);
    assert_eq!(config.queue_depth(), 256);
    assert_eq!(config.bind(), Bind::Cores);
    assert_eq!(config.huge_pages(), HugePages::Auto);
    assert_eq!((config.moe_mode(), config.moe_combine()), (MoeMode::Auto, MoeCombine::Auto));
    assert_eq!((config.rank(), config.store(), config.config_file()), (None, None, None));
    assert!(config.settings().iter().all(|setting| setting.source == Source::Default));
}

#[test]
fn each_source_overrides_the_ones_before_and_is_remembered() {
    let environment = [("CAMPANILE_TIMEOUT", "1"), ("CAMPANILE_PATH", "queue"), ("CAMPANILE_BIND", "none")];
    let file = "timeout = 2.5\npath = \"load-store\"\n";
    let config = Config::load(environment, Some(file)).unwrap().with_timeout(Duration::from_secs(3)).unwrap();
    assert_eq!((config.timeout(), config.source("CAMPANILE_TIMEOUT")), (Duration::from_secs(3), Some(Source::Code)));
    assert_eq!((config.path(), config.source("CAMPANILE_PATH")), (Path::LoadStore, Some(Source::File)));
    assert_eq!((config.bind(), config.source("CAMPANILE_BIND")), (Bind::None, Some(Source::Environment)));
    assert_eq!((config.queue_depth(), config.source("CAMPANILE_QUEUE_DEPTH")), (256, Some(Source::Default)));
    assert_eq!(config.source("CAMPANILE_NOTHING"), None);
}

#[test]
fn every_line_of_the_table_is_whole_and_prints_what_it_accepts() {
    for (variable, setting) in VARIABLES.iter().zip(Config::default().settings()) {
        assert_eq!(variable.name, setting.variable.name);
        assert_eq!(variable.default, setting.value, "{}", variable.name);
        assert!(variable.doc().ends_with('.') && !variable.allowed().is_empty(), "{}", variable.name);
        let config = Config::load([(variable.name, variable.default)], None).unwrap();
        assert_eq!(config.source(variable.name), Some(Source::Environment));
        let line = format!("{} = {:?}", variable.key(), variable.default);
        match (variable.scope, Config::load(NOTHING, Some(&line))) {
            (Scope::Job, Ok(config)) => assert_eq!(config.source(variable.name), Some(Source::File)),
            (Scope::Process, Err(ConfigError::NotInFile { .. })) => {}
            (_, other) => panic!("{}: {other:?}", variable.name),
        }
    }
}

#[test]
fn all_names_of_a_choice_are_accepted() {
    for variable in VARIABLES.iter().filter(|variable| variable.allowed().contains("auto, ")) {
        for name in variable.allowed().split(", ") {
            let config = Config::load([(variable.name, name)], None).unwrap();
            assert!(config.settings().iter().any(|it| it.variable.name == variable.name && it.value == name));
        }
    }
}

#[test]
fn unknown_names_are_refused_with_the_nearest_ones() {
    assert_eq!(
        refusal(&[("CAMPANILE_TIMOUT", "1")], None),
        "CAMPANILE_TIMOUT in the environment is no variable of Campanile; did you mean CAMPANILE_TIMEOUT?"
    );
    let far = refusal(&[("CAMPANILE_XYZZY_PLUGH", "1")], None);
    assert!(far.contains("known are") && VARIABLES.iter().all(|variable| far.contains(variable.name)), "{far}");
    assert!(refusal(&[("CAMPANILE_", "1")], None).starts_with("CAMPANILE_ in"));
    let key = refusal(&NOTHING, Some("queue_dept = 8"));
    assert_eq!(key, "queue_dept in the configuration file is no key of Campanile; did you mean queue_depth?");
    // The names of the environment are not the keys of the file.
    assert!(refusal(&NOTHING, Some("CAMPANILE_TIMEOUT = 1")).starts_with("CAMPANILE_TIMEOUT in"));
    assert!(refusal(&NOTHING, Some("[moe]\nmode = \"auto\"")).starts_with("moe in"));
}

#[test]
fn bad_values_are_refused_with_name_value_origin_and_what_is_allowed() {
    assert_eq!(
        refusal(&[("CAMPANILE_PATH", "Queue")], None),
        "CAMPANILE_PATH = \"Queue\" (from environment) is not allowed; it takes auto, load-store, queue"
    );
    assert_eq!(
        refusal(&NOTHING, Some("moe_mode = \"fast\"")),
        "moe_mode = \"fast\" (from file) is not allowed; it takes auto, throughput, low-latency"
    );
    for (name, bad) in [
        ("CAMPANILE_TIMEOUT", "0"),
        ("CAMPANILE_TIMEOUT", "-1"),
        ("CAMPANILE_TIMEOUT", ""),
        ("CAMPANILE_TIMEOUT", "inf"),
        ("CAMPANILE_TIMEOUT", "NaN"),
        ("CAMPANILE_TIMEOUT", "1e3"),
        ("CAMPANILE_TIMEOUT", "5 s"),
        ("CAMPANILE_TIMEOUT", "5h"),
        ("CAMPANILE_TIMEOUT", "."),
        ("CAMPANILE_TIMEOUT", "0.0000000001"),
        ("CAMPANILE_TIMEOUT", "99999999999"),
        ("CAMPANILE_QUEUE_DEPTH", "0"),
        ("CAMPANILE_QUEUE_DEPTH", "100"),
        ("CAMPANILE_QUEUE_DEPTH", "+16"),
        ("CAMPANILE_QUEUE_DEPTH", "4294967296"),
        ("CAMPANILE_TRANSPORT", ""),
        ("CAMPANILE_TRANSPORT", "shm,"),
        ("CAMPANILE_TRANSPORT", "shm,auto"),
        ("CAMPANILE_TRANSPORT", "shm,rdma,shm"),
        ("CAMPANILE_PLUGIN_PATH", ""),
        ("CAMPANILE_BIND", "true"),
        ("CAMPANILE_RANK", "-1"),
        ("CAMPANILE_RANK", "one"),
        ("CAMPANILE_WORLD_SIZE", "0"),
        ("CAMPANILE_STORE", ""),
    ] {
        let message = refusal(&[(name, bad)], None);
        let allowed = VARIABLES.iter().find(|variable| variable.name == name).unwrap().allowed();
        assert!(message.starts_with(&format!("{name} = {bad:?} (from environment)")), "{message}");
        assert!(message.ends_with(&allowed), "{message}");
    }
    for bad in ["timeout = true", "timeout = [1]", "timeout = 1979-05-27", "timeout = inf", "queue_depth = 1.5"] {
        let message = refusal(&NOTHING, Some(bad));
        assert!(message.contains("(from file)"), "{bad}: {message}");
    }
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let bytes = OsString::from_vec(vec![b'/', 0xff]);
    let error = Config::load([(OsString::from("CAMPANILE_CONFIG"), bytes.clone())], None).unwrap_err();
    assert!(error.to_string().contains("CAMPANILE_CONFIG") && error.to_string().contains("UTF-8"), "{error}");
    assert!(Config::load([(OsString::from("PATH"), bytes)], None).is_ok());
}

#[test]
fn what_is_not_toml_is_refused_with_the_line() {
    let message = refusal(&NOTHING, Some("timeout = 1\npath = queue\n"));
    assert!(message.contains("not TOML") && message.contains("line 2"), "{message}");
    let message = refusal(&NOTHING, Some("timeout = 1\ntimeout = 2\n"));
    assert!(message.contains("duplicate"), "{message}");
}

#[test]
fn code_cannot_set_what_text_could_not() {
    let error = Config::default().with_timeout(Duration::ZERO).unwrap_err();
    assert!(error.to_string().starts_with("CAMPANILE_TIMEOUT = \"0s\" (from code) is not allowed"), "{error}");
    assert!(Config::default().with_queue_depth(3).is_err());
    assert!(Config::default().with_queue_depth(usize::MAX).is_err());
    assert!(Config::default().with_transport(Preference::of(["a b", "c"]).unwrap()).is_ok());
    assert!(Config::default().with_world_size(Some(0)).is_err());
    assert_eq!(Config::default().with_moe_combine(MoeCombine::Push).unwrap().moe_combine(), MoeCombine::Push);
}

#[test]
fn the_transports_are_checked_against_what_there_is() {
    let config = Config::load([("CAMPANILE_TRANSPORT", "rdma, shm")], None).unwrap();
    config.check_transport(&config.transport(), &["shm", "rdma"]).unwrap();
    assert_eq!(
        config.check_transport(&config.transport(), &["shm", "p2p"]).unwrap_err().to_string(),
        "CAMPANILE_TRANSPORT = \"rdma,shm\" (from environment) is not allowed; it takes auto or, in order of preference, \
         any of shm, p2p"
    );
    Config::default().check_transport(&Preference::AUTO, &[]).unwrap();
}

#[test]
fn the_policy_knows_where_it_came_from() {
    let config = Config::load([("CAMPANILE_TRANSPORT", "shm")], Some("path = \"queue\"")).unwrap();
    let policy = Policy::new(Preference::of(["shm"]).unwrap(), Path::Queue);
    assert_eq!(config.policy(), policy.sources(Source::Environment, Source::File));
}

#[test]
fn a_launcher_tells_all_or_nothing() {
    assert_eq!(Config::default().launched().unwrap(), None);
    let all = [
        ("CAMPANILE_RANK", "2"),
        ("CAMPANILE_WORLD_SIZE", "3"),
        ("CAMPANILE_LOCAL_RANK", "1"),
        ("CAMPANILE_STORE", "name"),
    ];
    let launched = Config::load(all, None).unwrap().launched().unwrap().unwrap();
    assert_eq!((launched.rank, launched.ranks, launched.local_rank, launched.store.as_str()), (Rank(2), 3, 1, "name"));
    for left_out in 0..all.len() {
        let some = all.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, pair)| *pair);
        let message = Config::load(some, None).unwrap().launched().unwrap_err().to_string();
        assert!(message.contains(&format!("but {} not", all[left_out].0)), "{message}");
    }
    for (at, (name, bad)) in [(0, ("CAMPANILE_RANK", "3")), (2, ("CAMPANILE_LOCAL_RANK", "3"))] {
        let mut contradicting = all;
        contradicting[at].1 = bad;
        let message = Config::load(contradicting, None).unwrap().launched().unwrap_err().to_string();
        assert!(message.contains(&format!("{name}={bad}")) && message.contains("CAMPANILE_WORLD_SIZE=3"), "{message}");
    }
}

#[test]
fn times_with_units() {
    for (text, nanos) in [
        ("30", 30_000_000_000),
        ("30s", 30_000_000_000),
        ("0.5", 500_000_000),
        ("500ms", 500_000_000),
        ("1.5ms", 1_500_000),
        ("7us", 7_000),
        ("2min", 120_000_000_000),
        ("0.000000001", 1),
    ] {
        assert_eq!(parse_duration(text).unwrap(), Duration::from_nanos(nanos), "{text}");
    }
    assert!(parse_duration("soon").unwrap_err().to_string().contains("\"soon\""));
}

proptest! {
    #[test]
    fn a_time_survives_text(nanos in 1_u64..=31_536_000_000_000_000) {
        let time = Duration::from_nanos(nanos);
        let config = Config::default().with_timeout(time).unwrap();
        // Text goes through f64: 53 bits hold a year in nanoseconds to within 4 of them.
        prop_assert!(config.timeout().abs_diff(time) <= Duration::from_nanos(4));
        let shown = config.settings().into_iter().find(|it| it.variable.name == "CAMPANILE_TIMEOUT").unwrap().value;
        prop_assert_eq!(parse_duration(&shown).unwrap(), config.timeout());
    }

    #[test]
    fn any_value_is_taken_or_refused_by_name(at in 0..VARIABLES.len(), value in "\\PC*") {
        let name = VARIABLES[at].name;
        match Config::load([(name, value.as_str())], None) {
            Ok(config) => {
                let setting = config.settings().into_iter().find(|it| it.variable.name == name).unwrap();
                prop_assert_eq!(setting.source, Source::Environment);
                let again = Config::load([(name, setting.value.as_str())], None).unwrap();
                prop_assert_eq!(again, config);
            }
            Err(error) => prop_assert!(error.to_string().starts_with(name), "{}", error),
        }
    }

    #[test]
    fn any_name_is_known_or_refused(name in "CAMPANILE_[A-Z_]{0,20}") {
        let known = VARIABLES.iter().any(|variable| variable.name == name);
        let unknown = matches!(Config::load([(&name, "1")], None), Err(ConfigError::UnknownVariable { given, .. }) if given == name);
        prop_assert_eq!(known, !unknown);
    }

    #[test]
    fn any_file_is_taken_or_refused(text in "\\PC*") {
        let _ = Config::load(NOTHING, Some(&text));
    }
}
