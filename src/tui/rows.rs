//! The rows of the process table: one for each process on each GPU, and those that have ended.
//!
//! A row keeps the frame it came from alive and points into it, so nothing is copied and a row can be sorted,
//! kept and drawn later.

use std::cmp::Reverse;
use std::sync::Arc;

use super::pools;
use super::theme::Theme;
use crate::allocator::fits::Fits;
use crate::allocator::warnings::NoteKind;
use crate::model::event::{Event, Exit, Observation};
use crate::model::frame::Frame;
use crate::model::gpu::{Gpu, GpuProcess, HealthState};
use crate::model::pool::{Pool, PoolStats};
use crate::model::process::{Process, ProcessKey, RunState};
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::reported_pool::ReportedPool;
use crate::model::units::{Bytes, GpuUuid, Millis, Mono, Percent, Pid, StartTicks, UnixMillis};

/// A process that was on a GPU and is no more.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    pub key: ProcessKey,
    pub exit: Exit,
    pub time: UnixMillis,
    pub mono: Mono,
    /// It ran out of a GPU's memory, as its incident says.
    pub ran_out: bool,
}

impl Ended {
    /// The end that an event tells of, if it does.
    pub fn from_event(event: &Event) -> Option<Self> {
        let Observation::Exit(exit) = &event.observation else {
            return None;
        };
        Some(Self {
            key: event.process?,
            exit: exit.clone(),
            time: event.time,
            mono: event.mono,
            ran_out: false,
        })
    }

    /// What ended it, in a word or two: `OOM killer`, `OOM`, `signal 11`, `exit 1`. A clean end needs no words, and of one of
    /// which nothing is known there are none.
    pub fn cause(&self) -> Option<String> {
        if self.exit.oom.killed.get() == Some(true) {
            return Some("OOM killer".to_owned());
        }
        if self.ran_out {
            return Some("OOM".to_owned());
        }
        let signal = self
            .exit
            .signal
            .get()
            .map(|number| format!("signal {number}"));
        let code = self.exit.status.get().filter(|code| *code != 0);
        signal.or_else(|| code.map(|code| format!("exit {code}")))
    }

    /// When it ended, by this format, and all that is known of how: `ended 12:03:58, exit 137, OOM killer`.
    pub fn words(&self, theme: &Theme, format: &str) -> String {
        let code = self.exit.status.get().map(|code| format!("exit {code}"));
        let mut parts = vec![format!("ended {}", theme.clock(self.time, format))];
        parts.extend(code.clone());
        parts.extend(self.cause().filter(|cause| Some(cause) != code.as_ref()));
        parts.join(", ")
    }
}

#[derive(Debug, Clone)]
enum Origin {
    /// Indices into the frame: the GPU, its list, and the kernel's list.
    Listed {
        frame: Arc<Frame>,
        gpu: usize,
        listed: usize,
        facts: Option<usize>,
        pool: Option<usize>,
    },
    /// Inside a container: found by an open device file; the driver's list cannot be matched.
    Local {
        frame: Arc<Frame>,
        gpu: usize,
        facts: usize,
        pool: Option<usize>,
    },
    Ended {
        ended: Arc<Ended>,
        gpu: Option<(u32, GpuUuid)>,
    },
}

#[derive(Debug, Clone)]
pub struct ProcessRow {
    origin: Origin,
    /// The hertz of start times; 0 when the source did not say.
    ticks_per_second: u64,
    /// The worst early warning of its pool, which a frame alone does not tell.
    warning: Option<NoteKind>,
}

/// What a row is, independent of the frame it was seen in: the cursor stays on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowId {
    pub key: ProcessKey,
    pub gpu: Option<GpuUuid>,
}

const NOT_LISTED: &str =
    "inside a container the driver's list cannot be matched with the processes here";

impl ProcessRow {
    /// The rows of a frame, in the driver's order, then what has ended, newest first.
    pub fn of_frame(frame: &Arc<Frame>, ended: &[Arc<Ended>], ticks_per_second: u64) -> Vec<Self> {
        let origins = Self::origins(frame, ended).into_iter();
        origins
            .map(|origin| Self {
                origin,
                ticks_per_second,
                warning: None,
            })
            .collect()
    }

