//! Collectors, which read the kernel, the driver and other processes of this host.
//!
//! A collector converts data from one source to the model. Collectors do not depend on screens, keep history or draw
//! conclusions. A value that cannot be read becomes a [`Missing`](gputop_model::reading::Missing) with its reason.
//! Collectors also escape text from other programs ([`visible`](gputop_model::text::visible)) and remove secrets from
//! it ([`redact`](gputop_model::redact)).

pub mod agent;
pub mod candidates;
pub mod driver;
pub mod exits;
pub mod holders;
pub mod hook;
pub mod host;
pub mod kernel_log;
pub mod local;
pub mod logs;
pub mod nvml;
pub mod phases;
pub mod probe;
pub mod process;
pub mod ranks;
pub mod ras;
