//! `gputop allocator PID`: prints the state of PyTorch's caching allocator, and of the pools of JAX, TensorFlow and CuPy, in a
//! process, read without stopping the process. If the process has the Python hook, it also prints the pools that it reports.
//!
//! With `--pause`, the memory map is read while the process is paused, because the allocator of a very busy program
//! changes during every unpaused read. No other command pauses a process in order to read it.
//!
//! Exit codes: 0 allocator read; 1 no allocator found; 2 permission denied, or process not found.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::WrapErr;
use gputop_allocator::fits::{FitConditions, Fits};
use gputop_allocator::fragmentation::{Bucket, Fragmentation};
use gputop_model::frame::SCHEMA;
use gputop_model::reported_pool::{PoolSource, other_allocator};
use gputop_model::{
    Allocator, Block, Bytes, GpuUuid, Missing, Pid, PoolKind, PoolMap, ProcessKey, Reading,
    ReportedPool, Segment,
};
use gputop_peek::bfc::{self, FoundPools, VtableCache};
use gputop_peek::memory::MemoryError;
use gputop_peek::memory::dump::DumpRecorder;
use gputop_peek::memory::live::Live;
use gputop_peek::memory::pause::{PauseError, PauseStats, ThreadPause};
use gputop_peek::process::stat::start_time;
use gputop_peek::torch::{AllocatorStat, Attached, DeviceStats, Failure};
use serde::{Serialize, Serializer};
use serde_json::json;

use super::print::{print, print_json, say};
use crate::collect::hook::reported_by;
use crate::collect::process::pool_conf_of;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Process that uses PyTorch, JAX, TensorFlow or CuPy on a GPU
    pid: u32,
    /// List all blocks of all segments
    #[arg(long)]
    blocks: bool,
    /// Print JSON, with sizes in bytes and a reason for each missing value
    #[arg(long)]
    json: bool,
    /// Pause the process for up to 150 ms at a time, to read an exact map of a busy program
    #[arg(long)]
    pause: bool,
    /// Write the memory that was read to a file, as test data
    #[arg(long, value_name = "FILE", hide = true)]
    dump: Option<PathBuf>,
}

#[derive(Serialize)]
struct AllocatorDocument {
    schema: u32,
    pid: Pid,
    allocator: Allocator,
    #[serde(skip)]
    library: &'static str,
    devices: Reading<Vec<DeviceDocument>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(serialize_with = "reported_pools")]
    reported_pools: Vec<ReportedPool>,
    /// Pools of pinned host memory, which are not part of GPU memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(serialize_with = "reported_pools")]
    pinned_host_pools: Vec<ReportedPool>,
    /// Regions and chunks of the pools of JAX and TensorFlow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    chunk_maps: Vec<ChunkMapDocument>,
    /// Live allocations of JAX in the CUDA driver's pools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    live_allocations: Vec<AllocationsDocument>,
    /// Details of the pauses. Set only with `--pause`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<Reading<Pause>>,
}

#[derive(Serialize)]
struct ChunkMapDocument {
    /// Name that the framework gave the pool: `GPU_0_bfc`.
    name: String,
    #[serde(skip)]
    place: bfc::Place,
    /// Bytes by which chunks in use are larger than requested.
    rounding_bytes: Reading<Bytes>,
    /// Largest request that the pool can serve without growing.
    fits: Reading<Bytes>,
    free_histogram: Vec<Bucket>,
    /// Regions, with their chunks if `--blocks` was given.
    segments: Reading<Vec<Segment>>,
}

/// Allocations in a pool that the CUDA driver manages.
#[derive(Debug, Serialize)]
struct AllocationsDocument {
    ordinal: u32,
    count: Reading<u64>,
    largest_bytes: Reading<Bytes>,
}

impl AllocationsDocument {
    fn new(pool: &bfc::AsyncPool, memory: &Live) -> Self {
        let live = pool.allocations(memory).map_err(bfc::Failure::from);
        let live = live.and_then(|live| live.ok_or(bfc::Failure::Busy));
        let live: Reading<Vec<(u64, u64)>> = live.map_err(|failure| failure.missing()).into();
        Self {
            ordinal: pool.ordinal,
            count: live.clone().map(|live| live.len() as u64),
            largest_bytes: live
                .map(|live| Bytes(live.into_iter().map(|(_, size)| size).max().unwrap_or(0))),
        }
    }
}

