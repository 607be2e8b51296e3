//! Model check of the MoE protocol.
//!
//! Three ranks run the real [`Protocol`](campanile_moe::protocol::Protocol) in programs of dispatch, combine and release
//! over one and two sets, every phase split or not. The explorer goes through **all** interleavings of their stores, row
//! writes, row reads and waits, under sequential consistency (memory order is the affair of `protocol_loom`), with epochs
//! that wrap. In every state it must hold that
//!
//! - a reader of routing, rows, outputs or returns finds exactly the round that it is in, never an older or a newer one;
//! - no word is refused, no call is refused;
//! - somebody can go on, or all have ended;
//! - whoever has aborted is refused every publication.
//!
//! Then bugs are seeded into the engine's side, and each must be found: see [`mutants`].
//!
//! A slow rank is one that is chosen late, so every skew is among the interleavings.
//!
//! Size: 50 million states in all, about 7 s of one core and 30 MB with the workspace's dev profile; each test prints its
//! own count.

mod explorer;
mod machine;
mod mutants;
mod program;

use campanile_moe::protocol::Epoch;
use explorer::{Model, Shows, explore};
use machine::Step;
use mutants::Edit;
use program::{Program, Traffic, Way};

/// The second round of each set is beyond the wrap.
const FIRST: Epoch = Epoch(u32::MAX);

/// No bug.
fn right(_: usize, script: Vec<Step>) -> Vec<Step> {
    script
}

fn model(program: &Program, edit: Edit) -> Model {
    Model {
        scripts: [0, 1, 2].map(|rank| edit(rank, program.script(rank))),
        sets: program.sets(),
        first: FIRST,
        masked: program.masked_from.is_some(),
        abort: false,
        restart: false,
        seek: None,
    }
}

/// Explores programs that must be right; prints the number of states.
fn all_hold(what: &str, models: impl IntoIterator<Item = (Program, Model)>) {
    let (mut programs, mut states) = (0, 0);
    for (program, model) in models {
        match explore(&model) {
            Ok(found) => states += found,
            Err(found) => panic!("{what}: {program}\n{found}"),
        }
        programs += 1;
    }
    println!("{what}: {programs} programs, {states} states");
    assert!(states > programs, "nothing was explored");
}

fn with_models(programs: Vec<Program>, edit: Edit) -> impl Iterator<Item = (Program, Model)> {
    programs.into_iter().map(move |program| {
        let model = model(&program, edit);
        (program, model)
    })
}

/// Explores a model that must fail, and must be able to fail in this way.
fn must_fail(name: &str, model: Model, shows: Shows) {
    let Err(found) = explore(&Model { seek: Some(shows), ..model }) else { panic!("not found: {name}") };
    println!("{name}: found after {} steps\n  {}", found.schedule.len(), found.violation);
}

#[test]
fn two_rounds_in_every_order() {
    let programs = [(Traffic::Ragged, Way::Mixed), (Traffic::One, Way::Pull), (Traffic::One, Way::Push)];
    let programs = programs.into_iter().flat_map(|(traffic, way)| Program::all(2, traffic, way)).collect();
    all_hold("two rounds in every order", with_models(programs, right));
}

#[test]
fn three_rounds_without_rows_in_every_order() {
    let programs = Program::all(3, Traffic::Empty, Way::Mixed);
    all_hold("three rounds without rows in every order", with_models(programs, right));
}

#[test]
fn long_programs() {
    let calls = [
        "s0 r0 c0 d0 s0 r0 c0 d0 s0 r0 c0 d0",
        "s0 r0 l0 s0 r0 l0 s0 r0 l0",
        "s0 r0 c0 d0 s0 r0 l0 s0 r0 c0 d0",
        "s0 s1 r0 r1 c0 c1 d0 d1 s0 s1 r0 r1 c1 c0 d1 d0",
        "s0 r0 s1 r1 c0 d0 s0 c1 d1 s1 r0 c0 r1 d0 c1 d1",
        "s0 r0 s1 r1 l1 s1 c0 d0 s0 r1 r0 c1 l0 d1",
        "s0 r0 c0 d0 z0 s0 r0 c0 d0 z0 s0 r0 c0 d0",
        "s0 s1 r0 c0 r1 c1 d0 z0 d1 s0 z1 s1 r0 r1 c0 d0 l1",
    ];
    let traffics = [(Traffic::Ragged, Way::Mixed), (Traffic::ToOne, Way::Pull), (Traffic::One, Way::Push)];
    let programs =
        calls.into_iter().flat_map(|calls| traffics.map(|(traffic, way)| Program::new(calls, traffic, way))).collect();
    all_hold("long programs", with_models(programs, right));
}

