//! Why a GPU is idle, or a program slow: one sentence with its evidence.
//!
//! ```text
//! stack ─► PhaseTable (assets/phases.toml) ─► phase ─► PhaseWindow ─┐
//! /proc ─────────────────────────────────────────────► PhaseWindow ─┼─► conclude ─► Answer
//! NVML  ─────────────────────────────────────────────► GpuLoad ─────┘
//! ```
//!
//! The GPU is asked first: while it is busy, the stack only shows where the launch queue is full. A share of samples is
//! an upper bound of what a fix can save.

mod answer;
mod decision;
mod gpu_load;
mod phase_table;
mod share;
mod wording;

#[cfg(test)]
mod tests;

pub use answer::{Answer, Cause, LoaderLimit};
pub use decision::{Cores, Signals, conclude};
pub use gpu_load::{GpuLoad, GpuSample};
pub use phase_table::{Activity, FrameMatches, PhaseTable};
pub use share::Share;
