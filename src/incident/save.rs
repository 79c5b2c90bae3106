//! Saves an incident and runs the user's `on_incident` command.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use gputop_model::incident_record::Record;

use super::on_incident::{NOTICE_LIMIT, Notice, notify};
use super::store::{Store, StoreError, Stored};
use super::timeout::with_timeout;
use super::uid::Uid;

/// Timeout for one access to the incident store. Without the timeout, an unreachable home directory would block gputop
/// forever.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);
/// Additional time for the store accesses of one `on_incident` run.
const STORE_MARGIN: Duration = Duration::from_secs(2);

const NOT_RESPONDING: &str = "the state directory is not responding";

/// Runs `work` with a timeout, because it uses the incident store and may hang. Errors are phrases without a period.
pub fn in_time<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, String> {
    let done = with_timeout(STORE_TIMEOUT, work).ok_or_else(|| NOT_RESPONDING.to_owned())?;
    done.map_err(|error| error.to_string())
}

/// Writes an incident to the store. Errors are phrases without a period.
pub fn put(store: Store, record: Record) -> Result<Stored, String> {
    in_time(move || store.write(record))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaveResult {
    /// The incident's ID in the store, if it was saved.
    pub uid: Option<Uid>,
    /// Error message without a period.
    pub fault: Option<String>,
}

/// Saves an incident to the current user's store, and runs `on_incident` unless it already ran for that incident. May
/// block for seconds, so do not call it from the task that draws the screen. Setting `is_cancelled` stops the command
/// early.
pub fn save(
    record: Record,
    on_incident: Option<&str>,
    is_cancelled: &Arc<AtomicBool>,
) -> SaveResult {
    let written = Store::of_this_user()
        .map_err(|error| error.to_string())
        .and_then(|store| Ok((store.clone(), put(store, record)?.uid)));
    let not_saved = |why: &str| {
        let consequence = if on_incident.is_some() { ", so on_incident was not run" } else { "" };
        SaveResult {
            uid: None,
            fault: Some(format!("cannot save the incident{consequence}: {why}")),
        }
    };
    let (store, uid) = match written {
        Ok(written) => written,
        Err(why) => return not_saved(&why),
    };
    let notice = on_incident.map(|command| {
        let (uid, command) = (uid.clone(), command.to_owned());
        let is_cancelled = Arc::clone(is_cancelled);
        with_timeout(NOTICE_LIMIT + STORE_MARGIN, move || {
            notify(&store, &uid, &command, NOTICE_LIMIT, &is_cancelled)
        })
    });
    let fault = match notice {
        Some(Some(Notice::Failed(why))) => Some(format!("on_incident: {why}")),
        Some(None) => Some(format!("on_incident: {NOT_RESPONDING}")),
        Some(Some(Notice::Sent | Notice::AlreadySent)) | None => None,
    };
    SaveResult { uid: Some(uid), fault }
}