impl ChunkMapDocument {
    fn new(allocator: &bfc::Allocator, map: Result<PoolMap, bfc::Failure>, blocks: bool) -> Self {
        let map = Reading::from(map.map_err(|failure| failure.missing()));
        let found = map.value().map(Fragmentation::of);
        let conditions = FitConditions::default();
        let fits = map.clone().map(|map| Fits::of_map(&map, &conditions).cache.unwrap_or_default());
        let rounding = map.clone().map(|map| Fragmentation::of(&map).rounding);
        Self {
            name: allocator.name.clone(),
            place: allocator.place,
            rounding_bytes: rounding,
            fits,
            free_histogram: found.unwrap_or_default().histogram,
            segments: map
                .map(|map| if blocks { map.segments } else { without_blocks(map.segments) }),
        }
    }
}

#[derive(Debug, Serialize, Clone, Copy, Default)]
struct Pause {
    threads: usize,
    /// Number of pauses. The process is paused again if a thread was changing the allocator.
    times: u32,
    longest_us: u64,
    total_us: u64,
    /// True if a pause reached its time limit before everything was read.
    cut_short: bool,
}

#[derive(Serialize)]
struct DeviceDocument {
    ordinal: u32,
    gpu: Reading<GpuUuid>,
    /// True if the memory map shows the state at a single point in time.
    exact: bool,
    stats: DeviceStats,
    largest_free_block: Reading<Bytes>,
    fits: Reading<Bytes>,
    free_histogram: Vec<Bucket>,
    /// Segments of the memory map, with their blocks if `--blocks` was given.
    segments: Reading<Vec<Segment>>,
}

/// Serializes the pools of frameworks other than PyTorch, with the field names of PyTorch's statistics.
fn reported_pools<S: Serializer>(pools: &[ReportedPool], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(pools.iter().map(|pool| {
        json!({
            "framework": pool.framework,
            "allocator": pool.allocator,
            "source": pool.source,
            "ordinal": pool.ordinal,
            "allocated_bytes": { "current": pool.allocated, "peak": pool.allocated_peak },
            "reserved_bytes": { "current": pool.reserved, "peak": pool.reserved_peak },
            "limit_bytes": pool.limit,
            "largest_free_block": pool.largest_free_block,
        })
    }))
}

/// Maximum number of attempts to read the statistics of all devices.
const MAX_STATS_ATTEMPTS: u32 = 100;
const STATS_RETRY_INTERVAL: Duration = Duration::from_millis(3);

/// Maximum number of pauses to get an exact memory map.
const MAX_PAUSES: u32 = 5;
const PAUSE_INTERVAL: Duration = Duration::from_millis(2);

pub fn run(args: &Args) -> Result<u8> {
    let pid = Pid(args.pid);
    let proc_root = Path::new("/proc");
    if let Some(file) = &args.dump {
        return write_dump(proc_root, pid, file);
    }
    let (mut document, code) = match read(proc_root, pid, args) {
        Ok(document) => (document, 0),
        Err(failure) => (unreadable(pid, &failure), exit_code(&failure)),
    };
    let read = read_others(proc_root, pid, args.blocks);
    let why_no_pool = match &read {
        Err(bfc::Failure::NotLoaded) => None,
        Err(failure) => Some(failure.clone()),
        Ok((pools, ..)) => {
            let host = pools.pinned_host.first().filter(|_| pools.gpu.is_empty());
            host.map(|host| bfc::Failure::NotInitialised(host.framework.words()))
        }
    };
    if let (Reading::Missing(why), Some(failure)) = (&mut document.devices, why_no_pool)
        && *why == Failure::NotTorch.missing()
    {
        *why = failure.missing();
    }
    let (read, chunk_maps, live_allocations) = read.unwrap_or_default();
    document.chunk_maps = chunk_maps;
    document.live_allocations = live_allocations;
    document.reported_pools = reported_by(proc_root, pid).others_beside(&read.gpu);
    document.pinned_host_pools = read.pinned_host;
    let has_reported_pools = !document.reported_pools.is_empty();
    if args.json {
        print_json(&document)?;
    } else {
        if document.devices.value().is_some() || has_reported_pools {
            print(&text(&document, pool_conf_of(proc_root, pid).as_deref()))?;
        }
        let is_other = has_reported_pools && code == exit_code(&Failure::NotTorch);
        if let Reading::Missing(why) = &document.devices
            && !is_other
        {
            say(&format!("gputop: cannot read the allocator of PID {pid}: {why}\n"));
            let conf = pool_conf_of(proc_root, pid);
            if let Some(why) = conf.as_deref().and_then(other_allocator) {
                say(&format!("{why}\n"));
            }
        }
    }
    Ok(if has_reported_pools { 0 } else { code })
}

