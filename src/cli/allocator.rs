//! `gputop allocator PID`: what PyTorch's caching allocator of one process holds, read without touching it; and what its
//! other frameworks tell of their pools, where it has the Python hook.
//!
//! With `--pause` the map is read while the process is held still, which is the only thing in gputop that stops a
//! target: what a very busy program holds changes in every try without it.
//!
//! Exit codes: 0 read; 1 nothing to read there, and why; 2 denied or gone.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::WrapErr;
use serde::Serialize;

use super::{print, print_json, say};
use crate::allocator::fits::{Around, Fits};
use crate::allocator::fragmentation::Fragmentation;
use crate::collect::hook::reported_by;
use crate::collect::memory::MemoryError;
use crate::collect::memory::dump::Recorder;
use crate::collect::memory::live::Live;
use crate::collect::memory::pause::{PauseError, PauseStats, ThreadPause};
use crate::collect::torch::{Attached, DeviceStats, Failure, Stat};
use crate::model::frame::SCHEMA;
use crate::model::pool::{Allocator, Block, PoolId, PoolKind, PoolMap, Segment};
use crate::model::reading::{Missing, Reading};
use crate::model::reported_pool::{Framework, ReportedPool};
use crate::model::units::{Bytes, GpuUuid, Pid};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// A running process that uses PyTorch on a GPU, or JAX, TensorFlow, CuPy under `gputop run`
    pid: u32,
    /// List every block of every segment
    #[arg(long)]
    blocks: bool,
    /// Print JSON: sizes in bytes, a missing value as its reason
    #[arg(long)]
    json: bool,
    /// Hold the process still while its map is read, for at most 150 ms at a time: exact, however busy it is
    #[arg(long)]
    pause: bool,
    /// Write the memory that was looked at to a file, as test data
    #[arg(long, value_name = "FILE", hide = true)]
    dump: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document {
    schema: u32,
    pid: Pid,
    allocator: Allocator,
    #[serde(skip)]
    library: &'static str,
    devices: Reading<Vec<Device>>,
    /// Of other frameworks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    told: Vec<ReportedPoolJson>,
    /// With `--pause`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<Reading<Pause>>,
}

/// How the process was held.
#[derive(Debug, Serialize, Clone, Copy, Default)]
struct Pause {
    threads: usize,
    /// So often; again when a thread was caught in the middle of a change.
    times: u32,
    longest_us: u64,
    total_us: u64,
    /// At least once it was let go before all was read.
    cut_short: bool,
}

#[derive(Serialize)]
struct Device {
    ordinal: u32,
    gpu: Reading<GpuUuid>,
    /// The map is one moment.
    exact: bool,
    stats: Stats,
    largest_free_block: Reading<Bytes>,
    fits: Reading<Bytes>,
    free_histogram: Vec<Bucket>,
    segments: Reading<Vec<SegmentJson>>,
}

/// The aggregates, by the names of `torch.cuda.memory_stats()`.
#[derive(Serialize)]
struct Stats {
    allocated_bytes: Extent,
    reserved_bytes: Extent,
    active_bytes: Extent,
    inactive_split_bytes: Extent,
    requested_bytes: Reading<Extent>,
    segments: Extent,
    num_alloc_retries: i64,
    num_ooms: i64,
}

#[derive(Serialize, Clone, Copy)]
struct Extent {
    current: i64,
    peak: i64,
}

/// A pool of which the program itself tells.
#[derive(Serialize)]
struct ReportedPoolJson {
    framework: Framework,
    allocator: Allocator,
    #[serde(skip)]
    name: String,
    ordinal: u32,
    allocated_bytes: ToldExtent,
    reserved_bytes: ToldExtent,
    limit_bytes: Reading<Bytes>,
    largest_free_block: Reading<Bytes>,
}

#[derive(Serialize)]
struct ToldExtent {
    current: Reading<Bytes>,
    peak: Reading<Bytes>,
}

#[derive(Serialize)]
struct Bucket {
    up_to_bytes: u64,
    count: u64,
    bytes: u64,
}

