//! Memory snapshots read from pickles: real PyTorch snapshots, every version of the format, and every way in which a
//! file can be wrong.

use std::fs;
use std::path::{Path, PathBuf};

use gputop_allocator::config::Config;
use gputop_allocator::model::Model;
use gputop_allocator::snapshot::{self, DeviceAnalysis, Snapshot, SnapshotError, TraceAction};
use gputop_allocator::trace::{Op, PoolId};
use gputop_model::pool::{BlockState, PoolKind, Segment};
use gputop_model::units::Bytes;
use proptest::prelude::*;

const NATIVE: &[u8] = include_bytes!("../data/snapshots/torch-2.15/native.pickle");
const OLD: &[u8] = include_bytes!("../data/snapshots/torch-2.0/native.pickle");
const EXPANDABLE: &[u8] = include_bytes!("../data/snapshots/torch-2.15/expandable.pickle");
const HOOK: &[u8] = include_bytes!("../data/snapshots/torch-2.15/hook.pickle");
const LIST: &[u8] = include_bytes!("../data/snapshots/torch-2.15/list.pickle");

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/snapshots").join(name)
}

fn read(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    snapshot::read(bytes, bytes.len() as u64)
}

fn fault(bytes: &[u8]) -> String {
    read(bytes).expect_err("a fault").to_string()
}

#[test]
fn real_snapshot_matches_pytorch() {
    let snapshot = read(NATIVE).unwrap();
    let [first, second] = &snapshot.devices[..] else {
        panic!("two devices");
    };
    // `allocated_size`, `requested_size` and `total_size` of the file's segments, summed by Python.
    let study = DeviceAnalysis::of(first);
    assert_eq!(study.fragmentation.allocated, Bytes(62_354_432));
    assert_eq!(first.requested(), Bytes(62_354_048));
    assert_eq!(first.reserved(), Bytes::mib(94));
    assert_eq!((first.events.len(), second.events.len()), (292, 2));
    assert_eq!((first.ordinal, second.ordinal), (0, 1));
    let kinds = |kind| {
        let segments = first.map.segments.iter();
        segments.filter(|segment| segment.pool == kind).count()
    };
    assert_eq!(kinds(PoolKind::Private), 1);
    let last = first.events.last().unwrap();
    assert_eq!((last.action, last.size), (TraceAction::Oom, 200 << 30));
    assert_eq!(first.since_first(last), Some(763));
    let place = snapshot.stacks.place(last.stack).unwrap();
    assert_eq!(place.to_string(), "train.py:44 main");
}

#[test]
fn expandable_segments_are_mapped_and_unmapped() {
    let snapshot = read(EXPANDABLE).unwrap();
    assert_eq!(snapshot.conf(), Some("expandable_segments:True,max_split_size_mb:512"));
    let device = &snapshot.devices[0];
    assert!(device.map.segments.iter().all(|segment| segment.expandable));
    assert_eq!(device.reserved(), Bytes::mib(104));
    let study = DeviceAnalysis::of(device);
    assert_eq!(study.history.span(device, 0, 0).reserved, Bytes(0));
    let trace = snapshot.trace(device);
    assert!(!trace.cut);
    assert_eq!(trace.recorded.conf.as_deref(), snapshot.conf());
    assert_eq!(trace.recorded.reserved_peak, Some(study.span(device).reserved));
}

#[test]
fn old_snapshot_reports_missing_times_and_settings() {
    let snapshot = read(OLD).unwrap();
    assert!(snapshot.settings.is_empty() && snapshot.conf().is_none());
    let device = &snapshot.devices[0];
    let study = DeviceAnalysis::of(device);
    assert_eq!(study.fragmentation.allocated, Bytes(58_160_128));
    assert_eq!(device.requested(), Bytes(58_159_744));
    assert_eq!(device.reserved(), Bytes::mib(74));
    assert_eq!((device.events.len(), study.length(device)), (290, None));
    // Its stacks are in the history of each block.
    let first = device.held.first().unwrap();
    let place = snapshot.stacks.place(first.stack).unwrap();
    assert_eq!(place.to_string(), "model.py:6 __init__");
    let blocks = device.map.segments.iter().flat_map(|segment| &segment.blocks);
    assert!(blocks.clone().count() > 10);
    assert!(blocks.clone().all(|block| block.address > 0));
    assert_eq!(study.history.span(device, 0, 0).reserved, Bytes(0));
}

