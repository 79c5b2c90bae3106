//! The objects of a pickle while it is being read. A dictionary that describes an event, a block, a segment or a frame
//! becomes a record as soon as its type is known, so memory never contains a tree of a hundred million nodes.

use gputop_model::{Block, BlockState, Segment, StackFrame};
use indexmap::IndexSet;

use super::device::Held;
use super::record::{
    BlockRecord, FrameRecord, Lane, NO_TIME, PickleValue, SegmentRecord, StackId, TraceAction,
    TraceEvent,
};
use super::text::{self, TextId, Texts};
use crate::trace::PoolId;

/// Maximum length of file and function names. C++ function names are the longest.
pub const MAX_TEXT: usize = 500;
/// Maximum number of objects. Ten million events need twenty million objects.
const MAX_OBJECTS: usize = 80_000_000;
/// Maximum number of dictionary entries to search for a key, starting from the end. A `history` entry has four keys.
const MAX_FIELDS: usize = 64;
/// Maximum number of frames per stack, counted from the innermost. Python's own limit is 1000.
const MAX_STACK_FRAMES: usize = 1_024;

/// Memory needed for a record and everything derived from it in the snapshot, the history and the printed text.
const EVENT_BYTES: usize = 2 * size_of::<TraceEvent>() + 32;
const BLOCK_BYTES: usize = size_of::<BlockRecord>() + size_of::<Block>() + size_of::<Held>();
const SEGMENT_BYTES: usize = size_of::<SegmentRecord>() + size_of::<Segment>() + 320;
/// Memory for an interned value: a list entry plus an entry in a hash table that grows by doubling.
const INTERNED_BYTES: usize = 96;

#[derive(Debug, Clone, Copy)]
pub enum Object {
    EmptyDict,
    Dict(u32),
    EmptyList,
    List(u32),
    /// A list of frames that has already been converted to a stack.
    Stack(StackId),
    /// A tuple of two integers. In a snapshot, such a tuple is always a pool ID.
    Pair(PoolIndex),
    Event(u32),
    Block(u32),
    Segment(u32),
    Frame(u32),
}

/// A pool, as an index into [`PickleStore::pairs`].
pub type PoolIndex = u32;

/// A part of a list. Consecutively created records form one run.
#[derive(Debug, Clone, Copy)]
pub enum RecordRun {
    Value(PickleValue),
    Events(u32, u32),
    Blocks(u32, u32),
    Segments(u32, u32),
    Frames(u32, u32),
}

#[derive(Default)]
pub struct PickleStore {
    pub texts: Texts,
    objects: Vec<Object>,
    dicts: Vec<Vec<(PickleValue, PickleValue)>>,
    lists: Vec<Vec<RecordRun>>,
    /// Memory used by `dicts`, `lists`, `stacks` and `distinct`.
    container_bytes: usize,
    pub events: Vec<TraceEvent>,
    pub blocks: Vec<BlockRecord>,
    pub segments: Vec<SegmentRecord>,
    frames: Vec<FrameRecord>,
    /// The frames of each stack, innermost first, as indices into `distinct`.
    pub stacks: IndexSet<Box<[u32]>>,
    pub distinct: IndexSet<FrameRecord>,
    pairs: IndexSet<PoolId>,
    pub lanes: IndexSet<Lane>,
    last_lane: u16,
}

const NOT_A_LIST: &str = "a value is appended to something other than a list";
const NOT_A_DICTIONARY: &str = "an item is set in something other than a dictionary";

/// Reason why a value is not allowed in a snapshot, for use after `damaged at byte 5: `.
pub type Fault = String;

impl PickleStore {
    pub fn new() -> Self {
        Self {
            texts: Texts::new(),
            stacks: IndexSet::from([Box::default()]),
            pairs: IndexSet::from([PoolId::SHARED]),
            lanes: IndexSet::from([Lane::default()]),
            ..Self::default()
        }
    }

    /// Adds an object. Returns `None` if the maximum number of objects is reached.
    #[inline]
    pub fn add(&mut self, object: Object) -> Option<PickleValue> {
        if self.objects.len() >= MAX_OBJECTS {
            return None;
        }
        let id = number(self.objects.len());
        self.objects.push(object);
        Some(PickleValue::Object(id))
    }

