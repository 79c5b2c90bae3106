//! Merges the sections of all collectors into one frame per tick, and turns requests into commands.
//!
//! Threads: one per GPU (`nvml/worker.rs`), `nvml` (`driver.rs`: loads the driver, counts the GPUs), `host` (`/proc` and
//! the hook's spool), `exits` (process exits and the kernel log), `xid` (the driver's events), `torch` (allocators),
//! threads of `collectors.rs` (Python stacks, logs, process details, probes), `replay` (allocation traces), `requests`, and the
//! agent's own thread. They share only the channel of [`Section`]s. Responses to requests go directly to the reader.
//!
//! A frame is published when every responding GPU has reported for the tick, but at the latest after a quarter of the
//! interval. The last readings of GPUs that have not reported by then are shown as stale. A slow GPU therefore never
//! delays other data by more than that.

mod collectors;
mod devices;
mod driver;
mod events;
mod followed_candidates;
mod gpu_at_oom;
mod kernel;
mod last_seen;
mod options;
mod reported_pools;
mod requests;
mod running;
mod section;
mod start;
mod unattributed;
mod underused;
mod workers;
mod xids;

pub use self::driver::MIN_IDLE;
pub use self::options::Options;
pub use self::section::Section;
pub use self::start::start;
