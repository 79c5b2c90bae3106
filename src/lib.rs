//! gputop: a `top` for NVIDIA GPUs that shows who uses GPU memory, and why it is full.
//!
//! Frames and events flow in one direction, requests in the other:
//!
//! ```text
//! collect (NVML, /proc) ─► agent ─► Frame / Event ─► source (this host, a recording) ─► tui, record, once
//!                            ▲                              │
//!                            └────────── Request ◄──────────┘
//! ```
//!
//! The data, the allocator model, the explanations and the readers of other processes are crates of their own
//! (`crates/`).
//!
//! - `collect`: reads the host, and does not depend on the screen.
//! - `dashboard`: the state of one host that screens and text outputs show.
//! - `tui`: draws the data from a source, and does not depend on NVML.
//! - `probe`: allocates GPU memory briefly, in a child process. No other gputop process loads CUDA.
//! - `run`: runs a command and explains its failure.
//! - `incident`: diagnoses updates, and merges and saves the resulting incidents.
//! - `summary`: summarizes one recording, or compares two.
//! - `user_files`: opens files and directories of this user.
//! - `child_exit`: waits for child processes, within a limit.
//! - `open_files`: raises the limit on open files and divides it among gputop's long-lived files.
//! - `cli`: connects the modules.
//!
//! `tests/pure/layers.rs` checks the dependencies between the modules (docs/ARCHITECTURE.md).
//!
//! `cfg(local)` is set by `build.rs` on Linux with the feature `local`. Without it, `collect`, `probe` and `run` are
//! not built, and gputop is only a client for remote hosts, recordings and logs. This also works on macOS
//! (`.ci/typecheck`).

mod child_exit;
pub mod cli;
#[cfg(local)]
pub mod collect;
pub mod dashboard;
pub mod export;
pub mod incident;
mod open_files;
#[cfg(local)]
pub mod probe;
#[cfg(local)]
pub mod run;
pub mod source;
pub mod summary;
pub mod tui;
pub mod user_files;
