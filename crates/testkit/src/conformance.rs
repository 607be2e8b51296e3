//! The conformance suite: whether a transport keeps the [contract](campanile_core::contract).
//!
//! **Model.** A [`Case`] proves one promise. Its body is run by every rank of a job at once, written against the traits
//! of `campanile_core` alone, and says what was expected and what was seen where they differ. Which cases can be run is
//! told by the caps of the transport, the number of ranks, what ranks are, and the memory that may be used; a case that
//! cannot be run says why not.
//!
//! **One rank.** [`run`] does one rank's part. The ranks may be threads of a process or processes: they find each other
//! through a [`Bootstrap`](campanile_core::Bootstrap), which is also where they meet in the middle of a case and
//! exchange their verdicts after it, so the transport that is examined is not needed for it. Every case opens
//! transports of its own.
//!
//! **Nothing hangs.** A body runs on a thread of its own. One that is not done at its deadline is left behind and the case
//! has failed; a rank that waits for one that has ended its part stops. A panic is a failure. A transport that can
//! crash is examined by processes, a job for each case.
//!
//! **Death.** A rank that is a thread dies by dropping its transport without a shutdown, a process by SIGKILL.
//!
//! Random delays and bytes come from [`Suite::seed`].
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use campanile_bootstrap::ThreadBootstrap;
//! use campanile_core::Bootstrap;
//! use campanile_testkit::conformance::{RanksAre, Suite, cases, run};
//!
//! let suite = Suite::new(&campanile_shm::ShmPlugin, RanksAre::Threads);
//! let weak: Vec<_> = cases().filter(|case| case.name().contains("weak_signal")).collect();
//! std::thread::scope(|scope| {
//!     for bootstrap in ThreadBootstrap::world(2) {
//!         let (suite, weak) = (&suite, &weak);
//!         scope.spawn(move || {
//!             let bootstrap: Arc<dyn Bootstrap> = Arc::new(bootstrap);
//!             let report = run(suite, &bootstrap, weak, |_| {}).unwrap();
//!             assert_eq!(report.failed().count(), 0);
//!         });
//!     }
//! });
//! ```

mod addresses;
mod atomics;
mod case;
mod control;
mod faults;
mod finding;
mod masks;
mod member;
mod need;
mod operations;
mod ordering;
mod processes;
mod queues;
mod registered;
mod report;
mod runner;
mod stage;
mod tickets;
mod window;

pub use case::{Case, Group};
pub use finding::{Finding, Verdict};
pub use need::Need;
pub use report::{Outcome, Report};
pub use runner::{RanksAre, Suite, SuiteError, WindowsIn, run, window_memory};

/// The cases, by what they are about.
pub static GROUPS: &[Group] = &[
    control::GROUP,
    operations::GROUP,
    atomics::GROUP,
    ordering::GROUP,
    queues::GROUP,
    tickets::GROUP,
    addresses::GROUP,
    registered::GROUP,
    faults::GROUP,
    masks::GROUP,
    processes::GROUP,
];

/// Every case, in the order in which they are run.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    GROUPS.iter().flat_map(|group| group.cases)
}
