//! Expert-parallel MoE dispatch and combine.
//!
//! Every token goes to the ranks that own one of its experts, once a rank; their results come back and are summed in rank
//! order. A [`MoeConfig`] says what is wanted, a [`Plan`] resolves it into planes of a window, a [`Moe`] runs rounds on it:
//! [`Tokens`] in, a [`Handle`] and [`ReceivedRows`] out, then [`Outputs`] in and sums out. Which words pass between ranks is
//! the [`protocol`], a pure state machine; the arithmetic of rows is [`arithmetic`]; what must come out, bit for bit, is
//! said by [`model`] for a whole [`Problem`], and [`exchange`] runs one rank's part of such a problem.
//!
//! Invariants: nothing here names a transport; the data plane neither allocates nor locks (an expert-major combine, which
//! checks the caller's layout first, does allocate); a result depends on nothing but the tokens; the first error is sticky.

pub mod arithmetic;
mod combine;
mod dispatch;
mod dtype;
mod error;
pub mod exchange;
pub mod gpu;
mod handle;
mod layout;
pub mod model;
mod moe;
pub mod number;
mod outputs;
mod plan;
mod problem;
pub mod protocol;
mod quantize;
mod received_rows;
mod route;
pub mod routing;
mod stream_choice;
mod tokens;

pub use dtype::DType;
pub use error::MoeError;
pub use handle::{Combining, Dispatching, Handle, OpenRound};
pub use layout::ExpertLayout;
pub use moe::Moe;
pub use outputs::Outputs;
pub use plan::{MoeConfig, Plan, PlanError, PlanPaths};
pub use problem::{Problem, ProblemError, RankInput, RankOutput, Received, Solution};
pub use received_rows::{ReceivedRows, RowMeta};
pub use tokens::Tokens;
