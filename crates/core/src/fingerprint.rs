//! The fingerprint of a communicator: what must be equal on all ranks before they connect.
//!
//! It is the first thing that ranks tell each other, so that ranks of different builds or settings are told apart by
//! field and rank, instead of failing at whatever they understand differently first. The shapes of what is made later
//! (windows, barriers, MoE) are agreed on when it is made.
//!
//! | must be equal | since |
//! |---|---|
//! | protocol, version | exchanges and words in windows have no versions of their own |
//! | platform | words are read as they lie in memory |
//! | transport | ranks choose among the same ones; then the [version](crate::selection) of the chosen one is compared |
//! | ranks | everybody waits for everybody |
//! | path | a rank that maps windows and one that does not use different words |
//!
//! What may differ: the timeout (who has the shortest gives up first, and all learn whom it waited for), the depth of
//! queues (a queue belongs to the rank that posts), the device, huge pages and the binding to cores (they are a rank's
//! own affair).

use crate::CommOptions;

/// Version of what ranks tell each other through the bootstrap.
const PROTOCOL: u32 = 1;

/// The fields of a communicator over `ranks`, by name.
pub(crate) fn fields(ranks: usize, options: &CommOptions) -> [(&'static str, String); 6] {
    let endian = if cfg!(target_endian = "little") { "little" } else { "big" };
    [
        ("protocol", PROTOCOL.to_string()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("platform", format!("{endian}-endian, {}-bit", usize::BITS)),
        ("transport", options.transports.to_string()),
        ("ranks", ranks.to_string()),
        ("path", options.path.name().to_owned()),
    ]
}