    pub fn tuple(&mut self, items: &[PickleValue]) -> Option<PickleValue> {
        if let &[PickleValue::Int(a), PickleValue::Int(b)] = items
            && let (Ok(a), Ok(b)) = (u64::try_from(a), u64::try_from(b))
        {
            let (id, _) = self.pairs.insert_full(PoolId(a, b));
            return self.add(Object::Pair(number(id)));
        }
        let tuple = self.add(Object::EmptyList)?;
        // The new tuple is stored as a list, so the append cannot fail.
        let _ = self.append(tuple, items);
        Some(tuple)
    }

    /// Appends items to a list. Fails if `list` does not refer to a list.
    pub fn append(&mut self, list: PickleValue, items: &[PickleValue]) -> Result<(), Fault> {
        let PickleValue::Object(id) = list else { return Err(NOT_A_LIST.into()) };
        let at = match self.objects[id as usize] {
            Object::EmptyList if items.is_empty() => return Ok(()),
            Object::EmptyList => {
                let at = number(self.lists.len());
                // Reserve room for a single run, because most lists have only one. The default capacity would be four.
                self.lists.push(Vec::with_capacity(1));
                self.container_bytes += size_of::<Vec<RecordRun>>() + size_of::<RecordRun>();
                self.objects[id as usize] = Object::List(at);
                at
            }
            Object::List(at) => at,
            _ => return Err(NOT_A_LIST.into()),
        };
        for &item in items {
            let run = match item {
                PickleValue::Object(id) => match self.objects[id as usize] {
                    Object::Event(n) => RecordRun::Events(n, n + 1),
                    Object::Block(n) => RecordRun::Blocks(n, n + 1),
                    Object::Segment(n) => RecordRun::Segments(n, n + 1),
                    Object::Frame(n) => RecordRun::Frames(n, n + 1),
                    _ => RecordRun::Value(item),
                },
                _ => RecordRun::Value(item),
            };
            let runs = &mut self.lists[at as usize];
            if !runs.last_mut().is_some_and(|last| last.extend(run)) {
                let before = runs.capacity();
                runs.push(run);
                self.container_bytes += (runs.capacity() - before) * size_of::<RecordRun>();
            }
        }
        Ok(())
    }

