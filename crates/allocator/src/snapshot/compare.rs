//! Compares two snapshots: the memory of each device and of each allocation stack.
//!
//! Stacks match if all of their frames match. Editing a program changes line numbers. A stack without a match is
//! therefore compared with the stack that differs only in line numbers, if the other snapshot contains exactly one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gputop_model::{Bytes, StackFrame};
use serde::Serialize;

use super::history::{Amount, ByStack};
use super::stacks::Stacks;
use super::{Device, DeviceAnalysis, Snapshot, StackId};

gputop_model::named! {
    /// How the memory allocated by a stack changed from the first snapshot to the second.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ChangeKind {
        New = "new",
        Grew = "grew",
        Shrank = "shrank",
        Vanished = "vanished",
    }
    fn word;
}

impl ChangeKind {
    pub const ALL: [Self; 4] = [Self::New, Self::Grew, Self::Shrank, Self::Vanished];
}

/// The memory allocated by a stack in two snapshots.
#[derive(Debug, Clone, PartialEq)]
pub struct StackChange {
    pub kind: ChangeKind,
    pub before: Amount,
    pub after: Amount,
    /// Stack in the second snapshot, or in the first snapshot if the second one does not contain it.
    pub stack: StackId,
    /// The program's own frames on one line. Empty if the stack is unknown.
    pub words: String,
}

impl StackChange {
    pub fn bytes(&self) -> i64 {
        self.after.bytes.saturating_sub(self.before.bytes)
    }

    pub fn blocks(&self) -> i64 {
        self.after.blocks.saturating_sub(self.before.blocks)
    }

    /// Returns the stack's frames, innermost first.
    pub fn frames<'s>(&self, stacks: &'s [Stacks; 2]) -> Vec<&'s StackFrame> {
        self.stacks(stacks).frames(self.stack).collect()
    }

    /// Returns the stack table of the snapshot that contains this stack.
    pub fn stacks<'s>(&self, stacks: &'s [Stacks; 2]) -> &'s Stacks {
        let [first, second] = stacks;
        match self.kind {
            ChangeKind::Vanished => first,
            _ => second,
        }
    }
}

/// Memory values of a device in one snapshot. Their names are those of `torch.cuda.memory_stats()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DeviceFigures {
    pub allocated_bytes: Bytes,
    pub requested_bytes: Bytes,
    pub reserved_bytes: Bytes,
    /// Reserved bytes that are not allocated.
    pub cached_bytes: Bytes,
    /// Cached bytes in segments that also hold a live block.
    pub fragmented_bytes: Bytes,
    pub largest_free_block: Bytes,
}

impl DeviceFigures {
    fn of(device: &Device, study: &DeviceAnalysis) -> Self {
        let found = &study.fragmentation;
        Self {
            allocated_bytes: found.allocated,
            requested_bytes: device.requested(),
            reserved_bytes: device.reserved(),
            cached_bytes: found.free,
            fragmented_bytes: found.fragmented,
            largest_free_block: found.largest,
        }
    }

