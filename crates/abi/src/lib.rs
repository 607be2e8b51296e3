//! The plugin boundary: plain C types.
#![no_std]
