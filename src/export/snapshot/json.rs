//! Formats the output of `gputop snapshot --json`.

use std::collections::BTreeMap;

use gputop_allocator::fits::{FitConditions, Fits};
use gputop_allocator::fragmentation::Bucket;
use gputop_allocator::snapshot::history::ByStack;
use gputop_allocator::snapshot::stacks::Stacks;
use gputop_allocator::snapshot::{Device, DeviceAnalysis, Setting, Snapshot, StackId, TraceEvent};
use gputop_model::frame::SCHEMA;
use gputop_model::{Bytes, PoolId, PoolKind, Reading, Reason, StackFrame};
use serde::Serialize;

use crate::export::snapshot::text::{AnalysedSnapshot, NO_TRACE};

/// Maximum number of stacks in each list of the JSON document. The remaining stacks hold hardly any memory.
const MAX_STACKS: usize = 200;
/// Maximum total size of the stacks in a list, in bytes of JSON.
const MAX_STACK_BYTES: usize = 4 << 20;

#[derive(Serialize)]
struct JsonDocument<'s> {
    schema: u32,
    file: &'s str,
    allocator_settings: BTreeMap<&'s str, &'s Setting>,
    devices: Vec<JsonDevice<'s>>,
}

#[derive(Serialize)]
struct JsonDevice<'s> {
    ordinal: u32,
    stats: Stats,
    largest_free_block: Bytes,
    fits: Reading<Bytes>,
    free_histogram: &'s [Bucket],
    segments: Vec<JsonSegment>,
    by_stack: Vec<Holder<'s>>,
    trace: Reading<JsonTrace<'s>>,
}

/// Memory statistics at the time of the snapshot, named as in `torch.cuda.memory_stats()`.
#[derive(Serialize)]
struct Stats {
    allocated_bytes: Bytes,
    requested_bytes: Bytes,
    reserved_bytes: Bytes,
    active_bytes: Bytes,
    inactive_split_bytes: Bytes,
    segments: usize,
}

#[derive(Serialize)]
struct JsonSegment {
    address: u64,
    size: Bytes,
    pool: PoolKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool_id: Option<PoolId>,
    stream: u64,
    expandable: bool,
    blocks: usize,
}

/// Memory allocated from one stack. Sizes are as requested, before rounding.
#[derive(Serialize)]
struct Holder<'s> {
    bytes: i64,
    blocks: i64,
    /// Frames of the stack, innermost first. Empty if the stack is unknown.
    frames: Vec<&'s StackFrame>,
}

#[derive(Serialize)]
struct JsonTrace<'s> {
    events: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    length_us: Option<u64>,
    requested_bytes_peak: Bytes,
    peak_event: usize,
    reserved_bytes_peak: Bytes,
    ooms: Vec<Oom<'s>>,
    by_stack_at_peak: Vec<Holder<'s>>,
    /// Memory growth by stack, from the trace's first event to its last.
    growth: Vec<Holder<'s>>,
}

#[derive(Serialize)]
struct Oom<'s> {
    event: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_us: Option<u64>,
    requested_bytes: Bytes,
    free_bytes: Bytes,
    frames: Vec<&'s StackFrame>,
}

/// Returns the output of `snapshot --json`.
pub fn document(shown: &AnalysedSnapshot) -> impl Serialize {
    let settings = shown.snapshot.settings.iter();
    let devices = shown.devices();
    JsonDocument {
        schema: SCHEMA,
        file: &shown.name,
        allocator_settings: settings.map(|(k, v)| (k.as_str(), v)).collect(),
        devices: devices.map(|(of, study)| device(&shown.snapshot, of, study)).collect(),
    }
}

fn device<'s>(
    snapshot: &'s Snapshot,
    device: &'s Device,
    study: &'s DeviceAnalysis,
) -> JsonDevice<'s> {
    let found = &study.fragmentation;
    let segments = device.map.segments.iter().map(|segment| JsonSegment {
        address: segment.address,
        size: segment.size,
        pool: segment.pool,
        pool_id: segment.pool_id,
        stream: segment.stream,
        expandable: segment.expandable,
        blocks: segment.blocks.len(),
    });
    let fits = Fits::of_map(&device.map, &FitConditions::with_free(None)).cache;
    let trace = if device.events.is_empty() {
        Reading::missing(Reason::NotRead, NO_TRACE)
    } else {
        Reading::Value(trace(snapshot, device, study))
    };
    JsonDevice {
        ordinal: device.ordinal,
        stats: Stats {
            allocated_bytes: found.allocated,
            requested_bytes: device.requested(),
            reserved_bytes: device.reserved(),
            active_bytes: Bytes(found.allocated.0.saturating_add(found.active.0)),
            inactive_split_bytes: found.inactive_split,
            segments: device.map.segments.len(),
        },
        largest_free_block: found.largest,
        fits: fits.map_or_else(|| Reading::Missing(Reason::NotRead.into()), Reading::Value),
        free_histogram: &found.histogram,
        segments: segments.collect(),
        by_stack: holders(&snapshot.stacks, study.by_stack(device)),
        trace,
    }
}

fn trace<'s>(
    snapshot: &'s Snapshot,
    device: &'s Device,
    study: &'s DeviceAnalysis,
) -> JsonTrace<'s> {
    let stacks = &snapshot.stacks;
    let span = study.span(device);
    let events = device.events.len();
    let oom = |(at, event): (usize, &TraceEvent)| Oom {
        event: at,
        time_us: device.since_first(event),
        requested_bytes: Bytes(event.size),
        free_bytes: Bytes(event.addr),
        frames: frames(stacks, event.stack),
    };
    let mut fits = fitting(stacks);
    JsonTrace {
        events,
        length_us: study.length(device),
        requested_bytes_peak: span.allocated.1,
        peak_event: study.peak,
        reserved_bytes_peak: span.reserved,
        ooms: device
            .ooms()
            .take(MAX_STACKS)
            .take_while(|(_, event)| fits(event.stack))
            .map(oom)
            .collect(),
        by_stack_at_peak: holders(stacks, study.history.live_at(device, study.peak)),
        growth: holders(stacks, study.history.growth(device, 0, events)),
    }
}

fn holders(stacks: &Stacks, list: Vec<ByStack>) -> Vec<Holder<'_>> {
    let list = list.into_iter().take(MAX_STACKS);
    let mut fits = fitting(stacks);
    list.take_while(|by| fits(by.stack))
        .map(|by| Holder {
            bytes: by.amount.bytes,
            blocks: by.amount.blocks,
            frames: frames(stacks, by.stack),
        })
        .collect()
}

/// Returns a function that checks whether the next stack still fits in a list of limited size.
pub(super) fn fitting(stacks: &Stacks) -> impl FnMut(StackId) -> bool {
    let mut bytes = 0;
    move |stack| {
        let frames = stacks.frames(stack);
        // Add 100 bytes for field names and indentation.
        bytes += frames.map(|frame| frame.file.len() + frame.function.len() + 100).sum::<usize>();
        bytes <= MAX_STACK_BYTES
    }
}

fn frames(stacks: &Stacks, stack: StackId) -> Vec<&StackFrame> {
    stacks.frames(stack).collect()
}