/// A segment; its blocks only when they were asked for.
#[derive(Serialize)]
struct SegmentJson {
    address: u64,
    size: Bytes,
    pool: PoolKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool_id: Option<PoolId>,
    stream: u64,
    expandable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<Vec<Block>>,
}

/// How long a device that changes all the time is waited for.
const WHOLE_TRIES: u32 = 100;
const WHOLE_PAUSE: Duration = Duration::from_millis(3);

/// How often a process is held until the map is exact, and how long it goes on in between.
const HOLDS: u32 = 5;
const BETWEEN_HOLDS: Duration = Duration::from_millis(2);

pub fn run(args: &Args) -> Result<u8> {
    let pid = Pid(args.pid);
    let proc_root = Path::new("/proc");
    if let Some(file) = &args.dump {
        return record(proc_root, pid, file);
    }
    let (mut document, code) = match read(proc_root, pid, args) {
        Ok(document) => (document, 0),
        Err(failure) => (unread(pid, &failure), exit_code(&failure)),
    };
    document.told = reported_by(proc_root, pid)
        .others
        .into_iter()
        .map(ReportedPoolJson::from)
        .collect();
    let is_told = !document.told.is_empty();
    if args.json {
        print_json(&(serde_json::to_string_pretty(&document)? + "\n"))?;
    } else {
        if document.devices.value().is_some() || is_told {
            print(&text(&document))?;
        }
        if let Reading::Missing(why) = &document.devices {
            say(&format!("gputop: PID {pid}: {why}\n"));
        }
    }
    Ok(if is_told { 0 } else { code })
}

fn read(proc_root: &Path, pid: Pid, args: &Args) -> Result<Document, Failure> {
    let mut attached = Attached::open(proc_root, pid)?;
    let (found, pause) = if args.pause {
        match read_held(proc_root, pid, &mut attached)? {
            Ok((found, pause)) => (found, Some(Reading::Value(pause))),
            Err(why) => {
                let why = Missing::new(why.reason(), format!("not held: {why}"));
                (read_running(&mut attached)?, Some(Reading::Missing(why)))
            }
        }
    } else {
        (read_running(&mut attached)?, None)
    };
    if attached.is_forked_copy(proc_root, pid) {
        return Err(Failure::Forked);
    }
    let mut devices = Vec::new();
    for (stats, map) in found {
        let (map, stats) = match map {
            Err(error @ Failure::Memory(MemoryError::Gone)) => return Err(error),
            // An exact map belongs beside the statistics of its own moment.
            Ok((map, beside)) if map.exact => (Ok(map), beside),
            other => (other.map(|(map, _)| map), stats),
        };
        let largest = attached.largest_free_block(stats.ordinal);
        devices.push(device(&stats, largest, map, args.blocks));
    }
    Ok(Document {
        schema: SCHEMA,
        pid,
        allocator: Allocator::Native,
        library: attached.library(),
        devices: devices.into(),
        told: Vec::new(),
        pause,
    })
}

/// A device's statistics, and its map with those that it was held against.
type DeviceReadout = (DeviceStats, Result<(PoolMap, DeviceStats), Failure>);

/// The map of every device that a process uses, and what its library was recognised as.
pub(super) fn maps(proc_root: &Path, pid: Pid) -> Result<(Vec<PoolMap>, &'static str), Failure> {
    let mut attached = Attached::open(proc_root, pid)?;
    let found = read_running(&mut attached)?;
    if attached.is_forked_copy(proc_root, pid) {
        return Err(Failure::Forked);
    }
    let maps: Result<Vec<PoolMap>, Failure> =
        found.into_iter().map(|(_, map)| Ok(map?.0)).collect();
    Ok((maps?, attached.library()))
}

fn read_running(attached: &mut Attached<Live>) -> Result<Vec<DeviceReadout>, Failure> {
    let found = in_use(whole(attached)?).into_iter().map(|stats| {
        let map = attached.map_and_stats(stats.ordinal);
        (stats, map)
    });
    Ok(found.collect())
}

