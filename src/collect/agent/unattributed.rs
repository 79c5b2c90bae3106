//! Explains GPU memory that cannot be attributed to a running process.
//!
//! Unattributed memory is the used memory minus the memory of visible processes and the memory reserved by the driver.
//! It consists of two kinds of memory: memory that the driver lists for a process that is not visible or has exited,
//! and memory that the driver lists for no process. Each part gets a one-sentence explanation, which names a cause only
//! if gputop found evidence for it.

use std::fmt::Write as _;

use gputop_model::accounting::{account, account_pools, is_on};
use gputop_model::gpu::{Unattributed, UnattributedCause};
use gputop_model::{
    Bytes, Gpu, GpuProcess, Hello, Pid, PidNamespace, Pools, Process, ProcessKey, Reason, RunState,
    StartTicks,
};

use super::last_seen::Peak;
use crate::collect::process::leftovers::{Leftover, LeftoverKind};

/// Minimum amount of unattributed memory to report. Due to rounding and the driver's bookkeeping, even an idle GPU has
/// some, but less than this.
const MIN_REPORTED: Bytes = Bytes(64 << 20);
/// Maximum number of PIDs named in a sentence.
const MAX_NAMED: usize = 4;

/// Data used to explain a GPU's unattributed memory, collected in the same tick as the GPU's readings.
pub struct GpuContext<'a> {
    pub hello: &'a Hello,
    pub processes: &'a [Process],
    pub pools: &'a Pools,
    /// Processes found by the search of /proc. `None` until the first search.
    pub leftovers: Option<&'a [Leftover]>,
    pub peaks: &'a std::collections::HashMap<ProcessKey, Peak>,
}

/// Returns true if searching all of /proc may explain unattributed memory of this GPU.
pub fn needs_leftover_search(gpu: &Gpu, processes: &[Process]) -> bool {
    let missing = account(gpu)
        .is_some_and(|split| split.unattributed >= MIN_REPORTED && !split.processes_unknown);
    // Compare PIDs, because new entries in the driver's list are not yet linked to processes.
    let is_dead = |pid| processes.iter().any(|p| p.key.pid == pid && is_zombie(p));
    missing || listed(gpu).any(|entry| is_dead(entry.pid))
}

/// Returns the parts of a GPU's memory that do not belong to a running process on this host.
pub fn explain(gpu: &Gpu, context: &GpuContext<'_>) -> Vec<Unattributed> {
    if context.hello.namespace != PidNamespace::Host {
        return outside(gpu, context).into_iter().collect();
    }
    let mut parts = Vec::new();
    parts.extend(without_process(gpu, context));
    parts.extend(listed_zombies(gpu, context));
    parts.extend(unclaimed(gpu, context));
    parts
}

fn listed(gpu: &Gpu) -> impl Iterator<Item = &GpuProcess> {
    gpu.processes.value().into_iter().flatten()
}

fn facts<'p>(entry: &GpuProcess, processes: &'p [Process]) -> Option<&'p Process> {
    let key = entry.process?;
    processes.iter().find(|process| process.key == key)
}

fn is_zombie(process: &Process) -> bool {
    process.state == RunState::Zombie
}

fn held<'g>(entries: impl Iterator<Item = &'g GpuProcess>) -> (Bytes, Vec<Pid>) {
    let (mut bytes, mut pids) = (0_u64, Vec::new());
    for entry in entries {
        bytes = bytes.saturating_add(entry.vram.get().unwrap_or_default().0);
        pids.push(entry.pid);
    }
    (Bytes(bytes), pids)
}

