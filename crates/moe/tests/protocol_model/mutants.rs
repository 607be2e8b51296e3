//! Bugs that an engine or a kernel could have, as edits of the scripts, and where each shows.

use campanile_moe::protocol::Word;

use crate::explorer::Shows;
use crate::machine::{Act, Await, Plane, Step, Trust};
use crate::program::{Program, Traffic, Way};

/// What a bug makes of the script of a rank.
pub type Edit = fn(usize, Vec<Step>) -> Vec<Step>;

/// A bug, a program in which it shows, and how.
pub struct Mutant {
    pub name: &'static str,
    pub program: Program,
    pub edit: Edit,
    pub shows: Shows,
}

/// The mutants that differ from the right engine by what one rank's script does.
pub fn all() -> Vec<Mutant> {
    use Shows::{Deadlock, Race, Refused};
    let twice = |way| Program::new("s0 r0 c0 d0 s0 r0 c0 d0", Traffic::One, way);
    let released = || Program::new("s0 r0 l0 s0 r0 l0", Traffic::One, Way::Pull);
    let cleared = || Program::new("s0 r0 c0 d0 z0 s0 r0 c0 d0", Traffic::One, Way::Pull);
    let mutant = |name, program, edit: Edit, shows| Mutant { name, program, edit, shows };
    vec![
        mutant("dispatch does not wait for READY_C, after a release", released(), no_credit, Race),
        mutant("dispatch does not wait for READY_C, after a push", twice(Way::Push), no_credit, Race),
        mutant(
            "dispatch does not wait for READY_C, after a pull from some",
            Program::new("s0 r0 c0 d0 s0 r0 c0 d0", Traffic::Ragged, Way::Pull),
            no_credit,
            Race,
        ),
        mutant("dispatch takes READY_C of the epoch before", released(), early_credit, Race),
        mutant(
            "sets alternate instead of waiting for READY_C",
            Program::new("s0 r0 s1 r1 l0 l1 s0 r0 l0", Traffic::One, Way::Pull),
            no_credit,
            Race,
        ),
        mutant("META before the routing", released(), meta_first, Race),
        mutant("ROWS before the row", released(), rows_first, Race),
        mutant("rows are read without waiting for ROWS", released(), no_rows, Race),
        mutant("READY_C before the outputs", twice(Way::Pull), ready_before_outputs, Race),
        mutant("READY_C before the last use of the rows, in a combine", twice(Way::Pull), ready_before_use, Race),
        mutant("READY_C before the last use of the rows, in a release", released(), ready_before_use, Race),
        mutant("RETURNED before the result", twice(Way::Push), returned_first, Race),
        mutant("results are read without waiting for READY_C", twice(Way::Pull), no_results, Race),
        mutant("results are read without waiting for RETURNED", twice(Way::Push), no_results, Race),
        mutant("outputs are cleared without waiting for DONE_C", cleared(), no_done_before_clear, Race),
        mutant("DONE_C before the pull", cleared(), done_first, Race),
        mutant("a release forgets READY_C", released(), release_forgets_ready, Deadlock),
        mutant("a release forgets DONE_C", released(), release_forgets_done, Deadlock),
        mutant(
            "0 rows send no META",
            Program::new("s0 r0 c0 d0", Traffic::ToOne, Way::Pull),
            silent_without_rows,
            Deadlock,
        ),
        mutant(
            "0 rows give no READY_C",
            Program::new("s0 r0 c0 d0 s0 r0 c0 d0", Traffic::ToOne, Way::Pull),
            no_ready_without_rows,
            Deadlock,
        ),
        mutant("one rank releases, the others pull", twice(Way::Pull), one_releases, Refused),
        mutant("one rank releases, the others push", twice(Way::Push), one_releases, Refused),
    ]
}

/// Replaces the trust of each wait that `which` selects.
fn trust(script: &mut [Step], how: Trust, which: impl Fn(Await) -> bool) {
    for step in script {
        if let Act::Await(wait, trust) = &mut step.act
            && which(*wait)
        {
            *trust = how;
        }
    }
}

