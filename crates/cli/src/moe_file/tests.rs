//! Files are made and read back by the `safetensors` crate, of which the code under test uses neither reader nor writer.

mod contents;
mod generated;
mod refused;
mod round_trip;
