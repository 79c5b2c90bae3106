//! The incident store, which saves incidents of this user's machines.
//!
//! ```text
//! $XDG_STATE_HOME/gputop/incidents/          mode 0700, owned by this user
//!   01kq3v7-x2c9.json                        one incident (see `record`), written to a temporary file and renamed
//!   state.json                               which incidents were read, and for which on_incident was run
//!   lock                                     held while any of these is written
//! ```
//!
//! Every observer of an incident calls [`Store::write`]. The [`Key`] identifies reports of the same incident: they are
//! about one process, or about a command under `gputop run` and its child process, within seconds; or both are about its
//! exit. The best informed conclusion is kept, in whatever order they arrive, and data of the others is added to it
//! ([`Record::revised_by`]). The incident's name does not change. It stays marked as read, unless it got worse or turned
//! out to be something else. If the store cannot be written, read or locked in time, gputop reports that in one line and
//! continues.
//!
//! The store does not redact secrets: the collectors have removed them before a [`Record`] is made.

mod key;
mod on_incident;
mod record;
mod save;
mod state;
mod store;
mod store_changes;
mod timeout;
mod uid;

pub use key::Key;
pub use on_incident::{NOTICE_LIMIT, Notice, notify};
pub use record::{Evidence, Excerpt, Record, Track};
pub use save::{SaveResult, in_time, put, save};
pub use store::{Entry, Listing, Store, StoreError, Stored, Unreadable, Written};
pub use store_changes::Changes;
pub use timeout::with_timeout;
pub use uid::Uid;
