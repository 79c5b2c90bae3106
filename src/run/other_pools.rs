//! Reads the pools of other processes that an out-of-memory error names, right after the command failed.

use std::path::Path;
use std::time::Duration;

use gputop_explain::LogFindings;
use gputop_explain::evidence::PoolAtFailure;
use gputop_model::{Bytes, Mono, Pid, ProcessKey};
use gputop_peek::bfc::{self, VtableCache};
use gputop_peek::memory::live::Live;
use gputop_peek::process::stat::start_time;

use crate::collect::process::pool_conf_of;
use crate::incident::with_timeout;

/// Maximum time to read all processes. One with much memory takes up to a second.
const TIMEOUT: Duration = Duration::from_secs(2);
const MAX_PROCESSES: usize = 4;

/// Returns the pools of JAX and TensorFlow in the processes that hold the most memory according to the messages in
/// `logs`. `failed` is the time of the failure.
pub(super) fn read(logs: &[LogFindings], failed: Mono) -> Vec<PoolAtFailure> {
    let named = named(logs);
    if named.is_empty() {
        return Vec::new();
    }
    let read = move || {
        let proc_root = Path::new("/proc");
        let pools = named.into_iter().filter_map(|(pid, held)| pool(proc_root, pid, held, failed));
        pools.collect()
    };
    with_timeout(TIMEOUT, read).unwrap_or_default()
}

/// Returns the processes that the messages name, with their memory on the GPU.
fn named(logs: &[LogFindings]) -> Vec<(Pid, Bytes)> {
    let found = logs.iter().flat_map(|log| &log.sightings).map(|sighting| &sighting.found);
    let lists = found.filter_map(|found| found.get("other_processes")?.as_array());
    let process = |process: &serde_json::Value| {
        let pid = u32::try_from(process["pid"].as_u64()?).ok()?;
        Some((Pid(pid), Bytes(process["bytes"].as_u64()?)))
    };
    let mut all: Vec<(Pid, Bytes)> = lists.flatten().filter_map(process).collect();
    all.sort_by_key(|(pid, held)| (std::cmp::Reverse(*held), *pid));
    all.dedup_by_key(|(pid, _)| *pid);
    all.truncate(MAX_PROCESSES);
    all
}

/// Reads the pool of a process that holds `held` bytes on the GPU. Returns `None` if it has several pools, because it is
/// unknown which of them is on that GPU, or if the pool is larger: the PID is then that of another container.
fn pool(proc_root: &Path, pid: Pid, held: Bytes, failed: Mono) -> Option<PoolAtFailure> {
    let memory = Live::new(proc_root, pid);
    let process = ProcessKey { pid, start: start_time(proc_root, pid).ok()? };
    let mut found = bfc::find(&memory, &mut VtableCache::default()).ok()?;
    let pools = found.read(process, &memory).ok()?.gpu;
    let [pool] = <[_; 1]>::try_from(pools).ok()?;
    let is_plausible = pool.reserved.get().is_some_and(|reserved| reserved <= held);
    let lag = pool.at.since(failed);
    let conf = pool_conf_of(proc_root, pid);
    is_plausible.then_some(PoolAtFailure { pool, is_own: false, conf, lag: Some(lag) })
}