    /// Sets dictionary entries; `items` contains keys and values alternately. Fails if `dict` does not refer to a
    /// dictionary, or if a value does not match its key.
    pub fn set(&mut self, dict: PickleValue, items: &[PickleValue]) -> Result<(), Fault> {
        let PickleValue::Object(id) = dict else { return Err(NOT_A_DICTIONARY.into()) };
        if !items.len().is_multiple_of(2) {
            return Err("a dictionary key has no value".into());
        }
        let pairs = || items.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        let mut object = self.objects[id as usize];
        if matches!(object, Object::EmptyDict)
            && let Some(record) = pairs().find_map(|(key, _)| self.record(key))
        {
            object = record;
            self.objects[id as usize] = object;
        }
        match object {
            Object::EmptyDict if items.is_empty() => {}
            Object::EmptyDict => {
                self.objects[id as usize] = Object::Dict(number(self.dicts.len()));
                self.dicts.push(pairs().collect());
                self.container_bytes += size_of_val(items) + size_of::<Vec<PickleValue>>();
            }
            Object::Dict(at) => {
                let dict = &mut self.dicts[at as usize];
                let before = dict.capacity();
                dict.extend(pairs());
                self.container_bytes +=
                    (dict.capacity() - before) * size_of::<(PickleValue, PickleValue)>();
            }
            Object::EmptyList | Object::List(_) | Object::Stack(_) | Object::Pair(_) => {
                return Err(NOT_A_DICTIONARY.into());
            }
            record => {
                for (key, value) in pairs() {
                    self.set_field(record, key, value)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the memory that the store and all data derived from it will take.
    pub fn memory(&self) -> usize {
        self.container_bytes
            + self.texts.memory()
            + self.objects.len() * size_of::<Object>()
            + self.events.len() * EVENT_BYTES
            + self.blocks.len() * BLOCK_BYTES
            + self.segments.len() * SEGMENT_BYTES
            + self.frames.len() * size_of::<FrameRecord>()
            + self.pairs.len() * INTERNED_BYTES
    }

    /// Creates a new record if this key identifies the kind of record that its dictionary describes.
    #[inline]
    fn record(&mut self, key: PickleValue) -> Option<Object> {
        let PickleValue::Text(key) = key else { return None };
        Some(match key {
            text::ACTION => {
                self.events.push(TraceEvent::default());
                Object::Event(number(self.events.len() - 1))
            }
            text::FILENAME => {
                self.frames.push(FrameRecord::default());
                Object::Frame(number(self.frames.len() - 1))
            }
            text::STATE => {
                self.blocks.push(BlockRecord::default());
                Object::Block(number(self.blocks.len() - 1))
            }
            text::TOTAL_SIZE => {
                self.segments.push(SegmentRecord::default());
                Object::Segment(number(self.segments.len() - 1))
            }
            _ => return None,
        })
    }

    #[inline]
    fn set_field(
        &mut self,
        record: Object,
        key: PickleValue,
        value: PickleValue,
    ) -> Result<(), Fault> {
        let PickleValue::Text(key) = key else { return Ok(()) };
        match record {
            Object::Event(n) => self.set_event(n as usize, key, value),
            Object::Block(n) => self.set_block(n as usize, key, value),
            Object::Segment(n) => self.set_segment(n as usize, key, value),
            Object::Frame(n) => self.set_frame(n as usize, key, value),
            _ => Ok(()),
        }
    }

    #[inline]
    fn set_event(&mut self, n: usize, key: TextId, value: PickleValue) -> Result<(), Fault> {
        match key {
            text::ACTION => self.events[n].action = self.action(value)?,
            text::ADDR | text::DEVICE_FREE => self.events[n].addr = unsigned(key, value, self)?,
            text::SIZE => self.events[n].size = unsigned(key, value, self)?,
            text::TIME_US => {
                self.events[n].time_us = match value {
                    PickleValue::Int(time) => time,
                    _ => NO_TIME,
                }
            }
            text::FRAMES => self.events[n].stack = self.stack(value),
            text::STREAM => {
                let pool = self.lanes[usize::from(self.events[n].lane)].pool;
                let stream = handle(key, value, self)?;
                self.events[n].lane = self.lane(Lane { stream, pool })?;
            }
            text::POOL_ID | text::SEGMENT_POOL_ID => {
                let stream = self.lanes[usize::from(self.events[n].lane)].stream;
                let pool = self.pool(value);
                self.events[n].lane = self.lane(Lane { stream, pool })?;
            }
            _ => {}
        }
        Ok(())
    }

    fn set_block(&mut self, n: usize, key: TextId, value: PickleValue) -> Result<(), Fault> {
        match key {
            text::ADDRESS => self.blocks[n].address = Some(unsigned(key, value, self)?),
            text::SIZE => self.blocks[n].size = unsigned(key, value, self)?,
            text::REQUESTED_SIZE => self.blocks[n].requested = Some(unsigned(key, value, self)?),
            text::STATE => self.blocks[n].state = state(value),
            text::FRAMES => self.blocks[n].stack = self.stack(value),
            // torch 2.0 and earlier write a list of the block's uses, the current one first.
            text::HISTORY => {
                let Some(&RecordRun::Value(present)) = self.runs(value).and_then(<[_]>::first)
                else {
                    return Ok(());
                };
                if let Some(frames) = self.get(present, text::FRAMES) {
                    self.blocks[n].stack = self.stack(frames);
                }
                if let Some(size) = self.get(present, text::REAL_SIZE) {
                    self.blocks[n].requested = Some(unsigned(text::REAL_SIZE, size, self)?);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn set_segment(&mut self, n: usize, key: TextId, value: PickleValue) -> Result<(), Fault> {
        match key {
            text::ADDRESS => self.segments[n].address = unsigned(key, value, self)?,
            text::TOTAL_SIZE => self.segments[n].total_size = unsigned(key, value, self)?,
            text::STREAM => self.segments[n].stream = handle(key, value, self)?,
            text::DEVICE => {
                let device = u32::try_from(unsigned(key, value, self)?);
                self.segments[n].device = device.map_err(|_| "invalid device number")?;
            }
            text::SEGMENT_POOL_ID => self.segments[n].pool = self.pool(value),
            text::SEGMENT_TYPE => {
                self.segments[n].is_large = match value {
                    PickleValue::Text(text::LARGE) => Some(true),
                    PickleValue::Text(text::SMALL) => Some(false),
                    _ => None,
                }
            }
            text::IS_EXPANDABLE => {
                self.segments[n].is_expandable = value == PickleValue::Bool(true);
            }
            text::BLOCKS => {
                self.segments[n].blocks = Some(value);
            }
            _ => {}
        }
        Ok(())
    }

    fn set_frame(&mut self, n: usize, key: TextId, value: PickleValue) -> Result<(), Fault> {
        match (key, value) {
            (text::FILENAME, PickleValue::Text(file)) => self.frames[n].file = file,
            (text::NAME, PickleValue::Text(function)) => self.frames[n].function = function,
            (text::LINE, PickleValue::Int(line)) => {
                self.frames[n].line = u32::try_from(line).unwrap_or(0);
            }
            _ => {}
        }
        Ok(())
    }

    #[inline]
    fn lane(&mut self, lane: Lane) -> Result<u16, Fault> {
        if self.lanes[usize::from(self.last_lane)] == lane {
            return Ok(self.last_lane);
        }
        let (id, _) = self.lanes.insert_full(lane);
        self.last_lane = u16::try_from(id).map_err(|_| "more than 65535 streams and pools")?;
        Ok(self.last_lane)
    }

    fn pool(&self, value: PickleValue) -> PoolId {
        match value {
            PickleValue::Object(id) => match self.objects[id as usize] {
                Object::Pair(pair) => self.pairs[pair as usize],
                _ => PoolId::SHARED,
            },
            _ => PoolId::SHARED,
        }
    }

    fn action(&self, value: PickleValue) -> Result<TraceAction, Fault> {
        let PickleValue::Text(text) = value else {
            return Err(format!("event has an unknown action: {}", self.describe(value)));
        };
        Ok(match text {
            text::ALLOC => TraceAction::Alloc,
            text::FREE_REQUESTED | text::FREE => TraceAction::FreeRequested,
            text::FREE_COMPLETED => TraceAction::FreeCompleted,
            text::SEGMENT_ALLOC => TraceAction::SegmentAlloc,
            text::SEGMENT_FREE => TraceAction::SegmentFree,
            text::SEGMENT_MAP => TraceAction::SegmentMap,
            text::SEGMENT_UNMAP => TraceAction::SegmentUnmap,
            text::SNAPSHOT => TraceAction::Snapshot,
            text::OOM => TraceAction::Oom,
            text::USER_DEFINED => TraceAction::UserDefined,
            _ => TraceAction::Unknown,
        })
    }

    /// Returns the stack for a list of frames; equal lists share one stack.
    #[inline]
    fn stack(&mut self, frames: PickleValue) -> StackId {
        let PickleValue::Object(id) = frames else { return 0 };
        match self.objects[id as usize] {
            Object::Stack(stack) => stack,
            Object::List(at) => {
                let stack = self.intern_stack(at as usize);
                self.objects[id as usize] = Object::Stack(stack);
                stack
            }
            _ => 0,
        }
    }

    #[cold]
    fn intern_stack(&mut self, list: usize) -> StackId {
        let runs = std::mem::take(&mut self.lists[list]);
        self.container_bytes -= runs.capacity() * size_of::<RecordRun>();
        let mut frames = Vec::new();
        for run in runs {
            let RecordRun::Frames(from, to) = run else { continue };
            for frame in &self.frames[from as usize..to as usize] {
                let (id, is_new) = self.distinct.insert_full(*frame);
                if is_new {
                    // Each frame gets its own copy of its strings, and escaping may turn one byte into four.
                    let shown = |text| self.texts.get(text).len().min(MAX_TEXT) * 4;
                    let texts = shown(frame.file) + shown(frame.function);
                    self.container_bytes += INTERNED_BYTES + size_of::<StackFrame>() + texts;
                }
                frames.push(number(id));
            }
        }
        frames.truncate(MAX_STACK_FRAMES);
        let bytes = size_of_val(&frames[..]);
        let (id, is_new) = self.stacks.insert_full(frames.into());
        if is_new {
            self.container_bytes += bytes + INTERNED_BYTES;
        }
        number(id)
    }

    /// Returns the runs of a list, or `None` if `value` is not a list.
    pub fn runs(&self, value: PickleValue) -> Option<&[RecordRun]> {
        let PickleValue::Object(id) = value else { return None };
        match self.objects[id as usize] {
            Object::List(at) => Some(&self.lists[at as usize]),
            Object::EmptyList => Some(&[]),
            _ => None,
        }
    }

    /// Returns the entries of a dictionary, or `None` if `value` is not a dictionary.
    pub fn pairs_of(&self, value: PickleValue) -> Option<&[(PickleValue, PickleValue)]> {
        let PickleValue::Object(id) = value else { return None };
        match self.objects[id as usize] {
            Object::Dict(at) => Some(&self.dicts[at as usize]),
            Object::EmptyDict => Some(&[]),
            _ => None,
        }
    }

    /// Returns the value of a key. If the key was set more than once, returns the last value.
    pub fn get(&self, dict: PickleValue, key: TextId) -> Option<PickleValue> {
        let mut pairs = self.pairs_of(dict)?.iter().rev().take(MAX_FIELDS);
        pairs.find(|(k, _)| *k == PickleValue::Text(key)).map(|(_, value)| *value)
    }

    /// Describes a value, for use after `it is `: `a number`.
    pub fn describe(&self, value: PickleValue) -> &'static str {
        match value {
            PickleValue::None => "None",
            PickleValue::Bool(_) => "a boolean",
            PickleValue::Int(_)
            | PickleValue::Large(_)
            | PickleValue::Huge
            | PickleValue::Float(_) => "a number",
            PickleValue::Text(_) => "a string",
            PickleValue::Object(id) => match self.objects[id as usize] {
                Object::EmptyDict | Object::Dict(_) => "a dictionary",
                Object::EmptyList | Object::List(_) | Object::Stack(_) => "a list",
                Object::Pair(_) => "a tuple",
                _ => "a part of a snapshot",
            },
        }
    }
}

impl RecordRun {
    /// Extends the run by `next` if `next` directly follows it. Returns false otherwise.
    #[inline]
    fn extend(&mut self, next: Self) -> bool {
        match (self, next) {
            (Self::Events(_, end), Self::Events(from, to))
            | (Self::Blocks(_, end), Self::Blocks(from, to))
            | (Self::Segments(_, end), Self::Segments(from, to))
            | (Self::Frames(_, end), Self::Frames(from, to))
                if *end == from =>
            {
                *end = to;
                true
            }
            _ => false,
        }
    }
}

/// Converts an index to `u32`. No collection has more than [`MAX_OBJECTS`] entries.
#[inline]
fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[inline]
fn unsigned(key: TextId, value: PickleValue, store: &PickleStore) -> Result<u64, Fault> {
    match value {
        PickleValue::Int(n) if n >= 0 => Ok(n.cast_unsigned()),
        PickleValue::Large(n) => Ok(n),
        _ => Err(invalid_number(key, value, store)),
    }
}

/// Reads a stream handle: an address that PyTorch writes as a signed number.
#[inline]
fn handle(key: TextId, value: PickleValue, store: &PickleStore) -> Result<u64, Fault> {
    match value {
        PickleValue::Int(n) => Ok(n.cast_unsigned()),
        PickleValue::Large(n) => Ok(n),
        _ => Err(invalid_number(key, value, store)),
    }
}

#[cold]
fn invalid_number(key: TextId, value: PickleValue, store: &PickleStore) -> Fault {
    let key = String::from_utf8_lossy(store.texts.get(key));
    let what = match value {
        PickleValue::Int(_) => "negative",
        PickleValue::Huge | PickleValue::Float(_) => "not a whole number of bytes",
        other => store.describe(other),
    };
    format!("the field `{key}` is {what}")
}

fn state(value: PickleValue) -> BlockState {
    match value {
        PickleValue::Text(text::ACTIVE_ALLOCATED) => BlockState::Allocated,
        PickleValue::Text(text::ACTIVE_AWAITING_FREE | text::ACTIVE_PENDING_FREE) => {
            BlockState::Active
        }
        PickleValue::Text(text::INACTIVE) => BlockState::Free,
        _ => BlockState::Unknown,
    }
}
