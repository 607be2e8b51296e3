//! What the host makes of tables that are not as this crate exports them.

mod changed;
mod statuses;
mod without;
