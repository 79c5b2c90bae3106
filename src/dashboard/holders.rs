//! The newest reading of what holds a process's GPU memory, with the growth since the first reading, for each process
//! whose holders the user has viewed.

use std::sync::Arc;

use gputop_model::frame::Frame;
use gputop_model::gpu::Gpu;
use gputop_model::holders::growth::{GroupGrowth, HolderGrowth};
use gputop_model::holders::{GroupKey, HeldTensor, HolderGroup, Holders, READING_INTERVAL};
use gputop_model::memory_size;
use gputop_model::process::ProcessKey;
use gputop_model::reading::Missing;
use gputop_model::units::{Bytes, Millis};

use crate::dashboard::holder_growth::growth_note;
use crate::dashboard::pools::gpu_of;

/// Maximum age of a reading whose growth is noted on the overview. Older readings may be outdated, because no readings
/// are taken after the holders screen is closed.
const MAX_NOTE_AGE: Millis = Millis(2 * READING_INTERVAL.0);

/// Maximum number of processes with retained readings. A recording sends the readings of all its processes.
const MAX_PROCESSES: usize = 64;
/// Maximum memory of the retained readings.
const MAX_BYTES: usize = 8 << 20;

type ReadingResult = Arc<Result<Holders, Missing>>;

/// The newest holder reading of each process, most recently read process first.
#[derive(Debug, Default)]
pub struct HolderReadings {
    list: Vec<ProcessReading>,
}

/// The newest successful holder reading of a process.
#[derive(Debug, Default)]
pub struct ProcessReading {
    process: ProcessKey,
    holders: Holders,
    pub growth: HolderGrowth,
    /// Holder groups as table rows, largest first.
    pub rows: Vec<HolderRow>,
    /// The reason why the latest reading failed, or `None` if it succeeded.
    pub failure: Option<Missing>,
    /// Approximate memory of the reading and of the sizes in `growth`.
    bytes: usize,
}

impl HolderReadings {
    /// Adds the result of a reading. If the reading failed, the previous reading is retained.
    pub fn take(&mut self, process: ProcessKey, result: &ReadingResult) {
        let at = self.list.iter().position(|reading| reading.process == process);
        let mut reading = at.map_or_else(ProcessReading::default, |at| self.list.remove(at));
        reading.process = process;
        match &**result {
            Ok(holders) => {
                reading.growth.push(holders);
                reading.rows = HolderRow::list(holders, &reading.growth);
                reading.bytes = memory_size::of(holders) + reading.growth.memory_size();
                reading.holders = holders.clone();
                reading.failure = None;
            }
            Err(why) => reading.failure = Some(why.clone()),
        }
        self.list.insert(0, reading);
        self.list.truncate(MAX_PROCESSES);
        let bytes =
            |list: &[ProcessReading]| -> usize { list.iter().map(|reading| reading.bytes).sum() };
        while self.list.len() > 1 && bytes(&self.list) > MAX_BYTES {
            self.list.pop();
        }
    }

    pub fn of(&self, process: ProcessKey) -> Option<&ProcessReading> {
        self.list.iter().find(|reading| reading.process == process)
    }

    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// Returns a note about a memory holder that is growing on a GPU, unless the reading is too old: `grows: losses[*],
    /// 2.10 GiB/h`.
    pub fn growth_note(&self, gpu: &Gpu, frame: &Frame) -> Option<String> {
        let pools = frame.pools.iter().flat_map(|pools| &*pools.list);
        let on_gpu: Vec<_> = pools
            .filter(|pool| gpu_of(frame, pool).is_some_and(|found| found.uuid == gpu.uuid))
            .map(|pool| (pool.process, pool.ordinal))
            .collect();
        self.list.iter().find_map(|reading| {
            let holders = reading.holders()?;
            let is_current = frame.mono.since(holders.at) <= MAX_NOTE_AGE;
            let (ordinal, note) = growth_note(holders, &reading.growth).filter(|_| is_current)?;
            on_gpu.contains(&(holders.process, ordinal)).then_some(note)
        })
    }

    /// Returns the process with the newest reading.
    pub fn newest(&self) -> Option<ProcessKey> {
        self.list.first().map(|reading| reading.process)
    }
}

impl ProcessReading {
    /// Returns the newest successful reading, or `None` if every reading failed.
    pub fn holders(&self) -> Option<&Holders> {
        (!self.rows.is_empty() || self.failure.is_none()).then_some(&self.holders)
    }

    pub fn group(&self, key: &GroupKey) -> Option<&HolderGroup> {
        self.holders.groups.iter().find(|group| {
            group.ordinal == key.ordinal && group.class == key.class && group.name == key.name
        })
    }

    /// Describes the holder of a memory block: `held by optimizer state opt.state[*]`.
    pub fn owner_text(&self, ordinal: u32, block: u64) -> Option<String> {
        let (group, tensor) = self.holders.owner(ordinal, block)?;
        let class = group.class.name();
        Some(match tensor.name.as_str() {
            "" => format!("held by {class}"),
            name => format!("held by {name} ({class})"),
        })
    }
}

/// A holder group as a table row.
#[derive(Debug, Clone, PartialEq)]
pub struct HolderRow {
    pub process: ProcessKey,
    pub key: GroupKey,
    pub bytes: Bytes,
    /// Percentage of the allocated bytes.
    pub percent: f64,
    pub count: u64,
    /// Data type of all tensors in the group, or `mixed`.
    pub dtype: String,
    pub shape: String,
    pub growth: Option<GroupGrowth>,
    /// True if the group's tensors are listed. A recording contains only their data types and shapes.
    pub lists_tensors: bool,
}

impl HolderRow {
    /// Returns the holder groups of a reading, largest first.
    pub fn list(holders: &Holders, growth: &HolderGrowth) -> Vec<Self> {
        let mixed = || "mixed".to_owned();
        let row = |group: &HolderGroup| Self {
            process: holders.process,
            key: group.key(),
            bytes: group.bytes,
            percent: holders.percent(group.bytes),
            count: group.count,
            dtype: if group.tensors.is_empty() {
                String::new()
            } else {
                group.common(|tensor| tensor.dtype.clone()).unwrap_or_else(mixed)
            },
            shape: if group.tensors.is_empty() {
                String::new()
            } else {
                group.common(HeldTensor::shape_text).unwrap_or_else(mixed)
            },
            growth: growth.of(group),
            lists_tensors: group.tensors.iter().all(|tensor| tensor.address != 0),
        };
        holders.groups.iter().map(row).collect()
    }
}
