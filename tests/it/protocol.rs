//! Every protocol version stays readable: the exact bytes that its agent sent, and the requests to it.
//! `tests/data/protocol/N/*.said` holds an agent's output, and `*.asked` the requests that the local side may send.
//!
//! A new version, or a new kind of line, adds files and changes none. `cargo test --test it -- --ignored
//! protocol::records` writes the files of this version to the target directory.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use gputop::source::remote::greeting::{PROTOCOL, greeting};
use gputop::source::remote::limits::WINDOW_LOG;
use gputop_model::event::{Event, GpuAtOom, Observation};
use gputop_model::frame::Frame;
use gputop_model::gpu::{GpuProcess, Memory};
use gputop_model::pool::Pools;
use gputop_model::probe::ProbeRequest;
use gputop_model::process::ProcessKey;
use gputop_model::protocol::{Line, Request, RequestLine, Update};
use gputop_model::reading::{Missing, Reading, Reason};
use gputop_model::remote_incident::{IncidentFile, RemoteIncident};
use gputop_model::reported_pool::{Framework, ReportedPool};
use gputop_model::signal::Signal;
use gputop_model::trace_replay::{ReplayOutcome, SettingResult, TraceReplay};
use gputop_model::units::{Bytes, GpuUuid, Millis, Mono};
use serde_json::Value;

use crate::run_explained::OOM;
use crate::support::fake_machine::{Guarded, RealProcess, command, is_host, on_gpu};
use crate::support::fake_nvml::FakeNvml;
use crate::support::torch_target::Target;
use crate::torch_live::dump_path;
use crate::wire;

/// Returns the folders of all versions, with their numbers.
fn versions() -> Vec<(u32, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/protocol");
    let folders = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut versions: Vec<_> = folders
        .map(|folder| {
            let number = folder.file_name().into_string().unwrap().parse().unwrap();
            (number, folder.path())
        })
        .collect();
    versions.sort();
    versions
}

/// Returns the recorded agent output of a version, with file names.
fn agent_outputs(folder: &Path) -> Vec<(String, PathBuf)> {
    files(folder, "said")
}

fn files(folder: &Path, kind: &str) -> Vec<(String, PathBuf)> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|file| file.extension().is_some_and(|is| is == kind))
        .map(|file| (file.file_stem().unwrap().to_str().unwrap().to_owned(), file))
        .collect();
    files.sort();
    files
}

#[test]
fn every_recorded_protocol_version_is_read() {
    let versions = versions();
    assert!(versions.iter().any(|(version, _)| *version == PROTOCOL));
    for (version, folder) in versions {
        let mut bytes = 0;
        for (name, file) in agent_outputs(&folder) {
            bytes += file.metadata().unwrap().len();
            let (updates, why) = wire::read(&file);
            let lines: Vec<String> = updates.iter().map(summary).collect();
            let text = format!("{}\nlost: {why}\n", lines.join("\n"));
            insta::assert_snapshot!(format!("protocol-{version}-{name}"), text);
        }
        assert!((1..50 << 10).contains(&bytes), "{bytes}");
    }
}

#[test]
fn every_recorded_request_is_understood() {
    for (_, folder) in versions() {
        let asked = files(&folder, "asked").into_iter();
        let asked: String = asked.map(|(_, file)| fs::read_to_string(file).unwrap()).collect();
        assert!(!asked.is_empty());
        for line in asked.lines() {
            let order: RequestLine = serde_json::from_str(line).unwrap();
            let again: Value = serde_json::to_value(&order).unwrap();
            assert_eq!(again, serde_json::from_str::<Value>(line).unwrap());
        }
    }
}

/// Returns the text by which a person recognizes an update. Another test checks that every field is read.
fn summary(update: &Update) -> String {
    match update {
        Update::Hello(hello) => format!("hello of {}, {}", hello.host, hello.boot_id),
        Update::Frame(frame) => format!("frame {}", frame_summary(frame)),
        Update::Event(event) => format!(
            "event {} of {}: {} of {:?}",
            event.seq,
            event.agent,
            kind_of(&event.observation),
            event.process
        ),
        Update::Map(map) => format!("map {}", map_summary(map)),
        Update::FailureMap(failed) => {
            format!("failure map since {:?}: {}", failed.since, map_summary(&failed.map))
        }
        Update::Detail(process, detail) => {
            let arguments = (**detail).as_ref().map(|detail| &detail.arguments);
            format!("detail of {process:?}: {arguments:?}")
        }
        Update::Probed(probe) => format!("probe of {:?}", probe.gpu),
        Update::RemoteIncident(stored) => format!("kept {} {}", stored.uid, stored.record),
        Update::Log(log) => format!("log of {:?}: {:?}", log.process, log.text),
        update => format!("{update:?}"),
    }
}

