//! The protocol's promise: from a line of a future version, only the unknown parts are lost.

use std::sync::Arc;

use gputop_model::event::{Event, Exit, Observation};
use gputop_model::frame::Frame;
use gputop_model::gpu::{Gpu, GpuProcess, HealthState, Memory, Throttle};
use gputop_model::incident::{DetectedBy, Incident, Label, Severity, Verdict};
use gputop_model::process::{ProcessKey, RunState};
use gputop_model::protocol::{Line, Update};
use gputop_model::reading::{Missing, Reading, Reason};
use gputop_model::units::{Bytes, GpuUuid, MilliWatts, Percent, Pid, StartTicks};
use serde_json::json;

#[test]
fn a_reading_is_the_bare_value_or_its_reason() {
    let memory = Memory {
        total: Bytes::gib(80).into(),
        used: Reading::missing(Reason::Denied, "another user's MIG device"),
        ..Memory::default()
    };
    let text = serde_json::to_value(&memory).unwrap();
    assert_eq!(
        text,
        json!({"total_bytes": 85_899_345_920_u64, "used_bytes": {"missing": "denied", "hint": "another user's MIG device"}})
    );
    assert_eq!(serde_json::from_value::<Memory>(text).unwrap(), memory);
    let earlier = json!({"total": 85_899_345_920_u64});
    assert_eq!(serde_json::from_value::<Memory>(earlier).unwrap().total, memory.total);
}

#[test]
fn an_unknown_reason_and_a_value_of_another_kind_cost_one_number() {
    let line = json!({"frame": {"seq": 7, "gpus": [{
        "index": 3,
        "power": {"missing": "shy", "hint": "ask again", "until": 12},
        "sm": {"missing": "unsupported"},
        "temperature": {"p50": 51, "p99": 70},
        "fan": "quick",
        "pstate": -1,
        "throttle": ["sw_power_cap", "moon_phase"],
        "memory": {"total": 1024, "used": [1, 2], "free": {"missing": "denied", "hint": {"cmd": "sudo"}}},
    }]}});
    let Line::Update(Update::Frame(frame)) = serde_json::from_value(line).unwrap() else {
        panic!("no frame");
    };
    let gpu = &frame.gpus[0];
    assert_eq!(gpu.power, Reading::missing(Reason::Unknown, "ask again"));
    assert_eq!(gpu.sm, Reading::Missing(Reason::Unsupported.into()));
    assert_eq!(gpu.temperature.why().unwrap().reason, Reason::Unknown);
    assert_eq!(gpu.fan.why().unwrap().reason, Reason::Unknown);
    assert_eq!(gpu.pstate.why().unwrap().reason, Reason::Unknown);
    assert_eq!(gpu.throttle, vec![Throttle::SwPowerCap, Throttle::Unknown].into());
    assert_eq!(gpu.memory.total, Bytes(1024).into());
    assert_eq!(gpu.memory.used.why().unwrap().reason, Reason::Unknown);
    assert_eq!(gpu.memory.free, Reading::Missing(Reason::Denied.into()));
    assert_eq!((frame.seq, gpu.index), (7, 3));
}

#[test]
fn unknown_fields_and_variants_of_a_frame_are_passed_over() {
    let frame: Frame = serde_json::from_value(json!({
        "seq": 1, "weather": {"rain": true},
        "gpus": [{"index": 0, "uuid": "GPU-1", "health": {"state": "sulking", "mood": 3}, "colour": "green",
                  "processes": [{"pid": 9, "vram": 5, "kind": "quantum", "karma": []}]}],
        "processes": {"at": 4, "list": [{"key": {"pid": 9, "start": 1}, "state": "levitating"}]},
    }))
    .unwrap();
    assert_eq!(frame.gpus[0].health.state, HealthState::Unknown);
    assert_eq!(frame.gpus[0].processes.value().unwrap()[0].vram, Bytes(5).into());
    let key = ProcessKey::new(9, 1);
    assert_eq!(frame.process(key).unwrap().state, RunState::Unknown);
    let recycled = ProcessKey { start: StartTicks(2), ..key };
    assert_eq!(frame.process(recycled), None);
}

