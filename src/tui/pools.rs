//! Which pool belongs to which row and GPU, and what there is to say where none could be read.

use std::collections::HashMap;

use crate::allocator::config::Config;
use crate::allocator::fits::Around;
use crate::model::frame::Frame;
use crate::model::gpu::Gpu;
use crate::model::pool::{Allocator, Pool, Unread};
pub use crate::model::pool_location::{gpu_of, gpu_of_reported, listed};
use crate::model::process::{Process, ProcessKey};
use crate::model::reading::{Missing, Reason};
use crate::model::units::Bytes;

/// Where in a frame's list the pools of each process are: looked up for every row, so not searched for.
pub struct Index<'f> {
    frame: &'f Frame,
    of: HashMap<ProcessKey, Vec<usize>>,
}

impl<'f> Index<'f> {
    pub fn new(frame: &'f Frame) -> Self {
        let mut of: HashMap<ProcessKey, Vec<usize>> = HashMap::new();
        let pools = frame.pools.iter().flat_map(|pools| &*pools.list);
        for (i, pool) in pools.enumerate() {
            of.entry(pool.process).or_default().push(i);
        }
        Self { frame, of }
    }

    /// The pool of a process on a GPU.
    pub fn position(&self, process: ProcessKey, gpu: &Gpu) -> Option<usize> {
        let list = &self.frame.pools.as_ref()?.list;
        let on_it = |&i: &usize| gpu_of(self.frame, &list[i]).is_some_and(|on| on.uuid == gpu.uuid);
        self.of.get(&process)?.iter().copied().find(on_it)
    }
}

/// What the driver counts for the process of a pool on its GPU.
pub fn vram(frame: &Frame, pool: &Pool) -> Option<Bytes> {
    listed(gpu_of(frame, pool)?, pool.process)?.vram.get()
}

/// What decides beside the pool itself what fits: the driver's free memory, and what its process was told at its start.
pub fn around(process: Option<&Process>, pool: &Pool, gpu: Option<&Gpu>) -> Around {
    let conf = process.and_then(|process| process.alloc_conf.as_deref());
    let memory = gpu.map(|gpu| &gpu.memory);
    // CUDA's total is without what the driver keeps.
    let total = memory.and_then(|memory| {
        let kept = memory.reserved.get().unwrap_or_default();
        Some(Bytes(memory.total.get()?.0.saturating_sub(kept.0)))
    });
    Around::with_config(
        memory.and_then(|memory| memory.free.get()),
        &Config::parse(conf.unwrap_or_default()),
        total,
        pool.stats.reserved.last(),
    )
}

/// True when some pool was read or could have been: then its columns are worth their place.
pub fn any(frame: &Frame) -> bool {
    frame
        .pools
        .as_ref()
        .is_some_and(|pools| !pools.list.is_empty() || !pools.reported.is_empty())
}

/// Why there is no pool of a process.
pub fn why_none(frame: &Frame, process: ProcessKey) -> Missing {
    let Some(pools) = &frame.pools else {
        return Missing::new(Reason::NotRead, "allocators are not read here");
    };
    match pools.why_unread(process) {
        Some(unread) => unread.why.clone(),
        None => Missing::new(
            Reason::Unsupported,
            "no PyTorch allocator was found in this process",
        ),
    }
}

/// A word or two for a list of reasons: `ptrace`, `cudaMallocAsync`.
pub fn kind_words(unread: &Unread) -> &'static str {
    match (unread.allocator, unread.why.reason) {
        (allocator @ (Allocator::CudaMallocAsync | Allocator::Pluggable), _) => allocator.words(),
        (_, Reason::Denied) => "ptrace",
        (_, reason) => reason.words(),
    }
}

/// `2 processes unreadable (ptrace)`, when someone could do something about it. What holds nothing to read is only
/// in the list that `!` opens.
pub fn unread_words(frame: &Frame) -> Option<String> {
    let unread = &frame.pools.as_ref()?.unread;
    let mut kinds: Vec<&str> = Vec::new();
    let mut count = 0_usize;
    for one in unread.iter().filter(|u| is_trouble(u)) {
        count += 1;
        let kind = kind_words(one);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let processes = if count == 1 { "process" } else { "processes" };
    (count > 0).then(|| format!("{count} {processes} unreadable ({})", kinds.join(", ")))
}

/// True when the process has an allocator that could not be read, and someone could do something about it.
pub fn is_unreadable(frame: &Frame, process: ProcessKey) -> bool {
    let unread = frame
        .pools
        .as_ref()
        .and_then(|pools| pools.why_unread(process));
    unread.is_some_and(is_trouble)
}

fn is_trouble(unread: &Unread) -> bool {
    unread.allocator != Allocator::CudaMallocAsync
        && unread.allocator != Allocator::Pluggable
        && !matches!(
            unread.why.reason,
            Reason::Unsupported | Reason::NotRead | Reason::Gone
        )
}