#[test]
fn complete_history_starts_empty_and_ends_with_the_held_blocks() {
    let snapshot = read(NATIVE).unwrap();
    for device in &snapshot.devices {
        let study = DeviceAnalysis::of(device);
        let before = study.history.span(device, 0, 0);
        assert_eq!((before.allocated.1, before.reserved), (Bytes(0), Bytes(0)));
        let held = study.by_stack(device);
        let grown = study.history.growth(device, 0, device.events.len());
        assert_eq!(held, grown);
        assert_eq!(held, study.history.live_at(device, device.events.len()));
        assert!(study.history.live_at(device, 0).is_empty());
    }
}

#[test]
fn history_without_stacks_is_a_usable_trace() {
    let snapshot = read(HOOK).unwrap();
    assert_eq!(snapshot.stacks.count(), 0);
    let trace = snapshot.trace(&snapshot.devices[0]);
    let count = |is_it: fn(&Op) -> bool| trace.ops.iter().filter(|op| is_it(op)).count();
    let allocated = count(|op| matches!(op, Op::Alloc { .. }));
    let freed = count(|op| matches!(op, Op::Free { .. }));
    let live = snapshot.devices[0].held.iter();
    let live = live.filter(|held| held.state == BlockState::Allocated);
    assert_eq!(allocated - freed, live.count());
    assert!(trace.start.is_empty() && !trace.cut);
    assert_eq!(
        trace.ops.last(),
        Some(&Op::Refused {
            requested: Bytes::gib(200),
            stream: 0,
            pool: PoolId::SHARED,
            driver_free: Some(Bytes(85_800_779_776)),
        })
    );
    let pools = trace.ops.iter().filter_map(|op| match op {
        Op::Alloc { pool, .. } => Some(*pool),
        _ => None,
    });
    assert_eq!(pools.filter(|pool| *pool != PoolId::SHARED).count(), 1);
}

#[test]
fn replay_under_own_settings_reproduces_the_map() {
    for file in [NATIVE, HOOK, EXPANDABLE] {
        let snapshot = read(file).unwrap();
        for device in &snapshot.devices {
            let trace = snapshot.trace(device);
            let config = Config::parse(trace.recorded.conf.as_deref().unwrap_or_default());
            // The fake card in tests/data/snapshots.
            let card = Bytes::gib(80);
            let mut model = Model::new(config.rules((2, 15)), card, card);
            for op in &trace.ops {
                model.play(op);
            }
            let stats = model.stats();
            assert_eq!(Bytes(stats.reserved.current), device.reserved());
            assert_eq!(Some(Bytes(stats.reserved.peak)), trace.recorded.reserved_peak);
            assert_eq!(stats.num_ooms, device.ooms().count() as u64);
            let sizes = |segments: &[Segment]| {
                let blocks = |segment: &Segment| {
                    let blocks = segment.blocks.iter();
                    blocks.map(|block| (block.size, block.state)).collect::<Vec<_>>()
                };
                let mut all: Vec<_> = segments
                    .iter()
                    .map(|segment| (segment.stream, segment.size, format!("{:?}", blocks(segment))))
                    .collect();
                all.sort();
                all
            };
            assert_eq!(sizes(&model.segments()), sizes(&device.map.segments));
        }
    }
}

#[test]
fn trace_starts_with_earlier_blocks() {
    let mut snapshot = read(HOOK).unwrap();
    let whole = snapshot.trace(&snapshot.devices[0]);
    let device = &mut snapshot.devices[0];
    // Drop the oldest events, as PyTorch does when its buffer is full.
    device.events.drain(..100);
    let trace = snapshot.trace(&snapshot.devices[0]);
    assert!(trace.cut);
    let mut live = std::collections::BTreeMap::new();
    for op in &whole.ops[..100] {
        match *op {
            Op::Alloc { block, requested, .. } => drop(live.insert(block, requested)),
            Op::Free { block } => drop(live.remove(&block)),
            _ => {}
        }
    }
    let start = trace.start.iter().map(|live| (live.block, live.requested));
    assert_eq!(start.collect::<Vec<_>>(), live.into_iter().collect::<Vec<_>>());
}

#[test]
fn every_supported_pickle_protocol_gives_the_same_result() {
    let newest = read(LIST).unwrap();
    let bytes = |n: u8| fs::read(data(&format!("protocols/{n}.pickle"))).unwrap();
    for protocol in 2..=5 {
        let snapshot = read(&bytes(protocol)).unwrap();
        assert_eq!(snapshot.devices, newest.devices, "protocol {protocol}");
    }
    for protocol in 0..=1 {
        let says = format!("unsupported pickle protocol {protocol}: protocols 2 to 5 can be read");
        assert_eq!(fault(&bytes(protocol)), says);
    }
    assert_eq!(newest.devices[0].reserved(), Bytes::mib(94));
}

