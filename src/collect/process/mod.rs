//! Reads GPU processes from the kernel: those listed by the driver or, in a container, those with an open GPU device
//! file.
//!
//! Reads one stat file per process and tick with a single `pread` (`stat.rs`). All other facts are read rarely
//! (`facts.rs`) or on request (`detail.rs`). This module does not use the driver's measurements. It uses the driver's
//! PIDs only in the initial PID namespace, because in other namespaces they refer to other processes.
//!
//! A process is watched for a while after it leaves the driver's list, because the driver drops an exiting process
//! before its parent reaps it. Its exit is therefore still detected, and reported once.

mod cgroup;
pub mod container;
mod context;
mod cpu;
mod detail;
mod dir;
mod environment;
mod facts;
pub(in crate::collect) mod leftovers;
pub(in crate::collect) mod nul_list;
mod open_devices;
pub(in crate::collect) mod own_program;
mod run_command;
mod signal;
mod tracked_process;
mod user;

use self::context::Context;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use gputop_model::{
    GpuUuid, Millis, Missing, Mono, Pid, PidNamespace, Process, ProcessKey, Reading,
};
use gputop_peek::clock::boot_time;
use gputop_peek::process::access::Access;
use gputop_peek::process::stat::StatBuffer;

use self::container::{Containers, Files};
pub use self::detail::read as detail;
pub use self::environment::{alloc_conf_of, pool_conf_of, setting_of};
use self::leftovers::{Leftover, Leftovers};
use self::open_devices::OpenGpus;
pub use self::signal::send as send_signal;
use self::tracked_process::{Refreshed, TrackedProcess};
use self::user::UserNames;

/// Maximum time to watch a process that has released its GPU but is still running.
const MAX_UNLISTED_TIME: Millis = Millis(5 * 60 * 1000);
/// Maximum number of unlisted processes to watch, which limits the number of open files.
const MAX_UNLISTED: usize = 128;

/// Returns the reason why this user cannot see the processes of other users, if `/proc` hides them.
pub fn hides_others(proc_root: &Path) -> Option<String> {
    Access::new(proc_root).hides_others()
}

#[derive(Debug, Default, PartialEq)]
pub struct ProcessReadout {
    /// Running processes, ordered by PID.
    pub list: Vec<Process>,
    /// Processes that exited since the previous tick, with their last readings. Each is reported once.
    pub ended: Vec<(ProcessKey, Process)>,
    /// Processes that may hold unattributed memory; `None` unless requested.
    pub leftovers: Option<Vec<Leftover>>,
}

pub struct ProcessTable {
    watched: BTreeMap<Pid, TrackedProcess>,
    open_gpus: OpenGpus,
    leftovers: Leftovers,
    namespace: PidNamespace,
    reading: Context,
}

impl ProcessTable {
    pub fn new(proc_root: &Path, files: Files, namespace: PidNamespace) -> Self {
        Self {
            watched: BTreeMap::new(),
            open_gpus: OpenGpus::new(proc_root),
            leftovers: Leftovers::default(),
            namespace,
            reading: Context {
                proc_root: proc_root.to_owned(),
                access: Access::new(proc_root),
                users: UserNames::new(),
                containers: Containers::new(proc_root, files),
                buffer: StatBuffer::default(),
                boot: boot_time(),
                ticks_per_second: procfs::ticks_per_second(),
                page_size: procfs::page_size(),
            },
        }
    }

    /// Reads the processes listed by the driver. Must be called once per tick. In a container, the driver's PIDs belong
    /// to another namespace and are ignored.
    pub fn read(&mut self, pids: &[Pid], now: Mono) -> ProcessReadout {
        if self.namespace == PidNamespace::Container {
            return self.read_listed(Vec::new(), now);
        }
        self.read_listed(pids.to_vec(), now)
    }

    /// Reads the processes with an open GPU device file, for use in a container. Searches for such processes every few
    /// seconds.
    pub fn local(&mut self, gpus: &[(Option<u32>, GpuUuid)], now: Mono) -> ProcessReadout {
        self.open_gpus.scan_when_due(now);
        let mut readout = self.read_listed(self.open_gpus.pids(), now);
        for process in &mut readout.list {
            process.open_gpus = self.open_gpus.gpus(process.key.pid, gpus);
        }
        readout
    }

    /// Reads the facts of a process once, without watching it.
    pub fn describe(&mut self, pid: Pid, now: Mono) -> io::Result<Process> {
        Ok(TrackedProcess::open(pid, now, &mut self.reading)?.process().clone())
    }

    pub fn leftovers(&mut self, listed: &[Pid], now: Mono) -> Vec<Leftover> {
        let proc_root = &self.reading.proc_root;
        self.leftovers.read(proc_root, listed, now)
    }

    fn read_listed(&mut self, mut listed: Vec<Pid>, now: Mono) -> ProcessReadout {
        listed.sort_unstable();
        listed.dedup();
        let ended = self.refresh(&listed, now);
        let list = listed.iter().map(|&pid| self.listed_process(pid, now)).collect();
        ProcessReadout { list, ended, leftovers: None }
    }

    /// Reads every watched process. Stops watching exited processes and returns them.
    fn refresh(&mut self, listed: &[Pid], now: Mono) -> Vec<(ProcessKey, Process)> {
        let mut ended = Vec::new();
        let mut unlisted = 0;
        self.watched.retain(|pid, watched| {
            let is_listed = listed.binary_search(pid).is_ok();
            let refreshed = watched.refresh(is_listed, now, &mut self.reading);
            if refreshed == Refreshed::Exited {
                ended.extend(watched.take_exit());
            }
            unlisted += usize::from(!is_listed);
            let is_watched = is_listed
                || (unlisted <= MAX_UNLISTED && watched.unlisted_for(now) < MAX_UNLISTED_TIME);
            is_watched && watched.is_readable()
        });
        ended
    }

    fn listed_process(&mut self, pid: Pid, now: Mono) -> Process {
        if let Some(watched) = self.watched.get(&pid) {
            return watched.process().clone();
        }
        match TrackedProcess::open(pid, now, &mut self.reading) {
            Ok(watched) => self.watched.entry(pid).or_insert(watched).process().clone(),
            Err(error) => unreadable(pid, &self.reading.access.missing("the process", &error)),
        }
    }
}

/// Creates an entry for a process of which only the PID is known. Its start time is 0, which no real process has, so
/// the entry cannot be mistaken for a real process.
fn unreadable(pid: Pid, missing: &Missing) -> Process {
    let mut process = Process {
        key: ProcessKey { pid, ..ProcessKey::default() },
        cpu: Reading::Missing(missing.clone()),
        rss: Reading::Missing(missing.clone()),
        ..Process::default()
    };
    facts::fill_missing(&mut process, missing);
    process
}

#[cfg(test)]
mod tests;
