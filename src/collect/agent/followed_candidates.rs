//! Candidates whose output gputop follows until they use a GPU, exit, or turn out to be launchers.

use std::collections::BTreeMap;

use crate::collect::candidates::Candidate;
use crate::model::{Millis, Mono, Observation, Pid, Process, ProcessKey};

/// Time for which a candidate is followed before it uses a GPU.
const MAX_TIME: Millis = Millis(10 * 60 * 1_000);
const MAX_CANDIDATES: usize = 256;
/// Maximum number of candidates of one user, so that no user can displace the programs of the others.
const MAX_PER_USER: usize = 64;

#[derive(Debug, Default)]
pub struct FollowedCandidates(BTreeMap<ProcessKey, FollowedCandidate>);

#[derive(Debug)]
struct FollowedCandidate {
    process: Process,
    found: Mono,
    /// True if the reader of the agent's events knows the candidate.
    is_announced: bool,
}

impl FollowedCandidates {
    /// Adds a candidate. A candidate below another one, or below a process in `listed`, is only one of its workers,
    /// such as a compiler of kernels, and is not followed. However, if the lower one has a rank and the upper one has
    /// none, the upper one is a launcher such as torchrun. It is no longer followed, because its ranks share its log.
    /// Processes of different users do not affect each other: a user may be below another one because of `sudo`.
    pub fn add(&mut self, candidate: Candidate, listed: &[Process], found: Mono) {
        let Candidate { process, ancestors } = candidate;
        let is_above = |one: &&Process| one.uid == process.uid && ancestors.contains(&one.key);
        let followed = self.0.values().map(|followed| &followed.process);
        let above: Vec<&Process> = followed.chain(listed).filter(is_above).collect();
        let has_rank = |one: &Process| one.rank.get().is_some();
        if !above.is_empty() && (!has_rank(&process) || above.iter().any(|one| has_rank(one))) {
            return;
        }
        let launchers: Vec<ProcessKey> = above.iter().map(|launcher| launcher.key).collect();
        launchers.iter().for_each(|launcher| drop(self.0.remove(launcher)));
        self.remove_surplus(MAX_PER_USER, |one| one.uid == process.uid);
        self.remove_surplus(MAX_CANDIDATES, |_| true);
        let followed = FollowedCandidate { process, found, is_announced: false };
        self.0.insert(followed.process.key, followed);
    }

    /// Removes the oldest of these candidates if there are already as many as the limit.
    fn remove_surplus(&mut self, max: usize, is_counted: impl Fn(&Process) -> bool) {
        let counted = self.0.iter().filter(|(_, followed)| is_counted(&followed.process));
        let counted: Vec<_> = counted.map(|(key, followed)| (followed.found, *key)).collect();
        if counted.len() >= max
            && let Some((_, oldest)) = counted.iter().min()
        {
            self.0.remove(oldest);
        }
    }

    pub fn keys(&self) -> Vec<ProcessKey> {
        self.0.keys().copied().collect()
    }

    /// Removes the processes in `watched`, which use a GPU, and candidates that have been followed for a long time.
    pub fn retain(&mut self, watched: &[ProcessKey], now: Mono) {
        self.0.retain(|key, followed| {
            watched.binary_search(key).is_err() && now.since(followed.found) < MAX_TIME
        });
    }

    pub fn remove(&mut self, key: ProcessKey) -> Option<Process> {
        self.0.remove(&key).map(|followed| followed.process)
    }

    pub fn with_pid(&self, pid: Pid) -> Option<ProcessKey> {
        self.0.keys().find(|key| key.pid == pid).copied()
    }

