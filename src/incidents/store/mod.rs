//! The directory of incidents: finding, reading, writing, forgetting.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::libc::{O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK};
use thiserror::Error;

use super::record::{NoRecord, Record};
use super::state::State;
use super::uid::{NoUid, Uid};
use crate::model::bounded_json;
use crate::model::incident::Incident;
use crate::model::remote_incident::{OnShelf, RemoteIncident};
use crate::model::text::{harmless_json, quoted, visible};
use crate::model::units::UnixMillis;
use crate::user_files::{self, Base, DirectoryError};

/// Incidents that are kept, and their bytes; of more the oldest go, those that were read first.
const MAX_RECORDS: usize = 200;
const MAX_BYTES: u64 = 64 << 20;
/// No file that was written here is larger.
const MAX_FILE: u64 = 4 << 20;
/// Memory that the lists of one file may take while it is read.
const MAX_MEMORY: usize = 24 << 20;
/// Entries of the directory that are looked at, whatever somebody put there.
const MAX_ENTRIES: usize = 10_000;
/// How long another writer is waited for; a write takes milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Far less than a write takes, so that one who writes again and again leaves the others their turn.
const LOCK_PAUSE: Duration = Duration::from_millis(1);
const LOCK: &str = "lock";
/// A part that is older belongs to nobody.
const PART_OLD: Duration = Duration::from_mins(10);
/// Names that are tried for two processes whose hashes are the same.
const MAX_NAMES: u64 = 60;

/// The store of this user.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// What became of a record that was to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    pub uid: Uid,
    pub what: Written,
    /// What is kept now: it may be what another observer concluded.
    pub incident: Box<Incident>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    New,
    /// It told more of one that was there.
    Revised,
    /// It told nothing that was not known.
    Known,
}

/// An incident of the store.
#[derive(Debug, Clone)]
pub struct Entry {
    pub uid: Uid,
    pub record: Record,
    pub is_read: bool,
}

/// A file that should hold an incident, and why it cannot be read: a clause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    pub file: String,
    pub why: String,
}

/// All there is, the oldest first.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    pub entries: Vec<Entry>,
    pub unreadable: Vec<Unreadable>,
}

/// One sentence each.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("the incidents in {} cannot be used: {why}", folder.display())]
    Folder { folder: PathBuf, why: io::Error },
    #[error("another gputop holds {} for longer than two seconds; try again", folder.join(LOCK).display())]
    Busy { folder: PathBuf },
    #[error("{} cannot be written: {why}", path.display())]
    Unwritable { path: PathBuf, why: io::Error },
    #[error("{} cannot be read: {why}", path.display())]
    Unreadable { path: PathBuf, why: String },
    #[error("the incident {name} of another host is left out: {why}")]
    Foreign { name: String, why: String },
    #[error("{} was written by a newer gputop (schema {schema}); update this one", path.display())]
    Newer { path: PathBuf, schema: u64 },
    #[error("there is no incident {}{instead}", quoted(word))]
    Unknown { word: String, instead: String },
    #[error("{} may be any of {}; type more of it", quoted(word), uids.join(", "))]
    Ambiguous { word: String, uids: Vec<String> },
}

impl Store {
    /// Where it is for this user: `gputop/incidents` in the state directory of the XDG rules.
    ///
    /// # Errors
    /// For a user without a home, and for root with the home of another user.
    pub fn of_this_user() -> Result<Self, StoreError> {
        Ok(Self::at(&user_files::directory(Base::State, "incidents")?))
    }

    /// In this directory; it is made when something is written.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Keeps an incident, once: what is known of it already is revised.
    ///
    /// # Errors
    /// When the store cannot be locked in time, or not written.
    pub fn write(&self, record: Record) -> Result<Stored, StoreError> {
        let _lock = self.lock()?;
        let mut files = self.files()?;
        let known = self.same(&record, &files);
        let (uid, what, record) = match known {
            Some((uid, old)) => {
                let new = old.clone().revised_by(record).bounded();
                if new == old {
                    return Ok(Stored {
                        uid,
                        what: Written::Known,
                        incident: Box::new(new.incident),
                    });
                }
                self.unread_if_news(&uid, &old, &new)?;
                (uid, Written::Revised, new)
            }
            None => (free_name(&record, &files)?, Written::New, record.bounded()),
        };
        let incident = Box::new(record.incident.clone());
        let bytes = self.put(&uid, record)?;
        files.retain(|file| file.uid != uid);
        files.push(StoreFile {
            uid: uid.clone(),
            bytes,
        });
        self.forget(&uid, files);
        Ok(Stored {
            uid,
            what,
            incident,
        })
    }