#[test]
fn a_rank_masked_at_every_call() {
    let programs = Program::all(2, Traffic::One, Way::Mixed);
    let programs = programs
        .into_iter()
        .flat_map(|program| (0..program.calls.len()).map(move |call| program.clone().masked_from(call)))
        .collect();
    all_hold("a rank masked at every call", with_models(programs, right));
}

#[test]
fn a_masked_rank_comes_back() {
    let calls = "s0 r0 c0 d0 s1 r1 s0 r0 c0 d0 l1 ! s0 r0 s1 r1 c0 d0 l1";
    let meeting = calls.split_whitespace().position(|call| call == "!").expect("they meet");
    let programs = (0..meeting).map(|call| Program::new(calls, Traffic::One, Way::Mixed).masked_from(call)).collect();
    all_hold("a masked rank comes back", with_models(programs, right));
}

#[test]
fn an_abort_at_any_point() {
    let calls = ["s0 r0 c0 d0 s0 r0 c0 d0", "s0 s1 r0 c0 r1 d0 l1", "s0 r0 l0 s0 r0 c0 d0"];
    let programs = calls.map(|calls| Program::new(calls, Traffic::One, Way::Mixed)).to_vec();
    let models = with_models(programs, right).map(|(program, model)| (program, Model { abort: true, ..model }));
    all_hold("an abort at any point", models);
}

#[test]
fn every_mutant_is_found() {
    for mutants::Mutant { name, program, edit, shows } in mutants::all() {
        let right = model(&program, right);
        let name = format!("{name} [{program}]");
        all_hold("without the bug", [(program.clone(), right)]);
        must_fail(&name, model(&program, edit), shows);
    }
}

#[test]
fn ranks_that_differ_are_found() {
    // Rule 6: the same calls in another order.
    let order = Program::new("s0 r0 l0 s1 r1 l1", Traffic::One, Way::Pull);
    let other = Program::new("s1 r1 l1 s0 r0 l0", Traffic::One, Way::Pull);
    let mut differ = model(&order, right);
    differ.scripts[1] = other.script(1);
    must_fail("two orders of calls", differ, Shows::Deadlock);

    let mut differ = model(&Program::new("s0 r0 c0 d0", Traffic::One, Way::Push), right);
    differ.scripts[0] = Program::new("s0 r0 c0 d0", Traffic::One, Way::Pull).script(0);
    must_fail("one rank pulls what the others push", differ, Shows::Refused);
}

#[test]
fn a_readmission_that_starts_over_is_found() {
    let program = Program::new("s0 r0 c0 d0 ! s0 r0 c0 d0", Traffic::One, Way::Pull).masked_from(0);
    all_hold("without the bug", with_models(vec![program.clone()], right));
    must_fail("epochs start over", Model { restart: true, ..model(&program, right) }, Shows::Race);
}

/// `META(e)` of a source follows its `DONE_C(e−1)` in its own program order, so a finished dispatch implies it: the wait
/// in dispatch receive costs nothing, and frees nothing. Only outputs that are written before a dispatch need it.
#[test]
fn dispatch_implies_done() {
    let programs = Program::all(2, Traffic::Ragged, Way::Mixed);
    all_hold("no wait for DONE_C in dispatch", with_models(programs, mutants::no_done_in_dispatch));
    let late = vec![Program::new("s0 r0 c0 d0 s0 r0 c0 d0", Traffic::One, Way::Pull)];
    all_hold("DONE_C before the pull, outputs written after dispatch", with_models(late, mutants::done_first));
}

/// A pull from every owner, and an alternation of sets whose phases are not split, happen to imply the credit. The
/// mutants show how little it takes to lose that.
#[test]
fn where_the_credit_is_implied() {
    let calls = ["s0 r0 c0 d0 s0 r0 c0 d0", "s0 r0 l0 s1 r1 l1 s0 r0 l0"];
    let programs = calls.map(|calls| Program::new(calls, Traffic::One, Way::Pull)).to_vec();
    all_hold("no wait for READY_C where it is implied", with_models(programs, mutants::no_credit));
}
