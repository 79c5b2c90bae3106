//! The incident store directory: finds, reads, writes and deletes incidents.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gputop_model::bounded_json;
use gputop_model::incident_record::{SCHEMA, UnreadableRecord};
use gputop_model::nearest_name::nearest;
use gputop_model::text::{escape_json_strings, quoted, visible};
use gputop_model::{Incident, IncidentFile, Millis, Record, RemoteIncident, UnixMillis};
use nix::libc::{O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK};
use thiserror::Error;

use super::merge::{is_same, merge};
use super::state::State;
use super::uid::{InvalidUid, Uid};
use crate::user_files::{self, Base, DirectoryError};

/// Maximum number of stored incidents. If the number or the total size exceeds its limit, the oldest incidents are
/// deleted, read ones first.
const MAX_RECORDS: usize = 200;
const MAX_BYTES: u64 = 64 << 20;
/// Maximum size of an incident file. Larger files are never written.
const MAX_FILE: u64 = 4 << 20;
/// Maximum memory for the lists in one incident file while it is read.
const MAX_MEMORY: usize = 24 << 20;
/// Maximum number of names read from the store's directory.
const MAX_ENTRIES: usize = 100_000;
/// Maximum number of incidents deleted by one write. It keeps writes fast if something else has filled the store.
const MAX_DELETED: usize = 256;
/// Number of bytes read of an incident before it is deleted. Every version writes `schema` first.
const SCHEMA_BYTES: u64 = 64;
/// Maximum time to wait while another process writes to the store. A write takes milliseconds, or seconds where many
/// programs write to the same disk.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between attempts to lock the store. It is far shorter than a write, so that a process that writes repeatedly
/// does not starve the others.
const LOCK_INTERVAL: Duration = Duration::from_millis(1);
const LOCK: &str = "lock";
const EXTENSION: &str = "json";
/// Command-line name of the newest incident.
const LAST: [&str; 2] = ["last", "latest"];
/// Age at which a temporary file is deleted, because its writer must have been killed.
const MAX_PART_AGE: Duration = Duration::from_mins(10);
/// Maximum number of IDs tried if two subjects (processes or GPUs) have the same hash.
const MAX_NAMES: u64 = 60;

#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    pub uid: Uid,
    pub what: Written,
    /// The incident as stored. If it was merged, the conclusion may come from another observer.
    pub incident: Box<Incident>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    New,
    /// The record added data to a stored incident.
    Revised,
    /// The record contained no new data.
    Known,
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub uid: Uid,
    pub record: Record,
    pub is_read: bool,
}

/// A file that cannot be read as an incident, and the reason without a period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableFile {
    pub file: String,
    pub why: String,
}

/// All stored incidents, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    pub entries: Vec<Entry>,
    pub unreadable: Vec<UnreadableFile>,
}

/// An error of the incident store. Each message is one sentence.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot use the incident store {}: {why}", folder.display())]
    Folder { folder: PathBuf, why: io::Error },
    #[error("another gputop has locked {} for more than {} s; try again", folder.join(LOCK).display(), LOCK_TIMEOUT.as_secs())]
    Busy { folder: PathBuf },
    #[error("cannot write {}: {why}", path.display())]
    Unwritable { path: PathBuf, why: io::Error },
    #[error("cannot read {}: {why}", path.display())]
    Unreadable { path: PathBuf, why: String },
    #[error("cannot import incident {name} from another host: {why}")]
    Foreign { name: String, why: String },
    #[error("{} was written by a newer gputop (schema {schema}); update gputop on this host", path.display())]
    Newer { path: PathBuf, schema: u64 },
    #[error("incident {} not found{instead}", quoted(word))]
    Unknown { word: String, instead: String },
    #[error("{} matches several incidents: {}; type more characters", quoted(word), uids.join(", "))]
    Ambiguous { word: String, uids: Vec<String> },
}

impl Store {
    /// Returns this user's store: `gputop/incidents` in the XDG state directory. Returns an error if the user does not
    /// have a home directory, or if root uses another user's home directory.
    pub fn of_this_user() -> Result<Self, StoreError> {
        Ok(Self::at(&user_files::directory(Base::State, "incidents")?))
    }