/// Holds the process again when a thread stood in the middle of a change: its allocator is then half of two moments.
fn read_held(
    proc_root: &Path,
    pid: Pid,
    attached: &mut Attached<Live>,
) -> Result<Result<(Vec<DeviceReadout>, Pause), PauseError>, Failure> {
    let is_exact = |found: &DeviceReadout| found.1.as_ref().is_ok_and(|(map, _)| map.exact);
    let mut pause = Pause::default();
    loop {
        let hold = match ThreadPause::new(proc_root, pid) {
            Ok(hold) => hold,
            Err(why) => return Ok(Err(why)),
        };
        let found = read_standing(attached);
        pause.note(hold.release());
        let is_last = pause.times >= HOLDS;
        match found {
            Ok(found) if is_last || found.iter().all(is_exact) => return Ok(Ok((found, pause))),
            Err(failure) if is_last || failure != Failure::Busy => return Err(failure),
            _ => std::thread::sleep(BETWEEN_HOLDS),
        }
    }
}

fn read_standing(attached: &mut Attached<Live>) -> Result<Vec<DeviceReadout>, Failure> {
    let stats = attached.stats()?;
    if stats.len() < attached.devices().len() {
        return Err(Failure::Busy);
    }
    let found = in_use(stats).into_iter().map(|stats| {
        let map = attached.map_of_paused(stats.ordinal);
        (stats, map)
    });
    Ok(found.collect())
}

/// The devices that anything was asked of; of a process that asked for nothing yet, one.
fn in_use(mut stats: Vec<DeviceStats>) -> Vec<DeviceStats> {
    if stats.iter().any(DeviceStats::is_used) {
        stats.retain(DeviceStats::is_used);
    } else {
        stats.truncate(1);
    }
    stats
}

/// The statistics of every device. One that changed in every try is left out of a sample, and here nothing comes after
/// it: the devices that are left would stand for all, untouched ones for a busy one.
fn whole(attached: &mut Attached<Live>) -> Result<Vec<DeviceStats>, Failure> {
    for _ in 0..WHOLE_TRIES {
        let stats = attached.stats()?;
        if stats.len() == attached.devices().len() {
            return Ok(stats);
        }
        std::thread::sleep(WHOLE_PAUSE);
    }
    Err(Failure::Busy)
}

fn device(
    stats: &DeviceStats,
    largest: Reading<Bytes>,
    map: Result<PoolMap, Failure>,
    blocks: bool,
) -> Device {
    let exact = map.as_ref().is_ok_and(|map| map.exact);
    let (found, fits) = match &map {
        Ok(map) => (
            Fragmentation::of(map),
            Fits::of_map(map, &Around::with_free(None)).cache,
        ),
        Err(_) => (Fragmentation::default(), None),
    };
    let segments: Reading<Vec<Segment>> =
        Reading::from(map.map(|map| map.segments).map_err(|why| why.missing()));
    // What is free in a graph's or a MemPool's own memory serves nobody else.
    let shared = found
        .by_stream
        .iter()
        .filter(|shelf| shelf.pool != PoolKind::Private);
    let largest = match shared.map(|shelf| shelf.largest).max() {
        Some(largest) if exact => largest.into(),
        _ => largest,
    };
    // The driver is not asked here: what fits from the cache alone.
    let fits = fits
        .filter(|_| exact)
        .map_or_else(|| largest.clone(), Reading::Value);
    let bars = found.histogram.iter();
    Device {
        ordinal: stats.ordinal,
        gpu: Reading::default(),
        exact,
        stats: Stats::from(stats),
        fits,
        largest_free_block: largest,
        free_histogram: bars
            .map(|bar| Bucket {
                up_to_bytes: bar.up_to.0,
                count: bar.count,
                bytes: bar.bytes.0,
            })
            .collect(),
        segments: segments.map(|s| s.into_iter().map(|s| SegmentJson::new(s, blocks)).collect()),
    }
}

