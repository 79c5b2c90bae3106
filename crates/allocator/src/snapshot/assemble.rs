//! Builds a [`Snapshot`] from the objects of a pickle by assigning each record to its device, in order.
//!
//! Every record may be used only once. A file that refers to the same million events a thousand times is rejected,
//! because expanding it would take a thousand times its size in memory.

use std::collections::BTreeMap;

use gputop_model::text::visible;
use gputop_model::{Block, BlockState, Bytes, PoolKind, Segment, StackFrame};

use super::device::{Device, Held};
use super::error::{Result, SnapshotError};
use super::record::{BlockRecord, Lane, PickleValue, SegmentRecord};
use super::stacks::Stacks;
use super::store::{MAX_TEXT, PickleStore, RecordRun};
use super::text::{self, TextId};
use super::{Setting, Snapshot};

/// Maximum number of devices, more than any host has.
const MAX_DEVICES: usize = 256;
const MAX_SETTINGS: usize = 64;

pub fn snapshot(mut store: PickleStore, root: PickleValue) -> Result<Snapshot> {
    let (segments, traces, settings) = parts(&store, root)?;
    let mut devices: BTreeMap<u32, Device> = BTreeMap::new();
    let segments = segment_numbers(&store, segments)?;
    let mut remaining = Uses(store.blocks.len());
    for at in segments {
        let record = std::mem::take(&mut store.segments[at as usize]);
        if devices.len() >= MAX_DEVICES && !devices.contains_key(&record.device) {
            return Err(no_snapshot("it has more than 256 devices"));
        }
        let blocks = blocks_of(&store, &record, &mut remaining)?;
        let device = devices.entry(record.device).or_default();
        take_segment(device, &record, (&store.blocks, &blocks));
    }
    let settings = settings_of(&store, settings);
    for (ordinal, runs) in trace_runs(&store, traces)? {
        let events = &store.events;
        let slices = runs.iter().map(|&(from, to)| &events[from as usize..to as usize]);
        let is_only_device =
            runs.len() == 1 && runs[0] == (0, u32::try_from(events.len()).unwrap_or(0));
        let events = match is_only_device {
            // Usually there is only one device. Its events can then be moved instead of copied.
            true => std::mem::take(&mut store.events),
            false => slices.collect::<Vec<_>>().concat(),
        };
        devices.entry(ordinal).or_default().events = events;
    }
    for (ordinal, device) in &mut devices {
        device.ordinal = *ordinal;
        device.map.ordinal = *ordinal;
        device.map.exact = true;
        device.map.segments.sort_unstable_by_key(|segment| segment.address);
        device.held.sort_unstable_by_key(|held| held.address);
        // Shrink the vectors: they grew by doubling and stay in memory while the snapshot is shown.
        device.events.shrink_to_fit();
    }
    Ok(Snapshot {
        devices: devices.into_values().collect(),
        stacks: Stacks { frames: frames(&store), stacks: store.stacks.into_iter().collect() },
        lanes: store.lanes.into_iter().collect(),
        settings,
    })
}

fn no_snapshot(what: impl Into<String>) -> SnapshotError {
    SnapshotError::NoSnapshot(what.into())
}

/// Returns segments, traces and settings. `_snapshot()` provides all of them, `memory_snapshot()` only the segments.
fn parts(
    store: &PickleStore,
    root: PickleValue,
) -> Result<(PickleValue, Option<PickleValue>, Option<PickleValue>)> {
    if store.pairs_of(root).is_some() {
        let get = |key| store.get(root, key);
        return match get(text::SEGMENTS) {
            Some(segments) => {
                Ok((segments, get(text::DEVICE_TRACES), get(text::ALLOCATOR_SETTINGS)))
            }
            None => Err(no_snapshot("it is a dictionary without `segments`")),
        };
    }
    let is_segment = |run: &RecordRun| matches!(run, RecordRun::Segments(..));
    match store.runs(root) {
        Some(runs) if !runs.is_empty() && runs.iter().all(is_segment) => Ok((root, None, None)),
        _ => Err(no_snapshot(format!("it is {}", store.describe(root)))),
    }
}

/// Number of records of one kind that may still be used.
struct Uses(usize);

impl Uses {
    fn take(&mut self, count: u32, what: &str) -> Result<()> {
        match self.0.checked_sub(count as usize) {
            Some(remaining) => {
                self.0 = remaining;
                Ok(())
            }
            None => Err(no_snapshot(format!("it contains the same {what} twice"))),
        }
    }
}

fn segment_numbers(store: &PickleStore, segments: PickleValue) -> Result<Vec<u32>> {
    let Some(runs) = store.runs(segments) else {
        let what = store.describe(segments);
        return Err(no_snapshot(format!("its `segments` value is {what}")));
    };
    let (mut numbers, mut remaining) = (Vec::new(), Uses(store.segments.len()));
    for run in runs {
        let &RecordRun::Segments(from, to) = run else {
            return Err(no_snapshot("its `segments` list contains values that are not segments"));
        };
        remaining.take(to - from, "segment")?;
        numbers.extend(from..to);
    }
    Ok(numbers)
}

