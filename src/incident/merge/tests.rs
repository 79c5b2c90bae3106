use gputop_model::history::Span;
use gputop_model::incident::{Fields, Fix};
use gputop_model::incident_record::{MAX_EVENTS, MAX_EXCERPT};
use gputop_model::trace_replay::SettingResult;
use gputop_model::{DetectedBy, IncidentKey, Mono, Observation, ProcessKey, Severity, UnixMillis};

use super::*;

fn key(pid: u32, first: u64) -> IncidentKey {
    IncidentKey {
        boot_id: "boot".into(),
        process: Some(ProcessKey::new(pid, 99)),
        run: None,
        gpu: None,
        first: Mono(first),
        time: UnixMillis(1_795_177_607_000 + i64::try_from(first).expect("small")),
    }
}

fn record(by: DetectedBy, severity: Severity, confidence: f64, first: u64) -> Record {
    let incident = Incident {
        id: format!("{by:?}").to_lowercase(),
        severity,
        detected_by: by,
        confidence,
        count: 1,
        ..Incident::default()
    };
    Record::new(incident, key(418, first))
}

fn exit(first: u64) -> Record {
    let mut record = record(DetectedBy::Exit, Severity::Fatal, 0.4, first);
    record.incident.fields.exit_code = Some(1);
    record
}

fn from_log(first: u64) -> Record {
    let mut record = record(DetectedBy::Log, Severity::Caught, 0.9, first);
    record.incident.fields.requested_bytes = Some(2 << 30);
    record.excerpt = Some(Excerpt { text: "CUDA out of memory".into(), is_cut: false });
    record
}

#[test]
fn merges_reports_of_one_process_within_seconds() {
    let (a, near, far) = (from_log(0), from_log(5_000), from_log(5_001));
    assert!(is_same(&a, &near));
    assert!(!is_same(&a, &far), "two caught failures of one process");
    let mut other = from_log(0);
    other.key.process = Some(ProcessKey::new(418, 100));
    assert!(!is_same(&a, &other), "the PID was reused");
    let mut boot = from_log(0);
    boot.key.boot_id = "another".into();
    assert!(!is_same(&a, &boot));
}

#[test]
fn merges_reports_of_an_exit_regardless_of_the_delay() {
    let mut log = from_log(0);
    log.incident.severity = Severity::Fatal;
    assert!(is_same(&log, &exit(60_000)));
    assert!(!is_same(&from_log(0), &exit(60_000)));
}

#[test]
fn merges_incidents_without_a_subject_only_if_they_began_at_the_same_time() {
    let mut a = from_log(0);
    a.key.process = None;
    assert!(is_same(&a, &a.clone()));
    let mut later = a.clone();
    later.key.first = Mono(1);
    assert!(!is_same(&a, &later));
    a.key.gpu = Some(gputop_model::units::GpuUuid("GPU-1".into()));
    assert!(is_same(&a, &a.clone()));
    let mut boot = a.clone();
    boot.key.boot_id = String::new();
    assert!(!is_same(&boot, &boot.clone()));
}

#[test]
fn the_log_explains_and_the_exit_makes_it_fatal() {
    for one in [merge(from_log(900), exit(1_000)), merge(exit(1_000), from_log(900))] {
        assert_eq!(one.incident.id, "log");
        assert_eq!(one.incident.severity, Severity::Fatal);
        assert_eq!(one.incident.fields.requested_bytes, Some(2 << 30));
        assert_eq!(one.incident.fields.exit_code, Some(1));
        assert_eq!(one.key.first, Mono(900));
        assert_eq!(one.excerpt.map(|e| e.text).as_deref(), Some("CUDA out of memory"));
    }
}

#[test]
fn prefers_the_later_conclusion_of_one_observer() {
    let seen = |id: &str, confidence, agent: &str, events| {
        let mut record = record(DetectedBy::Allocator, Severity::Caught, confidence, 0);
        record.incident.id = id.into();
        let event = |seq| Event { agent: agent.into(), seq, ..Event::default() };
        record.evidence.events = (0..events).map(event).collect();
        record.concluded_by = Some(agent.into());
        record
    };
    let first = || seen("oom-capacity", 0.8, "a", 1);
    let later = seen("oom-other-process", 0.7, "a", 2);
    assert_eq!(merge(first(), later).incident.id, "oom-other-process");
    let of_another = seen("oom-other-process", 0.7, "b", 2);
    assert_eq!(merge(first(), of_another).incident.id, "oom-capacity");
}

