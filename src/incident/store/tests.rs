use std::os::unix::fs::{PermissionsExt, symlink};

use gputop_model::incident_record::Excerpt;
use gputop_model::{Incident, IncidentKey, Mono, ProcessKey, Severity};
use tempfile::TempDir;

use super::*;

fn store() -> (TempDir, Store) {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::at(&home.path().join("gputop/incidents"));
    (home, store)
}

fn record(pid: u32, seconds: u32) -> Record {
    let incident = Incident {
        id: "oom-fragmentation".into(),
        severity: Severity::Caught,
        count: 1,
        ..Incident::default()
    };
    let key = IncidentKey {
        boot_id: "boot".into(),
        process: Some(ProcessKey::new(pid, 7)),
        run: None,
        gpu: None,
        first: Mono(u64::from(seconds) * 1_000),
        time: UnixMillis(1_795_177_000_000 + i64::from(seconds) * 1_000),
    };
    Record::new(incident, key)
}

fn put(store: &Store, record: Record) -> Stored {
    store.write(record).expect("it is written")
}

#[test]
fn stores_one_file_per_incident() {
    let (_home, store) = store();
    let first = put(&store, record(418, 0));
    assert_eq!(first.what, Written::New);
    assert_eq!(put(&store, record(418, 0)).what, Written::Known);
    let mut more = record(418, 2);
    more.command = Some("python train.py".into());
    let again = put(&store, more);
    assert_eq!((&again.uid, again.what), (&first.uid, Written::Revised));
    let listing = store.list().expect("a list");
    assert_eq!(listing.entries.len(), 1);
    let stored = &listing.entries[0].record;
    assert_eq!(stored.command.as_deref(), Some("python train.py"));
    assert_eq!(stored.incident.uid, Some(first.uid.to_string()));
    assert_eq!(
        stored.incident.time.as_deref(),
        Some("2026-11-20T12:16:40Z"),
        "time of the first observation"
    );
    let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(store.folder()), 0o700);
    assert_eq!(mode(&store.path(&first.uid)), 0o600);
}

#[test]
fn incidents_with_equal_second_and_hash_get_different_names() {
    let (_home, store) = store();
    let mut a = record(1, 0);
    a.key.process = None;
    // Incidents without a process or GPU are not merged, although their IDs would be equal.
    let mut b = a.clone();
    b.key.first = Mono(1);
    let (a, b) = (put(&store, a), put(&store, b));
    assert_ne!(a.uid, b.uid);
    assert_eq!(b.what, Written::New);
}

#[test]
fn an_incident_that_gets_worse_becomes_unread() {
    let (_home, store) = store();
    let uid = put(&store, record(418, 0)).uid;
    let is_read = || store.list().expect("a list").entries[0].is_read;
    assert!(!is_read());
    store.mark_read(std::slice::from_ref(&uid)).expect("marked");
    assert!(is_read());
    let mut more = record(418, 1);
    more.command = Some("python".into());
    put(&store, more);
    assert!(is_read(), "new evidence must not mark a read incident as unread");
    let mut died = record(418, 3);
    died.incident.severity = Severity::Fatal;
    put(&store, died);
    assert!(!is_read());
}

#[test]
fn a_notification_is_claimed_once() {
    let (_home, store) = store();
    let uid = put(&store, record(418, 0)).uid;
    assert!(store.claim_notice(&uid).expect("a claim"));
    assert!(!store.claim_notice(&uid).expect("a claim"));
}

#[test]
fn deletes_the_oldest_read_incidents_first() {
    let (_home, store) = store();
    let most = u32::try_from(MAX_RECORDS).expect("small");
    let uids: Vec<Uid> = (0..most).map(|n| put(&store, record(n, n)).uid).collect();
    store.mark_read(&[uids[5].clone(), uids[9].clone()]).expect("marked");
    let names = || -> Vec<Uid> { store.names().expect("names").uids };
    put(&store, record(most, most));
    assert_eq!(names().len(), MAX_RECORDS);
    assert!(!names().contains(&uids[5]));
    put(&store, record(most + 1, most + 1));
    assert!(!names().contains(&uids[9]) && names().contains(&uids[0]));
    // The incident is older than all stored ones, but is not deleted because it was just written.
    let old = put(&store, record(most + 2, 0)).uid;
    assert!(names().contains(&old) && !names().contains(&uids[0]));
}