    /// All incidents, the oldest first. A store that was never written to has none.
    ///
    /// # Errors
    /// When the directory cannot be read; a file that cannot be is told in the listing.
    pub fn list(&self) -> Result<Listing, StoreError> {
        let mut listing = Listing::default();
        let mut entries = Vec::new();
        listing.unreadable = self.each(|entry| entries.push(entry))?;
        entries.reverse();
        entries.sort_by_key(|entry| entry.record.observed.time);
        listing.entries = entries;
        Ok(listing)
    }

    /// Each incident, the newest first, for whoever has no room for all of them at once; and what could not be read.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn each(&self, mut take: impl FnMut(Entry)) -> Result<Vec<Unreadable>, StoreError> {
        let mut unreadable = Vec::new();
        let state = State::read(&self.folder).unwrap_or_default();
        for file in self.files()?.into_iter().rev() {
            match self.read(&file.uid) {
                Ok(record) => take(Entry {
                    is_read: state.read.contains_key(&file.uid),
                    uid: file.uid,
                    record,
                }),
                Err(StoreError::Unreadable { why, .. }) => unreadable.push(Unreadable {
                    file: file_name(&file.uid),
                    why,
                }),
                Err(StoreError::Newer { schema, .. }) => unreadable.push(Unreadable {
                    file: file_name(&file.uid),
                    why: format!("it was written by a newer gputop (schema {schema})"),
                }),
                // Forgotten by another one since.
                Err(_) => {}
            }
        }
        unreadable.reverse();
        Ok(unreadable)
    }

    /// # Errors
    /// When there is none of this name, or it cannot be read.
    pub fn read(&self, uid: &Uid) -> Result<Record, StoreError> {
        let path = self.path(uid);
        let unreadable = |why: String| StoreError::Unreadable {
            path: path.clone(),
            why,
        };
        let bytes = user_files::read(&path, MAX_FILE).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StoreError::Unknown {
                word: uid.to_string(),
                instead: String::new(),
            },
            _ => unreadable(error.to_string()),
        })?;
        // Whoever can write to the folder chooses the text; screens and exports show it.
        let bytes =
            harmless_json(&bytes, MAX_MEMORY).ok_or_else(|| unreadable("too large".to_owned()))?;
        let read = bounded_json::read(&bytes, MAX_MEMORY).map_err(NoRecord::from);
        let mut record =
            read.and_then(|(record, _)| Record::read(record))
                .map_err(|why| match why {
                    NoRecord::Newer(schema) => StoreError::Newer {
                        path: path.clone(),
                        schema,
                    },
                    NoRecord::Damaged(_) => unreadable(why.to_string()),
                })?;
        // The name is what it is found by, whatever it says itself.
        record.incident.uid = Some(uid.to_string());
        Ok(record)
    }

    /// With whether somebody has read it.
    ///
    /// # Errors
    /// When there is none of this name, or it cannot be read.
    pub fn entry(&self, uid: &Uid) -> Result<Entry, StoreError> {
        let state = State::read(&self.folder).unwrap_or_default();
        Ok(Entry {
            record: self.read(uid)?,
            is_read: state.read.contains_key(uid),
            uid: uid.clone(),
        })
    }

    /// The files that were written within this time, unopened, the newest incident first.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn shelf(&self, within: Duration) -> Result<Vec<OnShelf>, StoreError> {
        let state = State::read(&self.folder).unwrap_or_default();
        let mut files = self.files()?;
        files.reverse();
        let shelf = files.into_iter().filter_map(|file| {
            let modified = self.path(&file.uid).metadata().ok()?.modified().ok()?;
            // One from the future is new.
            let is_old = modified.elapsed().is_ok_and(|age| age > within);
            let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
            (!is_old).then(|| OnShelf {
                is_read: state.read.contains_key(&file.uid),
                uid: file.uid.to_string(),
                modified: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
                bytes: file.bytes,
            })
        });
        Ok(shelf.collect())
    }

    /// Keeps an incident of another host's store, once: what is known of it already is revised. Where it was read there it
    /// needs nobody's eyes here.
    ///
    /// # Errors
    /// As [`write`](Self::write), and when what was told is no incident.
    pub fn adopt(&self, kept: RemoteIncident) -> Result<Stored, StoreError> {
        let foreign = |why: &dyn std::fmt::Display| StoreError::Foreign {
            name: visible(kept.uid.as_bytes(), 60),
            why: why.to_string(),
        };
        let named: Uid = kept
            .uid
            .parse()
            .map_err(|NoUid| foreign(&"it has no name"))?;
        let mut record = Record::read(kept.record).map_err(|why| foreign(&why))?;
        // Of one that is about nobody the name is all that says that it is the same.
        if let Ok(known) = self.read(&named)
            && known.observed == record.observed
            && !record.is_same(&known)
        {
            return Ok(Stored {
                uid: named,
                what: Written::Known,
                incident: Box::new(known.incident),
            });
        }
        record.incident.uid = None;
        let stored = self.write(record)?;
        if kept.is_read && stored.what == Written::New {
            self.mark_read(std::slice::from_ref(&stored.uid))?;
        }
        Ok(stored)
    }

    /// The incident that a person means: its whole name, or the beginning or the end of it.
    ///
    /// # Errors
    /// When it is none, with the nearest, or several.
    pub fn find(&self, word: &str) -> Result<Uid, StoreError> {
        let uids: Vec<Uid> = self.files()?.into_iter().map(|file| file.uid).collect();
        if let Some(uid) = uids.iter().find(|uid| uid.as_str() == word) {
            return Ok(uid.clone());
        }
        let mut meant: Vec<&Uid> = uids.iter().filter(|uid| uid.is_meant_by(word)).collect();
        match meant.as_slice() {
            [uid] => Ok((*uid).clone()),
            [] => Err(unknown(word, &uids)),
            _ => {
                meant.reverse();
                Err(StoreError::Ambiguous {
                    word: word.to_owned(),
                    uids: meant.iter().take(4).map(ToString::to_string).collect(),
                })
            }
        }
    }

    /// Notes that a person has seen these.
    ///
    /// # Errors
    /// When the store cannot be locked in time, or not written.
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

    /// Whether nobody was told of it so far; from now on somebody was.
    ///
    /// # Errors
    /// When the store cannot be locked in time, or not written: then nobody knows, and nobody may be told.
    pub fn claim_notice(&self, uid: &Uid) -> Result<bool, StoreError> {
        self.change_state(|state, now| {
            let is_first = !state.told.contains_key(uid);
            state.told.entry(uid.clone()).or_insert(now);
            is_first
        })
    }

    /// Writes the state where `change` says that it did.
    fn change_state(
        &self,
        change: impl FnOnce(&mut State, UnixMillis) -> bool,
    ) -> Result<bool, StoreError> {
        let _lock = self.lock()?;
        let path = self.folder.join(super::state::NAME);
        let mut state = State::read(&self.folder).map_err(|schema| StoreError::Newer {
            path: path.clone(),
            schema,
        })?;
        let has_changed = change(&mut state, now());
        if has_changed {
            let files = self.files()?;
            state.keep(|uid| files.iter().any(|file| file.uid == *uid));
            let written = state.write(&self.folder);
            written.map_err(|why| StoreError::Unwritable { path, why })?;
        }
        Ok(has_changed)
    }

    /// What was read as survived and has ended the process since is news, and what turned out to be something else.
    fn unread_if_news(&self, uid: &Uid, old: &Record, new: &Record) -> Result<(), StoreError> {
        if !new.incident.is_news_after(&old.incident) {
            return Ok(());
        }
        let Ok(mut state) = State::read(&self.folder) else {
            return Ok(());
        };
        if state.read.remove(uid).is_none() {
            return Ok(());
        }
        let path = self.folder.join(super::state::NAME);
        let written = state.write(&self.folder);
        written.map_err(|why| StoreError::Unwritable { path, why })
    }

    /// The record that tells of the same, if there is one.
    fn same(&self, record: &Record, files: &[StoreFile]) -> Option<(Uid, Record)> {
        let whom = Uid::whom(&record.observed);
        let candidates = files
            .iter()
            .filter(|file| file.uid.as_str().ends_with(&whom));
        candidates.rev().find_map(|file| {
            let known = self.read(&file.uid).ok()?;
            known.is_same(record).then(|| (file.uid.clone(), known))
        })
    }

    /// Its size.
    fn put(&self, uid: &Uid, mut record: Record) -> Result<u64, StoreError> {
        record.incident.uid = Some(uid.to_string());
        if record.incident.time.is_none() {
            let time = jiff::Timestamp::from_second(record.observed.time.0.div_euclid(1_000));
            record.incident.time = time.ok().map(|time| time.to_string());
        }
        let path = self.path(uid);
        let unwritable = |why| StoreError::Unwritable {
            path: path.clone(),
            why,
        };
        let bytes = fitting(record).map_err(unwritable)?;
        user_files::replace(&path, &bytes).map_err(unwritable)?;
        Ok(bytes.len() as u64)
    }

    /// Removes what is more than is kept, but never what was just written.
    fn forget(&self, written: &Uid, mut files: Vec<StoreFile>) {
        let is_too_much = |files: &[StoreFile]| {
            files.len() > MAX_RECORDS
                || files.iter().map(|file| file.bytes).sum::<u64>() > MAX_BYTES
        };
        if !is_too_much(&files) {
            return;
        }
        let state = State::read(&self.folder).unwrap_or_default();
        files.retain(|file| file.uid != *written);
        files.sort_by_key(|file| (!state.read.contains_key(&file.uid), file.uid.clone()));
        // Its own place is kept for it.
        let own = self.path(written).metadata().map_or(0, |file| file.len());
        let mut oldest = files.into_iter();
        loop {
            let rest = oldest.as_slice();
            let bytes: u64 = rest.iter().map(|file| file.bytes).sum();
            if rest.len() < MAX_RECORDS && bytes + own <= MAX_BYTES {
                break;
            }
            let Some(file) = oldest.next() else { break };
            // What a newer version wrote it will forget itself.
            if !matches!(self.read(&file.uid), Err(StoreError::Newer { .. })) {
                let _ = fs::remove_file(self.path(&file.uid));
            }
        }
    }

    fn path(&self, uid: &Uid) -> PathBuf {
        self.folder.join(file_name(uid))
    }

    /// The files whose name is one of an incident, by their names. None where there is no store.
    fn files(&self) -> Result<Vec<StoreFile>, StoreError> {
        let unusable = |why| StoreError::Folder {
            folder: self.folder.clone(),
            why,
        };
        match user_files::check_folder(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(unusable)?,
        }
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)
            .map_err(unusable)?
            .take(MAX_ENTRIES)
            .flatten()
        {
            let name = entry.file_name();
            let stem = name.to_str().and_then(|name| name.strip_suffix(".json"));
            if let Some(uid) = stem.and_then(|stem| stem.parse().ok()) {
                let bytes = entry.metadata().map_or(0, |about| about.size());
                files.push(StoreFile { uid, bytes });
            }
        }
        files.sort_by(|a, b| a.uid.cmp(&b.uid));
        Ok(files)
    }

    /// Held until it is dropped. Makes the directory.
    fn lock(&self) -> Result<File, StoreError> {
        let unusable = |why| StoreError::Folder {
            folder: self.folder.clone(),
            why,
        };
        user_files::own_folder(&self.folder).map_err(unusable)?;
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        let file = options.open(self.folder.join(LOCK)).map_err(unusable)?;
        let end = Instant::now() + LOCK_WAIT;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < end => thread::sleep(LOCK_PAUSE),
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Busy {
                        folder: self.folder.clone(),
                    });
                }
                Err(TryLockError::Error(why)) => return Err(unusable(why)),
            }
        }
        self.sweep();
        Ok(file)
    }

    /// Removes what writers that were killed left half written.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        for entry in entries.take(MAX_ENTRIES).flatten() {
            let is_part = Path::new(&entry.file_name())
                .extension()
                .is_some_and(|extension| extension == user_files::PART);
            let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
            if is_part && age().is_some_and(|age| age > PART_OLD) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// A file of the store.
