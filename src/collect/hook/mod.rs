//! Reports from the Python hook, which runs inside programs started with [`assets/hook`](../../../assets/hook) on
//! PYTHONPATH.
//!
//! ```text
//! assets/hook/*.py ─ install ─► ~/.cache/gputop/hook/HASH ─ PYTHONPATH ─► the program
//!                                                                             │ a line of JSON for each event
//!       agent, run ◄─ spool_line ◄─ spool ◄─ $XDG_RUNTIME_DIR/gputop/hook/RUN.PID.START.jsonl
//!       agent ◄─ statistics ◄─────────┘                                   RUN.PID.START.now
//!       agent, run ◄─ replay_trace ◄─ ~/.local/state/gputop/traces/RUN.PID.START.oom.N.pickle
//! ```
//!
//! The spool is written by other programs and is not trusted: only regular files owned by the same user are read, links
//! are not followed, all sizes are limited, and text is sanitized and redacted.

mod install;
mod replay_trace;
mod spool;
mod spool_line;
mod spool_reader;
mod statistics;

pub use install::{install, python_path};
pub use replay_trace::{Traced, last_history};
pub use spool::{Report, Spool, traces};
pub use spool_reader::{HookUpdate, SpoolReader, reported_by};
pub use statistics::ReportedPools;
