use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;
use crate::incidents::{Excerpt, Key};
use crate::model::incident::{Incident, Severity};
use crate::model::process::ProcessKey;
use crate::model::units::{Mono, Pid, StartTicks};

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
    let key = Key {
        boot_id: "boot".into(),
        process: Some(ProcessKey {
            pid: Pid(pid),
            start: StartTicks(7),
        }),
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
fn one_incident_is_one_file_however_often_it_is_told() {
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
    let kept = &listing.entries[0].record;
    assert_eq!(kept.command.as_deref(), Some("python train.py"));
    assert_eq!(kept.uid(), Some(first.uid));
    assert_eq!(
        kept.incident.time.as_deref(),
        Some("2026-11-20T12:16:40Z"),
        "of the first observation"
    );
    let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(store.folder()), 0o700);
    assert_eq!(mode(&store.path(&kept.uid().expect("a name"))), 0o600);
}

#[test]
fn the_same_second_and_the_same_hash_are_still_two() {
    let (_home, store) = store();
    let mut a = record(1, 0);
    a.observed.process = None;
    // Neither knows whom it is about, so they are two; their names would be one.
    let b = a.clone();
    let (a, b) = (put(&store, a), put(&store, b));
    assert_ne!(a.uid, b.uid);
    assert_eq!(b.what, Written::New);
}

#[test]
fn what_was_read_is_unread_again_when_it_got_worse() {
    let (_home, store) = store();
    let uid = put(&store, record(418, 0)).uid;
    let is_read = || store.list().expect("a list").entries[0].is_read;
    assert!(!is_read());
    store.mark_read(std::slice::from_ref(&uid)).expect("marked");
    assert!(is_read());
    let mut more = record(418, 1);
    more.command = Some("python".into());
    put(&store, more);
    assert!(is_read(), "the same with more evidence is no news");
    let mut died = record(418, 3);
    died.incident.severity = Severity::Fatal;
    put(&store, died);
    assert!(!is_read());
}

#[test]
fn somebody_is_told_once() {
    let (_home, store) = store();
    let uid = put(&store, record(418, 0)).uid;
    assert!(store.claim_notice(&uid).expect("a claim"));
    assert!(!store.claim_notice(&uid).expect("a claim"));
}

#[test]
fn the_oldest_go_and_of_them_the_read_ones_first() {
    let (_home, store) = store();
    let most = u32::try_from(MAX_RECORDS).expect("small");
    let uids: Vec<Uid> = (0..most).map(|n| put(&store, record(n, n)).uid).collect();
    store
        .mark_read(&[uids[5].clone(), uids[9].clone()])
        .expect("marked");
    let names = || -> Vec<Uid> {
        let files = store.files().expect("files");
        files.into_iter().map(|file| file.uid).collect()
    };
    put(&store, record(most, most));
    assert_eq!(names().len(), MAX_RECORDS);
    assert!(!names().contains(&uids[5]));
    put(&store, record(most + 1, most + 1));
    assert!(!names().contains(&uids[9]) && names().contains(&uids[0]));
    // Older than all of them, and yet what was just written.
    let old = put(&store, record(most + 2, 0)).uid;
    assert!(names().contains(&old) && !names().contains(&uids[0]));
}

#[test]
fn a_person_types_the_beginning_or_the_end() {
    let (_home, store) = store();
    let nearest = |word: &str| store.find(word).expect_err(word).to_string();
    assert_eq!(nearest("x"), "there is no incident x: the store is empty");
    let a = put(&store, record(418, 0)).uid;
    let b = put(&store, record(421, 100_000)).uid;
    assert_eq!(store.find(a.as_str()).ok(), Some(a.clone()));
    assert_eq!(store.find(&a.as_str()[..6]).ok(), Some(a.clone()));
    assert_eq!(store.find(&b.as_str()[8..]).ok(), Some(b.clone()));
    let both = nearest(&a.as_str()[..1]);
    assert_eq!(
        both,
        format!(
            "{} may be any of {b}, {a}; type more of it",
            &a.as_str()[..1]
        )
    );
    let slip = format!("{}z", &a.as_str()[..11]);
    assert_eq!(
        nearest(&slip),
        format!("there is no incident {slip}; the nearest is {a}")
    );
    assert!(nearest("\x1b[31m\n").lines().count() == 1);
}

#[test]
fn damaged_files_are_told_and_nothing_strange_is_opened() {
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
    let told: Vec<String> = listing
        .unreadable
        .iter()
        .map(|one| format!("{}: {}", &one.file[8..12], one.why))
        .collect();
    assert!(told[0].starts_with("aaaa: it is damaged (EOF"), "{told:?}");
    assert_eq!(
        told[1..6],
        [
            "bbbb: it was written by a newer gputop (schema 2)",
            "cccc: larger than 4 MiB",
            "dddd: not a regular file",
            "eeee: not a regular file",
            "ffff: not a regular file",
        ]
    );
    assert_eq!(told.len(), 7);
    // Writing goes on beside them.
    put(&store, record(421, 9));
    assert_eq!(store.list().expect("a list").entries.len(), 2);
}

