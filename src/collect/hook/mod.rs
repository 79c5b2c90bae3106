//! The Python hook: what a program says of itself, where it was started with [`assets/hook`](../../../assets/hook) on
//! its path.
//!
//! ```text
//! assets/hook/*.py ─ install ─► ~/.cache/gputop/hook/HASH ─ PYTHONPATH ─► the program
//!                                                                             │ a line of JSON for each event
//!       agent, run  ◄─ line ◄─ spool ◄─ $XDG_RUNTIME_DIR/gputop/hook/RUN.PID.START.jsonl
//!       agent ◄─ statistics ◄─┘                                       RUN.PID.START.now
//!       agent, run ◄─ traced ◄─ ~/.local/state/gputop/traces/RUN.PID.START.oom.N.pickle
//! ```
//!
//! What stands in the spool was written inside another program, and is read as such: regular files of their owner
//! only, no links, everything bounded, text made harmless and without secrets.

mod install;
mod replay_trace;
mod spool;
mod spool_line;
mod spool_reader;
mod statistics;

pub use install::{install, python_path};
pub use replay_trace::{Traced, last_history};
pub use spool::{Report, Spool, traces};
pub use spool_reader::{News, SpoolReader, told_by};
pub use statistics::ToldPools;