fn blocks_of(
    store: &PickleStore,
    segment: &SegmentRecord,
    remaining: &mut Uses,
) -> Result<Vec<(u32, u32)>> {
    let runs = segment.blocks.and_then(|blocks| store.runs(blocks));
    let mut ranges = Vec::new();
    for run in runs.unwrap_or_default() {
        let &RecordRun::Blocks(from, to) = run else {
            return Err(no_snapshot(
                "a segment's `blocks` list contains values that are not blocks",
            ));
        };
        remaining.take(to - from, "block")?;
        ranges.push((from, to));
    }
    Ok(ranges)
}

fn take_segment(
    device: &mut Device,
    record: &SegmentRecord,
    (all, ranges): (&[BlockRecord], &[(u32, u32)]),
) {
    let lane = Lane { stream: record.stream, pool: record.pool };
    let mut next = record.address;
    let records = || ranges.iter().flat_map(|&(from, to)| &all[from as usize..to as usize]);
    let mut blocks = Vec::with_capacity(records().count());
    for block in records() {
        let address = block.address.unwrap_or(next);
        next = address.saturating_add(block.size);
        let is_live = block.state == BlockState::Allocated;
        blocks.push(Block {
            address,
            size: Bytes(block.size),
            requested: block.requested.filter(|_| is_live).map(Bytes),
            state: block.state,
        });
        if block.state != BlockState::Free {
            device.held.push(Held {
                address,
                size: Bytes(block.size),
                requested: Bytes(block.requested.unwrap_or(block.size)),
                state: block.state,
                stack: block.stack,
                lane,
            });
        }
    }
    device.map.segments.push(Segment {
        address: record.address,
        size: Bytes(record.total_size),
        pool: match (record.pool.is_private(), record.is_large) {
            (true, _) => PoolKind::Private,
            (_, Some(true)) => PoolKind::Large,
            (_, Some(false)) => PoolKind::Small,
            (_, None) => PoolKind::Unknown,
        },
        pool_id: record.pool.is_private().then_some(record.pool),
        stream: record.stream,
        expandable: record.is_expandable,
        blocks,
    });
}

type Ranges = Vec<(u32, u32)>;

fn trace_runs(store: &PickleStore, traces: Option<PickleValue>) -> Result<Vec<(u32, Ranges)>> {
    let Some(runs) = traces.and_then(|traces| store.runs(traces)) else { return Ok(Vec::new()) };
    if runs.len() > MAX_DEVICES {
        return Err(no_snapshot("it has more than 256 devices"));
    }
    let (mut found, mut remaining) = (Vec::new(), Uses(store.events.len()));
    for (ordinal, run) in (0..).zip(runs) {
        let of_device = match run {
            RecordRun::Value(list) => store.runs(*list),
            _ => None,
        };
        let Some(of_device) = of_device else {
            return Err(no_snapshot(
                "its `device_traces` list contains values that are not events",
            ));
        };
        let mut ranges = Vec::new();
        for run in of_device {
            // An event without an action is ignored.
            if let &RecordRun::Events(from, to) = run {
                remaining.take(to - from, "event")?;
                ranges.push((from, to));
            }
        }
        if !ranges.is_empty() {
            found.push((ordinal, ranges));
        }
    }
    Ok(found)
}

fn settings_of(store: &PickleStore, settings: Option<PickleValue>) -> Vec<(String, Setting)> {
    let pairs = settings.and_then(|settings| store.pairs_of(settings));
    let pairs = pairs.unwrap_or_default().iter().take(MAX_SETTINGS);
    let known = pairs.filter_map(|&(key, value)| {
        let setting = match value {
            PickleValue::Text(text) => Setting::Text(shown(store, text)),
            PickleValue::Bool(is_on) => Setting::Switch(is_on),
            value => match (number(value), store.pairs_of(value)) {
                (Some(number), _) => Setting::Number(number),
                (None, Some(pairs)) => Setting::Table(table(store, pairs)),
                _ => return None,
            },
        };
        Some((name(store, key)?, setting))
    });
    known.collect()
}

fn table(store: &PickleStore, pairs: &[(PickleValue, PickleValue)]) -> Vec<(String, f64)> {
    let pairs = pairs.iter().take(MAX_SETTINGS);
    pairs.filter_map(|&(key, value)| Some((name(store, key)?, number(value)?))).collect()
}

fn name(store: &PickleStore, key: PickleValue) -> Option<String> {
    match key {
        PickleValue::Text(text) => Some(shown(store, text)),
        PickleValue::Int(n) => Some(n.to_string()),
        _ => None,
    }
}

fn number(value: PickleValue) -> Option<f64> {
    match value {
        PickleValue::Int(n) => Some(n as f64),
        PickleValue::Large(n) => Some(n as f64),
        PickleValue::Float(n) => Some(n),
        _ => None,
    }
}

fn shown(store: &PickleStore, text: TextId) -> String {
    visible(store.texts.get(text), MAX_TEXT)
}

fn frames(store: &PickleStore) -> Vec<StackFrame> {
    let frames = store.distinct.iter().map(|frame| StackFrame {
        function: shown(store, frame.function),
        file: shown(store, frame.file),
        line: frame.line,
    });
    frames.collect()
}
