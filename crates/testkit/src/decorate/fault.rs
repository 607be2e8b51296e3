//! Fault: what can go wrong on a network, on purpose and the same each time.
//!
//! Posts of a rank are counted over all its queues, from 1; `rank` says whose posts are meant. Random choices are
//! functions of the seed, the rank, the queue's number and the operation's place in it.
//!
//! | option | what happens |
//! |---|---|
//! | `fail_post=N` | the Nth post is an error, and its queue has failed |
//! | `fail_completion=N` | the last operation of the Nth post is not delivered; its queue fails when it would have been |
//! | `drop_completion=N` | the Nth post is delivered, but is never seen to complete, and so is nothing after it |
//! | `delay=T` | each operation is delivered up to T later |
//! | `reorder=yes` | puts and gets overtake each other and weak signals, as the contract lets them: never a fence, and a strong signal never overtakes a put; not on queues that were asked to be ordered |
//! | `kill_after=N` | the process is killed when it makes its Nth post; from code, any other action |

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use campanile_core::{Caps, Op, OpenError, OpenOptions, QueueOptions, Rank, Transport};
use campanile_host::process::{Pidfd, Signal};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use super::hold::{Fate, Policy, Schedule, hold, may_overtake};
use super::lean::generator;
use super::options::{Options, Written};
use super::{Decorator, StackError};

pub(super) const NAME: &str = "fault";

/// Longest time that reordering holds a put back where no delay is asked for.
const REORDER_WITHIN: Duration = Duration::from_micros(20);

/// How a rank is killed.
#[derive(Clone, Default)]
pub enum Kill {
    /// Its process gets SIGKILL.
    #[default]
    Process,
    /// Something else, for ranks that are threads: called with the rank, inside its post. It may panic.
    Call(Arc<dyn Fn(Rank) + Send + Sync>),
}

impl fmt::Debug for Kill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "Process",
            Self::Call(_) => "Call",
        })
    }
}

/// Faults, by default none. As text: `fault(rank=1, drop_completion=7, delay=100us, seed=3)`.
#[derive(Clone, Debug, Default)]
pub struct Fault {
    /// Only this rank has faults.
    pub rank: Option<Rank>,
    /// Of the random choices.
    pub seed: u64,
    /// Which post is refused.
    pub fail_post: Option<u64>,
    /// Which post's completion is an error.
    pub fail_completion: Option<u64>,
    /// Which post's completion is lost.
    pub drop_completion: Option<u64>,
    /// Longest time that an operation is late.
    pub delay: Duration,
    /// Whether puts are delivered in another order.
    pub reorder: bool,
    /// At which post the rank is killed.
    pub kill_after: Option<u64>,
    /// How it is killed.
    pub kill: Kill,
}

impl Fault {
    pub(super) const OPTIONS: &[&str] =
        &["rank", "seed", "fail_post", "fail_completion", "drop_completion", "delay", "reorder", "kill_after"];

    pub(super) fn from_options(options: &Options<'_>) -> Result<Self, StackError> {
        let rank = options.get("rank", "a rank, a number from 0", |text| text.parse().ok().map(Rank))?;
        Ok(Self {
            rank,
            seed: options.number("seed")?.unwrap_or_default(),
            fail_post: options.ordinal("fail_post")?,
            fail_completion: options.ordinal("fail_completion")?,
            drop_completion: options.ordinal("drop_completion")?,
            delay: options.duration("delay")?.unwrap_or_default(),
            reorder: options.switch("reorder")?.unwrap_or_default(),
            kill_after: options.ordinal("kill_after")?,
            kill: Kill::Process,
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Written::new(NAME)
            .option("rank", self.rank.map(|rank| rank.0))
            .option("seed", Some(self.seed).filter(|seed| *seed != 0))
            .option("fail_post", self.fail_post)
            .option("fail_completion", self.fail_completion)
            .option("drop_completion", self.drop_completion)
            .duration("delay", self.delay)
            .option("reorder", self.reorder.then_some("yes"))
            .option("kill_after", self.kill_after)
            .fmt(f)
    }
}

impl Decorator for Fault {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decorate(&self, inner: Arc<dyn Transport>, options: &OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        let rank = options.rank;
        let faults = if self.rank.is_none_or(|faulty| faulty == rank) { self.clone() } else { Self::default() };
        hold(NAME, inner, options, OfRank { faults: Arc::new(faults), rank, posts: Arc::default() })
    }
}

struct OfRank {
    faults: Arc<Fault>,
    rank: Rank,
    posts: Arc<AtomicU64>,
}

impl Policy for OfRank {
    fn caps(&self, caps: Caps) -> Caps {
        Caps { ordered_puts: caps.ordered_puts && !self.faults.reorder, ..caps }
    }

    fn schedule(&self, number: u64, options: QueueOptions) -> Box<dyn Schedule> {
        Box::new(OfQueue {
            faults: Arc::clone(&self.faults),
            rank: self.rank,
            posts: Arc::clone(&self.posts),
            reorder: self.faults.reorder && !options.ordered,
            random: generator(self.faults.seed, self.rank, number),
        })
    }
}

struct OfQueue {
    faults: Arc<Fault>,
    rank: Rank,
    posts: Arc<AtomicU64>,
    reorder: bool,
    random: Xoshiro256PlusPlus,
}

impl OfQueue {
    fn kill(&self) {
        match &self.faults.kill {
            Kill::Call(action) => action(self.rank),
            Kill::Process => {
                let killed = Pidfd::open(std::process::id()).and_then(|process| process.send_signal(Signal::KILL));
                tracing::error!(rank = self.rank.0, ?killed, "the fault decorator could not kill the process");
                std::process::abort();
            }
        }
    }
}

impl Schedule for OfQueue {
    fn begin(&mut self) -> Result<Fate, String> {
        let post = self.posts.fetch_add(1, Ordering::Relaxed) + 1;
        let faults = &self.faults;
        let is_due = |fault: Option<u64>| fault == Some(post);
        if is_due(faults.kill_after) {
            self.kill();
        }
        if is_due(faults.fail_post) {
            return Err(format!("the fault decorator fails post {post} of {}", self.rank));
        }
        if is_due(faults.fail_completion) {
            return Ok(Fate::Fail);
        }
        Ok(if is_due(faults.drop_completion) { Fate::Lose } else { Fate::Complete })
    }

    fn due(&mut self, _: &Op, _: Option<Rank>, now: u64) -> u64 {
        let within = if self.reorder { self.faults.delay.max(REORDER_WITHIN) } else { self.faults.delay };
        now + self.random.next_u64() % (within.as_nanos() as u64 + 1)
    }

    fn overtakes(&self, later: &Op, earlier: &Op) -> bool {
        self.reorder && may_overtake(later, earlier)
    }
}