/// Swaps every two neighbours of which the first is `before` and the second is `after`.
fn swap(script: &mut [Step], before: impl Fn(Act) -> bool, after: impl Fn(Act) -> bool) {
    for at in 1..script.len() {
        if before(script[at - 1].act) && after(script[at].act) {
            script.swap(at - 1, at);
        }
    }
}

pub fn no_credit(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    trust(&mut script, Trust::Blind, |wait| wait == Await::Credit);
    script
}

fn early_credit(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    trust(&mut script, Trust::EpochEarly, |wait| wait == Await::Credit);
    script
}

fn no_rows(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    trust(&mut script, Trust::Blind, |wait| matches!(wait, Await::Rows(_)));
    script
}

fn no_results(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    trust(&mut script, Trust::Blind, |wait| matches!(wait, Await::Results(_)));
    script
}

/// Dispatch receive trusts that outputs are free.
pub fn no_done_in_dispatch(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    for at in 1..script.len() {
        if !matches!(script.get(at + 1), Some(Step { act: Act::Clear(_), .. })) {
            trust(&mut script[at..=at], Trust::Blind, |wait| wait == Await::OutputsFree);
        }
    }
    script
}

fn no_done_before_clear(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    for at in 1..script.len() {
        if matches!(script[at].act, Act::Clear(_)) {
            trust(&mut script[at - 1..at], Trust::Blind, |wait| wait == Await::OutputsFree);
        }
    }
    script
}

fn meta_first(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    swap(&mut script, |a| matches!(a, Act::Write(Plane::Routing, _)), |b| matches!(b, Act::Publish(Word::Meta, _)));
    script
}

fn rows_first(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    swap(&mut script, |a| matches!(a, Act::Write(Plane::Rows, _)), |b| matches!(b, Act::Publish(Word::Rows, _)));
    script
}

fn returned_first(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    swap(&mut script, |a| matches!(a, Act::Write(Plane::Returns, _)), |b| matches!(b, Act::Publish(Word::Returned, _)));
    script
}

fn ready_before_outputs(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    // The last use of the row stands between them.
    swap(&mut script, |a| matches!(a, Act::Write(Plane::Outputs, _)), |b| matches!(b, Act::Read(Plane::Rows, _)));
    swap(&mut script, |a| matches!(a, Act::Write(Plane::Outputs, _)), |b| matches!(b, Act::Publish(Word::ReadyC, _)));
    script
}

/// The rows are read once more after READY_C.
fn ready_before_use(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    for at in (0..script.len()).rev() {
        let Step { set, peer, act } = script[at];
        if act == Act::Publish(Word::ReadyC, 0) {
            script.insert(at + 1, Step { set, peer, act: Act::Read(Plane::Rows, 0) });
        }
    }
    script
}

pub fn done_first(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    swap(&mut script, |a| matches!(a, Act::Read(Plane::Outputs, _)), |b| matches!(b, Act::Publish(Word::DoneC, _)));
    script
}

fn release_forgets_ready(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    forget(&mut script, Word::ReadyC, |_, _| true);
    script
}

fn release_forgets_done(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    forget(&mut script, Word::DoneC, |_, _| true);
    script
}

fn silent_without_rows(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    forget(&mut script, Word::Meta, |_, after| !matches!(after, Act::Write(Plane::Rows, _)));
    script
}

fn no_ready_without_rows(_: usize, mut script: Vec<Step>) -> Vec<Step> {
    forget(&mut script, Word::ReadyC, |before, _| !matches!(before, Act::Read(Plane::Rows, _)));
    script
}

/// Loses the stores of `word` where the steps around it are such.
fn forget(script: &mut [Step], word: Word, which: impl Fn(Act, Act) -> bool) {
    for at in 1..script.len() - 1 {
        let published = matches!(script[at].act, Act::Publish(stored, _) if stored == word);
        if published && which(script[at - 1].act, script[at + 1].act) {
            script[at].act = Act::Forget(word);
        }
    }
}

/// Rank 0 releases its first round.
fn one_releases(rank: usize, script: Vec<Step>) -> Vec<Step> {
    if rank != 0 {
        return script;
    }
    Program::new("s0 r0 l0 s0 r0 c0 d0", Traffic::One, Way::Pull).script(rank)
}