/// Returns the incident record of an observer that has read all of an error message, or only its beginning.
fn read(id: &str, agent: Option<&str>, events: u64, fields: Fields) -> Record {
    let mut record = record(DetectedBy::Log, Severity::Fatal, 0.9, 0);
    record.incident.id = id.into();
    record.incident.fields = fields;
    record.concluded_by = agent.map(str::to_owned);
    let event = |seq| Event { agent: agent.unwrap_or_default().into(), seq, ..Event::default() };
    record.evidence.events = (0..events).map(event).collect();
    record
}

#[test]
fn prefers_the_reader_of_the_whole_message_in_any_order() {
    let part = Fields { requested_bytes: Some(2 << 30), ..Fields::default() };
    let whole = Fields { reserved_unallocated_bytes: Some(8 << 30), ..part.clone() };
    let partial = || read("oom-capacity", Some("a"), 1, part.clone());
    let again = || read("oom-capacity", Some("a"), 2, part.clone());
    let complete = || read("oom-fragmentation", None, 0, whole.clone());
    let orders = [
        vec![partial(), complete(), again()],
        vec![complete(), partial(), again()],
        vec![partial(), again(), complete(), complete()],
        vec![complete(), partial(), complete(), again(), again()],
    ];
    for order in orders {
        let merged = order.into_iter().reduce(merge);
        let merged = merged.expect("some");
        assert_eq!(merged.incident.id, "oom-fragmentation");
        assert_eq!(merged.concluded_by, None);
        assert_eq!(merged.evidence.events.len(), 2);
    }
    // An observer's new conclusion replaces its old one only if the observer has read more of the error message.
    let rest = || read("oom-fragmentation", Some("a"), 2, whole.clone());
    assert_eq!(merge(partial(), rest()).incident.id, "oom-fragmentation");
    assert_eq!(merge(rest(), partial()).incident.id, "oom-fragmentation");
}

#[test]
fn a_process_that_exits_slowly_failed_once() {
    let caught_with = |severity| {
        let mut caught_with = read("oom-capacity", Some("a"), 1, Fields::default());
        (caught_with.incident.severity, caught_with.incident.family) = (severity, "oom".into());
        caught_with
    };
    let exited = |first, family: &str| {
        let mut exited = record(DetectedBy::Log, Severity::Fatal, 0.9, first);
        exited.incident.family = family.into();
        exited
    };
    // The agent connection was lost before the process exit was observed.
    let caught = caught_with(Severity::Caught);
    assert!(is_same(&caught, &exited(20_000, "oom")) && is_same(&exited(20_000, "oom"), &caught));
    assert!(!is_same(&caught, &exited(31_000, "oom")));
    assert!(!is_same(&caught, &exited(20_000, "host-oom")));
    let mut other = exited(20_000, "oom");
    other.evidence.events.push(Event::default());
    assert!(!is_same(&caught, &other), "the exit record has timed events");
}

#[test]
fn a_repetition_changes_nothing() {
    let mut one = from_log(0);
    one.incident.time = Some("2026-11-20T12:03:58Z".into());
    one.evidence.events.push(Event::default());
    one.versions.insert("gputop".into(), "0.1.0".into());
    one.more.insert("later".into(), 7.into());
    assert_eq!(merge(one.clone(), one.clone()), one);
}

#[test]
fn keeps_replayed_fixes() {
    let fix = |tried: Option<SettingResult>| Fix {
        change: "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py".into(),
        replayed: tried,
        ..Fix::default()
    };
    let mut plain = from_log(0);
    plain.incident.fixes = vec![fix(None)];
    let mut replayed = from_log(10);
    replayed.incident.fixes = vec![fix(Some(SettingResult::default()))];
    replayed.incident.needs = vec!["of the last 9 operations".into()];
    for one in [merge(plain.clone(), replayed.clone()), merge(replayed, plain)] {
        assert!(one.incident.fixes[0].replayed.is_some());
        assert_eq!(one.incident.needs, ["of the last 9 operations"]);
    }
}

