//! Remote hosts, reached through any command that connects stdin and stdout to a `gputop agent`: ssh, kubectl exec,
//! srun, sudo.
//!
//! ```text
//! this host                                                          remote host
//! Source ◄── Feed ◄── lines ◄── unpack ◄── stdout ◄═ ssh ═◄ stdout ◄── zstd ◄── lines ◄── Source (local)
//!    └── Request ─────────────► lines ───► stdin  ═► ssh ═► stdin ──► lines ─────────────────┘
//! ```
//!
//! The remote agent first sends one plain line, the [`greeting`](greeting::GREETING), which separates its data from
//! login shell output. One zstd stream of [lines](gputop_model::protocol) follows. [Request
//! lines](gputop_model::protocol::RequestLine) go in the other direction: requests, and the number of frames received. Only [a
//! few](limits::MAX_UNACKNOWLEDGED_FRAMES) frames are unacknowledged at any time, so a slow connection gets fewer frames instead
//! of outdated ones.
//!
//! The remote host is not trusted: line length, window size and text before the greeting are limited, text is escaped
//! as it is read, and no data can refer to objects on this host. The agent exits when its input ends.

mod command;
mod counters;
mod event_numbers;
pub mod greeting;
mod incident_sync;
mod incoming;
pub mod limits;
mod nvidia_smi;
mod outgoing;
pub mod serve;
pub mod slurm;
pub mod ssh;
mod suspend;
mod target;

pub use command::{Connection, end_all, start, start_with};
pub use incident_sync::MAX_LISTED_INCIDENTS;
#[doc(hidden)]
pub use incoming::read_agent_stream;
#[doc(hidden)]
pub use nvidia_smi::read_nvidia_smi;
pub use target::{Target, TargetError};