#[derive(Debug, Clone)]
struct StoreFile {
    uid: Uid,
    bytes: u64,
}

fn file_name(uid: &Uid) -> String {
    format!("{uid}.json")
}

/// A name that no other incident has: two processes may hash alike.
fn free_name(record: &Record, files: &[StoreFile]) -> Result<Uid, StoreError> {
    (0..MAX_NAMES)
        .map(|later| Uid::of(&record.observed, later))
        .find(|uid| files.iter().all(|file| file.uid != *uid))
        .ok_or_else(|| StoreError::Unwritable {
            path: PathBuf::from(file_name(&Uid::of(&record.observed, 0))),
            why: io::ErrorKind::AlreadyExists.into(),
        })
}

/// As it is written; without what is large where it would be too large to be read again.
fn fitting(mut record: Record) -> io::Result<Vec<u8>> {
    let written = |record: &Record| -> io::Result<Vec<u8>> {
        // Not spread over lines: a block map has thousands of small parts.
        let mut bytes = serde_json::to_vec(record)?;
        bytes.push(b'\n');
        Ok(bytes)
    };
    let fits = |bytes: &Vec<u8>| bytes.len() as u64 <= MAX_FILE;
    let bytes = written(&record)?;
    if fits(&bytes) {
        return Ok(bytes);
    }
    if let Some(scene) = &mut record.scene {
        scene.forget_blocks();
    }
    record.history.clear();
    record.evidence.events.clear();
    record.more.clear();
    let bytes = written(&record)?;
    if fits(&bytes) {
        return Ok(bytes);
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

fn unknown(word: &str, uids: &[Uid]) -> StoreError {
    let typed = visible(word.as_bytes(), 60);
    // The newest where nothing is near: that is what people look for.
    let names = uids.iter().rev().map(Uid::as_str);
    let near = crate::model::nearest_name::nearest(&typed, names).or(uids.last().map(Uid::as_str));
    StoreError::Unknown {
        word: word.to_owned(),
        instead: near.map_or_else(
            || ": the store is empty".to_owned(),
            |uid| format!("; the nearest is {uid}"),
        ),
    }
}

fn now() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixMillis(since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(0)))
}

#[cfg(test)]
mod tests;
