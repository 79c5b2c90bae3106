//! Copies the scene of an incident from the newest frame: the incident's GPUs and their most important processes.

use std::cmp::Reverse;
use std::sync::Arc;

use gputop_allocator::fragmentation::Fragmentation;
use gputop_model::frame::{Frame, ProcessList};
use gputop_model::gpu::Gpu;
use gputop_model::pool::{FailureMap, Pools, Segment};
use gputop_model::pool_location::{gpu_of, listed};
use gputop_model::process::ProcessKey;
use gputop_model::reading::Reading;
use gputop_model::scene::{FreeBlocks, MAX_PARTS, Scene, SceneMap};
use gputop_model::units::{GpuUuid, Mono};

/// Maximum number of GPUs in an incident's scene. Each rank of a job usually uses only one GPU.
const MAX_GPUS: usize = 16;
/// Maximum number of failed processes in an incident's scene, such as the ranks of a job.
const MAX_OWN: usize = 64;
/// Maximum number of processes per GPU in a scene. Those with the most memory are included.
const MAX_PROCESSES: usize = 16;

/// Adds a process and its GPUs from `frame` to the scene. `reported` contains the GPUs that the event names. Parts that
/// the scene already has are not replaced.
pub fn take(scene: &mut Scene, frame: &Frame, process: Option<ProcessKey>, reported: &[GpuUuid]) {
    if scene.frame.mono == Mono(0) {
        scene.frame = Frame {
            seq: frame.seq,
            time: frame.time,
            mono: frame.mono,
            interval: frame.interval,
            driver: frame.driver.clone(),
            host: frame.host.clone(),
            ..Frame::default()
        };
    }
    for gpu in &frame.gpus {
        let is_full = scene.frame.gpus.len() >= MAX_GPUS;
        if !is_full
            && !scene.frame.gpus.iter().any(|known| known.uuid == gpu.uuid)
            && belongs_to(frame, gpu, process, reported)
        {
            take_gpu(scene, frame, gpu, process);
        }
    }
    if let Some(process) = process {
        if scene.processes.len() < MAX_OWN && !scene.processes.contains(&process) {
            scene.processes.push(process);
        }
        take_processes(&mut scene.frame, frame, |key| key == process);
        take_pools(&mut scene.frame, frame, process);
    }
}

fn belongs_to(frame: &Frame, gpu: &Gpu, process: Option<ProcessKey>, reported: &[GpuUuid]) -> bool {
    reported.contains(&gpu.uuid)
        || process.is_some_and(|process| {
            let facts = frame.process(process);
            let mut pools = frame.pools.iter().flat_map(|pools| pools.of(process));
            listed(gpu, process).is_some()
                || facts.is_some_and(|facts| facts.open_gpus.contains(&gpu.uuid))
                || pools.any(|pool| gpu_of(frame, pool).is_some_and(|on| on.uuid == gpu.uuid))
        })
}

fn take_gpu(scene: &mut Scene, frame: &Frame, gpu: &Gpu, own: Option<ProcessKey>) {
    let mut gpu = gpu.clone();
    if let Reading::Value(list) = &mut gpu.processes {
        let is_own = own.is_some();
        list.sort_by_key(|p| (Reverse(is_own && p.process == own), Reverse(p.vram.get())));
        let beyond = list.len().saturating_sub(MAX_PROCESSES);
        list.truncate(MAX_PROCESSES);
        scene.left_out += u32::try_from(beyond).unwrap_or(u32::MAX);
        let keys: Vec<ProcessKey> = list.iter().filter_map(|p| p.process).collect();
        take_processes(&mut scene.frame, frame, |key| keys.contains(&key));
    }
    scene.frame.gpus.push(gpu);
}

fn take_processes(into: &mut Frame, frame: &Frame, is_wanted: impl Fn(ProcessKey) -> bool) {
    let Some(all) = &frame.processes else { return };
    let processes =
        into.processes.get_or_insert_with(|| ProcessList { at: all.at, ..ProcessList::default() });
    let list = Arc::make_mut(&mut processes.list);
    let is_new = |key: ProcessKey, list: &[_]| {
        list.iter().all(|known: &gputop_model::process::Process| known.key != key)
    };
    for process in all.list.iter().filter(|process| is_wanted(process.key)) {
        if is_new(process.key, list) {
            list.push(process.clone());
        }
    }
    list.sort_by_key(|process| process.key.pid);
}

fn take_pools(into: &mut Frame, frame: &Frame, process: ProcessKey) {
    let Some(all) = &frame.pools else { return };
    let pools = into.pools.get_or_insert_with(|| Pools { at: all.at, ..Pools::default() });
    if pools.of(process).next().is_none() {
        Arc::make_mut(&mut pools.list).extend(all.of(process).cloned());
        let unread = all.unread.iter().filter(|one| one.process == process);
        Arc::make_mut(&mut pools.unread).extend(unread.cloned());
    }
}

/// Summarizes a block map that was read because an allocation failed.
pub fn map(failed: &FailureMap) -> SceneMap {
    let map = &failed.map;
    let all = Fragmentation::of(map);
    let blocks: usize = map.segments.iter().map(|segment| segment.blocks.len()).sum();
    let (segments, blocks) = (map.segments.len() as u64, blocks as u64);
    let whole = (segments + blocks <= MAX_PARTS).then(|| {
        let mut map = map.clone();
        map.segments.iter_mut().for_each(Segment::omit_implied_addresses);
        map
    });
    SceneMap {
        process: map.process,
        ordinal: map.ordinal,
        at: map.at,
        lag: map.at.since(failed.since),
        exact: map.exact,
        segments,
        blocks,
        largest_free_block: all.largest,
        fragmented: all.fragmented,
        returnable: all.returnable,
        free_histogram: all
            .histogram
            .iter()
            .map(|bucket| FreeBlocks {
                up_to_bytes: bucket.up_to,
                count: bucket.count,
                bytes: bucket.bytes,
            })
            .collect(),
        whole,
    }
}