fn frame_summary(frame: &Frame) -> String {
    let used = frame.gpus.iter().map(|gpu| gpu.memory.used.value());
    let processes = frame.processes.iter().flat_map(|list| &*list.list);
    let pools = frame.pools.iter().flat_map(|pools| &*pools.list);
    let pools = pools.map(|pool| (pool.process.pid, pool.stats.reserved.last()));
    let reports = frame.pools.iter().flat_map(|pools| &*pools.reported);
    let reports = reports.map(|pool| (pool.framework.words(), pool.allocated.value().copied()));
    let reports = reports.collect::<Vec<_>>();
    let reports = match reports.is_empty() {
        true => String::new(),
        false => format!(", told {reports:?}"),
    };
    format!(
        "{} at {:?}: GPUs {:?}, processes {:?}, pools {:?}{reports}",
        frame.seq,
        frame.mono,
        used.collect::<Vec<_>>(),
        processes.map(|process| process.key.pid).collect::<Vec<_>>(),
        pools.collect::<Vec<_>>()
    )
}

fn kind_of(observation: &Observation) -> &'static str {
    match observation {
        Observation::Exit(_) => "exit",
        Observation::Candidate(_) => "candidate",
        Observation::Health(_) => "health",
        Observation::Xid(_) => "xid",
        Observation::Ooms(_) => "ooms",
        Observation::GpuAtOom(_) => "gpu at oom",
        Observation::TraceReplay(_) => "replayed",
        Observation::RemoteIncident(_) => "kept",
        Observation::Log(_) => "log",
        Observation::Hook(_) => "hook",
        Observation::Unknown(_) => "unknown",
    }
}

fn map_summary(map: &gputop_model::pool::PoolMap) -> String {
    let blocks = || map.segments.iter().flat_map(|segment| &segment.blocks);
    let sum: u64 = blocks().map(|block| block.size.0).sum();
    format!(
        "{:?} {} at {:?} exact {}: {} segments, {} blocks, {sum} bytes, the last {:?}",
        map.process,
        map.ordinal,
        map.at,
        map.exact,
        map.segments.len(),
        blocks().count(),
        blocks().next_back()
    )
}

/// What may follow an old name in the new one.
const UNITS: [&str; 7] = ["", "_bytes", "_bytes_per_second", "_c", "_mhz", "_mj", "_mw"];

/// Returns true if `new` contains everything in `old`. It may contain more.
fn contains_all(new: &Value, old: &Value) -> bool {
    match (new, old) {
        // A null field may also be missing.
        (Value::Object(new), Value::Object(old)) => old.iter().all(|(name, old)| {
            // Renamed since then, mostly to name the unit; the old name is read as an alias.
            let name = match name.as_str() {
                "told" => "reported_pools",
                "says" => "text",
                name => name,
            };
            let mut new = new.iter().filter(|(new, _)| {
                new.strip_prefix(name).is_some_and(|unit| UNITS.contains(&unit))
            });
            let new = new.next().map(|(_, new)| new);
            new.map_or(old.is_null(), |new| contains_all(new, old))
        }),
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| contains_all(new, old))
        }
        // A number may be stored with fewer digits.
        (Value::Number(new), Value::Number(old)) => {
            let (new, old) = (new.as_f64().unwrap(), old.as_f64().unwrap());
            (new - old).abs() <= old.abs() * 1e-6
        }
        (new, old) => new == old,
    }
}

#[test]
fn no_recorded_field_is_lost() {
    for (_, folder) in versions() {
        for (name, file) in agent_outputs(&folder) {
            for old in lines(&file) {
                let read = Line::read(old.to_string().as_bytes()).unwrap();
                let new = serde_json::to_value(read.update().unwrap()).unwrap();
                assert!(contains_all(&new, &old), "{name}\n{old:.2000}\n{new:.2000}");
            }
        }
    }
}

