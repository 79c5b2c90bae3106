//! Check of the distributed jobs that run on this host: whether their process groups can be read.

use std::path::Path;
use std::time::{Duration, Instant};

use gputop_model::process_group::{ProcessGroup, RankReading};
use gputop_model::{Millis, Missing, Pid, ProcessKey, Reading, Reason};
use gputop_peek::clock::Instants;
use gputop_peek::memory::live::Live;
use gputop_peek::nccl::{Failure, ProcessGroups, has_watchdog};

use super::check::Check;
use crate::cli::settings::agent_options;
use crate::collect::candidates::is_cuda_program;
use crate::incident::with_timeout;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which no further rank is read, so that those that were read are reported within [`TIMEOUT`].
const READ_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum time for reading ranks again whose groups changed, for all of them together, and the pause before each round.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of ranks to read.
const MAX_RANKS: usize = 64;

/// A rank, and why its process groups cannot be read, if they cannot.
type Rank = (Pid, Option<Missing>);

/// Returns `None` if no rank of a distributed job runs on this host, or if a process does not answer in time.
pub fn check_ranks() -> Option<Check> {
    let options = agent_options(Millis(1_000));
    let start = Instant::now();
    let read = move || {
        let pids = procfs::process::all_processes_with_root(&options.proc_root).into_iter();
        let pids = pids.flatten().filter_map(|process| process.ok()?.pid().try_into().ok());
        let pids = pids.take_while(|_| start.elapsed() < READ_TIMEOUT);
        let ranks = pids.filter_map(|pid| read_rank(&options.proc_root, Pid(pid)));
        let (mut ranks, mut changing): (Vec<_>, Vec<_>) = ranks.take(MAX_RANKS).unzip();
        let end = READ_TIMEOUT.min(start.elapsed() + RETRY_TIMEOUT);
        while changing.iter().any(Option::is_some) && start.elapsed() < end {
            std::thread::sleep(RETRY_INTERVAL);
            for ((_, why), groups) in ranks.iter_mut().zip(&mut changing) {
                if let Some(changed) = groups.take() {
                    (*why, *groups) = read_groups(changed);
                }
            }
        }
        ranks
    };
    check(&with_timeout(TIMEOUT, read)?)
}

fn check(ranks: &[Rank]) -> Option<Check> {
    let refused: Vec<_> =
        ranks.iter().filter_map(|(pid, why)| Some((pid, why.as_ref()?))).collect();
    let which = match (refused.len(), ranks.len()) {
        (_, 0) => return None,
        (_, 1) => "the only rank".to_owned(),
        (0, all) => format!("all {all} ranks"),
        (some, all) => format!("{some} of {all} ranks"),
    };
    let found = match refused.first() {
        None => format!("the process groups of {which} on this host can be read"),
        Some((pid, why)) => {
            format!("the process groups of {which} on this host cannot be read; PID {pid}: {why}")
        }
    };
    Some(Check::new("ranks of jobs", refused.is_empty(), found, ""))
}

/// Reads the process groups of a process, and returns them if another reading may show more. Returns `None` if it is not
/// a rank.
fn read_rank(proc_root: &Path, pid: Pid) -> Option<(Rank, Option<ProcessGroups<Live>>)> {
    // Everyone can read the names of threads, but only some releases of PyTorch name them.
    let is_certain = has_watchdog(proc_root, pid);
    if !is_certain && !is_cuda_program(proc_root, pid).unwrap_or(false) {
        return None;
    }
    let (why, changing) =
        match ProcessGroups::open(proc_root, ProcessKey { pid, ..ProcessKey::default() }) {
            Ok(groups) => read_groups(groups),
            Err(Failure::Forked) => return None,
            Err(Failure::NotNccl) if !is_certain => return None,
            Err(failure) => (Some(failure.missing()), None),
        };
    let is_rank = is_certain || why.as_ref().is_none_or(|why| why.reason != Reason::NotRead);
    is_rank.then_some(((pid, why), changing))
}

/// Returns why the process groups cannot be read, and the groups if they changed during the reading: a rank may call
/// thousands of operations a second.
fn read_groups(mut groups: ProcessGroups<Live>) -> (Option<Missing>, Option<ProcessGroups<Live>>) {
    let why = match groups.read(Instants::now()) {
        Ok(reading) => why_not(&reading),
        Err(failure) => Some(failure.missing()),
    };
    let is_changing = why.as_ref().is_some_and(|why| why.reason == Reason::Unknown);
    (why, is_changing.then_some(groups))
}

/// Returns why the numbers of collectives of a rank are unknown, or `None` if they are known.
fn why_not(reading: &RankReading) -> Option<Missing> {
    let called = |group: &ProcessGroup| group.called.why().cloned();
    match &reading.groups {
        Reading::Value(groups) => groups.iter().find_map(called),
        Reading::Missing(why) => Some(why.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_a_rank_that_cannot_be_read_and_nothing_without_ranks() {
        let rank =
            |pid, why: Option<&str>| (Pid(pid), why.map(|why| Missing::new(Reason::Denied, why)));
        let found = |ranks: &[Rank]| check(ranks).map(|check| (check.works, check.found));
        assert_eq!(found(&[]), None);
        let text = "the process groups of all 2 ranks on this host can be read";
        assert_eq!(found(&[rank(421, None), rank(422, None)]), Some((true, text.into())));
        let text = "the process groups of 1 of 2 ranks on this host cannot be read; PID 422: permission denied";
        let denied = rank(422, Some("permission denied"));
        assert_eq!(found(&[rank(421, None), denied.clone()]), Some((false, text.into())));
        let text = "the process groups of the only rank on this host cannot be read; PID 422: permission denied";
        assert_eq!(found(&[denied]), Some((false, text.into())));
    }
}