/// Returns how many bytes this thread has read from files.
#[cfg(target_os = "linux")]
fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").expect("counters");
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.expect("a counter").parse().expect("a number")
}

#[cfg(target_os = "linux")]
#[test]
fn saves_into_an_overfull_store_without_reading_it() {
    const FILES: u32 = 12_000;
    let (_home, store) = store();
    let first = put(&store, record(0, 0)).uid;
    let text = fs::read(store.path(&first)).expect("a file");
    for n in 1..FILES {
        fs::write(store.path(&Uid::of(&record(n, n).key, 0)), &text).expect("written");
    }
    let newer = Uid::of(&record(FILES, 1).key, 0);
    fs::write(store.path(&newer), br#"{"schema": 2, "id": "x"}"#).expect("written");
    let mut before = bytes_read();
    let mut writes = 0;
    while store.names().expect("names").uids.len() > MAX_RECORDS + 1 {
        let uid = put(&store, record(FILES, FILES + 10 * writes)).uid;
        let read = bytes_read() - before;
        assert!(read < 64 << 10, "{read} bytes of {} read", text.len() * FILES as usize);
        assert!(store.read(&uid).is_ok() && store.claim_notice(&uid).expect("a claim"));
        writes += 1;
        assert!(writes <= FILES / 200, "the store does not become smaller");
        before = bytes_read();
    }
    let left = store.names().expect("names").uids;
    assert!(left.contains(&newer) && !left.contains(&first));
}

#[test]
fn does_not_delete_links_and_pipes_from_an_overfull_store() {
    let (home, store) = store();
    put(&store, record(0, 0));
    let strange = [1, 2].map(|n| store.path(&Uid::of(&record(n, n).key, 0)));
    symlink(home.path().join("mine.json"), &strange[0]).expect("a link");
    nix::unistd::mkfifo(&strange[1], nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let most = u32::try_from(MAX_RECORDS).expect("small");
    (3..most + 9).for_each(|n| drop(put(&store, record(n, n))));
    assert!(strange.iter().all(|path| path.symlink_metadata().is_ok()));
    assert_eq!(store.names().expect("names").uids.len(), MAX_RECORDS + strange.len());
}

#[test]
fn finds_an_incident_by_the_beginning_or_end_of_its_name() {
    let (_home, store) = store();
    let nearest = |word: &str| store.find(word).expect_err(word).to_string();
    assert_eq!(nearest("x"), "incident x not found: the store is empty");
    let a = put(&store, record(418, 0)).uid;
    let b = put(&store, record(421, 100_000)).uid;
    assert_eq!(store.find(a.as_str()).ok(), Some(a.clone()));
    assert_eq!(store.find(&a.as_str()[..6]).ok(), Some(a.clone()));
    assert_eq!(store.find(&b.as_str()[8..]).ok(), Some(b.clone()));
    let both = nearest(&a.as_str()[..1]);
    assert_eq!(
        both,
        format!("{} matches several incidents: {b}, {a}; type more characters", &a.as_str()[..1])
    );
    let slip = format!("{}z", &a.as_str()[..11]);
    assert_eq!(nearest(&slip), format!("incident {slip} not found; the closest ID is {a}"));
    assert_eq!(store.find("latest").ok(), store.find("last").ok());
    assert_eq!(store.find("last").ok(), Some(b));
    assert_eq!(
        nearest("zzz"),
        "incident zzz not found. `gputop incidents` lists all; `last` is the newest"
    );
    assert!(nearest("\x1b[31m\n").lines().count() == 1);
}

#[test]
fn the_last_incident_of_a_second_is_the_newest() {
    let (_home, store) = store();
    // The suffixes of the IDs agree with the order of the times for only one of the pairs.
    for (seconds, first, second) in [(10, 418, 421), (20, 421, 418)] {
        put(&store, record(first, seconds));
        let mut newest = record(second, seconds);
        newest.key.time.0 += 400;
        let newest = put(&store, newest).uid;
        assert_eq!(store.find("last").ok(), Some(newest));
    }
}

#[test]
fn reports_damaged_files_and_does_not_open_special_files() {
    let (home, store) = store();
    let good = put(&store, record(418, 0)).uid;
    let file = |name: &str| store.folder().join(format!("{name}.json"));
    fs::write(file("01kq3v7-aaaa"), b"{\"schema\": 1, \"id\": ").expect("write");
    fs::write(file("01kq3v7-bbbb"), b"{\"schema\": 2, \"id\": \"x\"}").expect("write");
    fs::write(file("01kq3v7-cccc"), vec![b' '; 5 << 20]).expect("write");
    let secret = home.path().join("secret.json");
    fs::write(&secret, b"{\"schema\": 1}").expect("write");
    symlink(&secret, file("01kq3v7-dddd")).expect("link");
    nix::unistd::mkfifo(&file("01kq3v7-eeee"), nix::sys::stat::Mode::S_IRWXU).expect("fifo");
    fs::create_dir(file("01kq3v7-ffff")).expect("directory");
    fs::write(file("01kq3v7-gggg"), b"[[[[").expect("write");
    fs::write(store.folder().join("notes.txt"), b"mine").expect("write");
    let listing = store.list().expect("a list");
    assert_eq!(listing.entries.len(), 1);
    assert_eq!(listing.entries[0].uid, good);
    let messages: Vec<String> =
        listing.unreadable.iter().map(|one| format!("{}: {}", &one.file[8..12], one.why)).collect();
    assert!(messages[0].starts_with("aaaa: damaged (EOF"), "{messages:?}");
    assert_eq!(
        messages[1..6],
        [
            "bbbb: it was written by a newer gputop (schema 2)",
            "cccc: larger than 4 MiB",
            "dddd: not a regular file",
            "eeee: not a regular file",
            "ffff: not a regular file",
        ]
    );
    assert_eq!(messages.len(), 7);
    // Invalid files do not prevent writing.
    put(&store, record(421, 9));
    assert_eq!(store.list().expect("a list").entries.len(), 2);
}

#[test]
fn keeps_a_newer_state_and_replaces_a_damaged_one() {
    let (_home, store) = store();
    let uid = put(&store, record(418, 0)).uid;
    let state = store.folder().join(super::super::state::NAME);
    let newer = br#"{"schema": 9, "read": 3}"#;
    fs::write(&state, newer).expect("write");
    let error = store.claim_notice(&uid).expect_err("a newer state file must not be changed");
    assert!(matches!(error, StoreError::Newer { schema: 9, .. }), "{error}");
    put(&store, record(421, 9));
    assert_eq!(fs::read(&state).expect("there"), newer);
    fs::write(&state, b"\xff\xfe{{{").expect("write");
    assert!(store.claim_notice(&uid).expect("a new state"));
    assert!(!store.claim_notice(&uid).expect("the saved state"));
}

#[test]
fn refuses_a_store_that_is_a_link_or_a_file() {
    let (home, store) = store();
    let above = home.path().join("gputop");
    fs::create_dir(&above).expect("directory");
    let message = || store.write(record(1, 0)).expect_err("refused").to_string();
    symlink(home.path(), store.folder()).expect("link");
    assert!(message().starts_with("cannot use the incident store "), "{}", message());
    assert!(store.list().is_err());
    fs::remove_file(store.folder()).expect("remove");
    fs::write(store.folder(), b"").expect("a file");
    assert!(message().contains("cannot use"), "{}", message());
    fs::remove_file(store.folder()).expect("remove");
    // A lock file that is a symbolic link is not followed.
    put(&store, record(1, 0));
    fs::remove_file(store.folder().join(LOCK)).expect("remove");
    symlink(home.path().join("elsewhere"), store.folder().join(LOCK)).expect("link");
    assert!(message().contains("cannot use"), "{}", message());
    assert!(!home.path().join("elsewhere").exists());
}

#[test]
fn gives_up_on_a_lock_that_is_not_released() {
    let (_home, store) = store();
    put(&store, record(418, 0));
    let held = store.lock().expect("a lock");
    let begun = Instant::now();
    let error = store.write(record(421, 9)).expect_err("busy");
    assert!(matches!(error, StoreError::Busy { .. }), "{error}");
    assert!(begun.elapsed() < 3 * LOCK_TIMEOUT);
    // Reading the store does not require a lock.
    assert_eq!(store.list().expect("a list").entries.len(), 1);
    drop(held);
    put(&store, record(421, 9));
}

#[test]
fn a_changed_explanation_becomes_unread_and_keeps_its_name() {
    let (_home, store) = store();
    let mut first = record(418, 0);
    first.incident.headline = "OUT OF MEMORY".into();
    let uid = put(&store, first.clone()).uid;
    store.mark_read(std::slice::from_ref(&uid)).expect("a note");
    let is_read = || store.entry(&uid).expect("an entry").is_read;
    // More evidence for the same explanation does not mark the incident as unread.
    first.excerpt = Some(Excerpt::default());
    first.incident.title = "2.10 GiB did not fit.".into();
    assert_eq!(put(&store, first.clone()).uid, uid);
    assert!(is_read());
    let mut better = first;
    better.incident.fields.reserved_bytes = Some(1);
    better.incident.headline = "FRAGMENTED MEMORY".into();
    let stored = put(&store, better);
    assert_eq!((stored.uid, &*stored.incident.headline), (uid.clone(), "FRAGMENTED MEMORY"));
    assert!(!is_read());
}

/// Returns a stored incident as another host's agent sends it.
fn remote_incident(store: &Store, uid: &Uid) -> RemoteIncident {
    let entry = store.entry(uid).expect("an entry");
    RemoteIncident {
        uid: uid.to_string(),
        is_read: entry.is_read,
        record: serde_json::to_value(entry.record).expect("JSON"),
    }
}

#[test]
fn imports_each_remote_incident_once_even_without_a_subject() {
    let ((_remote, remote), (_local, local)) = (store(), store());
    let mut without_subject = record(1, 0);
    without_subject.key.process = None;
    let mut later = without_subject.clone();
    later.key.first = Mono(9_000);
    let uids = [record(418, 0), without_subject, later].map(|record| put(&remote, record).uid);
    remote.mark_read(&uids[..1]).expect("a note");
    assert_eq!(remote.recent_files(Duration::from_hours(1)).expect("a list").len(), 3);
    for what in [Written::New, Written::Known, Written::Known] {
        for uid in &uids {
            let adopted = local.adopt(remote_incident(&remote, uid)).expect("it is stored");
            assert_eq!((adopted.uid, adopted.what), (uid.clone(), what));
        }
    }
    let entries = local.list().expect("a list").entries;
    let read: Vec<bool> =
        uids.iter().map(|uid| entries.iter().any(|one| one.uid == *uid && one.is_read)).collect();
    assert_eq!((entries.len(), read), (3, vec![true, false, false]));
    // A locally observed incident is merged with the remote host's incident.
    let (_other, other) = store();
    put(&other, record(418, 3));
    other.adopt(remote_incident(&remote, &uids[0])).expect("it is stored");
    assert_eq!(other.list().expect("a list").entries.len(), 1);
}

#[test]
fn does_not_import_invalid_incidents() {
    let (_home, local) = store();
    for (uid, record) in [
        ("../../.ssh/rc", serde_json::json!({"schema": 1})),
        ("01kq3v7-x2c9", serde_json::json!([1])),
        ("01kq3v7-x2c9", serde_json::json!({"schema": 99})),
    ] {
        let stored = RemoteIncident { uid: uid.into(), is_read: false, record };
        let why = local.adopt(stored).expect_err("it is refused").to_string();
        assert!(why.starts_with(&format!("cannot import incident {uid} from another host: ")));
    }
    assert!(local.list().expect("a list").entries.is_empty());
}

#[test]
fn a_notification_is_not_withheld_after_the_clock_was_set_back() {
    let (_home, store) = store();
    put(&store, record(418, 0));
    let hour = Millis(3_600_000);
    assert!(store.claim_activity("418", hour).expect("a claim"));
    assert!(!store.claim_activity("418", hour).expect("a claim"));
    let mut state = State::read(&store.folder).expect("a state");
    let stored = state.activity.get_mut("418").expect("the claim");
    stored.0 += 3 * 3_600_000;
    state.write(&store.folder).expect("it is written");
    assert!(store.claim_activity("418", hour).expect("a claim"));
}