/// Returns the lines after the greeting.
fn lines(file: &Path) -> Vec<Value> {
    let bytes = fs::read(file).unwrap();
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    let mut text = Vec::new();
    let mut decoder = zstd::stream::read::Decoder::new(&bytes[end + 1..]).unwrap();
    // The output of an agent that was killed has no end marker.
    let _ = decoder.read_to_end(&mut text);
    let whole = text.iter().rposition(|byte| *byte == b'\n').unwrap();
    let lines = text[..whole].split(|byte| *byte == b'\n');
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// Returns these lines as an agent would send them.
fn encode_lines(lines: &[Value]) -> Vec<u8> {
    let mut bytes = greeting().into_bytes();
    let mut encoder = zstd::stream::write::Encoder::new(&mut bytes, 3).unwrap();
    let window = zstd::zstd_safe::CParameter::WindowLog(WINDOW_LOG);
    encoder.set_parameter(window).unwrap();
    for line in lines {
        writeln!(encoder, "{line}").unwrap();
        encoder.flush().unwrap();
    }
    encoder.finish().unwrap();
    bytes
}

fn decoded_updates(bytes: &[u8]) -> (Vec<String>, String) {
    let (updates, why) = wire::read_bytes(bytes);
    let updates = updates.iter().map(|update| format!("{update:?}"));
    (updates.collect(), why)
}

/// Fields that are retained whole, whatever they contain: the hook's additions, and a record of the store.
const KEPT_WHOLE: [&str; 2] = ["data", "record"];

/// Adds fields wherever a later version may add them.
fn add_fields(value: &mut Value, name: &str) {
    match value {
        _ if KEPT_WHOLE.contains(&name) => {}
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(name, value)| add_fields(value, name));
            // An unknown observation is retained whole, for versions that know it.
            if fields.get("kind").is_some_and(|kind| kind == "telepathy") {
                return;
            }
            if !fields.is_empty() {
                fields.insert("of_later".into(), serde_json::json!({"a": [1, null]}));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| add_fields(value, name)),
        _ => {}
    }
}

#[test]
fn unknown_fields_of_a_later_version_are_ignored() {
    for (name, file) in agent_outputs(&versions().pop().unwrap().1) {
        let lines = lines(&file);
        let expected = decoded_updates(&encode_lines(&lines));
        assert!(!expected.0.is_empty());
        let mut more = Vec::new();
        for mut line in lines {
            add_fields(&mut line, "");
            more.push(serde_json::json!({"telepathy": {"frame": 7}}));
            more.push(serde_json::json!({"reply": {"telepathy": [1]}}));
            more.push(serde_json::json!({"from": 3, "frame": {"seq": 999}}));
            more.push(line);
        }
        let later = decoded_updates(&encode_lines(&more));
        assert_eq!(later.0.len(), expected.0.len(), "{name}");
        for (one, other) in later.0.iter().zip(&expected.0) {
            assert!(one == other, "{name}\n{one:.2000}\n{other:.2000}");
        }
    }
}

/// Collects the path of each field in each object, as names.
fn fields(value: &Value, at: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                at.push(name.clone());
                all.push(at.clone());
                fields(value, at, all);
                at.pop();
            }
        }
        // They are alike.
        Value::Array(list) => list.iter().take(1).for_each(|one| {
            at.push("0".into());
            fields(one, at, all);
            at.pop();
        }),
        _ => {}
    }
}

fn without(value: &Value, at: &[String]) -> Value {
    let mut less = value.clone();
    let (last, before) = at.split_last().unwrap();
    let pointer: String = before.iter().map(|name| format!("/{name}")).collect();
    if let Some(Value::Object(object)) = less.pointer_mut(&pointer) {
        object.remove(last);
    }
    less
}

/// Messages of an earlier version lack newer fields. No frame, greeting or event is lost because of a missing field.
#[test]
fn missing_fields_of_an_earlier_version_are_accepted() {
    for (_, file) in agent_outputs(&versions().pop().unwrap().1) {
        for line in lines(&file) {
            let kind = ["frame", "hello", "event"];
            let Some(kind) = kind.into_iter().find(|kind| line.get(kind).is_some()) else {
                continue;
            };
            let mut all = Vec::new();
            fields(&line[kind], &mut vec![kind.to_owned()], &mut all);
            for field in all {
                let less = without(&line, &field);
                let read = serde_json::from_value::<Line>(less);
                let read = read.unwrap_or_else(|error| panic!("{}: {error}", field.join(".")));
                let is_there = match read {
                    Line::Update(Update::Frame(_)) => kind == "frame",
                    Line::Update(Update::Hello(_)) => kind == "hello",
                    Line::Update(Update::Event(_)) => kind == "event",
                    // Without its only field the line is empty.
                    _ => field.len() == 1,
                };
                assert!(is_there, "{}", field.join("."));
            }
        }
    }
}

