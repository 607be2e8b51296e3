//! Stacks: text to decorators and back, refusals, names.

use std::sync::Arc;

use campanile_core::{Config, TransportPlugin};
use campanile_shm::ShmPlugin;
use campanile_testkit::decorate::{Check, Lean, Plain, Stack, StackError, Stats, Throttle, Trace};

mod common;

#[test]
fn what_is_printed_is_what_is_read() {
    for text in [
        "plain",
        "stats+trace+check",
        "trace(events=100, file=/tmp/here)",
        "throttle",
        "throttle(latency=5us, bandwidth=1GB/s)",
        "throttle(latency=2.5us, bandwidth=1500MB/s)",
        "throttle(bandwidth=64KB/s)",
        "throttle(bandwidth=3B/s)",
        "fault(rank=1, seed=3, fail_post=4, fail_completion=5, drop_completion=6, delay=7us, reorder=yes, kill_after=8)",
        "lean(delay=50us, seed=2, inline_bytes=8, max_bytes=64, alignment=8, add=yes, strong=yes)",
        "throttle(latency=1us)+throttle(latency=2us)+stats",
    ] {
        assert_eq!(common::stack(text).to_string(), text);
    }
    // Blanks are free, units are not the only way to write a time.
    assert_eq!(common::stack(" throttle( latency = 0.001 )+ stats ").to_string(), "throttle(latency=1000us)+stats");
    assert_eq!(common::stack("").to_string(), "");
    assert_eq!(common::stack("throttle()").to_string(), "throttle");
    let lean = Stack::new().with(Lean::default());
    assert_eq!(common::stack("lean").to_string(), lean.to_string());
    assert_eq!(lean.to_string().parse::<Stack>().unwrap().get::<Lean>(), Some(&Lean::default()));
}

#[test]
fn every_name_that_is_listed_is_accepted() {
    for (name, options) in Stack::known() {
        assert_eq!(common::stack(name).apply(Arc::new(ShmPlugin)).info().name, format!("shm+{name}"));
        for option in options {
            // A value that none of them takes: the option is known, and says what it wants.
            let refused = Stack::parse(&format!("{name}({option}=)")).expect_err("no option takes nothing");
            assert!(matches!(&refused, StackError::Value { option: refused, .. } if refused == option), "{refused}");
        }
    }
    assert_eq!(Stack::known().count(), 7);
}

#[test]
fn refusals_say_what_was_given_what_is_allowed_and_what_is_near() {
    let refusal = |text: &str| Stack::parse(text).expect_err(text).to_string();
    assert_eq!(refusal("throtle"), "\"throtle\" is no decorator; did you mean throttle?");
    let far = refusal("xyzzy");
    let names = ["check", "fault", "lean", "plain", "stats", "throttle", "trace"];
    assert!(far.contains("known are") && names.iter().all(|name| far.contains(name)), "{far}");
    assert_eq!(refusal("throttle(latncy=1us)"), "decorator throttle has no option \"latncy\"; did you mean latency?");
    assert_eq!(refusal("stats(x=1)"), "decorator stats has no option \"x\"; it has none");
    assert_eq!(refusal("fault(fail_post=0)"), "fault(fail_post=0) is not allowed; fail_post takes a number from 1");
    for (text, fragment) in [
        ("throttle(latency=5)x", "not closed"),
        ("throttle(latency=5us", "not closed"),
        ("throttle(latency)", "without a value"),
        ("throttle(latency=1us, latency=2us)", "given before"),
        ("throttle(latency=1us,)", "without a value"),
        ("stats++trace", "without a name"),
        ("+", "without a name"),
        ("(latency=1us)", "without a name"),
        ("throttle(latency=soon)", "as 5us"),
        ("throttle(bandwidth=0GB/s)", "more than 0"),
        ("throttle(bandwidth=1)", "as 1GB/s"),
        ("throttle(bandwidth=1GiB/s)", "as 1GB/s"),
        ("throttle(bandwidth=infGB/s)", "as 1GB/s"),
        ("throttle(bandwidth=-1GB/s)", "as 1GB/s"),
        ("fault(reorder=true)", "yes or no"),
        ("fault(seed=+1)", "a number from 0"),
        ("fault(rank=-1)", "a rank"),
        ("lean(alignment=3)", "a power of two"),
        ("trace(events=0)", "from 1"),
        ("trace(file=)", "a path"),
    ] {
        let refused = refusal(text);
        assert!(refused.contains(fragment), "{text}: {refused}");
    }
    assert!(matches!("Stats".parse::<Stack>(), Err(StackError::Decorator { .. })), "names are lower case");
}

#[test]
fn names_show_the_stack_innermost_first() {
    let throttle = Throttle::default();
    let stack = Stack::new().with(throttle).with(Stats::new()).with(Plain).with(Check).with(Trace::default());
    let plugin = stack.apply(Arc::new(ShmPlugin));
    assert_eq!(plugin.info().name, "shm+throttle+stats+plain+check+trace");
    assert_eq!(plugin.info().version, ShmPlugin.info().version);
    assert_eq!(plugin.probe(), ShmPlugin.probe());
    let transports = common::job(1, &stack, &common::options(), |comm| comm.transport().info().name);
    assert_eq!(transports, ["shm+throttle+stats+plain+check+trace"]);
    // A linked plugin is a reference.
    let linked: &'static dyn TransportPlugin = &ShmPlugin;
    assert_eq!(Stack::new().apply(Arc::new(linked)).info().name, "shm");
    let refused = stack.apply(Arc::new(linked)).open("gpu0", common::open_options()).err().expect("no such device");
    assert!(refused.to_string().contains("gpu0"), "{refused}");
}

#[test]
fn what_was_recorded_is_found_in_the_stack() {
    let stack = common::stack("stats+throttle(latency=1us)");
    assert_eq!(stack.get::<Stats>().expect("it is there").snapshot().ranks, []);
    assert_eq!(stack.get::<Throttle>().expect("it is there").bytes_per_ns, None);
    assert!(stack.get::<Trace>().is_none());
}

#[test]
fn the_variable_holds_a_stack() {
    let text = "throttle(latency=5us, bandwidth=1GB/s)+stats";
    let config = Config::load([("CAMPANILE_DECORATE", text)], None).expect("any text is taken");
    assert_eq!(config.decorate().as_deref(), Some(text));
    let file = Config::load([("PATH", "")], Some("decorate = \"stats\"")).expect("it is a setting of the job");
    assert_eq!(file.decorate().as_deref(), Some("stats"));
    assert_eq!(Config::default().decorate(), None);
}
