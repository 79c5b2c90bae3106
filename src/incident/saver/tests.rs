use std::fs::File;

use gputop_model::Incident;
use gputop_model::holders::summary::GroupSummary;
use gputop_model::incident_key::IncidentKey;
use gputop_model::process::ProcessKey;
use gputop_model::scene::Scene;

use super::*;
use crate::incident::notifications::Notifications;
use crate::incident::results::result_channel;
use crate::incident::store::Store;

#[test]
fn tensor_names_are_stored_only_with_record_names_but_always_shown() {
    let home = tempfile::tempdir().expect("a directory");
    let group = GroupSummary { name: "model.secret.weight".into(), ..GroupSummary::default() };
    let holders = HolderSummary { groups: vec![group], ..HolderSummary::default() };
    for record_names in [false, true] {
        let store = Store::at(&home.path().join(record_names.to_string()));
        let sink = IncidentSink {
            store: store.clone(),
            on_incident: None,
            on_idle: None,
            on_exit: false,
            record_names,
            notifications: Notifications::default(),
        };
        let (report, _results) = result_channel();
        let mut saver = IncidentSaver::new(Some(sink), report);
        let scene = Scene { holders: Some(holders.clone()), ..Scene::default() };
        let mut record = Record::new(Default::default(), IncidentKey::default());
        record.scene = Some(Arc::new(scene));
        saver.save(&mut record);
        let files = std::fs::read_dir(store.folder()).expect("a folder");
        let files = files.filter_map(|file| std::fs::read_to_string(file.ok()?.path()).ok());
        let stored: String = files.collect();
        assert!(!stored.is_empty());
        assert_eq!(stored.contains("secret"), record_names, "{stored}");
        let shown = record.scene.and_then(|scene| scene.holders.clone());
        assert_eq!(shown.as_ref(), Some(&holders));
    }
}

#[test]
fn an_incident_whose_command_does_not_finish_is_named_at_exit() {
    let home = tempfile::tempdir().expect("a directory");
    let notifications = Notifications::default();
    let sink = IncidentSink {
        store: Store::at(&home.path().join("incidents")),
        on_incident: Some("sleep 60".into()),
        on_idle: None,
        on_exit: false,
        record_names: false,
        notifications: notifications.clone(),
    };
    let (report, _results) = result_channel();
    let mut saver = IncidentSaver::new(Some(sink), report);
    let incident = Incident {
        severity: Severity::Fatal,
        title: "2 GiB did not fit".into(),
        ..Incident::default()
    };
    let mut record = Record::new(incident, IncidentKey::default());
    saver.save(&mut record);
    let lost = notifications.finish(std::time::Duration::ZERO);
    let expected = format!("{}: 2 GiB did not fit", record.incident.uid.expect("an ID"));
    assert!(lost.len() == 1 && lost[0].starts_with(&expected), "{lost:?}");
}

#[test]
fn retries_incidents_that_a_busy_store_did_not_accept() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::at(&home.path().join("incidents"));
    let (report, mut results) = result_channel();
    let sink = IncidentSink {
        store: store.clone(),
        on_incident: None,
        on_idle: None,
        on_exit: false,
        record_names: false,
        notifications: Notifications::default(),
    };
    let mut saver = IncidentSaver::new(Some(sink), report);
    let remote = |start: u64| {
        let observed = IncidentKey {
            boot_id: "boot".into(),
            process: Some(ProcessKey::new(418, start)),
            ..IncidentKey::default()
        };
        Arc::new(RemoteIncident {
            uid: "01kq3v7-x2c9".into(),
            is_read: false,
            record: serde_json::to_value(Record::new(Default::default(), observed)).expect("JSON"),
        })
    };
    let count = || store.list().expect("a list").entries.len();
    saver.adopt(&remote(1));
    assert_eq!(count(), 1);
    let lock = File::open(store.folder().join("lock")).expect("a lock");
    lock.lock().expect("it is held");
    saver.adopt(&remote(2));
    assert_eq!(count(), 1);
    assert!(matches!(results.try_next(), Ok(WatchResult::Error(_))));
    drop(lock);
    // Saving is not retried before the retry interval has passed.
    saver.retry(Mono(1_000));
    assert_eq!(count(), 1);
    saver.retry(Mono(1_000 + RETRY_INTERVAL.0));
    assert_eq!((count(), saver.unsaved.len()), (2, 0));
}
