//! Formats the output of `gputop snapshot A B`, as text and as JSON.

use std::fmt::Write as _;

use gputop_allocator::snapshot::compare::{
    ChangeKind, Comparison, DeviceChange, DeviceFigures, StackChange,
};
use gputop_model::frame::SCHEMA;
use gputop_model::stack::StackFrame;
use serde::Serialize;

use super::json::fitting;
use super::text::{UNKNOWN, signed};

const MAX_LINES: usize = 30;
const MAX_STACKS: usize = 200;

#[derive(Serialize)]
struct ComparisonDocument<'s> {
    schema: u32,
    a: &'s str,
    b: &'s str,
    devices: Vec<ComparedDevice<'s>>,
}

#[derive(Serialize)]
struct ComparedDevice<'s> {
    ordinal: u32,
    a: DeviceFigures,
    b: DeviceFigures,
    totals: Vec<Total>,
    /// Stacks with changed memory, largest difference first.
    changes: Vec<Change<'s>>,
    /// Number of stacks omitted from `changes` because there are more than the limit.
    omitted_changes: usize,
}

#[derive(Serialize)]
struct Total {
    kind: ChangeKind,
    stacks: usize,
    difference_bytes: i64,
}

/// Bytes requested from one stack in each snapshot, before the allocator rounds sizes up.
#[derive(Serialize)]
struct Change<'s> {
    kind: ChangeKind,
    a_bytes: i64,
    b_bytes: i64,
    difference_bytes: i64,
    a_blocks: i64,
    b_blocks: i64,
    /// Frames of the stack, innermost first. Empty if the stack is unknown.
    frames: Vec<&'s StackFrame>,
}

pub fn comparison_document<'s>(names: &'s [String; 2], both: &'s Comparison) -> impl Serialize {
    let device = |device: &'_ DeviceChange| {
        let change = |change: &StackChange| Change {
            kind: change.kind,
            a_bytes: change.before.bytes,
            b_bytes: change.after.bytes,
            difference_bytes: change.bytes(),
            a_blocks: change.before.blocks,
            b_blocks: change.after.blocks,
            frames: change.frames(&both.stacks),
        };
        let mut fits = both.stacks.each_ref().map(fitting);
        let changes = device.changes.iter().take(MAX_STACKS);
        let changes: Vec<Change<'_>> = changes
            .take_while(|change| {
                let side = usize::from(change.kind != ChangeKind::Vanished);
                fits[side](change.stack)
            })
            .map(change)
            .collect();
        ComparedDevice {
            ordinal: device.ordinal,
            a: device.figures[0],
            b: device.figures[1],
            totals: ChangeKind::ALL.map(|kind| total(device, kind)).into(),
            omitted_changes: device.changes.len() - changes.len(),
            changes,
        }
    };
    let [a, b] = names;
    ComparisonDocument { schema: SCHEMA, a, b, devices: both.devices.iter().map(device).collect() }
}

fn total(device: &DeviceChange, kind: ChangeKind) -> Total {
    let (stacks, difference_bytes) = device.total(kind);
    Total { kind, stacks, difference_bytes }
}

/// Formats the text to print if stdout is not a terminal.
pub fn comparison_text(names: &[String; 2], both: &Comparison) -> String {
    let mut out = format!("A: {}\nB: {}\n", names[0], names[1]);
    for device in &both.devices {
        let _ = writeln!(out, "\ndevice {}", device.ordinal);
        for line in figure_lines(device).iter().chain(&total_lines(device)) {
            let _ = writeln!(out, "{line}");
        }
        if device.changes.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{:>14}{:>8}  CHANGE    WHERE", "BYTES", "BLOCKS");
        for change in device.changes.iter().take(MAX_LINES) {
            let _ = writeln!(
                out,
                "{:>14}{:>+8}  {:<8}  {}",
                with_sign(change.bytes()),
                change.blocks(),
                change.kind.word(),
                where_words(change)
            );
        }
        let more = device.changes.len().saturating_sub(MAX_LINES);
        if more > 0 {
            let _ = writeln!(out, "  and {more} more");
        }
    }
    out
}

/// Formats the memory of a device in both snapshots as a table.
pub fn figure_lines(device: &DeviceChange) -> Vec<String> {
    let [before, after] = device.figures.map(|figures| figures.named());
    let heading = format!("  {:<20}{:>14}{:>14}{:>14}", "", "A", "B", "DIFFERENCE");
    let rows = before.iter().zip(&after).map(|((name, before), (_, after))| {
        let bytes = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
        let difference = with_sign(bytes(after.0).saturating_sub(bytes(before.0)));
        let (before, after) = (before.to_string(), after.to_string());
        format!("  {name:<20}{before:>14}{after:>14}{difference:>14}")
    });
    std::iter::once(heading).chain(rows).collect()
}

/// Formats the number of stacks and the difference for each kind of change: `  grew   3 stacks   +1.20 GiB`.
pub fn total_lines(device: &DeviceChange) -> Vec<String> {
    let line = |kind: ChangeKind| {
        let (count, bytes) = device.total(kind);
        let stacks = if count == 1 { "stack" } else { "stacks" };
        let count = format!("{count} {stacks}");
        format!("  {:<20}{count:>28}{:>14}", kind.word(), with_sign(bytes))
    };
    ChangeKind::ALL.map(line).into()
}

/// Returns the program's own frames in the stack, or a note that the stack is unknown.
pub fn where_words(change: &StackChange) -> &str {
    match change.words.as_str() {
        "" => UNKNOWN,
        words => words,
    }
}

/// Formats a difference in bytes with its sign: `+1.20 GiB`, `-300.00 MiB`.
pub fn with_sign(bytes: i64) -> String {
    let sign = if bytes > 0 { "+" } else { "" };
    format!("{sign}{}", signed(bytes))
}
