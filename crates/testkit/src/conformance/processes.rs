//! Processes: forks and stops, which threads do not have.

use campanile_core::{FaultKind, Op, OpKind, Rank, Strength};
use campanile_host::process::{Pidfd, Signal};

use super::case::{Case, Group};
use super::faults::{blamed, short, survivors};
use super::finding::{Expected, Proof, Stop, same};
use super::member::{Member, WORDS, kill};
use super::need::Need;
use super::stage::{Stage, until};

pub(super) const GROUP: Group = Group {
    name: "processes",
    about: "forks and stops, which threads do not have",
    cases: &[
        Case::new(
            "a_forked_child_disturbs_nothing",
            "a rank forks, and its child ends: the rank and its peers go on",
            &[Need::Processes, Need::Ranks(2), Need::Op(OpKind::PutSignal), Need::SignalSet],
            a_forked_child,
        ),
        Case::new(
            "a_forked_child_hides_no_death",
            "a rank whose forked child lives on is killed: its peers learn of it",
            &[Need::Processes, Need::Ranks(2)],
            a_forked_child_hides_no_death,
        ),
        Case::new(
            "a_stopped_process_is_named",
            "a rank that got SIGSTOP is named after the deadline; it learns of that when it goes on",
            &[Need::Processes, Need::Ranks(2)],
            a_stopped_process,
        ),
    ],
};

/// A forked child that does nothing until it is killed. It leaves the process group, so that it outlives this rank.
struct Child(libc::pid_t);

/// Seconds after which a child that nobody could kill ends by itself.
const ALARM: u32 = 60;

impl Child {
    fn fork() -> Proof<Self> {
        // SAFETY: the child calls nothing but `setsid`, `alarm`, `pause` and `_exit`, which are async-signal-safe.
        match unsafe { libc::fork() } {
            -1 => Err(Stop::Skipped { reason: format!("fork: {}", std::io::Error::last_os_error()) }),
            0 => {
                // SAFETY: no memory is touched.
                unsafe {
                    libc::setsid();
                    libc::alarm(ALARM);
                    libc::pause();
                    libc::_exit(0)
                }
            }
            pid => Ok(Self(pid)),
        }
    }

    fn end(self) -> Proof {
        let child = Pidfd::open(self.0.unsigned_abs()).expected("the child")?;
        child.send_signal(Signal::KILL).expected("a signal to the child")?;
        let mut status = 0;
        // SAFETY: a child of this process that nobody else waits for; `status` is an out-parameter.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        same("the child that was waited for", waited, self.0)
    }
}

/// A ring of signals with rising values.
fn ring(me: &Member<'_>, first: u64) -> Proof {
    let (to, from) = (me.stage.next(), me.stage.previous());
    let queue = me.queue(to, 8)?;
    for round in first..first + 50 {
        me.execute(&*queue, &[Op::Signal(me.set(to, WORDS, round, Strength::Strong))])?;
        me.arrived(from, WORDS, round)?;
    }
    Ok(())
}

fn a_forked_child(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    ring(&me, 1)?;
    let child = Child::fork()?;
    ring(&me, 51)?;
    child.end()?;
    stage.meet()?;
    for peer in 0..stage.ranks() {
        same(&format!("why rank {peer} is gone"), me.transport.gone(Rank::new(peer)), None)?;
    }
    same("the next event", me.transport.poll_event(), None)?;
    ring(&me, 101)?;
    me.end()
}

fn a_forked_child_hides_no_death(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let victim = stage.ranks() - 1;
    if stage.rank() == victim {
        let Child(pid) = Child::fork()?;
        stage.exchange(&pid.to_le_bytes())?;
        return me.die();
    }
    let ids = stage.exchange(&[])?;
    let pid = libc::pid_t::from_le_bytes(ids[victim][..].try_into().expected("4 bytes of that rank")?);
    let waited = me.wait(victim, WORDS, 1);
    let met = stage.meet_among(&survivors(stage, victim));
    if stage.rank() == 0 {
        let child = Pidfd::open(pid.unsigned_abs()).expected("the child, which lives on")?;
        child.send_signal(Signal::KILL).expected("a signal to it")?;
    }
    met?;
    blamed(waited, victim, &[FaultKind::Died])
}

fn a_stopped_process(stage: &Stage) -> Proof {
    let me = Member::join_with(stage, WORDS + 4096, short(stage))?;
    let victim = stage.ranks() - 1;
    let ids = stage.exchange(&std::process::id().to_le_bytes())?;
    if stage.rank() == victim {
        kill(Signal::STOP)?;
        // Rank 0 has let it go on.
        let told = until(stage.timeout(), || Ok(me.transport.fault()))?;
        same("the culprit of the job's fault", told.map(|fault| fault.culprit), Some(Rank::new(victim)))?;
    } else {
        let waited = me.wait(victim, WORDS, 1);
        let met = stage.meet_among(&survivors(stage, victim));
        if stage.rank() == 0 {
            let id = u32::from_le_bytes(ids[victim][..].try_into().expected("4 bytes of that rank")?);
            let stopped = Pidfd::open(id).expected("the stopped process")?;
            stopped.send_signal(Signal::CONT).expected("a signal to it")?;
        }
        met?;
        blamed(waited, victim, &[FaultKind::Stalled])?;
    }
    Ok(())
}
