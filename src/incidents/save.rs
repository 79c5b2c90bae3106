//! An incident into the store, and the user's command told of it: what whoever sees one does.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::on_incident::{NOTICE_LIMIT, Notice, notify_until};
use super::record::Record;
use super::store::{Store, StoreError, Stored};
use super::timeout::within;
use super::uid::Uid;

/// How long the store may take; a home that hangs takes for ever.
const STORE_LIMIT: Duration = Duration::from_secs(3);
/// For the store's part in telling somebody.
const MARGIN: Duration = Duration::from_secs(2);

const SILENT: &str = "the state directory does not answer";

/// What `work` does with the store, which may hang; why not, a clause.
pub fn in_time<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, String> {
    let done = within(STORE_LIMIT, work).ok_or_else(|| SILENT.to_owned())?;
    done.map_err(|error| error.to_string())
}

/// Writes an incident; why not, a clause.
pub fn put(store: Store, record: Record) -> Result<Stored, String> {
    in_time(move || store.write(record))
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaveResult {
    /// Where it is in the store, if it is.
    pub uid: Option<Uid>,
    /// What went wrong, a sentence without a period.
    pub fault: Option<String>,
}

/// Writes the incident of this user, and runs `on_incident` if it was not run for it before. Takes seconds at most, but
/// those: not for a task that draws. `is_enough` ends the command before its time.
#[must_use]
pub fn save(record: Record, on_incident: Option<&str>, is_enough: &Arc<AtomicBool>) -> SaveResult {
    let written = Store::of_this_user()
        .map_err(|error| error.to_string())
        .and_then(|store| Ok((store.clone(), put(store, record)?.uid)));
    let not_kept = |why: &str| {
        let unsaid = if on_incident.is_some() {
            ", and on_incident was not run"
        } else {
            ""
        };
        SaveResult {
            uid: None,
            fault: Some(format!("the incident is not kept{unsaid}: {why}")),
        }
    };
    let (store, uid) = match written {
        Ok(kept) => kept,
        Err(why) => return not_kept(&why),
    };
    let told = on_incident.map(|command| {
        let (uid, command) = (uid.clone(), command.to_owned());
        let is_enough = Arc::clone(is_enough);
        within(NOTICE_LIMIT + MARGIN, move || {
            notify_until(&store, &uid, &command, NOTICE_LIMIT, &is_enough)
        })
    });
    let fault = match told {
        Some(Some(Notice::Failed(why))) => Some(why),
        Some(None) => Some(format!("on_incident: {SILENT}")),
        Some(Some(Notice::Told | Notice::Known)) | None => None,
    };
    SaveResult {
        uid: Some(uid),
        fault,
    }
}
