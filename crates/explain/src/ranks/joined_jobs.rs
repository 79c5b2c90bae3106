//! The ranks of all hosts that are shown together, so that a job on several hosts is one job.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gputop_model::units::{Millis, Mono};

use super::job_report::JobReport;
use super::job_watch::JobWatch;
use super::observation::RankObservation;

/// Minimum time between two looks at the ranks.
const PERIOD: Millis = Millis(900);
/// Number of looks after which a host that sends nothing is no longer observed.
const MAX_MISSED: u32 = 5;

/// Shared by the states of all hosts.
#[derive(Debug, Clone, Default)]
pub struct JoinedJobs(Arc<Mutex<Joined>>);

#[derive(Debug, Default)]
struct Joined {
    watch: JobWatch,
    /// Time of the newest look: the sum of the times between looks, each by the clock of a host.
    now: Mono,
    hosts: BTreeMap<Arc<str>, HostRanks>,
    reports: Arc<[JobReport]>,
}

#[derive(Debug, Default)]
struct HostRanks {
    observations: Vec<RankObservation>,
    /// Times of the newest observations, and of those that were in the newest look, by the clock of the host.
    pushed_at: Mono,
    looked_at: Mono,
    /// True if the observations are newer than the newest look.
    is_new: bool,
    missed: u32,
}

impl JoinedJobs {
    /// Returns true if observations of a host at this time would be taken.
    pub fn is_due(&self, host: &str, at: Mono) -> bool {
        let joined = self.lock();
        joined.hosts.get(host).is_none_or(|known| at.since(known.pushed_at) >= PERIOD)
    }

    /// Sets the ranks of a host, and looks at all ranks once each host has sent new ones, or one host twice. Returns the
    /// jobs on this host.
    pub fn push(&self, host: &str, at: Mono, observations: Vec<RankObservation>) -> Vec<JobReport> {
        let mut joined = self.lock();
        let name: Arc<str> = host.into();
        // Count the time of a new host from now on, not from its boot.
        let new = || HostRanks { looked_at: at, ..HostRanks::default() };
        let known = joined.hosts.entry(Arc::clone(&name)).or_insert_with(new);
        let is_second = std::mem::replace(&mut known.is_new, true);
        (known.observations, known.pushed_at) = (observations, at);
        let elapsed = at.since(known.looked_at).max(PERIOD);
        if is_second || joined.hosts.values().all(|known| known.is_new) {
            joined.look(elapsed);
        }
        let is_here = |report: &&JobReport| report.ranks.iter().any(|rank| rank.host == name);
        joined.reports.iter().filter(is_here).cloned().collect()
    }

    /// Returns the jobs of all hosts at the newest look.
    pub fn reports(&self) -> Arc<[JobReport]> {
        Arc::clone(&self.lock().reports)
    }

