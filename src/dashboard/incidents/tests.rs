use gputop_model::units::{Mono, Pid, StartTicks};

use super::*;
use gputop_model::incident::Severity;

fn key(first: u64) -> IncidentKey {
    IncidentKey {
        boot_id: "boot".into(),
        process: Some(ProcessKey { pid: Pid(418), start: StartTicks(7) }),
        first: Mono(first),
        ..IncidentKey::default()
    }
}

fn known(uid: &str, time: &str, severity: Severity) -> ListedIncident {
    ListedIncident {
        incident: Arc::new(Incident {
            uid: Some(uid.into()),
            time: Some(format!("2026-11-20T{time}Z")),
            severity,
            ..Incident::default()
        }),
        is_read: false,
        key: key(0),
        processes: Vec::new(),
        gpus: Vec::new(),
        scene: None,
    }
}

fn unread(incidents: &Incidents) -> impl Iterator<Item = &ListedIncident> {
    incidents.newest_first().filter(|known| !known.is_read)
}

fn news(incidents: &Incidents) -> Option<&str> {
    super::news(unread(incidents))?.uid.as_deref()
}

fn revision(severity: Severity) -> Record {
    let incident =
        Incident { severity, time: Some("2026-11-20T12:03:00Z".into()), ..Incident::default() };
    Record::new(incident, key(0))
}

fn stored_as(uid: &str, severity: Severity) -> Record {
    let mut revision = revision(severity);
    revision.incident.uid = Some(uid.into());
    revision
}

#[test]
fn a_revised_incident_becomes_unread_only_if_it_is_more_severe() {
    let mut incidents = Incidents::default();
    incidents.take_live(revision(Severity::Caught));
    let opened = super::news(unread(&incidents)).cloned().expect("news");
    incidents.open(&opened);
    incidents.take_live(stored_as("a", Severity::Caught));
    assert_eq!(unread(&incidents).count(), 0);
    // The store sends the incident before the process exits.
    incidents.take_stored(vec![known("a", "12:03:00", Severity::Caught)]);
    incidents.take_live(stored_as("a", Severity::Fatal));
    assert_eq!(unread(&incidents).count(), 1);
    assert_eq!(news(&incidents), Some("a"));
}

#[test]
fn shows_the_most_severe_incident_first_and_the_newest_of_equals() {
    let mut incidents = Incidents::default();
    incidents.take_stored(vec![
        known("b", "12:04:00", Severity::Caught),
        known("a", "12:03:00", Severity::Fatal),
        known("c", "12:05:00", Severity::Note),
        known("d", "12:06:00", Severity::Caught),
    ]);
    let mut order = Vec::new();
    while let Some(incident) = super::news(unread(&incidents)).cloned() {
        incidents.open(&incident);
        order.extend(incident.uid.clone());
    }
    assert_eq!(order, ["a", "d", "b", "c"]);
    assert_eq!(incidents.take_opened(), order);
    assert_eq!(incidents.take_opened(), [""; 0]);
}

#[test]
fn an_opened_incident_stays_read_until_it_is_more_severe() {
    let mut incidents = Incidents::default();
    incidents.take_stored(vec![known("a", "12:03:00", Severity::Caught)]);
    let opened = super::news(unread(&incidents)).cloned().expect("news");
    incidents.open(&opened);
    incidents.take_stored(vec![known("a", "12:03:00", Severity::Caught)]);
    assert_eq!(news(&incidents), None);
    incidents.take_stored(vec![known("a", "12:03:00", Severity::Fatal)]);
    assert_eq!(news(&incidents), Some("a"));
}

#[test]
fn drops_read_and_old_incidents_that_are_not_stored() {
    let mut incidents = Incidents::default();
    for at in 0..200 {
        let mut revision = revision(Severity::Caught);
        revision.key.first = Mono(60_000 * at);
        revision.incident.time = Some(at.to_string());
        incidents.take_live(revision);
        if at == 150 {
            let opened = super::news(unread(&incidents)).cloned().expect("news");
            incidents.open(&opened);
        }
    }
    assert_eq!(incidents.newest_first().count(), MAX_UNSTORED);
    assert_eq!(unread(&incidents).count(), MAX_UNSTORED, "read incidents are dropped first");
    let first = |known: &ListedIncident| known.key.first.0 / 60_000;
    let remaining: Vec<_> = incidents.newest_first().map(first).collect();
    assert_eq!((remaining[0], remaining[MAX_UNSTORED - 1]), (199, 135));
}

#[test]
fn retains_incidents_that_the_store_does_not_list() {
    let mut incidents = Incidents::default();
    incidents.take_live(revision(Severity::Caught));
    let mut stored = known("a", "12:03:00", Severity::Fatal);
    stored.key.first = Mono(60_000);
    incidents.take_stored(vec![stored]);
    assert_eq!(unread(&incidents).count(), 2);
    incidents.take_stored(Vec::new());
    assert_eq!(unread(&incidents).count(), 1, "the stored incident was deleted");
}

#[test]
fn recognizes_an_incident_that_was_stored_later() {
    let mut incidents = Incidents::default();
    incidents.take_live(revision(Severity::Fatal));
    let stored = known("a", "12:03:00", Severity::Fatal);
    let mut later = known("b", "12:04:00", Severity::Fatal);
    later.key.first = Mono(60_000);
    incidents.take_stored(vec![stored, later]);
    assert_eq!(unread(&incidents).count(), 2);
    incidents.take_live(stored_as("a", Severity::Fatal));
    assert_eq!(unread(&incidents).count(), 2);
}
