//! What this host tells: readers of the kernel and of the driver.
//!
//! A reader turns one source into the model and nothing else: it knows no screen, keeps no history and judges
//! nothing. What it cannot read becomes a [`Missing`](crate::model::reading::Missing) with its reason. Text of other
//! programs leaves here harmless ([`visible`](crate::model::text::visible)) and without secrets ([`redact`](crate::redact)).

pub mod agent;
pub mod clock;
pub mod driver;
pub mod exits;
pub mod hook;
pub mod host;
pub mod kernel_log;
pub mod logs;
pub mod memory;
pub mod nvml;
pub mod probe;
pub mod process;
pub mod python;
pub mod torch;