#[test]
fn merging_loses_no_data() {
    let event = |agent: &str, seq, time| Event {
        agent: agent.into(),
        seq,
        time: UnixMillis(time),
        observation: Observation::default(),
        ..Event::default()
    };
    let track = |values: Vec<Option<Span>>| Track {
        series: "gpu/GPU-1/used".into(),
        start: Mono(0),
        step: Millis(1_000),
        values,
    };
    let mut a = from_log(0);
    a.evidence.events = vec![event("x", 2, 20)];
    a.evidence.measured.insert("retries".into(), 1.into());
    a.history = vec![track(vec![None, Some(Span(1.0, 2.0))])];
    a.environment = vec![Variable { name: "CUDA_VISIBLE_DEVICES".into(), value: Some("3".into()) }];
    let mut b = from_log(10);
    b.evidence.events = vec![event("y", 1, 10), event("x", 2, 20)];
    b.evidence.measured.insert("retries".into(), 2.into());
    b.history = vec![track(vec![Some(Span(0.0, 1.0)), Some(Span(1.0, 2.0))])];
    b.excerpt =
        Some(Excerpt { text: "more of the log, and CUDA out of memory".into(), is_cut: false });
    b.incident.time = Some("2026-11-20T13:03:00+01:00".into());
    a.incident.time = Some("2026-11-20T12:03:58Z".into());
    let one = merge(a, b);
    let seqs: Vec<u64> = one.evidence.events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, [1, 2]);
    assert_eq!(one.evidence.measured["retries"], 2, "the later measurement");
    assert_eq!(one.history[0].known(), 2);
    assert_eq!(one.environment.len(), 1);
    assert!(one.excerpt.is_some_and(|e| e.text.starts_with("more")));
    assert_eq!(one.incident.time.as_deref(), Some("2026-11-20T13:03:00+01:00"));
}

#[test]
fn limits_sections_and_keeps_the_end_of_the_log() {
    let mut one = from_log(0);
    let line = "x".repeat(99) + "\n";
    one.excerpt =
        Some(Excerpt { text: "é".to_owned() + &line.repeat(4_000) + "the end", is_cut: false });
    one.evidence.events = (0..500).map(|seq| Event { seq, ..Event::default() }).collect();
    let one = one.bounded();
    let excerpt = one.excerpt.as_ref().expect("an excerpt");
    assert!(excerpt.text.len() <= MAX_EXCERPT && excerpt.is_cut);
    assert!(excerpt.text.starts_with('x') && excerpt.text.ends_with("the end"));
    assert_eq!(one.evidence.events.len(), MAX_EVENTS);
    assert_eq!(one.evidence.events[0].seq, 500 - MAX_EVENTS as u64);
    assert_eq!(one.clone().bounded(), one);
}

#[test]
fn preserves_fields_of_a_later_version() {
    let mut one = from_log(0);
    one.incident.fields.more.insert("nvlink".into(), 3.into());
    let mut value = serde_json::to_value(&one).expect("plain data");
    assert_eq!(value["schema"], 1);
    assert_eq!(value["id"], "log", "the same fields as explain --json");
    value["later"] = serde_json::json!({"any": [1, 2]});
    let read: Record = serde_json::from_value(value.clone()).expect("it reads");
    assert_eq!(read.more["later"]["any"][1], 2);
    assert_eq!(serde_json::to_value(&read).expect("plain data"), value);
    assert_eq!(Record { more: Map::new(), ..read }, one);
}

#[test]
fn merges_two_scenes_and_limits_the_map() {
    use gputop_model::pool::PoolMap;
    use gputop_model::scene::{MAX_PARTS, Scene, SceneMap};
    use gputop_model::stack::PythonStack;
    let stack = |at: u64| PythonStack {
        process: key(418, 0).process.expect("one"),
        at: Mono(at),
        ..PythonStack::default()
    };
    let map =
        |blocks: u64| SceneMap { blocks, whole: Some(PoolMap::default()), ..SceneMap::default() };
    let with = |scene: Scene| Record { scene: Some(Arc::new(scene)), ..from_log(0) };
    let first = with(Scene { at: Mono(7), stacks: vec![stack(40)], ..Scene::default() });
    let second = with(Scene {
        at: Mono(9),
        stacks: vec![stack(60)],
        map: Some(map(MAX_PARTS + 1)),
        ..Scene::default()
    });
    let both = merge(first, second.clone()).bounded();
    let scene = both.scene.as_deref().expect("a scene");
    assert_eq!((scene.at, &scene.stacks[..]), (Mono(7), &[stack(40)][..]));
    let map = scene.map.as_ref().expect("its figures");
    assert!(map.whole.is_none(), "too many blocks");
    // Merging a record that has no scene keeps the existing scene, and the merged record can be parsed again.
    let again = merge(from_log(0), both.clone());
    assert_eq!(again.scene, both.scene);
    let text = serde_json::to_string(&again).expect("plain data");
    let read: Record = serde_json::from_str(&text).expect("a record");
    assert_eq!(read.scene, both.scene);
}
