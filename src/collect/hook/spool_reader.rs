//! Reads the text added to the spool since the last read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use gputop_model::{HookEvent, HookOom, Pid, ProcessKey};
use gputop_peek::clock::now_mono;
use gputop_peek::process::stat::is_running;

use super::replay_trace::Traced;
use super::spool::{Kind, Name, Spool};
use super::spool_line::SpoolLine;
use super::statistics::ReportedPools;

/// Hook reports that arrived since the last read.
#[derive(Debug, Default)]
pub struct HookUpdate {
    pub events: Vec<(ProcessKey, HookEvent)>,
    pub reported: ReportedPools,
    /// Failed allocations that have a trace.
    pub traced: Vec<Traced>,
}

pub struct SpoolReader {
    spool: Option<Spool>,
    proc_root: PathBuf,
    read: HashMap<Name, ReadProgress>,
    is_first: bool,
}

#[derive(Debug, Default)]
struct ReadProgress {
    until: u64,
    torch: String,
    /// Last failed allocation reported in the file.
    oom: Option<HookOom>,
}

impl SpoolReader {
    /// Opens this user's spool.
    pub fn new(proc_root: &Path) -> Self {
        let spool = Spool::own();
        if let Some(spool) = &spool {
            spool.sweep();
        }
        Self { spool, proc_root: proc_root.to_owned(), read: HashMap::new(), is_first: true }
    }

    /// Returns the hook events reported since the last call. The first call skips events of exited processes.
    pub fn read(&mut self) -> HookUpdate {
        let mut update = HookUpdate::default();
        let Some(spool) = &self.spool else { return update };
        let names = spool.names();
        self.read.retain(|name, _| names.contains(name));
        for name in names {
            if name.kind == Kind::Now {
                add_page(&mut update.reported, spool, &self.proc_root, &name);
                continue;
            }
            let is_past = self.is_first && !is_running(&self.proc_root, name.key);
            let read = self.read.entry(name.clone()).or_default();
            if spool.length(&name) <= read.until {
                continue;
            }
            for line in spool.lines(&name, &mut read.until) {
                match line {
                    SpoolLine::Process(process) => read.torch = process.torch,
                    SpoolLine::Event(_) if is_past => {}
                    SpoolLine::Event(event) if event.what == "trace" => {
                        update.traced.extend(read.oom.clone().map(|oom| Traced {
                            process: name.key,
                            torch: read.torch.clone(),
                            oom,
                        }));
                    }
                    SpoolLine::Event(event) => {
                        read.oom = event.oom.as_deref().cloned().or(read.oom.take());
                        update.events.push((name.key, *event));
                    }
                }
            }
        }
        self.is_first = false;
        update
    }
}

pub fn reported_by(proc_root: &Path, pid: Pid) -> ReportedPools {
    let mut reported = ReportedPools::default();
    if let Some(spool) = Spool::own() {
        let names = spool.names().into_iter();
        for name in names.filter(|name| name.kind == Kind::Now && name.key.pid == pid) {
            add_page(&mut reported, &spool, proc_root, &name);
        }
    }
    reported
}

fn add_page(reported: &mut ReportedPools, spool: &Spool, proc_root: &Path, name: &Name) {
    let page = spool.page(name);
    if let Some(page) = page.filter(|_| is_running(proc_root, name.key)) {
        reported.take(&page, name.key, now_mono());
    }
}