impl From<&DeviceStats> for Stats {
    fn from(stats: &DeviceStats) -> Self {
        let requested = stats.pool_stats().requested;
        Self {
            allocated_bytes: stats.allocated_bytes.all.into(),
            reserved_bytes: stats.reserved_bytes.all.into(),
            active_bytes: stats.active_bytes.all.into(),
            inactive_split_bytes: stats.inactive_split_bytes.all.into(),
            requested_bytes: match (stats.requested_bytes, requested) {
                (Some(requested), _) => Reading::Value(requested.all.into()),
                (None, Reading::Missing(why)) => Reading::Missing(why),
                (None, Reading::Value(_)) => Reading::Missing(Missing::default()),
            },
            segments: stats.segment.all.into(),
            num_alloc_retries: stats.num_alloc_retries,
            num_ooms: stats.num_ooms,
        }
    }
}

impl From<Stat> for Extent {
    fn from(stat: Stat) -> Self {
        Self {
            current: stat.current,
            peak: stat.peak,
        }
    }
}

impl From<ReportedPool> for ReportedPoolJson {
    fn from(told: ReportedPool) -> Self {
        Self {
            framework: told.framework,
            allocator: told.allocator,
            name: told.name(),
            ordinal: told.ordinal,
            allocated_bytes: ToldExtent {
                current: told.allocated,
                peak: told.allocated_peak,
            },
            reserved_bytes: ToldExtent {
                current: told.reserved,
                peak: told.reserved_peak,
            },
            limit_bytes: told.limit,
            largest_free_block: told.largest_free_block,
        }
    }
}

impl SegmentJson {
    fn new(segment: Segment, blocks: bool) -> Self {
        Self {
            address: segment.address,
            size: segment.size,
            pool: segment.pool,
            pool_id: segment.pool_id,
            stream: segment.stream,
            expandable: segment.expandable,
            blocks: blocks.then_some(segment.blocks),
        }
    }
}

impl Pause {
    fn note(&mut self, held: Option<PauseStats>) {
        self.times += 1;
        let Some(held) = held else {
            return;
        };
        let us = u64::try_from(held.time.as_micros()).unwrap_or(u64::MAX);
        self.threads = held.threads;
        self.longest_us = self.longest_us.max(us);
        self.total_us += us;
        self.cut_short |= held.is_cut_short;
    }

    fn words(self) -> String {
        let ms = |us: u64| format!("{}.{} ms", us / 1_000, us / 100 % 10);
        let mut words = format!(
            "its {} threads were held for {}",
            self.threads,
            ms(self.total_us)
        );
        if self.times > 1 {
            let _ = write!(
                words,
                ", in {} parts of at most {}",
                self.times,
                ms(self.longest_us)
            );
        }
        if self.cut_short {
            words.push_str("; let go at the limit, before all was read");
        }
        words
    }
}

fn unread(pid: Pid, failure: &Failure) -> Document {
    Document {
        schema: SCHEMA,
        pid,
        allocator: failure.allocator(),
        library: "",
        devices: Reading::Missing(failure.missing()),
        told: Vec::new(),
        pause: None,
    }
}

pub(super) fn exit_code(failure: &Failure) -> u8 {
    match failure {
        Failure::Memory(_) | Failure::Changed => 2,
        _ => 1,
    }
}

fn text(document: &Document) -> String {
    let mut text = format!("PID {}  {}\n", document.pid, document.library);
    let _ = match &document.pause {
        Some(Reading::Value(pause)) => writeln!(text, "{}", pause.words()),
        Some(Reading::Missing(why)) => writeln!(text, "{why}; read while it ran"),
        None => Ok(()),
    };
    for device in document.devices.value().into_iter().flatten() {
        write_device(&mut text, device);
    }
    for told in &document.told {
        write_told(&mut text, told);
    }
    text
}

fn write_told(text: &mut String, told: &ReportedPoolJson) {
    let ReportedPoolJson { name, ordinal, .. } = told;
    let _ = writeln!(
        text,
        "\ndevice {ordinal}  {name}, told by the program itself"
    );
    let mut line = |name: &str, size: &Reading<Bytes>, peak: Option<Bytes>| {
        let size = words(size);
        let peak = peak.map_or(String::new(), |peak| {
            format!("   peak {:>12}", peak.to_string())
        });
        let _ = writeln!(text, "  {name:<22}{size:>12}{peak}");
    };
    let (allocated, reserved) = (&told.allocated_bytes, &told.reserved_bytes);
    line("allocated", &allocated.current, allocated.peak.get());
    line("reserved", &reserved.current, reserved.peak.get());
    line("limit", &told.limit_bytes, None);
    line("largest free block", &told.largest_free_block, None);
}