#[test]
fn another_version_works_or_is_refused_in_one_sentence() {
    let (_, folder) = versions().pop().unwrap();
    let (_, file) = agent_outputs(&folder).remove(0);
    let bytes = fs::read(file).unwrap();
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    let after = |greeting: &str| {
        let (decoded_updates, why) =
            decoded_updates(&[greeting.as_bytes(), &bytes[end..]].concat());
        (decoded_updates.len() > 1, why)
    };
    for version in ["0.0.1", "9.9", "9.9 and=more", "", "\u{1b}[2J"] {
        let agent_outputs = format!("gputop-agent protocol={PROTOCOL} version={version}");
        assert!(after(&agent_outputs).0, "{version}");
    }
    let here = env!("CARGO_PKG_VERSION");
    for (greeting, there) in [
        ("gputop-agent protocol=0 version=0.0.1", "0.0.1"),
        ("gputop-agent protocol=2 version=9.9", "9.9"),
        ("gputop-agent protocol=x", "?"),
    ] {
        let why = format!(
            "gputop {there} on the remote host uses a different protocol from {here} on this host. Update the older one"
        );
        assert_eq!(after(greeting), (false, why));
    }
    let needs = serde_json::json!({"hello": {"host": "x", "requires": ["telepathy"]}});
    let refused = decoded_updates(&encode_lines(&[needs]));
    let why = "the remote gputop requires telepathy, which this version does not support";
    assert_eq!(refused, (Vec::new(), why.to_owned()));
}

/// Returns one request of each kind.
fn orders() -> Vec<RequestLine> {
    let process = ProcessKey::new(418, 7_213_544);
    let gpu = GpuUuid("GPU-7d3c1f6a-0000-4b0e-9a5c-8d1d5b0e7b11".into());
    let requests = [
        Request::Detail(process),
        Request::Map(Some((process, 0))),
        Request::Map(None),
        Request::Wake,
        Request::Stacks(process),
        Request::Holders(Some(process)),
        Request::Holders(None),
        Request::Log(process),
        Request::Watch { process, path: "train.log".into() },
        Request::Signal { signal: Signal::Term, processes: vec![process] },
        Request::Probe(ProbeRequest {
            gpu: gpu.clone(),
            process: Some(process),
            limit: Some(Millis(500)),
            ..ProbeRequest::default()
        }),
        Request::Focus(Some(gpu)),
        Request::Focus(None),
        Request::Interval(Millis(1_000)),
    ];
    let requests = requests.into_iter().map(RequestLine::Request);
    requests.chain([RequestLine::Frames(3)]).collect()
}

const STORED: &str = "01kq3v7-x2c9";

/// Returns a request for one stored incident.
fn store_requests() -> Vec<RequestLine> {
    vec![RequestLine::Incident(STORED.into())]
}

/// Returns lines about the store: a list, and an incident that was requested.
fn store() -> Vec<Value> {
    let record = serde_json::json!({
        "schema": 1, "id": "oom-fragmentation", "severity": "fatal", "uid": STORED, "host": "node17",
        "observed": {"boot_id": "6c1f1c9e-4b0e-4a53-9a5c-8d1d5b0e7b11", "process": {"pid": 418, "start": 7},
                     "first": 5_400_000, "time": 1_795_177_607_000_u64},
    });
    let list = IncidentFile {
        uid: STORED.into(),
        modified: 1_795_177_607_123_456_789,
        bytes: 812,
        is_read: true,
    };
    let stored = RemoteIncident { uid: STORED.into(), is_read: true, record };
    let lines = [Update::IncidentList(vec![list]), Update::RemoteIncident(Arc::new(stored))];
    let lines = lines.iter().map(serde_json::to_value);
    lines.collect::<Result<_, _>>().unwrap()
}

#[test]
#[ignore = "writes target/tmp/protocol, for a new version to be committed"]
fn records() {
    assert!(is_host(), "PIDs have to be the driver's");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("protocol");
    fs::create_dir_all(&folder).unwrap();
    for (name, orders) in [("kinds", orders()), ("store", store_requests())] {
        let lines = orders.iter().map(serde_json::to_string);
        let lines: Vec<String> = lines.map(|line| line.unwrap() + "\n").collect();
        fs::write(folder.join(name).with_extension("asked"), lines.concat()).unwrap();
    }
    fs::write(folder.join("kinds.said"), wire::encode_updates(kinds())).unwrap();
    fs::write(folder.join("failures.said"), wire::encode_updates(failures())).unwrap();
    fs::write(folder.join("store.said"), encode_lines(&store())).unwrap();
    fs::write(folder.join("session.said"), encode_lines(&session())).unwrap();
}

