//! The shared-memory transport as a loadable plugin: `libcampanile_shm.so`, from the same source as the linked one.

use campanile_shm::ShmPlugin;

campanile_plugin::export!(ShmPlugin, vendor = "Campanile");
