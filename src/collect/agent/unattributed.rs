//! Memory that no living process here can be seen to hold, and what is known of why.
//!
//! used − what the processes seen here hold − what the driver reserves, taken apart: entries of the driver's list
//! behind which no process can be seen, or an ended one; then what no entry claims at all. Each part comes with one
//! sentence. Nothing is guessed: a cause is named where something of it was seen, else the sentence says that nothing
//! was.

use std::fmt::Write as _;

use super::last_seen::Peak;
use crate::collect::process::leftovers::{Leftover, LeftoverKind};
use crate::model::accounting::{account, account_pools, is_on};
use crate::model::gpu::{Gpu, GpuProcess, Unattributed, UnattributedCause};
use crate::model::host::PidNamespace;
use crate::model::pool::Pools;
use crate::model::process::{Process, ProcessKey, RunState};
use crate::model::reading::Reason;
use crate::model::units::{Bytes, Pid, StartTicks};

/// What rounding and the driver's own bookkeeping leave over on an idle card is less.
const MIN_REPORTED: Bytes = Bytes(64 << 20);
/// So many PIDs are named in a sentence.
const NAMED: usize = 4;

/// What a tick knows beside the GPU.
pub struct GpuContext<'a> {
    pub namespace: PidNamespace,
    pub processes: &'a [Process],
    pub pools: &'a Pools,
    /// Not there before they were looked for.
    pub leftovers: Option<&'a [Leftover]>,
    pub peaks: &'a std::collections::HashMap<ProcessKey, Peak>,
}

/// Whether it is worth going through all of /proc.
pub fn is_worth_a_look(gpu: &Gpu, processes: &[Process]) -> bool {
    let missing = account(gpu)
        .is_some_and(|split| split.unattributed >= MIN_REPORTED && !split.processes_unknown);
    // By PID: an entry that has just come is not tied to a process yet.
    let is_dead = |pid| processes.iter().any(|p| p.key.pid == pid && is_zombie(p));
    missing || listed(gpu).any(|entry| is_dead(entry.pid))
}