/// One of each kind of update, and of observation.
fn kinds() -> Vec<Update> {
    let observations = [
        Observation::Exit(Default::default()),
        Observation::Health(Default::default()),
        Observation::Xid(Default::default()),
        Observation::Ooms(Default::default()),
        Observation::Log(Default::default()),
        Observation::Hook(Default::default()),
        Observation::Unknown(serde_json::json!({"kind": "telepathy", "strength": 7})),
    ];
    let events = (1..).zip(observations).map(event);
    wire::all_kinds().into_iter().chain(events).collect()
}

fn event((seq, observation): (u64, Observation)) -> Update {
    Update::Event(Event { agent: "5d0c1f6a".into(), seq, observation, ..Event::default() })
}

/// Returns data that is read because an allocation failed, and pools that frameworks report.
fn failures() -> Vec<Update> {
    let gib = |gib: u64| Bytes(gib << 30);
    let process = ProcessKey::new(418, 7_213_544);
    let pool = ReportedPool {
        process,
        framework: Framework::Jax,
        at: Mono(90_412),
        allocated: gib(31).into(),
        limit: gib(105).into(),
        reserved: Reading::Missing(Missing::new(Reason::Unsupported, "it does not tell")),
        ..ReportedPool::default()
    };
    let frame = Frame {
        seq: 90,
        mono: Mono(90_500),
        pools: Some(Pools { reported: vec![pool].into(), ..Pools::default() }),
        ..Frame::default()
    };
    let holder = GpuProcess {
        pid: process.pid,
        process: Some(process),
        vram: gib(130).into(),
        ..GpuProcess::default()
    };
    let at_oom = GpuAtOom {
        memory: Memory { total: gib(140).into(), used: gib(139).into(), ..Memory::default() },
        processes: vec![holder].into(),
        lag: Millis(4),
    };
    let tried = |conf: &str, outcome, fails_at_bytes| SettingResult {
        conf: conf.into(),
        outcome,
        peak_reserved_bytes: gib(93),
        fails_at_bytes,
    };
    let replayed = TraceReplay {
        ordinal: 1,
        free_bytes: gib(1),
        peak_reserved_bytes: gib(138),
        last_operations: Some(100_000),
        tried: vec![
            tried("expandable_segments:True", ReplayOutcome::Fits, None),
            tried("max_split_size_mb:256", ReplayOutcome::Earlier, Some(gib(2))),
        ],
        missing: None,
    };
    let observations =
        [Observation::GpuAtOom(Box::new(at_oom)), Observation::TraceReplay(Box::new(replayed))];
    let events = (1..).zip(observations).map(event);
    std::iter::once(Update::Frame(Arc::new(frame))).chain(events).collect()
}

