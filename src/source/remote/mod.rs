//! Another host, by any command whose standard input and output are a `gputop agent`: ssh, kubectl exec, srun, sudo.
//!
//! ```text
//! here                                                               there
//! Source ◄── Feed ◄── lines ◄── unpack ◄── stdout ◄═ ssh ═◄ stdout ◄── zstd ◄── lines ◄── Source (local)
//!    └── Request ─────────────► orders ──► stdin  ═► ssh ═► stdin ──► orders ────────────────┘
//! ```
//!
//! The far side begins with one plain line, the [`greeting`](protocol::GREETING), so that what a login shell prints is
//! told from it; then follows one zstd stream of [lines](super::wire). Back go [orders](protocol::RequestLine), a line each:
//! requests, and how many frames have arrived: only [a few](protocol::FRAMES_UNDER_WAY) are ever under way, so that a slow
//! link has fewer frames and not older ones.
//!
//! The far side is not trusted: lines, window and noise are bounded, text is made harmless as it is read, and nothing in
//! it names anything on this host. Its agent ends when its input does.

mod command;
mod counters;
mod event_numbers;
mod greeting;
mod incident_sync;
mod incoming;
mod nvidia_smi;
mod outgoing;
pub mod protocol;
pub mod serve;
pub mod slurm;
pub mod ssh;
mod suspend;
mod target;

pub use command::{Connection, end_all, start, start_with};
pub use incident_sync::MAX_ON_SHELF;
#[doc(hidden)]
pub use incoming::read_agent_stream;
#[doc(hidden)]
pub use nvidia_smi::read_nvidia_smi;
pub use target::{Target, TargetError};
