//! What is new in the spool since it was last looked at.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::replay_trace::Traced;
use super::spool::{Kind, Name, Spool};
use super::spool_line::SpoolLine;
use super::statistics::ToldPools;
use crate::collect::clock::now_mono;
use crate::collect::process::stat::{StatBuffer, StatFile};
use crate::model::event::{HookEvent, HookOom};
use crate::model::process::ProcessKey;
use crate::model::units::{Pid, StartTicks};

/// What the hook told since it was last asked.
#[derive(Debug, Default)]
pub struct News {
    pub events: Vec<(ProcessKey, HookEvent)>,
    /// What running programs say that their allocators hold.
    pub told: ToldPools,
    /// Failures of which a trace lies ready.
    pub traced: Vec<Traced>,
}

pub struct SpoolReader {
    spool: Option<Spool>,
    proc_root: PathBuf,
    read: HashMap<Name, Read>,
    is_first: bool,
}

/// A file, as far as it was read.
#[derive(Debug, Default)]
struct Read {
    until: u64,
    torch: String,
    /// The last failed allocation that it told of.
    oom: Option<HookOom>,
}

impl SpoolReader {
    /// Of this user's spool.
    #[must_use]
    pub fn new(proc_root: &Path) -> Self {
        let spool = Spool::own();
        if let Some(spool) = &spool {
            spool.sweep();
        }
        Self {
            spool,
            proc_root: proc_root.to_owned(),
            read: HashMap::new(),
            is_first: true,
        }
    }

    /// The events since the last call; at the first those of processes that still run, since what ended before is
    /// nothing that this reader has seen.
    pub fn news(&mut self) -> News {
        let mut news = News::default();
        let Some(spool) = &self.spool else {
            return news;
        };
        let names = spool.names();
        self.read.retain(|name, _| names.contains(name));
        for name in names {
            if name.kind == Kind::Now {
                take(&mut news.told, spool, &self.proc_root, &name);
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
                        news.traced.extend(read.oom.clone().map(|oom| Traced {
                            process: name.key,
                            torch: read.torch.clone(),
                            oom,
                        }));
                    }
                    SpoolLine::Event(event) => {
                        read.oom = event.oom.as_deref().cloned().or(read.oom.take());
                        news.events.push((name.key, *event));
                    }
                }
            }
        }
        self.is_first = false;
        news
    }
}

/// What one running process says that its allocators hold.
#[must_use]
pub fn told_by(proc_root: &Path, pid: Pid) -> ToldPools {
    let mut told = ToldPools::default();
    if let Some(spool) = Spool::own() {
        let names = spool.names().into_iter();
        for name in names.filter(|name| name.kind == Kind::Now && name.key.pid == pid) {
            take(&mut told, &spool, proc_root, &name);
        }
    }
    told
}

fn take(told: &mut ToldPools, spool: &Spool, proc_root: &Path, name: &Name) {
    let page = spool.page(name);
    if let Some(page) = page.filter(|_| is_running(proc_root, name.key)) {
        told.take(&page, name.key, now_mono());
    }
}

fn is_running(proc_root: &Path, key: ProcessKey) -> bool {
    let start = || -> std::io::Result<StartTicks> {
        let file = StatFile::open(&proc_root.join(key.pid.to_string()).join("stat"))?;
        Ok(file.read(&mut StatBuffer::new())?.start)
    };
    start().is_ok_and(|start| start == key.start)
}
