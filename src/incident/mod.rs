//! Turns observations from this host, remote hosts and recordings into one saved incident record per failure.
//!
//! ```text
//! Update ─► Watcher::see ─► thread "incidents": live::Observer ─► Record ─► IncidentSaver ───┐ is_same, merge
//! Update::RemoteIncident (from the store of a remote host) ───────────────────────────────────┼─► Store (live)
//! gputop run ─► save() ───────────────────────────────────────────────────────────────────────┘   MemoryStore (recording)
//!                                                                     WatchResult ◄────────────────────┘
//!                                                                         └─► banner and incident screen
//! ```
//!
//! Several observers may report the same failure, identified by an
//! [`IncidentKey`](gputop_model::incident_key::IncidentKey). Each observer writes its conclusion with [`Store::write`],
//! which finds the record of the same incident ([`merge::is_same`]) and merges both ([`merge::merge`]), in whatever order
//! they arrive. The incident's name does not change. An incident that was opened stays marked as read, unless it gets
//! worse or its diagnosis changes.
//!
//! ```text
//! $XDG_STATE_HOME/gputop/incidents/          mode 0700, owned by this user
//!   01kq3v7-x2c9.json                        one incident (see `gputop_model::incident_record`), written to a temporary file and renamed
//!   state.json                               which incidents were read, and for which on_incident was run
//!   lock                                     held while any of these is written
//! ```
//!
//! If the store cannot be written, read or locked in time, gputop reports that in one line and continues. The store
//! does not redact secrets: collectors remove them before creating a record.

mod activity;
mod memory_store;
pub mod merge;
mod notifications;
mod on_incident;
mod results;
mod save;
mod saver;
mod sink;
pub mod source_lines;
mod state;
mod store;
mod store_changes;
mod timeout;
mod uid;
mod watcher;

pub use notifications::Notifications;
pub use on_incident::{NOTICE_LIMIT, Notice, notify};
pub use results::WatchResult;
pub use save::{SaveResult, in_time, put, save};
pub use sink::IncidentSink;
pub use store::{Entry, Listing, Store, StoreError, Stored, UnreadableFile, Written};
pub use store_changes::Changes;
pub use timeout::with_timeout;
pub use uid::Uid;
pub use watcher::{MAX_WAITING_FRAMES, RecordingDiagnosis, Watcher};
