//! What went wrong on this user's machines, kept until it was read: the incident store.
//!
//! ```text
//! $XDG_STATE_HOME/gputop/incidents/          0700, this user's
//!   01kq3v7-x2c9.json                        one incident: record.rs, written beside and renamed into place
//!   state.json                               which were read, and of which somebody was told
//!   lock                                     held by whoever writes any of it
//! ```
//!
//! Every reader that sees an incident calls [`Store::write`]; the [`Key`] says which of them are the same: they are about
//! one process, or about a command under `gputop run` and a part of it, within seconds, or about its one end. Of those the
//! best informed conclusion stands, whichever came first, and what the others knew is added to it ([`Record::revised_by`]
//! and its module). Its name stays, and so does the mark that it was read, unless it got worse or turned out to be
//! something else. A store that cannot be written, read or locked in time is an error
//! to tell in one line and never a reason to fail: what is watched goes on.
//!
//! Nothing in here asks for secrets to be removed: what is put into a [`Record`] has lost them at its collector.

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
pub use timeout::within;
pub use uid::Uid;