    /// Returns the candidates that an observation refers to and that were not returned before.
    pub fn take_unannounced(
        &mut self,
        process: Option<ProcessKey>,
        observation: &Observation,
    ) -> Vec<Process> {
        let writers = match observation {
            Observation::Log(excerpt) => excerpt.writers.as_slice(),
            _ => &[],
        };
        let mut new = Vec::new();
        for key in process.iter().chain(writers) {
            if let Some(followed) = self.0.get_mut(key)
                && !std::mem::replace(&mut followed.is_announced, true)
            {
                new.push(followed.process.clone());
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Reading;
    use crate::model::event::LogExcerpt;

    fn key(pid: u32) -> ProcessKey {
        ProcessKey::new(pid, u64::from(pid) * 10)
    }

    fn process(pid: u32, rank: Option<u32>) -> Process {
        let rank = rank.map_or(Reading::default(), Reading::Value);
        Process { key: key(pid), rank, ..Process::default() }
    }

    fn candidate(pid: u32, rank: Option<u32>, ancestors: &[u32]) -> Candidate {
        let ancestors = ancestors.iter().map(|pid| key(*pid)).collect();
        Candidate { process: process(pid, rank), ancestors }
    }

    fn followed(found: Vec<Candidate>, listed: &[Process]) -> Vec<u32> {
        let mut candidates = FollowedCandidates::default();
        for candidate in found {
            candidates.add(candidate, listed, Mono(0));
        }
        candidates.keys().iter().map(|key| key.pid.0).collect()
    }

    #[test]
    fn follows_ranks_instead_of_their_launcher() {
        let launcher = candidate(10, None, &[1]);
        let ranks = [candidate(11, Some(0), &[10, 1]), candidate(12, Some(1), &[10, 1])];
        assert_eq!(followed([launcher].into_iter().chain(ranks).collect(), &[]), [11, 12]);
    }

    #[test]
    fn follows_programs_instead_of_their_workers() {
        let found = vec![candidate(10, None, &[1]), candidate(11, None, &[10, 1])];
        assert_eq!(followed(found, &[]), [10]);
        let found = vec![candidate(10, Some(0), &[1]), candidate(11, Some(0), &[10, 1])];
        assert_eq!(followed(found, &[]), [10]);
        let found = vec![candidate(11, None, &[10, 1]), candidate(21, None, &[20, 1])];
        assert_eq!(followed(found, &[process(10, None)]), [21]);
    }

    #[test]
    fn keeps_the_newest_until_they_use_a_gpu_or_are_old() {
        let mut candidates = FollowedCandidates::default();
        for pid in 1..=300 {
            let mut candidate = candidate(pid, None, &[]);
            candidate.process.uid = Some(pid % 5);
            candidates.add(candidate, &[], Mono(u64::from(pid)));
        }
        let pids = |candidates: &FollowedCandidates| {
            candidates.keys().iter().map(|key| key.pid.0).collect::<Vec<_>>()
        };
        assert_eq!(pids(&candidates), (45..=300).collect::<Vec<_>>());
        candidates.retain(&[key(299)], Mono(297 + MAX_TIME.0));
        assert_eq!(pids(&candidates), [298, 300]);
    }

    #[test]
    fn no_user_affects_the_programs_of_another() {
        let mut candidates = FollowedCandidates::default();
        let of_user = |uid, mut candidate: Candidate| {
            candidate.process.uid = Some(uid);
            candidate
        };
        candidates.add(of_user(1, candidate(1, None, &[])), &[], Mono(0));
        // Neither as the worker of a program nor as a rank of a launcher.
        candidates.add(of_user(2, candidate(2, None, &[1])), &[], Mono(1));
        candidates.add(of_user(2, candidate(3, Some(0), &[1])), &[], Mono(2));
        for pid in 4..=300 {
            candidates.add(of_user(2, candidate(pid, None, &[])), &[], Mono(u64::from(pid)));
        }
        let pids: Vec<u32> = candidates.keys().iter().map(|key| key.pid.0).collect();
        assert_eq!(pids, [1].into_iter().chain(237..=300).collect::<Vec<_>>());
    }

    #[test]
    fn announces_a_candidate_once_before_its_first_observation() {
        let mut candidates = FollowedCandidates::default();
        (1..=3).for_each(|pid| candidates.add(candidate(pid, None, &[]), &[], Mono(0)));
        let log =
            |writers| Observation::Log(Box::new(LogExcerpt { writers, ..Default::default() }));
        let mut announced = |process, writers| {
            let new = candidates.take_unannounced(process, &log(writers));
            new.iter().map(|process| process.key.pid.0).collect::<Vec<_>>()
        };
        assert_eq!(announced(Some(key(1)), Vec::new()), [1]);
        assert_eq!(announced(None, vec![key(1), key(2), key(9)]), [2]);
        assert!(announced(Some(key(1)), Vec::new()).is_empty());
    }
}