/// Returns the output of a real agent that reads a process with PyTorch's memory. Then a run beside the process fails,
/// and both exit. Names that identify the recording machine are replaced.
fn session() -> Vec<Value> {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("train.log");
    let mut log = File::new(&log);
    let mut train = RealProcess::with("train.py", |command| {
        command.current_dir(home.path()).stderr(log.writer());
    });
    let mut torch = Target::start_with(&dump_path(), |command| {
        std::os::unix::process::CommandExt::arg0(command, "python");
        // Names and values of its variables are sent on request.
        command.env_clear().env("GPUTOP_TEST_DUMP", dump_path());
        command.envs([("PATH", "/usr/bin:/bin"), ("RANK", "3")]);
        command.current_dir(home.path());
    });
    let fake = FakeNvml::new(&format!(
        "[[gpu]]\nsm = 97\n[[gpu]]\nsm = 41\n{}[[process]]\npid = {}\ngpu = 1\nused = \"3 GiB\"\n",
        on_gpu(0, &train, "used = \"22 GiB\""),
        torch.pid().0
    ));
    let mut agent = command(&fake, ["agent"]);
    agent.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut agent = Guarded(agent.spawn().unwrap());
    let mut input = agent.0.stdin.take().unwrap();
    let mut output = BufReader::new(agent.0.stdout.take().unwrap());
    let mut order = |order: Value| writeln!(input, "{order}").unwrap();
    let mut agent_outputs = String::new();
    output.read_line(&mut agent_outputs).unwrap();
    assert_eq!(agent_outputs, greeting());
    let mut text = BufReader::new(zstd::stream::read::Decoder::with_buffer(output).unwrap());
    let (mut lines, mut frames) = (Vec::new(), 0);
    let mut until = |order: &mut dyn FnMut(Value), wanted: &mut dyn FnMut(&Update) -> bool| {
        loop {
            let mut line = String::new();
            text.read_line(&mut line).unwrap();
            let read = Line::read(line.as_bytes()).unwrap().update().unwrap();
            let read = read.unwrap();
            lines.push(line);
            if matches!(read, Update::Frame(_)) {
                frames += 1;
                order(serde_json::json!({ "frames": frames }));
            }
            if wanted(&read) {
                return read;
            }
        }
    };
    order(serde_json::json!({"request": {"interval": 500}}));
    let read = until(&mut order, &mut |update| match update {
        Update::Frame(frame) => {
            let pools = frame.pools.as_ref();
            pools.is_some_and(|pools| !pools.list.is_empty())
                && frame.processes.as_ref().is_some_and(|p| p.list.len() == 2)
        }
        _ => false,
    });
    let Update::Frame(frame) = read else {
        panic!("no frame");
    };
    let processes = &frame.processes.as_ref().unwrap().list;
    let is_train = |process: &&gputop_model::process::Process| process.key.pid.0 == train.pid();
    let train_key = processes.iter().find(is_train).unwrap().key;
    let pool = &frame.pools.as_ref().unwrap().list[0];
    order(serde_json::json!({"request": Request::Map(Some((pool.process, pool.ordinal)))}));
    until(&mut order, &mut |update| matches!(update, Update::Map(_)));
    order(serde_json::json!({"request": Request::Map(None)}));
    order(serde_json::json!({"request": Request::Detail(pool.process)}));
    until(&mut order, &mut |update| matches!(update, Update::Detail(..)));
    log.write("one more step\n");
    order(serde_json::json!({"request": Request::Log(train_key)}));
    until(&mut order, &mut |update| matches!(update, Update::Log(_)));
    log.write(OOM);
    let observation = |update: &Update| match update {
        Update::Event(event) => Some(event.observation.clone()),
        _ => None,
    };
    until(&mut order, &mut |update| match observation(update) {
        Some(Observation::Log(excerpt)) => excerpt.text.contains("CUDA out of memory"),
        _ => false,
    });
    train.finish();
    torch.kill();
    let mut ends = 0;
    until(&mut order, &mut |update| {
        ends += usize::from(matches!(observation(update), Some(Observation::Exit(_))));
        ends == 2
    });
    until(&mut order, &mut |update| matches!(update, Update::Frame(_)));
    renamed(&lines, home.path())
}

fn renamed(lines: &[String], home: &Path) -> Vec<Value> {
    let Line::Update(Update::Hello(hello)) = Line::read(lines[0].as_bytes()).unwrap() else {
        panic!("no greeting");
    };
    let hello = gputop_model::host::Hello::clone(&hello);
    let kernel = hello.kernel.value().cloned().unwrap_or_default();
    let here = std::env::current_exe().unwrap().display().to_string();
    let names = [
        (home.display().to_string(), "/home/ana/run"),
        (here, "/usr/bin/python3.11"),
        (hello.host, "node17"),
        (hello.agent, "5d0c1f6a"),
        (hello.boot_id, "6c1f1c9e-4b0e-4a53-9a5c-8d1d5b0e7b11"),
        (kernel, "6.8.0-90-generic"),
    ];
    let renamed = lines.iter().map(|line| {
        let line = names
            .iter()
            .filter(|(name, _)| !name.is_empty())
            .fold(line.clone(), |line, (name, other)| line.replace(name, other));
        let mut line: Value = serde_json::from_str(&line).unwrap();
        if let Some(Value::Object(detail)) = line.pointer_mut("/reply/detail/is") {
            detail.insert("cgroup".into(), "/user.slice/run.scope".into());
        }
        line
    });
    renamed.collect()
}

/// A log that a process has open.
struct File(fs::File);

impl File {
    fn new(path: &Path) -> Self {
        let mut options = fs::File::options();
        Self(options.create(true).append(true).open(path).unwrap())
    }

    fn writer(&self) -> fs::File {
        self.0.try_clone().unwrap()
    }

    fn write(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }
}