/// Reads the pools of JAX and TensorFlow, and their chunks.
fn read_others(
    proc_root: &Path,
    pid: Pid,
    blocks: bool,
) -> Result<(FoundPools, Vec<ChunkMapDocument>, Vec<AllocationsDocument>), bfc::Failure> {
    let process = ProcessKey { pid, start: start_time(proc_root, pid).unwrap_or_default() };
    let memory = Live::new(proc_root, pid);
    let mut found = bfc::find(&memory, &mut VtableCache::default())?;
    if bfc::is_forked_copy(proc_root, pid, &found) {
        return Err(bfc::Failure::Forked);
    }
    let pools = found.read(process, &memory)?;
    let map = |allocator: &mut bfc::Allocator| {
        let map = allocator.read_map(&memory);
        ChunkMapDocument::new(allocator, map, blocks)
    };
    let live = |pool| AllocationsDocument::new(pool, &memory);
    let live = found.others.cuda_async.iter().map(live).collect();
    Ok((pools, found.allocators.iter_mut().map(map).collect(), live))
}

fn read(proc_root: &Path, pid: Pid, args: &Args) -> Result<AllocatorDocument, Failure> {
    let mut attached = Attached::open(proc_root, pid)?;
    let (readouts, pause) = if args.pause {
        match read_paused(proc_root, pid, &mut attached)? {
            Ok((readouts, pause)) => (readouts, Some(Reading::Value(pause))),
            Err(why) => {
                let why = Missing::new(why.reason(), format!("not paused: {why}"));
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
    for (stats, map) in readouts {
        let (map, stats) = match map {
            Err(error @ Failure::Memory(MemoryError::Gone)) => return Err(error),
            // Show an exact map together with the statistics that confirmed it. Statistics read earlier may differ.
            Ok((map, own_stats)) if map.exact => (Ok(map), own_stats),
            other => (other.map(|(map, _)| map), stats),
        };
        let largest = attached.largest_free_block(stats.ordinal);
        devices.push(device(&stats, largest, map, args.blocks));
    }
    Ok(AllocatorDocument {
        schema: SCHEMA,
        pid,
        allocator: Allocator::Native,
        library: attached.library(),
        devices: devices.into(),
        reported_pools: Vec::new(),
        pinned_host_pools: Vec::new(),
        chunk_maps: Vec::new(),
        live_allocations: Vec::new(),
        pause,
    })
}

/// Statistics of a device, and its memory map together with the statistics used to verify the map.
type DeviceReadout = (DeviceStats, Result<(PoolMap, DeviceStats), Failure>);

/// Returns the memory maps of all devices that a process uses, and the name of the detected library.
pub(super) fn maps(proc_root: &Path, pid: Pid) -> Result<(Vec<PoolMap>, &'static str), Failure> {
    let mut attached = Attached::open(proc_root, pid)?;
    let readouts = read_running(&mut attached)?;
    if attached.is_forked_copy(proc_root, pid) {
        return Err(Failure::Forked);
    }
    let maps: Result<Vec<PoolMap>, Failure> =
        readouts.into_iter().map(|(_, map)| Ok(map?.0)).collect();
    Ok((maps?, attached.library()))
}

fn read_running(attached: &mut Attached<Live>) -> Result<Vec<DeviceReadout>, Failure> {
    let readouts = in_use(complete_stats(attached)?)
        .into_iter()
        .map(|stats| (stats, attached.map_and_stats(stats.ordinal)));
    Ok(readouts.collect())
}

/// Reads a paused process. Pauses it again if a thread was changing the allocator, because the state is then
/// inconsistent.
fn read_paused(
    proc_root: &Path,
    pid: Pid,
    attached: &mut Attached<Live>,
) -> Result<Result<(Vec<DeviceReadout>, Pause), PauseError>, Failure> {
    let is_exact = |readout: &DeviceReadout| readout.1.as_ref().is_ok_and(|(map, _)| map.exact);
    let mut pause = Pause::default();
    loop {
        let paused = match ThreadPause::new(proc_root, pid) {
            Ok(paused) => paused,
            Err(why) => return Ok(Err(why)),
        };
        let readouts = read_while_paused(attached);
        pause.note(paused.release());
        let is_last = pause.times >= MAX_PAUSES;
        match readouts {
            Ok(readouts) if is_last || readouts.iter().all(is_exact) => {
                return Ok(Ok((readouts, pause)));
            }
            Err(failure) if is_last || failure != Failure::Busy => return Err(failure),
            _ => std::thread::sleep(PAUSE_INTERVAL),
        }
    }
}

fn read_while_paused(attached: &mut Attached<Live>) -> Result<Vec<DeviceReadout>, Failure> {
    let stats = attached.stats()?;
    if stats.len() < attached.devices().len() {
        return Err(Failure::Busy);
    }
    let readouts = in_use(stats).into_iter().map(|stats| (stats, attached.try_map(stats.ordinal)));
    Ok(readouts.collect())
}

/// Returns the devices with allocations, or one device if there are no allocations yet.
fn in_use(mut stats: Vec<DeviceStats>) -> Vec<DeviceStats> {
    if stats.iter().any(DeviceStats::is_used) {
        stats.retain(DeviceStats::is_used);
    } else {
        stats.truncate(1);
    }
    stats
}

/// Returns the statistics of all devices. Retries while a device is missing, which happens if its allocator changed
/// during the read. Without the retry, the output might omit a busy device and show only an idle one. (The dashboard
/// does not retry, because its next sample includes the device.)
fn complete_stats(attached: &mut Attached<Live>) -> Result<Vec<DeviceStats>, Failure> {
    for _ in 0..MAX_STATS_ATTEMPTS {
        let stats = attached.stats()?;
        if stats.len() == attached.devices().len() {
            return Ok(stats);
        }
        std::thread::sleep(STATS_RETRY_INTERVAL);
    }
    Err(Failure::Busy)
}

fn device(
    stats: &DeviceStats,
    largest: Reading<Bytes>,
    map: Result<PoolMap, Failure>,
    blocks: bool,
) -> DeviceDocument {
    let exact = map.as_ref().is_ok_and(|map| map.exact);
    let (fragmentation, fits) = match &map {
        Ok(map) => {
            (Fragmentation::of(map), Fits::of_map(map, &FitConditions::with_free(None)).cache)
        }
        Err(_) => (Fragmentation::default(), None),
    };
    let segments: Reading<Vec<Segment>> =
        Reading::from(map.map(|map| map.segments).map_err(|why| why.missing()));
    let segments = if blocks { segments } else { segments.map(without_blocks) };
    // Free blocks in private pools (CUDA graphs, MemPools) cannot serve other requests.
    let shared = fragmentation.by_stream.iter().filter(|pool| pool.pool != PoolKind::Private);
    let largest = match shared.map(|pool| pool.largest).max() {
        Some(largest) if exact => largest.into(),
        _ => largest,
    };
    // The free memory of the GPU is not known here, so `fits` counts only what the cache can serve.
    let fits = fits.filter(|_| exact).map_or_else(|| largest.clone(), Reading::Value);
    DeviceDocument {
        ordinal: stats.ordinal,
        gpu: Reading::default(),
        exact,
        stats: *stats,
        fits,
        largest_free_block: largest,
        free_histogram: fragmentation.histogram,
        segments,
    }
}

fn without_blocks(segments: Vec<Segment>) -> Vec<Segment> {
    let without = |segment| Segment { blocks: Vec::new(), ..segment };
    segments.into_iter().map(without).collect()
}

impl Pause {
    fn note(&mut self, stats: Option<PauseStats>) {
        self.times += 1;
        let Some(stats) = stats else { return };
        let us = u64::try_from(stats.time.as_micros()).unwrap_or(u64::MAX);
        self.threads = stats.threads;
        self.longest_us = self.longest_us.max(us);
        self.total_us += us;
        self.cut_short |= stats.is_cut_short;
    }

    fn text(self) -> String {
        let ms = |us: u64| format!("{}.{} ms", us / 1_000, us / 100 % 10);
        let mut text = format!("paused {} threads for {}", self.threads, ms(self.total_us));
        if self.times > 1 {
            let _ = write!(text, ", {} times, at most {} each", self.times, ms(self.longest_us));
        }
        if self.cut_short {
            text.push_str("; resumed at the time limit before everything was read");
        }
        text
    }
}

fn unreadable(pid: Pid, failure: &Failure) -> AllocatorDocument {
    AllocatorDocument {
        schema: SCHEMA,
        pid,
        allocator: failure.allocator(),
        library: "",
        devices: Reading::Missing(failure.missing()),
        reported_pools: Vec::new(),
        pinned_host_pools: Vec::new(),
        chunk_maps: Vec::new(),
        live_allocations: Vec::new(),
        pause: None,
    }
}

pub(super) fn exit_code(failure: &Failure) -> u8 {
    match failure {
        Failure::Memory(_) | Failure::Changed => 2,
        _ => 1,
    }
}

fn text(document: &AllocatorDocument, conf: Option<&str>) -> String {
    let mut text = format!("PID {}  {}\n", document.pid, document.library);
    let _ = match &document.pause {
        Some(Reading::Value(pause)) => writeln!(text, "{}", pause.text()),
        Some(Reading::Missing(why)) => writeln!(text, "{why}; read while the process was running"),
        None => Ok(()),
    };
    for device in document.devices.value().into_iter().flatten() {
        write_device(&mut text, device);
    }
    for pool in &document.reported_pools {
        let from = match pool.source {
            PoolSource::Hook => ", reported by the program",
            PoolSource::Memory => "",
        };
        let _ = writeln!(text, "\ndevice {}  {}{from}", pool.ordinal, pool.name());
        write_reported_pool(&mut text, pool);
        let place = bfc::Place::Gpu(pool.ordinal);
        let is_read = pool.source == PoolSource::Memory;
        let maps = document.chunk_maps.iter().filter(|map| is_read && map.place == place);
        maps.for_each(|map| write_chunks(&mut text, map));
        let is_async = pool.allocator == Allocator::CudaMallocAsync && is_read;
        let live = document.live_allocations.iter().find(|live| live.ordinal == pool.ordinal);
        if let Some(live) = live.filter(|_| is_async) {
            let count = match &live.count {
                Reading::Value(count) => count.to_string(),
                Reading::Missing(why) => format!("– {why}"),
            };
            let largest = size_or_reason(&live.largest_bytes);
            let _ = writeln!(text, "  {:<22}{count:>12}   largest {largest}", "live allocations");
        }
        if let Some(hint) = pool.preallocation(conf) {
            let _ = writeln!(text, "  {hint}");
        }
    }
    for pool in &document.pinned_host_pools {
        let _ = writeln!(text, "\npinned memory of the host  {}", pool.name());
        write_reported_pool(&mut text, pool);
    }
    text
}

/// Writes the free chunks of a pool of JAX or TensorFlow by size, and its regions with their chunks if `--blocks` was
/// given.
fn write_chunks(text: &mut String, map: &ChunkMapDocument) {
    let segments = match &map.segments {
        Reading::Value(segments) => segments,
        Reading::Missing(why) => {
            let _ = writeln!(text, "  {}: {why}", map.name);
            return;
        }
    };
    let _ = writeln!(text, "  {:<22}{:>12}", "fits in the pool", size_or_reason(&map.fits));
    let _ = writeln!(text, "  {:<22}{:>12}", "rounding", size_or_reason(&map.rounding_bytes));
    for bucket in map.free_histogram.iter().filter(|bucket| bucket.count > 0) {
        let name = format!("free, up to {}", bucket.up_to.short());
        let (count, bytes) = (bucket.count, bucket.bytes.to_string());
        let chunks = if count == 1 { "chunk" } else { "chunks" };
        let _ = writeln!(text, "  {name:<22}{bytes:>12}   {count} {chunks}");
    }
    let _ = writeln!(text, "  {}: regions {}", map.name, segments.len());
    segments.iter().filter(|segment| !segment.blocks.is_empty()).for_each(|segment| {
        let _ =
            writeln!(text, "  {:#014x} {:>12}  region", segment.address, segment.size.to_string());
        write_blocks(text, &segment.blocks);
    });
}

fn write_blocks(text: &mut String, blocks: &[Block]) {
    for block in blocks {
        let size = block.size.to_string();
        let _ = writeln!(text, "    {:#014x} {size:>12}  {:?}", block.address, block.state);
    }
}

fn write_reported_pool(text: &mut String, pool: &ReportedPool) {
    let mut line = |name: &str, size: &Reading<Bytes>, peak: Option<Bytes>| {
        let size = size_or_reason(size);
        let peak = peak.map_or(String::new(), |peak| format!("   peak {:>12}", peak.to_string()));
        let _ = writeln!(text, "  {name:<22}{size:>12}{peak}");
    };
    line("allocated", &pool.allocated, pool.allocated_peak.get());
    line("reserved", &pool.reserved, pool.reserved_peak.get());
    line("limit", &pool.limit, None);
    line("largest free block", &pool.largest_free_block, None);
}

fn size_or_reason(size: &Reading<Bytes>) -> String {
    match size {
        Reading::Value(size) => size.to_string(),
        Reading::Missing(why) => format!("– {why}"),
    }
}

fn write_device(text: &mut String, device: &DeviceDocument) {
    let stats = &device.stats;
    let cached = stats.reserved_bytes.all.current - stats.allocated_bytes.all.current;
    let _ = writeln!(text, "\ndevice {}", device.ordinal);
    write_line(text, "allocated", stats.allocated_bytes.all);
    write_bytes(text, "cached", cached);
    write_line(text, "  inactive split", stats.inactive_split_bytes.all);
    write_line(text, "reserved", stats.reserved_bytes.all);
    write_line(text, "active", stats.active_bytes.all);
    match stats.requested() {
        Reading::Value(requested) => write_line(text, "requested", requested),
        Reading::Missing(why) => {
            let _ = writeln!(text, "  {:<22}– {why}", "requested");
        }
    }
    let largest = size_or_reason(&device.largest_free_block);
    let _ = writeln!(text, "  {:<22}{largest:>12}", "largest free block");
    let _ = writeln!(
        text,
        "  segments {}   retries {}   OOM {}",
        stats.segment.all.current, stats.num_alloc_retries, stats.num_ooms
    );
    write_segments(text, device);
}

fn write_line(text: &mut String, name: &str, stat: AllocatorStat) {
    let (current, peak) = (bytes(stat.current), bytes(stat.peak));
    let _ = writeln!(text, "  {name:<22}{current:>12}   peak {peak:>12}");
}

fn write_bytes(text: &mut String, name: &str, current: i64) {
    let current = bytes(current);
    let _ = writeln!(text, "  {name:<22}{current:>12}");
}

/// Formats a size as a string, because `format!` cannot align a `Bytes` value.
fn bytes(number: i64) -> String {
    Bytes(u64::try_from(number).unwrap_or_default()).to_string()
}

fn write_segments(text: &mut String, device: &DeviceDocument) {
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
            "  map approximate: the allocator changed during each read. Use --pause for an exact map"
        );
    }
    for segment in segments.iter().filter(|segment| !segment.blocks.is_empty()) {
        let _ = writeln!(
            text,
            "  {:#014x} {:>12}  {:?}{}  stream {:#x}",
            segment.address,
            segment.size.to_string(),
            segment.pool,
            if segment.expandable { ", expandable" } else { "" },
            segment.stream
        );
        write_blocks(text, &segment.blocks);
    }
}

fn write_dump(proc_root: &Path, pid: Pid, file: &Path) -> Result<u8> {
    let recorder = DumpRecorder::new(Live::new(proc_root, pid));
    let is_other = bfc::record(&Live::new(proc_root, pid), &recorder).is_ok();
    if let Err(failure) = read_all(&recorder)
        && !is_other
    {
        say(&format!("gputop: cannot read the allocator of PID {pid}: {failure}\n"));
    }
    save_dump(recorder, file)
}

/// Writes the recorded memory to a file that only this user can read, because the memory belongs to the process.
pub(super) fn save_dump(recorder: DumpRecorder<Live>, file: &Path) -> Result<u8> {
    let dump = recorder.into_dump().to_bytes()?;
    // Make the file readable only by this user, because it contains memory of the process.
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(file).and_then(|mut out| out.write_all(&dump));
    written.wrap_err_with(|| format!("cannot write {}", file.display()))?;
    Ok(0)
}

fn read_all(recorder: &DumpRecorder<Live>) -> Result<(), Failure> {
    let mut attached = Attached::attach(recorder)?;
    for stats in attached.stats()? {
        attached.map(stats.ordinal)?;
        let _ = attached.largest_free_block(stats.ordinal);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
