//! Expert-parallel MoE dispatch and combine.

pub mod arithmetic;
mod combine;
mod dispatch;
mod dtype;
mod error;
pub mod exchange;
mod handle;
mod layout;
pub mod model;
mod moe;
pub mod number;
mod outputs;
mod plan;
mod problem;
pub mod protocol;
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
