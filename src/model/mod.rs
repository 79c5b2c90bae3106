//! What gputop knows, as plain data: the one value that travels from a collector to a screen.
//!
//! A [`Frame`](frame::Frame) is the latest state of one host; frames are latest-wins and may be skipped.
//! An [`Event`](event::Event) is something that happened once; events are never dropped and never sit in a frame.
//! An [`Incident`](incident::Incident) is what a reader concludes from events; it is made on the reader's side.
//!
//! The wire and the recording are these types as JSON, so every field added later is `#[serde(default)]`, every
//! enum reads an unknown variant as `Unknown`, and every number that may be absent is a [`Reading`](reading::Reading)
//! which says why. `tests/it/model.rs` holds a line of a future version against that promise.
//!
//! This module does no I/O, has no clock and knows nothing of NVML or of the terminal.

pub mod accounting;
pub mod bounded_json;
pub mod container;
pub mod document;
pub mod event;
pub mod frame;
pub mod gpu;
pub mod history;
pub mod host;
pub mod incident;
pub mod link;
pub mod log;
pub mod nearest_name;
pub mod permissions;
pub mod pool;
pub mod pool_location;
pub mod probe;
pub mod process;
pub mod reading;
pub mod remote_incident;
pub mod replay_result;
pub mod reported_pool;
pub mod scene;
pub mod signal;
pub mod stack;
pub mod stat_line;
pub mod text;
pub mod units;
