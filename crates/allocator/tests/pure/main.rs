//! Tests with snapshots of real programs.
#![allow(clippy::unwrap_used)]

mod snapshot;
