//! Matches allocator pools to table rows and GPUs, and describes pools that could not be read.

use std::collections::HashMap;

use gputop_model::frame::Frame;
use gputop_model::gpu::Gpu;
use gputop_model::pool::{Allocator, Pool, Unread};
pub use gputop_model::pool_location::{gpu_of, gpu_of_reported, listed};
use gputop_model::process::ProcessKey;
use gputop_model::reading::{Missing, Reason};
use gputop_model::units::Bytes;

/// An index of pools by process, used to look up the pool of each table row quickly.
pub struct Index<'f> {
    frame: &'f Frame,
    positions: HashMap<ProcessKey, Vec<usize>>,
}

impl<'f> Index<'f> {
    pub fn new(frame: &'f Frame) -> Self {
        let mut positions: HashMap<ProcessKey, Vec<usize>> = HashMap::new();
        for (i, pool) in frame.pools.iter().flat_map(|pools| &*pools.list).enumerate() {
            positions.entry(pool.process).or_default().push(i);
        }
        Self { frame, positions }
    }

    /// Returns the position, in the frame's pool list, of a process's pool on a GPU.
    pub fn position(&self, process: ProcessKey, gpu: &Gpu) -> Option<usize> {
        let list = &self.frame.pools.as_ref()?.list;
        let is_on = |&i: &usize| gpu_of(self.frame, &list[i]).is_some_and(|on| on.uuid == gpu.uuid);
        self.positions.get(&process)?.iter().copied().find(is_on)
    }
}

/// Returns the driver-reported device memory of the pool's process.
pub fn vram(frame: &Frame, pool: &Pool) -> Option<Bytes> {
    listed(gpu_of(frame, pool)?, pool.process)?.vram.get()
}

/// Returns the pinned host memory in the pools of a process, which is not part of its GPU memory.
pub fn pinned_host(frame: &Frame, process: ProcessKey) -> Option<Bytes> {
    let pools = frame.pools.as_ref()?.pinned_host.iter();
    let sizes = pools.filter(|pool| pool.process == process).filter_map(|pool| pool.reserved.get());
    sizes.reduce(|a, b| Bytes(a.0.saturating_add(b.0)))
}

/// Returns true if the frame contains at least one pool.
pub fn any(frame: &Frame) -> bool {
    frame.pools.as_ref().is_some_and(|pools| !pools.list.is_empty() || !pools.reported.is_empty())
}

/// Returns the reason why a process has no pool.
pub fn why_no_pool(frame: &Frame, process: ProcessKey) -> Missing {
    let Some(pools) = &frame.pools else {
        return Missing::new(
            Reason::NotRead,
            "allocator statistics are not available on this host",
        );
    };
    match pools.why_unread(process) {
        Some(unread) => unread.why.clone(),
        None => Missing::new(Reason::Unsupported, "no PyTorch allocator found in this process"),
    }
}

/// Returns a short name for the reason why an allocator is unreadable: `ptrace` or `cudaMallocAsync`.
pub fn kind_text(unread: &Unread) -> &'static str {
    match (unread.allocator, unread.why.reason) {
        (allocator @ (Allocator::CudaMallocAsync | Allocator::Pluggable), _) => allocator.words(),
        (_, Reason::Denied) => "ptrace",
        (_, reason) => reason.words(),
    }
}

/// Describes the unreadable allocators that the user can make readable: `2 processes unreadable (ptrace)`. Processes
/// without a supported allocator appear only in the list opened with `!`.
pub fn unread_text(frame: &Frame) -> Option<String> {
    let unread = &frame.pools.as_ref()?.unread;
    let mut kinds: Vec<&str> = Vec::new();
    let mut count = 0_usize;
    for one in unread.iter().filter(|u| is_fixable(u)) {
        count += 1;
        let kind = kind_text(one);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let processes = if count == 1 { "process" } else { "processes" };
    (count > 0).then(|| format!("{count} {processes} unreadable ({})", kinds.join(", ")))
}

/// Returns the collector's first fix for an unreadable allocator: `run sudo gputop`. The collector's hint consists of
/// the cause, a colon, and the fixes available to this user.
pub fn first_fix(frame: &Frame) -> Option<String> {
    let why = frame.pools.as_ref()?.unread.iter().find(|one| is_fixable(one))?.why.to_string();
    let (_, fixes) = why.split_once(": ")?;
    fixes.split(", or ").next().map(str::to_owned)
}

/// Returns true if the process's allocator is unreadable but the user can make it readable.
pub fn is_unreadable(frame: &Frame, process: ProcessKey) -> bool {
    frame.pools.as_ref().and_then(|pools| pools.why_unread(process)).is_some_and(is_fixable)
}

fn is_fixable(unread: &Unread) -> bool {
    unread.allocator != Allocator::CudaMallocAsync
        && unread.allocator != Allocator::Pluggable
        && !matches!(unread.why.reason, Reason::Unsupported | Reason::NotRead | Reason::Gone)
}
