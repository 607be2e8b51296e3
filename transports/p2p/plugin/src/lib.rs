//! The P2P transport as a loadable plugin: `libcampanile_p2p.so`, from the same source as the linked one.

use campanile_p2p::P2pPlugin;

campanile_plugin::export!(P2pPlugin::from_environment(), vendor = "Campanile");