    /// Opens the store in `folder`, which the first write creates.
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Saves an incident. If the same incident is already stored, merges the two. Old files are deleted afterwards, so
    /// that a full store delays no incident.
    pub fn write(&self, record: Record) -> Result<Stored, StoreError> {
        let _lock = self.lock()?;
        let names = self.names()?;
        let known = self.same(&record, &names.uids);
        let (uid, what, mut record) = match known {
            Some((uid, old)) => {
                let new = merge(old.clone(), record).bounded();
                if new == old {
                    return Ok(Stored {
                        uid,
                        what: Written::Known,
                        incident: Box::new(new.incident),
                    });
                }
                self.mark_unread_if_changed(&uid, &old, &new)?;
                (uid, Written::Revised, new)
            }
            None => (self.free_name(&record)?, Written::New, record.bounded()),
        };
        record.incident.uid = Some(uid.to_string());
        let incident = Box::new(record.incident.clone());
        self.put(&uid, record)?;
        self.delete_excess(&uid, names.uids);
        delete_old_parts(&names.parts);
        Ok(Stored { uid, what, incident })
    }

    /// Returns all stored incidents, oldest first. The list is empty if nothing was ever saved.
    pub fn list(&self) -> Result<Listing, StoreError> {
        let mut listing = Listing::default();
        let mut entries = Vec::new();
        listing.unreadable = self.each(|entry| entries.push(entry))?;
        entries.reverse();
        entries.sort_by_key(|entry| entry.record.key.time);
        listing.entries = entries;
        Ok(listing)
    }

    /// Calls `take` for each stored incident, newest first, without loading all of them at once. Returns the unreadable
    /// files.
    pub fn each(&self, mut take: impl FnMut(Entry)) -> Result<Vec<UnreadableFile>, StoreError> {
        let mut unreadable = Vec::new();
        let state = State::read(&self.folder).unwrap_or_default();
        for uid in self.names()?.uids.into_iter().rev() {
            match self.read(&uid) {
                Ok(record) => {
                    take(Entry { is_read: state.read.contains_key(&uid), uid, record });
                }
                Err(StoreError::Unreadable { why, .. }) => {
                    unreadable.push(UnreadableFile { file: file_name(&uid), why });
                }
                Err(StoreError::Newer { schema, .. }) => unreadable.push(UnreadableFile {
                    file: file_name(&uid),
                    why: format!("it was written by a newer gputop (schema {schema})"),
                }),
                // Another gputop process has deleted the incident since the files were listed.
                Err(_) => {}
            }
        }
        unreadable.reverse();
        Ok(unreadable)
    }

