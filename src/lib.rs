//! gputop: a `top` for NVIDIA GPUs that knows what the allocator knows.
//!
//! One direction, one frame:
//!
//! ```text
//! collect (NVML, /proc) ─► agent ─► Frame / Event ─► source (this host, a recording) ─► tui, record, once
//!                            ▲                              │
//!                            └────────── Request ◄──────────┘
//! ```
//!
//! `model` is plain data and knows nobody; `allocator` is what follows from a pool of it, as pure functions. `collect` reads the host and never sees a screen; `tui` draws what came
//! through a source and never sees NVML. `probe` allocates on a card for a moment, in a child that alone loads CUDA. `run` runs a command and explains its failure.
//! `incidents` keeps on disk what went wrong, until somebody has read it. `user_files` opens this user's own files and
//! directories. `open_files` shares out the limit on open files. `cli` puts them together. `tests/it/layers.rs` holds these directions.
//!
//! `cfg(local)` (build.rs) is on Linux with the feature `local`. Without it neither `collect`, `probe` nor `run` is there: a
//! client for other hosts, recordings and logs, also on a Mac (`.ci/laptop`).

pub mod allocator;
pub mod cli;
#[cfg(local)]
pub mod collect;
pub mod diagnose;
pub mod export;
pub mod incidents;
pub mod model;
mod open_files;
#[cfg(local)]
pub mod probe;
pub mod redact;
#[cfg(local)]
pub mod run;
pub mod snapshot;
pub mod source;
pub mod tui;
pub mod user_files;
pub mod watch;
