//! Candidates whose output gputop follows until they use a GPU, exit, or turn out to be launchers.

use std::collections::BTreeMap;

use gputop_model::{Millis, Mono, Observation, Pid, Process, ProcessKey};

use crate::collect::candidates::Candidate;

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
mod tests;
