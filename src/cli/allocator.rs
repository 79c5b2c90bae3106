//! `gputop allocator PID`: what PyTorch's caching allocator of one process holds, read without touching it.
//!
//! Exit codes: 0 read; 1 nothing to read there, and why; 2 denied or gone.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::WrapErr;
use serde::Serialize;

use super::print;
use crate::allocator::fits::{Around, Fits};
use crate::allocator::fragmentation::Fragmentation;
use crate::collect::memory::MemoryError;
use crate::collect::memory::dump::Recorder;
use crate::collect::memory::live::Live;
use crate::collect::torch::{Attached, DeviceStats, Failure, Stat};
use crate::model::frame::SCHEMA;
use crate::model::pool::{Allocator, Block, PoolKind, PoolMap, Segment};
use crate::model::reading::{Missing, Reading};
use crate::model::units::{Bytes, GpuUuid, Pid};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// A running process that uses PyTorch on a GPU
    pid: u32,
    /// List every block of every segment
    #[arg(long)]
    blocks: bool,
    /// Print JSON: sizes in bytes, a missing value as its reason
    #[arg(long)]
    json: bool,
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
    segments: Reading<Vec<Listed>>,
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

#[derive(Serialize)]
struct Bucket {
    up_to_bytes: u64,
    count: u64,
    bytes: u64,
}

/// A segment; its blocks only when they were asked for.
#[derive(Serialize)]
struct Listed {
    address: u64,
    size: Bytes,
    pool: PoolKind,
    stream: u64,
    expandable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<Vec<Block>>,
}

/// How long a device that changes all the time is waited for.
const WHOLE_TRIES: u32 = 100;
const WHOLE_PAUSE: Duration = Duration::from_millis(3);

pub fn run(args: &Args) -> Result<u8> {
    let pid = Pid(args.pid);
    let proc_root = Path::new("/proc");
    if let Some(file) = &args.dump {
        return record(proc_root, pid, file);
    }
    let (document, code) = match read(proc_root, pid, args.blocks) {
        Ok(document) => (document, 0),
        Err(failure) => (unread(pid, &failure), exit_code(&failure)),
    };
    if args.json {
        print(&(serde_json::to_string_pretty(&document)? + "\n"))?;
    } else if let Reading::Missing(why) = &document.devices {
        eprintln!("gputop: PID {pid}: {why}");
    } else {
        print(&text(&document))?;
    }
    Ok(code)
}

fn read(proc_root: &Path, pid: Pid, blocks: bool) -> Result<Document, Failure> {
    let mut attached = Attached::open(proc_root, pid)?;
    let mut stats = whole(&mut attached)?;
    if stats.iter().any(DeviceStats::is_touched) {
        stats.retain(DeviceStats::is_touched);
    } else {
        stats.truncate(1);
    }
    if attached.is_forked_copy(proc_root, pid) {
        return Err(Failure::Forked);
    }
    let mut devices = Vec::new();
    for stats in stats {
        let (map, stats) = match attached.map_and_stats(stats.ordinal) {
            Err(error @ Failure::Memory(MemoryError::Gone)) => return Err(error),
            // An exact map belongs beside the statistics of its own moment.
            Ok((map, beside)) if map.exact => (Ok(map), beside),
            other => (other.map(|(map, _)| map), stats),
        };
        let largest = attached.largest_free_block(stats.ordinal);
        devices.push(device(&stats, largest, map, blocks));
    }
    Ok(Document {
        schema: SCHEMA,
        pid,
        allocator: Allocator::Native,
        library: attached.library(),
        devices: devices.into(),
    })
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
        .shelves
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
        segments: segments.map(|s| s.into_iter().map(|s| Listed::new(s, blocks)).collect()),
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

impl Listed {
    fn new(segment: Segment, blocks: bool) -> Self {
        Self {
            address: segment.address,
            size: segment.size,
            pool: segment.pool,
            stream: segment.stream,
            expandable: segment.expandable,
            blocks: blocks.then_some(segment.blocks),
        }
    }
}

fn unread(pid: Pid, failure: &Failure) -> Document {
    Document {
        schema: SCHEMA,
        pid,
        allocator: failure.allocator(),
        library: "",
        devices: Reading::Missing(failure.missing()),
    }
}

fn exit_code(failure: &Failure) -> u8 {
    match failure {
        Failure::Memory(_) | Failure::Changed => 2,
        _ => 1,
    }
}

fn text(document: &Document) -> String {
    let mut text = format!("PID {}  {}\n", document.pid, document.library);
    for device in document.devices.value().into_iter().flatten() {
        write_device(&mut text, device);
    }
    text
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
    let _ = match &device.largest_free_block {
        Reading::Value(largest) => writeln!(text, "  {:<22}{largest:>12}", "largest free block"),
        Reading::Missing(why) => writeln!(text, "  {:<22}– {why}", "largest free block"),
    };
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
            "  map approximate: the allocator was changing all the time"
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
        eprintln!("gputop: PID {pid}: {failure}");
    }
    let dump = recorder.into_dump().to_bytes()?;
    std::fs::write(file, dump).wrap_err_with(|| format!("writing {}", file.display()))?;
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
