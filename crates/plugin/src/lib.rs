//! Transports on both sides of the plugin boundary.