#[test]
fn a_newer_state_is_left_alone_and_a_damaged_one_is_begun_anew() {
    let (_home, store) = store();
    let uid = put(&store, record(418, 0)).uid;
    let state = store.folder().join(super::super::state::NAME);
    let newer = br#"{"schema": 9, "read": 3}"#;
    fs::write(&state, newer).expect("write");
    let error = store.claim_notice(&uid).expect_err("not ours to write");
    assert!(
        matches!(error, StoreError::Newer { schema: 9, .. }),
        "{error}"
    );
    put(&store, record(421, 9));
    assert_eq!(fs::read(&state).expect("there"), newer);
    fs::write(&state, b"\xff\xfe{{{").expect("write");
    assert!(store.claim_notice(&uid).expect("begun anew"));
    assert!(!store.claim_notice(&uid).expect("and kept"));
}

#[test]
fn a_store_that_is_a_link_a_file_or_read_only_is_an_error() {
    let (home, store) = store();
    let above = home.path().join("gputop");
    fs::create_dir(&above).expect("directory");
    let sentence = || store.write(record(1, 0)).expect_err("refused").to_string();
    symlink(home.path(), store.folder()).expect("link");
    assert!(
        sentence().starts_with("the incidents in "),
        "{}",
        sentence()
    );
    assert!(store.list().is_err());
    fs::remove_file(store.folder()).expect("remove");
    fs::write(store.folder(), b"").expect("a file");
    assert!(sentence().contains("cannot be used"), "{}", sentence());
    fs::remove_file(store.folder()).expect("remove");
    // A lock that is a link is not followed either.
    put(&store, record(1, 0));
    fs::remove_file(store.folder().join(LOCK)).expect("remove");
    symlink(home.path().join("elsewhere"), store.folder().join(LOCK)).expect("link");
    assert!(sentence().contains("cannot be used"), "{}", sentence());
    assert!(!home.path().join("elsewhere").exists());
}

#[test]
fn a_lock_that_nobody_gives_back_is_not_waited_for_long() {
    let (_home, store) = store();
    put(&store, record(418, 0));
    let held = store.lock().expect("a lock");
    let begun = Instant::now();
    let error = store.write(record(421, 9)).expect_err("busy");
    assert!(matches!(error, StoreError::Busy { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    // Reading needs no lock.
    assert_eq!(store.list().expect("a list").entries.len(), 1);
    drop(held);
    put(&store, record(421, 9));
}

#[test]
fn what_turns_out_to_be_something_else_is_unread_and_keeps_its_name() {
    let (_home, store) = store();
    let mut first = record(418, 0);
    first.incident.headline = "OUT OF MEMORY".into();
    let uid = put(&store, first.clone()).uid;
    store.mark_read(std::slice::from_ref(&uid)).expect("a note");
    let is_read = || store.entry(&uid).expect("an entry").is_read;
    // More of the same is not worth another look.
    first.excerpt = Some(Excerpt::default());
    first.incident.title = "2.10 GiB did not fit.".into();
    assert_eq!(put(&store, first.clone()).uid, uid);
    assert!(is_read());
    let mut better = first;
    better.incident.fields.reserved_bytes = Some(1);
    better.incident.headline = "FRAGMENTED MEMORY".into();
    let stored = put(&store, better);
    assert_eq!(
        (stored.uid, &*stored.incident.headline),
        (uid.clone(), "FRAGMENTED MEMORY")
    );
    assert!(!is_read());
}

/// As another host's agent tells it.
fn told(store: &Store, uid: &Uid) -> RemoteIncident {
    let entry = store.entry(uid).expect("an entry");
    RemoteIncident {
        uid: uid.to_string(),
        is_read: entry.is_read,
        record: serde_json::to_value(entry.record).expect("JSON"),
    }
}

#[test]
fn what_another_store_holds_is_taken_over_once_also_where_it_is_about_nobody() {
    let ((_far, far), (_near, near)) = (store(), store());
    let mut nobody = record(1, 0);
    nobody.observed.process = None;
    let uids = [record(418, 0), nobody.clone(), nobody].map(|record| put(&far, record).uid);
    far.mark_read(&uids[..1]).expect("a note");
    assert_eq!(far.shelf(Duration::from_hours(1)).expect("a list").len(), 3);
    for what in [Written::New, Written::Known, Written::Known] {
        for uid in &uids {
            let adopted = near.adopt(told(&far, uid)).expect("it is kept");
            assert_eq!((adopted.uid, adopted.what), (uid.clone(), what));
        }
    }
    let entries = near.list().expect("a list").entries;
    let read: Vec<bool> = uids
        .iter()
        .map(|uid| entries.iter().any(|one| one.uid == *uid && one.is_read))
        .collect();
    assert_eq!((entries.len(), read), (3, vec![true, false, false]));
    // Seen here before it was told from there, it is that one.
    let (_other, other) = store();
    put(&other, record(418, 3));
    other.adopt(told(&far, &uids[0])).expect("it is kept");
    assert_eq!(other.list().expect("a list").entries.len(), 1);
}

#[test]
fn what_is_no_incident_is_not_taken_over() {
    let (_home, near) = store();
    for (uid, record) in [
        ("../../.ssh/rc", serde_json::json!({"schema": 1})),
        ("01kq3v7-x2c9", serde_json::json!([1])),
        ("01kq3v7-x2c9", serde_json::json!({"schema": 99})),
    ] {
        let kept = RemoteIncident {
            uid: uid.into(),
            is_read: false,
            record,
        };
        let why = near.adopt(kept).expect_err("it is refused").to_string();
        assert!(why.starts_with(&format!("the incident {uid} of another host is left out: ")));
    }
    assert!(near.list().expect("a list").entries.is_empty());
}