/// Returns a pickle of protocol 4 with these instructions.
fn pickle(body: &[u8]) -> Vec<u8> {
    [b"\x80\x04", body, b"."].concat()
}

fn text(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    [&[0x8c, length], text.as_bytes()].concat()
}

#[test]
fn nothing_is_ever_executed() {
    let system = [text("os"), text("system"), vec![0x93]].concat();
    for (body, says) in [
        (
            b"cos\nsystem\n(X\x04\0\0\0truetR".to_vec(),
            "at byte 2 it asks Python to import an object (GLOBAL)",
        ),
        (system, "at byte 14 it asks Python to import an object (STACK_GLOBAL)"),
        (b"]]R".to_vec(), "at byte 4 it asks Python to call a function (REDUCE)"),
        (b"(]ios\nsystem\n".to_vec(), "(INST)"),
        (b"(]o".to_vec(), "(OBJ)"),
        (b"])\x81".to_vec(), "(NEWOBJ)"),
        (b"])}\x92".to_vec(), "(NEWOBJ_EX)"),
        (b"]}b".to_vec(), "at byte 4 it asks Python to change an object (BUILD)"),
        (b"\x82\x01".to_vec(), "(EXT1)"),
        (b"\x83\x01\x00".to_vec(), "(EXT2)"),
        (b"\x84\x01\x00\x00\x00".to_vec(), "(EXT4)"),
        (b"Pname\n".to_vec(), "fetch an external object (PERSID)"),
        (b"]Q".to_vec(), "(BINPERSID)"),
        (b"\x97".to_vec(), "(NEXT_BUFFER)"),
        (b"]\x98".to_vec(), "(READONLY_BUFFER)"),
    ] {
        let stderr_text = fault(&pickle(&body));
        assert!(stderr_text.contains(says), "{body:?}: {stderr_text}");
        assert!(stderr_text.ends_with("gputop executes no code from files"));
    }
}

#[test]
fn other_files_are_named_by_their_format() {
    for (bytes, says) in [
        (&b""[..], "not a pickle file: the file is empty"),
        (b"PK\x03\x04rest", "zip archive as written by torch.save"),
        (b"{\n\"schema\": 1}", "it looks like JSON"),
        (b"{\"schema\": 1}", "it looks like JSON"),
        (b"<!DOCTYPE html>", "memory_viz"),
        (b"\x80\x06.", "unsupported pickle protocol 6: protocols 2 to 5 can be read"),
        (b"\x80\x04\xff.", "unknown pickle instruction 0xff"),
        (b"\x80\x04K\x01.", "not a PyTorch memory snapshot: it is a number"),
        (b"\x80\x04].", "not a PyTorch memory snapshot: it is a list"),
        (b"\x80\x04}.", "a dictionary without `segments`"),
        (b"\x80\x04\x8c\x01a.", "it is a string"),
    ] {
        let stderr_text = fault(bytes);
        assert!(stderr_text.contains(says), "{bytes:?}: {stderr_text}");
    }
}

#[test]
fn impossible_values_are_reported_with_their_position() {
    let event = |key: &str, value: &[u8]| {
        let items = [&text("action"), &text("alloc"), &text(key), value];
        pickle(&[&b"}("[..], &items.map(<[u8]>::to_vec).concat(), b"u"].concat())
    };
    for (key, value, says) in [
        ("size", &b"N"[..], "the field `size` is None"),
        ("size", b"J\xff\xff\xff\xff", "the field `size` is negative"),
        ("addr", b"\x88", "the field `addr` is a boolean"),
        ("stream", b"]", "the field `stream` is a list"),
        ("size", b"G?\xf0\0\0\0\0\0\0", "not a whole number of bytes"),
        ("action", b"K\x01", "event has an unknown action: a number"),
    ] {
        let stderr_text = fault(&event(key, value));
        assert!(stderr_text.starts_with("damaged at byte "), "{stderr_text}");
        assert!(stderr_text.contains(says), "{key}: {stderr_text}");
    }
}

#[test]
fn truncated_snapshot_is_reported_as_truncated() {
    for length in 1..LIST.len() {
        let stderr_text = fault(&LIST[..length]);
        assert!(
            stderr_text.starts_with(&format!("truncated at byte {length}: ")),
            "{length}: {stderr_text}"
        );
    }
    for length in (1..NATIVE.len()).step_by(101) {
        assert!(matches!(read(&NATIVE[..length]), Err(SnapshotError::Cut(_))));
    }
}