    /// Forgets the ranks of a host.
    pub fn forget(&self, host: &str) {
        let mut joined = self.lock();
        joined.hosts.remove(host);
        if joined.hosts.is_empty() {
            *joined = Joined::default();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Joined> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Joined {
    fn look(&mut self, elapsed: Millis) {
        self.now = Mono(self.now.0 + elapsed.0);
        for known in self.hosts.values_mut() {
            known.missed = if known.is_new { 0 } else { known.missed + 1 };
            (known.is_new, known.looked_at) = (false, known.pushed_at);
        }
        self.hosts.retain(|_, known| known.missed <= MAX_MISSED);
        let ranks = self.hosts.values().flat_map(|known| &known.observations);
        self.reports = self.watch.observe(self.now, ranks).into();
    }
}

#[cfg(test)]
mod tests {
    use gputop_model::process::ProcessKey;
    use gputop_model::process_group::{PendingWork, ProcessGroup, RankReading, Work};

    use super::*;

    /// Milliseconds since the boot of each host when the ranks began to wait.
    const STARTS: [(&str, u64); 2] = [("node1", 1_000_000), ("node2", 90_000_000)];

    /// Returns the two ranks of a host, `second` seconds after the others began to wait for rank 3. Before that, all
    /// ranks call a collective each second.
    fn ranks(host: usize, second: i64) -> (Mono, Vec<RankObservation>) {
        let (name, start) = STARTS[host];
        let at = Mono(start.checked_add_signed(second * 1_000).expect("after the boot"));
        let work = |seq| Work { seq, operation: "ALLREDUCE".into(), ..Work::default() };
        let observation = |rank: u32| {
            let waits = rank != 3 && second >= 0;
            let pending = PendingWork { work: work(30), called_ns: start * 1_000_000 };
            let completed = 29_u64.saturating_add_signed(second.min(0));
            let called = completed + u64::from(waits);
            let group = ProcessGroup {
                name: "0".into(),
                rank,
                size: 4,
                called: called.into(),
                called_p2p: 0.into(),
                enqueued: Some(work(called)),
                completed: Some(work(completed)),
                pending: if waits { vec![pending] } else { Vec::new() }.into(),
                ..ProcessGroup::default()
            };
            let reading = RankReading {
                process: ProcessKey::new(400 + rank, 5_000),
                at,
                store: Some("10.0.0.1:29500".into()),
                rank: Some(rank),
                world_size: Some(4),
                groups: vec![group].into(),
                stack: None,
            };
            RankObservation { host: name.into(), reading, ..RankObservation::default() }
        };
        let first = u32::try_from(host).expect("a small number") * 2;
        (at, vec![observation(first), observation(first + 1)])
    }

    fn verdicts(reports: &[JobReport]) -> Vec<String> {
        reports.iter().flat_map(|report| &report.verdicts).map(ToString::to_string).collect()
    }

    #[test]
    fn the_ranks_of_two_hosts_are_one_job_whatever_their_clocks_say() {
        let joined = JoinedJobs::default();
        let mut reports = [Vec::new(), Vec::new()];
        for second in 10..16 {
            for host in 0..2 {
                let (at, ranks) = ranks(host, second);
                assert!(joined.is_due(STARTS[host].0, at));
                reports[host] = joined.push(STARTS[host].0, at, ranks);
                assert!(!joined.is_due(STARTS[host].0, at));
            }
        }
        let expected = "rank 3 on node2 holds up 3 ranks for 15 s: it has not come to ALLREDUCE #30 in group 0";
        assert_eq!(verdicts(&reports[1]), [expected]);
        assert_eq!(verdicts(&joined.reports()), [expected]);
        assert_eq!(reports[0][0].ranks.len(), 4);
        // A host that sends nothing any more is left out.
        for second in 16..36 {
            let (at, ranks) = ranks(0, second);
            reports[0] = joined.push("node1", at, ranks);
        }
        let alone = verdicts(&reports[0]);
        assert!(alone.iter().all(|text| text.contains("no process on this host")), "{alone:?}");
        joined.forget("node1");
        assert_eq!(*joined.reports(), []);
    }

    #[test]
    fn the_uptime_of_a_host_that_joins_later_is_not_an_interval_between_collectives() {
        let joined = JoinedJobs::default();
        let mut reports = Vec::new();
        // node2 joins five seconds before the wait, and sends twice before node1 sends again.
        let alone = (-10..-5).map(|second| (0, second));
        let joins = [(1, -6), (1, -5), (0, -5)];
        let together = (-4..16).flat_map(|second| [(0, second), (1, second)]);
        for (host, second) in alone.chain(joins).chain(together) {
            let (at, ranks) = ranks(host, second);
            reports = joined.push(STARTS[host].0, at, ranks);
        }
        let expected = "rank 3 on node2 holds up 3 ranks for 15 s: it has not come to ALLREDUCE #30 in group 0";
        assert_eq!(verdicts(&reports), [expected]);
    }
}