/// The size, or a dash and the reason.
fn words(size: &Reading<Bytes>) -> String {
    match size {
        Reading::Value(size) => size.to_string(),
        Reading::Missing(why) => format!("– {why}"),
    }
}

fn write_device(text: &mut String, device: &Device) {
    let stats = &device.stats;
    let idle = stats.reserved_bytes.current - stats.allocated_bytes.current;
    let _ = writeln!(text, "\ndevice {}", device.ordinal);
    write_line(text, "allocated", stats.allocated_bytes);
    write_bytes(text, "idle", idle);
    write_line(text, "  inactive split", stats.inactive_split_bytes);
    write_line(text, "reserved", stats.reserved_bytes);
    write_line(text, "active", stats.active_bytes);
    match stats.requested_bytes {
        Reading::Value(requested) => write_line(text, "requested", requested),
        Reading::Missing(ref why) => {
            let _ = writeln!(text, "  {:<22}– {why}", "requested");
        }
    }
    let largest = words(&device.largest_free_block);
    let _ = writeln!(text, "  {:<22}{largest:>12}", "largest free block");
    let _ = writeln!(
        text,
        "  segments {}   retries {}   OOM {}",
        stats.segments.current, stats.num_alloc_retries, stats.num_ooms
    );
    write_segments(text, device);
}

fn write_line(text: &mut String, name: &str, extent: Extent) {
    let (current, peak) = (bytes(extent.current), bytes(extent.peak));
    let _ = writeln!(text, "  {name:<22}{current:>12}   peak {peak:>12}");
}

fn write_bytes(text: &mut String, name: &str, current: i64) {
    let current = bytes(current);
    let _ = writeln!(text, "  {name:<22}{current:>12}");
}

/// Aligned, which `Bytes` itself does not do.
fn bytes(number: i64) -> String {
    Bytes(u64::try_from(number).unwrap_or_default()).to_string()
}

fn write_segments(text: &mut String, device: &Device) {
    let segments = match &device.segments {
        Reading::Value(segments) => segments,
        Reading::Missing(why) => {
            let _ = writeln!(text, "  map: {why}");
            return;
        }
    };
    if !device.exact {
        let _ = writeln!(
            text,
            "  map approximate: the allocator changed during every read"
        );
    }
    for segment in segments.iter().filter(|segment| segment.blocks.is_some()) {
        let _ = writeln!(
            text,
            "  {:#014x} {:>12}  {:?}{}  stream {:#x}",
            segment.address,
            segment.size.to_string(),
            segment.pool,
            if segment.expandable {
                ", expandable"
            } else {
                ""
            },
            segment.stream
        );
        for block in segment.blocks.iter().flatten() {
            let size = block.size.to_string();
            let _ = writeln!(
                text,
                "    {:#014x} {size:>12}  {:?}",
                block.address, block.state
            );
        }
    }
}

/// Reads everything once and keeps what was read.
fn record(proc_root: &Path, pid: Pid, file: &Path) -> Result<u8> {
    let recorder = Recorder::new(Live::new(proc_root, pid));
    if let Err(failure) = read_all(&recorder) {
        say(&format!("gputop: PID {pid}: {failure}\n"));
    }
    let dump = recorder.into_dump().to_bytes()?;
    // It holds memory of that process.
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(file).and_then(|mut out| out.write_all(&dump));
    written.wrap_err_with(|| format!("writing {}", file.display()))?;
    Ok(0)
}

fn read_all(recorder: &Recorder<Live>) -> Result<(), Failure> {
    let mut attached = Attached::attach(recorder)?;
    for stats in attached.stats()? {
        attached.map(stats.ordinal)?;
        let _ = attached.largest_free_block(stats.ordinal);
    }
    Ok(())
}