    fn origins(frame: &Arc<Frame>, ended: &[Arc<Ended>]) -> Vec<Origin> {
        let mut rows = Vec::new();
        let pools = pools::Index::new(frame);
        // An end is told at once; the frame still has the process for a moment.
        let has_ended = |key: ProcessKey| ended.iter().any(|ended| ended.key == key);
        for (g, gpu) in frame.gpus.iter().enumerate() {
            for (l, listed) in gpu.processes.value().into_iter().flatten().enumerate() {
                if listed.process.is_some_and(has_ended) {
                    continue;
                }
                let facts = listed.process.and_then(|key| position(frame, key));
                rows.push(Origin::Listed {
                    frame: Arc::clone(frame),
                    gpu: g,
                    listed: l,
                    facts,
                    pool: pools.position(listed.key(), gpu),
                });
            }
        }
        for (f, process) in frame.processes.iter().flat_map(|p| &*p.list).enumerate() {
            if has_ended(process.key) {
                continue;
            }
            for uuid in &process.open_gpus {
                if let Some(g) = frame.gpus.iter().position(|gpu| gpu.uuid == *uuid) {
                    rows.push(Origin::Local {
                        frame: Arc::clone(frame),
                        gpu: g,
                        facts: f,
                        pool: pools.position(process.key, &frame.gpus[g]),
                    });
                }
            }
        }
        for ended in ended.iter().rev() {
            let on = |uuid: &GpuUuid| {
                frame
                    .gpus
                    .iter()
                    .find(|g| g.uuid == *uuid)
                    .map(|g| (g.index, g.uuid.clone()))
            };
            let gpu = ended.exit.gpus.first().and_then(on);
            rows.push(Origin::Ended {
                ended: Arc::clone(ended),
                gpu,
            });
        }
        rows
    }

    pub fn id(&self) -> RowId {
        let key = match &self.origin {
            Origin::Listed { .. } => self.listed().map(GpuProcess::key).unwrap_or_default(),
            Origin::Local { .. } => self.facts().map(|f| f.key).unwrap_or_default(),
            Origin::Ended { ended, .. } => ended.key,
        };
        RowId {
            key,
            gpu: self.gpu_uuid(),
        }
    }

    /// The GPU it is on, while it is.
    pub fn gpu(&self) -> Option<&Gpu> {
        match &self.origin {
            Origin::Listed { frame, gpu, .. } | Origin::Local { frame, gpu, .. } => {
                frame.gpus.get(*gpu)
            }
            Origin::Ended { .. } => None,
        }
    }

    fn gpu_uuid(&self) -> Option<GpuUuid> {
        match &self.origin {
            Origin::Ended { gpu, .. } => gpu.as_ref().map(|g| g.1.clone()),
            _ => self.gpu().map(|g| g.uuid.clone()),
        }
    }

    /// Index of the GPU, and of the MIG instance on it: `3`, `3:1`.
    pub fn gpu_label(&self) -> Option<String> {
        let index = match &self.origin {
            Origin::Ended { gpu, .. } => gpu.as_ref()?.0,
            _ => self.gpu()?.index,
        };
        match self.listed().and_then(|l| l.gpu_instance) {
            Some(instance) => Some(format!("{index}:{instance}")),
            None => Some(index.to_string()),
        }
    }

    pub fn gpu_index(&self) -> u32 {
        match &self.origin {
            Origin::Ended { gpu, .. } => gpu.as_ref().map_or(u32::MAX, |g| g.0),
            _ => self.gpu().map_or(u32::MAX, |g| g.index),
        }
    }

    pub fn listed(&self) -> Option<&GpuProcess> {
        match &self.origin {
            Origin::Listed { listed, .. } => self.gpu()?.processes.value()?.get(*listed),
            _ => None,
        }
    }

    /// The kernel's side, as last seen for one that has ended.
    pub fn facts(&self) -> Option<&Process> {
        match &self.origin {
            Origin::Listed { frame, facts, .. } => frame.processes.as_ref()?.list.get((*facts)?),
            Origin::Local { frame, facts, .. } => frame.processes.as_ref()?.list.get(*facts),
            Origin::Ended { ended, .. } => ended.exit.last.as_deref(),
        }
    }

    /// What its allocator holds on this GPU, where that was read.
    pub fn pool(&self) -> Option<&Pool> {
        let (frame, pool) = match &self.origin {
            Origin::Listed { frame, pool, .. } | Origin::Local { frame, pool, .. } => {
                (frame, *pool)
            }
            Origin::Ended { .. } => return None,
        };
        frame.pools.as_ref()?.list.get(pool?)
    }