/// Returns the GPU memory that the allocators inside this container do not account for. In a container, the driver's
/// entries cannot be matched to processes.
fn outside(gpu: &Gpu, context: &GpuContext<'_>) -> Option<Unattributed> {
    let split = account_pools(gpu, Some(context.pools))?;
    let bytes = Bytes(split.processes.0 + split.unattributed.0);
    if bytes < MIN_REPORTED {
        return None;
    }
    let users = context.processes.iter();
    let users = users.filter(|process| process.open_gpus.iter().any(|uuid| is_on(gpu, uuid)));
    let unknown = users.filter(|process| context.pools.of(process.key).next().is_none());
    let pids: Vec<Pid> = unknown.map(|process| process.key.pid).collect();
    let or = match pids.len() {
        0 => String::new(),
        _ => format!(", or by {} here, whose memory use cannot be read", named(&pids)),
    };
    let (cause, place) = if context.hello.is_wsl() {
        (UnattributedCause::OutsideWsl, "by Windows or another distribution")
    } else {
        (UnattributedCause::OutsideContainer, "outside this container")
    };
    Some(part(bytes, cause, pids, format!("{bytes} is used {place}{or}.")))
}

/// Returns the memory of listed processes that cannot be opened because they are hidden from this user, or have exited
/// but are still listed by the driver.
fn without_process(gpu: &Gpu, context: &GpuContext<'_>) -> Vec<Unattributed> {
    let reason_of = |entry: &&GpuProcess| {
        let process = facts(entry, context.processes)?;
        let is_unseen = process.key.start == StartTicks(0);
        process.command.why().filter(|_| is_unseen).map(|why| why.reason)
    };
    let entries = |reason| held(listed(gpu).filter(|entry| reason_of(entry) == Some(reason)));
    let mut parts = Vec::new();
    let (bytes, pids) = entries(Reason::Denied);
    if bytes >= MIN_REPORTED {
        let sentence = format!(
            "{bytes} belongs to {}, hidden from this user: /proc is mounted with hidepid.",
            named(&pids)
        );
        parts.push(part(bytes, UnattributedCause::Hidden, pids, sentence));
    }
    let (bytes, pids) = entries(Reason::Gone);
    if bytes >= MIN_REPORTED {
        let sentence = format!(
            "{bytes} is listed by the driver for {}, which {} exited or never ran in this PID namespace.",
            named(&pids),
            if pids.len() == 1 { "has" } else { "have" },
        );
        parts.push(part(bytes, UnattributedCause::Gone, pids, sentence));
    }
    parts
}

fn listed_zombies(gpu: &Gpu, context: &GpuContext<'_>) -> Vec<Unattributed> {
    let entries = listed(gpu).filter_map(|entry| Some((entry, facts(entry, context.processes)?)));
    entries
        .filter(|(_, process)| is_zombie(process))
        .map(|(entry, process)| {
            let (bytes, pids) = held(std::iter::once(entry));
            let (pid, name) = (entry.pid, &process.name);
            let Some(leftovers) = context.leftovers else {
                let sentence = format!(
                    "{bytes} is held for PID {pid} ({name}), a zombie. gputop is searching for its remaining threads."
                );
                return part(bytes, UnattributedCause::NotRead, pids, sentence);
            };
            let mut of_process = leftovers.iter().filter(|leftover| leftover.pid == pid);
            let threads = of_process.find_map(Leftover::threads);
            let sentence = zombie_sentence(bytes, pid, name, threads);
            part(bytes, UnattributedCause::Zombie, pids, sentence)
        })
        .collect()
}

impl Leftover {
    fn threads(&self) -> Option<usize> {
        match self.what {
            LeftoverKind::Zombie { threads } => Some(threads),
            _ => None,
        }
    }
}

fn zombie_sentence(bytes: Bytes, pid: Pid, name: &str, threads: Option<usize>) -> String {
    match threads {
        Some(threads) if threads > 0 => {
            let run = match threads {
                1 => "1 thread still runs and has",
                _ => &format!("{threads} threads still run and have"),
            };
            format!("{bytes} is held by PID {pid} ({name}), a zombie. {run} the GPU open.")
        }
        _ => format!(
            "{bytes} is held for PID {pid} ({name}), a zombie: it has exited, but the driver has not freed its memory."
        ),
    }
}

