//! Another host, by any command whose standard input and output are a `gputop agent`: ssh, kubectl exec, srun, sudo.
//!
//! ```text
//! here                                                               there
//! Source ◄── Feed ◄── lines ◄── unpack ◄── stdout ◄═ ssh ═◄ stdout ◄── zstd ◄── lines ◄── Source (local)
//!    └── Request ─────────────► orders ──► stdin  ═► ssh ═► stdin ──► orders ────────────────┘
//! ```
//!
//! The far side begins with one plain line, the [`greeting`](protocol::GREETING), so that what a login shell prints is
//! told from it; then follows one zstd stream of [lines](super::wire). Back go [orders](protocol::Order), a line each:
//! requests, and how many frames have arrived: only [a few](protocol::FRAMES_UNDER_WAY) are ever under way, so that a slow
//! link has fewer frames and not older ones.
//!
//! The far side is not trusted: lines, window and noise are bounded, text is made harmless as it is read, and nothing in
//! it names anything on this host. Its agent ends when its input does.

mod command;
mod counters;
mod greeting;
mod incoming;
mod orders;
pub mod protocol;
mod reduced;
pub mod serve;
mod shelf;
mod slumber;
pub mod slurm;
pub mod ssh;
mod target;
mod told;

pub use command::{Connection, end_all, start, start_with};
#[doc(hidden)]
pub use incoming::read_agent_stream;
#[doc(hidden)]
pub use reduced::read_nvidia_smi;
pub use shelf::MAX_ON_SHELF;
pub use target::{Target, TargetError};