/// The parts of the GPU's memory that belong to no living process here; none where all of it does.
pub fn explain(gpu: &Gpu, seen: &GpuContext<'_>) -> Vec<Unattributed> {
    if seen.namespace != PidNamespace::Host {
        return outside(gpu, seen).into_iter().collect();
    }
    let mut parts = Vec::new();
    parts.extend(behind_nobody(gpu, seen));
    parts.extend(listed_zombies(gpu, seen));
    parts.extend(unclaimed(gpu, seen));
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

/// In a container no entry of the driver's can be matched: what the allocators here do not account for.
fn outside(gpu: &Gpu, seen: &GpuContext<'_>) -> Option<Unattributed> {
    let split = account_pools(gpu, Some(seen.pools))?;
    let bytes = Bytes(split.processes.0 + split.unattributed.0);
    if bytes < MIN_REPORTED {
        return None;
    }
    let here = seen.processes.iter();
    let here = here.filter(|process| process.open_gpus.iter().any(|uuid| is_on(gpu, uuid)));
    let unknown = here.filter(|process| seen.pools.of(process.key).next().is_none());
    let pids: Vec<Pid> = unknown.map(|process| process.key.pid).collect();
    let or = match pids.len() {
        0 => String::new(),
        _ => format!(
            ", or held by {} in it, whose memory nothing tells here",
            named(&pids)
        ),
    };
    Some(Unattributed {
        bytes,
        cause: UnattributedCause::OutsideContainer,
        pids,
        sentence: format!("{bytes} are outside this container{or}."),
    })
}

/// Entries whose process cannot be opened: hidden from this user, or gone while the driver still lists it.
fn behind_nobody(gpu: &Gpu, seen: &GpuContext<'_>) -> Vec<Unattributed> {
    let because = |entry: &&GpuProcess| {
        let process = facts(entry, seen.processes)?;
        let is_unseen = process.key.start == StartTicks(0);
        process
            .command
            .why()
            .filter(|_| is_unseen)
            .map(|why| why.reason)
    };
    let of = |reason| held(listed(gpu).filter(|entry| because(entry) == Some(reason)));
    let mut parts = Vec::new();
    let (bytes, pids) = of(Reason::Denied);
    if bytes >= MIN_REPORTED {
        let sentence = format!(
            "{bytes} belong to {}, hidden from this user: /proc is mounted with hidepid.",
            named(&pids)
        );
        parts.push(part(bytes, UnattributedCause::Hidden, pids, sentence));
    }
    let (bytes, pids) = of(Reason::Gone);
    if bytes >= MIN_REPORTED {
        let sentence = format!(
            "{bytes} are listed by the driver for {}, which {} ended, or never ran in this PID namespace.",
            named(&pids),
            if pids.len() == 1 { "has" } else { "have" },
        );
        parts.push(part(bytes, UnattributedCause::Gone, pids, sentence));
    }
    parts
}

fn listed_zombies(gpu: &Gpu, seen: &GpuContext<'_>) -> Vec<Unattributed> {
    let entries = listed(gpu).filter_map(|entry| Some((entry, facts(entry, seen.processes)?)));
    entries
        .filter(|(_, process)| is_zombie(process))
        .map(|(entry, process)| {
            let (bytes, pids) = held(std::iter::once(entry));
            let (pid, name) = (entry.pid, &process.name);
            let Some(leftovers) = seen.leftovers else {
                let sentence = format!(
                    "{bytes} are held for PID {pid} ({name}), a zombie; whether threads of it live is being looked for."
                );
                return part(bytes, UnattributedCause::NotRead, pids, sentence);
            };
            let mut its = leftovers.iter().filter(|leftover| leftover.pid == pid);
            let sentence = ended_sentence(bytes, pid, name, its.find_map(Leftover::threads));
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

fn ended_sentence(bytes: Bytes, pid: Pid, name: &str, threads: Option<usize>) -> String {
    match threads {
        Some(threads) if threads > 0 => {
            let run = match threads {
                1 => "1 thread still runs and holds",
                _ => &format!("{threads} threads still run and hold"),
            };
            format!("{bytes} are held by PID {pid} ({name}), a zombie of which {run} the GPU open.")
        }
        _ => format!(
            "{bytes} are held for PID {pid} ({name}), a zombie: it has ended, and the driver has not let go of its memory."
        ),
    }
}

/// What no entry of the driver's list claims.
fn unclaimed(gpu: &Gpu, seen: &GpuContext<'_>) -> Option<Unattributed> {
    let split = account(gpu).filter(|split| !split.processes_unknown)?;
    let bytes = split.unattributed;
    if bytes < MIN_REPORTED {
        return None;
    }
    let Some(leftovers) = seen.leftovers else {
        let sentence = format!(
            "{bytes} are used by no process that the driver lists; who else holds them is being looked for."
        );
        return Some(part(
            bytes,
            UnattributedCause::NotRead,
            Vec::new(),
            sentence,
        ));
    };
    let minor = gpu.board.minor.get();
    let here = |leftover: &&Leftover| minor.is_some_and(|minor| leftover.minors.contains(&minor));
    let was_here = |leftover: &&Leftover| {
        let of_pid = seen.peaks.iter().find(|(key, _)| key.pid == leftover.pid);
        of_pid.is_some_and(|(_, peak)| peak.gpus.contains(&gpu.uuid))
    };
    let is_listed = |pid: Pid| listed(gpu).any(|entry| entry.pid == pid);
    let zombie = leftovers
        .iter()
        .filter(|leftover| leftover.threads().is_some() && !is_listed(leftover.pid))
        .find(|leftover| here(leftover) || was_here(leftover));
    if let Some(zombie) = zombie {
        let sentence = ended_sentence(bytes, zombie.pid, &zombie.name, zombie.threads());
        return Some(part(
            bytes,
            UnattributedCause::Zombie,
            vec![zombie.pid],
            sentence,
        ));
    }
    let of = |what: LeftoverKind| {
        let found = leftovers
            .iter()
            .filter(move |leftover| leftover.what == what);
        found
            .filter(move |leftover| what == LeftoverKind::MpsServer || here(leftover))
            .map(|l| l.pid)
    };
    let open: Vec<Pid> = of(LeftoverKind::HoldsOpen).collect();
    if !open.is_empty() {
        let sentence = format!(
            "{bytes} may be held by {}: the driver lists no memory of it, but it holds the GPU open, as a worker does \
             whose parent has ended.",
            named(&open)
        );
        return Some(part(bytes, UnattributedCause::HeldOpen, open, sentence));
    }
    let servers: Vec<Pid> = of(LeftoverKind::MpsServer).collect();
    if !servers.is_empty() {
        let sentence = format!(
            "{bytes} may be held by clients of the MPS server, {}: the driver does not list all of their memory.",
            named(&servers)
        );
        return Some(part(bytes, UnattributedCause::MpsServer, servers, sentence));
    }
    let who = if nix::unistd::geteuid().is_root() {
        "nothing that can be seen here tells whose they are"
    } else {
        "root sees more of other users' processes"
    };
    let sentence = format!("{bytes} are used by no process that the driver lists; {who}.");
    Some(part(
        bytes,
        UnattributedCause::Unknown,
        Vec::new(),
        sentence,
    ))
}

fn part(bytes: Bytes, cause: UnattributedCause, pids: Vec<Pid>, sentence: String) -> Unattributed {
    Unattributed {
        bytes,
        cause,
        pids,
        sentence,
    }
}

/// `PID 418`, `PID 418, 421 and 3 more`.
fn named(pids: &[Pid]) -> String {
    let mut words = "PID ".to_owned();
    for (i, pid) in pids.iter().take(NAMED).enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        // Writing into a String cannot fail.
        let _ = write!(words, "{comma}{pid}");
    }
    if pids.len() > NAMED {
        let _ = write!(words, " and {} more", pids.len() - NAMED);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gpu::Memory;
    use crate::model::reading::Reading;
    use crate::model::units::GpuUuid;
    use std::collections::HashMap;
    use std::sync::Arc;

    /// 100 GiB, of which `used` are: by one process of 20 GiB, which is 418.
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
        ProcessKey {
            pid: Pid(pid),
            start: StartTicks(7),
        }
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

    /// Cause and GiB of each part.
    fn causes(
        namespace: PidNamespace,
        gpu: &Gpu,
        process: &Process,
        leftovers: &[Leftover],
    ) -> Vec<(UnattributedCause, u64)> {
        let peak = Peak {
            gpus: vec![gpu.uuid.clone()],
            ..Peak::default()
        };
        let seen = GpuContext {
            namespace,
            processes: std::slice::from_ref(process),
            pools: &Pools::default(),
            leftovers: Some(leftovers),
            peaks: &HashMap::from([(key(77), peak)]),
        };
        let parts = explain(gpu, &seen);
        assert!(parts.iter().all(|part| part.sentence.ends_with('.')));
        parts
            .iter()
            .map(|part| (part.cause, part.bytes.0 >> 30))
            .collect()
    }

    fn on_host(leftovers: &[Leftover]) -> Vec<(UnattributedCause, u64)> {
        causes(PidNamespace::Host, &gpu(25), &process(), leftovers)
    }

    #[test]
    fn a_cause_is_named_where_something_of_it_was_seen() {
        use UnattributedCause as Cause;
        let zombie =
            |pid, threads, minors: &[u32]| leftover(pid, LeftoverKind::Zombie { threads }, minors);
        let open = leftover(500, LeftoverKind::HoldsOpen, &[1]);
        let mps = leftover(600, LeftoverKind::MpsServer, &[]);
        assert_eq!(on_host(&[]), [(Cause::Unknown, 5)]);
        assert_eq!(on_host(std::slice::from_ref(&mps)), [(Cause::MpsServer, 5)]);
        assert_eq!(
            on_host(&[mps.clone(), open.clone()]),
            [(Cause::HeldOpen, 5)]
        );
        let held = zombie(20, 2, &[1]);
        assert_eq!(on_host(&[mps, open, held]), [(Cause::Zombie, 5)]);
        // Known on this GPU before it ended; another that never was; one that holds another GPU.
        assert_eq!(on_host(&[zombie(77, 0, &[])]), [(Cause::Zombie, 5)]);
        assert_eq!(on_host(&[zombie(78, 0, &[])]), [(Cause::Unknown, 5)]);
        assert_eq!(on_host(&[zombie(78, 1, &[0])]), [(Cause::Unknown, 5)]);
        assert_eq!(
            on_host(&[leftover(500, LeftoverKind::HoldsOpen, &[0])]),
            [(Cause::Unknown, 5)]
        );
    }

    #[test]
    fn whose_process_cannot_be_seen_is_told_apart() {
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
        let mut ended = process();
        ended.state = RunState::Zombie;
        let of = |process| causes(PidNamespace::Host, &gpu(20), process, &[]);
        assert_eq!(of(&ended), [(Cause::Zombie, 20)]);
        assert_eq!(of(&process()), []);
    }

    #[test]
    fn in_a_container_all_that_is_not_accounted_for_here_is_outside() {
        let mut gpu = gpu(25);
        if let Reading::Value(list) = &mut gpu.processes {
            list[0].process = None;
        }
        let parts = causes(PidNamespace::Container, &gpu, &process(), &[]);
        assert_eq!(parts, [(UnattributedCause::OutsideContainer, 25)]);
    }
}