    pub fn read(&self, uid: &Uid) -> Result<Record, StoreError> {
        let path = self.path(uid);
        let unreadable = |why: String| StoreError::Unreadable { path: path.clone(), why };
        let bytes = user_files::read(&path, MAX_FILE).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                StoreError::Unknown { word: uid.to_string(), instead: String::new() }
            }
            _ => unreadable(error.to_string()),
        })?;
        // Sanitize the text, because screens and exports show it and the file may have been manipulated.
        let bytes = escape_json_strings(&bytes, MAX_MEMORY)
            .ok_or_else(|| unreadable("too large".to_owned()))?;
        let read = bounded_json::read(&bytes, MAX_MEMORY).map_err(UnreadableRecord::from);
        let mut record =
            read.and_then(|(record, _)| Record::read(&record)).map_err(|why| match why {
                UnreadableRecord::Newer(schema) => StoreError::Newer { path: path.clone(), schema },
                UnreadableRecord::Damaged(_) => unreadable(why.to_string()),
            })?;
        // The file name determines the incident's name, regardless of the file's content.
        record.incident.uid = Some(uid.to_string());
        Ok(record)
    }

    /// Returns an incident, and whether the user has opened it.
    pub fn entry(&self, uid: &Uid) -> Result<Entry, StoreError> {
        let state = State::read(&self.folder).unwrap_or_default();
        Ok(Entry {
            record: self.read(uid)?,
            is_read: state.read.contains_key(uid),
            uid: uid.clone(),
        })
    }

    /// Lists incident files modified within `max_age`, newest first, without opening them.
    pub fn recent_files(&self, max_age: Duration) -> Result<Vec<IncidentFile>, StoreError> {
        let state = State::read(&self.folder).unwrap_or_default();
        let recent = self.names()?.uids.into_iter().rev().filter_map(|uid| {
            let file = self.path(&uid).symlink_metadata().ok()?;
            let modified = file.modified().ok()?;
            // A modification time in the future counts as recent.
            let is_old = modified.elapsed().is_ok_and(|age| age > max_age);
            let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
            (!is_old).then(|| IncidentFile {
                is_read: state.read.contains_key(&uid),
                uid: uid.to_string(),
                modified: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
                bytes: file.len(),
            })
        });
        Ok(recent.collect())
    }

    /// Saves an incident from another host's store. If the same incident is already stored, merges the two. If it is
    /// new to this store and was opened on the other host, marks it as read.
    pub fn adopt(&self, remote: RemoteIncident) -> Result<Stored, StoreError> {
        let foreign = |why: &dyn std::fmt::Display| StoreError::Foreign {
            name: visible(remote.uid.as_bytes(), 60),
            why: why.to_string(),
        };
        remote.uid.parse::<Uid>().map_err(|InvalidUid| foreign(&"its name is invalid"))?;
        let mut record = Record::read(&remote.record).map_err(|why| foreign(&why))?;
        record.incident.uid = None;
        let stored = self.write(record)?;
        if remote.is_read && stored.what == Written::New {
            self.mark_read(std::slice::from_ref(&stored.uid))?;
        }
        Ok(stored)
    }

    /// Finds an incident by its name, the beginning or end of its name, or `last` for the newest incident.
    pub fn find(&self, word: &str) -> Result<Uid, StoreError> {
        let uids = self.names()?.uids;
        if LAST.contains(&word)
            && let Some(uid) = self.newest(&uids)
        {
            return Ok(uid.clone());
        }
        if let Some(uid) = uids.iter().find(|uid| uid.as_str() == word) {
            return Ok(uid.clone());
        }
        let mut matches: Vec<&Uid> = uids.iter().filter(|uid| uid.matches(word)).collect();
        match matches.as_slice() {
            [uid] => Ok((*uid).clone()),
            [] => Err(unknown(word, &uids)),
            _ => {
                matches.reverse();
                Err(StoreError::Ambiguous {
                    word: word.to_owned(),
                    uids: matches.iter().take(4).map(ToString::to_string).collect(),
                })
            }
        }
    }

    /// Returns the newest of the sorted `uids`. IDs do not order the incidents of one second, so their records are
    /// compared.
    fn newest<'a>(&self, uids: &'a [Uid]) -> Option<&'a Uid> {
        let last = uids.last()?;
        let same_second = uids.iter().filter(|uid| uid.is_of_second(last));
        same_second.max_by_key(|uid| self.read(uid).ok().map(|record| record.key.time))
    }

    pub fn mark_read(&self, uids: &[Uid]) -> Result<(), StoreError> {
        self.change_state(|state, now| {
            let before = state.read.len();
            for uid in uids {
                state.read.entry(uid.clone()).or_insert(now);
            }
            state.read.len() > before
        })
        .map(drop)
    }

    /// Claims the notification for an incident. Returns true for the first caller, which must run `on_incident`. If the
    /// store cannot be locked in time or written, returns an error, and the caller must not run the command, because
    /// another process may run it too.
    pub fn claim_notice(&self, uid: &Uid) -> Result<bool, StoreError> {
        self.change_state(|state, now| {
            let is_first = !state.notified.contains_key(uid);
            state.notified.entry(uid.clone()).or_insert(now);
            is_first
        })
    }

    /// Claims a notification about a process. Returns true unless the same notification was claimed within the last
    /// `window`.
    pub(super) fn claim_activity(&self, key: &str, window: Millis) -> Result<bool, StoreError> {
        self.change_state(|state, now| {
            let window = i64::try_from(window.0).unwrap_or(i64::MAX);
            let last = state.activity.get(key);
            // A time in the future was stored before the clock was set back.
            let is_recent = |last: &UnixMillis| (0..window).contains(&now.0.saturating_sub(last.0));
            let is_claimed = last.is_some_and(is_recent);
            if !is_claimed {
                state.activity.insert(key.to_owned(), now);
                state.forget_old_activity();
            }
            !is_claimed
        })
    }

    /// Locks the store, calls `change`, and writes the state if `change` returns true.
    fn change_state(
        &self,
        change: impl FnOnce(&mut State, UnixMillis) -> bool,
    ) -> Result<bool, StoreError> {
        let _lock = self.lock()?;
        let path = self.folder.join(super::state::NAME);
        let mut state = State::read(&self.folder)
            .map_err(|schema| StoreError::Newer { path: path.clone(), schema })?;
        let has_changed = change(&mut state, now());
        if has_changed {
            let uids = self.names()?.uids;
            state.retain(|uid| uids.binary_search(uid).is_ok());
            let written = state.write(&self.folder);
            written.map_err(|why| StoreError::Unwritable { path, why })?;
        }
        Ok(has_changed)
    }

    /// Marks an incident as unread if it has become fatal or its explanation has changed.
    fn mark_unread_if_changed(
        &self,
        uid: &Uid,
        old: &Record,
        new: &Record,
    ) -> Result<(), StoreError> {
        if !new.incident.should_notify_after(&old.incident) {
            return Ok(());
        }
        let Ok(mut state) = State::read(&self.folder) else { return Ok(()) };
        if state.read.remove(uid).is_none() {
            return Ok(());
        }
        let path = self.folder.join(super::state::NAME);
        let written = state.write(&self.folder);
        written.map_err(|why| StoreError::Unwritable { path, why })
    }

    /// Finds the stored record that describes the same incident as `record`. Reads at most as many files as the store
    /// retains.
    fn same(&self, record: &Record, uids: &[Uid]) -> Option<(Uid, Record)> {
        let suffix = Uid::subject_suffix(&record.key);
        let candidates = uids.iter().filter(|uid| uid.as_str().ends_with(&suffix));
        candidates.rev().take(MAX_RECORDS).find_map(|uid| {
            let known = self.read(uid).ok()?;
            is_same(&known, record).then(|| (uid.clone(), known))
        })
    }

    /// Returns an unused incident ID. The first choice may be taken, because two subjects (processes or GPUs) may have
    /// the same hash.
    fn free_name(&self, record: &Record) -> Result<Uid, StoreError> {
        let mut names = (0..MAX_NAMES).map(|offset| Uid::of(&record.key, offset));
        let is_free = |uid: &Uid| {
            let file = self.path(uid).symlink_metadata();
            file.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        names.find(is_free).ok_or_else(|| StoreError::Unwritable {
            path: self.path(&Uid::of(&record.key, 0)),
            why: io::ErrorKind::AlreadyExists.into(),
        })
    }

    /// Writes an incident record to its file.
    fn put(&self, uid: &Uid, mut record: Record) -> Result<(), StoreError> {
        if record.incident.time.is_none() {
            let time = jiff::Timestamp::from_second(record.key.time.0.div_euclid(1_000));
            record.incident.time = time.ok().map(|time| time.to_string());
        }
        let path = self.path(uid);
        let unwritable = |why| StoreError::Unwritable { path: path.clone(), why };
        let bytes = serialize(record).map_err(unwritable)?;
        user_files::replace(&path, &bytes).map_err(unwritable)
    }

    /// Deletes incidents beyond the retention limits, except the one just written. Goes by the names, and reads the
    /// sizes only once their number is within the limit.
    fn delete_excess(&self, written: &Uid, mut uids: Vec<Uid>) {
        uids.retain(|uid| uid != written);
        let state = State::read(&self.folder).unwrap_or_default();
        uids.sort_unstable_by_key(|uid| (state.read.contains_key(uid), Reverse(uid.clone())));
        // Reserve room for the incident just written.
        let excess = (uids.len() + 1).saturating_sub(MAX_RECORDS).min(MAX_DELETED);
        for uid in uids.drain(uids.len() - excess..).rev() {
            self.delete(&uid);
        }
        if uids.len() >= MAX_RECORDS {
            return;
        }
        let size = |uid: &Uid| self.path(uid).symlink_metadata().map_or(0, |file| file.len());
        let mut bytes: u64 = uids.iter().chain([written]).map(size).sum();
        for uid in uids.iter().rev() {
            if bytes <= MAX_BYTES {
                break;
            }
            bytes -= size(uid).min(bytes);
            self.delete(uid);
        }
    }

    /// Deletes an incident, unless a newer gputop wrote it, because only that version may delete it.
    fn delete(&self, uid: &Uid) {
        let path = self.path(uid);
        let start = user_files::read_start(&path, SCHEMA_BYTES);
        if start.is_ok_and(|start| schema_of(&start).is_none_or(|schema| schema <= SCHEMA.into())) {
            user_files::remove_regular(&path);
        }
    }

    fn path(&self, uid: &Uid) -> PathBuf {
        self.folder.join(file_name(uid))
    }

    /// Reads the store's directory, without opening its files. Returns nothing if the store does not exist.
    fn names(&self) -> Result<Names, StoreError> {
        let unusable = |why| StoreError::Folder { folder: self.folder.clone(), why };
        match user_files::check_folder(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Names::default()),
            other => other.map_err(unusable)?,
        }
        let mut names = Names::default();
        for entry in fs::read_dir(&self.folder).map_err(unusable)?.take(MAX_ENTRIES).flatten() {
            let path = entry.path();
            let is = |extension| path.extension().is_some_and(|found| found == extension);
            let stem = path.file_stem().and_then(OsStr::to_str);
            if let Some(uid) = stem.filter(|_| is(EXTENSION)).and_then(|stem| stem.parse().ok()) {
                names.uids.push(uid);
            } else if is(user_files::PART) {
                names.parts.push(path);
            }
        }
        names.uids.sort_unstable();
        Ok(names)
    }

    /// Locks the store until the returned file is dropped. Creates the directory if needed.
    fn lock(&self) -> Result<File, StoreError> {
        let unusable = |why| StoreError::Folder { folder: self.folder.clone(), why };
        user_files::own_folder(&self.folder).map_err(unusable)?;
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        let file = options.open(self.folder.join(LOCK)).map_err(unusable)?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    thread::sleep(LOCK_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Busy { folder: self.folder.clone() });
                }
                Err(TryLockError::Error(why)) => return Err(unusable(why)),
            }
        }
        Ok(file)
    }
}

