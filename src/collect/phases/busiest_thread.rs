//! The thread of a process without Python that uses the most CPU time, and where it is in the kernel.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use gputop_model::phases::{CallCount, ThreadLoad};
use gputop_model::process::RunState;
use gputop_model::{Mono, Percent, Pid, Reading, Reason};
use gputop_peek::clock::now_mono;
use gputop_peek::process::load::{
    system_call, thread_ids, thread_name, thread_state, thread_times,
};

use super::watched::MAX_SAMPLES;

#[derive(Debug)]
struct Look {
    at: Mono,
    /// Name of the system call, or empty if the thread ran.
    call: Option<String>,
    is_blocked: Option<bool>,
}

#[derive(Debug)]
pub struct BusiestThread {
    proc_root: PathBuf,
    pid: Pid,
    id: u32,
    name: String,
    /// CPU time of each thread at the last list.
    times: BTreeMap<u32, u64>,
    looks: VecDeque<Look>,
}

impl BusiestThread {
    pub fn new(proc_root: &Path, pid: Pid) -> Self {
        let proc_root = proc_root.to_owned();
        let (id, name) = (pid.0, String::new());
        Self { proc_root, pid, id, name, times: BTreeMap::new(), looks: VecDeque::new() }
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    /// Selects the thread that has used the most CPU time since the last list. Replaces the selected thread, and its
    /// samples, only by one that has used twice as much.
    pub fn list_threads(&mut self) {
        let ids = thread_ids(&self.proc_root, self.pid).into_iter();
        let time = |id| Some((id, thread_times(&self.proc_root, self.pid, id)?.cpu_ns));
        let times: BTreeMap<u32, u64> = ids.filter_map(time).collect();
        let used = |id: &u32| {
            let before = self.times.get(id).or(times.get(id)).copied().unwrap_or(0);
            times.get(id).copied().unwrap_or(0).saturating_sub(before)
        };
        let busiest = times.keys().max_by_key(|id| used(id));
        let other = busiest.filter(|id| used(id) > used(&self.id).saturating_mul(2));
        if let Some(id) = other.copied() {
            self.id = id;
            self.looks.clear();
        }
        self.name = thread_name(&self.proc_root, self.pid, self.id).unwrap_or_default();
        self.times = times;
    }

    pub fn look(&mut self) {
        if self.looks.len() >= MAX_SAMPLES {
            self.looks.pop_front();
        }
        let state = thread_state(&self.proc_root, self.pid, self.id);
        self.looks.push_back(Look {
            at: now_mono(),
            call: system_call(&self.proc_root, self.pid, self.id),
            is_blocked: state.map(|state| state == RunState::Blocked),
        });
    }

    /// Returns what is known of the thread since `from`.
    pub fn load(&mut self, from: Mono) -> ThreadLoad {
        self.looks.retain(|look| look.at >= from);
        let mut calls: BTreeMap<&str, u32> = BTreeMap::new();
        for call in self.looks.iter().filter_map(|look| look.call.as_deref()) {
            *calls.entry(call).or_default() += 1;
        }
        let mut calls: Vec<CallCount> = calls
            .into_iter()
            .map(|(call, count)| CallCount { call: call.to_owned(), count })
            .collect();
        calls.sort_by_key(|call| std::cmp::Reverse(call.count));
        ThreadLoad {
            name: self.name.clone(),
            is_main: self.id == self.pid.0,
            calls,
            blocked: blocked_share(self.looks.iter().filter_map(|look| look.is_blocked)),
            ..ThreadLoad::default()
        }
    }
}

/// Returns the share of the samples in which a thread waited for storage.
pub fn blocked_share(samples: impl Iterator<Item = bool>) -> Reading<Percent> {
    let (blocked, all) = samples.fold((0u32, 0u32), |(blocked, all), is_blocked| {
        (blocked + u32::from(is_blocked), all + 1)
    });
    let share = (all > 0).then(|| Percent::rounded(100.0 * f64::from(blocked) / f64::from(all)));
    Reading::or_missing(share, Reason::NotRead, "no sample")
}