#[test]
fn deep_nesting_ends_in_a_sentence() {
    for (deep, says) in [
        (vec![b'('; 3_000_000], "more than 10000 nested levels"),
        (vec![b']'; 6_000_000], "too many values on the stack"),
        (b"](".repeat(1_000_000), "more than 10000 nested levels"),
    ] {
        assert!(fault(&pickle(&deep)).contains(says));
    }
    // A million nested lists, which Python itself would not write: not a snapshot, and no stack overflow.
    let count = 1_000_000;
    let nested = [vec![b']'; count], vec![b'a'; count - 1]].concat();
    assert!(fault(&pickle(&nested)).contains("not a PyTorch memory snapshot: it is a list"));
    // A list that contains itself.
    assert!(fault(&pickle(b"]\x94h\x00a")).contains("it is a list"));
}

#[test]
fn claimed_sizes_allocate_nothing() {
    let u64_max = u64::MAX.to_le_bytes();
    for (body, says) in [
        ([b"\x8d", &u64_max[..]].concat(), "a value larger than 6 MiB"),
        ([b"\x8e", &(1_u64 << 40).to_le_bytes()[..]].concat(), "a value larger than 6 MiB"),
        (b"X\xff\xff\x5f\x00".to_vec(), "truncated"),
        (b"\x8b\xff\xff\xff\x7f".to_vec(), "a value larger than 6 MiB"),
        (b"\x8b\xff\xff\xff\xff".to_vec(), "a number with a negative length"),
        (b"]r\xff\xff\xff\xff".to_vec(), "a memo entry without the ones before"),
        (b"h\x05".to_vec(), "a reference to an unknown memo entry"),
        (b"t".to_vec(), "a container end has no matching start"),
        (b"a".to_vec(), "an instruction has no operand"),
        (b"](K\x01(a".to_vec(), "an instruction has no operand"),
    ] {
        let stderr_text = fault(&pickle(&body));
        assert!(stderr_text.contains(says), "{body:?}: {stderr_text}");
    }
}

#[test]
fn the_same_events_twice_are_refused() {
    let event = [&b"}("[..], &text("action"), &text("alloc"), b"u"].concat();
    let traces = [&b"(]("[..], &event, b"e\x94h\x00h\x00t"].concat();
    let body =
        [&b"}("[..], &text("segments"), b"]", &text("device_traces"), &traces, b"u"].concat();
    let stderr_text = fault(&pickle(&body));
    assert!(stderr_text.contains("it contains the same event twice"), "{stderr_text}");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&pickle(&bytes));
    }

    #[test]
    fn no_instructions_make_it_panic(
        body in prop::collection::vec(prop::sample::select(&b"().01245KNMabehjqrstu}]\x85\x86\x87\x88\x8f\x90\x91\x94\x8c\x00\x01"[..]), 0..300)
    ) {
        let _ = read(&pickle(&body));
    }

    #[test]
    fn no_damage_makes_anything_panic(
        changes in prop::collection::vec((0..NATIVE.len(), any::<u8>()), 1..6),
    ) {
        let mut bytes = NATIVE.to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Ok(snapshot) = read(&bytes) {
            for device in &snapshot.devices {
                let study = DeviceAnalysis::of(device);
                study.history.live_at(device, study.peak);
                snapshot.trace(device);
            }
        }
    }
}

#[test]
fn snapshot_text_is_escaped() {
    let frame = [
        &b"}("[..],
        &text("filename"),
        &text("evil\x1b[2J.py"),
        &text("name"),
        &text("step\r\n"),
        &text("line"),
        b"K\x07u",
    ];
    let block = [&b"}("[..], &text("state"), &text("active_allocated"), &text("size")].concat();
    let block =
        [&block, &b"M\x00\x02"[..], &text("frames"), b"](", &frame.concat(), b"eu"].concat();
    let segment = [&b"}("[..], &text("total_size"), b"M\x00\x10", &text("blocks"), b"]("].concat();
    let list = [&b"]("[..], &segment, &block, b"eue"].concat();
    let settings =
        [&b"}"[..], &text("PYTORCH_CUDA_ALLOC_CONF"), &text("a\x1b]0;x\x07"), b"s"].concat();
    let body = [&b"}("[..], &text("segments"), &list, &text("allocator_settings"), &settings, b"u"];
    let snapshot = read(&pickle(&body.concat())).unwrap();
    let stack = snapshot.devices[0].held[0].stack;
    assert_eq!(snapshot.stacks.words(stack), "evil^[[2J.py:7 step^M^J");
    assert_eq!(snapshot.conf(), Some("a^[]0;x^G"));
}
