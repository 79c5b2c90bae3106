//! Decides when a recorder requests the names of the tensors and arrays that hold memory: all processes of PyTorch, JAX
//! and CuPy in turn, one at a time. A new process comes first.
//!
//! A reading searches the heap of a process for up to two seconds while the process runs, so only one request is
//! pending, and each frame causes at most one. With many processes, each of them is read less often.
//!
//! Eight trainers with 53 groups of tensors each add 4 kB a minute to a recording, or 6 MB a day.

use std::collections::{BTreeMap, BTreeSet};

use gputop_model::holders::READING_INTERVAL;
use gputop_model::protocol::Request;
use gputop_model::reported_pool::Framework;
use gputop_model::{Frame, Millis, Mono, Pools, ProcessKey};

/// Time to wait for a reply before another process is read. A reading takes at most two seconds, plus the transfer from
/// a remote host.
const REPLY_TIMEOUT: Millis = Millis(10_000);

/// Scheduler that chooses a recorder's next reading of memory holders based on the frames.
#[derive(Debug, Default)]
pub struct HolderScheduler {
    /// The known processes, and the time of the last request for each.
    requested: BTreeMap<ProcessKey, Mono>,
    pending: Option<ProcessKey>,
}

impl HolderScheduler {
    /// Processes a frame. Returns the request to send now, if any.
    pub fn frame(&mut self, frame: &Frame) -> Option<Request> {
        let now = frame.mono;
        let listed: BTreeSet<ProcessKey> = frame.pools.iter().flat_map(named).collect();
        self.requested.retain(|process, _| listed.contains(process));
        // A request is also due if the clock went backwards, for example after a reboot.
        let is_after = |at: Mono, time: Millis| now < at || now.since(at) >= time;
        let is_pending = self.pending.and_then(|pending| self.requested.get(&pending));
        if is_pending.is_some_and(|at| !is_after(*at, REPLY_TIMEOUT)) {
            return None;
        }
        let last = |process: &ProcessKey| self.requested.get(process).copied();
        let is_due =
            |process: &ProcessKey| last(process).is_none_or(|at| is_after(at, READING_INTERVAL));
        let next = listed.iter().copied().filter(is_due).min_by_key(last);
        self.pending = next;
        self.requested.insert(next?, now);
        Some(Request::Holders(next))
    }

    /// Returns true if this process's reading was requested, and should be recorded if it succeeded.
    pub fn answered(&mut self, process: ProcessKey) -> bool {
        let is_requested = self.pending == Some(process);
        if is_requested {
            self.pending = None;
        }
        is_requested
    }
}

/// Returns the processes whose tensors or arrays have names. Those of TensorFlow have none.
fn named(pools: &Pools) -> impl Iterator<Item = ProcessKey> {
    let has_names = |framework| matches!(framework, Framework::Jax | Framework::Cupy);
    let reported = pools.reported.iter().filter(move |pool| has_names(pool.framework));
    let tensors = pools.list.iter().map(|pool| pool.process);
    tensors.chain(reported.map(|pool| pool.process))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use gputop_model::Pool;
    use gputop_model::reported_pool::ReportedPool;

    fn frame(seconds: u64, pids: &[u32]) -> Frame {
        let pool = |pid: &u32| Pool { process: ProcessKey::new(*pid, 7), ..Pool::default() };
        // Two devices of each process.
        let pools: Vec<Pool> = pids.iter().chain(pids).map(pool).collect();
        Frame {
            mono: Mono(seconds * 1_000),
            pools: Some(Pools { list: Arc::new(pools), ..Pools::default() }),
            ..Frame::default()
        }
    }

    #[test]
    fn reads_processes_of_pytorch_jax_and_cupy_in_turn() {
        let (torch, jax, cupy, both, tensorflow) = (1, 2, 3, 4, 5);
        let reported = |pid, framework| ReportedPool {
            process: ProcessKey::new(pid, 7),
            framework,
            ..ReportedPool::default()
        };
        let mut mixed = frame(0, &[torch, both]);
        mixed.pools.as_mut().expect("pools").reported = Arc::new(vec![
            reported(jax, Framework::Jax),
            reported(cupy, Framework::Cupy),
            reported(both, Framework::Jax),
            reported(tensorflow, Framework::Tensorflow),
        ]);
        let mut scheduler = HolderScheduler::default();
        let mut next = |second: u64| {
            let frame = Frame { mono: Mono(second * 1_000), ..mixed.clone() };
            let Some(Request::Holders(Some(process))) = scheduler.frame(&frame) else {
                return None;
            };
            scheduler.answered(process).then_some(process.pid.0)
        };
        let read: Vec<Option<u32>> = [0, 1, 2, 3, 4, 30].into_iter().map(&mut next).collect();
        assert_eq!(read, [Some(torch), Some(jax), Some(cupy), Some(both), None, Some(torch)]);
    }

    /// Returns the times and processes of the requests. Every request is answered before the next frame.
    fn requests(scheduler: &mut HolderScheduler, frames: &[(u64, &[u32])]) -> Vec<(u64, u32)> {
        let mut requests = Vec::new();
        for (seconds, pids) in frames {
            if let Some(Request::Holders(Some(process))) = scheduler.frame(&frame(*seconds, pids)) {
                assert!(scheduler.answered(process));
                assert!(!scheduler.answered(process), "recorded only once");
                requests.push((*seconds, process.pid.0));
            }
        }
        requests
    }

    #[test]
    fn each_process_is_read_at_once_and_then_every_half_minute() {
        let frames: Vec<(u64, &[u32])> =
            (0..70).map(|at| (at, if at < 10 { &[1, 2][..] } else { &[1, 2, 3] })).collect();
        let expected = [(0, 1), (1, 2), (10, 3), (30, 1), (31, 2), (40, 3), (60, 1), (61, 2)];
        assert_eq!(requests(&mut HolderScheduler::default(), &frames), expected);
    }

    #[test]
    fn only_one_reading_is_pending_until_it_is_overdue() {
        let mut scheduler = HolderScheduler::default();
        let mut at = |seconds| scheduler.frame(&frame(seconds, &[1, 2]));
        let wanted = |pid| Some(Request::Holders(Some(ProcessKey::new(pid, 7))));
        assert_eq!(at(0), wanted(1));
        assert_eq!((at(1), at(9)), (None, None));
        assert_eq!(at(10), wanted(2));
        // A late reply to the first request is not recorded.
        assert!(!scheduler.answered(ProcessKey::new(1, 7)));
        assert_eq!(scheduler.frame(&frame(11, &[1])), None, "read 11 s ago");
        assert_eq!(scheduler.frame(&frame(12, &[])), None);
        // After a reboot, the clock starts again.
        assert_eq!(scheduler.frame(&frame(3, &[1])), wanted(1));
    }
}