/// Names in the store's directory.
#[derive(Debug, Default)]
struct Names {
    /// Stored incidents, in ascending order.
    uids: Vec<Uid>,
    /// Temporary files.
    parts: Vec<PathBuf>,
}

/// Deletes temporary files left behind by writers that were killed.
fn delete_old_parts(parts: &[PathBuf]) {
    for part in parts {
        let age = || part.symlink_metadata().ok()?.modified().ok()?.elapsed().ok();
        if age().is_some_and(|age| age > MAX_PART_AGE) {
            user_files::remove_regular(part);
        }
    }
}

fn file_name(uid: &Uid) -> String {
    format!("{uid}.{EXTENSION}")
}

/// Returns the schema version from the start of an incident file.
fn schema_of(start: &[u8]) -> Option<u64> {
    let start = str::from_utf8(start.trim_ascii_start()).ok()?.strip_prefix('{')?;
    let value = start.trim_start().strip_prefix("\"schema\"")?.trim_start().strip_prefix(':')?;
    let digits = value.trim_start().split(|c: char| !c.is_ascii_digit()).next()?;
    (!digits.is_empty()).then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Serializes an incident record. Omits the largest sections if the file would exceed its maximum size.
fn serialize(mut record: Record) -> io::Result<Vec<u8>> {
    let to_json = |record: &Record| -> io::Result<Vec<u8>> {
        // Write compact JSON: a block map has thousands of small entries, and indentation would waste space.
        let mut bytes = serde_json::to_vec(record)?;
        bytes.push(b'\n');
        Ok(bytes)
    };
    let fits = |bytes: &Vec<u8>| bytes.len() as u64 <= MAX_FILE;
    let bytes = to_json(&record)?;
    if fits(&bytes) {
        return Ok(bytes);
    }
    record.forget_blocks();
    record.history.clear();
    record.evidence.events.clear();
    record.more.clear();
    let bytes = to_json(&record)?;
    if fits(&bytes) {
        return Ok(bytes);
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

fn unknown(word: &str, uids: &[Uid]) -> StoreError {
    let typed = visible(word.as_bytes(), 60);
    let names = uids.iter().rev().map(Uid::as_str).chain(LAST);
    StoreError::Unknown {
        word: word.to_owned(),
        instead: match nearest(&typed, names) {
            _ if uids.is_empty() => ": the store is empty".to_owned(),
            Some(name) => format!("; the closest ID is {name}"),
            None => ". `gputop incidents` lists all; `last` is the newest".to_owned(),
        },
    }
}

fn now() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixMillis(since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(0)))
}

#[cfg(test)]
mod tests;