#[test]
fn lines_of_an_unknown_kind_or_of_another_host_are_no_error() {
    for line in [
        json!({"telegram": {"stop": 1}}),
        json!({"reply": {"telegram": {"stop": 1}}}),
        json!({"from": 3, "frame": {"seq": 1}}),
        json!({"frame": {"seq": 1}, "from": 3}),
    ] {
        let line: Line = serde_json::from_value(line).unwrap();
        assert!(matches!(line, Line::Unknown), "{line:?}");
    }
}

#[test]
fn an_observation_of_a_later_version_survives_whole() {
    let text = json!({
        "boot_id": "b", "agent": "a", "seq": 4, "time": 1, "mono": 2, "process": {"pid": 5, "start": 6},
        "observation": {"kind": "cosmic_ray", "bits": [1, 2, 3], "where": {"row": 4}},
    });
    let event: Event = serde_json::from_value(text.clone()).unwrap();
    assert!(matches!(event.observation, Observation::Unknown(_)));
    assert_eq!(event.seq, 4);
    assert_eq!(serde_json::to_value(&event).unwrap(), text);
}

#[test]
fn an_event_reads_back_as_it_was_written() {
    let event = Event {
        boot_id: "b".into(),
        seq: 9,
        process: Some(ProcessKey::new(418, 77)),
        gpu: Some(GpuUuid("GPU-1".into())),
        observation: Observation::Exit(Box::new(Exit {
            status: 137.into(),
            signal: 9.into(),
            peak_vram: Reading::missing(Reason::Denied, "listed by another user's driver context"),
            ..Exit::default()
        })),
        ..Event::default()
    };
    let text = serde_json::to_value(&event).unwrap();
    assert_eq!(text["observation"]["kind"], "exit");
    assert_eq!(serde_json::from_value::<Event>(text).unwrap(), event);
}

#[test]
fn incident_omits_unknown_values_and_reads_later_versions() {
    let mut incident = Incident {
        id: "oom-capacity".into(),
        severity: Severity::Fatal,
        count: 1,
        ..Incident::default()
    };
    incident.fields.requested_bytes = Some(5_242_880_000);
    let text = serde_json::to_value(&incident).unwrap();
    assert_eq!(text["fields"], json!({"requested_bytes": 5_242_880_000_u64}));
    assert!(text.get("uid").is_none());
    assert_eq!(serde_json::from_value::<Incident>(text).unwrap(), incident);

    let later: Incident = serde_json::from_value(json!({
        "id": "x", "severity": "apocalyptic", "detected_by": "telepathy", "karma": 1,
        "causes": [{"id": "c", "verdict": "certain", "for": ["it said so"]}],
        "fixes": [{"change": "pray", "kind": "ritual"}],
    }))
    .unwrap();
    assert_eq!(later.severity, Severity::Unknown);
    assert_eq!(later.detected_by, DetectedBy::Unknown);
    assert_eq!(later.causes[0].verdict, Verdict::Unknown);
    assert_eq!(later.causes[0].r#for, ["it said so"]);
}

#[test]
fn a_frame_reads_back_as_it_was_written() {
    let frame = Frame {
        seq: 3,
        gpus: vec![Gpu {
            index: 1,
            power: MilliWatts(131_000).into(),
            sm: Percent(99.5).into(),
            fan: Reading::Missing(Missing::from(Reason::Unsupported)),
            processes: vec![GpuProcess {
                pid: Pid(4),
                vram: Bytes(7).into(),
                ..GpuProcess::default()
            }]
            .into(),
            ..Gpu::default()
        }],
        ..Frame::default()
    };
    let frame = Arc::new(frame);
    let text = serde_json::to_vec(&Update::Frame(Arc::clone(&frame))).unwrap();
    let Line::Update(Update::Frame(back)) = Line::read(&text).unwrap() else {
        panic!("no frame");
    };
    assert_eq!(back, frame);
}

#[test]
fn old_names_of_json_fields_are_still_read() {
    let frame: Frame =
        serde_json::from_value(json!({"pools": {"told": [{"framework": "jax"}]}})).unwrap();
    let pools = serde_json::to_value(frame.pools.unwrap()).unwrap();
    assert_eq!(pools["reported_pools"][0]["framework"], "jax");
    let label: Label = serde_json::from_value(json!({"end": 4, "says": "wanted"})).unwrap();
    assert_eq!(
        serde_json::to_value(label).unwrap(),
        json!({"start": 0, "end": 4, "text": "wanted"})
    );
}