    /// Returns the name and value of each figure for display in a table.
    pub fn named(&self) -> [(&'static str, Bytes); 6] {
        [
            ("allocated", self.allocated_bytes),
            ("  requested", self.requested_bytes),
            ("reserved", self.reserved_bytes),
            ("cached", self.cached_bytes),
            ("  fragmented", self.fragmented_bytes),
            ("largest free block", self.largest_free_block),
        ]
    }
}

/// Memory changes of one device between two snapshots.
#[derive(Debug, Default)]
pub struct DeviceChange {
    pub ordinal: u32,
    /// Memory in each snapshot, all zero if a snapshot does not contain the device.
    pub figures: [DeviceFigures; 2],
    /// Stacks whose memory changed, largest difference first.
    pub changes: Vec<StackChange>,
}

impl DeviceChange {
    /// Returns the number of stacks with this kind of change, and the sum of their changes in bytes.
    pub fn total(&self, kind: ChangeKind) -> (usize, i64) {
        let changes = self.changes.iter().filter(|change| change.kind == kind);
        changes.fold((0, 0), |(count, bytes), change| {
            (count + 1, bytes.saturating_add(change.bytes()))
        })
    }
}

/// Differences between two snapshots.
#[derive(Debug)]
pub struct Comparison {
    pub devices: Vec<DeviceChange>,
    pub stacks: [Stacks; 2],
}

/// Memory of one device in one snapshot.
#[derive(Debug, Default)]
struct DeviceMemory {
    figures: DeviceFigures,
    stacks: Vec<ByStack>,
}

/// The parts of a snapshot that a comparison needs.
#[derive(Debug)]
pub struct SnapshotMemory {
    devices: BTreeMap<u32, DeviceMemory>,
    stacks: Stacks,
}

impl SnapshotMemory {
    pub fn of(snapshot: Snapshot) -> Self {
        let devices = snapshot.devices.iter().map(|device| {
            let study = DeviceAnalysis::of(device);
            let memory = DeviceMemory {
                figures: DeviceFigures::of(device, &study),
                stacks: study.by_stack(device),
            };
            (device.ordinal, memory)
        });
        Self { devices: devices.collect(), stacks: snapshot.stacks }
    }
}

pub fn compare(mut first: SnapshotMemory, mut second: SnapshotMemory) -> Comparison {
    let ordinals: BTreeSet<u32> =
        first.devices.keys().chain(second.devices.keys()).copied().collect();
    let devices = ordinals.into_iter().map(|ordinal| {
        let before = first.devices.remove(&ordinal).unwrap_or_default();
        let after = second.devices.remove(&ordinal).unwrap_or_default();
        DeviceChange {
            ordinal,
            figures: [before.figures, after.figures],
            changes: changes((&before.stacks, &first.stacks), (&after.stacks, &second.stacks)),
        }
    });
    Comparison { devices: devices.collect(), stacks: [first.stacks, second.stacks] }
}

type StackHolders<'s> = (&'s [ByStack], &'s Stacks);

fn changes(before: StackHolders<'_>, after: StackHolders<'_>) -> Vec<StackChange> {
    let mut changes = Vec::new();
    let mut add = |first: Option<&ByStack>, second: Option<&ByStack>| {
        changes.extend(change((first, before.1), (second, after.1)));
    };
    // The second pass matches stacks that differ only in line numbers.
    let (mut first, mut second): (Vec<_>, Vec<_>) =
        (before.0.iter().collect(), after.0.iter().collect());
    for has_lines in [true, false] {
        let mut by_key: HashMap<String, (Vec<&ByStack>, Vec<&ByStack>)> = HashMap::new();
        for by in first.drain(..) {
            by_key.entry(key(before.1, by.stack, has_lines)).or_default().0.push(by);
        }
        for by in second.drain(..) {
            by_key.entry(key(after.1, by.stack, has_lines)).or_default().1.push(by);
        }
        for (a, b) in by_key.into_values() {
            match (&a[..], &b[..]) {
                ([a], [b]) => add(Some(a), Some(b)),
                _ => {
                    first.extend(a);
                    second.extend(b);
                }
            }
        }
    }
    first.into_iter().for_each(|by| add(Some(by), None));
    second.into_iter().for_each(|by| add(None, Some(by)));
    changes.sort_by_cached_key(|change| {
        (std::cmp::Reverse(change.bytes().unsigned_abs()), change.kind, change.words.clone())
    });
    changes
}

fn key(stacks: &Stacks, stack: StackId, has_lines: bool) -> String {
    use std::fmt::Write as _;
    stacks.frames(stack).fold(String::new(), |mut key, frame| {
        let line = if has_lines { frame.line } else { 0 };
        let _ = writeln!(key, "{}:{line} {}", frame.file, frame.function);
        key
    })
}

fn change(
    (first, first_stacks): (Option<&ByStack>, &Stacks),
    (second, second_stacks): (Option<&ByStack>, &Stacks),
) -> Option<StackChange> {
    let amount = |by: Option<&ByStack>| by.map(|by| by.amount).unwrap_or_default();
    let (before, after) = (amount(first), amount(second));
    let kind = match (first, second) {
        (None, Some(_)) => ChangeKind::New,
        (Some(_), None) => ChangeKind::Vanished,
        _ if after.bytes > before.bytes => ChangeKind::Grew,
        _ if after.bytes < before.bytes => ChangeKind::Shrank,
        _ => return None,
    };
    let (by, stacks) = match (first, second) {
        (_, Some(by)) => (by, second_stacks),
        (Some(by), None) => (by, first_stacks),
        (None, None) => return None,
    };
    Some(StackChange { kind, before, after, stack: by.stack, words: stacks.words(by.stack) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(lines: &[(&str, u32)]) -> Stacks {
        let frames = lines.iter().map(|(function, line)| StackFrame {
            file: "/home/ana/train.py".into(),
            line: *line,
            function: (*function).into(),
        });
        let numbers = 0..u32::try_from(lines.len()).expect("a small number");
        Stacks {
            frames: frames.collect(),
            stacks: std::iter::once(Box::default())
                .chain(numbers.map(|number| vec![number].into()))
                .collect(),
        }
    }

    fn by(stack: StackId, bytes: i64) -> ByStack {
        let amount = Amount { bytes, blocks: 1 };
        ByStack { stack, amount }
    }

    #[test]
    fn matches_stacks_by_frames_and_sorts_by_difference() {
        let before = stacks(&[("forward", 10), ("loss", 20), ("old", 30), ("same", 40)]);
        // The line number of `loss` and the order of the stacks differ.
        let after = stacks(&[("same", 40), ("loss", 21), ("forward", 10), ("fresh", 50)]);
        let changes = changes(
            (&[by(1, 100), by(2, 50), by(3, 7), by(4, 9), by(0, 1)], &before),
            (&[by(1, 9), by(2, 10), by(3, 400), by(4, 3), by(0, 2)], &after),
        );
        let found: Vec<_> = changes
            .iter()
            .map(|change| (change.kind.word(), change.bytes(), change.words.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("grew", 300, "train.py:10 forward"),
                ("shrank", -40, "train.py:21 loss"),
                ("vanished", -7, "train.py:30 old"),
                ("new", 3, "train.py:50 fresh"),
                ("grew", 1, ""),
            ]
        );
    }

    #[test]
    fn does_not_guess_between_several_stacks_that_differ_in_lines() {
        let before = stacks(&[("step", 10), ("step", 11)]);
        let after = stacks(&[("step", 12)]);
        let changes = changes((&[by(1, 5), by(2, 6)], &before), (&[by(1, 7)], &after));
        let kinds: Vec<_> = changes.iter().map(|change| change.kind).collect();
        assert_eq!(kinds, [ChangeKind::New, ChangeKind::Vanished, ChangeKind::Vanished]);
    }
}
