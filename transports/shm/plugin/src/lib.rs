//! The shared-memory transport as a loadable plugin.