/// Explains GPU memory that has no entry in the driver's process list.
fn unclaimed(gpu: &Gpu, context: &GpuContext<'_>) -> Option<Unattributed> {
    let bytes = account(gpu).filter(|split| !split.processes_unknown)?.unattributed;
    if bytes < MIN_REPORTED {
        return None;
    }
    let Some(leftovers) = context.leftovers else {
        let sentence = format!(
            "{bytes} is not used by any process that the driver lists. gputop is searching for other processes that hold memory."
        );
        return Some(part(bytes, UnattributedCause::NotRead, Vec::new(), sentence));
    };
    let found = zombie_holder(gpu, context, leftovers, bytes);
    let found = found.or_else(|| running_holder(gpu, leftovers, bytes));
    Some(found.unwrap_or_else(|| {
        let hint = if nix::unistd::geteuid().is_root() {
            "gputop found no other holder. The driver may leave managed memory (cudaMallocManaged) out of its process list"
        } else {
            "run gputop as root to see more of other users' processes"
        };
        let sentence = format!("{bytes} is not used by any process that the driver lists; {hint}.");
        part(bytes, UnattributedCause::Unknown, Vec::new(), sentence)
    }))
}

fn has_open(gpu: &Gpu, leftover: &Leftover) -> bool {
    gpu.board.minor.get().is_some_and(|minor| leftover.minors.contains(&minor))
}

/// Explains memory by a zombie that has the GPU open, or that the driver listed earlier.
fn zombie_holder(
    gpu: &Gpu,
    context: &GpuContext<'_>,
    leftovers: &[Leftover],
    bytes: Bytes,
) -> Option<Unattributed> {
    let was_listed = |leftover: &Leftover| {
        let of_pid = context.peaks.iter().find(|(key, _)| key.pid == leftover.pid);
        of_pid.is_some_and(|(_, peak)| peak.gpus.contains(&gpu.uuid))
    };
    let is_listed = |pid: Pid| listed(gpu).any(|entry| entry.pid == pid);
    let zombie = leftovers
        .iter()
        .filter(|leftover| leftover.threads().is_some() && !is_listed(leftover.pid))
        .find(|leftover| has_open(gpu, leftover) || was_listed(leftover))?;
    let sentence = zombie_sentence(bytes, zombie.pid, &zombie.name, zombie.threads());
    Some(part(bytes, UnattributedCause::Zombie, vec![zombie.pid], sentence))
}

/// Explains memory by a process that has the GPU open, or by an MPS server.
fn running_holder(gpu: &Gpu, leftovers: &[Leftover], bytes: Bytes) -> Option<Unattributed> {
    let of = |what: LeftoverKind| {
        let found = leftovers.iter().filter(move |leftover| leftover.what == what);
        found
            .filter(move |leftover| what == LeftoverKind::MpsServer || has_open(gpu, leftover))
            .map(|l| l.pid)
    };
    let open: Vec<Pid> = of(LeftoverKind::HoldsOpen).collect();
    if !open.is_empty() {
        let sentence = format!(
            "{bytes} may be held by {}: the driver lists no memory for it, but it has the GPU open, for example because it is a worker whose parent has exited.",
            named(&open)
        );
        return Some(part(bytes, UnattributedCause::HeldOpen, open, sentence));
    }
    let servers: Vec<Pid> = of(LeftoverKind::MpsServer).collect();
    (!servers.is_empty()).then(|| {
        let sentence = format!(
            "{bytes} may be held by clients of the MPS server, {}: the driver does not list all of their memory.",
            named(&servers)
        );
        part(bytes, UnattributedCause::MpsServer, servers, sentence)
    })
}

fn part(bytes: Bytes, cause: UnattributedCause, pids: Vec<Pid>, sentence: String) -> Unattributed {
    Unattributed { bytes, cause, pids, sentence }
}

/// Formats PIDs: `PID 418`, `PID 418, 421 and 3 more`.
fn named(pids: &[Pid]) -> String {
    let mut text = "PID ".to_owned();
    for (i, pid) in pids.iter().take(MAX_NAMED).enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        let _ = write!(text, "{comma}{pid}");
    }
    if pids.len() > MAX_NAMED {
        let _ = write!(text, " and {} more", pids.len() - MAX_NAMED);
    }
    text
}

#[cfg(test)]
mod tests;
