//! Explains GPU memory that cannot be attributed to a running process.
//!
//! Unattributed memory is the used memory minus the memory of visible processes and the memory reserved by the driver.
//! It consists of two kinds of memory: memory that the driver lists for a process that is not visible or has exited,
//! and memory that the driver lists for no process. Each part gets a one-sentence explanation, which names a cause only
//! if gputop found evidence for it.

use std::fmt::Write as _;

use super::last_seen::Peak;
use crate::collect::process::leftovers::{Leftover, LeftoverKind};
use crate::model::accounting::{account, account_pools, is_on};
use crate::model::gpu::{Unattributed, UnattributedCause};
use crate::model::{
    Bytes, Gpu, GpuProcess, Pid, PidNamespace, Pools, Process, ProcessKey, Reason, RunState,
    StartTicks,
};

/// Minimum amount of unattributed memory to report. Due to rounding and the driver's bookkeeping, even an idle GPU has
/// some, but less than this.
const MIN_REPORTED: Bytes = Bytes(64 << 20);
/// Maximum number of PIDs named in a sentence.
const MAX_NAMED: usize = 4;

/// Data used to explain a GPU's unattributed memory, collected in the same tick as the GPU's readings.
pub struct GpuContext<'a> {
    pub namespace: PidNamespace,
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
    if context.namespace != PidNamespace::Host {
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
        _ => format!(", or held by {} inside it, whose memory use cannot be read", named(&pids)),
    };
    Some(Unattributed {
        bytes,
        cause: UnattributedCause::OutsideContainer,
        pids,
        sentence: format!("{bytes} is used outside this container{or}."),
    })
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
    let split = account(gpu).filter(|split| !split.processes_unknown)?;
    let bytes = split.unattributed;
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
            "gputop found no other holder"
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
mod tests {
    use super::*;
    use crate::model::gpu::Memory;
    use crate::model::reading::Reading;
    use crate::model::units::GpuUuid;
    use std::collections::HashMap;
    use std::sync::Arc;

    /// Returns a GPU of 100 GiB with `used` GiB in use, of which process 418 has 20 GiB.
    fn gpu(used: u64) -> Gpu {
        let entry = GpuProcess {
            pid: Pid(418),
            process: Some(key(418)),
            vram: Bytes::gib(20).into(),
            ..GpuProcess::default()
        };
        let mut gpu = Gpu {
            uuid: GpuUuid("GPU-a".into()),
            memory: Memory {
                total: Bytes::gib(100).into(),
                free: Bytes::gib(100 - used).into(),
                reserved: Bytes(0).into(),
                ..Memory::default()
            },
            processes: vec![entry].into(),
            ..Gpu::default()
        };
        Arc::make_mut(&mut gpu.board).minor = 1.into();
        gpu
    }

    fn key(pid: u32) -> ProcessKey {
        ProcessKey::new(pid, 7)
    }

    fn process() -> Process {
        Process {
            key: key(418),
            name: "python".into(),
            command: "train.py".to_owned().into(),
            ..Process::default()
        }
    }

    fn leftover(pid: u32, what: LeftoverKind, minors: &[u32]) -> Leftover {
        Leftover {
            pid: Pid(pid),
            parent: Pid(1),
            name: "python".into(),
            what,
            minors: minors.to_vec(),
        }
    }

    /// Returns the cause and the size in GiB of each unattributed part of a GPU's memory.
    fn causes(
        namespace: PidNamespace,
        gpu: &Gpu,
        process: &Process,
        leftovers: &[Leftover],
    ) -> Vec<(UnattributedCause, u64)> {
        let peak = Peak { gpus: vec![gpu.uuid.clone()], ..Peak::default() };
        let context = GpuContext {
            namespace,
            processes: std::slice::from_ref(process),
            pools: &Pools::default(),
            leftovers: Some(leftovers),
            peaks: &HashMap::from([(key(77), peak)]),
        };
        let parts = explain(gpu, &context);
        assert!(parts.iter().all(|part| part.sentence.ends_with('.')));
        parts.iter().map(|part| (part.cause, part.bytes.0 >> 30)).collect()
    }

    fn on_host(leftovers: &[Leftover]) -> Vec<(UnattributedCause, u64)> {
        causes(PidNamespace::Host, &gpu(25), &process(), leftovers)
    }

    #[test]
    fn names_a_cause_only_with_evidence() {
        use UnattributedCause as Cause;
        let zombie =
            |pid, threads, minors: &[u32]| leftover(pid, LeftoverKind::Zombie { threads }, minors);
        let open = leftover(500, LeftoverKind::HoldsOpen, &[1]);
        let mps = leftover(600, LeftoverKind::MpsServer, &[]);
        assert_eq!(on_host(&[]), [(Cause::Unknown, 5)]);
        assert_eq!(on_host(std::slice::from_ref(&mps)), [(Cause::MpsServer, 5)]);
        assert_eq!(on_host(&[mps.clone(), open.clone()]), [(Cause::HeldOpen, 5)]);
        let held = zombie(20, 2, &[1]);
        assert_eq!(on_host(&[mps, open, held]), [(Cause::Zombie, 5)]);
        // The first process was seen on this GPU before it exited, the second was never seen, and the third has a
        // different GPU open.
        assert_eq!(on_host(&[zombie(77, 0, &[])]), [(Cause::Zombie, 5)]);
        assert_eq!(on_host(&[zombie(78, 0, &[])]), [(Cause::Unknown, 5)]);
        assert_eq!(on_host(&[zombie(78, 1, &[0])]), [(Cause::Unknown, 5)]);
        assert_eq!(on_host(&[leftover(500, LeftoverKind::HoldsOpen, &[0])]), [(Cause::Unknown, 5)]);
    }

    #[test]
    fn distinguishes_hidden_exited_and_zombie_processes() {
        use UnattributedCause as Cause;
        let unseen = |reason| {
            let mut process = process();
            process.key.start = StartTicks(0);
            process.command = Reading::missing(reason, "");
            let mut gpu = gpu(20);
            if let Reading::Value(list) = &mut gpu.processes {
                list[0].process = Some(process.key);
            }
            causes(PidNamespace::Host, &gpu, &process, &[])
        };
        assert_eq!(unseen(Reason::Denied), [(Cause::Hidden, 20)]);
        assert_eq!(unseen(Reason::Gone), [(Cause::Gone, 20)]);
        let mut zombie = process();
        zombie.state = RunState::Zombie;
        let causes_of = |process| causes(PidNamespace::Host, &gpu(20), process, &[]);
        assert_eq!(causes_of(&zombie), [(Cause::Zombie, 20)]);
        assert_eq!(causes_of(&process()), []);
    }

    #[test]
    fn attributes_unaccounted_memory_to_outside_the_container() {
        let mut gpu = gpu(25);
        if let Reading::Value(list) = &mut gpu.processes {
            list[0].process = None;
        }
        let parts = causes(PidNamespace::Container, &gpu, &process(), &[]);
        assert_eq!(parts, [(UnattributedCause::OutsideContainer, 25)]);
    }
}