    /// What other frameworks in it tell of their pools on this GPU.
    pub fn told(&self) -> impl Iterator<Item = &ReportedPool> {
        let frame = match &self.origin {
            Origin::Listed { frame, .. } | Origin::Local { frame, .. } => Some(frame),
            Origin::Ended { .. } => None,
        };
        let key = self.id().key;
        let uuid = self.gpu().map(|gpu| &gpu.uuid);
        let all = frame.and_then(|frame| Some((frame, frame.pools.as_ref()?)));
        all.into_iter()
            .flat_map(move |(frame, pools)| pools.reported_of(key).map(move |told| (frame, told)))
            .filter(move |(frame, told)| {
                let on = pools::gpu_of_reported(frame, told).map(|gpu| &gpu.uuid);
                on.is_some() && on == uuid
            })
            .map(|(_, told)| told)
    }

    /// What its allocators have handed out on this GPU; `None` where one of them does not tell.
    pub fn allocated(&self) -> Option<Bytes> {
        self.sum(|stats| stats.allocated.last(), |told| told.allocated.get())
    }

    /// What its allocators hold from the driver.
    pub fn reserved(&self) -> Option<Bytes> {
        self.sum(|stats| stats.reserved.last(), |told| told.reserved.get())
    }

    /// What they hold and have not handed out.
    pub fn idle(&self) -> Option<Bytes> {
        self.sum(PoolStats::idle, |told| told.idle().get())
    }

    fn sum(
        &self,
        of_read: fn(&PoolStats) -> Bytes,
        of_told: fn(&ReportedPool) -> Option<Bytes>,
    ) -> Option<Bytes> {
        let read = self.pool().map(|pool| Some(of_read(&pool.stats)));
        let parts = read.into_iter().chain(self.told().map(of_told));
        parts.reduce(|a, b| Some(Bytes(a?.0.saturating_add(b?.0))))?
    }

    pub fn warn(&mut self, worst: Option<NoteKind>) {
        self.warning = worst;
    }

    pub fn warning(&self) -> Option<NoteKind> {
        self.warning
    }

    /// Why [`pool`](Self::pool) has nothing.
    pub fn why_no_pool(&self) -> Missing {
        match &self.origin {
            Origin::Listed { frame, .. } | Origin::Local { frame, .. } => {
                pools::why_none(frame, self.id().key)
            }
            Origin::Ended { .. } => Reason::Gone.into(),
        }
    }

    /// True when its allocator could not be read, and someone could do something about it.
    pub fn is_unreadable(&self) -> bool {
        match &self.origin {
            Origin::Listed { frame, .. } | Origin::Local { frame, .. } => {
                pools::is_unreadable(frame, self.id().key)
            }
            Origin::Ended { .. } => false,
        }
    }

    /// The largest request that would succeed now, by statistics alone.
    pub fn fits(&self) -> Option<Bytes> {
        let pool = self.pool()?;
        let around = pools::around(self.facts(), pool, self.gpu());
        Fits::of_stats(&pool.stats, &around).largest()
    }

    pub fn ended(&self) -> Option<&Ended> {
        match &self.origin {
            Origin::Ended { ended, .. } => Some(ended),
            _ => None,
        }
    }

    /// True when what the row shows is not of this moment.
    pub fn is_stale(&self) -> bool {
        self.gpu()
            .is_none_or(|gpu| gpu.health.state != HealthState::Answering)
    }

    pub fn pid(&self) -> Pid {
        self.id().key.pid
    }

    /// Device memory now; the most it had for one that has ended.
    pub fn vram(&self) -> Reading<Bytes> {
        match &self.origin {
            Origin::Listed { .. } => self.listed().map(|l| l.vram.clone()).unwrap_or_default(),
            Origin::Local { .. } => Reading::missing(Reason::Unsupported, NOT_LISTED),
            Origin::Ended { ended, .. } => ended.exit.peak_vram.clone(),
        }
    }

    pub fn sm(&self) -> Reading<Percent> {
        self.listed().map_or_else(gone, |l| l.sm.clone())
    }

    pub fn fact<T: Clone>(&self, of: impl Fn(&Process) -> &Reading<T>) -> Reading<T> {
        match self.facts() {
            Some(facts) => of(facts).clone(),
            None => Reading::Missing(self.why_no_facts()),
        }
    }

    /// Like [`fact`](Self::fact), for what has no meaning once the process has ended.
    pub fn live_fact<T: Clone>(&self, of: impl Fn(&Process) -> &Reading<T>) -> Reading<T> {
        if self.ended().is_some() {
            gone()
        } else {
            self.fact(of)
        }
    }

    fn why_no_facts(&self) -> Missing {
        Missing::new(
            Reason::Gone,
            "not among the processes visible here: another PID namespace, or just ended",
        )
    }

    /// How long it has run, or had run when it ended: on the clock that never jumps, as its start is.
    pub fn shown_age(&self) -> Option<Millis> {
        // A process that could not be opened has no start.
        let start = self.facts()?.key.start;
        if start == StartTicks(0) || self.ticks_per_second == 0 {
            return None;
        }
        let started = Mono(start.0.saturating_mul(1_000) / self.ticks_per_second);
        let until = match &self.origin {
            Origin::Listed { frame, .. } | Origin::Local { frame, .. } => frame.mono,
            Origin::Ended { ended, .. } => ended.mono,
        };
        Some(until.since(started))
    }

    pub fn run_state(&self) -> RunState {
        self.facts().map_or(RunState::Unknown, |f| f.state)
    }

    /// What stands in the COMMAND column: without the interpreter's path, which says nothing at 3 a.m.
    pub fn command(&self) -> Reading<String> {
        match self.facts() {
            Some(facts) => match &facts.command {
                Reading::Value(command) if !command.is_empty() => {
                    Reading::Value(without_interpreter(command))
                }
                _ if !facts.name.is_empty() => Reading::Value(format!("[{}]", facts.name)),
                Reading::Value(_) => Reading::Missing(self.why_no_facts()),
                Reading::Missing(why) => Reading::Missing(why.clone()),
            },
            None => Reading::Missing(self.why_no_facts()),
        }
    }

    /// True when the filter's text occurs in what the row shows.
    pub fn matches(&self, filter: &str) -> bool {
        let has = |text: &str| text.to_lowercase().contains(filter);
        has(&self.pid().to_string())
            || self
                .gpu_label()
                .is_some_and(|gpu| format!("gpu{gpu}") == filter)
            || self.facts().is_some_and(|facts| {
                has(&facts.name)
                    || facts.command.value().is_some_and(|v| has(v))
                    || facts.user.value().is_some_and(|v| has(v))
                    || facts.job.value().is_some_and(|v| has(v))
                    || facts.container.value().is_some_and(|v| has(v))
                    || facts.container_words().is_some_and(|v| has(&v))
                    || facts
                        .rank
                        .get()
                        .is_some_and(|rank| format!("rank{rank}") == filter)
            })
    }

    /// The order when no column was chosen: living first, by GPU, the largest first; then the ended, newest first.
    pub fn natural_order(&self) -> impl Ord + use<> {
        let ended = self.ended().map(|e| Reverse(e.mono));
        (
            ended,
            self.gpu_index(),
            Reverse(self.vram().get()),
            self.pid(),
        )
    }
}

/// `/opt/conda/bin/python3 -u train.py --lr 1` as `train.py --lr 1`; anything else without the program's directory.
fn without_interpreter(command: &str) -> String {
    const QUIET: [&str; 8] = ["-u", "-B", "-E", "-I", "-O", "-OO", "-s", "-S"];
    let (program, rest) = command.split_once(' ').unwrap_or((command, ""));
    let name = program.rsplit('/').next().unwrap_or(program);
    let is_python = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') == "python";
    let words: Vec<&str> = rest
        .split(' ')
        .skip_while(|word| QUIET.contains(word))
        .collect();
    match words.as_slice() {
        [] | [""] => name.to_owned(),
        ["-m", module @ ..] if is_python && !module.is_empty() => module.join(" "),
        words if is_python && !words[0].starts_with('-') => words.join(" "),
        _ => format!("{name} {rest}"),
    }
}

fn gone<T>() -> Reading<T> {
    Reading::Missing(Reason::Gone.into())
}

fn position(frame: &Frame, key: ProcessKey) -> Option<usize> {
    let list = &frame.processes.as_ref()?.list;
    list.binary_search_by_key(&key.pid, |p| p.key.pid)
        .ok()
        .filter(|&at| list[at].key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_says_nothing_and_is_left_out() {
        for (command, shown) in [
            (
                "/opt/conda/bin/python3.12 -u train.py --lr 1",
                "train.py --lr 1",
            ),
            (
                "python -m torch.distributed.run a.py",
                "torch.distributed.run a.py",
            ),
            ("python3 -c import torch", "python3 -c import torch"),
            ("/usr/bin/blender scene.blend", "blender scene.blend"),
            ("python3", "python3"),
        ] {
            assert_eq!(without_interpreter(command), shown);
        }
    }
}
